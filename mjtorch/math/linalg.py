"""Small dense factorisations and solves; the only door to them in the engine.

Nobody else calls `torch.linalg` for these, so that a compiler has one place to put a true triangular loop.
"""

from typing import Any

import torch
from torch import Tensor

from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.control_flow.if_any import if_any
from mjtorch.math.vector import MIN_VALUE

# A pivot that is less than this many roundings of the element it began as has lost its digits.
LOST = 16
# What a factor solves whose pivots have lost all but a thousandth of them wants refinement.
WEAK = 1024


def cholesky(a: Tensor) -> Tensor:
    """Lower factor `L (n, n)` of the positive definite `a = L L^T`. NaN in, NaN out; never raises."""
    return torch.linalg.cholesky_ex(a)[0]


def checked_cholesky(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`cholesky(a)`, whether what it solves wants refinement (), and whether rounding has left nothing of it ()."""
    diagonal = a.diagonal()
    factor, info = torch.linalg.cholesky_ex(a)
    weak, lost = (has_lost(factor.diagonal(), diagonal, times) for times in (WEAK, LOST))
    return factor, weak, (info != 0) | lost


def has_lost(pivots: Tensor, diagonal: Tensor, times: int) -> Tensor:
    """Whether () the square of one of the `pivots (n,)` of a factor is less than so many roundings.

    diagonal: (n,) of the factored matrix, whose elements the squares are differences of
    """
    return (pivots.square() < times * torch.finfo(pivots.dtype).eps * diagonal).any()


def cholesky_solve(factor: Tensor, b: Tensor) -> Tensor:
    """Solve `L L^T x = b` for a vector `b (n,)` or columns `b (n, k)`."""
    columns = b if b.dim() == factor.dim() else b.unsqueeze(-1)
    half = torch.linalg.solve_triangular(factor, columns, upper=False)
    x = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return x if b.dim() == factor.dim() else x.squeeze(-1)


def ltl(a: Tensor) -> Tensor:
    """Lower factors `L` of positive definite `a = L^T L (..., n, n)`. NaN in, NaN out; never raises.

    The last row is eliminated first, so that L has the zeros that `a` has by the branches of a tree.
    """
    return cholesky(a.flip((-2, -1))).mT.flip((-2, -1))


def clamped_ltl(a: Tensor) -> tuple[Tensor, Tensor]:
    """`ltl(a)`, and where pivots were clamped (...) (mj_factorI).

    Pivots that are less than `MIN_VALUE` are replaced by it as in C: what is singular then has a solution, if a large
    one. In single precision they are no less than the rounding of what they are a difference of.
    """
    reverse = a.flip((-2, -1))
    fixed = reverse.detach()  # the branch captures this one, which has no derivative
    factor, info = torch.linalg.cholesky_ex(fixed)
    least = least_pivots(fixed)
    clamped = (info != 0) | (factor.diagonal(dim1=-2, dim2=-1).square() < least).any(-1)

    def mended() -> Tensor:
        return torch.where(clamped[..., None, None], clamped_cholesky(fixed, least), factor)

    factor = _Cholesky.apply(reverse, if_any(clamped, mended, factor))
    return factor.mT.flip((-2, -1)), clamped


def least_pivots(a: Tensor) -> Tensor:
    """The least pivots (..., n) of `a (..., n, n)`."""
    least = torch.zeros_like(a[..., 0]) + MIN_VALUE
    if a.dtype != torch.float32:
        return least
    return torch.maximum(LOST * torch.finfo(a.dtype).eps * a.diagonal(dim1=-2, dim2=-1), least)


def clamped_cholesky(a: Tensor, least: Tensor) -> Tensor:
    """Lower factors of `a (..., n, n)`, whose pivots are at least `least (..., n)`, one column after another."""
    n = a.shape[-1]
    number = torch.arange(n, device=a.device)

    def column(j: Tensor, rest: Tensor) -> Tensor:
        here = number == j
        row = rest.index_select(-2, j[None])
        pivot = torch.maximum((row.squeeze(-2) * here).sum(-1), least.index_select(-1, j[None]).squeeze(-1))
        pivot = pivot[..., None, None]
        below = torch.where(number > j, row, 0.0)
        done = (below + pivot * here) * pivot.rsqrt()
        return torch.where(here[:, None], done, rest - below.mT @ (below / pivot))

    return fori_loop(0, n, column, a, unroll=False).mT


class _Cholesky(torch.autograd.Function):
    """A lower factor of a matrix, found by other means, with the derivative of one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, factor: Tensor) -> Tensor:
        return factor.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        inner = lower_half(factor.mT @ grad)
        right = torch.linalg.solve_triangular(factor, inner, upper=False, left=False)
        both = torch.linalg.solve_triangular(factor.mT, right, upper=True)
        return 0.5 * (both + both.mT), None

    @staticmethod
    def jvp(ctx: Any, a: Tensor, _: Any) -> Tensor:
        (factor,) = ctx.saved_tensors
        left = torch.linalg.solve_triangular(factor, a, upper=False)
        return factor @ lower_half(torch.linalg.solve_triangular(factor.mT, left, upper=True, left=False))


def lower_half(a: Tensor) -> Tensor:
    """The lower triangle of `a`, with half its diagonal."""
    return a.tril() - 0.5 * torch.diag_embed(a.diagonal(dim1=-2, dim2=-1))


def ltl_solve(factor: Tensor, b: Tensor) -> Tensor:
    """Solve `L^T L x = b` for a vector `b (n,)` or columns `b (n, k)`."""
    columns = b if b.dim() == factor.dim() else b.unsqueeze(-1)
    x = triangular_solve(factor, ltl_half_solve(factor, columns))
    return x if b.dim() == factor.dim() else x.squeeze(-1)


def ltl_half_solve(factor: Tensor, b: Tensor) -> Tensor:
    """Solve `L^T x = b` for columns `b (n, k)`: `x^T x = b^T (L^T L)^-1 b`, with the zeros that b has by branches."""
    return torch.linalg.solve_triangular(factor.mT, b, upper=True)


def triangular_solve(factor: Tensor, b: Tensor) -> Tensor:
    """Solve `L x = b` for columns `b (n, k)`."""
    return torch.linalg.solve_triangular(factor, b, upper=False)


def upper_solve(upper: Tensor, b: Tensor) -> Tensor:
    """Solve `U x = b` for columns `b (n, k)`, U with zeros below its diagonal."""
    return torch.linalg.solve_triangular(upper, b, upper=True)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """Solve the square, not necessarily symmetric `a x = b` for a vector `b (n,)`. Never raises."""
    return torch.linalg.solve_ex(a, b.unsqueeze(-1))[0].squeeze(-1)
