"""Actuators: activation dynamics, forces, clamping (mj_fwdActuation, mj_nextActivation)."""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Data, DisableBit, Model
from mjtorch.model.plan.actuation import Actuators
from mjtorch.model.plan.tensors import Subset
from mjtorch.model.sleeping import any_awake
from mjtorch.smooth import motor, muscle, pid, servo
from mjtorch.smooth.history import delayed_controls
from mjtorch.smooth.transmission import output_force

# mjMAXVAL: a larger control counts as bad.
MAX_VALUE = 1e10
BADCTRL = 6  # mjtWarning


def fwd_actuation(m: Model, d: Data) -> Data:
    """Forces of the actuators and rates of their activations (mj_fwdActuation).

    Sets act_dot, actuator_force, qfrc_actuator, and counts `mjWARN_BADCTRL`. `force = gain * input + bias`, where the
    input is the activation of a stateful actuator and the clamped control of another; `mjtorch.smooth.servo` and
    `mjtorch.smooth.motor` have the forces of those that are controlled otherwise. On trees that sleep actuators have no
    force, and activations the rates that they fell asleep with.
    """
    if not m.nout or m.opt.disabled(DisableBit.ACTUATION):
        zeros = {name: torch.zeros_like(getattr(d, name)) for name in ("act_dot", "actuator_force", "qfrc_actuator")}
        return d.replace(**zeros)
    ctrl, bad = controls(m, d)
    ctrl, slew = servo.slewed_controls(m, d, ctrl)
    act_dot = activation_rate(m, d, ctrl, slew)
    for plugin in m.plan.pid:
        act_dot = pid.with_rates(m, d, plugin, act_dot)
    for p in m.plan.sleep:
        act_dot = torch.where(any_awake(m, d, p.act), act_dot, d.act_dot)
    d = d.replace(act_dot=act_dot)
    force = limited(m, d, actuator_force(m, d, ctrl, act_dot), act_dot)
    for p in m.plan.sleep:
        force = torch.where(any_awake(m, d, p.out), force, 0.0)
    mine = torch.arange(d.warning.shape[0], device=d.warning.device) == BADCTRL
    return d.replace(
        actuator_force=force,
        qfrc_actuator=joint_force(m, d, force),
        warning=d.warning + (bad & mine),
    )


def actuator_force(m: Model, d: Data, ctrl: Tensor, act_dot: Tensor) -> Tensor:
    """Forces (nout,) before limits; those of disabled actuators are zero, but for plugins."""
    p = m.plan.actuation
    gains = gain(m, d)
    force = gains * force_input(m, d, ctrl, act_dot) + bias(m, d)
    special, s, motors = [], m.plan.servo, m.plan.motor
    if not p.plain:
        act = current_activation(m, d, act_dot)
        if s.is_pid.some:
            special.append(servo.pid_force(m, d, ctrl, act))
        if motors.out.shape[0] and motors.whole:
            special.append(motor.torque(m, d, ctrl, act))
        elif motors.out.shape[0]:
            special.append(motor.mixed_torque(m, d, ctrl, act, gains, force))
        if s.is_turner.some:
            special.append(servo.turning_force(m, d, ctrl, act).flatten())
        force = torch.cat([force, *special])[p.force_source]
    if m.opt.disableactuator:
        force = torch.where(disabled_actuators(m), torch.zeros_like(force), force)
    # C does not disable plugins.
    for plugin in m.plan.pid:
        force = pid.with_forces(m, d, plugin, force, current_activation(m, d, act_dot), act_dot)
    return force


def limited(m: Model, d: Data, force: Tensor, act_dot: Tensor) -> Tensor:
    """`force` (nout,) within the limits of tendons and actuators, and what DC motors add that knows no limits."""
    p = m.plan.actuation
    if p.ten_actfrclimited.some:
        force = force * tendon_share(m, force)
    if p.forcelimited.some:
        force = clamp(force, servo.per_output(m, m.actuator_forcerange), p.forcelimited)
    turners, motors = m.plan.servo, m.plan.motor.out
    if turners.turner_limited.some:
        force = force.index_copy(0, turners.turner_out.flatten(), servo.limited_torque(m, force).flatten())
    if motors.shape[0]:
        more = torch.zeros_like(force).index_copy(0, motors, motor.friction(m, d, act_dot))
        force = force + (torch.where(disabled_actuators(m), 0.0, more) if m.opt.disableactuator else more)
    return force


def clamp(x: Tensor, limits: Tensor, limited: Subset) -> Tensor:
    """`x (n,)` within `limits (n, 2)` where `limited`."""
    return select(limited, torch.clamp(x, limits[:, 0], limits[:, 1]), x)


def select(which: Subset, inside: Tensor, outside: Tensor) -> Tensor:
    """`inside (n,)` for the elements in the subset, `outside (n,)` for the others."""
    if which.every:
        return inside
    return torch.where(which.mask, inside, outside) if which.some else outside


