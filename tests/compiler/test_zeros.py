"""`skip_zeros`: what is left out of sums by default, and what infinity and NaN then come to."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mjtorch import jit, tree
from mjtorch.compiler.targets.cpu.build import BuildError, compiler

try:
    compiler()
except BuildError:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

SIZE, BAD = 16, 5
# Nothing is multiplied by element `BAD`, of which there is much else to choose from.
SPARSE = torch.diag(torch.arange(1.0, SIZE + 1)).index_fill(0, torch.tensor(BAD), 0.0)


def constant_matrix(w: Tensor, x: Tensor) -> Tensor:
    """A product with a matrix of which the zeros are known when the program is made."""
    return SPARSE @ x


def constant_matrix_from_the_right(w: Tensor, x: Tensor) -> Tensor:
    return x.T @ SPARSE


def product(w: Tensor, x: Tensor) -> Tensor:
    """A product whose weights happen to be zero."""
    return (w * w)[None] @ x


def weighted_squares(w: Tensor, x: Tensor) -> Tensor:
    """As the Hessian of contacts is made: J^T D J."""
    return x.T @ (w[:, None] * x)


def weighted_sum(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A sum whose terms cost something."""
    weight = w.relu()
    return weight, (weight[:, None] * ((x + 1) * (x - 2) * (x + 3))).sum(0)


def many_sums(w: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Sums over many terms, each with one weight: that of the line search."""
    weight, x = torch.cat([w.relu(), w.relu()]), torch.cat([x, x])
    clamped = x.clamp(-0.5, 0.5)
    return w.relu(), weight @ (clamped * (x - 0.5 * clamped)), weight @ torch.where(x > 0, x * x, 0.0)[:, 0]


def products(w: Tensor, x: Tensor) -> dict[str, Tensor]:
    functions = (constant_matrix, constant_matrix_from_the_right, product, weighted_squares)
    return {f.__name__: f(w, x) for f in functions}


@pytest.mark.parametrize("f", [products, weighted_sum, many_sums])
@pytest.mark.parametrize("skip_zeros", [True, False])
def test_a_zero_times_infinity(f: Callable[[Tensor, Tensor], Any], skip_zeros: bool) -> None:
    """Is left out by default; with `skip_zeros=False` it is NaN, as in PyTorch."""
    w, x = torch.rand(9, SIZE), torch.randn(9, SIZE, 3)
    w[:, BAD] = 0
    infinite = x.index_fill(1, torch.tensor(BAD), torch.inf)
    given = x.index_fill(1, torch.tensor(BAD), 0.0) if skip_zeros else infinite
    compiled = jit(f, strict=True, skip_zeros=skip_zeros)
    for worlds in (9, 1):
        wanted = torch.vmap(f)(w[:worlds], given[:worlds])
        close(compiled(w[:worlds], infinite[:worlds]), wanted)
        results = wanted.values() if isinstance(wanted, dict) else wanted[1:]
        assert all(skip_zeros != bool(x.isnan().any()) for x in results)


@pytest.mark.parametrize("f", [products, weighted_sum, many_sums])
def test_a_weight_that_is_zero_in_some_worlds_only(f: Callable[[Tensor, Tensor], Any]) -> None:
    """Is multiplied with in all worlds that are computed side by side."""
    w, x = torch.rand(9, SIZE), torch.randn(9, SIZE, 3)
    w[::2, BAD], x[:, BAD] = 0, 1e6
    close(jit(f, strict=True)(w, x), torch.vmap(f)(w, x))


def close(found: Any, wanted: Any) -> None:
    for a, b in zip(tree.leaves(found), tree.leaves(wanted), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
