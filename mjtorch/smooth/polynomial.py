"""Springs and dampers whose stiffness and damping are polynomials (mju_polyForce)."""

import torch
from torch import Tensor


def polynomial(linear: Tensor, higher: Tensor, x: Tensor) -> Tensor:
    """`linear + higher[0] x + higher[1] x^2 + ...`, the stiffness at stretch `x` or the damping at speed `x` (n,).

    linear: (n,), higher: (n, k). Springs take the stretch with its sign, dampers its size (mju_polyForce).
    """
    total = higher[:, -1]
    for coefficient in reversed(higher.unbind(-1)[:-1]):
        total = coefficient + x * total
    return linear + x * total


def polynomial_slope(linear: Tensor, higher: Tensor, x: Tensor) -> Tensor:
    """Derivative (n,) of `x polynomial(linear, higher, x)`, the force of a damper at speed `x` (mjd_xPolyForce)."""
    order = torch.arange(2, 2 + higher.shape[1], dtype=x.dtype, device=x.device)
    return polynomial(linear, order * higher, x)


def polynomial_energy(linear: Tensor, higher: Tensor, x: Tensor) -> Tensor:
    """The `k` (n,) for which `k x^2` is the energy of a spring at stretch `x` (mju_polyPotential)."""
    # k x^(i+1) integrates to k / (i + 3) x^(i+3) once it is multiplied by x.
    order = torch.arange(3, 3 + higher.shape[1], dtype=x.dtype, device=x.device)
    return polynomial(0.5 * linear, higher / order, x)
