"""The order in which C lists contacts, and visits rows: by the pairs of their geoms, where slots are grouped by `dim`.

Dual solvers depend on it, and on which rows are of one island.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.patches import places
from mjtorch.constraint.island import components, trees_of_rows
from mjtorch.control_flow import fori_loop
from mjtorch.model import Data, DisableBit, Model
from mjtorch.model.plan.crowd import EXACT
from mjtorch.model.touching import colliders
from mjtorch.smooth.inertia import diagonal_m


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


class Apart(NamedTuple):
    """Islands, k of them, that dual solvers solve one after the other; or all at once, as one.

    row: (nefc,) the island of each active row, anything of others; if there is one, empty
    scale: (k,) one over the trace of the inertia of each
    """

    row: Tensor
    scale: Tensor

    def sums(self, x: Tensor) -> Tensor:
        """Sums (k,) over the rows of each, of x (nefc,), zero in rows that are not active."""
        if len(self.scale) == 1:
            return x.sum(0, keepdim=True)
        return x.new_zeros(len(self.scale)).index_add(0, self.row, x)

    def order(self, row: Tensor, visits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The blocks that `visits` has, island by island (n,), and how many of each are active (k,).

        row: (n,) the first row of each block
        """
        blocks, nactive = visits
        if len(self.scale) == 1:
            return blocks, nactive[None]

        def at(k: Tensor) -> tuple[Tensor, Tensor]:
            """The block (1,) in place `k ()`, and its island (1,)."""
            block = blocks.index_select(0, k[None])
            return block, self.row.index_select(0, row.index_select(0, block))

        def one_more(sizes: Tensor, island: Tensor) -> Tensor:
            # Not `index_add`: of a loop's state Inductor would go on with it in worlds that have ended.
            return sizes.scatter(0, island, sizes.index_select(0, island) + 1)

        def count(k: Tensor, sizes: Tensor) -> Tensor:
            return one_more(sizes, at(k)[1])

        def put(k: Tensor, found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            (ordered, end), (block, island) = found, at(k)
            return ordered.scatter(0, end.index_select(0, island), block), one_more(end, island)

        sizes = torch.zeros_like(self.scale, dtype=torch.int64)
        if not len(blocks):
            return blocks, sizes
        sizes = fori_loop(0, nactive, count, sizes)
        ordered, _ = fori_loop(0, nactive, put, (torch.zeros_like(blocks), sizes.cumsum(0) - sizes))
        return ordered, sizes


def apart(m: Model, d: Data, scale: Tensor) -> Apart:
    """The islands, each by the number of its first tree, unless all are solved at once.

    scale: () one over the trace of the whole inertia
    """
    if m.ntree < 2 or m.opt.disabled(DisableBit.ISLAND):
        return Apart(m.plan.island.row_tree[:0], scale[None])
    first, inertia = components(m, d), diagonal_m(m, d)
    island = first[m.plan.island.dof_tree]
    trace = torch.zeros_like(inertia[: m.ntree]).index_add(
        0, island.clamp(min=0), torch.where(island < 0, 0.0, inertia)
    )
    return Apart(first[trees_of_rows(m, d).clamp(min=0)].clamp(min=0), 1 / torch.where(trace > 0, trace, 1.0))
