"""Contacts of height fields and convex geoms (mjc_ConvexHField).

A height field is made of prisms: each cell of its grid is cut in two triangles, and a prism stands under each, down to
the bottom of the field. Each prism that a geom touches is a contact of its own. Of the prisms around the geom those are
passed over first whose own faces separate them from it; what remains, of all pairs, is tested as convex shapes are.

C 4.0 ends its search too early for boxes and meshes without a margin, and finds them less deep than they are.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.contact_points import ContactPoints, Solid
from mjtorch.collision.convex import nearest, single
from mjtorch.collision.portal import Settings, portal_contacts
from mjtorch.collision.support import Core, detach, from_first, hull_core, is_at, support
from mjtorch.math.vector import cross, dot, norm
from mjtorch.model import DisableBit, Model
from mjtorch.model.plan.height_field import HeightFields
from mjtorch.model.plan.mesh import Hulls


class Terrain(NamedTuple):
    """The prisms around n geoms, w for each, in C's order, in the frames of the height fields.

    top: (n, w, 3, 3) [m] their upper corners; bottom: (n,) [m] z of the lower ones
    inside: (n, w) bool, part of the field; missed: (n,) bool, the geom covers more than there are
    """

    top: Tensor
    bottom: Tensor
    inside: Tensor
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
    m: Model, fields: HeightFields, field: Solid, shape: Core, reach: Tensor, contacts: int, hulls: Hulls | None
) -> ContactPoints:
    """The contacts of n height fields with a convex shape each, `contacts` at most, the first ones in C's order.

    reach: (n,) [m] the distance at which contacts are detected
    """
    to_field = field.mat.mT
    pos = (to_field @ (shape.pos - field.pos)[..., None])[..., 0]
    local = shape.replace(pos=pos, mat=to_field @ shape.mat)
    fixed = detach(local)
    size = m.hfield_size[fields.field]
    spacing = 2 * size[:, :2] / (fields.shape - 1)
    extent = extents(fixed, spacing.detach(), hulls)
    terrain = around(m.hfield_data, fields, size, spacing, extent, reach.detach())
    may_touch = terrain.inside & (separation(terrain, extent, fixed, hulls) <= reach[:, None])
    chosen = first(may_touch, fields.tested)
    pair = chosen.element // may_touch.shape[1]

    prism, geom, within = (
        prisms(terrain, pair, chosen.element),
        tree.map(lambda x: x[pair], local),
        reach[pair].detach(),
    )
    dist, pos, normal, touching = prism_contacts(m, prism, geom, chosen.exists, within, hulls)
    exists, row = by_pair(touching, pair, len(reach), contacts)
    # C would not look further for a pair that is full.
    lost = torch.where(exists.all(1), 0, chosen.lost + terrain.missed)
    mat = field.mat[:, None]
    return ContactPoints(
        dist=dist[row],
        pos=field.pos[:, None] + (mat @ pos[row, :, None])[..., 0],
        normal=(mat @ normal[row, :, None])[..., 0],
        exists=exists,
        lost=lost.sum(),
    )


def prism_contacts(
    m: Model, prism: Core, geom: Core, exists: Tensor, reach: Tensor, hulls: Hulls | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One contact of each of n prisms and shapes: dist (n,) [m], pos (n, 3) [m], normal (n, 3), and whether they touch.

    exists: (n,) bool, which pairs there are; reach: (n,) [m] the distance at which contacts are detected
    """
    if m.opt.disabled(DisableBit.NATIVECCD):
        settings = Settings(m.opt.ccd_iterations, m.opt.ccd_tolerance, hulls)
        points = portal_contacts(prism, geom, exists, reach, settings)
        return points.dist[:, 0], points.pos[:, 0], points.normal[:, 0], points.exists[:, 0]
    one, two, origin = from_first(prism, geom)
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


