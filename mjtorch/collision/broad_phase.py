"""Which pairs of geoms are near enough to be looked at closely (mj_broadphase, mj_filterSphere)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.math.shape import parts, reach
from mjtorch.math.vector import dot
from mjtorch.model import Data, Model
from mjtorch.model.plan.collision import Family


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


def bounds(m: Model, d: Data) -> Tensor:
    """How far (ngeom, 3) [m] geoms reach from their centres along the axes of the world; planes, not at all.

    That is exact for all but meshes, whose box is that of the hull in its own frame.
    """
    p = m.plan.collision
    half, round, radius = parts(p.geom_type, m.geom_size.detach())
    return reach(d.geom_xmat.detach(), half + p.hull_reach, round, radius)


def everything(family: Family) -> Chosen:
    """All pairs of a family."""
    return Chosen(None, family.geom, family.candidate, None, None)


def chosen(m: Model, d: Data, family: Family, bound: Tensor, threshold: Tensor) -> Chosen:
    """As many pairs of each block as it has places: those whose boxes overlap, the deepest first.

    bound: (ngeom, 3) [m] of `bounds`; threshold: (ncandidate,) [m] how near to each other candidates matter
    """
    if not family.bounded:
        return everything(family)
    gap = above_planes(m, d, family) if family.planes else between_boxes(d, family, bound)
    near = gap <= threshold[family.candidate].detach()
    if not family.selects:
        return everything(family)._replace(near=near)
    order = gap.masked_fill(~near, torch.inf)
    pairs, lost, first = [], [], 0
    for block in family.blocks:
        mine = slice(first, first + block.pairs)
        if block.places == block.pairs:
            pairs.append(torch.arange(first, first + block.pairs, device=gap.device))
        else:
            pairs.append(first + deepest(order[mine], block.places))
            lost.append((near[mine].sum() - block.places).clamp(min=0))
        first += block.pairs
    pair = torch.cat(pairs)
    return Chosen(pair, family.geom[:, pair], family.candidate[pair], near[pair], torch.stack(lost).sum())


def between_boxes(d: Data, family: Family, bound: Tensor) -> Tensor:
    """How far apart (n,) [m] the boxes of the pairs of a family are, along an axis of the world; bound: of `bounds`."""
    one, two = family.geom
    center = d.geom_xpos.detach()
    return ((center[two] - center[one]).abs() - bound[one] - bound[two]).amax(-1)


def above_planes(m: Model, d: Data, family: Family) -> Tensor:
    """How high (n,) [m] above planes, the first geoms of a family, the boxes of the second ones begin."""
    plane, other = family.geom
    center, mat, p = d.geom_xpos.detach(), d.geom_xmat.detach(), m.plan.collision
    half, round, radius = parts(p.geom_type[other], m.geom_size.detach()[other])
    turned = mat[plane].mT @ mat[other]
    below = reach(turned, half + p.hull_reach[other], round, radius)[:, 2]
    return dot(center[other] - center[plane], mat[plane][..., 2]) - below


def deepest(order: Tensor, count: int) -> Tensor:
    """Where the `count` least of `order (n,)` are, the least first: so what is near has the first places."""
    return order.sort(stable=True).indices[:count]
