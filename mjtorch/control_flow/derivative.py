"""The vector-Jacobian product of a function of tensors, some of which have no derivative."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

FlatFunction = Callable[..., Sequence[Tensor]]


def floats(values: Sequence[Tensor]) -> list[Tensor]:
    """Those of `values` that can have a derivative."""
    return [x for x in values if x.is_floating_point()]


def only_floats(values: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor | None]:
    """One gradient per value: the next of `grads`, or `None` where the value cannot have one."""
    remaining = iter(grads)
    return [next(remaining) if x.is_floating_point() else None for x in values]


def vjp(fn: FlatFunction, values: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of `<fn(*values), cotangents>` with respect to the floating point `values`.

    cotangents: one for each floating point result of `fn`.
    """

    def of_floats(*inputs: Tensor) -> tuple[Tensor, ...]:
        remaining = iter(inputs)
        return tuple(floats(fn(*(next(remaining) if x.is_floating_point() else x for x in values))))

    if not floats(values):
        return []
    pull = torch.func.vjp(of_floats, *floats(values))[1]
    return list(pull(tuple(cotangents)))
