"""Contacts of height fields and convex geoms (mjc_ConvexHField).

A height field is made of prisms: each cell of its grid is cut in two triangles, and a prism stands under each, down to
the bottom of the field. Each prism that a geom touches is a contact of its own. Geoms whose bounding spheres are above
or beside the field are left out. Of the prisms around each other those are passed over that are lower, then those whose
own faces separate them from it; what remains, of all pairs, is tested as convex shapes are.

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
from mjtorch.math.compact import compacted
from mjtorch.math.vector import cross, dot, norm
from mjtorch.model import DisableBit, Model
from mjtorch.model.plan.height_field import HeightFields
from mjtorch.model.plan.mesh import Hulls


@tree.dataclass
class Pair(tree.Tree):
    """n height fields and a convex shape each, in the frame of the field.

    fields: what the fields are; shape: (n,); reach: (n,) [m] the distance at which contacts are detected
    size: (n, 4) [m] of the fields, as in `hfield_size`; spacing: (n, 2) [m] of their grids
    """

    fields: HeightFields
    shape: Core
    reach: Tensor
    size: Tensor
    spacing: Tensor


@tree.dataclass
class Around(tree.Tree):
    """The prisms around n geoms that may touch them, k of each at most, in C's order.

    origin: (n, 2) the first column and row of the window around the geom; number: (n, k) of the prism, in the window:
    two for each cell, row by row; exists: (n, k) bool; lost: (n,) how many more there may be
    """

    origin: Tensor
    number: Tensor
    exists: Tensor
    lost: Tensor


class Window(NamedTuple):
    """The cells under n shapes, of each a number that is static.

    origin: (n, 2) the first column and row; start, end: (n, 2) the first and the last under the shape
    missed: (n,) bool, the shape covers more of the field than the window
    """

    origin: Tensor
    start: Tensor
    end: Tensor
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
    pairs = Pair(fields, shape.replace(pos=pos, mat=to_field @ shape.mat), reach, size, spacing)
    fixed = tree.map(Tensor.detach, pairs)
    alone = fixed.shape
    bound = norm(alone.half + alone.round + hull.detach()) + alone.radius
    look = functools.partial(around, m.hfield_data.detach(), hulls)
    found = each(look, fixed, where=may_meet(fixed, bound), otherwise=apart)
    element, exists, past = compacted(found.exists.flatten(), fields.tested)
    pair = element // found.exists.shape[1]

    mine = tree.map(lambda x: x[pair], pairs)
    corner = corners(mine, found.origin[pair], found.number.flatten()[element])
    top = in_space(mine, corner, heights_at(m.hfield_data, mine.fields, corner))
    within = fixed.reach[pair]
    dist, pos, normal, touching = prism_contacts(m, prism(top, size[pair, 3]), mine.shape, exists, within, hulls)
    count = torch.zeros_like(first_candidate).scatter_add(0, pair, touching.long())
    rank = touching.cumsum(0) - 1 - (count.cumsum(0) - count)[pair]
    # C would not look further for a pair that is full.
    lost = torch.where(count < contacts, found.lost + past.view_as(found.exists).sum(1), 0)
    origin, mat = field.pos[pair], field.mat[pair]
    exists, candidate = touching & (rank < contacts), first_candidate[pair] + rank.clamp(0, contacts - 1)
    pos, normal = origin + (mat @ pos[..., None])[..., 0], (mat @ normal[..., None])[..., 0]
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


def may_meet(pairs: Pair, bound: Tensor) -> Tensor:
    """Which shapes (n,) bool may come as near as matters to the box around their field, by spheres around them."""
    far = bound + pairs.reach
    across, along, high, deep = pairs.size.unbind(-1)
    x, y, z = pairs.shape.pos.unbind(-1)
    return (x.abs() <= across + far) & (y.abs() <= along + far) & (z <= high + far) & (z >= -deep - far)


def most(fields: HeightFields) -> tuple[int, int]:
    """How many prisms there are in a window, and how many of these may be looked at closely."""
    window = 2 * fields.rows * fields.cols
    return window, min(window, fields.tested)


def apart(pairs: Pair) -> Around:
    """Nothing that may touch."""
    number = torch.zeros_like(pairs.fields.address)
    none = number[:, None].expand(-1, most(pairs.fields)[1])
    return Around(torch.zeros_like(pairs.fields.shape), none, none > 0, number)


def around(heights: Tensor, hulls: Hulls | None, pairs: Pair) -> Around:
    """The prisms around shapes that may touch these."""
    fields, extent = pairs.fields, extents(pairs.shape, pairs.spacing, hulls)
    far = pairs.reach[:, None]
    low = extent.low[:, 2] - pairs.reach
    there = window(pairs, extent.low[:, :2] - far, extent.high[:, :2] + far)
    origin, missed = there.origin, there.missed & (low < pairs.size[:, 2])

    count, closely = most(fields)
    row, col = (torch.arange(k + 1, device=low.device) for k in (fields.rows, fields.cols))
    grid = torch.stack(torch.broadcast_tensors(col, row[:, None]), dim=-1)
    z = heights_at(heights, fields, origin[:, None, None] + grid)
    a, b, c, d = z[:, :-1, :-1], z[:, :-1, 1:], z[:, 1:, 1:], z[:, 1:, :-1]
    top = torch.stack([torch.stack([d, a, c], dim=-1), torch.stack([a, b, c], dim=-1)], dim=-2).reshape(-1, 3)
    pair = torch.arange(len(low), device=low.device)[:, None].expand(-1, count).flatten()
    number = torch.arange(count, device=low.device).expand(len(low), -1).flatten()

    def meets(prism: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        pair, number, z = prism
        mine, reaching = tree.map(lambda x: x[pair], (pairs, extent))
        top = in_space(mine, corners(mine, origin[pair], number), z)
        return separation(top, -mine.size[:, 3], reaching, mine.shape, hulls) <= mine.reach

    place = origin[pair] + cell(fields, number)
    last = torch.minimum(there.end, fields.shape - 2)[pair]
    under = ((place >= there.start[pair]) & (place <= last)).all(-1)
    reached = under & (top.amax(-1) * pairs.size[pair, 2] >= low[pair])
    may_touch = each(meets, (pair, number, top), where=reached, otherwise=lambda x: x[0] < 0)
    number, exists, past = compacted(may_touch.unflatten(0, (-1, count)), closely)
    return Around(origin, number, exists, past.sum(1) + missed)


def window(pairs: Pair, low: Tensor, high: Tensor) -> Window:
    """The windows from `low` to `high` (n, 2) [m]."""
    corner, cells = pairs.size[:, :2], pairs.fields.shape - 1
    room = torch.tensor([pairs.fields.cols, pairs.fields.rows], device=cells.device)
    start, end = (torch.floor((edge + corner) / pairs.spacing).long() for edge in (low, high))
    origin = torch.minimum(start, cells - room).clamp(min=0)
    over = ((start < cells) & (end >= 0)).all(-1)
    return Window(origin, start, end, over & ((end >= origin + room) & (origin + room < cells)).any(-1))


def cell(fields: HeightFields, number: Tensor) -> Tensor:
    """Column and row (..., 2) within windows of the cells whose prisms have these numbers (...)."""
    at = torch.div(number, 2, rounding_mode="floor")
    return torch.stack([at % fields.cols, torch.div(at, fields.cols, rounding_mode="floor")], dim=-1)


def corners(pairs: Pair, origin: Tensor, number: Tensor) -> Tensor:
    """Columns and rows (k, 3, 2) of the upper corners of a prism of each pair, counterclockwise from above.

    origin: (k, 2) where the windows begin; number: (k,) which prism of the window it is
    """
    turn = torch.tensor([[[0, 1], [0, 0], [1, 1]], [[0, 0], [1, 0], [1, 1]]], device=number.device)
    return (origin + cell(pairs.fields, number))[:, None] + turn[number % 2]


def heights_at(heights: Tensor, fields: HeightFields, place: Tensor) -> Tensor:
    """The heights (n, ...), as in `hfield_data`, at columns and rows `place` (n, ..., 2); beyond the edge as on it."""
    ncol, nrow, first = (x.view(-1, *(1,) * (place.dim() - 2)) for x in (*fields.shape.unbind(-1), fields.address))
    col, row = place.unbind(-1)
    return heights[first + torch.minimum(row, nrow - 1) * ncol + torch.minimum(col, ncol - 1)]


def in_space(pairs: Pair, place: Tensor, z: Tensor) -> Tensor:
    """The points (k, 3, 3) [m] of the fields at columns and rows `place` (k, 3, 2), of heights (k, 3)."""
    flat = place * pairs.spacing[:, None] - pairs.size[:, None, :2]
    return torch.cat([flat, (z * pairs.size[:, 2:3])[..., None]], dim=-1)


def separation(top: Tensor, bottom: Tensor, extent: Extent, shape: Core, hulls: Hulls | None) -> Tensor:
    """How far apart (n,) [m] prisms and geoms are at least, by the faces of the prisms; negative: not at all.

    top: (n, 3, 3) [m] upper corners of the prisms; bottom: (n,) [m] z of the lower ones
    """
    along = top @ extent.axes.mT
    low, high = along.amin(1), along.amax(1)
    low = torch.where(is_at(torch.tensor(2, device=top.device), 4), bottom[:, None], low)
    sides = torch.maximum(low - extent.high, extent.low - high).amax(-1)
    a, b, c = top.unbind(1)
    up = cross(b - a, c - a)
    up = up / norm(up, keepdim=True)
    return torch.maximum(sides, -reaches(shape, -up[:, None], hulls)[:, 0] - dot(up, a))


def prism(top: Tensor, depth: Tensor) -> Core:
    """Prisms with the upper corners `top` (k, 3, 3) [m] that reach down to `depth` (k,) [m] below zero."""
    bottom = -depth[:, None, None].expand(-1, 3, 1)
    vert = torch.cat([torch.cat([top[..., :2], bottom], dim=-1), top], dim=1)
    return hull_core(vert, torch.zeros_like(vert[:, 0, 0]))
