"""Matrices near whose diagonal all elements lie, in some order of rows, against the same as a whole."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import mjtorch
from mjtorch.compiler.targets.emulated.target import EmulatedWarp
from mjtorch.math.banded import banded
from mjtorch.model.plan.metric import banded as plan
from mjtorch.model.plan.tensors import Tensors

N, WIDTH = 23, 4
rng = np.random.default_rng(0)
SHUFFLED = rng.permutation(N)
THERE = np.abs(np.subtract.outer(SHUFFLED, SHUFFLED)) <= WIDTH
# Two rows that hang together with no others.
THERE[3], THERE[:, 3] = np.arange(N) == 3, np.arange(N) == 3
BAND = plan(Tensors(torch.device("cpu"), torch.float64), THERE, 1)
A = torch.tensor(np.where(THERE, rng.standard_normal((N, N)), 0) + 12 * np.eye(N)) / 10
A = A + A.mT
# Each element below the diagonal is above it, too.
LOWER = BAND.row >= BAND.col
HALF = torch.cumsum(LOWER, 0) - 1
EACH = torch.where(LOWER, HALF, HALF[BAND.whole[BAND.col, BAND.row]])
VALUE, B = A[BAND.row, BAND.col][LOWER], torch.tensor(rng.standard_normal(N))


def solved(half: Tensor, b: Tensor) -> Tensor:
    return banded(BAND, half[EACH]).solve(b)


def whole(half: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.solve(torch.zeros(N, N, dtype=b.dtype).index_put((BAND.row, BAND.col), half[EACH]), b)


def test_an_order_is_found() -> None:
    assert BAND.own.shape == (6, WIDTH, WIDTH)


def test_products_and_solutions() -> None:
    found = banded(BAND, VALUE[EACH])
    torch.testing.assert_close(found.dense(), A)
    torch.testing.assert_close(found.times(B), A @ B)
    torch.testing.assert_close(found.trace(), A.trace())
    torch.testing.assert_close(found.solve(B), torch.linalg.solve(A, B), rtol=1e-12, atol=1e-12)


def test_derivatives() -> None:
    """First ones both ways, and second ones."""
    ways = tuple(torch.tensor(rng.standard_normal(x.shape)) for x in (VALUE, B))
    for one, two in zip(*(derivatives(f, ways) for f in (solved, whole)), strict=True):
        torch.testing.assert_close(one, two)


def derivatives(f: Callable[[Tensor, Tensor], Tensor], ways: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    def bent(value: Tensor) -> Tensor:
        return torch.func.grad(lambda v: f(v, B)[2])(value)[5]

    slopes = torch.func.grad(lambda v, b: f(v, b) @ ways[1], argnums=(0, 1))(VALUE, B)
    return torch.func.jvp(f, (VALUE, B), ways)[1], *slopes, torch.func.grad(bent)(VALUE)


@pytest.mark.parametrize("backend", ["native", EmulatedWarp()], ids=["native", "emulated"])
def test_compiled_for_many_worlds(backend: object) -> None:
    """NaN stays in its world."""
    b, value = torch.stack([B, B + 1, B - 2]), torch.stack([VALUE, VALUE * torch.nan, 2 * VALUE])
    found = mjtorch.jit(solved, in_dims=0, backend=backend, strict=True)(value, b)
    torch.testing.assert_close(found[::2], torch.stack([whole(VALUE, B), whole(2 * VALUE, B - 2)]))
    assert found[1].isnan().all()
    torch.testing.assert_close(found[::2], torch.vmap(solved)(value, b)[::2])
    size = torch.func.grad(lambda v: solved(v, B).square().sum())
    slope = mjtorch.jit(size, in_dims=None, backend=backend, strict=True)(VALUE)
    torch.testing.assert_close(slope, torch.func.grad(lambda v: whole(v, B).square().sum())(VALUE))
