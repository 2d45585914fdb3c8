"""Singular values, eigenvectors and positive parts of matrices, against LAPACK and differences."""

import pytest
import torch
from torch import Tensor

from mjtorch.math.spectral import eigenvectors, positive_part, singular_frames

VALUES = (
    *((1.0, 1.0, 1.0), (1.0, 1.0, -1.0), (1.0, 0.5, -0.5), (1.0, 1e-8, 1e-8), (1.0, 1e-8, 1e-15), (1.0, 1.0, 0.0)),
    *((1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1e-3, 1e-3, 1e-3), (1e4, 3e3, 2e3), (1.0, 1 + 1e-9, 1 - 1e-9)),
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotations(count: int, seed: int) -> Tensor:
    q = torch.linalg.qr(random(count, 3, 3, seed=seed))[0]
    return q * torch.linalg.det(q)[:, None, None]


def check_rotation(q: Tensor, close: float) -> None:
    assert torch.allclose(q.mT @ q, torch.eye(3, dtype=q.dtype).expand_as(q), rtol=0, atol=close)
    assert (torch.linalg.det(q) > 0).all()


def off_diagonal(a: Tensor) -> Tensor:
    return (a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1))).abs().amax((-2, -1))


@pytest.mark.parametrize("dtype, close", [(torch.float64, 1e-14), (torch.float32, 1e-5)])
@pytest.mark.parametrize("values", [None, *VALUES], ids=str)
def test_frames_are_rotations_that_make_matrices_diagonal(
    values: tuple[float, ...] | None, dtype: torch.dtype, close: float
) -> None:
    if values is None:
        a = random(2000, 3, 3)
    else:
        a = rotations(500, 0) @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ rotations(500, 1).mT
    left, right = singular_frames(a.to(dtype))
    check_rotation(left, close)
    check_rotation(right, close)
    found, size = left.double().mT @ a @ right.double(), a.abs().amax((-2, -1))
    assert (off_diagonal(found) <= close * size).all()
    wanted = torch.linalg.svdvals(a)[:, :2]
    assert torch.allclose(found.diagonal(dim1=-2, dim2=-1)[:, :2], wanted, rtol=0, atol=4 * close * float(size.max()))
    symmetric = (a + a.mT).to(dtype)
    axes = eigenvectors(symmetric)
    check_rotation(axes, close)
    found = axes.double().mT @ symmetric.double() @ axes.double()
    assert (off_diagonal(found) <= close * symmetric.abs().amax((-2, -1))).all()


def clamped(a: Tensor) -> Tensor:
    """The positive part of symmetric matrices, by way of eigenvectors that have no derivative."""
    axes = torch.linalg.eigh(a.detach())[1]
    return axes @ positive_part(axes.mT @ a @ axes) @ axes.mT


def test_positive_parts() -> None:
    a = random(50, 6, 6)
    a = a + a.mT
    values, axes = torch.linalg.eigh(a)
    assert torch.allclose(clamped(a), axes * values.clamp(min=0)[:, None] @ axes.mT, rtol=0, atol=1e-13)


def test_derivatives_match_differences() -> None:
    a, way = random(20, 5, 5), random(20, 5, 5, seed=1)
    a, way = a + a.mT, way + way.mT
    step = 1e-6
    wanted = (clamped(a + step * way) - clamped(a - step * way)) / (2 * step)
    assert torch.allclose(torch.func.jvp(clamped, (a,), (way,))[1], wanted, rtol=0, atol=1e-7)


@pytest.mark.parametrize("values", [(1.0, 1.0, 1.0), (2.0, -1.0, -1.0), (0.0, 0.0, 0.0), (1.0, -1.0, 0.0)], ids=str)
def test_derivatives_are_finite_at_equal_values(values: tuple[float, ...]) -> None:
    """Where none of them is zero, they are differences', too."""
    axes = rotations(1, 3)[0]
    a, way = axes @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ axes.mT, random(3, 3)
    way, step = way + way.mT, 1e-6
    found = torch.func.jvp(clamped, (a,), (way,))[1]
    assert found.isfinite().all()
    if 0.0 not in values:
        assert torch.allclose(found, (clamped(a + step * way) - clamped(a - step * way)) / (2 * step), atol=1e-7)
