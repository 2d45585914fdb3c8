"""Distances between geoms (mj_geomDistance)."""

import torch
from torch import Tensor

from mjtorch.collision.broad_phase import everything
from mjtorch.collision.capsule import nearest_of_segments
from mjtorch.collision.contact_points import ContactPoints, Solid
from mjtorch.collision.convex import closest
from mjtorch.collision.families import COLLIDERS, family_contacts
from mjtorch.collision.plane import touching_plane
from mjtorch.collision.sphere import core_to_core, surface
from mjtorch.collision.support import MESH, Convex, hull_support
from mjtorch.collision.witness import Nearest
from mjtorch.math.shape import Shape
from mjtorch.math.vector import dot
from mjtorch.model import Data, Model
from mjtorch.model.arguments import check_both, checked_ids
from mjtorch.model.plan.distance import PairGroup
from mjtorch.model.plan.family import Family
from mjtorch.model.plan.geom_pairs import HFIELD, PLANE, ROUND, SDF, SUPPORTED
from mjtorch.model.plan.measured import BOX_BOX
from mjtorch.model.plan.mesh import Hulls


def geom_distance(m: Model, d: Data, geom1: int, geom2: int, distmax: float | Tensor) -> tuple[Tensor, Tensor]:
    """The signed distance of two geoms, and the points where they are nearest (mj_geomDistance). Needs `kinematics`.

    Like C, by the formulas that collisions have; deep in a box, that of capsules finds less than the depth. Of a mesh
    it is the convex hull. Two planes are as far apart as may be. With the flag nativeccd disabled it is the same.

    Args:
        m: the model.
        d: what `kinematics` leaves.
        geom1, geom2: geom ids; no height fields, nor signed distance fields.
        distmax: () [m] the distance is at most that.

    Returns:
        dist () [m], negative in penetration, and fromto (2, 3) [m], a point on geom1 and one on geom2; zero where the
        geoms are further apart than `distmax`.

    Raises:
        TypeError, IndexError: an argument does not fit.
        NotImplementedError: one of the geoms is of another type, or a mesh without a hull.
    """
    check_both(m, d, "geom_distance")
    for name, geom in (("geom1", geom1), ("geom2", geom2)):
        if isinstance(geom, bool) or not isinstance(geom, int):
            raise TypeError(f"geom_distance: {name} must be an int, got {geom!r}; m.geom(name).id is that of a name")
        checked_ids("geom_distance", name, geom, m.ngeom, d.qpos)
    if not isinstance(distmax, Tensor | int | float):
        raise TypeError(f"geom_distance: distmax must be a number, got {distmax!r}")
    most = torch.as_tensor(distmax, dtype=d.geom_xpos.dtype, device=d.geom_xpos.device)
    first, second = sorted((geom1, geom2), key=lambda geom: m.geom_type[geom])
    types = m.geom_type[first], m.geom_type[second]
    if types[1] <= HFIELD:
        return most, most.new_zeros((2, 3))
    if not (_is_known(m, first) and _is_known(m, second)):
        other = next(geom for geom in (first, second) if not _is_known(m, geom))
        raise NotImplementedError(
            f"geom_distance: geom {other} is a height field or a signed distance field; give it a mesh or a primitive"
        )
    for geom in (first, second):
        if m.geom_type[geom] == MESH and not any(m.geom_dataid[geom] in hulls.mesh for hulls in m.plan.collision.hulls):
            raise NotImplementedError(
                f"geom_distance: geom {geom} is a mesh that collides with nothing, and has no hull; let it collide"
            )
    one, two = shapes(m, d, PairGroup(types=types, geom=torch.tensor([[first], [second]], device=most.device)))
    iterations, tolerance = m.opt.ccd_iterations, m.opt.ccd_tolerance
    dist, fromto = distances(one, two, most[None], iterations=iterations, tolerance=tolerance, hulls=hulls_of(m))
    return dist[0], fromto[0] if first == geom1 else fromto[0].flip(0)


def _is_known(m: Model, geom: int) -> bool:
    """Whether a geom has a distance from anything."""
    return m.geom_type[geom] in (PLANE, MESH, *Shape)


def hulls_of(m: Model) -> Hulls | None:
    """Those of all meshes, if there are any."""
    return next(iter(m.plan.collision.hulls), None)


def shapes(m: Model, d: Data, group: PairGroup) -> tuple[Convex, Convex]:
    """The geoms of a group: the first ones and the second ones; planes too."""
    one, two = (
        Convex(d.geom_xpos[geom], d.geom_xmat[geom], m.geom_size[geom], m.plan.collision.geom_hull[geom], type)
        for type, geom in zip(group.types, group.geom, strict=True)
    )
    return one, two


