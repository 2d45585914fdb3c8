"""PID controllers that are MuJoCo's plugin `mujoco.pid`.

`force = kp e + ki I + kd de/dt`, with `e` the setpoint less the length of the actuator. The setpoint is the control, or
an activation that follows it, and changes no faster than the plugin allows; `I` is the integral of e at the end of the
time step, within limits. Activations hold what I and the setpoint were.
"""

import torch
from torch import Tensor

from mjtorch.model import Data, Model
from mjtorch.model.plan.pid import PidPlan
from mjtorch.smooth.servo import inputs


def setpoint(m: Model, d: Data, p: PidPlan, act: Tensor) -> Tensor:
    """What the controllers (n,) steer for; act: (na,) the activations that stand for controls."""
    u = d.ctrl[p.control]
    if p.limited.some:
        low, high = m.actuator_ctrlrange[p.control].unbind(-1)
        u = torch.where(p.limited.mask, torch.clamp(u, low, high), u)
    if p.filtered.some:
        u = torch.where(p.filtered.mask, inputs(act)[p.last], u)
    if not p.slews.some:
        return u
    most, before = p.slewmax * m.opt.timestep, inputs(d.act)[p.slewed]
    # At the beginning there is nothing that it could follow.
    slow = p.slews.mask & (d.time > 0)
    return torch.where(slow, torch.clamp(u, before - most, before + most), u)


def integral(m: Model, d: Data, p: PidPlan, target: Tensor) -> Tensor:
    """Integrals (n,) of the errors, at the end of the time step."""
    total = inputs(d.act)[p.integral] + (target - d.actuator_length[p.out]) * m.opt.timestep
    return torch.clamp(total, -p.imax, p.imax)


def with_rates(m: Model, d: Data, p: PidPlan, act_dot: Tensor) -> Tensor:
    """Rates (na,), those of integrals and setpoints such that a time step takes them to where they are then."""
    target = setpoint(m, d, p, d.act)
    after = torch.cat([integral(m, d, p, target), target])
    before = inputs(d.act)[torch.cat([p.integral, p.slewed])]
    return torch.cat([act_dot, (after - before) / m.opt.timestep])[p.source]


def with_forces(m: Model, d: Data, p: PidPlan, force: Tensor, act: Tensor, act_dot: Tensor) -> Tensor:
    """Forces (nout,), with those of the controllers; act: (na,) the activations that forces are made of."""
    target = setpoint(m, d, p, act)
    kp, ki, kd = p.gains.unbind(-1)
    rate = inputs(act_dot)[p.last] - d.actuator_velocity[p.out]
    mine = kp * (target - d.actuator_length[p.out]) + kd * rate
    mine = mine + torch.where(ki != 0, ki * integral(m, d, p, target), 0.0)
    return force.index_copy(0, p.out, mine)
