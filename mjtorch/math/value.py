"""A value from one formula with the derivatives of another ("straight-through")."""

from typing import Any

import torch
from torch import Tensor


def value_of(value: Tensor, formula: Tensor) -> Tensor:
    """`value`, with the derivatives of `formula`, which has the same shape."""
    return _Value.apply(value.detach(), formula)


class _Value(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, formula: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad

    @staticmethod
    def jvp(ctx: Any, value: Any, formula: Tensor) -> Tensor:
        return formula.clone()