def distances(
    shape1: Convex,
    shape2: Convex,
    distmax: Tensor,
    *,
    iterations: int = 35,
    tolerance: float | Tensor = 1e-6,
    hulls: Hulls | None = None,
) -> tuple[Tensor, Tensor]:
    """The signed distances of n pairs of geoms, and the points where they are nearest.

    shape1, shape2: the lower type first; planes too
    distmax: (n,) [m] distances are at most that; iterations, tolerance [m]: mjOption.ccd_iterations, ccd_tolerance
    hulls: those that meshes refer to

    Returns dist (n,) [m], negative in penetration, and fromto (n, 2, 3) [m], a point on geom 1 and one on geom 2; zero
    where the geoms are further apart than `distmax`.
    """
    found = nearest_points(shape1, shape2, iterations, tolerance, hulls)
    near = found.dist < distmax
    fromto = torch.stack([found.point1, found.point2], dim=1)
    return torch.where(near, found.dist, distmax), torch.where(near[:, None, None], fromto, 0.0)


def nearest_points(
    shape1: Convex, shape2: Convex, iterations: int, tolerance: float | Tensor, hulls: Hulls | None
) -> Nearest:
    """Where n pairs of geoms are nearest: as their collider finds it if they have one, else as convex shapes."""
    family = SUPPORTED[shape1.type, shape2.type].family
    one, two = (Solid(shape.pos, shape.mat, shape.size) for shape in (shape1, shape2))
    if shape1.type == PLANE and shape2.type in (Shape.SPHERE, Shape.CAPSULE, MESH, SDF):
        if shape2.type not in (MESH, SDF):
            return _least(plane_round(one, two, shape2.type))
        assert hulls is not None, "meshes need hulls"
        return _least(plane_hull(one, shape2, hulls))
    if family == ROUND:
        return _least(round_round(one, two, (shape1.type, shape2.type)))
    if family in COLLIDERS and family != BOX_BOX:
        return _least(COLLIDERS[family](one, two, torch.full_like(one.size[:, 0], torch.inf)))
    return closest(shape1, shape2, iterations, tolerance, hulls).nearest


def least_contact(m: Model, d: Data, family: Family, margin: Tensor) -> Nearest:
    """Where the deepest contacts of the n pairs of a family are; their distances are infinite if they have none.

    margin: (n,) [m] the distances at which contacts are detected
    """
    near = torch.ones_like(margin, dtype=torch.bool)
    (points,) = family_contacts(m, d, family, everything(family)._replace(near=near), margin)
    found = _least(points)
    return found._replace(dist=torch.where(points.exists.any(-1), found.dist, torch.inf))


def _least(points: ContactPoints) -> Nearest:
    """The first of the contacts of n pairs that has the least distance."""
    which = points.dist.detach().masked_fill(~points.exists, torch.inf).argmin(-1, keepdim=True)
    dist = points.dist.gather(1, which)
    pos, normal = (x.gather(1, which[..., None].expand(-1, 1, 3))[:, 0] for x in (points.pos, points.normal))
    half = 0.5 * dist * normal
    return Nearest(normal, dist[:, 0], pos - half, pos + half)


def plane_hull(plane: Solid, mesh: Convex, hulls: Hulls) -> ContactPoints:
    """The lowest vertices of meshes."""
    down = -(mesh.mat.mT @ plane.axis[..., None])[..., 0].detach()
    vertex = hulls.vert[hull_support(hulls, mesh.hull, down)]
    point = mesh.pos[:, None] + vertex[:, None] @ mesh.mat.mT
    return touching_plane(plane, point, torch.ones_like(point[..., 0], dtype=torch.bool))


def _segment(solid: Solid, type: int) -> Tensor:
    """Half of the cores (n, 3) [m] of capsules; zero for spheres."""
    return solid.axis * solid.size[:, 1:2] if type == Shape.CAPSULE else torch.zeros_like(solid.axis)


def plane_round(plane: Solid, other: Solid, type: int) -> ContactPoints:
    """The two ends of capsules, or spheres (mjc_PlaneCapsule, mjc_PlaneSphere)."""
    half = _segment(other, type)
    center = torch.stack([other.pos + half, other.pos - half], dim=1)
    normal = plane.axis[:, None].expand_as(center)
    height, radius = dot(center - plane.pos[:, None], normal), other.size[:, :1]
    dist, pos = surface(height, normal, center, torch.zeros_like(radius), radius)
    return ContactPoints(dist, pos, normal, torch.ones_like(dist, dtype=torch.bool))


def round_round(one: Solid, two: Solid, types: tuple[int, int]) -> ContactPoints:
    """Spheres and capsules (mjc_SphereSphere, mjc_SphereCapsule, mjc_CapsuleCapsule)."""
    half1, half2 = _segment(one, types[0]), _segment(two, types[1])
    point1, point2, parallel = nearest_of_segments(one.pos, half1, two.pos, half2)
    normal, distance = core_to_core(point1, point2, one.axis, two.axis, one.size[:, 0] + two.size[:, 0])
    dist, pos = surface(distance[..., 0], normal, point2, one.size[:, 0], two.size[:, 0])
    exists = torch.stack([torch.ones_like(parallel), parallel])
    return ContactPoints(dist.mT, pos.transpose(0, 1), normal.transpose(0, 1), exists.mT)
