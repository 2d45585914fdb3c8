"""Factorisations and solves."""

import pytest
import torch

from mjtorch.math import linalg

torch.manual_seed(0)
FACTOR = torch.randn(5, 5, dtype=torch.float64)
A = FACTOR @ FACTOR.mT + torch.eye(5, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(5,), (5, 3)])
def test_cholesky_solve(shape):
    b = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(A @ linalg.cholesky_solve(linalg.cholesky(A), b), b)


def test_batched_vector_is_not_taken_for_columns():
    b = torch.randn(4, 5, dtype=torch.float64)
    x = torch.vmap(linalg.cholesky_solve, in_dims=(None, 0))(linalg.cholesky(A), b)
    torch.testing.assert_close(x @ A, b)


def test_solve():
    b = torch.randn(5, dtype=torch.float64)
    torch.testing.assert_close(FACTOR @ linalg.solve(FACTOR, b), b)


def test_nan_stays_in_its_world_and_never_raises():
    batch = torch.stack([A, A * torch.nan, A])
    factors = torch.vmap(linalg.cholesky)(batch)
    torch.testing.assert_close(factors[0], factors[2])
    assert factors[0].isfinite().all()
    assert factors[1].isnan().any()
