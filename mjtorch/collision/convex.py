"""Contacts of convex shapes that have no formula of their own (mjc_Convex)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.epa import epa
from mjtorch.collision.gjk import gjk
from mjtorch.collision.multicontact import features, may_touch_along_faces, multicontact
from mjtorch.collision.support import Convex, detach, from_first, radius, support
from mjtorch.collision.witness import Nearest, witness
from mjtorch.math.shape import Shape
from mjtorch.math.vector import dot, norm

# How far, relative to the size of a face, its points may be from the furthest along its normal.
LAG = 0.02
# How closely, relative to their size, a polytope is fitted to shapes with a normal everywhere, before Newton's method.
SMOOTH = 2e-3


class Contacts(NamedTuple):
    """Contacts of n pairs of geoms, k for each.

    dist: (n, k) [m], pos: (n, k, 3) [m] halfway between the surfaces, normal: (n, 3) from 1 to 2
    exists: (n, k) bool; the first always does, whatever its distance
    """

    dist: Tensor
    pos: Tensor
    normal: Tensor
    exists: Tensor


class Closest(NamedTuple):
    """Where n pairs of shapes are nearest, and the corners (n, 3, 3) [m] on either core that this was found from."""

    nearest: Nearest
    corner1: Tensor
    corner2: Tensor


def convex(
    shape1: Convex,
    shape2: Convex,
    margin: Tensor,
    *,
    multiccd: bool = True,
    iterations: int = 35,
    tolerance: float | Tensor = 1e-6,
) -> Contacts:
    """The contacts of n pairs of shapes: one for each or, of shapes with faces or edges, up to four (mjc_Convex).

    margin: (n,) [m] the distance up to which there are several; one further apart there always is
    multiccd: whether more than one is looked for, static; iterations, tolerance [m]: mjOption.ccd_iterations,
        ccd_tolerance
    """
    shape1, shape2, origin = from_first(shape1, shape2)
    found = closest(shape1, shape2, iterations, tolerance)
    near = found.nearest
    dist, pos = near.dist[:, None], 0.5 * (near.point1 + near.point2)[:, None]
    exists = torch.ones_like(dist, dtype=torch.bool)
    if not (multiccd and may_touch_along_faces(shape1, shape2)):
        return Contacts(dist, pos + origin[:, None], near.normal, exists)
    around1 = features(shape1, near.normal, found.corner1)
    around2 = features(shape2, -near.normal, found.corner2)
    patch = multicontact(around1, around2, margin)
    several = patch.exists[:, :1]
    only = torch.arange(patch.exists.shape[1], device=dist.device) == 0
    return Contacts(
        torch.where(several, patch.dist, dist),
        torch.where(several[..., None], patch.pos, pos) + origin[:, None],
        torch.where(several, patch.normal, near.normal),
        torch.where(several, patch.exists, only),
    )


def closest(shape1: Convex, shape2: Convex, iterations: int, tolerance: float | Tensor) -> Closest:
    """The points of n pairs of shapes that are nearest to each other, or deepest in each other."""
    fixed1, fixed2 = detach(shape1), detach(shape2)

    def furthest(direction: Tensor) -> tuple[Tensor, Tensor]:
        return support(fixed1, -direction), support(fixed2, direction)

    start = fixed2.pos - fixed1.pos
    apart = gjk(furthest, start, iterations, tolerance)
    distance = norm(apart.nearest, keepdim=True)
    touch = distance <= tolerance
    is_smooth = {shape1.type, shape2.type} <= {Shape.SPHERE, Shape.ELLIPSOID}
    deep = epa(furthest, start, touch[:, 0], iterations, tolerance, SMOOTH if is_smooth else 0.0)

    # At most three corners of shapes that are apart have a weight; one that has none is left out.
    weight, used = apart.weight.topk(3, -1)
    used = torch.where(weight > 0, used, used[:, :1])[..., None].expand(-1, -1, 3)
    weight = torch.where(touch, deep.weight, weight)
    corner1 = torch.where(touch[..., None], deep.point1, apart.point1.gather(1, used))
    corner2 = torch.where(touch[..., None], deep.point2, apart.point2.gather(1, used))
    point1, point2 = (weight[..., None] * corner1).sum(1), (weight[..., None] * corner2).sum(1)
    normal = torch.where(touch, -deep.normal, apart.nearest / torch.where(touch, 1.0, distance))
    if {Shape.ELLIPSOID, Shape.CYLINDER} & {shape1.type, shape2.type}:
        # Not converged: what is known best is a direction, not a face.
        coarse = touch & (deep.reach[:, 3:] > deep.depth[:, None] + tolerance)
        normal = torch.where(coarse, -deep.reach[:, :3], normal)
        corner1 = spanned(corner1, point1, support(fixed1, normal), normal)
        corner2 = spanned(corner2, point2, support(fixed2, -normal), -normal)
        point1, point2 = (weight[..., None] * corner1).sum(1), (weight[..., None] * corner2).sum(1)
    cores = Nearest(normal, dot(normal, point2 - point1), point1, point2)
    cores = witness(shape1, shape2, cores, corner1, corner2)
    radius1, radius2 = radius(shape1), radius(shape2)
    nearest = Nearest(
        cores.normal,
        cores.dist - radius1 - radius2,
        cores.point1 + radius1[:, None] * cores.normal,
        cores.point2 - radius2[:, None] * cores.normal,
    )
    return Closest(nearest, corner1, corner2)


def spanned(corner: Tensor, point: Tensor, furthest: Tensor, normal: Tensor) -> Tensor:
    """`corner (n, 3, 3)` [m], or `furthest (n, 3)` thrice where that is much further along the normal than `point`."""
    size = norm(corner[:, 1:] - corner[:, :1]).amax(-1)
    off = dot(normal, furthest - point) > LAG * size
    return torch.where(off[:, None, None], furthest[:, None], corner)
