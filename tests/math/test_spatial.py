"""Spatial algebra by its identities; kinematics and dynamics test it against C."""

import torch

from mjtorch.math import spatial

torch.manual_seed(0)
V, W, F = torch.randn(3, 20, 6, dtype=torch.float64)
INERTIA = torch.randn(20, 10, dtype=torch.float64)


def test_cross_motion_of_itself_is_zero():
    torch.testing.assert_close(spatial.cross_motion(V, V), torch.zeros_like(V))


def test_cross_force_is_dual_to_cross_motion():
    """f . (v x w) = -(v x* f) . w: power does not depend on the frame."""
    power = (F * spatial.cross_motion(V, W)).sum(-1)
    torch.testing.assert_close(power, -(spatial.cross_force(V, F) * W).sum(-1))


def test_inertia_is_symmetric():
    left = (W * spatial.inertia_mul(INERTIA, V)).sum(-1)
    torch.testing.assert_close(left, (V * spatial.inertia_mul(INERTIA, W)).sum(-1))


def test_momentum_of_a_point_mass():
    """Mass m at c with linear velocity u has momentum m u and angular momentum m c x u."""
    mass, c, u = 2.0, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, -1.0, 0.25])
    rotation = mass * ((c @ c) * torch.eye(3) - torch.outer(c, c))
    numbers = torch.cat([rotation[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]], mass * c, torch.tensor([mass])])
    momentum = spatial.inertia_mul(numbers, torch.cat([torch.zeros(3), u]))
    torch.testing.assert_close(momentum, torch.cat([mass * torch.linalg.cross(c, u), mass * u]))
