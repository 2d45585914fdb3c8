"""Lengths and directions, also of nothing."""

import torch

from mjtorch.math import vector


def test_normalize_falls_back_on_short_vectors():
    x = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [1e-16, 0.0, 0.0]], dtype=torch.float64)
    unit, length = vector.normalize(x, vector.basis(x, 0, 1, 0))
    torch.testing.assert_close(length[:, 0], torch.tensor([0.0, 5.0, 1e-16], dtype=torch.float64))
    expected = torch.tensor([[0.0, 1.0, 0.0], [0.6, 0.0, 0.8], [0.0, 1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(unit, expected)


def test_derivatives_at_zero_are_finite():
    zero = torch.zeros(3, dtype=torch.float64)
    assert (torch.func.grad(vector.norm)(zero) == 0).all()
    assert torch.func.jacrev(lambda x: vector.normalize(x, torch.zeros_like(x))[0])(zero).isfinite().all()


def test_cross_broadcasts():
    x, y = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(vector.cross(x, y), torch.tensor([[0.0, 0.0, 1.0], [0.0, -1.0, 0.0]]))
