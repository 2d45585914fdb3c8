"""Sums that are part of others are computed once."""

import numpy as np
import pytest
import torch

import mjtorch
from mjtorch.compiler.lower.shared_sums import Sums, shared_sums


def computed(sums: Sums, x: np.ndarray) -> np.ndarray:
    """What a program makes of them: each of numbers, and of sums that were computed before."""
    found = np.full(len(sums.order), np.nan)
    for step, which in enumerate(sums.order):
        terms = sums.terms[sums.first_term[step] : sums.first_term[step + 1]]
        parts = sums.sums[sums.first_sum[step] : sums.first_sum[step + 1]]
        found[which] = x[terms].sum() + found[parts].sum()
    return found


def subtrees(parent: list[int]) -> np.ndarray:
    """(n, n) bool [i, j] whether j is i or below it."""
    member = np.eye(len(parent), dtype=bool)
    for j, i in enumerate(parent):
        while i >= 0:
            member[i, j] = True
            i = parent[i]
    return member


CHAIN = [k - 1 for k in range(30)]
TREE = [(k - 1) // 2 for k in range(31)]
TREE[0] = -1


@pytest.mark.parametrize("member", [subtrees(CHAIN), subtrees(TREE), subtrees(TREE).T], ids=["chain", "down", "up"])
def test_trees_add_each_number_once(member: np.ndarray) -> None:
    sums = shared_sums(member)
    assert sums.size < 2 * len(member) < Sums.of_all(member).size
    x = np.random.default_rng(0).standard_normal(len(member))
    np.testing.assert_allclose(computed(sums, x), member @ x)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_any_sums(share: float) -> None:
    generator = np.random.default_rng(1)
    member, x = generator.random((20, 15)) < share, generator.standard_normal(15)
    sums = shared_sums(member)
    assert sums.size <= Sums.of_all(member).size == member.sum()
    np.testing.assert_allclose(computed(sums, x), member @ x, atol=1e-12)


@pytest.mark.parametrize("columns", [1, 3, 8, 21])
@pytest.mark.parametrize("weighted", [False, True])
def test_products(columns: int, weighted: bool) -> None:
    """Some columns at a time, the rest together; of what is read once, and of what is read again."""
    member = torch.tensor(subtrees(TREE)).double()
    matrix = member * torch.rand(member.shape, generator=torch.Generator().manual_seed(0)) if weighted else member

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return matrix @ (2 * x), matrix.mT @ (x + 1), x.mT.contiguous() @ matrix, matrix[:1] @ (3 * x)

    x = torch.randn(5, len(TREE), columns, dtype=torch.float64)
    for found, wanted in zip(mjtorch.jit(f, in_dims=(0,))(x), torch.vmap(f)(x), strict=True):
        torch.testing.assert_close(found, wanted)
