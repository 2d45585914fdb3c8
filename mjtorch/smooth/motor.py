"""DC motors: electrical, thermal and friction states, torque (XMLreference, "dcmotor").

Parameters, as the compiler lays them out: `gainprm` R, K, temperature coefficient and reference, kp, ki, kd, Vmax;
`biasprm` cogging amplitude, poles and phase, Coulomb and static friction, Stribeck velocity; `dynprm` electrical time
constant, current rate, thermal resistance, capacitance and ambient temperature, stiffness and damping of the bristles,
slew rate, limit of the integral.
"""

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Data, Model
from mjtorch.smooth.servo import inputs


def _parameters(m: Model) -> tuple[Tensor, Tensor, Tensor]:
    """gainprm, biasprm, dynprm (n, 10) of the motors."""
    a = m.plan.motor.actuator
    return m.actuator_gainprm[a], m.actuator_biasprm[a], m.actuator_dynprm[a]


def _positive(x: Tensor) -> Tensor:
    return x.clamp(min=MIN_VALUE)


def states(m: Model, act: Tensor) -> tuple[Tensor, ...]:
    """Slew, integral, temperature, bristle deflection and current (n,) in activations; 0 where there is none."""
    return inputs(act)[m.plan.motor.state].unbind(-1)


def warm_resistance(m: Model, d: Data) -> Tensor:
    """Resistance (n,) [Ohm] at the present temperature."""
    gain, _, dyn = _parameters(m)
    _, _, rise, _, _ = states(m, d.act)
    warm = gain[:, 0] * (1 + gain[:, 2] * (rise + dyn[:, 4] - gain[:, 3]))
    return torch.where(m.plan.motor.thermal.mask, warm, gain[:, 0])


def voltage(m: Model, d: Data, ctrl: Tensor) -> Tensor:
    """Terminal voltage (n,) [V]: that of the controller, within `Vmax`, and the raw one."""
    p = m.plan.motor
    raw = inputs(ctrl)[p.inputs[:, 3]]
    if not p.controlled.some:
        return raw
    most, drive = m.actuator_gainprm[p.actuator, 7], drive_voltage(m, d, ctrl)
    drive = torch.where(most > 0, torch.clamp(drive, -most, most), drive)
    return raw + torch.where(p.controlled.mask, drive, 0.0)


def drive_voltage(m: Model, d: Data, ctrl: Tensor) -> Tensor:
    """Voltage (n,) [V] that the controllers want.

    They want the torque `kp (u_pos - l) + kd (u_vel - v) + ki x_I + u_ff`, and make up for the back-EMF.
    """
    p = m.plan.motor
    gain, _, _ = _parameters(m)
    position, speed, torque, _ = inputs(ctrl)[p.inputs].unbind(-1)
    length, velocity = d.actuator_length[p.out], d.actuator_velocity[p.out]
    _, integral, _, _, _ = states(m, d.act)
    torque = torque + gain[:, 4] * (position - length) + gain[:, 6] * (speed - velocity)
    torque = torque + gain[:, 5].clamp(min=0) * integral
    return gain[:, 0] / _positive(gain[:, 1]) * torque + gain[:, 1] * velocity


def controls_freely(m: Model, d: Data, ctrl: Tensor) -> Tensor:
    """(n,) bool: has a controller whose voltage is not at its limit."""
    p, most = m.plan.motor, m.actuator_gainprm[m.plan.motor.actuator, 7]
    return p.controlled.mask & ((most <= 0) | (drive_voltage(m, d, ctrl).abs() < most))


def state_rates(m: Model, d: Data, ctrl: Tensor) -> Tensor:
    """Rates (3 n,) of temperatures, bristle deflections and currents; of no meaning where there are none.

    Heat: `C dT/dt = R i^2 - T / R_thermal`. Bristles: `dz/dt = v - sigma0 |v| z / g(v)`. Current: `te di/dt = (V - K v)
    / R - i`, within the limit on its rate.
    """
    p = m.plan.motor
    gain, _, dyn = _parameters(m)
    velocity, R = d.actuator_velocity[p.out], warm_resistance(m, d)
    _, _, rise, bristle, current = states(m, d.act)
    settled = (voltage(m, d, ctrl) - gain[:, 1] * velocity) / R
    flows = torch.where(p.inductive.mask, current, settled)
    heating = (R * flows * flows - rise / _positive(dyn[:, 2])) / _positive(dyn[:, 3])
    bending = velocity - decay(m, d) * bristle
    change, most = (settled - current) / _positive(dyn[:, 0]), dyn[:, 1]
    change = torch.where(most > 0, torch.clamp(change, -most, most), change)
    return torch.cat([heating, bending, change])


def decay(m: Model, d: Data) -> Tensor:
    """Rate (n,) [1/s] at which bristles give way, `sigma0 |v| / g(v)`, with Stribeck's curve g."""
    _, bias, dyn = _parameters(m)
    velocity = d.actuator_velocity[m.plan.motor.out]
    ratio = velocity / _positive(bias[:, 5])
    stribeck = bias[:, 3] + (bias[:, 4] - bias[:, 3]) * torch.exp(-ratio * ratio)
    return dyn[:, 5] * velocity.abs() / _positive(stribeck)


