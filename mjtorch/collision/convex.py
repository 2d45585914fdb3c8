"""Contacts of convex shapes that have no formula of their own (mjc_Convex)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.across_face import FLAT, across_face, closest_across, on_flat
from mjtorch.collision.epa import epa, no_depth
from mjtorch.collision.gjk import Entry, Support, difference, entered, gjk
from mjtorch.collision.multicontact import (
    Large,
    Meeting,
    Patch,
    features,
    has_large,
    may_touch_along_faces,
    multicontact,
    no_large,
    no_patch,
    polygons,
    with_room,
)
from mjtorch.collision.side_by_side import may_touch_along_lines, side_by_side
from mjtorch.collision.support import (
    CURVED,
    MESH,
    PRISM,
    SMOOTH,
    Convex,
    Core,
    core,
    detach,
    from_first,
    numbered_support,
    where_rows,
)
from mjtorch.collision.witness import Closest, Nearest, closer, unknown, vertices, witness
from mjtorch.control_flow.if_any import if_any
from mjtorch.control_flow.map import each
from mjtorch.math.vector import dot, norm
from mjtorch.model.plan.mesh import Hulls

# How far, relative to the size of a face, its points may be from the furthest along its normal.
LAG = 0.02
# How far, relative to the size of the smaller shape, points may be from where the normal says that they are.
TOUCH = 1e-4
# Cosine of the angle between the normal where shapes are nearest and that of a patch where they touch.
ALONG = 0.98
# How much less deep that may be where they differ, relative to the size of the smaller shape.
SLACK = 0.01
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


class Approach(NamedTuple):
    """How near n pairs of shapes come to each other where they are apart.

    found: what is nearest; weight: (n, 3) of the corners in the nearest points
    simplex: (n, 4, 2 c) all corners that the search ended with, on core 1 and on core 2 as in `Support`
    reach: (n, 4) the direction along which the shapes were found to overlap least, as in `Simplex`
    touch: (n,) bool, nothing shows that they are apart; doubtful: (n,) bool, more is to be found out
    """

    found: Closest
    weight: Tensor
    simplex: Tensor
    reach: Tensor
    touch: Tensor
    doubtful: Tensor


def convex(
    shape1: Convex,
    shape2: Convex,
    margin: Tensor,
    *,
    multiccd: bool = True,
    iterations: int = 35,
    tolerance: float | Tensor = 1e-6,
    hulls: Hulls | None = None,
) -> Contacts:
    """The contacts of n pairs of shapes: one for each or, of shapes with faces or edges, up to four (mjc_Convex).

    margin: (n,) [m] the distance up to which there are several; one further apart there always is
    multiccd: whether more than one is looked for, static; iterations, tolerance [m]: mjOption.ccd_iterations,
        ccd_tolerance
    hulls: those that meshes refer to
    """
    one, two, origin = from_first(core(shape1), core(shape2))
    found = nearest(one, two, *everywhere(margin), iterations, tolerance, hulls)
    flat = multiccd and may_touch_along_faces(one, two, hulls)
    contacts = several(one, two, found, margin, hulls) if flat else single(found)
    return contacts._replace(pos=contacts.pos + origin[:, None])


def single(found: Closest) -> Contacts:
    """One contact for each pair, where the shapes are nearest."""
    near = found.nearest
    dist, pos = near.dist[:, None], 0.5 * (near.point1 + near.point2)[:, None]
    return Contacts(dist, pos, near.normal, torch.ones_like(dist, dtype=torch.bool))


def several(shape1: Core, shape2: Core, found: Closest, margin: Tensor, hulls: Hulls | None) -> Contacts:
    """The contacts of shapes that may touch along faces or edges, four at most; margin: (n,) [m] as in `convex`."""
    one = single(found)
    near = found.within & (one.dist[:, 0] <= margin)

    def patches(pairs: tuple[Core, Core, Closest, Tensor]) -> tuple[Patch, tuple[Large, ...]]:
        return touching(*pairs, hulls)

    def nothing(pairs: tuple[Core, Core, Closest, Tensor]) -> tuple[Patch, tuple[Large, ...]]:
        one, two, _, margin = pairs
        large = has_large(polygons(one, hulls), polygons(two, hulls))
        return no_patch(margin), (no_large(margin),) if large else ()

    def in_room(pairs: tuple[Core, Core, Meeting, Tensor, Patch]) -> Patch:
        one, two, met, margin, _ = pairs
        return with_room(met, polygons(one, hulls), polygons(two, hulls), margin)

    patch: Patch
    patch, more = each(patches, (shape1, shape2, found, margin), where=near, otherwise=nothing)
    for large in more:
        rest = shape1, shape2, large.met, margin, patch
        patch = each(in_room, rest, where=large.there, otherwise=lambda x: x[-1])
    # Features found from a corner may be parallel and yet not what touches there: the normal is another one then, and
    # the points are less deep than the shapes.
    along = dot(patch.normal, one.normal, keepdim=True) > ALONG
    least = torch.where(patch.exists, patch.dist, torch.inf).amin(1, keepdim=True)
    slack = SLACK * (torch.minimum(shape1.extent, shape2.extent)[:, None] - one.dist).clamp(min=0)
    is_patch = patch.exists[:, :1] & near[:, None] & (along | (least <= one.dist + slack))
    only = torch.arange(patch.exists.shape[1], device=margin.device) == 0
    return Contacts(
        torch.where(is_patch, patch.dist, one.dist),
        torch.where(is_patch[..., None], patch.pos, one.pos),
        torch.where(is_patch, patch.normal, one.normal),
        torch.where(is_patch, patch.exists, only),
    )


def touching(
    shape1: Core, shape2: Core, found: Closest, margin: Tensor, hulls: Hulls | None
) -> tuple[Patch, tuple[Large, ...]]:
    """Where shapes touch in more than a point, as `multicontact` says it; margin: (n,) [m] as in `convex`."""
    normal = found.nearest.normal
    around1 = features(shape1, normal, found.corner1, found.vertex1, hulls)
    around2 = features(shape2, -normal, found.corner2, found.vertex2, hulls)
    return multicontact(around1, around2, polygons(shape1, hulls), polygons(shape2, hulls), margin)


def closest(
    shape1: Convex, shape2: Convex, iterations: int, tolerance: float | Tensor, hulls: Hulls | None = None
) -> Closest:
    """The points of n pairs of shapes that are nearest to each other, or deepest in each other.

    Curved shapes whose centres nearly coincide may need more than the 35 iterations of mjOption's default, or the depth
    is off by up to 1e-3 of their size: another direction is nearly as good. C's depth is then off further, and oftener.
    """
    one, two, origin = from_first(core(shape1), core(shape2))
    found = nearest(one, two, *everywhere(origin[:, 0]), iterations, tolerance, hulls)
    near = found.nearest._replace(point1=found.nearest.point1 + origin, point2=found.nearest.point2 + origin)
    return found._replace(
        nearest=near, corner1=found.corner1 + origin[:, None], corner2=found.corner2 + origin[:, None]
    )


def everywhere(like: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs are of interest, however far apart: `active` and `reach` of `nearest`, of the shape of `like`."""
    return torch.ones_like(like, dtype=torch.bool), torch.full_like(like, torch.inf)


