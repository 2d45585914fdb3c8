"""Tendons: lengths, Jacobians, springs, dampers, inertia (mj_tendon, mj_springdamper, mj_tendonBias)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE, basis, cross, dot, normalize
from mjtorch.model import Data, Model
from mjtorch.smooth.jacobian import dof_motion
from mjtorch.smooth.plastic import rest_lengths
from mjtorch.smooth.polynomial import polynomial, polynomial_slope
from mjtorch.smooth.reflected import tendon_armature, tendon_damping
from mjtorch.smooth.wrap import wrap


class Lines(NamedTuple):
    """The straight lines that spatial tendons are made of; see `mjtorch.model.plan.tendon`.

    pos: (2, nline, 3) [m] beginning and end, along: (nline, 3) unit direction, length: (nline,) [m], with that of the
    curve that follows a line, share: (nline,) what it counts for its tendon: 1 / divisor, 0 if it is not there
    """

    pos: Tensor
    along: Tensor
    length: Tensor
    share: Tensor


def tendon(m: Model, d: Data) -> Data:
    """Lengths and Jacobians of tendons (mj_tendon; XMLreference, "tendon").

    Sets ten_length (ntendon,) [m or rad], ten_J (ntendon, nv). The length of a fixed tendon is a linear combination of
    joint positions, that of a spatial one adds up along its path, each branch divided by its pulley's divisor. A line
    of no length counts as one along x. Needs `kinematics`, `com_pos`.
    """
    p = m.plan.tendon
    if not m.ntendon:
        return d
    if not p.first.shape[0]:
        J = fixed_jacobian(m)
        return d.replace(ten_J=J, ten_length=J @ d.qpos[m.plan.kinematics.dof_qpos])
    path = lines(m, d)
    J, length = spatial_jacobian(m, d, path), p.line_tendon @ (path.share * path.length)
    if p.any_fixed:
        fixed = fixed_jacobian(m)
        J, length = J + fixed, length + fixed @ d.qpos[m.plan.kinematics.dof_qpos]
    return d.replace(ten_J=J, ten_length=length)


def fixed_jacobian(m: Model) -> Tensor:
    """Coefficients (ntendon, nv) of the joints in fixed tendons; zero for spatial ones."""
    p = m.plan.tendon
    return (p.fixed_wrap * m.wrap_prm) @ p.wrap_dof


def lines(m: Model, d: Data) -> Lines:
    """The lines of all spatial tendons."""
    p = m.plan.tendon
    pos = torch.stack([d.site_xpos[p.first], d.site_xpos[p.second]])
    n, share = p.wrap_geom.shape[0], torch.ones_like(p.line_tendon[0])
    if p.any_pulley:
        share = 1 / torch.cat([m.wrap_prm, torch.ones_like(m.wrap_prm[:1])])[p.pulley]
    if not n:
        along, length = normalize(pos[1] - pos[0], basis(pos, 1, 0, 0))
        return Lines(pos, along, length.squeeze(-1), share)
    touching = wrap(m, d)
    before, after = torch.stack([pos[0, -n:], touching.pos[0]]), torch.stack([touching.pos[1], pos[1, -n:]])
    pos = torch.cat([pos, before, after], dim=1)
    along, length = normalize(pos[1] - pos[0], basis(pos, 1, 0, 0))
    touches = touching.touches.to(pos.dtype)
    there = torch.cat([torch.ones_like(pos[0, : -3 * n, 0]), 1 - touches, touches, touches])
    curve = torch.cat([torch.zeros_like(pos[0, : -2 * n, 0]), touching.length, torch.zeros_like(touching.length)])
    return Lines(pos, along, length.squeeze(-1) + curve, share * there)


def spatial_jacobian(m: Model, d: Data, path: Lines) -> Tensor:
    """How fast (ntendon, nv) spatial tendons grow with each dof: by the motion of lines' ends, less their beginnings'.

    A unit force along the line has the same moment about any point, whether it acts at the beginning or at the end.
    """
    p = m.plan.tendon
    point, motion = dof_motion(m, d)
    wrench = path.share[:, None] * torch.cat([cross(path.pos[0] - point, path.along), path.along], dim=-1)
    growth = p.moved_sign * dot(wrench[p.moved_line], motion[p.moved_dof])
    return motion.new_zeros(m.ntendon * m.nv).index_add(0, p.moved_place, growth).view(m.ntendon, m.nv)


def tendon_bias(m: Model, d: Data) -> Tensor:
    """Generalised force (nv,) of accelerated armature at zero qacc, `J^T armature (dJ/dt qvel)` (mj_tendonBias)."""
    return (tendon_armature(m) * tendon_swing(m, d)) @ d.ten_J


def tendon_swing(m: Model, d: Data) -> Tensor:
    """Acceleration (ntendon,) [m/s^2] of the lengths of spatial tendons at zero qacc, `dJ/dt qvel`.

    A line grows by the velocity `v` of its end less that of its beginning, along it, so it accelerates at the rate
    `u . a + (v . v - (u . v)^2) / length`, `a` the acceleration at zero qacc; without length by the first term only.
    """
    p, k = m.plan.tendon, m.plan.kinematics
    path = lines(m, d)
    spatial = torch.stack([d.cvel, k.body_dof @ (d.cdof_dot * d.qvel[:, None])])[:, p.line_body]
    arm = path.pos - d.subtree_com[k.body_root[p.line_body]]
    turn = spatial[0, ..., :3]
    moved, bias = (spatial[..., 3:] + cross(spatial[..., :3], arm)).unbind(0)
    velocity, acceleration = (x[1] - x[0] for x in (moved, bias + cross(turn, moved)))
    along = dot(path.along, velocity)
    short = path.length < MIN_VALUE
    swing = torch.where(short, 0.0, (dot(velocity, velocity) - along * along) / torch.where(short, 1.0, path.length))
    return p.line_tendon @ (path.share * (dot(path.along, acceleration) + swing))


def tendon_stretch(m: Model, d: Data) -> Tensor:
    """How much (ntendon,) longer or, negative, shorter tendons are than where their springs rest.

    Springs rest anywhere between the two lengths of `rest_lengths`.
    """
    low, high = rest_lengths(m, d).unbind(-1)
    return d.ten_length - d.ten_length.clamp(low, high)


def tendon_spring(m: Model, d: Data) -> Tensor:
    """Force (ntendon,) along tendons of their springs, `-k(x) x` at stretch `x` (mj_springdamper)."""
    x, k = tendon_stretch(m, d), m.tendon_stiffness
    if m.plan.tendon.stiffness_poly:
        k = polynomial(k, m.tendon_stiffnesspoly, x)
    return -k * x


def tendon_damper(m: Model, d: Data) -> Tensor:
    """Force (ntendon,) along tendons of their dampers, `-b(|v|) v` (mj_springdamper)."""
    v, (b, higher) = d.ten_velocity, tendon_damping(m)
    if m.plan.tendon.damping_poly:
        b = polynomial(b, higher, v.abs())
    return -b * v


def tendon_damping_derivative(m: Model, d: Data) -> Tensor:
    """`d(b(|v|) v) / dv` (ntendon,) of the tendon dampers."""
    b, higher = tendon_damping(m)
    return polynomial_slope(b, higher, d.ten_velocity.abs()) if m.plan.tendon.damping_poly else b
