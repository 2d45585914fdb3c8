"""Contacts of convex shapes that have no formula of their own (mjc_Convex)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.epa import epa
from mjtorch.collision.gjk import gjk
from mjtorch.collision.multicontact import features, may_touch_along_faces, multicontact
from mjtorch.collision.support import CURVED, SMOOTH, Convex, Core, core, detach, from_first, support
from mjtorch.collision.witness import Nearest, closer, witness
from mjtorch.control_flow.map import each
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math.vector import basis, dot, norm

# How far, relative to the size of a face, its points may be from the furthest along its normal.
LAG = 0.02
# How closely, relative to their size, a polytope is fitted to shapes with a normal everywhere, before Newton's method.
CLOSELY = 2e-3


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
    one, two, origin = from_first(core(shape1), core(shape2))
    found = nearest(one, two, torch.ones_like(margin, dtype=torch.bool), iterations, tolerance)
    flat = multiccd and may_touch_along_faces(one, two)
    contacts = several(one, two, found, margin) if flat else single(found)
    return contacts._replace(pos=contacts.pos + origin[:, None])


def single(found: Closest) -> Contacts:
    """One contact for each pair, where the shapes are nearest."""
    near = found.nearest
    dist, pos = near.dist[:, None], 0.5 * (near.point1 + near.point2)[:, None]
    return Contacts(dist, pos, near.normal, torch.ones_like(dist, dtype=torch.bool))


def several(shape1: Core, shape2: Core, found: Closest, margin: Tensor) -> Contacts:
    """The contacts of shapes that may touch along faces or edges, four at most; margin: (n,) [m] as in `convex`."""
    one = single(found)
    around1 = features(shape1, one.normal, found.corner1)
    around2 = features(shape2, -one.normal, found.corner2)
    patch = multicontact(around1, around2, margin)
    is_patch = patch.exists[:, :1]
    only = torch.arange(patch.exists.shape[1], device=margin.device) == 0
    return Contacts(
        torch.where(is_patch, patch.dist, one.dist),
        torch.where(is_patch[..., None], patch.pos, one.pos),
        torch.where(is_patch, patch.normal, one.normal),
        torch.where(is_patch, patch.exists, only),
    )


def closest(shape1: Convex, shape2: Convex, iterations: int, tolerance: float | Tensor) -> Closest:
    """The points of n pairs of shapes that are nearest to each other, or deepest in each other."""
    one, two, origin = from_first(core(shape1), core(shape2))
    found = nearest(one, two, torch.ones_like(origin[:, 0], dtype=torch.bool), iterations, tolerance)
    near = found.nearest._replace(point1=found.nearest.point1 + origin, point2=found.nearest.point2 + origin)
    return Closest(near, found.corner1 + origin[:, None], found.corner2 + origin[:, None])


def nearest(shape1: Core, shape2: Core, active: Tensor, iterations: int, tolerance: float | Tensor) -> Closest:
    """The points of n pairs of shapes that are nearest to each other, or deepest in each other.

    active: (n,) bool, pairs that are of interest; the others cost nothing, and what is said of them means nothing
    """
    # One for each pair: a derivative of a loop cannot be traced if the loop captures a number of the model.
    limit = (torch.zeros_like(shape1.pos[:, 0]) + tolerance).detach()

    def search(pairs: tuple[Core, Core, Tensor, Tensor]) -> Closest:
        return searched(*pairs, iterations)

    found: Closest = each(search, (detach(shape1), detach(shape2), active, limit))
    cores = witness(shape1, shape2, found.nearest, found.corner1, found.corner2)
    return Closest(
        Nearest(
            cores.normal,
            cores.dist - shape1.radius - shape2.radius,
            cores.point1 + shape1.radius[:, None] * cores.normal,
            cores.point2 - shape2.radius[:, None] * cores.normal,
        ),
        found.corner1,
        found.corner2,
    )


def searched(shape1: Core, shape2: Core, active: Tensor, tolerance: Tensor, iterations: int) -> Closest:
    """The nearest points of the cores of shapes that are constants, if any pair is active; tolerance: (n,) [m]."""
    point1, point2 = shape1.pos, shape2.pos
    normal = basis(point1, 1, 0, 0).expand_as(point1)
    anything = Closest(
        Nearest(normal, dot(normal, point2 - point1), point1, point2),
        point1[:, None].expand(-1, 3, 3),
        point2[:, None].expand(-1, 3, 3),
    )

    def search(state: tuple[Tensor, Closest]) -> tuple[Tensor, Closest]:
        return torch.zeros_like(active), search_cores(shape1, shape2, active, tolerance, iterations)

    return while_loop(lambda state: state[0].any(), search, (active, tree.map(Tensor.contiguous, anything)))[1]


def search_cores(shape1: Core, shape2: Core, active: Tensor, tolerance: Tensor, iterations: int) -> Closest:
    """The nearest points of the cores of shapes that are constants; tolerance: (n,) [m]."""

    def furthest(direction: Tensor) -> tuple[Tensor, Tensor]:
        return support(shape1, -direction), support(shape2, direction)

    start = shape2.pos - shape1.pos
    apart = gjk(furthest, start, active, iterations, tolerance)
    distance = norm(apart.nearest, keepdim=True)
    touch = distance <= tolerance[:, None]
    deep = epa(furthest, start, touch[:, 0] & active, iterations, tolerance, roughness(shape1, shape2))

    # At most three corners of shapes that are apart have a weight; one that has none is left out.
    weight, used = apart.weight.topk(3, -1)
    used = torch.where(weight > 0, used, used[:, :1])[..., None].expand(-1, -1, 3)
    weight = torch.where(touch, deep.weight, weight)
    corner1 = torch.where(touch[..., None], deep.point1, apart.point1.gather(1, used))
    corner2 = torch.where(touch[..., None], deep.point2, apart.point2.gather(1, used))
    point1, point2 = (weight[..., None] * corner1).sum(1), (weight[..., None] * corner2).sum(1)
    normal = torch.where(touch, -deep.normal, apart.nearest / torch.where(touch, 1.0, distance))
    cores = Nearest(normal, dot(normal, point2 - point1), point1, point2)
    if not (shape1.has(CURVED) or shape2.has(CURVED)):
        return Closest(cores, corner1, corner2)
    # Not converged: what is known best is a direction, not a face.
    curved = shape1.among(CURVED) | shape2.among(CURVED)
    coarse = touch & (deep.reach[:, 3:] > (deep.depth + tolerance)[:, None])
    normal = torch.where(coarse, -deep.reach[:, :3], normal)
    corner1 = spanned(corner1, point1, support(shape1, normal), normal, curved)
    corner2 = spanned(corner2, point2, support(shape2, -normal), -normal, curved)
    point1, point2 = (weight[..., None] * corner1).sum(1), (weight[..., None] * corner2).sum(1)
    met = closer(shape1, shape2, Nearest(normal, cores.dist, point1, point2), corner1, corner2)
    pairs = zip(met, cores, strict=True)
    cores = Nearest(*(torch.where(curved.view(-1, *(1,) * (x.dim() - 1)), x, y) for x, y in pairs))
    return Closest(cores, corner1, corner2)


def roughness(shape1: Core, shape2: Core) -> float | Tensor:
    """How closely, relative to their size, a polytope is fitted to shapes, for all or each pair."""
    if shape1.only(SMOOTH) and shape2.only(SMOOTH):
        return CLOSELY
    if not (shape1.has(SMOOTH) and shape2.has(SMOOTH)):
        return 0.0
    return CLOSELY * (shape1.among(SMOOTH) & shape2.among(SMOOTH)).to(shape1.pos.dtype)


def spanned(corner: Tensor, point: Tensor, furthest: Tensor, normal: Tensor, curved: Tensor) -> Tensor:
    """`corner (n, 3, 3)` [m], or `furthest (n, 3)` thrice where that is much further along the normal than `point`.

    curved: (n,) bool, pairs for which that is done
    """
    size = norm(corner[:, 1:] - corner[:, :1]).amax(-1)
    off = curved & (dot(normal, furthest - point) > LAG * size)
    return torch.where(off[:, None, None], furthest[:, None], corner)