def nearest(
    shape1: Core,
    shape2: Core,
    active: Tensor,
    reach: Tensor,
    iterations: int,
    tolerance: float | Tensor,
    hulls: Hulls | None = None,
) -> Closest:
    """The points of n pairs of shapes that are nearest to each other, or deepest in each other.

    active: (n,) bool, pairs that are of interest; reach: (n,) [m] how near to each other they are of interest; the
        others cost little, and what is said of them means nothing
    hulls: those that meshes refer to
    """
    # One for each pair: a derivative of a loop cannot be traced if the loop captures a number of the model.
    limit = (torch.zeros_like(shape1.pos[:, 0]) + tolerance).detach()
    apart = (reach + shape1.radius + shape2.radius).detach()

    one, two = detach(shape1), detach(shape2)

    def simply(pairs: tuple[Core, Core, Tensor, Closest]) -> tuple[Closest, Tensor]:
        return at_once(*pairs, hulls)

    def enter(pairs: tuple[Core, Core, Tensor]) -> Entry:
        one, two, _ = pairs
        return entered(opposite(one, two, hulls), two.pos - one.pos)

    def outside(pairs: tuple[Core, Core, Tensor]) -> Entry:
        point1, point2 = corners_of(pairs[0].pos, 2, no_hulls(*pairs[:2], hulls)).unbind(1)
        return Entry(point1.clone(), point2.clone(), pairs[2])

    def search(pairs: tuple[Core, Core, Entry, Tensor, Tensor, Tensor, Closest]) -> Approach:
        return approached(*pairs[:-1], iterations, hulls)

    def deepen(pairs: tuple[Core, Core, Approach, Tensor]) -> Closest:
        return deepened(*pairs, iterations, hulls)

    # What pairs cost that come near, touch, or are in each other is another matter each: they are listed anew. Of those
    # whose boxes overlap most are apart along the line from centre to centre.
    flat = (*one.types, *two.types) if not one.has((PRISM,)) else ()
    found, rest = unknown(one, two), active
    if not set(flat).isdisjoint(FLAT):
        sure = one, two, apart, found
        looked = active & on_flat(one, two)
        found, left = each(simply, sure, where=looked, otherwise=lambda x: (x[3], torch.zeros_like(x[3].within)))
        rest = torch.where(looked, left, active)
    entry: Entry = each(enter, (one, two, apart), where=rest, otherwise=outside)
    rest = rest & ~(entry.dist > apart)
    pairs = one, two, entry, rest, apart, limit, found
    near: Approach = each(search, pairs, where=rest, otherwise=lambda x: unsearched(x[6], no_hulls(x[0], x[1], hulls)))
    found = each(deepen, (one, two, near, limit), where=near.doubtful, otherwise=lambda x: x[2].found)
    along_lines = may_touch_along_lines(shape1, shape2)

    def exact(pairs: tuple[Core, Core, Nearest, Tensor, Tensor]) -> Nearest:
        met = witness(*pairs)
        return side_by_side(*pairs[:2], met, hulls) if along_lines else met

    met = shape1, shape2, found.nearest, found.corner1, found.corner2
    cores: Nearest = each(exact, met, where=found.within, otherwise=lambda x: x[2])
    surfaces = Nearest(
        cores.normal,
        cores.dist - shape1.radius - shape2.radius,
        cores.point1 + shape1.radius[:, None] * cores.normal,
        cores.point2 - shape2.radius[:, None] * cores.normal,
    )
    return found._replace(nearest=surfaces)


