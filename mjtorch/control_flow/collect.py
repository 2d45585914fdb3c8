"""`collect`: a list of what is kept of each of a number of things."""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch.control_flow import context
from mjtorch.control_flow.context import opaque
from mjtorch.control_flow.fori_loop import fori_loop

# Of the rows so far (n, m, c) and numbers (k,) of things: the rows (n, k, r, c) of each, and which (n, k, r) are kept.
Rows = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@opaque
def collect(f: Rows, count: Tensor, size: int, into: Tensor, start: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Rows `into (n, m, c)` with what `f` keeps of the first `count (n,)` of `size` things, and how many (n,) that are.

    They are written from row `start (n,)` on, in order; of more than `most` the last ones are left out. The last row of
    all takes what is not kept, and means nothing; the others stay as they are.

    >>> import torch
    >>> x = torch.tensor([[3.0, -1.0, 2.0, 5.0]])
    >>> def positive(rows, i):
    ...     one = x[:, i, None]
    ...     return one[..., None], one > 0
    >>> collect(positive, torch.tensor([3]), 4, torch.zeros(1, 5, 1), torch.tensor([1]), 3)[0][0, 1:3, 0]
    tensor([3., 2.])

    Mostly `f` is asked about all things at once. What `mjtorch.jit` compiles asks about one after the other and writes
    in place: so it costs what there is, however much room there is.
    """
    number = torch.zeros_like(count)
    if not (context.wants_scans() and context.is_traced([count])):
        return added(f, count, torch.arange(size, device=count.device), into, start, number, most)

    def add(i: Tensor, found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return added(f, count, i[None], found[0], start, found[1], most)

    return fori_loop(0, count.amax(), add, (into, number))


def added(
    f: Rows, count: Tensor, things: Tensor, into: Tensor, start: Tensor, number: Tensor, most: int
) -> tuple[Tensor, Tensor]:
    """`collect` of some things, after the first `number (n,)` rows."""
    rows, kept = f(into, things)
    kept = (kept & (things < count[:, None])[..., None]).flatten(1)
    after = number[:, None] + kept.cumsum(-1)
    # What is not kept is written where there is no row, last of all.
    last = into.shape[1] - 1
    place = torch.where(kept & (after <= most), start[:, None] + after - 1, last)
    rows = rows.flatten(1, 2)
    return into.scatter(1, place[..., None].expand_as(rows), rows), after[:, -1].clamp(max=most)
