"""Contacts of height fields and convex geoms (mjc_ConvexHField).

A height field is made of prisms: each cell of its grid is cut in two triangles, and a prism stands under each, down to
the bottom of the field. Each prism that a geom touches is a contact of its own. Geoms whose bounding spheres are above
all that lies under them are left out. Of the prisms around each other those are passed over first whose own faces
separate them from it; what remains, of all pairs, is tested as convex shapes are.

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
    """The prisms around n geoms, w for each, in C's order: two for each cell of a window, row by row.

    origin: (n, 2) the first column and row of the window; may_touch: (n, w) bool
    missed: (n,) bool, the geom covers more than the window
    """

    origin: Tensor
    may_touch: Tensor
    missed: Tensor


class Window(NamedTuple):
    """The cells under n shapes, of each a number that is static.

    origin: (n, 2) the first column and row; over: (n,) bool, the shape is over the field; missed: as in `Around`
    """

    origin: Tensor
    over: Tensor
    missed: Tensor


class Extent(NamedTuple):
    """How far n geoms reach along some axes (n, k, 3): low, high (n, k) [m]."""

    axes: Tensor
    low: Tensor
    high: Tensor


class Chosen(NamedTuple):
    """Which elements were chosen (k,), which of these exist (k,) bool, and how many of each row had no room (n,)."""

    element: Tensor
    exists: Tensor
    lost: Tensor


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
    heights, alone = m.hfield_data.detach(), fixed.shape
    bound = norm(alone.half + alone.round + hull.detach()) + alone.radius
    look = functools.partial(around, heights, hulls)
    found = each(look, fixed, where=may_meet(heights, fixed, bound), otherwise=apart)
    chosen = first(found.may_touch, fields.tested)
    pair = chosen.element // found.may_touch.shape[1]

    mine = tree.map(lambda x: x[pair], pairs)
    top = tops(m.hfield_data, mine, found.origin[pair], chosen.element % found.may_touch.shape[1])
    within = fixed.reach[pair]
    dist, pos, normal, touching = prism_contacts(m, prism(top, size[pair, 3]), mine.shape, chosen.exists, within, hulls)
    count = torch.zeros_like(first_candidate).scatter_add(0, pair, touching.long())
    rank = touching.cumsum(0) - 1 - (count.cumsum(0) - count)[pair]
    # C would not look further for a pair that is full.
    lost = torch.where(count < contacts, chosen.lost + found.missed, 0)
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


def may_meet(heights: Tensor, pairs: Pair, bound: Tensor) -> Tensor:
    """Which shapes (n,) bool may come as near as matters to what lies under them, by spheres around them."""
    fields, far = pairs.fields, bound + pairs.reach
    pos, deep = pairs.shape.pos, pairs.size[:, 3]
    w = window(pairs, pos[:, :2] - far[:, None], pos[:, :2] + far[:, None])
    col, row = (
        torch.minimum(w.origin[:, k : k + 1] + torch.arange(n + 1, device=far.device), fields.shape[:, k : k + 1] - 1)
        for k, n in enumerate((fields.cols, fields.rows))
    )
    place = fields.address[:, None, None] + row[:, :, None] * fields.shape[:, :1, None] + col[:, None]
    high = heights[place].amax((1, 2)) * pairs.size[:, 2]
    return w.over & (w.missed | (pos[:, 2] - far <= high)) & (pos[:, 2] + far >= -deep)


def window(pairs: Pair, low: Tensor, high: Tensor) -> Window:
    """The windows from `low` to `high` (n, 2) [m]."""
    corner, cells = pairs.size[:, :2], pairs.fields.shape - 1
    most = torch.tensor([pairs.fields.cols, pairs.fields.rows], device=cells.device)
    start, end = (torch.floor((edge + corner) / pairs.spacing).long() for edge in (low, high))
    origin = torch.minimum(start, cells - most).clamp(min=0)
    over = ((start < cells) & (end >= 0)).all(-1)
    return Window(origin, over, over & ((end >= origin + most) & (origin + most < cells)).any(-1))


def apart(pairs: Pair) -> Around:
    """Nothing that may touch."""
    n, w = len(pairs.reach), 2 * pairs.fields.rows * pairs.fields.cols
    none = torch.zeros_like(pairs.reach, dtype=torch.bool)
    return Around(torch.zeros_like(pairs.fields.shape), none[:, None].expand(n, w), none)


def around(heights: Tensor, hulls: Hulls | None, pairs: Pair) -> Around:
    """The prisms around shapes, and which may touch these."""
    fields, extent = pairs.fields, extents(pairs.shape, pairs.spacing, hulls)
    far = pairs.reach[:, None]
    origin, _, missed = window(pairs, extent.low[:, :2] - far, extent.high[:, :2] + far)
    missed = missed & (extent.low[:, 2] - pairs.reach < pairs.size[:, 2])

    n, w = len(missed), 2 * fields.rows * fields.cols
    every = tree.map(lambda x: x[:, None].expand(n, w, *x.shape[1:]).flatten(0, 1), (pairs, origin))
    number = torch.arange(w, device=far.device).expand(n, w)
    top = tops(heights, *every, number.flatten()).unflatten(0, (n, w))
    col, row = (origin[:, None] + cell(fields, number)).unbind(-1)
    inside = (row < fields.shape[:, 1:] - 1) & (col < fields.shape[:, :1] - 1)
    may_touch = inside & (separation(top, -pairs.size[:, 3], extent, pairs.shape, hulls) <= pairs.reach[:, None])
    return Around(origin, may_touch, missed)


def cell(fields: HeightFields, number: Tensor) -> Tensor:
    """Column and row (..., 2) within windows of the cells whose prisms have these numbers (...)."""
    at = torch.div(number, 2, rounding_mode="floor")
    return torch.stack([at % fields.cols, torch.div(at, fields.cols, rounding_mode="floor")], dim=-1)


def tops(heights: Tensor, pairs: Pair, origin: Tensor, number: Tensor) -> Tensor:
    """The upper corners (k, 3, 3) [m] of a prism of each of k pairs, counterclockwise from above.

    origin: (k, 2) where the windows begin; number: (k,) which prism of the window it is
    """
    corners = torch.tensor([[[0, 1], [0, 0], [1, 1]], [[0, 0], [1, 0], [1, 1]]], device=number.device)[number % 2]
    place = (origin + cell(pairs.fields, number))[:, None] + corners
    col, row = torch.minimum(place, pairs.fields.shape[:, None] - 1).unbind(-1)
    z = heights[pairs.fields.address[:, None] + row * pairs.fields.shape[:, :1] + col] * pairs.size[:, 2:3]
    return torch.cat([place * pairs.spacing[:, None] - pairs.size[:, None, :2], z[..., None]], dim=-1)


def separation(top: Tensor, bottom: Tensor, extent: Extent, shape: Core, hulls: Hulls | None) -> Tensor:
    """How far apart (n, w) [m] prisms and geoms are at least, by the faces of the prisms; negative: not at all.

    top: (n, w, 3, 3) [m] upper corners of the prisms; bottom: (n,) [m] z of the lower ones
    """
    along = top @ extent.axes.mT[:, None]
    low, high = along.amin(2), along.amax(2)
    is_z = is_at(torch.tensor(2, device=top.device), 4)
    low = torch.where(is_z, bottom[:, None, None], low)
    sides = torch.maximum(low - extent.high[:, None], extent.low[:, None] - high).amax(-1)
    a, b, c = top.unbind(2)
    up = cross(b - a, c - a)
    up = up / norm(up, keepdim=True)
    return torch.maximum(sides, -reaches(shape, -up, hulls) - dot(up, a))


def first(mask: Tensor, count: int) -> Chosen:
    """The first `count` elements of `mask (n, w)` that are true, row by row."""
    flat = mask.flatten()
    order = flat.cumsum(0)
    rank = torch.where(flat, order - 1, count).clamp(max=count)
    index = torch.arange(len(flat), device=mask.device)
    element = torch.zeros(count + 1, dtype=torch.long, device=mask.device).scatter(0, rank, index)[:count]
    exists = torch.arange(count, device=mask.device) < order[-1]
    return Chosen(element, exists, (mask & (order > count).view_as(mask)).sum(1))


def prism(top: Tensor, depth: Tensor) -> Core:
    """Prisms with the upper corners `top` (k, 3, 3) [m] that reach down to `depth` (k,) [m] below zero."""
    bottom = -depth[:, None, None].expand(-1, 3, 1)
    vert = torch.cat([torch.cat([top[..., :2], bottom], dim=-1), top], dim=1)
    return hull_core(vert, torch.zeros_like(vert[:, 0, 0]))
