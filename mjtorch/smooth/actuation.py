"""Actuators: activation dynamics, forces, clamping (mj_fwdActuation, mj_nextActivation)."""

import math

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE, norm
from mjtorch.model import Data, DisableBit, Model
from mjtorch.model.plan.subset import Subset
from mjtorch.smooth import muscle

# mjMAXVAL: a larger control counts as bad.
MAX_VALUE = 1e10
BADCTRL = 6  # mjtWarning


def fwd_actuation(m: Model, d: Data) -> Data:
    """Forces of the actuators and rates of their activations (mj_fwdActuation).

    Sets act_dot, actuator_force, qfrc_actuator, and counts `mjWARN_BADCTRL`. `force = gain * input + bias`, where the
    input is the activation of a stateful actuator and the clamped control of another.
    """
    if not m.nu or m.opt.disabled(DisableBit.ACTUATION):
        zeros = {name: torch.zeros_like(getattr(d, name)) for name in ("act_dot", "actuator_force", "qfrc_actuator")}
        return d.replace(**zeros)
    p = m.plan.actuation
    ctrl, bad = controls(m, d)
    act_dot = activation_rate(m, d, ctrl)
    force = gain(m, d) * force_input(m, d, ctrl, act_dot) + bias(m, d)
    if m.opt.disableactuator:
        force = torch.where(disabled_actuators(m), torch.zeros_like(force), force)
    if p.ten_actfrclimited.some:
        force = force * tendon_share(m, force)
    if p.forcelimited.some:
        force = clamp(force, m.actuator_forcerange, p.forcelimited)
    mine = torch.arange(d.warning.shape[0], device=d.warning.device) == BADCTRL
    return d.replace(
        act_dot=act_dot,
        actuator_force=force,
        qfrc_actuator=joint_force(m, d, force),
        warning=d.warning + (bad & mine),
    )


def clamp(x: Tensor, limits: Tensor, limited: Subset) -> Tensor:
    """`x (n,)` within `limits (n, 2)` where `limited`."""
    return select(limited, torch.clamp(x, limits[:, 0], limits[:, 1]), x)


def select(which: Subset, inside: Tensor, outside: Tensor) -> Tensor:
    """`inside (n,)` for the elements in the subset, `outside (n,)` for the others."""
    if which.every:
        return inside
    return torch.where(which.mask, inside, outside) if which.some else outside


def disabled_actuators(m: Model) -> Tensor:
    """(nu,) bool: actuators whose group is switched off by `opt.disableactuator` (mj_actuatorDisabled)."""
    flags = torch.full_like(m.plan.actuation.group, m.opt.disableactuator & 0x7FFFFFFF)
    return ((flags >> m.plan.actuation.group) & 1).bool()


