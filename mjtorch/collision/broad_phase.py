"""Which pairs of geoms are near enough to be looked at closely (mj_broadphase, mj_filterSphere)."""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.control_flow import if_any
from mjtorch.math.compact import appended, compacted
from mjtorch.math.quaternion import to_mat
from mjtorch.math.shape import Boxes, apart_along_axes, apart_along_faces, parts, reach, with_elements
from mjtorch.math.vector import dot
from mjtorch.model import Data, Model
from mjtorch.model.plan.contact_capacity import LIGHT
from mjtorch.model.plan.family import Family
from mjtorch.model.plan.terrain import TerrainPairs, TerrainPlan

# Pairs with terrain whose boxes along the axes of the world overlap, for each that is to be looked at closely.
CLOSE = 2
# How many last digits of coordinates boxes around trees may be off by.
ROUNDING = 8


class Chosen(NamedTuple):
    """The pairs of a family that are looked at closely.

    pair: (k,) which of the family; geom: (2, k) geom ids; candidate: (k,) the first candidate of each
    near: (k,) bool, their boxes overlap; None: not asked
    lost: () how many pairs whose boxes overlap got no place; None: there is one for each
    """

    pair: Tensor | None
    geom: Tensor
    candidate: Tensor
    near: Tensor | None
    lost: Tensor | None


class Near(NamedTuple):
    """What of the terrain is near: the places (k,) of these geoms in a list of all, and up to which there are some.

    more: () bool, whether there are more
    """

    place: Tensor
    there: Tensor
    more: Tensor


def bounds(m: Model, d: Data) -> Boxes:
    """Boxes around all geoms, and elements of flexes if these touch any; planes have none.

    Those along the axes of the world are exact but for meshes: they are around the boxes of these.
    """
    p = m.plan.collision
    half, round, radius = parts(p.geom_type, m.geom_size.detach())
    half = half + p.hull_reach
    mat = d.geom_xmat.detach()
    pos = middles(m, d.geom_xpos.detach(), mat)
    world = reach(mat, half, round, radius)
    for terrain in p.terrain:
        if terrain.still:
            # What belongs to the world reaches as far in all worlds, and is where the model says.
            mats = to_mat(m.geom_quat.detach()[terrain.fixed])
            parted = ((mat[terrain.other], terrain.other), (mats, terrain.fixed))
            reached = [reach(x, half[some], round[some], radius[some]) for x, some in parted]
            world = torch.cat(reached)[terrain.source]
    geoms = Boxes(pos, mat, half + round + radius[:, None], world)
    if not p.corner.shape[0]:
        return geoms
    radius = m.flex_radius.detach()[p.collider_flex[-len(p.corner) :]]
    for rods in m.plan.constraint.contact.rods:
        radius = torch.maximum(radius, rods.around[-len(p.corner) :])
    return with_elements(geoms, d.flexvert_xpos.detach(), p.corner, radius)


def middles(m: Model, pos: Tensor, mat: Tensor) -> Tensor:
    """The middles (ngeom, 3) [m] of the boxes of geoms at `pos (ngeom, 3)` [m], with axes in the columns of `mat`."""
    p = m.plan.collision
    if not len(p.hulled):
        return pos
    return pos.index_add(0, p.hulled, (mat[p.hulled] @ p.hull_middle[p.hulled][..., None])[..., 0])


def near_terrain(m: Model, terrain: TerrainPlan, bound: Boxes, threshold: Tensor) -> Near:
    """The geoms of the terrain that a kinematic tree is near, as boxes around trees say; threshold: as for `chosen`."""
    pos, reached = bound.pos[terrain.geom], bound.world[terrain.geom]
    first, last = (pos - reached).amin(1), (pos + reached).amax(1)
    fixed = terrain.fixed
    # What touches only just is not to be lost to rounding here.
    rounding = ROUNDING * torch.finfo(pos.dtype).eps * torch.maximum(first.abs(), last.abs()).amax()
    far = threshold.detach().amax() + rounding
    # What belongs to the world is where the model says.
    all_pos = middles(m, m.geom_pos.detach(), to_mat(m.geom_quat.detach())) if terrain.still else bound.pos
    pos, reached = all_pos[fixed], bound.world[fixed]
    meets = (pos - reached <= last[:, None] + far) & (pos + reached >= first[:, None] - far)
    place, there, past = compacted(meets.all(-1).any(0), terrain.room)
    return Near(place, there, past.any())


def everything(family: Family) -> Chosen:
    """All pairs of a family."""
    return Chosen(None, family.geom, family.candidate, None, None)


def chosen(
    family: Family, bound: Boxes, threshold: Tensor, stirs: Tensor | None, ground: tuple[TerrainPlan, Near] | None
) -> Chosen:
    """As many pairs of each block as it has places: those whose boxes overlap, the deepest first.

    threshold: (ncandidate,) [m] how near to each other candidates matter
    stirs: (ngeom,) bool, which geoms are awake, one of two at least; None: it does not matter
    ground: the terrain, and what of it is near; None: there is none
    """
    if not family.bounded:
        return everything(family)
    within = threshold[family.candidate].detach()
    if ground is None or not any(family.terrain):
        return among_all(family, bound, within, stirs)
    pairs, there, lost = [], [], []
    for first, part in zip(family.firsts, family.parts, strict=True):
        near = within[first : first + part.blocks[0].pairs]
        if part.terrain[0]:
            some, more = on_terrain(part, part.terrain[0][0], bound, near, stirs, *ground)
            found = if_any(more, functools.partial(among_all, part, bound, near, stirs), some)
        else:
            found = among_all(part, bound, near, stirs)
        assert found.near is not None, "families that are bounded are asked what is near"
        pair = torch.arange(part.blocks[0].pairs, device=near.device) if found.pair is None else found.pair
        pairs.append(first + pair)
        there.append(found.near)
        lost += [] if found.lost is None else [found.lost]
    return taken(family, torch.cat(pairs), torch.cat(there), torch.stack(lost).sum())