def unsearched(found: Closest, no_hulls: bool) -> Approach:
    """What stands for the search of pairs of which all that is of interest is known; no_hulls: static."""
    point, no = torch.zeros_like(found.nearest.point1), torch.zeros_like(found.within)
    simplex = torch.cat([corners_of(point, 4, no_hulls)] * 2, dim=-1)
    return Approach(found, point, simplex, point.new_zeros((len(point), 4)), no, no)


def corners_of(like: Tensor, count: int, no_hulls: bool) -> Tensor:
    """Zeros (n, count, c) for points as in `Support`; like: (n, 3)."""
    return like.new_zeros((len(like), count, 3 if no_hulls else 4))


def at_once(shape1: Core, shape2: Core, reach: Tensor, found: Closest, hulls: Hulls | None) -> tuple[Closest, Tensor]:
    """What is known without a search of pairs of which one has a box or a cylinder to be on, and which (n,) need one.

    reach: (n,) [m] of cores, as for `approached`
    """
    near = across_face(shape1, shape2, hulls)
    far = near.exists & (near.dist > reach)
    return where_rows(near.found & ~far, closest_across(near), found), ~(near.found | far)


def approached(
    shape1: Core,
    shape2: Core,
    entry: Entry,
    active: Tensor,
    reach: Tensor,
    tolerance: Tensor,
    iterations: int,
    hulls: Hulls | None,
) -> Approach:
    """The nearest points of the cores of shapes that are constants; reach: (n,) [m] of cores, tolerance: (n,) [m]."""
    apart = gjk(opposite(shape1, shape2, hulls), entry, active, reach, iterations, tolerance)
    within = active & ~apart.beyond
    distance = norm(apart.nearest, keepdim=True)
    # A search that stalls does not say that shapes are apart; planes of a polytope have signs.
    touch = ~apart.apart | (distance[:, 0] <= tolerance)
    # At most three corners of shapes that are apart have a weight; one that has none is left out.
    weight, used = apart.weight.topk(3, -1)
    used = torch.where(weight > 0, used, used[:, :1])[..., None].expand(-1, -1, apart.point1.shape[2])
    corner1, corner2 = apart.point1.gather(1, used), apart.point2.gather(1, used)
    normal = apart.nearest / torch.where(touch[:, None], 1.0, distance)
    found = weighted(normal, weight, corner1, corner2, within)
    doubtful = (touch | shape1.among(CURVED) | shape2.among(CURVED)) & within
    return Approach(found, weight, torch.cat([apart.point1, apart.point2], dim=-1), apart.reach, touch, doubtful)


