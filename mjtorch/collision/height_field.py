"""Contacts of height fields and convex geoms (mjc_ConvexHField).

A height field is made of prisms: each cell of its grid is cut in two triangles, and a prism stands under each, down to
the bottom of the field. Each prism that a geom touches is a contact of its own. Geoms whose bounding spheres are above
or beside the field are left out. Of the prisms around each other those are passed over that are lower, then those that
their own faces separate from it, or the way to them from a box around it. What remains, of all pairs together, is
tested as convex shapes are.

C 4.0 ends its search too early for boxes and meshes without a margin, and finds them less deep than they are.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.contact_points import ContactPoints, Solid
from mjtorch.collision.convex import nearest, single
from mjtorch.collision.portal import Settings, portal_contacts
from mjtorch.collision.support import Core, from_first, hull_core, is_at, support
from mjtorch.control_flow import each
from mjtorch.control_flow.context import wants_scans
from mjtorch.control_flow.fold import fold
from mjtorch.math.compact import appended, one_after_another, room
from mjtorch.math.vector import MIN_VALUE, cross, dot, norm
from mjtorch.model import DisableBit, Model
from mjtorch.model.plan.height_field import HeightFields
from mjtorch.model.plan.mesh import Hulls


@tree.dataclass
class Pair(tree.Tree):
    """n height fields and a convex shape each, in the frame of the field.

    fields: what the fields are; shape: (n,); half: (n, 3) [m] of boxes around the shapes, along their axes
    reach: (n,) [m] the distance at which contacts are detected
    size: (n, 4) [m] of the fields, as in `hfield_size`; spacing: (n, 2) [m] of their grids
    """

    fields: HeightFields
    shape: Core
    half: Tensor
    reach: Tensor
    size: Tensor
    spacing: Tensor


@tree.dataclass
class Around(tree.Tree):
    """The prisms around n geoms that may touch them, k of each at most, in C's order.

    origin: (n, 2) the first column and row of the window around the geom; number: (n, k) of the prism, in the window:
    two for each cell, row by row; count: (n,) how many there are; lost: (n,) zero if no more may be
    """

    origin: Tensor
    number: Tensor
    count: Tensor
    lost: Tensor


class Prisms(NamedTuple):
    """k prisms and the convex shape beside each, in the frame of the field.

    top: (k, 3, 3) [m] upper corners; deep: (k,) [m] how far down below zero they reach
    shape: (k,); reach: (k,) [m] the distance at which contacts are detected
    pos: (k, 3) [m], mat: (k, 3, 3) of the field
    """

    top: Tensor
    deep: Tensor
    shape: Core
    reach: Tensor
    pos: Tensor
    mat: Tensor


class Window(NamedTuple):
    """The cells under n shapes, as many as there is room for.

    origin: (n, 2) the first column and row; size: (n, 2) how many columns and rows
    missed: (n,) bool, the shape covers more of the field
    """

    origin: Tensor
    size: Tensor
    missed: Tensor


class Extent(NamedTuple):
    """How far n geoms reach along some axes (n, k, 3): low, high (n, k) [m]."""

    axes: Tensor
    low: Tensor
    high: Tensor


def field_contacts(
    m: Model,
    fields: HeightFields,
    field: Solid,
    shape: Core,
    hull: Tensor,
    reach: Tensor,
    first_candidate: Tensor,
    contacts: int,
    hulls: Hulls | None,
) -> ContactPoints:
    """The contacts of n height fields with a convex shape each, `contacts` at most, the first ones in C's order.

    hull: (n, 3) [m] how far the hulls of shapes reach along their axes, zero of those that have none
    reach: (n,) [m] the distance at which contacts are detected
    first_candidate: (n,) the first of the candidates of each pair
    """
    to_field = field.mat.mT
    pos = (to_field @ (shape.pos - field.pos)[..., None])[..., 0]
    size = m.hfield_size[fields.field]
    spacing = 2 * size[:, :2] / (fields.shape - 1)
    shape = shape.replace(pos=pos, mat=to_field @ shape.mat)
    half = shape.half + shape.round + shape.radius[:, None] + hull
    pairs = Pair(fields, shape, half, reach, size, spacing)
    fixed = tree.map(Tensor.detach, pairs)
    near = may_meet(fixed, norm(fixed.half))
    extent = each(lambda x: extents(x.shape, x.spacing, hulls), fixed, where=near, otherwise=no_extent)
    look = functools.partial(around, m.hfield_data.detach(), hulls)
    found = each(look, (fixed, extent), where=near & reaches_in(fixed, extent), otherwise=lambda x: apart(x[0]))
    pair, place, exists, past = one_after_another(found.count, fields.tested)

    def beside(given: tuple[Tensor, Tensor]) -> Prisms:
        pair, place = given
        mine = tree.map(lambda x: x[pair], pairs)
        corner = corners(mine, found.origin[pair], found.number.flatten()[pair * found.number.shape[1] + place])
        top = in_space(mine, corner, heights_at(m.hfield_data, mine.fields, corner))
        return Prisms(top, mine.size[:, 3], mine.shape, fixed.reach[pair], field.pos[pair], field.mat[pair])

    def unread(given: tuple[Tensor, Tensor]) -> Prisms:
        one = Prisms(half[:, None].expand(-1, 3, -1), size[:, 3], shape, reach, field.pos, field.mat)
        return tree.map(lambda x: room(x, len(given[0]), *x.shape[1:]), one)

    def met(given: Prisms) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        there = torch.ones_like(given.reach, dtype=torch.bool)
        dist, pos, normal, touching = prism_contacts(
            m, prism(given.top, given.deep), given.shape, there, given.reach, hulls
        )
        pos, normal = ((given.mat @ x[..., None])[..., 0] for x in (pos, normal))
        return dist, given.pos + pos, normal, touching

    def nothing(given: Prisms) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        none, space = torch.zeros_like(given.reach), torch.zeros_like(given.pos)
        return none, space, space, none > 0

    # Compiled code looks only for what there is, and puts together what all worlds have.
    prisms = each(beside, (pair, place), where=exists, otherwise=unread) if wants_scans() else beside((pair, place))
    dist, pos, normal, touching = each(met, prisms, where=exists, otherwise=nothing)
    count = torch.zeros_like(first_candidate).scatter_add(0, pair, touching.long())
    rank = touching.cumsum(0) - 1 - (count.cumsum(0) - count)[pair]
    # C would not look further for a pair that is full.
    lost = torch.where(count < contacts, found.lost + past, 0)
    exists, candidate = touching & (rank < contacts), first_candidate[pair] + rank.clamp(0, contacts - 1)
    points = ContactPoints(dist[:, None], pos[:, None], normal[:, None], exists[:, None], lost.sum())
    if m.plan.collision.selects:
        return points._replace(candidate=candidate[:, None])
    return spread(points, pair * contacts + rank, (len(count), contacts))


def spread(points: ContactPoints, slot: Tensor, shape: tuple[int, int]) -> ContactPoints:
    """The `points` of one contact each, in the slots (k,) of `shape`, all that there are."""
    total = shape[0] * shape[1]
    place = torch.where(points.exists[:, 0], slot, total)
    row = torch.zeros(total + 1, dtype=torch.long, device=place.device)
    row = row.scatter(0, place, torch.arange(len(place), device=place.device))
    there = torch.zeros_like(row, dtype=torch.bool).scatter(0, place, points.exists[:, 0])
    row, there = (x[:-1].unflatten(0, shape) for x in (row, there))
    dist, pos, normal = (x[:, 0][row] for x in (points.dist, points.pos, points.normal))
    return ContactPoints(dist, pos, normal, there, points.lost)


def prism_contacts(
    m: Model, prisms: Core, geom: Core, exists: Tensor, reach: Tensor, hulls: Hulls | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One contact of each of n prisms and shapes: dist (n,) [m], pos (n, 3) [m], normal (n, 3), and whether they touch.

    exists: (n,) bool, which pairs there are; reach: (n,) [m] the distance at which contacts are detected
    """
    if m.opt.disabled(DisableBit.NATIVECCD):
        settings = Settings(m.opt.ccd_iterations, m.opt.ccd_tolerance, hulls)
        points = portal_contacts(prisms, geom, exists, reach, settings)
        return points.dist[:, 0], points.pos[:, 0], points.normal[:, 0], points.exists[:, 0]
    one, two, origin = from_first(prisms, geom)
    near = nearest(one, two, exists, reach, m.opt.ccd_iterations, m.opt.ccd_tolerance, hulls)
    found = single(near)
    dist = found.dist[:, 0]
    return dist, found.pos[:, 0] + origin, found.normal, exists & near.within & (dist <= reach)