def around(
    heights: Tensor, fields: HeightFields, size: Tensor, spacing: Tensor, extent: Extent, reach: Tensor
) -> Terrain:
    """The prisms around geoms; size: (n, 4) [m] of the fields, spacing: (n, 2) [m] of their grids."""
    corner, cells = size[:, :2], fields.shape - 1
    window = torch.tensor([fields.cols, fields.rows], device=cells.device)
    start, end = (
        torch.floor((edge + corner) / spacing).detach().long()
        for edge in (extent.low[:, :2] - reach[:, None], extent.high[:, :2] + reach[:, None])
    )
    origin = torch.minimum(start, cells - window).clamp(min=0)
    over = ((start < cells) & (end >= 0)).all(-1) & (extent.low[:, 2] - reach < size[:, 2].detach())
    missed = over & ((end >= origin + window) & (origin + window < cells)).any(-1)

    col = origin[:, :1] + torch.arange(fields.cols + 1, device=cells.device)
    row = origin[:, 1:] + torch.arange(fields.rows + 1, device=cells.device)
    ncol = fields.shape[:, :1]
    on_col, on_row = torch.minimum(col, ncol - 1), torch.minimum(row, fields.shape[:, 1:] - 1)
    index = fields.address[:, None, None] + (on_row * ncol)[:, :, None] + on_col[:, None]
    z = heights[index] * size[:, 2, None, None]
    x = (col * spacing[:, :1] - corner[:, :1])[:, None].expand_as(z)
    y = (row * spacing[:, 1:] - corner[:, 1:])[:, :, None].expand_as(z)
    point = torch.stack([x, y, z], dim=-1)
    a, b, c, d = point[:, :-1, :-1], point[:, :-1, 1:], point[:, 1:, 1:], point[:, 1:, :-1]
    # Counterclockwise from above.
    top = torch.stack([torch.stack([d, a, c], dim=3), torch.stack([a, b, c], dim=3)], dim=3)
    inside = (row[:, :-1, None] < cells[:, 1:, None]) & (col[:, None, :-1] < cells[:, :1, None])
    inside = inside[..., None].expand(*inside.shape, 2)
    return Terrain(top.flatten(1, 3), -size[:, 3], inside.flatten(1), missed)


def separation(terrain: Terrain, extent: Extent, shape: Core, hulls: Hulls | None) -> Tensor:
    """How far apart (n, w) [m] prisms and geoms are at least, by the faces of the prisms; negative: not at all."""
    top = terrain.top.detach()
    along = top @ extent.axes.mT[:, None]
    low, high = along.amin(2), along.amax(2)
    is_z = is_at(torch.tensor(2, device=top.device), 4)
    low = torch.where(is_z, terrain.bottom.detach()[:, None, None], low)
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


def prisms(terrain: Terrain, pair: Tensor, element: Tensor) -> Core:
    """Of all prisms, those with the numbers `element (k,)`, which are around the geoms `pair (k,)`."""
    top = terrain.top.flatten(0, 1)[element]
    bottom = terrain.bottom[pair, None, None].expand(-1, 3, 1)
    vert = torch.cat([torch.cat([top[..., :2], bottom], dim=-1), top], dim=1)
    return hull_core(vert, torch.zeros_like(vert[:, 0, 0]))


def by_pair(touching: Tensor, pair: Tensor, pairs: int, most: int) -> tuple[Tensor, Tensor]:
    """The first `most` rows of each pair that are `touching (k,)`: which there are (pairs, most), and their numbers."""
    k = len(pair)
    count = torch.zeros(pairs, dtype=torch.long, device=pair.device).scatter_add(0, pair, touching.long())
    before = count.cumsum(0) - count
    rank = touching.cumsum(0) - 1 - before[pair]
    slot = torch.where(touching & (rank < most), pair * most + rank, pairs * most)
    row = torch.zeros(pairs * most + 1, dtype=torch.long, device=pair.device)
    row = row.scatter(0, slot, torch.arange(k, device=pair.device))[:-1].unflatten(0, (pairs, most))
    exists = torch.arange(most, device=pair.device) < count[:, None]
    return exists, row
