"""Which pairs of geoms are near enough to be looked at closely (mj_broadphase, mj_filterSphere)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.math.shape import Boxes, apart_along_axes, apart_along_faces, parts, reach, with_elements
from mjtorch.math.vector import dot
from mjtorch.model import Data, Model
from mjtorch.model.plan.contact_capacity import LIGHT
from mjtorch.model.plan.family import Family


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


def bounds(m: Model, d: Data) -> Boxes:
    """Boxes around all geoms, and elements of flexes if these touch any; planes have none.

    Those along the axes of the world are exact but for meshes: they are around the boxes of these.
    """
    p = m.plan.collision
    half, round, radius = parts(p.geom_type, m.geom_size.detach())
    half = half + p.hull_reach
    pos, mat = d.geom_xpos.detach(), d.geom_xmat.detach()
    geoms = Boxes(pos, mat, half + round + radius[:, None], reach(mat, half, round, radius))
    if not p.corner.shape[0]:
        return geoms
    radius = m.flex_radius.detach()[p.collider_flex[-len(p.corner) :]]
    for rods in m.plan.constraint.contact.rods:
        radius = torch.maximum(radius, rods.around[-len(p.corner) :])
    return with_elements(geoms, d.flexvert_xpos.detach(), p.corner, radius)


def everything(family: Family) -> Chosen:
    """All pairs of a family."""
    return Chosen(None, family.geom, family.candidate, None, None)


def chosen(family: Family, bound: Boxes, threshold: Tensor, stirs: Tensor | None) -> Chosen:
    """As many pairs of each block as it has places: those whose boxes overlap, the deepest first.

    threshold: (ncandidate,) [m] how near to each other candidates matter
    stirs: (ngeom,) bool, which geoms are awake, one of two at least; None: it does not matter
    """
    if not family.bounded:
        return everything(family)
    within = threshold[family.candidate].detach()
    if family.planes:
        gap = above_planes(family, bound)
    else:
        gap = apart_along_axes(bound, *family.geom)
        if family.name not in LIGHT:
            # Said where it matters, it is computed there only: of a hundred pairs some two come as near.
            gap = torch.where(within > gap, torch.maximum(gap, apart_along_faces(bound, *family.geom)), gap)
    near = gap <= within
    near = near if stirs is None else near & stirs[family.geom].any(0)
    if not family.selects:
        return everything(family)._replace(near=near)
    order = gap.masked_fill(~near, torch.inf)
    pairs, there, lost, first = [], [], [], 0
    for block in family.blocks:
        mine = slice(first, first + block.pairs)
        if block.places == block.pairs:
            pairs.append(torch.arange(first, first + block.pairs, device=gap.device))
            there.append(near[mine])
        else:
            count = near[mine].sum()
            filled = torch.arange(block.places, device=gap.device) < count
            # What is looked up for empty places is left out: they are all alike.
            pairs.append(torch.where(filled, first + deepest(order[mine], block.places), first))
            there.append(filled)
            lost.append((count - block.places).clamp(min=0))
        first += block.pairs
    pair = torch.cat(pairs)
    return Chosen(pair, family.geom[:, pair], family.candidate[pair], torch.cat(there), torch.stack(lost).sum())


def above_planes(family: Family, bound: Boxes) -> Tensor:
    """How high (n,) [m] above planes, the first geoms of a family, the boxes of the second ones begin."""
    plane, other = family.geom
    up = bound.mat[plane][..., 2]
    below = ((up[:, None] @ bound.mat[other])[:, 0].abs() * bound.own[other]).sum(-1)
    return dot(bound.pos[other] - bound.pos[plane], up) - below


def deepest(order: Tensor, count: int) -> Tensor:
    """Where the `count` least of `order (n,)` are, the least first: so what is near has the first places."""
    return order.sort(stable=True).indices[:count]
