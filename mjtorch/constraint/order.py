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


def visits(m: Model, d: Data, slot: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """The active blocks of rows (n,) in the order in which C visits them, then zeros, and how many they are ().

    Those without contact are first.
    slot: (n,) the contact slot of each block, -1 if it has none; active: (n,) bool
    """
    number = active.to(m.opt.timestep.dtype)
    if m.plan.constraint.contact.rank.shape[0]:
        # Each comes after those without contact, those of contacts before its own, and those of its own before it.
        order = c_order(m, d)
        alone = slot < 0
        in_slot = slot == torch.arange(len(order), device=slot.device)[:, None]
        sizes = (in_slot.to(number.dtype) @ number)[order]
        before = sizes.cumsum(0) - sizes + torch.where(alone, number, 0.0).sum()
        start = torch.zeros_like(before).scatter(0, order, before)
        earlier = (slot[:, None] == slot).tril(-1).to(number.dtype) @ number
        place = torch.where(alone, 0.0, start[slot.clamp(min=0)]) + earlier
    else:
        place = number.cumsum(0) - number
    # The others go to a place that is cut off.
    n = len(slot)
    place = torch.where(active, place.long(), n)
    blocks = torch.arange(n, device=slot.device)
    return place.new_zeros(n + 1).scatter(0, place, blocks)[:n], active.sum()
