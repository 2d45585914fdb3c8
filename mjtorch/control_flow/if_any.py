"""`if_any`: what only some slices need, left out where none does."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from mjtorch.control_flow.while_loop import while_loop

T = TypeVar("T")


def if_any(flag: Tensor, fun: Callable[[], T], otherwise: T) -> T:
    """`fun()` where any of `flag` is true, else `otherwise`, a tree of the same structure, shapes and dtypes.

    >>> import torch
    >>> x = torch.tensor([-1.0, 4.0])
    >>> if_any(x > 0, lambda: torch.where(x > 0, x.abs().sqrt(), x), x)
    tensor([-1.,  2.])

    It is a `while_loop` of at most one trip: a world that does not need `fun` keeps `otherwise`, whoever else does, and
    compiled code skips it where no world of a tile needs it. It has no derivative where that loop has none; `cond` has.
    """

    def once(_: tuple[Tensor, T]) -> tuple[Tensor, T]:
        return torch.zeros_like(flag), fun()

    return while_loop(lambda state: state[0].any(), once, (flag, otherwise))[1]
