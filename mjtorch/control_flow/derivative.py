"""The vector-Jacobian product of a function of tensors, some of which have no derivative."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

FlatFunction = Callable[..., Sequence[Tensor]]


def floats(values: Sequence[Tensor]) -> list[Tensor]:
    """Those of `values` that can have a derivative."""
    return [x for x in values if x.is_floating_point()]


def needed(values: Sequence[Tensor], needs_grad: Sequence[bool]) -> list[bool]:
    """Which of `values` a derivative is asked of. The vertices of meshes, say, are used by most loops, and constant."""
    return [x.is_floating_point() and n for x, n in zip(values, needs_grad, strict=True)]


def spread(grads: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
    """One gradient per value: the next of `grads`, or `None` where none is asked for."""
    remaining = iter(grads)
    return [next(remaining) if w else None for w in wanted]


def vjp(
    fn: FlatFunction, values: Sequence[Tensor], cotangents: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor]:
    """Gradients of `<fn(*values), cotangents>` with respect to those of `values` that are `wanted`.

    cotangents: one for each floating point result of `fn`.
    """
    varying = [x for x, w in zip(values, wanted, strict=True) if w]

    def of_varying(*inputs: Tensor) -> tuple[Tensor, ...]:
        remaining = iter(inputs)
        return tuple(floats(fn(*(next(remaining) if w else x for x, w in zip(values, wanted, strict=True)))))

    if not varying:
        return []
    pull = torch.func.vjp(of_varying, *varying)[1]
    return list(pull(tuple(cotangents)))
