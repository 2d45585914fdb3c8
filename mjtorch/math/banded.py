"""Symmetric positive definite matrices with few elements, all near the diagonal if rows are put in some order.

In that order rows are taken w at a time: blocks (w, w) that are not neighbours have nothing in common. So the factor
needs a block on the diagonal and one beside it for each, `L_k L_k' = D_k - X_{k-1}' X_{k-1}`, `L_k X_k = C_k`, with
D_k the blocks on the diagonal and C_k those to the right of them (Golub and Van Loan, "Matrix Computations", 4.5).
"""

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from mjtorch import tree
from mjtorch.control_flow.scan import scan
from mjtorch.math.linalg import cholesky, triangular_solve, upper_solve


@tree.dataclass(kw_only=True)
class Band(tree.Tree):
    """Where the elements of such a matrix (n, n) lie; its rows are filled up to k w.

    row, col: (nvalue,) of each element that may not be zero, on both sides of the diagonal
    diagonal: (nvalue,) 1 on it, 0 beside it
    whole: (n, n) where each element lies in [values, 0]
    own, right: (k, w, w) where those of the blocks on the diagonal, and to the right of them, lie in [values, 0, 1]
    order: (k w,) which row is where, n for filling; place: (n,) where each row is
    """

    row: Tensor
    col: Tensor
    diagonal: Tensor
    whole: Tensor
    own: Tensor
    right: Tensor
    order: Tensor
    place: Tensor

    def times(self, value: Tensor, x: Tensor) -> Tensor:
        """`A x` (n,), of the matrix that has these values (nvalue,)."""
        return torch.zeros_like(x).index_add(0, self.row, value * x[self.col])


@tree.dataclass(kw_only=True)
class Banded(tree.Tree):
    """A matrix `A (n, n)`: its values (nvalue,), factors of its blocks L (k, w, w), what is right of them X (k, w, w).

    Factors have no derivative; solutions do.
    """

    band: Band
    value: Tensor
    L: Tensor
    X: Tensor

    def times(self, x: Tensor) -> Tensor:
        """`A x` for x (n,)."""
        return self.band.times(self.value, x)

    def trace(self) -> Tensor:
        """The sum () of the diagonal."""
        return (self.value * self.band.diagonal).sum()

    def dense(self) -> Tensor:
        """All of it (n, n)."""
        return torch.cat([self.value, self.value.new_zeros(1)])[self.band.whole]

    def solve(self, b: Tensor) -> Tensor:
        """`A^-1 b` for b (n,)."""
        leaves, spec = pytree.tree_flatten(self)
        return _Solution.apply(spec, self.value, b, substituted(self, b.detach()), *leaves)


def banded(band: Band, value: Tensor) -> Banded:
    """The matrix that has these values (nvalue,), and its factor. NaN in, NaN out; never raises."""
    known = torch.cat([value.detach(), value.new_zeros(1), value.new_ones(1)])
    own, right = known[band.own], known[band.right]
    minus = torch.full_like(own[0, :, :1], -1)

    def step(X: Tensor, blocks: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        D, C = blocks
        L = cholesky(torch.addmm(D, X.mT, minus * X))
        X = triangular_solve(L, C)
        return X, (L, X)

    L, X = scan(step, torch.zeros_like(own[0]), (own, right), unroll=False)[1]
    return Banded(band=band, value=value, L=L, X=X)


def substituted(A: Banded, b: Tensor) -> Tensor:
    """`A^-1 b` (n,), by way of `L L' x = b`, without a derivative."""
    blocks = torch.cat([b, torch.zeros_like(b[:1])])[A.band.order].unflatten(0, A.L.shape[:2])
    nothing = torch.zeros_like(blocks[0])

    def down(taken: Tensor, at: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        L, X, b = at
        y = triangular_solve(L, (b - taken)[:, None])[:, 0]
        return X.mT @ y, y

    def up(x: Tensor, at: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        L, X, y = at
        x = upper_solve(L.mT, (y - X @ x)[:, None])[:, 0]
        return x, x

    half = scan(down, nothing, (A.L, A.X, blocks), unroll=False)[1]
    x = scan(up, nothing, (A.L, A.X, half), reverse=True, unroll=False)[1]
    return x.flatten()[A.band.place]


class _Solution(torch.autograd.Function):
    """The identity in a solution `x` of `A x = b`, with its derivative: `A dx = db - dA x`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(spec: pytree.TreeSpec, value: Tensor, b: Tensor, x: Tensor, *leaves: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.spec = inputs[0]
        ctx.save_for_backward(*inputs[4:], output)
        ctx.save_for_forward(*inputs[4:], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        *leaves, x = ctx.saved_tensors
        A: Banded = pytree.tree_unflatten(leaves, ctx.spec)
        y = A.solve(grad)
        return (None, -y[A.band.row] * x[A.band.col], y, None, *(None for _ in leaves))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        *leaves, x = ctx.saved_tensors
        A: Banded = pytree.tree_unflatten(leaves, ctx.spec)
        return A.solve(tangents[2] - A.band.times(tangents[1], x))
