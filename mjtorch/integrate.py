"""From accelerations to the next state: Euler, implicit and Runge-Kutta (computation/index.rst, "Integrators")."""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.sleep import fall_asleep
from mjtorch.control_flow import cond, scan
from mjtorch.math import linalg, quaternion as quat
from mjtorch.math.vector import cross, dot
from mjtorch.model import Data, DisableBit, Integrator, Model
from mjtorch.model.arguments import check_numbers
from mjtorch.model.sleeping import awake
from mjtorch.sensor import remembered
from mjtorch.smooth.actuation import disabled_actuators, next_activation
from mjtorch.smooth.derivative import (
    carried_by_dofs,
    coupled_blocks,
    damping_derivative,
    deriv_smooth_vel,
    fluid_matrices,
    free_bias_vel,
    free_mhat,
    has_drag,
    scalar_vel_terms,
    subtree_blocks,
)
from mjtorch.smooth.inertia import factored_solve, factorised, full_m, solve_m, stored_blocks
from mjtorch.smooth.plastic import remembered_shapes
from mjtorch.smooth.servo import anchored, wrapped

# Runge-Kutta tableau: how far each stage goes, and how much the four evaluations count
RK4_REACH = (0.5, 0.5, 1.0)
RK4_WEIGHT = (1 / 6, 1 / 3, 1 / 3, 1 / 6)


def integrate_pos(m: Model, qpos: Tensor, qvel: Tensor, dt: Tensor) -> Tensor:
    """Positions (nq,) after moving from `qpos` (nq,) with the velocity `qvel` (nv,) for `dt` () [s] (mj_integratePos).

    Quaternions turn about body axes and come out normalized.
    """
    check_numbers("integrate_pos", "qpos", qpos, ((m.nq,),), m.qpos0)
    check_numbers("integrate_pos", "qvel", qvel, ((m.nv,),), m.qpos0)
    p = m.plan.integration
    if not p.quat_qpos.shape[0]:
        return qpos + dt * qvel
    linear = qpos[p.linear_qpos] + dt * qvel[p.linear_dof]
    turned = quat.integrate(qpos[p.quat_qpos], qvel[p.quat_dof], dt)
    return torch.cat([linear, turned.flatten()])[p.qpos_source]


def differentiate_pos(m: Model, qpos1: Tensor, qpos2: Tensor, dt: Tensor) -> Tensor:
    """The velocity (nv,) that takes `qpos1` to `qpos2` (nq,) in `dt` () [s] (mj_differentiatePos).

    The inverse of `integrate_pos`; of the ways to turn, the shorter one is taken.
    """
    check_numbers("differentiate_pos", "qpos1", qpos1, ((m.nq,),), m.qpos0)
    check_numbers("differentiate_pos", "qpos2", qpos2, ((m.nq,),), m.qpos0)
    p = m.plan.integration
    if not p.quat_qpos.shape[0]:
        return (qpos2 - qpos1) / dt
    linear = qpos2[p.linear_qpos] - qpos1[p.linear_qpos]
    turned = quat.sub(qpos2[p.quat_qpos], qpos1[p.quat_qpos])
    return torch.cat([linear, turned.flatten()])[p.dof_source] / dt


def advance(
    m: Model,
    d: Data,
    qacc: Tensor,
    *,
    qvel: Tensor | None = None,
    act_dot: Tensor | None = None,
    sensed: Data | None = None,
    begun: Data | None = None,
    again: Callable[[Model, Data], Data] | None = None,
) -> Data:
    """The state one time step later (mj_advance).

    Sets act, qvel, qpos, plastic, history, time, and keeps `d.qacc` in `qacc_warmstart`. With sleeping
    enabled, trees at rest fall asleep here, and what sleeps stays where it is.

    Args:
        m: the model.
        d: what is known at the beginning of the step.
        qacc: (nv,) acceleration that velocities change with.
        qvel: (nv,) velocity that positions change with; not given: the new one (semi-implicit).
        act_dot: (na,) rate that activations change with; not given: `d.act_dot`.
        sensed: what sensors with a delay measure; not given: `d`.
        begun: what was known at the beginning of the step, if `d` has come to know other things since.
        again: what computes accelerations anew, if trees fall asleep, from velocities and activations; not given:
            these stay as they are.
    """
    h = m.opt.timestep
    act = advance_act(m, d, d.act_dot if act_dot is None else act_dot)
    before, d = d, fall_asleep(m, d) if m.plan.sleep else d
    if again is not None and m.plan.sleep:
        falls = ((before.tree_asleep < 0) & (d.tree_asleep >= 0)).any()
        stopped, kept = before.replace(qvel=d.qvel, act=act), qacc
        qacc = cond(falls, lambda: again(m, stopped).qacc, lambda: kept.clone())
        d = d.replace(qacc=torch.where(awake(m, d, m.plan.sleep[0].dof), qacc, 0.0))
    new_qvel = d.qvel + h * qacc
    mean_qvel = new_qvel if qvel is None else qvel
    new_qpos = integrate_pos(m, d.qpos, mean_qvel, h)
    for p in m.plan.sleep:
        new_qvel = torch.where(awake(m, d, p.dof), new_qvel, 0.0)
        new_qpos = torch.where(awake(m, d, p.qpos), new_qpos, d.qpos)
        d = d.replace(qpos_asleep=new_qpos)
    if m.nplastic:
        d = d.replace(plastic=remembered_shapes(m, d, new_qpos, mean_qvel, d if begun is None else begun))
    if m.nhistory:
        d = d.replace(history=remembered(m, d, d if sensed is None else sensed))
    return d.replace(
        act=act,
        qvel=new_qvel,
        qpos=new_qpos,
        time=d.time + h,
        qacc_warmstart=d.qacc,
    )


