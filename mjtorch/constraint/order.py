"""The order in which C lists contacts: by the pairs of their geoms, where slots are grouped by `dim`."""

import torch
from torch import Tensor

from mjtorch.collision.patches import places
from mjtorch.model import Data, Model
from mjtorch.model.plan.crowd import EXACT
from mjtorch.model.touching import colliders


def c_order(m: Model, d: Data) -> Tensor:
    """The contact slots (ncon,) as C lists what they hold, empty ones last; as they are if all have one `dim`."""
    rank = m.plan.constraint.contact.rank
    if not rank.shape[0]:
        return torch.arange(d.contact.geom.shape[0], device=d.contact.geom.device)
    geom, count = colliders(m, d), rank.numel()
    place = rank[geom[:, 0].clamp(max=len(rank) - 1) if m.plan.collision.patches else geom[:, 0], geom[:, 1]]
    if rank.dim() > 2:
        place = place.gather(1, torch.tensor(m.plan.collision.contact_dim, device=place.device)[:, None])[:, 0]
    if m.plan.collision.patches:
        place = torch.where(geom[:, 0] < m.ngeom, place, places(m, geom))
        count = max(count, m.plan.collision.ncandidate)
    key = place.to(torch.float32 if count < EXACT else torch.float64)
    # Among many numbers, infinities take no time to sort.
    return key.masked_fill(~d.contact.detected, torch.inf).sort(stable=True).indices


def visits(m: Model, d: Data, slot: Tensor) -> Tensor:
    """The order (n,) in which C visits blocks of rows, those without contact first.

    slot: (n,) the contact slot of each block, -1 if it has none.
    """
    blocks = torch.arange(slot.shape[0], device=slot.device)
    if not m.plan.constraint.contact.rank.shape[0]:
        return blocks
    order = c_order(m, d)
    same = slot[:, None] == slot
    size = (slot == torch.arange(len(order), device=slot.device)[:, None]).sum(1)
    sizes = size[order]
    start = torch.zeros_like(order).scatter(0, order, sizes.cumsum(0) - sizes + (slot < 0).sum())
    place = torch.where(slot < 0, 0, start[slot.clamp(min=0)]) + same.tril(-1).sum(1)
    return torch.zeros_like(blocks).scatter(0, place, blocks)
