"""Choices that do not hang on the last bit.

Where two features are equally near, or a vector has no direction, what a comparison of computed numbers says is
rounding: two builds of one program say different things, and so does C from one version to the next. Here numbers are
compared with a tolerance, far above rounding and far below what anything is measured to, and of equal ones the first
is taken, as C would in exact arithmetic. Where choices jump, they then do so beside the poses that symmetric things
are in, not at them.
"""

import torch
from torch import Tensor

# What comes out of some ten operations is off by fewer last digits than this.
DIGITS = 32


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
    """Where (..., 1) the largest of `x (..., k)` is; of two the later one must exceed the other.

    By `slack (..., 1)` for each place between them, that is: of equal ones the first is taken.
    """
    return (x - slack * torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)).argmax(-1, keepdim=True)