def disabled_actuators(m: Model) -> Tensor:
    """(nout,) bool: outputs of actuators whose group is switched off by `opt.disableactuator` (mj_actuatorDisabled)."""
    flags = torch.full_like(m.plan.actuation.group, m.opt.disableactuator & 0x7FFFFFFF)
    return ((flags >> m.plan.actuation.group) & 1).bool()


def controls(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """Controls (nu,) within their ranges, all zero if any is NaN or huge, and whether that is so () bool."""
    p, ctrl = m.plan.actuation, delayed_controls(m, d) if m.plan.history.controls.delayed.some else d.ctrl
    if p.ctrllimited.some and not m.opt.disabled(DisableBit.CLAMPCTRL):
        ctrl = clamp(ctrl, m.actuator_ctrlrange, p.ctrllimited)
    bad = ~(ctrl.abs() <= MAX_VALUE).all()
    return torch.where(bad, torch.zeros_like(ctrl), ctrl), bad


def activation_rate(m: Model, d: Data, ctrl: Tensor, slew: Tensor) -> Tensor:
    """act_dot (na,): the control, the filtered difference `(ctrl - act) / tau`, or a muscle's excitation dynamics.

    Of a control that is an angle what is filtered is the representative nearest to the activation, as in C from 4.0 on.
    Rates of servos and DC motors are from their own files; slew: (k,) from `slewed_controls`.
    """
    p = m.plan.actuation
    if not m.na:
        return d.act
    u, prm = (ctrl if p.plain else servo.inputs(ctrl))[p.act_control], m.actuator_dynprm[p.act_actuator]
    rate = u
    if p.filters.some:
        near = servo.wrapped(m, u, d.act, p.act_output) if p.act_wraps.some else u
        rate = select(p.filters, (near - d.act) / prm[:, 0].clamp(min=MIN_VALUE), u)
    parts = [rate]
    if p.muscle_act.shape[0]:
        k = p.muscle_act
        parts.append(muscle.activation_rate(u[k], d.act[k], prm[k]))
    if m.plan.servo.slew_act.shape[0]:
        parts.append(slew)
    if m.plan.servo.integral_act.shape[0]:
        parts.append(servo.integral_rate(m, d, ctrl))
    parts += [users(m, d, "act_dyn", which, torch.zeros_like(u[which.act])) for which in p.user_dyn]
    if p.motor_states:
        parts.append(motor.state_rates(m, d, ctrl))
    return torch.cat(parts)[p.act_source] if len(parts) > 1 else rate


def next_activation(m: Model, d: Data, act_dot: Tensor) -> Tensor:
    """Activations (na,) after one time step with rates `act_dot` (na,), within their ranges (mj_nextActivation).

    Exact filters and currents follow `tau (1 - exp(-h / tau))`, the others Euler's rule, bristles of DC motors neither.
    """
    p, h = m.plan.actuation, m.opt.timestep
    span = h
    if p.exact.some:
        tau = m.actuator_dynprm[p.act_actuator, 0].clamp(min=MIN_VALUE)
        span = select(p.exact, -tau * torch.expm1(-h / tau), h)
    act = within_range(m, d.act + act_dot * span)
    return motor.next_states(m, d, act) if p.motor_states or m.plan.motor.integral_act.shape[0] else act


def within_range(m: Model, act: Tensor) -> Tensor:
    """Activations (na,) within `actuator_actrange`, where there is one."""
    p = m.plan.actuation
    return clamp(act, m.actuator_actrange[p.act_actuator], p.actlimited) if p.actlimited.some else act


def current_activation(m: Model, d: Data, act_dot: Tensor) -> Tensor:
    """Activations (na,) that forces are made of: the next ones for `actearly` actuators."""
    early = m.plan.actuation.early
    return select(early, next_activation(m, d, act_dot), d.act) if early.some else d.act


def force_input(m: Model, d: Data, ctrl: Tensor, act_dot: Tensor) -> Tensor:
    """What the gains multiply (nout,): activations and controls, wrapped where they are angles."""
    p = m.plan.actuation
    x = torch.cat([ctrl, current_activation(m, d, act_dot)]) if m.na else ctrl
    if m.na or not p.plain:
        x = (x if p.plain else servo.inputs(x))[p.input_source]
    wraps = m.plan.transmission.wraps
    if wraps.some:
        period = servo.wrap_period(m)
        x = torch.where(wraps.mask & (period > 0), servo.wrap(x, d.actuator_length, period), x)
    return x


def gain(m: Model, d: Data) -> Tensor:
    """Gains (nout,): fixed, affine in length and velocity, a muscle's, or what a callback says."""
    p, prm = m.plan.actuation, servo.per_output(m, m.actuator_gainprm)
    total = prm[:, 0]
    if p.gain_affine.some:
        slope = prm[:, 1] * d.actuator_length + prm[:, 2] * d.actuator_velocity
        total = select(p.gain_affine, total + slope, total)
    parts = [total]
    if p.muscle_gain.shape[0]:
        parts.append(muscle.gain(*_muscle_state(m, d, p.muscle_gain), prm[p.muscle_gain]))
    parts += [users(m, d, "act_gain", which, torch.ones_like(total[which.out])) for which in p.user_gain]
    return torch.cat(parts)[p.gain_source] if len(parts) > 1 else total


def bias(m: Model, d: Data) -> Tensor:
    """Bias forces (nout,): none, affine in length and velocity, a muscle's passive force, or what a callback says."""
    p, prm = m.plan.actuation, servo.per_output(m, m.actuator_biasprm)
    total = torch.zeros_like(d.actuator_length)
    if p.bias_affine.some:
        affine = prm[:, 0] + prm[:, 1] * d.actuator_length + prm[:, 2] * d.actuator_velocity
        total = select(p.bias_affine, affine, total)
    parts = [total]
    if p.muscle_bias.shape[0]:
        length, _, lengthrange, acc0 = _muscle_state(m, d, p.muscle_bias)
        parts.append(muscle.bias(length, lengthrange, acc0, prm[p.muscle_bias]))
    parts += [users(m, d, "act_bias", which, torch.zeros_like(total[which.out])) for which in p.user_bias]
    return torch.cat(parts)[p.bias_source] if len(parts) > 1 else total


def users(m: Model, d: Data, name: str, actuators: Actuators, otherwise: Tensor) -> Tensor:
    """What the callback `name` says of some actuators, of the shape of `otherwise`, which is taken if there is none."""
    if not m.callbacks.has(name):
        return otherwise
    return m.callbacks.tensor(name, otherwise.shape, otherwise, m, d, actuators)


def gain_velocity(m: Model, d: Data) -> Tensor:
    """Derivative (nout,) of `gain` by the actuators' own velocities."""
    return _gain_slope(m, d, 2, muscle.gain_velocity)


def gain_length(m: Model, d: Data) -> Tensor:
    """Derivative (nout,) of `gain` by the actuators' own lengths."""
    return _gain_slope(m, d, 1, muscle.gain_length)


def _gain_slope(m: Model, d: Data, column: int, of_muscles: Callable[..., Tensor]) -> Tensor:
    """A derivative (nout,) of `gain`: of affine ones a column of parameters, of muscles what `of_muscles` says."""
    p, prm = m.plan.actuation, servo.per_output(m, m.actuator_gainprm)
    total = select(p.gain_affine, prm[:, column], torch.zeros_like(prm[:, column]))
    if p.muscle_gain.shape[0]:
        slope = of_muscles(*_muscle_state(m, d, p.muscle_gain), prm[p.muscle_gain])
        nothing = [slope.new_zeros(len(which.id)) for which in p.user_gain]
        total = torch.cat([total, slope, *nothing])[p.gain_source]
    return total


def bias_length(m: Model, d: Data) -> Tensor:
    """Derivative (k,) of the passive forces of muscles by their lengths."""
    k = m.plan.actuation.muscle_bias
    length, _, lengthrange, acc0 = _muscle_state(m, d, k)
    return muscle.bias_length(length, lengthrange, acc0, servo.per_output(m, m.actuator_biasprm)[k])


def _muscle_state(m: Model, d: Data, actuator: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Length, velocity, length range and acc0 of some actuators."""
    length, velocity = d.actuator_length[actuator], d.actuator_velocity[actuator]
    return length, velocity, m.actuator_lengthrange[actuator], m.actuator_acc0[actuator]


def tendon_share(m: Model, force: Tensor) -> Tensor:
    """What is left (nout,) of each force (nout,): all actuators on a tendon give way alike (mj_fwdActuation).

    The factor brings the total force on a tendon with force limits into `tendon_actfrcrange`; 1 for other actuators.
    """
    p = m.plan.actuation
    total = p.ten_share @ force
    idle = (total == 0) | ~p.ten_actfrclimited.mask
    low, high = m.tendon_actfrcrange[p.ten_pulled].unbind(-1)
    return torch.where(idle, 1.0, total.clamp(low, high) / torch.where(idle, 1.0, total))


def joint_force(m: Model, d: Data, force: Tensor) -> Tensor:
    """qfrc_actuator (nv,) of forces (nout,), with gravity compensation where a joint's actuators provide it."""
    p = m.plan.actuation
    qfrc = output_force(m, d, force)
    if p.actgravcomp.some and not m.opt.disabled(DisableBit.GRAVITY):
        qfrc = select(p.actgravcomp, qfrc + d.qfrc_gravcomp, qfrc)
    if p.actfrclimited.some:
        qfrc = clamp(qfrc, m.jnt_actfrcrange[p.dof_joint], p.actfrclimited)
    return qfrc
