"""The rotation in a deformation, against singular values."""

import pytest
import torch
from torch import Tensor

from mjtorch.math.polar import nearest_rotation

VALUES = ((1.0, 1.0, 1.0), (1.5, 1.0, 0.5), (2.0, 0.3, 0.1), (1.0, 1.0, -0.5), (1e-3, 1e-3, 1e-3), (1e4, 3e3, 2e3))


def rotations(count: int, seed: int) -> Tensor:
    q = torch.linalg.qr(torch.randn(count, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))[0]
    return q * torch.linalg.det(q)[:, None, None]


@pytest.mark.parametrize("dtype, close", [(torch.float64, 1e-13), (torch.float32, 1e-5)])
@pytest.mark.parametrize("values", VALUES, ids=str)
def test_matches_singular_values(values: tuple[float, ...], dtype: torch.dtype, close: float) -> None:
    """Also of what is turned inside out, where a mirror image would be nearer."""
    left, right = rotations(50, 0), rotations(50, 1)
    stretched = left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right.mT
    found = nearest_rotation(stretched.to(dtype))
    assert torch.allclose(found.double(), left @ right.mT, rtol=0, atol=close)


def test_derivatives_match_differences() -> None:
    generator = torch.Generator().manual_seed(2)
    a = torch.eye(3, dtype=torch.float64) + 0.3 * torch.randn(4, 3, 3, dtype=torch.float64, generator=generator)
    assert torch.autograd.gradcheck(nearest_rotation, a.requires_grad_(), check_forward_ad=True)


@pytest.mark.parametrize("values", [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (1.0, 0.5, -0.5)], ids=str)
def test_stays_finite_where_no_rotation_is_the_nearest(values: tuple[float, ...]) -> None:
    a = torch.diag(torch.tensor(values)).requires_grad_()
    found = nearest_rotation(a)
    found.sum().backward()
    assert found.isfinite().all() and a.grad is not None and a.grad.isfinite().all()