def extents(shape: Core, spacing: Tensor, hulls: Hulls | None) -> Extent:
    """How far n shapes reach along x, y, z and across the diagonals of cells of `spacing (n, 2)` [m]."""
    across = torch.stack([spacing[:, 1], -spacing[:, 0], torch.zeros_like(spacing[:, 0])], dim=-1)
    across = across / norm(across, keepdim=True)
    axes = torch.eye(3, dtype=across.dtype, device=across.device).expand(len(across), 3, 3)
    axes = torch.cat([axes, across[:, None]], dim=1)
    high, low = reaches(shape, torch.cat([axes, -axes], dim=1), hulls).chunk(2, dim=1)
    return Extent(axes, -low, high)


def reaches(shape: Core, direction: Tensor, hulls: Hulls | None) -> Tensor:
    """How far (n, k) [m] each of n shapes reaches along directions (n, k, 3), unit vectors."""
    n, k, _ = direction.shape
    each = tree.map(lambda x: x[:, None].expand(n, k, *x.shape[1:]).flatten(0, 1), shape)
    flat = direction.flatten(0, 1)
    return (dot(flat, support(each, flat, hulls)) + each.radius).unflatten(0, (n, k))


def no_extent(pairs: Pair) -> Extent:
    """That of what is not looked at."""
    none = torch.zeros_like(pairs.shape.pos[:, :1]).expand(-1, 4)
    return Extent(none[..., None].expand(-1, -1, 3), none, none)


