"""Derivatives of a solution that a loop found: by the implicit function theorem, not through the loop."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from mjtorch.constraint.solver.problem import Problem, gradient, hessian, residuals
from mjtorch.control_flow.derivative import floats, only_floats
from mjtorch.math import linalg


def attach(p: Problem, qacc: Tensor) -> Tensor:
    """`qacc (nv,)`, which minimises `p`, with the derivatives of the minimiser.

    The gradient of the cost stays zero when the problem changes, so `d qacc = -H^-1 d gradient`, the latter at fixed
    qacc. They are those of the exact minimiser, also when the solver stopped early. The rules are made of what can be
    differentiated, at the result itself, so that they have derivatives in turn.
    """
    leaves, spec = pytree.tree_flatten(p)
    return _Minimiser.apply(spec, qacc.detach(), *leaves)


class _Minimiser(torch.autograd.Function):
    """The identity in `qacc`, whose derivative is that of `-H^-1 gradient`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(spec: pytree.TreeSpec, qacc: Tensor, *leaves: Tensor) -> Tensor:
        return qacc.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.spec = inputs[0]
        ctx.save_for_backward(*inputs[2:], output)
        ctx.save_for_forward(*inputs[2:], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        *leaves, qacc = ctx.saved_tensors
        adjoint = _minus_solve(ctx.spec, leaves, qacc, grad)
        pull = torch.func.vjp(_gradient_of(ctx.spec, leaves, qacc), *floats(leaves))[1]
        return (None, None, *only_floats(leaves, pull(adjoint)))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        *leaves, qacc = ctx.saved_tensors
        given = [(x, t) for x, t in zip(leaves, tangents[2:], strict=True) if x.is_floating_point()]
        values = tuple(x for x, _ in given)
        directions = tuple(torch.zeros_like(x) if t is None else t for x, t in given)
        change = torch.func.jvp(_gradient_of(ctx.spec, leaves, qacc), values, directions)[1]
        return _minus_solve(ctx.spec, leaves, qacc, change)


def _gradient_of(spec: pytree.TreeSpec, leaves: Sequence[Tensor], qacc: Tensor) -> Callable[..., Tensor]:
    """The gradient of the cost at `qacc`, as a function of those `leaves` of the problem that are no integers."""

    def of_floats(*values: Tensor) -> Tensor:
        remaining = iter(values)
        p: Problem = pytree.tree_unflatten([next(remaining) if x.is_floating_point() else x for x in leaves], spec)
        return gradient(p, p.M @ qacc, residuals(p, p.J @ qacc - p.aref))

    return of_floats


def _minus_solve(spec: pytree.TreeSpec, leaves: list[Tensor], qacc: Tensor, x: Tensor) -> Tensor:
    p: Problem = pytree.tree_unflatten(leaves, spec)
    H = hessian(p, residuals(p, p.J @ qacc - p.aref))
    return -linalg.cholesky_solve(linalg.cholesky(H), x)


def value_of(value: Tensor, formula: Tensor) -> Tensor:
    """`value`, with the derivatives of `formula`; both are the same up to the solver's tolerance."""
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