def weighted(normal: Tensor, weight: Tensor, corner1: Tensor, corner2: Tensor, within: Tensor) -> Closest:
    """The points with a weight (n, 3) each of corners (n, 3, c), as in `Support`."""
    point1, point2 = (weight[..., None] * corner1[..., :3]).sum(1), (weight[..., None] * corner2[..., :3]).sum(1)
    near = Nearest(normal, dot(normal, point2 - point1), point1, point2)
    return Closest(near, corner1[..., :3], corner2[..., :3], vertices(corner1), vertices(corner2), within)


def deepened(
    shape1: Core, shape2: Core, near: Approach, tolerance: Tensor, iterations: int, hulls: Hulls | None
) -> Closest:
    """What is known better of pairs that are `doubtful`: how deep they are in each other, how far curved ones apart."""
    furthest, start = opposite(shape1, shape2, hulls), shape2.pos - shape1.pos
    rough, found = roughness(shape1, shape2), near.found
    deeper = near.touch & found.within
    deep = if_any(
        deeper,
        lambda: epa(furthest, near.simplex, start, near.reach, deeper, iterations, tolerance, rough),
        no_depth(start, near.simplex.shape[-1] // 2),
    )
    weight = torch.where(deeper[:, None], deep.weight, near.weight)
    deepest = weighted(-deep.normal, deep.weight, deep.point1, deep.point2, found.within)
    found = where_rows(deeper, deepest, found)
    curved = (shape1.among(CURVED) | shape2.among(CURVED)) & found.within
    # Of a polytope that did not converge, or that rounding spoilt, what is known best is a direction, not a face.
    bound = torch.where(deeper[:, None], -deep.reach[:, :3], found.nearest.normal)
    enough = torch.where(curved, 0.0, deep.enough)
    return settled(shape1, shape2, found, bound, weight, deeper, curved, enough, hulls)


def settled(
    shape1: Core,
    shape2: Core,
    found: Closest,
    bound: Tensor,
    weight: Tensor,
    touch: Tensor,
    curved: Tensor,
    enough: Tensor,
    hulls: Hulls | None,
) -> Closest:
    """What was found, or what is found from the normals `bound (n, 3)` if that is better by more than `enough (n,)`.

    The depth is at most what shapes overlap by along any direction: so the better of two normals is the one along which
    they overlap less. weight: (n, 3) of the corners; touch, curved: (n,) bool, as for `tested`
    """

    def twice(x: Tensor) -> Tensor:
        return torch.cat([x, x])

    one, two = tree.map(twice, shape1), tree.map(twice, shape2)
    furthest, normal = opposite(one, two, hulls), torch.cat([found.nearest.normal, bound])
    known = tree.map(twice, (found, weight, touch, curved))
    met, gap = tested(furthest, one, two, known[0], normal, *known[1:], hulls)
    by_face, by_bound = gap.chunk(2)
    better = by_bound > by_face + enough
    first, second = (tree.map(lambda x, k=k: x.chunk(2)[k], met) for k in (0, 1))
    return where_rows(better, second, first)


def tested(
    furthest: Support,
    shape1: Core,
    shape2: Core,
    found: Closest,
    normal: Tensor,
    weight: Tensor,
    touch: Tensor,
    curved: Tensor,
    hulls: Hulls | None,
) -> tuple[Closest, Tensor]:
    """What was found with some `normal (n, 3)`, met more closely where shapes are `curved`, and the gap (n,) [m].

    The depth is the overlap along the normal. Where two points that `touch` do not say so, the furthest one of the
    smaller shape and what is opposite to it do. weight: (n, 3) of the corners; touch, curved: (n,) bool
    """
    far1, far2 = furthest(-normal)
    small, sizes = torch.minimum(shape1.extent, shape2.extent), shape1.extent + shape2.extent
    rounding = 64 * torch.finfo(small.dtype).eps * sizes
    slack = TOUCH * small + rounding
    corner1, vertex1 = spanned(found.corner1, found.vertex1, found.nearest.point1, far1, normal, curved, slack)
    corner2, vertex2 = spanned(found.corner2, found.vertex2, found.nearest.point2, far2, -normal, curved, slack)
    point1, point2 = (weight[..., None] * corner1).sum(1), (weight[..., None] * corner2).sum(1)
    gap = dot(normal, difference(far1, far2), keepdim=True)
    limit = torch.where(curved, LAG * small, TOUCH * small) + rounding
    off = (touch & ~(norm(point2 - point1 - gap * normal) <= limit))[:, None]
    first = (shape1.extent < shape2.extent)[:, None]
    anchor1 = torch.where(first, far1[:, :3], far2[:, :3] - gap * normal)
    anchor2 = torch.where(first, far1[:, :3] + gap * normal, far2[:, :3])
    point1, point2 = torch.where(off, anchor1, point1), torch.where(off, anchor2, point2)
    corner1 = torch.where(off[..., None], anchor1[:, None], corner1)
    corner2 = torch.where(off[..., None], anchor2[:, None], corner2)
    vertex1 = torch.where(off, vertices(far1[:, None]), vertex1)
    vertex2 = torch.where(off, vertices(far2[:, None]), vertex2)
    dist = torch.where(off[:, 0], gap[:, 0], dot(normal, point2 - point1))
    near = Nearest(normal, dist, point1, point2)
    if shape1.has(CURVED) or shape2.has(CURVED):

        def met(pairs: tuple[Core, Core, Nearest, Tensor, Tensor]) -> Nearest:
            return closer(opposite(*pairs[:2], hulls), *pairs)

        near = each(met, (shape1, shape2, near, corner1, corner2), where=curved, otherwise=lambda x: x[2])
    measured = torch.where(curved, near.dist, gap[:, 0])
    return Closest(near, corner1, corner2, vertex1, vertex2, found.within), measured


def opposite(shape1: Core, shape2: Core, hulls: Hulls | None, level: float | None = None) -> Support:
    """The furthest points of both shapes, of all in one go unless there are prisms.

    level: static, as in `primitive_support`
    """
    hulls = None if no_hulls(shape1, shape2, hulls) else hulls
    if shape1.has((PRISM,)):
        return lambda direction: (
            numbered_support(shape1, -direction, hulls, level),
            numbered_support(shape2, direction, hulls, level),
        )
    types = tuple(sorted({*shape1.types, *shape2.types}))
    both = tree.map(lambda *x: torch.cat(x), shape1.replace(types=types), shape2.replace(types=types))

    def furthest(direction: Tensor) -> tuple[Tensor, Tensor]:
        one, two = numbered_support(both, torch.cat([-direction, direction]), hulls, level).chunk(2)
        return one, two

    return furthest


def no_hulls(shape1: Core, shape2: Core, hulls: Hulls | None) -> bool:
    """Whether neither shape is a hull; static."""
    return hulls is None or not (shape1.has((MESH,)) or shape2.has((MESH,)))


def roughness(shape1: Core, shape2: Core) -> float | Tensor:
    """How closely, relative to their size, a polytope is fitted to shapes, for all or each pair."""
    if shape1.only(SMOOTH) and shape2.only(SMOOTH):
        return CLOSELY
    if not (shape1.has(SMOOTH) and shape2.has(SMOOTH)):
        return 0.0
    return CLOSELY * (shape1.among(SMOOTH) & shape2.among(SMOOTH)).to(shape1.pos.dtype)


def spanned(
    corner: Tensor, vertex: Tensor, point: Tensor, furthest: Tensor, normal: Tensor, curved: Tensor, slack: Tensor
) -> tuple[Tensor, Tensor]:
    """`corner (n, 3, 3)` [m], or `furthest` thrice where that is much further along the normal than `point (n, 3)`.

    vertex: (n, 3) numbers of the corners, which are returned as well; furthest: (n, c) as in `Support`
    curved: (n,) bool, pairs for which that is done; slack: (n,) [m] how much is not much
    """
    size = norm(corner[:, 1:] - corner[:, :1]).amax(-1)
    off = (curved & (dot(normal, furthest[:, :3] - point) > LAG * size + slack))[:, None]
    number = vertices(furthest[:, None])
    return torch.where(off[..., None], furthest[:, None, :3], corner), torch.where(off, number, vertex)
