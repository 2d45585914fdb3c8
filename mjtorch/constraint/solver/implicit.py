"""Derivatives of a solution that a loop found: by the implicit function theorem, not through the loop."""

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from mjtorch.constraint.solver.curvature import hessian_solve
from mjtorch.constraint.solver.problem import Problem, gradient, inertia_times, residuals
from mjtorch.control_flow import context

SECOND = (
    "the constrained solve has first derivatives only, and a derivative of a derivative was taken; use differences of "
    "first derivatives"
)


def attach(p: Problem, qacc: Tensor) -> Tensor:
    """`qacc (nv,)`, which minimises `p`, with the derivatives of the minimiser.

    The gradient of the cost stays zero when the problem changes, so `d qacc = -H^-1 d gradient`, the latter at fixed
    qacc. They are those of the exact minimiser, also when the solver stopped early. There are first derivatives only:

    Raises:
        NotImplementedError: a derivative is taken of a derivative.
    """
    if context.nests_forward_mode():
        raise NotImplementedError(SECOND)
    at = qacc.detach()
    residual = gradient(p, inertia_times(p, at), residuals(p, p.rows.times(at) - p.aref))
    leaves, spec = pytree.tree_flatten(p)
    return _Minimiser.apply(spec, at, residual, *(x.detach() for x in leaves))


class _Minimiser(torch.autograd.Function):
    """The identity in `qacc`, whose derivative is that of `-H^-1 residual`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(spec: pytree.TreeSpec, qacc: Tensor, residual: Tensor, *leaves: Tensor) -> Tensor:
        return qacc.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.spec = inputs[0]
        ctx.save_for_backward(*inputs[3:], output)
        ctx.save_for_forward(*inputs[3:], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        *leaves, qacc = ctx.saved_tensors
        return (None, None, _minus_solve(ctx.spec, leaves, qacc, grad), *(None for _ in leaves))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        *leaves, qacc = ctx.saved_tensors
        return _minus_solve(ctx.spec, leaves, qacc, tangents[2])


def _minus_solve(spec: pytree.TreeSpec, leaves: list[Tensor], qacc: Tensor, x: Tensor) -> Tensor:
    p: Problem = pytree.tree_unflatten(leaves, spec)
    return _First.apply(-hessian_solve(p, residuals(p, p.rows.times(qacc) - p.aref), x))


class _First(torch.autograd.Function):
    """The identity; what comes of it has no further derivative, since the rules above leave out how `H` changes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        raise NotImplementedError(SECOND)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> None:
        raise NotImplementedError(SECOND)