def advance_act(m: Model, d: Data, act_dot: Tensor) -> Tensor:
    """Activations (na,) one time step later; those of disabled actuators stay (mj_advance)."""
    p = m.plan.actuation
    if not m.na or m.opt.disabled(DisableBit.ACTUATION):
        return d.act
    if m.opt.disableactuator:
        act_dot = torch.where(disabled_actuators(m)[p.act_output], torch.zeros_like(act_dot), act_dot)
    act = next_activation(m, d, act_dot)
    if p.act_wraps.some:
        act = torch.where(p.act_wraps.mask, wrapped(m, act, d.actuator_length[p.act_output], p.act_output), act)
    return anchored(m, act) if m.plan.servo.turner_act.shape[0] else act


def idle(m: Model, d: Data) -> Data:
    """The state one time step later while all trees sleep: time and activations go on, at the rates they have."""
    return d.replace(
        act=advance_act(m, d, d.act_dot),
        time=d.time + m.opt.timestep,
        qacc_warmstart=torch.zeros_like(d.qacc_warmstart),
    )


def euler(m: Model, d: Data) -> Data:
    """Semi-implicit Euler, implicit in joint damping unless EULERDAMP or DAMPER is disabled (mj_Euler).

    With damping, `(M + h B) qacc = qfrc_smooth + qfrc_constraint`, `B` the derivative of the damping force. Whether a
    model has damping is decided when it is put: damping that is added later to a model without any is explicit.
    """
    if is_explicit(m):
        return advance(m, d, d.qacc)
    if m.plan.kinematics.trees:
        blocks = sum_blocks(m, d, m.opt.timestep * damping_derivative(m, d.qvel))
    else:
        blocks = [euler_mhat(m, d)[None]]
    d, factors = factorised(m, d, blocks)
    return advance(m, d, factored_solve(m, factors, d.qfrc_smooth + d.qfrc_constraint))


def is_explicit(m: Model) -> bool:
    """Whether `euler` has no damping to be implicit in."""
    disabled = m.opt.disabled(DisableBit.EULERDAMP) or m.opt.disabled(DisableBit.DAMPER)
    return disabled or not m.plan.integration.damped


def euler_mhat(m: Model, d: Data) -> Tensor:
    """`M + h B` (nv, nv), `B` the derivative of the damping force."""
    return full_m(m, d) + torch.diag(m.opt.timestep * damping_derivative(m, d.qvel))


def sum_blocks(m: Model, d: Data, diagonal: Tensor) -> list[Tensor]:
    """The blocks of `M + diag(diagonal)` that belong to trees, added where M is stored."""
    return stored_blocks(m, d.M.index_add(0, m.plan.kinematics.M_dense.diagonal(), diagonal))


def implicit(m: Model, d: Data) -> Data:
    """Implicit in velocity, with all smooth forces or, `implicitfast`, without the bias force (mj_implicit).

    `(M - h D) qacc = qfrc_smooth + qfrc_constraint`, `D` from `deriv_smooth_vel`. Without the bias force the matrix is
    symmetric; bodies that float alone have the bias terms all the same, in a 6 by 6 system each.
    """
    qfrc = d.qfrc_smooth + d.qfrc_constraint
    if m.opt.integrator == Integrator.IMPLICIT:
        return advance(m, d, linalg.solve(implicit_mhat(m, d, include_bias=True), qfrc))

    p = m.plan.integration
    blocks, floating = fast_mhat(m, d)
    d, factors = factorised(m, d, blocks)
    qacc = factored_solve(m, factors, qfrc)
    for mhat in floating:
        qacc = torch.cat([qacc, linalg.solve(mhat, qfrc[p.free_dof]).flatten()])[p.free_source]
    return advance(m, d, qacc)


