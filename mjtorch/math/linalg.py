"""Small dense factorisations and solves; the only door to them in the engine.

Nobody else calls `torch.linalg` for these, so that a compiler has one place to put a true triangular loop.
"""

import torch
from torch import Tensor


def cholesky(a: Tensor) -> Tensor:
    """Lower factor `L (n, n)` of the positive definite `a = L L^T`. NaN in, NaN out; never raises."""
    return torch.linalg.cholesky_ex(a)[0]


def cholesky_solve(factor: Tensor, b: Tensor) -> Tensor:
    """Solve `L L^T x = b` for a vector `b (n,)` or columns `b (n, k)`."""
    columns = b if b.dim() == factor.dim() else b.unsqueeze(-1)
    half = torch.linalg.solve_triangular(factor, columns, upper=False)
    x = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return x if b.dim() == factor.dim() else x.squeeze(-1)


def triangular_solve(factor: Tensor, b: Tensor) -> Tensor:
    """Solve `L x = b` for columns `b (n, k)`."""
    return torch.linalg.solve_triangular(factor, b, upper=False)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """Solve the square, not necessarily symmetric `a x = b` for a vector `b (n,)`. Never raises."""
    return torch.linalg.solve_ex(a, b.unsqueeze(-1))[0].squeeze(-1)
