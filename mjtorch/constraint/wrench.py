"""Constraint Jacobians from wrenches: the entry of a row at a dof is the power of a unit velocity of that dof."""

import torch
from torch import Tensor

from mjtorch.math.vector import cross


def along(direction: Tensor, arm: Tensor) -> Tensor:
    """Wrenches (..., 3, 6) of unit forces along the rows of `direction` (..., 3, 3) that act `arm` (..., 3) away."""
    return torch.cat([cross(arm[..., None, :], direction), direction], dim=-1)
