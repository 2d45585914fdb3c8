"""Unit quaternions (w, x, y, z), as in `engine_util_spatial.c`. All functions broadcast over leading axes."""

import math

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE, basis, cross, normalize as normalize_vector


def mul(a: Tensor, b: Tensor) -> Tensor:
    """Hamilton product: rotate by `b`, then by `a` (mju_mulQuat)."""
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    return torch.cat([aw * bw - (av * bv).sum(-1, keepdim=True), aw * bv + bw * av + cross(av, bv)], dim=-1)


def conjugate(q: Tensor) -> Tensor:
    """The inverse rotation (mju_negQuat)."""
    return torch.cat([q[..., :1], -q[..., 1:]], dim=-1)


def rotate(v: Tensor, q: Tensor) -> Tensor:
    """Turn `v (..., 3)` by `q (..., 4)` (mju_rotVecQuat)."""
    w, u = q[..., :1], q[..., 1:]
    t = 2 * cross(u, v)
    return v + w * t + cross(u, t)


def normalize(q: Tensor) -> Tensor:
    """Unit length; a zero quaternion becomes the identity (mju_normalize4)."""
    return normalize_vector(q, basis(q, 1, 0, 0, 0))[0]


def to_mat(q: Tensor) -> Tensor:
    """Rotation matrix (..., 3, 3) of a unit quaternion (mju_quat2Mat)."""
    outer = q[..., :, None] * q[..., None, :]
    ww, xx, yy, zz = outer.diagonal(dim1=-2, dim2=-1).unbind(-1)
    wx, wy, wz = outer[..., 0, 1:].unbind(-1)
    xy, xz, yz = outer[..., 1, 2], outer[..., 1, 3], outer[..., 2, 3]
    entries = [
        ww + xx - yy - zz, 2 * (xy - wz), 2 * (xz + wy),
        2 * (xy + wz), ww - xx + yy - zz, 2 * (yz - wx),
        2 * (xz - wy), 2 * (yz + wx), ww - xx - yy + zz,
    ]  # fmt: skip
    return torch.stack(entries, dim=-1).reshape(*q.shape[:-1], 3, 3)


def from_axis_angle(axis: Tensor, angle: Tensor) -> Tensor:
    """Turn by `angle (...)` [rad] about the unit `axis (..., 3)` (mju_axisAngle2Quat)."""
    half = 0.5 * angle[..., None]
    return torch.cat([half.cos(), half.sin() * axis], dim=-1)


def from_rotation_vector(v: Tensor) -> Tensor:
    """Turn by `|v|` [rad] about `v (..., 3)`; smooth at zero."""
    axis, angle = normalize_vector(v, torch.zeros_like(v))
    half = 0.5 * angle
    # sin(|v|/2) v/|v| has the derivative I/2 at zero, which `normalize` alone would lose.
    small = angle < MIN_VALUE
    return torch.cat([half.cos(), torch.where(small, 0.5 * v, half.sin() * axis)], dim=-1)


def integrate(q: Tensor, velocity: Tensor, dt: Tensor) -> Tensor:
    """`q` after turning with the body-frame angular `velocity` [rad/s] for `dt` [s] (mju_quatIntegrate)."""
    return normalize(mul(q, from_rotation_vector(velocity * dt)))


def to_rotation_vector(q: Tensor) -> Tensor:
    """The rotation vector [rad] of `q`, angle in (-pi, pi] (mju_quat2Vel with dt = 1)."""
    axis, sine = normalize_vector(q[..., 1:], torch.zeros_like(q[..., 1:]))
    angle = 2 * torch.atan2(sine, q[..., :1])
    angle = torch.where(angle > math.pi, angle - 2 * math.pi, angle)
    # Near the identity the vector part is half the rotation vector.
    return torch.where(sine < MIN_VALUE, 2 * q[..., 1:], axis * angle)


def sub(a: Tensor, b: Tensor) -> Tensor:
    """The rotation vector [rad], in the frame of `b`, that takes `b` to `a` (mju_subQuat)."""
    return to_rotation_vector(mul(conjugate(b), a))
