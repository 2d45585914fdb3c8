"""`fold`: what the first elements of an axis make of a value."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from mjtorch.control_flow import context
from mjtorch.control_flow.context import opaque
from mjtorch.control_flow.fori_loop import fori_loop

T = TypeVar("T")


@opaque
def fold(f: Callable[[T, Tensor], T], count: Tensor, size: int, start: T) -> T:
    """`start`, changed by `now = f(now, places)` for the first `count (n,)` of `size` places, some (k,) at a time.

    Rows that have fewer than others are asked about as many: it is for `f` to leave out `places >= count[:, None]`.

    >>> import torch
    >>> x, count = torch.tensor([[3.0, -1.0, 2.0], [5.0, 4.0, 9.0]]), torch.tensor([3, 2])
    >>> def added(now, i):
    ...     return now + torch.where(i < count[:, None], x.index_select(1, i), 0.0).sum(1)
    >>> fold(added, count, 3, torch.zeros(2))
    tensor([4., 9.])

    Mostly `f` is asked about all places at once. What `mjtorch.jit` compiles asks about one after the other, as far as
    any row has some: so it costs what there is, however much room there is.
    """
    if not (context.wants_scans() and context.is_traced([count])):
        return f(start, torch.arange(size, device=count.device))
    return fori_loop(0, count.amax(), lambda i, now: f(now, i[None]), start)
