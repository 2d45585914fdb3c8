"""Actuators with controllers of their own: PID servos, orientation servos, setpoints that are angles."""

import math

import torch
from torch import Tensor

from mjtorch.math import quaternion as quat
from mjtorch.math.vector import norm
from mjtorch.model import Data, Model


def per_output(m: Model, x: Tensor) -> Tensor:
    """A parameter (nactuator, ...) of actuators for each of their outputs (nout, ...)."""
    return x if m.plan.actuation.single else x[m.plan.actuation.out_actuator]


def inputs(ctrl: Tensor) -> Tensor:
    """Controls (nu + 1,), the last zero: what stands for an input that a servo does not have."""
    return torch.cat([ctrl, ctrl.new_zeros(1)])


def wrap_period(m: Model) -> Tensor:
    """Length (nout,) of a full turn for position servos, 0 for others; means something for outputs in `wraps` only.

    A servo is PID, or known by `kp = gainprm[0] = -biasprm[1]` (computation/index.rst, "Rotational setpoints"). Between
    sites it must not have a part that shifts.
    """
    p, s = m.plan.transmission, m.plan.servo
    servo = per_output(m, m.actuator_gainprm)[:, 0] == -per_output(m, m.actuator_biasprm)[:, 1]
    if s.is_pid.some:
        servo = servo | s.is_pid.mask
    turn = 2 * math.pi * norm(m.actuator_gear.flatten()[p.turn])
    if p.shift.some:
        servo = servo & ~(p.shift.mask & (m.actuator_gear[:, :3] != 0).any(-1))
    return torch.where(servo, turn, torch.zeros_like(turn))


def wrap(setpoint: Tensor, length: Tensor, period: Tensor) -> Tensor:
    """The representative (n,) of `setpoint`, known up to whole periods, that is nearest to `length`."""
    period = torch.where(period > 0, period, 1.0)
    turns = (setpoint - length) / period
    return setpoint - period * (turns + 0.5 * turns.sign()).trunc()


def wrapped(m: Model, setpoint: Tensor, length: Tensor, out: Tensor) -> Tensor:
    """`setpoint` (k,) of the outputs `out` (k,), near `length` (k,) where it is an angle."""
    wraps = m.plan.transmission.wraps
    if not wraps.some:
        return setpoint
    period = wrap_period(m)[out]
    return torch.where(wraps.mask[out] & (period > 0), wrap(setpoint, length, period), setpoint)


def slewed_controls(m: Model, d: Data, ctrl: Tensor) -> tuple[Tensor, Tensor]:
    """Controls (nu,) that do not change faster than PID servos and DC motors allow.

    Also returns the rates (k,) of the activations that hold what the limited ones have come to.
    """
    s, h = m.plan.servo, m.opt.timestep
    if not s.slew_act.shape[0]:
        return ctrl, ctrl.new_zeros(0)
    last, most = d.act[s.slew_act], m.actuator_dynprm.flatten()[s.slew_prm] * h
    wanted = wrapped(m, ctrl[s.slew_ctrl], last, s.slew_out)
    reached = torch.clamp(wanted, last - most, last + most)
    return torch.cat([ctrl, reached])[s.slewed_source], (reached - last) / h


def integral_rate(m: Model, d: Data, ctrl: Tensor) -> Tensor:
    """Position errors (k,) that PID servos and DC motors integrate, those that lead further past `imax` left out."""
    s = m.plan.servo
    length, state = d.actuator_length[s.integral_out], d.act[s.integral_act]
    error = wrapped(m, ctrl[s.integral_ctrl], length, s.integral_out) - length
    most = m.actuator_dynprm.flatten()[s.integral_prm]
    outward = ((state >= most) & (error > 0)) | ((state <= -most) & (error < 0))
    return torch.where((most > 0) & outward, torch.zeros_like(error), error)


def pid_force(m: Model, d: Data, ctrl: Tensor, act: Tensor) -> Tensor:
    """Forces (p,) `kp (u_pos - l) + kv (u_vel - v) + ki z + u_ff` of PID servos (XMLreference, "pid")."""
    s = m.plan.servo
    gain, bias = m.actuator_gainprm[s.pid_actuator], m.actuator_biasprm[s.pid_actuator]
    length, velocity = d.actuator_length[s.pid_out], d.actuator_velocity[s.pid_out]
    position, speed, force = inputs(ctrl)[s.pid_input].unbind(-1)
    position = wrapped(m, position, length, s.pid_out)
    force = force + bias[:, 0] + bias[:, 1] * (length - position) + bias[:, 2] * (velocity - speed)
    return force + gain[:, 0].clamp(min=0) * inputs(act)[s.pid_state]


def turning_force(m: Model, d: Data, ctrl: Tensor, act: Tensor) -> Tensor:
    """Torques (s, 3) `kp log(q^-1 q_target) - kv w` of orientation servos (XMLreference, "orientation")."""
    s = m.plan.servo
    targets = []
    if s.expmap.shape[0]:
        targets.append(quat.from_rotation_vector(torch.cat([ctrl, act])[s.expmap]))
    if s.quaternion.shape[0]:
        targets.append(quat.normalize(ctrl[s.quaternion]))
    error = quat.sub(torch.cat(targets), quat.from_rotation_vector(d.actuator_length[s.turner_out]))
    gain, bias = m.actuator_gainprm[s.turner], m.actuator_biasprm[s.turner]
    return gain[:, :1] * error + bias[:, :1] + bias[:, 2:3] * d.actuator_velocity[s.turner_out]


def limited_torque(m: Model, force: Tensor) -> Tensor:
    """The torques of orientation servos in `force` (nout,), (s, 3), none longer than its limit."""
    s = m.plan.servo
    torque = force[s.turner_out]
    most, length = m.actuator_forcerange[s.turner, 1:], norm(torque, keepdim=True)
    exceeds = s.turner_limited.mask[:, None] & (length > most)
    return torch.where(exceeds, most / torch.where(exceeds, length, 1.0), 1.0) * torque


def anchored(m: Model, act: Tensor) -> Tensor:
    """Activations (na,) in which rotation vectors of orientation servos are not longer than half a turn."""
    s = m.plan.servo
    vector = act[s.turner_act]
    angle = norm(vector, keepdim=True)
    beyond = angle > math.pi
    safe = torch.where(beyond, angle, 1.0)
    scale = (safe - 2 * math.pi * (safe / (2 * math.pi)).round()) / safe
    return act.index_copy(0, s.turner_act.flatten(), (torch.where(beyond, scale, 1.0) * vector).flatten())