def controls(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """Controls (nu,) within their ranges, all zero if any is NaN or huge, and whether that is so () bool."""
    p, ctrl = m.plan.actuation, d.ctrl
    if p.ctrllimited.some and not m.opt.disabled(DisableBit.CLAMPCTRL):
        ctrl = clamp(ctrl, m.actuator_ctrlrange, p.ctrllimited)
    bad = ~(ctrl.abs() <= MAX_VALUE).all()
    return torch.where(bad, torch.zeros_like(ctrl), ctrl), bad


def activation_rate(m: Model, d: Data, ctrl: Tensor) -> Tensor:
    """act_dot (na,): the control, the filtered difference `(ctrl - act) / tau`, or a muscle's excitation dynamics."""
    p = m.plan.actuation
    if not m.na:
        return d.act
    u, prm = ctrl[p.act_actuator], m.actuator_dynprm[p.act_actuator]
    rate = u
    if p.filters.some:
        rate = select(p.filters, (u - d.act) / prm[:, 0].clamp(min=MIN_VALUE), u)
    if p.muscle_act.shape[0]:
        k = p.muscle_act
        rate = torch.cat([rate, muscle.activation_rate(u[k], d.act[k], prm[k])])[p.act_source]
    return rate


def next_activation(m: Model, d: Data, act_dot: Tensor) -> Tensor:
    """Activations (na,) after one time step with rates `act_dot` (na,), within their ranges (mj_nextActivation).

    Exact filters follow `tau (1 - exp(-h / tau))`, the others Euler's rule.
    """
    p, h = m.plan.actuation, m.opt.timestep
    span = h
    if p.exact.some:
        tau = m.actuator_dynprm[p.act_actuator, 0].clamp(min=MIN_VALUE)
        span = select(p.exact, -tau * torch.expm1(-h / tau), h)
    act = d.act + act_dot * span
    if p.actlimited.some:
        act = clamp(act, m.actuator_actrange[p.act_actuator], p.actlimited)
    return act


def current_activation(m: Model, d: Data, act_dot: Tensor) -> Tensor:
    """Activations (na,) that forces are made of: the next ones for `actearly` actuators."""
    early = m.plan.actuation.early
    return select(early, next_activation(m, d, act_dot), d.act) if early.some else d.act


def force_input(m: Model, d: Data, ctrl: Tensor, act_dot: Tensor) -> Tensor:
    """What the gains multiply (nu,): activations and controls, wrapped where they are angles."""
    p = m.plan.actuation
    x = torch.cat([ctrl, current_activation(m, d, act_dot)])[p.input_source] if m.na else ctrl
    wraps = m.plan.transmission.wraps
    if wraps.some:
        period = wrap_period(m)
        x = torch.where(wraps.mask & (period > 0), wrap(x, d.actuator_length, period), x)
    return x


def wrap_period(m: Model) -> Tensor:
    """Length (nu,) of a full turn for position servos, 0 for others; means something for actuators in `wraps` only.

    A servo is known by `kp = gainprm[0] = -biasprm[1]` (computation/index.rst, "Rotational setpoints").
    Between sites it must not have a part that shifts.
    """
    servo = m.actuator_gainprm[:, 0] == -m.actuator_biasprm[:, 1]
    p = m.plan.transmission
    turn = 2 * math.pi * norm(m.actuator_gear.flatten()[p.turn])
    if p.shift.some:
        servo = servo & ~(p.shift.mask & (m.actuator_gear[:, :3] != 0).any(-1))
    return torch.where(servo, turn, torch.zeros_like(turn))


def wrap(setpoint: Tensor, length: Tensor, period: Tensor) -> Tensor:
    """The representative (n,) of `setpoint`, known up to whole periods, that is nearest to `length`."""
    period = torch.where(period > 0, period, 1.0)
    turns = (setpoint - length) / period
    return setpoint - period * (turns + 0.5 * turns.sign()).trunc()


def gain(m: Model, d: Data) -> Tensor:
    """Gains (nu,): fixed, affine in length and velocity, or a muscle's."""
    p, prm = m.plan.actuation, m.actuator_gainprm
    total = prm[:, 0]
    if p.gain_affine.some:
        slope = prm[:, 1] * d.actuator_length + prm[:, 2] * d.actuator_velocity
        total = select(p.gain_affine, total + slope, total)
    if p.muscle_gain.shape[0]:
        total = torch.cat([total, muscle.gain(*_muscle_state(m, d, p.muscle_gain), prm[p.muscle_gain])])[p.gain_source]
    return total


def bias(m: Model, d: Data) -> Tensor:
    """Bias forces (nu,): none, affine in length and velocity, or a muscle's passive force."""
    p, prm = m.plan.actuation, m.actuator_biasprm
    total = torch.zeros_like(d.actuator_length)
    if p.bias_affine.some:
        affine = prm[:, 0] + prm[:, 1] * d.actuator_length + prm[:, 2] * d.actuator_velocity
        total = select(p.bias_affine, affine, total)
    if p.muscle_bias.shape[0]:
        length, _, lengthrange, acc0 = _muscle_state(m, d, p.muscle_bias)
        passive = muscle.bias(length, lengthrange, acc0, prm[p.muscle_bias])
        total = torch.cat([total, passive])[p.bias_source]
    return total


def gain_velocity(m: Model, d: Data) -> Tensor:
    """Derivative (nu,) of `gain` by the actuators' own velocities."""
    p, prm = m.plan.actuation, m.actuator_gainprm
    total = select(p.gain_affine, prm[:, 2], torch.zeros_like(prm[:, 2]))
    if p.muscle_gain.shape[0]:
        slope = muscle.gain_velocity(*_muscle_state(m, d, p.muscle_gain), prm[p.muscle_gain])
        total = torch.cat([total, slope])[p.gain_source]
    return total


def _muscle_state(m: Model, d: Data, actuator: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Length, velocity, length range and acc0 of some actuators."""
    length, velocity = d.actuator_length[actuator], d.actuator_velocity[actuator]
    return length, velocity, m.actuator_lengthrange[actuator], m.actuator_acc0[actuator]


def tendon_share(m: Model, force: Tensor) -> Tensor:
    """What is left (nu,) of each actuator's force (nu,): all actuators on a tendon give way alike (mj_fwdActuation).

    The factor brings the total force on a tendon with force limits into `tendon_actfrcrange`; 1 for other actuators.
    """
    p = m.plan.actuation
    total = p.ten_share @ force
    idle = (total == 0) | ~p.ten_actfrclimited.mask
    low, high = m.tendon_actfrcrange[p.ten_pulled].unbind(-1)
    return torch.where(idle, 1.0, total.clamp(low, high) / torch.where(idle, 1.0, total))


def joint_force(m: Model, d: Data, force: Tensor) -> Tensor:
    """qfrc_actuator (nv,) of actuator forces (nu,), with gravity compensation where a joint's actuators provide it."""
    p = m.plan.actuation
    qfrc = force @ d.actuator_moment
    if p.actgravcomp.some and not m.opt.disabled(DisableBit.GRAVITY):
        qfrc = select(p.actgravcomp, qfrc + d.qfrc_gravcomp, qfrc)
    if p.actfrclimited.some:
        qfrc = clamp(qfrc, m.jnt_actfrcrange[p.dof_joint], p.actfrclimited)
    return qfrc
