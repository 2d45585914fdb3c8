"""Choices that do not hang on the last bit.

Where two features are equally near, or a vector has no direction, what a comparison of computed numbers says is
rounding: two builds of one program say different things, and so does C from one version to the next. Here numbers are
compared with a tolerance, far above rounding and far below what anything is measured to, and of equal ones the first
is taken, as C would in exact arithmetic. Where choices jump, they then do so beside the poses that symmetric things
are in, not at them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch.control_flow.fori_loop import fori_loop

# What comes out of some ten operations is off by fewer last digits than this.
DIGITS = 32
# So many numbers are looked at together, where most lists have no more.
AT_ONCE = 8


def blur(dtype: torch.dtype) -> float:
    """How far numbers may be from each other, relative to what they were computed from, and yet be equal."""
    return DIGITS * torch.finfo(dtype).eps


def rounding_of(pos: Tensor, size: Tensor) -> Tensor:
    """What rounding may do (..., 1) [m] to numbers that are computed from positions and sizes, (..., 3) [m]."""
    return blur(pos.dtype) * (pos.abs() + size).sum(-1, keepdim=True).detach()


def larger(area: Tensor, other: Tensor) -> Tensor:
    """Whether squares of areas, of polygons of some size, are larger than others by more than rounding."""
    return area > other * (1 + 8 * blur(area.dtype))


def first_largest(x: Tensor, slack: Tensor | float) -> Tensor:
    """Where (..., 1) the first of `x (..., k)` is that no other exceeds by more than `slack (..., 1)`."""
    near = x >= x.amax(-1, keepdim=True) - slack
    return (near * torch.arange(x.shape[-1], 0, -1, device=x.device)).argmax(-1, keepdim=True)


def first_largest_of(value: Callable[[Tensor], Tensor], count: Tensor, slack: Tensor | float) -> Tensor:
    """`first_largest` of the first `count (n,)` of many numbers, which are asked for some at a time.

    So none exceeds the one that is found by more than twice the slack, however many there are.

    value: those of some places (k,), (n, k)
    """
    device, lines = count.device, torch.arange(AT_ONCE, device=count.device)

    def look(trip: Tensor, best: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        largest, place = best
        number = AT_ONCE * trip + lines
        x = value(number)
        better = (x > largest + slack) & (number < count[:, None])
        return torch.where(better, x, largest), torch.where(better, number, place)

    nowhere = torch.zeros_like(count)[:, None] + lines
    nothing = torch.full(nowhere.shape, -torch.inf, dtype=value(lines[:1]).dtype, device=device)
    trips = torch.div(count.amax() + AT_ONCE - 1, AT_ONCE, rounding_mode="floor")
    largest, place = fori_loop(0, trips, look, (nothing, nowhere))
    near = largest >= largest.amax(-1, keepdim=True) - slack
    return torch.where(near, place, count[:, None]).amin(-1, keepdim=True)


def wrapped(number: Tensor, count: Tensor) -> Tensor:
    """Places on circles of `count`, of numbers that go around no more than twice; a remainder would take long."""
    return torch.where(number >= count, number - count, number)
