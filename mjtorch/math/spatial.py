"""6-vectors, rotation first and translation second, and inertias as 10 numbers, as in `engine_util_spatial.c`.

An inertia is (Ixx, Iyy, Izz, Ixy, Ixz, Iyz, m*x, m*y, m*z, m): rotational inertia about the reference point, first
moment of mass, mass.
"""

import torch
from torch import Tensor

from mjtorch.math.vector import cross


def cross_motion(v: Tensor, w: Tensor) -> Tensor:
    """Rate of change of the motion vector `w` carried by a frame moving with `v` (mju_crossMotion)."""
    angular, linear = v[..., :3], v[..., 3:]
    turned = cross(angular[..., None, :], w.unflatten(-1, (2, 3))).flatten(-2)
    return turned + torch.cat([torch.zeros_like(linear), cross(linear, w[..., :3])], dim=-1)


def cross_force(v: Tensor, f: Tensor) -> Tensor:
    """Rate of change of the force vector `f` carried by a frame moving with `v` (mju_crossForce)."""
    angular, linear = v[..., :3], v[..., 3:]
    turned = cross(angular[..., None, :], f.unflatten(-1, (2, 3))).flatten(-2)
    return turned + torch.cat([cross(linear, f[..., 3:]), torch.zeros_like(linear)], dim=-1)


def symmetric(inertia: Tensor) -> Tensor:
    """The rotational part of an inertia (..., 10) as a matrix (..., 3, 3)."""
    # In two parts: Inductor (2.13) loses lists of more than 8 numbers in the bodies of loops.
    return torch.cat([inertia[..., [0, 3, 4, 3, 1, 5]], inertia[..., [4, 5, 2]]], dim=-1).unflatten(-1, (3, 3))


def inertia_mul(inertia: Tensor, v: Tensor) -> Tensor:
    """Momentum (..., 6) of an inertia (..., 10) moving with `v` (..., 6) (mju_mulInertVec)."""
    angular, linear = v[..., :3], v[..., 3:]
    moment, mass = inertia[..., 6:9], inertia[..., 9:]
    rotation = (symmetric(inertia) * angular[..., None, :]).sum(-1) + cross(moment, linear)
    return torch.cat([rotation, mass * linear - cross(moment, angular)], dim=-1)


def skew(v: Tensor) -> Tensor:
    """Matrices (..., 3, 3) with `skew(v) x = v x x`."""
    return cross(v[..., None, :], torch.eye(3, dtype=v.dtype, device=v.device)).mT


def blocks(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """The matrices (..., 6, 6) with the (..., 3, 3) blocks `a b` above `c d`."""
    return torch.cat([torch.cat([a, b], dim=-1), torch.cat([c, d], dim=-1)], dim=-2)