def among_all(family: Family, bound: Boxes, within: Tensor, stirs: Tensor | None) -> Chosen:
    """`chosen`, of all pairs; within: (npair,) [m] how near pairs matter."""
    gap, near = looked_at(family, bound, family.geom, within, stirs)
    if not family.selects:
        return everything(family)._replace(near=near)
    order = gap.masked_fill(~near, torch.inf)
    pairs, there, lost = [], [], []
    for first, block in zip(family.firsts, family.blocks, strict=True):
        mine = slice(first, first + block.pairs)
        if block.selects:
            count = near[mine].sum()
            filled = torch.arange(block.places, device=gap.device) < count
            # What is looked up for empty places is left out: they are all alike.
            pairs.append(torch.where(filled, first + deepest(order[mine], block.places), first))
            there.append(filled)
            lost.append((count - block.places).clamp(min=0))
        else:
            pairs.append(torch.arange(first, first + block.pairs, device=gap.device))
            there.append(near[mine])
    return taken(family, torch.cat(pairs), torch.cat(there), torch.stack(lost).sum())


def taken(family: Family, pair: Tensor, there: Tensor, lost: Tensor) -> Chosen:
    """The pairs (k,) of a family, of which there are some, `there (k,)` bool."""
    return Chosen(pair, family.geom[:, pair], family.candidate[pair], there, lost)


def on_terrain(
    family: Family,
    pairs: TerrainPairs,
    bound: Boxes,
    within: Tensor,
    stirs: Tensor | None,
    terrain: TerrainPlan,
    near: Near,
) -> tuple[Chosen, Tensor]:
    """`among_all` of one block, looking only at what is `near` of the terrain; and whether () bool that has no room.

    The boxes along the axes of the world come first, then those that overlap, in a list: so all that worlds side by
    side have of them is beside each other.
    """
    (block,) = family.blocks
    number = torch.where(near.there[:, None], pairs.number[near.place], -1)
    apart = apart_along_axes(bound, terrain.fixed[near.place][:, None], pairs.geom[None])
    close = ((number >= 0) & (apart <= within.amax())).flatten()
    place, there, past = compacted(close, min(len(close), CLOSE * block.places))
    pair = torch.where(there, number.flatten()[place], 0)
    # Said so, empty places are not looked at.
    enough = torch.where(there, within[pair], -torch.inf)
    gap, meets = nearer(family, bound, family.geom[:, pair], apart.flatten()[place], enough, stirs)
    rest_gap, rest = looked_at(family, bound, family.geom[:, pairs.rest], within[pairs.rest], stirs)
    first, found, _ = compacted(meets, block.places)
    rows = torch.nn.functional.pad(torch.where(found, pair[first], 0), (0, 1))
    rows, count = (x[0] for x in appended(rows[None], meets.sum()[None], rest[None], pairs.rest))

    def all_of_them() -> Tensor:
        order = torch.cat([gap.masked_fill(~meets, torch.inf), rest_gap.masked_fill(~rest, torch.inf)])
        return torch.cat([pair, pairs.rest])[deepest(order, block.places)]

    which = rows[:-1]
    if len(pair) + len(rest) > block.places:
        which = if_any(count > block.places, all_of_them, which)
    filled = torch.arange(block.places, device=which.device) < count
    lost = (count - block.places).clamp(min=0)
    return taken(family, torch.where(filled, which, 0), filled, lost), near.more | past.any()


def looked_at(
    family: Family, bound: Boxes, geom: Tensor, within: Tensor, stirs: Tensor | None
) -> tuple[Tensor, Tensor]:
    """How far apart (n,) [m] pairs `geom (2, n)` are at least, and whether they are near enough.

    within: (n,) [m] what is near
    """
    one, two = geom
    gap = above_planes(bound, one, two) if family.planes else apart_along_axes(bound, one, two)
    return nearer(family, bound, geom, gap, within, stirs)


def nearer(
    family: Family, bound: Boxes, geom: Tensor, gap: Tensor, within: Tensor, stirs: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`looked_at`, given how far apart (n,) [m] pairs are at least along the axes of the world, or above planes."""
    one, two = geom
    if not (family.planes or family.name in LIGHT):
        # Said where it matters, it is computed there only: of a hundred pairs some two come as near.
        gap = torch.where(within > gap, torch.maximum(gap, apart_along_faces(bound, one, two)), gap)
    near = gap <= within
    return gap, near if stirs is None else near & stirs[geom].any(0)


def above_planes(bound: Boxes, plane: Tensor, other: Tensor) -> Tensor:
    """How high (n,) [m] above planes `plane (n,)` the boxes of geoms `other (n,)` begin."""
    up = bound.mat[plane][..., 2]
    below = ((up[:, None] @ bound.mat[other])[:, 0].abs() * bound.own[other]).sum(-1)
    return dot(bound.pos[other] - bound.pos[plane], up) - below


def deepest(order: Tensor, count: int) -> Tensor:
    """Where the `count` least of `order (n,)` are, the least first: so what is near has the first places."""
    return order.sort(stable=True).indices[:count]
