"""Muscles: force-length-velocity curves and activation dynamics (modeling.rst, "Muscle actuators").

Parameters are `gainprm` and `biasprm` (n, 10): range[2], force, scale, lmin, lmax, vmax, fpmax, fvmax. Lengths are
normalized so that a muscle at its optimum has length 1, velocities so that `vmax` is 1.
"""

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE


def _positive(x: Tensor) -> Tensor:
    return x.clamp(min=MIN_VALUE)


def peak_force(prm: Tensor, acc0: Tensor) -> Tensor:
    """Force (n,) [N] at the optimum; a negative `force` asks for `scale / acc0` instead."""
    return torch.where(prm[:, 2] < 0, prm[:, 3] / _positive(acc0), prm[:, 2])


def optimum_length(prm: Tensor, lengthrange: Tensor) -> Tensor:
    """Length (n,) at which the muscle is strongest; `lengthrange` (n, 2) spans the normalized `range`."""
    return (lengthrange[:, 1] - lengthrange[:, 0]) / _positive(prm[:, 1] - prm[:, 0])


def normalized_length(length: Tensor, prm: Tensor, lengthrange: Tensor) -> Tensor:
    """Length (n,) in units of the optimum."""
    return prm[:, 0] + (length - lengthrange[:, 0]) / _positive(optimum_length(prm, lengthrange))


def top_speed(prm: Tensor, lengthrange: Tensor) -> Tensor:
    """Velocity (n,) that counts as 1."""
    return _positive(optimum_length(prm, lengthrange) * prm[:, 6])


def length_curve(length: Tensor, lmin: Tensor, lmax: Tensor) -> Tensor:
    """Strength (n,) at normalized `length`: a bump of four parabolas, 1 at length 1 and 0 outside [lmin, lmax].

    (mju_muscleGainLength)
    """
    left, right = 0.5 * (lmin + 1), 0.5 * (1 + lmax)
    rise, fall = (length - lmin) / _positive(left - lmin), (lmax - length) / _positive(lmax - right)
    below, above = (1 - length) / _positive(1 - left), (length - 1) / _positive(right - 1)
    top = 1 - 0.5 * torch.where(length <= 1, below, above).square()
    foot = 0.5 * torch.where(length <= left, rise, fall).square()
    curve = torch.where((length <= left) | (length > right), foot, top)
    return torch.where((lmin <= length) & (length <= lmax), curve, torch.zeros_like(curve))


def length_slope(length: Tensor, lmin: Tensor, lmax: Tensor) -> Tensor:
    """Derivative (n,) of `length_curve`."""
    left, right = 0.5 * (lmin + 1), 0.5 * (1 + lmax)
    rise, fall = (length - lmin) / _positive(left - lmin).square(), (length - lmax) / _positive(lmax - right).square()
    below, above = (1 - length) / _positive(1 - left).square(), (1 - length) / _positive(right - 1).square()
    top, foot = torch.where(length <= 1, below, above), torch.where(length <= left, rise, fall)
    slope = torch.where((length <= left) | (length > right), foot, top)
    return torch.where((lmin <= length) & (length <= lmax), slope, torch.zeros_like(slope))


def velocity_curve(velocity: Tensor, fvmax: Tensor) -> Tensor:
    """Strength (n,) at normalized `velocity`: 0 below -1, 1 at rest, `fvmax` when lengthening fast."""
    y = fvmax - 1
    lengthening = fvmax - (y - velocity).square() / _positive(y)
    curve = torch.where(velocity <= 0, (velocity.clamp(min=-1) + 1).square(), lengthening)
    return torch.where(velocity > y.clamp(min=0), fvmax, curve)


def velocity_slope(velocity: Tensor, fvmax: Tensor) -> Tensor:
    """Derivative (n,) of `velocity_curve`."""
    y = fvmax - 1
    lengthening = 2 * (y - velocity) / _positive(y)
    slope = torch.where(velocity <= 0, 2 * (velocity.clamp(min=-1) + 1), lengthening)
    return torch.where(velocity > y.clamp(min=0), torch.zeros_like(slope), slope)


