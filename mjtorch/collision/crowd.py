"""Which spheres and capsules of different kinematic trees are near each other, where there are too many to try all."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.broad_phase import Chosen
from mjtorch.math.compact import compacted
from mjtorch.math.shape import Boxes
from mjtorch.model import EnableBit, Model
from mjtorch.model.plan.crowd import CrowdPlan, overlap
from mjtorch.model.plan.family import Family
from mjtorch.model.plan.geom_pairs import CAPSULE


def met(m: Model, crowd: CrowdPlan, families: list[Family], bound: Boxes, stirs: Tensor | None) -> list[Chosen]:
    """The pairs whose boxes along the axes of the world overlap: of trees, then of geoms and trees, then of geoms.

    families: those of the crowd; their candidates come after all that are listed. What finds no place is lost, and
    counted with the first of them.
    stirs: (ngeom,) bool, which geoms are awake, one of two at least; None: it does not matter
    """
    width = crowd.geom.shape[1]
    reach = bound.world + reaches(m)[:, None].detach()
    box = torch.stack([bound.pos - reach, -bound.pos - reach], dim=-2)[crowd.geom]
    around = box.amin(1)
    one, two = crowd.pair
    near = overlap(around[one], around[two])
    if stirs is not None:
        near = near & stirs[crowd.geom[:, 0]][crowd.pair].any(0)
    few = narrowed(box, around, crowd.there, crowd.pair, near, (crowd.trees, crowd.halves))
    one, two, first, lost = few.one, few.two, few.first, few.lost
    own = crowd.capsule[one, first][:, None]
    capsules = own + crowd.capsule[two]
    geom1, geom2 = crowd.geom[one, first], crowd.geom[two].flatten()
    found, candidate = [], len(m.plan.collision.geom)
    for family in families:
        (block,) = family.blocks
        kind = sum(types == (CAPSULE,) for types in block.types)
        place, there, past = compacted((few.meets & (capsules == kind)).flatten(), block.places)
        row, _ = split(place, width)
        low, high = geom1[row], geom2[place]
        if kind == 1:
            swaps = own[row, 0] > 0
            low, high = torch.where(swaps, high, low), torch.where(swaps, low, high)
        number = candidate + block.contacts * torch.arange(block.places, device=place.device)
        found.append(Chosen(None, torch.stack([low, high]), number, there, past.sum() + lost))
        candidate, lost = candidate + block.contacts * block.places, torch.zeros_like(lost)
    return found


class Narrowed(NamedTuple):
    """A member of a group, and those near it of another, n times.

    pair: (k,) the pairs of groups that are near each other, row: (n,) which of these; one, two: (n,) its groups
    first: (n,) which member of the first
    meets: (n, w) bool, which members of the second are near it; lost: () how many pairs found no place before
    """

    pair: Tensor
    row: Tensor
    one: Tensor
    two: Tensor
    first: Tensor
    meets: Tensor
    lost: Tensor


def narrowed(
    box: Tensor,
    around: Tensor,
    members: Tensor,
    pairs: Tensor,
    near: Tensor,
    room: tuple[int, int],
    within: Tensor | None = None,
) -> Narrowed:
    """From pairs of groups that are near each other to their members: of the first, then of the second.

    box, around: (ngroup, w, 2, 3) and (ngroup, 2, 3) [m] around members and groups, as `overlap` wants them
    members: (ngroup, w) bool, those that there are; pairs: (2, k) of groups, near: (k,) bool
    room: how many pairs of groups, and of a member and a group, have places; within: (k,) [m] as in `overlap`
    """
    one, two = pairs
    pair, there, past = compacted(near, min(room[0], len(near)))
    one, two, lost = one[pair], two[pair], past.sum()
    reach = None if within is None else within[pair]

    near = overlap(box[one], around[two][:, None], None if reach is None else reach[:, None])
    near = there[:, None] & members[one] & near
    half, there, past = compacted(near.flatten(), min(room[1], near.numel()))
    (row, first), lost = split(half, box.shape[1]), lost + past.sum()
    one, two = one[row], two[row]
    near = overlap(box[one, first][:, None], box[two], None if reach is None else reach[row, None])
    return Narrowed(pair, row, one, two, first, there[:, None] & members[two] & near, lost)


def split(place: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Row and column (k,) of places (k,) in rows of this width."""
    row = torch.div(place, width, rounding_mode="floor")
    return row, place - row * width


def reaches(m: Model) -> Tensor:
    """How near (ngeom,) [m] to geoms others matter: of two geoms, the sum."""
    margin = 0.5 * m.opt.o_margin if m.opt.enabled(EnableBit.OVERRIDE) else m.geom_margin
    return margin + m.geom_gap
