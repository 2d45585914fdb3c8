"""Derivatives of a function of tensors, some of which have none, in both modes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

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


def of_wanted(
    fn: FlatFunction, values: Sequence[Tensor], wanted: Sequence[bool]
) -> tuple[tuple[Tensor, ...], FlatFunction]:
    """Those of `values` that are `wanted`, and `fn` as a function of these alone."""

    def of_varying(*inputs: Tensor) -> Sequence[Tensor]:
        remaining = iter(inputs)
        return fn(*(next(remaining) if w else x for x, w in zip(values, wanted, strict=True)))

    return tuple(x for x, w in zip(values, wanted, strict=True) if w), of_varying


def vjp(
    fn: FlatFunction, values: Sequence[Tensor], cotangents: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor]:
    """Gradients of `<fn(*values), cotangents>` with respect to those of `values` that are `wanted`.

    cotangents: one for each floating point result of `fn`.
    """
    varying, of_varying = of_wanted(fn, values, wanted)
    if not varying:
        return []
    pull = torch.func.vjp(lambda *inputs: tuple(floats(of_varying(*inputs))), *varying)[1]
    return list(pull(tuple(cotangents)))


def jvp(
    fn: FlatFunction, values: Sequence[Tensor], tangents: Sequence[Tensor], wanted: Sequence[bool]
) -> tuple[Sequence[Tensor], list[Tensor]]:
    """`fn(*values)`, and how its floating point results change with those of `values` that are `wanted`."""
    varying, of_varying = of_wanted(fn, values, wanted)

    def both(*inputs: Tensor) -> tuple[tuple[Tensor, ...], Sequence[Tensor]]:
        results = of_varying(*inputs)
        return tuple(floats(results)), results

    if not varying:
        results = fn(*values)
        return results, [torch.zeros_like(y) for y in floats(results)]
    _, changes, *rest = torch.func.jvp(both, varying, tuple(tangents), has_aux=True)
    return rest[0], list(changes)


def primals(values: Sequence[Tensor]) -> list[Tensor]:
    """What was saved for forward mode, without the tangents that it has."""
    return [forward_ad.unpack_dual(x).primal for x in values]


def changing(
    values: Sequence[Tensor], tangents: Sequence[Tensor | None], carried: int
) -> tuple[list[bool], list[Tensor]]:
    """Which operands of a loop change, and how. The `carried` ones do by what they become, even if not at first."""
    pairs = list(zip(values, tangents, strict=True))
    wanted = [x.is_floating_point() and (i < carried or t is not None) for i, (x, t) in enumerate(pairs)]
    found = zip(pairs, wanted, strict=True)
    return wanted, [torch.zeros_like(x) if t is None else t for (x, t), w in found if w]


class Likeness(NamedTuple):
    """What a result looks like, without holding it."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(x: Tensor) -> "Likeness":
        """That of a tensor."""
        return Likeness(x.shape, x.dtype, x.device)


def cotangents(grads: Sequence[Tensor | None], results: Sequence[Likeness]) -> list[Tensor]:
    """Those of floating point results: zeros where a result is not used."""
    pairs = zip(grads, results, strict=True)
    return [
        torch.zeros(x.shape, dtype=x.dtype, device=x.device) if g is None else g
        for g, x in pairs
        if x.dtype.is_floating_point
    ]