def fast_mhat(m: Model, d: Data) -> tuple[list[Tensor], list[Tensor]]:
    """`M - h D`, `D` without the bias force: what `factorised` takes, and of bodies that float alone, if any, blocks.

    The latter (f, 6, 6) have the bias force, too. Their derivatives need not be symmetric: the common factor sees their
    plain inertia.
    """
    p, h = m.plan.integration, m.opt.timestep
    if m.plan.kinematics.trees:
        return mhat_blocks(m, d)
    inertia, derivative = full_m(m, d), h * deriv_smooth_vel(m, d)
    if not p.free_body.shape[0]:
        return [(inertia - derivative)[None]], []
    return [(inertia - p.bound * derivative)[None]], [free_mhat(m, d, inertia - derivative)]


def mhat_blocks(m: Model, d: Data) -> tuple[list[Tensor], list[Tensor]]:
    """`fast_mhat` of models of several trees, without a dense matrix (nv, nv)."""
    p, h, stored = m.plan.integration, m.opt.timestep, torch.cat([d.M, d.M.new_zeros(1)])
    diagonal, coupling = scalar_vel_terms(m, d)
    drag = [carried_by_dofs(m, d, fluid_matrices(m, d, symmetric=True))] if has_drag(m) else []

    def mhat(dof: Tensor, M: Tensor, bound: Tensor | float) -> Tensor:
        """The blocks (ntree, n, n) of dofs (ntree, n); M: where those of the inertia lie in what is stored."""
        change = torch.diag_embed((bound * diagonal)[dof])
        for slope, moment in coupling:
            change = change + coupled_blocks(m, slope, bound * moment, dof)
        for weight, above in drag:
            moved = subtree_blocks(m, d, weight, above, dof)
            change = change + (bound[dof][..., None] * moved if isinstance(bound, Tensor) else moved)
        return stored[M] - h * change

    trees = m.plan.kinematics.trees
    if not p.free_body.shape[0]:
        return [mhat(t.dof, t.M, 1.0) for t in trees], []
    blocks = [mhat(t.dof, t.M, p.bound[:, 0]) for t in trees]
    return blocks, [mhat(p.free_dof, p.free_M, 1.0) + h * free_bias_vel(m, d)]


def implicit_mhat(m: Model, d: Data, include_bias: bool) -> Tensor:
    """`M - h D` (nv, nv), `D` from `deriv_smooth_vel`."""
    return full_m(m, d) - m.opt.timestep * deriv_smooth_vel(m, d, include_bias)


def continuous_acc(m: Model, d: Data) -> Tensor:
    """The acceleration (nv,) of which the integrator makes `d.qacc`, taken as change of velocity over time step.

    The integrators solve `Mhat qacc = qfrc` where the equations of motion say `M a = qfrc`; this is `a`
    (mj_discreteAcc). Needs `crb`, `factor_m`, `fwd_velocity`, and if implicit the actuator forces.

    Raises:
        ValueError: for RK4, which has no such matrix.
    """
    p = m.plan.integration
    match m.opt.integrator:
        case Integrator.EULER:
            if is_explicit(m):
                return d.qacc
            qfrc = euler_mhat(m, d) @ d.qacc
        case Integrator.IMPLICIT:
            qfrc = implicit_mhat(m, d, include_bias=True) @ d.qacc
        case Integrator.IMPLICITFAST:
            mhat = implicit_mhat(m, d, include_bias=False)
            qfrc = mhat @ d.qacc
            if p.free_body.shape[0]:
                floating = free_mhat(m, d, mhat) @ d.qacc[p.free_dof][..., None]
                qfrc = torch.cat([qfrc, floating.flatten()])[p.free_source]
        case Integrator.RK4:
            raise ValueError("inverse: discrete inverse dynamics does not exist for RK4; disable the flag invdiscrete")
    return solve_m(m, d, qfrc)