def may_meet(pairs: Pair, bound: Tensor) -> Tensor:
    """Which shapes (n,) bool may come as near as matters to the box around their field, by spheres around them."""
    far = bound[:, None] + pairs.reach[:, None]
    return in_box(pairs, pairs.shape.pos - far, pairs.shape.pos + far)


def reaches_in(pairs: Pair, extent: Extent) -> Tensor:
    """As `may_meet`, by boxes around them."""
    far = pairs.reach[:, None]
    return in_box(pairs, extent.low[:, :3] - far, extent.high[:, :3] + far)


def in_box(pairs: Pair, low: Tensor, high: Tensor) -> Tensor:
    """Whether boxes from `low` to `high` (n, 3) [m] meet those around the fields (n,)."""
    across, along, top, deep = pairs.size.unbind(-1)
    upper, lower = torch.stack([across, along, top], dim=-1), torch.stack([across, along, deep], dim=-1)
    return ((low <= upper) & (high >= -lower)).all(-1)


def most(fields: HeightFields) -> tuple[int, int]:
    """How many prisms there are in a window, and how many of these may be looked at closely."""
    return 2 * fields.rows * fields.cols, fields.listed


def apart(pairs: Pair) -> Around:
    """Nothing that may touch."""
    number = torch.zeros_like(pairs.fields.address)
    none = room(number, len(number), most(pairs.fields)[1])
    return Around(torch.zeros_like(pairs.fields.shape), none, number, number)


def around(heights: Tensor, hulls: Hulls | None, given: tuple[Pair, Extent]) -> Around:
    """The prisms around shapes that may touch these; given: pairs, and how far their shapes reach."""
    pairs, extent = given
    fields, far = pairs.fields, pairs.reach[:, None]
    low = extent.low[:, 2:3] - far
    there = window(pairs, extent.low[:, :2] - far, extent.high[:, :2] + far)
    (all_under, closely), count = most(fields), 2 * there.size.prod(-1)
    nothing = torch.zeros_like(count)

    def rise(now: tuple[Tensor, Tensor], k: Tensor) -> tuple[Tensor, Tensor]:
        number = numbered(fields, there, k)
        place = there.origin[:, None, None] + upper(fields, number)
        top = heights_at(heights, fields, place).amax(-1) * pairs.size[:, 2:3]
        return appended(*now, (k < count[:, None]) & (top >= low), number)

    def touch(now: tuple[Tensor, Tensor], k: Tensor) -> tuple[Tensor, Tensor]:
        # C looks at no more than a pair has contacts of: of a full list it is enough to know that there are more.
        number, there_is = risen.index_select(1, k), (k < rising[:, None]) & (now[1] <= closely)[:, None]
        pair = torch.arange(len(count), device=k.device)[:, None].expand_as(number)
        may = each(meets, (pair.flatten(), number.flatten()), where=there_is.flatten(), otherwise=lambda x: x[0] < 0)
        return appended(*now, may.view_as(number), number)

    def meets(prism: tuple[Tensor, Tensor]) -> Tensor:
        pair, number = prism
        mine, reaching = tree.map(lambda x: x[pair], (pairs, extent))
        place = corners(mine, there.origin[pair], number)
        top = in_space(mine, place, heights_at(heights, mine.fields, place))
        return separation(top, mine, reaching, hulls) <= mine.reach

    def listed(most: int) -> tuple[Tensor, Tensor]:
        return nothing[:, None].expand(-1, most + 1), nothing

    risen, rising = fold(rise, count, all_under, listed(all_under))
    number, touching = fold(touch, rising, all_under, listed(closely))
    more = (touching > closely).long()
    return Around(there.origin, number[:, :-1], touching.clamp(max=closely), more + there.missed)


def window(pairs: Pair, low: Tensor, high: Tensor) -> Window:
    """The windows from `low` to `high` (n, 2) [m]."""
    corner, cells = pairs.size[:, :2], pairs.fields.shape - 1
    most = torch.tensor([pairs.fields.cols, pairs.fields.rows], device=cells.device)
    start, end = (torch.floor((edge + corner) / pairs.spacing).long() for edge in (low, high))
    origin = torch.minimum(start.clamp(min=0), cells)
    size = (torch.minimum(end, cells - 1) - origin + 1).clamp(min=0)
    return Window(origin, torch.minimum(size, most), (size > most).any(-1) & (size > 0).all(-1))


