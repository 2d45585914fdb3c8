"""The table of contents of the physics: `step` and `forward` read like mj_step and mj_forward."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mjtorch.collision import collision
from mjtorch.compiler import stage, static_arguments
from mjtorch.constraint import (
    force_from_distance,
    implicit_rows,
    inv_constraint,
    make_constraint,
    reference_constraint,
    solve,
)
from mjtorch.constraint.sleep import collision_and_wake, wake, wake_equality, wake_tendon
from mjtorch.control_flow import cond
from mjtorch.control_flow.layout import like_new
from mjtorch.flex import flex, flex_velocity
from mjtorch.integrate import advance, continuous_acc, euler, idle, implicit, rungekutta4
from mjtorch.ipc import free_flight, solve_ipc
from mjtorch.math.value import value_of
from mjtorch.math.vector import norm
from mjtorch.model import Data, DisableBit, EnableBit, Integrator, Model
from mjtorch.model.callbacks import CONTROLLED, checked
from mjtorch.model.check import check_data
from mjtorch.model.sleeping import awake
from mjtorch.model.slim import STATE, checked_names, keep
from mjtorch.sensor import sensor_acc, sensor_pos, sensor_vel
from mjtorch.smooth.actuation import fwd_actuation
from mjtorch.smooth.camlight import camlight
from mjtorch.smooth.com import com_pos, com_vel
from mjtorch.smooth.energy import energy_pos, energy_vel
from mjtorch.smooth.inertia import crb, factor_m, mul_m, solve_m
from mjtorch.smooth.jacobian import xfrc_accumulate
from mjtorch.smooth.kinematics import kinematics
from mjtorch.smooth.metric import Metric, effective_inertia
from mjtorch.smooth.passive import passive
from mjtorch.smooth.rne import rne
from mjtorch.smooth.tendon import tendon
from mjtorch.smooth.transmission import output_velocity, transmission
from mjtorch.substep import substepped

# mjMAXVAL: a larger number in the state counts as diverged.
MAX_VALUE = 1e10
# mjtWarning
BADQPOS, BADQVEL, BADQACC = 3, 4, 5


@static_arguments("outputs")
@stage
def step(m: Model, d: Data, *, outputs: str | Sequence[str] | None = None) -> Data:
    """One time step: forward dynamics, then the integrator that `m.opt` names, or `Substeps` (mj_step).

    As in C, what the result knows besides the state belongs to the beginning of the step. A world whose state is not
    finite is counted in `d.warning` and goes on; C's automatic reset is not done.

    Args:
        m: the model.
        d: state and inputs; all else in it is computed anew.
        outputs: fields of the result to update, such as ("sensordata", "contact.dist"); "state" or () for the state
            alone, which is always updated: time, qpos, qvel, act, qacc_warmstart, warning. All other fields are those
            of `d`, out of date; compiled, they are not even written. Not given: all fields are updated.

    Raises:
        TypeError, ValueError: `d` does not fit `m`, or `outputs` names what is no field.
    """
    check_data(m, d, "step")
    if outputs is not None:
        names = checked_names(outputs, "step")
        return keep(step(m, d), d, (*STATE, *names)) if not m.plan.sleep else sleeping_step(m, d, names)
    d = count_bad(d, BADQPOS, d.qpos)
    d = count_bad(d, BADQVEL, d.qvel)
    d = dynamics_and_sensors(m, d)
    d = count_bad(d, BADQACC, d.qacc)
    if m.opt.enabled(EnableBit.FWDINV):
        d = compare_fwd_inv(m, d)
    return like_new(integrated(m, d))


def sleeping_step(m: Model, d: Data, names: Sequence[str]) -> Data:
    """`step` that updates the state and the fields `names`; cheap while all trees sleep, if the state is all.

    What is not computed again on trees that sleep is updated, too.
    """
    kept = dict.fromkeys((*STATE, "sensordata", "act_dot", *names))
    if not m.plan.sleep[0].idles or not {*names} <= {*STATE}:
        return keep(step(m, d), d, [*kept])
    after = wake(m, d)
    stirs = (wake_equality(m, after).tree_asleep < 0).any()
    return cond(stirs, lambda: keep(step(m, after), d, [*kept]), lambda: idle(m, d))


def integrated(m: Model, d: Data) -> Data:
    """The state a time step later than `d`, in which the accelerations are known."""
    if m.settings.substeps:
        return substepped(m, d, dynamics)
    match m.opt.integrator:
        case Integrator.RK4:
            return rungekutta4(m, d, dynamics)
        case Integrator.IMPLICIT | Integrator.IMPLICITFAST:
            return implicit(m, d)
        case Integrator.DISCRETE:
            if m.plan.ipc:
                d = sensor_acc(m, solve_ipc(m, d))
            after = advance(m, d, d.qacc, again=dynamics_of_velocity)
            # As in C, with that flag each step begins to solve where the first one did.
            return after.replace(qacc_warmstart=d.qacc_warmstart) if m.opt.enabled(EnableBit.IPC) else after
    return euler(m, d)


@stage
def forward(m: Model, d: Data) -> Data:
    """All that follows from the state and the inputs, time standing still (mj_forward).

    Raises:
        TypeError, ValueError: `d` does not fit `m`.
    """
    check_data(m, d, "forward")
    return like_new(dynamics_and_sensors(m, d))


@stage
def inverse(m: Model, d: Data) -> Data:
    """The force that gives the acceleration `d.qacc` in the state of `d` (mj_inverse).

    Sets qfrc_inverse (nv,) [N or N m], the sum of what qfrc_applied, xfrc_applied and actuators would have to give, and
    efc_force, efc_state, qfrc_constraint under that acceleration, the sensors that need accelerations, and all that
    follows from positions and velocities. With the flag invdiscrete, `qacc` is the change of velocity over the time
    step that the integrator makes; sensors measure, as in C, the acceleration that this belongs to.

    Raises:
        TypeError, ValueError: `d` does not fit `m`, invdiscrete is enabled and the integrator is RK4, or there are
            membranes that the flag ipc pushes.
    """
    check_data(m, d, "inverse")
    if m.plan.ipc:
        raise ValueError("inverse: the flag ipc pushes membranes by forces that only a step finds; disable the flag")
    qacc = d.qacc
    d = positions_and_velocities(m, d)
    if m.opt.integrator == Integrator.DISCRETE:
        d = implicit_rows(m, d, effective_inertia(m, d))
    d = inv_acceleration(m, d)
    return like_new(sensor_acc(m, d).replace(qacc=qacc))


def dynamics_and_sensors(m: Model, d: Data) -> Data:
    """`forward`, its results laid out as they come."""
    d = positions_and_velocities(m, d)
    return sensor_acc(m, fwd_forces(m, fwd_actuation(m, controlled(m, d))))


def positions_and_velocities(m: Model, d: Data) -> Data:
    """What follows from positions and velocities, with sensors and energy."""
    energy = m.opt.enabled(EnableBit.ENERGY)
    d = sensor_pos(m, fwd_position(m, d))
    d = energy_pos(m, d) if energy else d.replace(energy=torch.zeros_like(d.energy))
    d = sensor_vel(m, fwd_velocity(m, d))
    return energy_vel(m, d) if energy else d


def dynamics(m: Model, d: Data) -> Data:
    """`forward` without sensors and energy: what an integrator needs within a step (mj_forwardSkip)."""
    return from_velocity(m, fwd_position(m, d))


def from_velocity(m: Model, d: Data) -> Data:
    """`dynamics` where what follows from positions is known."""
    d = fwd_velocity(m, d)
    return fwd_forces(m, fwd_actuation(m, controlled(m, d)))


def dynamics_of_velocity(m: Model, d: Data) -> Data:
    """`from_velocity` once more: with rows as they were made, before the integrator `discrete` changed them."""
    return from_velocity(m, make_constraint(m, d))


def controlled(m: Model, d: Data) -> Data:
    """The inputs that the callback `control` gives; those of `d` without one, or if actuation is disabled."""
    if not m.callbacks.has("control") or m.opt.disabled(DisableBit.ACTUATION):
        return d
    given = m.callbacks.call("control", m, d)
    if not isinstance(given, dict):
        return d.replace(ctrl=checked("control", "", given, (m.nu,), d.qpos))
    unknown = sorted(given.keys() - set(CONTROLLED))
    if unknown:
        raise ValueError(f"callbacks.control may return {', '.join(CONTROLLED)}, but not {', '.join(unknown)}")
    shapes = {"ctrl": (m.nu,), "qfrc_applied": (m.nv,), "xfrc_applied": (m.nbody, 6)}
    return d.replace(**{k: checked("control", f'["{k}"]', x, shapes[k], d.qpos) for k, x in given.items()})


@stage
def fwd_position(m: Model, d: Data) -> Data:
    """What follows from positions: poses, inertia, contacts, constraint rows, transmissions (mj_fwdPosition)."""
    sleeping = bool(m.plan.sleep)
    d = wake(m, d) if sleeping else d
    d = camlight(m, com_pos(m, kinematics(m, d)))
    d = tendon(m, flex(m, d))
    d = wake_tendon(m, d) if sleeping else d
    d = factor_m(m, crb(m, d))
    d = wake_equality(m, collision_and_wake(m, d)) if sleeping else collision(m, d)
    d = make_constraint(m, d)
    return transmission(m, d)


@stage
def fwd_velocity(m: Model, d: Data) -> Data:
    """What follows from velocities: passive forces, reference accelerations, bias forces (mj_fwdVelocity)."""
    idle = m.opt.disabled(DisableBit.ACTUATION)
    d = d.replace(actuator_velocity=torch.zeros_like(d.actuator_velocity) if idle else output_velocity(m, d))
    if m.ntendon:
        d = d.replace(ten_velocity=d.ten_J @ d.qvel)
    d = passive(m, com_vel(m, flex_velocity(m, d)))
    return rne(m, reference_constraint(m, d))


@stage
def fwd_acceleration(m: Model, d: Data) -> Data:
    """Forces and acceleration without constraints (mj_fwdAcceleration); of trees that sleep they are zero."""
    return free_acceleration(m, d, metric_of(m, d))


@stage
def fwd_constraint(m: Model, d: Data) -> Data:
    """Constraint forces and the acceleration under them (mj_fwdConstraint).

    With the flag ipc and membranes there are none yet: the step finds them.
    """
    return constrained_acceleration(m, d, metric_of(m, d))


@stage
def fwd_forces(m: Model, d: Data) -> Data:
    """`fwd_acceleration`, then `fwd_constraint`, in one effective inertia."""
    metric = metric_of(m, d)
    return constrained_acceleration(m, free_acceleration(m, d, metric), metric)


def metric_of(m: Model, d: Data) -> tuple[Metric, ...]:
    """The effective inertia, if the integrator is `discrete`; nothing that depends on accelerations is part of it."""
    return (effective_inertia(m, d),) if m.opt.integrator == Integrator.DISCRETE else ()


def free_acceleration(m: Model, d: Data, metric: tuple[Metric, ...]) -> Data:
    """`fwd_acceleration`, given what `metric_of` says."""
    qfrc_smooth = d.qfrc_passive - d.qfrc_bias + d.qfrc_applied + d.qfrc_actuator + xfrc_accumulate(m, d)
    if m.settings.distance:
        qfrc_smooth = value_of(qfrc_smooth, qfrc_smooth + force_from_distance(m, d))
    for p in m.plan.sleep:
        qfrc_smooth = torch.where(awake(m, d, p.dof), qfrc_smooth, 0.0)
    for effective in metric:
        return d.replace(qfrc_smooth=qfrc_smooth, qacc_smooth=effective.matrix.solve(qfrc_smooth + effective.shift))
    return d.replace(qfrc_smooth=qfrc_smooth, qacc_smooth=solve_m(m, d, qfrc_smooth))


def constrained_acceleration(m: Model, d: Data, metric: tuple[Metric, ...]) -> Data:
    """`fwd_constraint`, given what `metric_of` says."""
    for effective in metric:
        d = implicit_rows(m, d, effective)
    return free_flight(m, d) if m.plan.ipc else solve(m, d, metric)


def inv_acceleration(m: Model, d: Data) -> Data:
    """Constraint forces and qfrc_inverse under `d.qacc`, which invdiscrete makes an acceleration (mj_inverseSkip)."""
    implicit = m.opt.integrator == Integrator.DISCRETE
    if m.opt.enabled(EnableBit.INVDISCRETE) and not implicit:
        d = d.replace(qacc=continuous_acc(m, d))
    d = inv_constraint(m, d)
    if implicit:
        metric = effective_inertia(m, d)
        force = metric.matrix.times(d.qacc) - metric.shift
    else:
        force = mul_m(m, d, d.qacc)
    return d.replace(qfrc_inverse=force + d.qfrc_bias - d.qfrc_passive - d.qfrc_constraint)


@stage
def compare_fwd_inv(m: Model, d: Data) -> Data:
    """How far inverse dynamics is from the forward dynamics in `d` (mj_compareFwdInv).

    Sets solver_fwdinv (2,) [N or N m]: lengths of the differences in qfrc_constraint, and between the forces applied
    and qfrc_inverse, which is set too. Zero if no constraint is active. The better the solver converged the less.
    """
    found = inv_acceleration(m, d)
    applied = d.qfrc_applied + d.qfrc_actuator + xfrc_accumulate(m, d)
    gaps = torch.stack([d.qfrc_constraint - found.qfrc_constraint, applied - found.qfrc_inverse])
    some = d.nefc > 0
    return d.replace(
        solver_fwdinv=torch.where(some, norm(gaps), 0.0),
        qfrc_inverse=torch.where(some, found.qfrc_inverse, d.qfrc_inverse),
    )


def count_bad(d: Data, warning: int, x: Tensor) -> Data:
    """Count one more `warning` where `x` holds something not finite or above `MAX_VALUE` (mju_isBad)."""
    bad = ~(x.abs() <= MAX_VALUE).all()
    mine = torch.arange(d.warning.shape[0], device=d.warning.device) == warning
    return d.replace(warning=d.warning + (bad & mine))
