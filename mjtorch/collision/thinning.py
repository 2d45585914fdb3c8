"""Of very many contacts of two things, some that lie all over them (filterFlexContacts).

A rigid flex, or one on a grid, has few dofs and may have a contact at each of its many elements. C keeps 50: the
deepest, and then, one after the other, those that are furthest from all that are kept so far. So do we; of contacts
that are as far from these, the first in C's order is kept, while in C rounding decides.
"""

import torch
from torch import Tensor

from mjtorch.collision.rounding import blur
from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.control_flow.if_any import if_any
from mjtorch.math.compact import compacted
from mjtorch.math.vector import norm
from mjtorch.model.plan.thinning import MOST, ThinningPlan


def thinned(plan: ThinningPlan, geom: Tensor, number: Tensor, dist: Tensor, pos: Tensor, detected: Tensor) -> Tensor:
    """`detected (n,)`, without the contacts that are dropped.

    geom: (n, 2) colliders; number: (n,) in C's order; dist: (n,) [m], pos: (n, 3) [m]
    """
    column = plan.column[geom].amax(-1)
    pair = torch.where(detected, plan.pair[plan.thing[geom].amin(-1), column], plan.pairs)
    count = torch.zeros(plan.pairs + 1, dtype=torch.long, device=pair.device).scatter_add(
        0, pair, torch.ones_like(pair)
    )
    crowded = count[: plan.pairs] > MOST
    listed = compacted(crowded, plan.pairs)[0]

    def of_pair(k: Tensor, kept: Tensor) -> Tensor:
        mine = pair == listed.index_select(0, k[None])
        return kept & (~mine | spread(number, dist, pos, mine))

    return if_any(crowded, lambda: fori_loop(0, crowded.sum(), of_pair, detected), detected)


def spread(number: Tensor, dist: Tensor, pos: Tensor, mine: Tensor) -> Tensor:
    """(n,) bool: `MOST` of the contacts `mine (n,)`, of which there are more. The rest as in `thinned`."""
    slack = blur(pos.dtype) * torch.where(mine[:, None], pos, 0.0).abs().amax()
    last = torch.full_like(number, torch.iinfo(number.dtype).max)

    def largest(value: Tensor) -> Tensor:
        value = value.masked_fill(~mine, -torch.inf)
        return torch.where(mine & (value >= value.amax() - slack), number, last).argmin(-1, keepdim=True)

    def further(_: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        kept, away = now
        chosen = largest(away.masked_fill(kept, -torch.inf))
        return kept.scatter(0, chosen, True), torch.minimum(away, norm(pos - pos.index_select(0, chosen)))

    deepest = largest(-dist)
    start = torch.zeros_like(mine).scatter(0, deepest, True), norm(pos - pos.index_select(0, deepest))
    return fori_loop(1, MOST, further, start, unroll=False)[0]