def rungekutta4(m: Model, d: Data, forward: Callable[[Model, Data], Data]) -> Data:
    """Fourth-order Runge-Kutta from a state where `forward` has been computed (mj_RungeKutta).

    As in C the result knows what the last of the four evaluations has computed, and sensors and energy of the first;
    from MuJoCo 4.0 on also velocities of actuators, which activations are advanced with, what sensors with a delay
    measure, and lengths of tendons that have plastic springs.

    Args:
        m: the model.
        d: what is known at the beginning of the step.
        forward: forward dynamics; it need not compute sensors and energy.
    """
    h, start = m.opt.timestep, d

    def evaluate(carry: _Stage, tableau: Tensor) -> tuple[_Stage, None]:
        """One more evaluation, from where the last one's rates lead; its rates join the weighted sums."""
        reach, weight = tableau.unbind()
        step, last = reach * h, carry.rates
        moved = step * last.qpos
        qvel = start.qvel + step * last.qvel
        d = forward(
            m,
            carry.d.replace(
                qpos=integrate_pos(m, start.qpos, last.qpos, step),
                qvel=qvel,
                act=start.act + step * last.act,
                time=start.time + step,
            ),
        )
        rates = _Rates(position_rate(m, qvel, moved), d.qacc, d.act_dot)
        return _Stage(d, rates, tree.map(lambda total, x: total + weight * x, carry.mean, rates)), None

    rates = _Rates(position_rate(m, d.qvel, torch.zeros_like(d.qvel)), d.qacc, d.act_dot)
    first = _Stage(d, rates, tree.map(lambda x: RK4_WEIGHT[0] * x, rates))
    tableau = d.qpos.new_tensor([*zip(RK4_REACH, RK4_WEIGHT[1:], strict=True)])
    last, _ = scan(evaluate, first, tableau, unroll=False)
    d = last.d.replace(
        qpos=start.qpos,
        qvel=start.qvel,
        act=start.act,
        time=start.time,
        sensordata=start.sensordata,
        energy=start.energy,
    )
    sensed = d
    if m.plan.integration.rk_correction:
        d, sensed = d.replace(actuator_velocity=start.actuator_velocity), start
    if m.nplastic:
        d = d.replace(ten_length=start.ten_length, ten_J=start.ten_J)
    return advance(m, d, last.mean.qvel, qvel=last.mean.qpos, act_dot=last.mean.act, sensed=sensed, begun=start)


@tree.dataclass
class _Rates(tree.Tree):
    """Rates of change: of positions (nv,), as a velocity, of velocities (nv,) and of activations (na,)."""

    qpos: Tensor
    qvel: Tensor
    act: Tensor


@tree.dataclass
class _Stage(tree.Tree):
    """An evaluation within a Runge-Kutta step: what it found, its rates, and the weighted sum of rates so far."""

    d: Data
    rates: _Rates
    mean: _Rates


def position_rate(m: Model, qvel: Tensor, moved: Tensor) -> Tensor:
    """How fast (nv,) the displacement `moved` (nv,) from the start of the step changes at the velocity `qvel` (nv,).

    They differ for orientations, where displacements are rotation vectors (Munthe-Kaas, "High order Runge-Kutta methods
    on manifolds", 1999). MuJoCo before 4.0 takes them as the same.
    """
    return displacement_rate(m, qvel, moved) if m.plan.integration.rk_correction else qvel


def displacement_rate(m: Model, qvel: Tensor, moved: Tensor) -> Tensor:
    """`position_rate`, whatever the version of MuJoCo."""
    p = m.plan.integration
    if not p.quat_dof.shape[0]:
        return qvel
    rate = rotation_vector_rate(moved[p.quat_dof], qvel[p.quat_dof])
    return torch.cat([qvel[p.linear_dof], rate.flatten()])[p.dof_source]


def rotation_vector_rate(v: Tensor, w: Tensor) -> Tensor:
    """Rate (..., 3) of the rotation vector `v` (..., 3) of a frame that turns with `w` (..., 3) about its own axes.

    `w + v x w / 2 + c v x (v x w)` with `c = (1 - x cot x) / |v|^2`, `x = |v| / 2`; `c = 1/12` at v = 0.
    """
    square = dot(v, v, keepdim=True)
    small = square < 1e-2
    half = 0.5 * torch.where(small, 1.0, square).sqrt()
    exact = (1 - half * half.cos() / half.sin()) / (4 * half * half)
    series = 1 / 12 + square * (1 / 720 + square * (1 / 30240 + square / 1209600))
    turned = cross(v, w)
    return w + 0.5 * turned + torch.where(small, series, exact) * cross(v, turned)