def gain(length: Tensor, velocity: Tensor, lengthrange: Tensor, acc0: Tensor, prm: Tensor) -> Tensor:
    """Force (n,) [N] of full activation, negative because muscles pull (mju_muscleGain)."""
    strength = length_curve(normalized_length(length, prm, lengthrange), prm[:, 4], prm[:, 5])
    speed = velocity / top_speed(prm, lengthrange)
    return -peak_force(prm, acc0) * strength * velocity_curve(speed, prm[:, 8])


def gain_velocity(length: Tensor, velocity: Tensor, lengthrange: Tensor, acc0: Tensor, prm: Tensor) -> Tensor:
    """Derivative (n,) [N s/m] of `gain` by velocity."""
    strength = length_curve(normalized_length(length, prm, lengthrange), prm[:, 4], prm[:, 5])
    top = top_speed(prm, lengthrange)
    return -peak_force(prm, acc0) * strength * velocity_slope(velocity / top, prm[:, 8]) / top


def gain_length(length: Tensor, velocity: Tensor, lengthrange: Tensor, acc0: Tensor, prm: Tensor) -> Tensor:
    """Derivative (n,) [N/m] of `gain` by length."""
    slope = length_slope(normalized_length(length, prm, lengthrange), prm[:, 4], prm[:, 5])
    speed = velocity_curve(velocity / top_speed(prm, lengthrange), prm[:, 8])
    return -peak_force(prm, acc0) * slope * speed / _positive(optimum_length(prm, lengthrange))


def bias(length: Tensor, lengthrange: Tensor, acc0: Tensor, prm: Tensor) -> Tensor:
    """Passive force (n,) [N]: none up to the optimum, a parabola, then linear (mju_muscleBias)."""
    lmax, fpmax = prm[:, 5], prm[:, 7]
    knee = 0.5 * (1 + lmax)
    excess = (normalized_length(length, prm, lengthrange) - 1).clamp(min=0) / _positive(knee - 1)
    curve = torch.where(excess <= 1, 0.5 * excess.square(), excess - 0.5)
    return -peak_force(prm, acc0) * fpmax * curve


def bias_length(length: Tensor, lengthrange: Tensor, acc0: Tensor, prm: Tensor) -> Tensor:
    """Derivative (n,) [N/m] of `bias`."""
    lmax, fpmax = prm[:, 5], prm[:, 7]
    knee = _positive(0.5 * (1 + lmax) - 1)
    excess = (normalized_length(length, prm, lengthrange) - 1).clamp(min=0) / knee
    return -peak_force(prm, acc0) * fpmax * excess.clamp(max=1) / (knee * _positive(optimum_length(prm, lengthrange)))


def sigmoid(x: Tensor) -> Tensor:
    """Quintic step from 0 at x = 0 to 1 at x = 1, flat to second order at both ends (mju_sigmoid)."""
    x = x.clamp(0, 1)
    return x * x * x * (x * (6 * x - 15) + 10)


def activation_rate(ctrl: Tensor, act: Tensor, prm: Tensor) -> Tensor:
    """Rate (n,) [1/s] at which activation follows excitation `ctrl` (mju_muscleDynamics).

    prm: `dynprm` (n, 10): time constants of activation and deactivation [s], width of the blend between them. Both
    depend on the activation as in Millard et al. (2013), https://doi.org/10.1115/1.4023390.
    """
    scale = 0.5 + 1.5 * act.clamp(0, 1)
    rising, falling, width = prm[:, 0] * scale, prm[:, 1] / scale, prm[:, 2]
    missing = ctrl.clamp(0, 1) - act
    abrupt = width < MIN_VALUE
    blend = sigmoid(missing / torch.where(abrupt, 1.0, width) + 0.5)
    share = torch.where(abrupt, (missing > 0).to(blend.dtype), blend)
    return missing / _positive(falling + (rising - falling) * share)