def next_states(m: Model, d: Data, act: Tensor) -> Tensor:
    """Activations (na,) after a time step: integrals in `act` (na,) are kept within limits, bristles solved exactly."""
    p, h = m.plan.motor, m.opt.timestep
    parts, dyn = [act], m.actuator_dynprm[p.actuator]
    if p.integral_act.shape[0]:
        most, integral = dyn[p.integral_motor, 8], act[p.integral_act]
        # Where an integral is kept at its limit, its derivative is that of the limit.
        within = torch.where(integral >= most, most, torch.where(integral <= -most, -most, integral))
        parts.append(torch.where(most > 0, within, integral))
    if p.bristle_act.shape[0]:
        rate = decay(m, d)[p.bristle_motor]
        moves = rate > MIN_VALUE
        reach = torch.where(moves, -torch.expm1(-rate * h) / torch.where(moves, rate, 1.0), h)
        velocity = d.actuator_velocity[p.out[p.bristle_motor]]
        parts.append(torch.exp(-rate * h) * d.act[p.bristle_act] + reach * velocity)
    return torch.cat(parts)[p.next_source] if len(parts) > 1 else act


def torque(m: Model, d: Data, ctrl: Tensor, act: Tensor) -> Tensor:
    """Electrical torques (n,) [N m]: `K i` with the current of `act` (na,), or `K (V - K v) / R` without that state."""
    p = m.plan.motor
    gain, _, _ = _parameters(m)
    K = gain[:, 1]
    settled = (voltage(m, d, ctrl) - K * d.actuator_velocity[p.out]) / _positive(warm_resistance(m, d))
    _, _, _, _, current = states(m, act)
    return K * torch.where(p.inductive.mask, current, settled)


def mixed_torque(m: Model, d: Data, ctrl: Tensor, act: Tensor, gain: Tensor, force: Tensor) -> Tensor:
    """Torques (n,) of actuators that are DC motors in part, before what knows no limits.

    gain, force: (nout,) gains of the other kinds, and what is due to these and to biases of other kinds. The back-EMF
    is `gain K v` whatever the gain, in motors without the state of a current.
    """
    p = m.plan.motor
    K, inductive = m.actuator_gainprm[p.actuator, 1], p.inductive.mask
    conducts = K / _positive(warm_resistance(m, d))
    _, _, _, _, current = states(m, act)
    driven = torch.where(p.drives.mask, torch.where(inductive, K * current, conducts * voltage(m, d, ctrl)), 0.0)
    back = torch.where(p.drives.mask, conducts, gain[p.out]) * K * d.actuator_velocity[p.out]
    return force[p.out] + driven - torch.where(p.resists.mask & ~inductive, back, 0.0)


def back_torque(m: Model, d: Data) -> Tensor:
    """Torques (n,) [N m] of the back-EMF alone, `-K^2 v / R`."""
    p = m.plan.motor
    K = m.actuator_gainprm[p.actuator, 1]
    return -K * K * d.actuator_velocity[p.out] / _positive(warm_resistance(m, d))


def friction(m: Model, d: Data, act_dot: Tensor) -> Tensor:
    """Mechanical torques (n,) [N m], not subject to limits: cogging, and `-(sigma0 z + sigma1 dz/dt)` of bristles."""
    p = m.plan.motor
    _, bias, dyn = _parameters(m)
    _, _, _, bristle, _ = states(m, d.act)
    _, _, _, bending, _ = states(m, act_dot)
    cogging = bias[:, 0] * torch.sin(bias[:, 1] * d.actuator_length[p.out] + bias[:, 2])
    held = dyn[:, 5] * bristle + dyn[:, 6] * bending
    total = cogging - torch.where(p.bristled.mask, held, 0.0)
    return total if p.whole else torch.where(p.resists.mask, total, 0.0)


def length_slope(m: Model, d: Data, ctrl: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives (n,) of the electrical torque, of a controller with voltage to spare, and of cogging by length."""
    p = m.plan.motor
    gain, bias, dyn = _parameters(m)
    R, K, time, most = gain[:, 0], gain[:, 1], dyn[:, 0], dyn[:, 1]
    drive = torch.where(controls_freely(m, d, ctrl), -gain[:, 4] * R / _positive(K), 0.0)
    share = torch.where(time > 0, -torch.expm1(-m.opt.timestep / _positive(time)), 1.0)
    _, _, _, _, change = states(m, d.act_dot)
    held = (most > 0) & p.inductive.mask & (change.abs() >= most)
    cogging = bias[:, 0] * bias[:, 1] * torch.cos(bias[:, 1] * d.actuator_length[p.out] + bias[:, 2])
    if not p.whole:
        drive, cogging = torch.where(p.follows.mask, drive, 0.0), torch.where(p.resists.mask, cogging, 0.0)
    return torch.where(held, 0.0, K * drive * share / _positive(warm_resistance(m, d))), cogging


def velocity_slope(m: Model, d: Data, ctrl: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives (n,) of the electrical and the mechanical torque by velocity (mjd_actuator_vel).

    A voltage or a rate of the current that is at its limit does not change; bristles keep their stiffness. MuJoCo
    before 4.0 forgets about these limits.
    """
    p = m.plan.motor
    gain, _, dyn = _parameters(m)
    R, K, time, most = gain[:, 0], gain[:, 1], dyn[:, 0], dyn[:, 1]
    refined = m.plan.integration.drops_saturated
    free = controls_freely(m, d, ctrl) if refined else p.controlled.mask
    drive = torch.where(free, K - gain[:, 6] * R / _positive(K), 0.0)
    share = torch.where(time > 0, -torch.expm1(-m.opt.timestep / _positive(time)), 1.0)
    back = K
    if not p.whole:
        drive = torch.where(p.follows.mask, drive, 0.0)
        back = torch.where(torch.where(p.inductive.mask, p.follows.mask, p.resists.mask), K, 0.0)
    slope = K * (drive - back) * share / _positive(warm_resistance(m, d))
    mechanical = torch.where(p.drives.mask, -dyn[:, 6].clamp(min=0), 0.0)
    if not refined:
        return slope, mechanical
    _, _, _, _, change = states(m, d.act_dot)
    held = (most > 0) & p.inductive.mask & (change.abs() >= most)
    return torch.where(held, 0.0, slope), mechanical