def numbered(fields: HeightFields, there: Window, k: Tensor) -> Tensor:
    """The numbers (n, k) of those prisms of windows that are the k-th (k,) below the shapes, in C's order."""
    columns = there.size[:, :1].clamp(min=1)
    at = torch.div(k, 2, rounding_mode="floor")
    # Of such numbers half a cell is far more than is lost to rounding, and integers are divided slowly.
    row = ((at + 0.5) / columns).long()
    return 2 * (row * fields.cols + at - row * columns) + k % 2


def cell(fields: HeightFields, number: Tensor) -> Tensor:
    """Column and row (..., 2) within windows of the cells whose prisms have these numbers (...)."""
    at = torch.div(number, 2, rounding_mode="floor")
    return torch.stack([at % fields.cols, torch.div(at, fields.cols, rounding_mode="floor")], dim=-1)


def corners(pairs: Pair, origin: Tensor, number: Tensor) -> Tensor:
    """Columns and rows (k, 3, 2) of the upper corners of a prism of each pair, counterclockwise from above.

    origin: (k, 2) where the windows begin; number: (k,) which prism of the window it is
    """
    return origin[:, None] + upper(pairs.fields, number)


def upper(fields: HeightFields, number: Tensor) -> Tensor:
    """Columns and rows (..., 3, 2) within windows of the upper corners of the prisms of these numbers (...)."""
    turn = torch.tensor([[[0, 1], [0, 0], [1, 1]], [[0, 0], [1, 0], [1, 1]]], device=number.device)
    return cell(fields, number)[..., None, :] + turn[number % 2]


def heights_at(heights: Tensor, fields: HeightFields, place: Tensor) -> Tensor:
    """The heights (n, ...), as in `hfield_data`, at columns and rows `place` (n, ..., 2); beyond the edge as on it."""
    ncol, nrow, first = (x.view(-1, *(1,) * (place.dim() - 2)) for x in (*fields.shape.unbind(-1), fields.address))
    col, row = place.unbind(-1)
    return heights[first + torch.minimum(row, nrow - 1) * ncol + torch.minimum(col, ncol - 1)]


def in_space(pairs: Pair, place: Tensor, z: Tensor) -> Tensor:
    """The points (k, 3, 3) [m] of the fields at columns and rows `place` (k, 3, 2), of heights (k, 3)."""
    flat = place * pairs.spacing[:, None] - pairs.size[:, None, :2]
    return torch.cat([flat, (z * pairs.size[:, 2:3])[..., None]], dim=-1)


def separation(top: Tensor, pairs: Pair, extent: Extent, hulls: Hulls | None) -> Tensor:
    """How far apart (k,) [m] prisms and shapes are at least, by what is quickly asked; negative: not at all.

    That is the faces of the prisms, and the way to the prism from the box around the shape: of a shape that lies aslant
    over many cells faces tell of few. top: (k, 3, 3) [m] upper corners of the prisms
    """
    bottom = -pairs.size[:, 3:]
    along = top @ extent.axes.mT
    low, high = along.amin(1), along.amax(1)
    low = torch.where(is_at(torch.tensor(2, device=top.device), 4), bottom, low)
    sides = torch.maximum(low - extent.high, extent.low - high).amax(-1)
    a, b, c = top.unbind(1)
    up = cross(b - a, c - a)
    up = up / norm(up, keepdim=True)
    beside = ((top.mean(1) - pairs.shape.pos)[:, None] @ pairs.shape.mat)[:, 0]
    over = (pairs.shape.mat @ (beside - beside.clamp(-pairs.half, pairs.half))[..., None])[..., 0]
    over = over / norm(over, keepdim=True).clamp(min=MIN_VALUE)
    above, across = reaches(pairs.shape, torch.stack([-up, over], dim=1), hulls).unbind(1)
    near = torch.where(over[:, None, 2] > 0, bottom, top[..., 2]) * over[:, None, 2]
    near = (near + (top[..., :2] * over[:, None, :2]).sum(-1)).amin(1)
    return torch.maximum(torch.maximum(sides, -above - dot(up, a)), near - across)


def prism(top: Tensor, depth: Tensor) -> Core:
    """Prisms with the upper corners `top` (k, 3, 3) [m] that reach down to `depth` (k,) [m] below zero."""
    bottom = -depth[:, None, None].expand(-1, 3, 1)
    vert = torch.cat([torch.cat([top[..., :2], bottom], dim=-1), top], dim=1)
    return hull_core(vert, torch.zeros_like(vert[:, 0, 0]))
