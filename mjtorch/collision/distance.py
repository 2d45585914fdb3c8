"""Distances between geoms (mj_geomDistance)."""

import torch
from torch import Tensor

from mjtorch.collision.contact_points import ContactPoints, Solid
from mjtorch.collision.convex import nearest
from mjtorch.collision.families import COLLIDERS
from mjtorch.collision.support import Convex, core, from_first, primitive
from mjtorch.math.shape import Shape
from mjtorch.model import Data, Model
from mjtorch.model.plan.geom_pairs import SUPPORTED

SHAPES = (Shape.SPHERE, Shape.CAPSULE, Shape.ELLIPSOID, Shape.CYLINDER, Shape.BOX)


def geom_distance(m: Model, d: Data, geom1: int, geom2: int, distmax: float | Tensor) -> tuple[Tensor, Tensor]:
    """The signed distance of two geoms, and the points where they are nearest (mj_geomDistance). Needs `kinematics`.

    Like C, by the formulas that collisions have; deep in a box, that of capsules finds less than the depth.

    Args:
        m: the model.
        d: what `kinematics` leaves.
        geom1, geom2: geom ids; spheres, capsules, ellipsoids, cylinders or boxes.
        distmax: () [m] the distance is at most that.

    Returns:
        dist () [m], negative in penetration, and fromto (2, 3) [m], a point on geom1 and one on geom2; zero where the
        geoms are further apart than `distmax`.

    Raises:
        NotImplementedError: one of the geoms is of another type.
    """
    first, second = sorted((geom1, geom2), key=lambda geom: m.geom_type[geom])
    one, two = _shape(m, d, first), _shape(m, d, second)
    most = torch.as_tensor(distmax, dtype=d.geom_xpos.dtype, device=d.geom_xpos.device)[None]
    collider = COLLIDERS.get(SUPPORTED[one.type, two.type].family)
    if collider is None or one.type == Shape.BOX:
        dist, fromto = distances(one, two, most, iterations=m.opt.ccd_iterations, tolerance=m.opt.ccd_tolerance)
    else:
        points = collider(Solid(one.pos, one.mat, one.size), Solid(two.pos, two.mat, two.size), most)
        dist, fromto = _of_contacts(points, most)
    return dist[0], fromto[0] if first == geom1 else fromto[0].flip(0)


def _of_contacts(points: ContactPoints, distmax: Tensor) -> tuple[Tensor, Tensor]:
    """What `distances` returns, from the contacts of n pairs."""
    dist, first = points.dist.masked_fill(~points.exists, torch.inf).min(-1)
    which = first[:, None, None].expand(-1, 1, 3)
    pos, normal = points.pos.gather(1, which), points.normal.gather(1, which)
    near = dist < distmax
    half = 0.5 * torch.where(near, dist, 0.0)[:, None, None] * normal
    fromto = torch.cat([pos - half, pos + half], dim=1)
    return torch.where(near, dist, distmax), torch.where(near[:, None, None], fromto, 0.0)


def _shape(m: Model, d: Data, geom: int) -> Convex:
    """One geom."""
    if m.geom_type[geom] not in SHAPES:
        raise NotImplementedError(
            f"geom_distance: geom {geom} is no sphere, capsule, ellipsoid, cylinder or box; give it a primitive geom"
        )
    return primitive(m.geom_type[geom], d.geom_xpos[geom, None], d.geom_xmat[geom, None], m.geom_size[geom, None])


def distances(
    shape1: Convex, shape2: Convex, distmax: Tensor, *, iterations: int = 35, tolerance: float | Tensor = 1e-6
) -> tuple[Tensor, Tensor]:
    """The signed distances of n pairs of convex geoms, and the points where they are nearest.

    distmax: (n,) [m] distances are at most that; iterations, tolerance [m]: mjOption.ccd_iterations, ccd_tolerance

    Returns dist (n,) [m], negative in penetration, and fromto (n, 2, 3) [m], a point on geom 1 and one on geom 2; zero
    where the geoms are further apart than `distmax`.
    """
    one, two, origin = from_first(core(shape1), core(shape2))
    found = nearest(one, two, torch.ones_like(distmax, dtype=torch.bool), iterations, tolerance).nearest
    near = found.dist < distmax
    fromto = torch.stack([found.point1, found.point2], dim=1) + origin[:, None]
    return torch.where(near, found.dist, distmax), torch.where(near[:, None, None], fromto, 0.0)
