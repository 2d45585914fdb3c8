"""Derivatives of smooth forces by velocity, for implicit integration (mjd_smooth_vel)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.math.spatial import blocks, cross_motion, skew, symmetric
from mjtorch.math.vector import cross, norm
from mjtorch.model import Data, DisableBit, Model
from mjtorch.smooth import ellipsoid, fluid, motor, servo
from mjtorch.smooth.actuation import bias_length, controls, disabled_actuators, force_input, gain_length, gain_velocity
from mjtorch.smooth.com import subtree_sum
from mjtorch.smooth.polynomial import polynomial_slope
from mjtorch.smooth.reflected import dof_damping
from mjtorch.smooth.tendon import tendon_damping_derivative


def deriv_smooth_vel(m: Model, d: Data, include_bias: bool = False) -> Tensor:
    """`d(qfrc_actuator + qfrc_passive - qfrc_bias) / d(qvel)` (nv, nv), the last term if asked for (mjd_smooth_vel).

    As in C, the derivative has no terms of springs, of constraints, and of actuators that are clamped.
    """
    diagonal, coupling = scalar_vel_terms(m, d)
    others = [coupled(m, slope, moment) for slope, moment in coupling]
    if include_bias or has_drag(m):
        others.append(body_vel(m, d, include_bias, has_drag(m)))
    return sum(others, torch.diag(diagonal))


def scalar_vel_terms(m: Model, d: Data) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Those of forces that have a velocity of their own: a diagonal (nv,), and what `coupled` is of, if any.

    This is the slope (n,) of each force by its velocity, and its moment (n, nv).
    """
    dampers = not m.opt.disabled(DisableBit.DAMPER)
    diagonal = -damping_derivative(m, d.qvel) if dampers else torch.zeros_like(d.qvel)
    terms: list[tuple[Tensor, Tensor]] = []
    if has_velocity_terms(m):
        slope, moment = actuator_vel(m, d), dof_moment(m, d)
        if m.plan.transmission.scalar:
            diagonal = diagonal + slope @ (moment * moment)
        else:
            terms.append((slope, moment))
    if dampers and m.plan.tendon.dampers:
        terms.append((-tendon_damping_derivative(m, d), d.ten_J))
    if not terms:
        return diagonal, []
    slopes, moments = zip(*terms, strict=True)
    return diagonal, [(torch.cat(slopes), torch.cat(moments))]


def has_drag(m: Model) -> bool:
    """Whether bodies move through a medium."""
    return m.opt.fluid and not (m.opt.disabled(DisableBit.SPRING) and m.opt.disabled(DisableBit.DAMPER))


def damping_derivative(m: Model, qvel: Tensor) -> Tensor:
    """`d(b(|v|) v) / dv` (nv,) of the dof dampers: `b0 + 2 b1 |v| + 3 b2 v^2` (mjd_xPolyForce)."""
    b, higher = dof_damping(m)
    return polynomial_slope(b, higher, qvel.abs()) if m.plan.passive.damping_poly else b


def coupled(m: Model, slope: Tensor, moment: Tensor) -> Tensor:
    """`moment^T diag(slope) moment` (nv, nv); as in C, only what couples dofs of one chain.

    slope: (n,) derivatives of scalar forces by their own velocities, moment: (n, nv) their moments.
    """
    q, total = m.plan.integration, moment.mT @ (slope[:, None] * moment)
    return total * (q.below + q.above) if couples_chains(m) else total


def coupled_blocks(m: Model, slope: Tensor, moment: Tensor, dof: Tensor) -> Tensor:
    """What `coupled` has (ntree, n, n) for the dofs (ntree, n) of some trees."""
    q, own = m.plan.integration, moment[:, dof].movedim(0, 1)
    total = own.mT @ (slope[:, None] * own)
    row, col = dof[:, :, None], dof[:, None, :]
    return total * (q.below + q.above)[row, col] if couples_chains(m) else total


def couples_chains(m: Model) -> bool:
    """Whether a force may act on dofs of several chains."""
    return bool(m.ntendon) or m.plan.transmission.dense


def has_velocity_terms(m: Model) -> bool:
    """Whether the force of any actuator depends on its velocity."""
    p = m.plan.actuation
    depends = p.bias_affine.some or p.gain_affine.some or p.muscle_gain.shape[0] > 0 or m.plan.motor.out.shape[0] > 0
    return depends and not m.opt.disabled(DisableBit.ACTUATION)


def has_length_terms(m: Model) -> bool:
    """Whether the force of any actuator depends on its length."""
    return m.plan.actuation.muscle_bias.shape[0] > 0 and not m.opt.disabled(DisableBit.ACTUATION)


def actuator_len(m: Model, d: Data) -> Tensor:
    """Derivative (nout,) of actuator forces by their lengths, 0 where `forcerange` clamps (mjd_actuatorLenDeriv)."""
    p, motors = m.plan.actuation, m.plan.motor.out
    force, zero = d.actuator_force, torch.zeros_like(d.actuator_force)
    total = torch.where(p.bias_affine.mask, servo.per_output(m, m.actuator_biasprm)[:, 1], zero)
    if p.gain_affine.some or p.muscle_gain.shape[0]:
        total = total + gain_length(m, d) * force_input(m, d, controls(m, d)[0], d.act_dot)
    if p.muscle_bias.shape[0]:
        total = total.index_add(0, p.muscle_bias, bias_length(m, d))
    if motors.shape[0]:
        ctrl, _ = servo.slewed_controls(m, d, controls(m, d)[0])
        electrical, mechanical = motor.length_slope(m, d, ctrl)
        others, total = total, total.index_add(0, motors, electrical)
        total = unsaturated(m, d, total, limited(m, d, others)) + zero.index_copy(0, motors, mechanical)
    else:
        total = unsaturated(m, d, total, Limited(force, force, zero))
    return torch.where(disabled_actuators(m), zero, total) if m.opt.disableactuator else total


def actuator_vel(m: Model, d: Data) -> Tensor:
    """Derivative (nout,) of actuator forces by their own velocities, 0 where `forcerange` clamps (mjd_actuator_vel)."""
    p, motors = m.plan.actuation, m.plan.motor.out
    force, zero = d.actuator_force, torch.zeros_like(d.actuator_force)
    total = torch.where(p.bias_affine.mask, servo.per_output(m, m.actuator_biasprm)[:, 2], zero)
    if p.gain_affine.some or p.muscle_gain.shape[0]:
        total = total + gain_velocity(m, d) * force_input(m, d, controls(m, d)[0], d.act_dot)
    if motors.shape[0]:
        ctrl, _ = servo.slewed_controls(m, d, controls(m, d)[0])
        electrical, mechanical = motor.velocity_slope(m, d, ctrl)
        others, total = total, total.index_add(0, motors, electrical)
        unlimited = zero.index_copy(0, motors, mechanical)
        if m.plan.integration.drops_saturated:
            total = unsaturated(m, d, total, limited(m, d, others)) + unlimited
        else:
            total = unsaturated(m, d, total + unlimited, Limited(force, force, zero))
    else:
        total = unsaturated(m, d, total, Limited(force, force, zero))
    return torch.where(disabled_actuators(m), zero, total) if m.opt.disableactuator else total


class Limited(NamedTuple):
    """What limits are for.

    force: (nout,) what is within those of actuators, pull: (nout,) of tendons; kept: (nout,) slopes that stay there
    """

    force: Tensor
    pull: Tensor
    kept: Tensor


def limited(m: Model, d: Data, others: Tensor) -> Limited:
    """Of DC motors what is electrical. others: (nout,) slopes but for what is electrical.

    Where the bias of a motor stands beside another gain, C takes the back-EMF alone for the force, and keeps the other
    slopes if there is cogging.
    """
    p, zero = m.plan.motor, torch.zeros_like(others)
    force = d.actuator_force - zero.index_copy(0, p.out, motor.friction(m, d, d.act_dot))
    if p.whole:
        return Limited(force, force, zero)
    brakes = p.resists.mask & ~p.drives.mask
    cogs = brakes & (m.actuator_biasprm[p.actuator, 0] != 0)
    seen = force.index_copy(0, p.out, torch.where(brakes, motor.back_torque(m, d), force[p.out]))
    return Limited(seen, force, zero.index_copy(0, p.out, torch.where(cogs, others[p.out], 0.0)))


def unsaturated(m: Model, d: Data, slope: Tensor, at: Limited) -> Tensor:
    """`slope` (nout,), or what is kept of it where forces are at the limits of actuators or tendons."""
    p, total = m.plan.actuation, slope
    if p.forcelimited.some:
        low, high = servo.per_output(m, m.actuator_forcerange).unbind(-1)
        if m.plan.motor.out.shape[0]:  # rounded: friction has been taken away
            low, high = low + rounding(low), high - rounding(high)
        clamped = p.forcelimited.mask & ((at.force <= low) | (at.force >= high))
        total = torch.where(clamped, at.kept, total)
    if m.plan.servo.turner_limited.some:
        total = free_turners(m, d, total)
    if p.ten_actfrclimited.some and m.plan.integration.drops_saturated:
        total = torch.where(p.ten_actfrclimited.mask & saturated_tendon(m, at.pull), at.kept, total)
    return total


def free_turners(m: Model, d: Data, slope: Tensor) -> Tensor:
    """`slope` (nout,), 0 for the orientation servos whose torque is at its limit.

    In C it depends on the last digit whether a torque that has been scaled to the limit is at it.
    """
    s, most = m.plan.servo, m.actuator_forcerange[m.plan.servo.turner, 1]
    saturated = s.turner_limited.mask & (norm(d.actuator_force[s.turner_out]) >= most - rounding(most))
    kept = torch.where(saturated[:, None], 0.0, slope[s.turner_out])
    return slope.index_copy(0, s.turner_out.flatten(), kept.flatten())


def rounding(x: Tensor) -> Tensor:
    """By how much forces at the limit `x` may miss it."""
    return max(1e-10, 4 * torch.finfo(x.dtype).eps) * x.abs()


def saturated_tendon(m: Model, force: Tensor) -> Tensor:
    """(nu,) bool: the actuator's tendon bears as much actuator force as `tendon_actfrcrange` allows, up to rounding."""
    p = m.plan.actuation
    total, bounds = p.ten_share @ force, m.tendon_actfrcrange[p.ten_pulled]
    slack = rounding(bounds)
    return (total <= (bounds + slack)[:, 0]) | (total >= (bounds - slack)[:, 1])


def dof_moment(m: Model, d: Data) -> Tensor:
    """`actuator_moment` (nu, nv) without the dofs whose total actuator force is at the limit of `jnt_actfrcrange`.

    Actuators that do not act on joints keep theirs.
    """
    p = m.plan.actuation
    if not (p.actfrclimited.some and m.plan.integration.drops_saturated):
        return d.actuator_moment
    low, high = m.jnt_actfrcrange[p.dof_joint].unbind(-1)
    saturated = p.actfrclimited.mask & ((d.qfrc_actuator <= low) | (d.qfrc_actuator >= high))
    off_joint = m.plan.transmission.off_joint
    if off_joint.some:
        saturated = saturated & ~off_joint.mask[:, None]
    return torch.where(saturated, torch.zeros_like(d.actuator_moment), d.actuator_moment)


def body_vel(m: Model, d: Data, include_bias: bool, include_fluid: bool) -> Tensor:
    """Derivative (nv, nv) of the forces that arise at the bodies: fluid drag minus the bias force.

    The wrench on a body changes with the velocity of a dof k above it by `N cdof_k - I e_k`: through the velocity of
    the body (`N`, 6 by 6) and through the axes (`axis_acceleration`). `N` and the inertia `I` add up over subtrees, so
    the element for dofs i and k is `cdof_i . (N cdof_k - I e_k)` with the sums of the lower one's body.
    """
    p, q = m.plan.kinematics, m.plan.integration
    inertia, composite = inertia_matrix(torch.stack([d.cinert, d.crb])).unbind(0) if include_bias else (None, None)
    matrices = fluid_matrices(m, d, symmetric=not include_bias) if include_fluid else []
    if inertia is not None:
        matrices.append(-bias_matrix(inertia, d.cvel))
    if composite is None:
        return of_subtrees(m, d, matrices)
    change = subtree_sum(m, sum(matrices[1:], matrices[0]))[p.dof_body]
    below, above = d.cdof, (change @ d.cdof[:, :, None]).squeeze(-1)
    weight = (change.mT @ d.cdof[:, :, None]).squeeze(-1)
    axis = axis_acceleration(m, d)
    momentum, force = (composite[p.dof_body] @ torch.stack([d.cdof, axis], dim=-1)).unbind(-1)
    below, weight = torch.cat([below, axis], dim=-1), torch.cat([weight, -momentum], dim=-1)
    above = above - force
    return q.below * (weight @ below.mT) + q.above * (d.cdof @ above.mT)


def fluid_matrices(
    m: Model,
    d: Data,
    *,
    symmetric: bool,
    slopes: Callable[[ellipsoid.Ellipsoids, Tensor], Tensor] = ellipsoid.wrench_derivative,
) -> list[Tensor]:
    """Derivatives (nbody, 6, 6) of what a medium does to boxes and ellipsoids; the rest as for `ellipsoid_matrix`."""
    matrices = [fluid_matrix(m, d)] if m.plan.passive.boxes else []
    if m.plan.passive.ellipsoids:
        matrices.append(ellipsoid_matrix(m, d, symmetric=symmetric, slopes=slopes))
    return matrices


def of_subtrees(m: Model, d: Data, matrices: list[Tensor]) -> Tensor:
    """What derivatives by the velocities of bodies (nbody, 6, 6), added up, are by those of dofs (nv, nv)."""
    q, (weight, above) = m.plan.integration, carried_by_dofs(m, d, matrices)
    return q.below * (weight @ d.cdof.mT) + q.above * (d.cdof @ above.mT)


def carried_by_dofs(m: Model, d: Data, matrices: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What each dof carries of these (nbody, 6, 6), from the left and from the right along how it moves, (nv, 6)."""
    change = subtree_sum(m, sum(matrices[1:], matrices[0]))[m.plan.kinematics.dof_body]
    above = (change @ d.cdof[:, :, None]).squeeze(-1)
    return (change.mT @ d.cdof[:, :, None]).squeeze(-1), above


def subtree_blocks(m: Model, d: Data, weight: Tensor, above: Tensor, dof: Tensor) -> Tensor:
    """What `of_subtrees` has (ntree, n, n) for the dofs (ntree, n) of some trees; weight, above: `carried_by_dofs`."""
    q, axis, row, col = m.plan.integration, d.cdof[dof], dof[:, :, None], dof[:, None, :]
    return q.below[row, col] * (weight[dof] @ axis.mT) + q.above[row, col] * (axis @ above[dof].mT)


def drag_matrices(m: Model, d: Data) -> list[Tensor]:
    """Derivatives (nbody, 6, 6) of drag alone, without lift and the inertia of the medium, as in `fluid_matrix`."""
    return fluid_matrices(m, d, symmetric=False, slopes=ellipsoid.drag_alone)


def bias_matrix(inertia: Tensor, velocity: Tensor) -> Tensor:
    """`N (nbody, 6, 6)` of the bias force: how the wrench on each body changes with its velocity, the axes set aside.

    inertia: (nbody, 6, 6), velocity: (nbody, 6). The wrench is `I a + v x* I v`, with a part `-v x cdof_k qvel_k` in
    the acceleration; with `X` the matrix of `v x`, that of `v x*` is `-X^T`, and `N = (. x* I v) - I X - X^T I`.
    """
    (momentum,) = (inertia @ velocity[:, :, None]).unbind(-1)
    (turn, move), (angular, linear) = (skew(x.unflatten(-1, (2, 3))).unbind(1) for x in (velocity, momentum))
    zero = torch.zeros_like(turn)
    swept = inertia @ blocks(turn, zero, move, turn)
    return -blocks(angular, linear, linear, zero) - swept - swept.mT


def fluid_matrix(m: Model, d: Data) -> Tensor:
    """Derivative (nbody, 6, 6) of drag by the velocity of each body, about the root's centre of mass (mjd_passive_vel).

    In the inertial frame the six components of velocity are dragged independently.
    """
    arm = d.xipos - d.subtree_com[m.plan.kinematics.body_root]
    to_local = blocks(d.ximat, skew(arm) @ d.ximat, torch.zeros_like(d.ximat), d.ximat)
    box = fluid.inertia_box(m.body_mass, m.body_inertia)
    coefficients = fluid.drag_coefficients(box, m.opt.density, m.opt.viscosity)
    slope = fluid.drag_derivative(fluid.relative_velocity(m, d), *coefficients)
    if m.plan.passive.ellipsoids:
        slope = slope * m.plan.passive.box_body
    return (to_local * slope[:, None]) @ to_local.mT


def ellipsoid_matrix(
    m: Model,
    d: Data,
    *,
    symmetric: bool,
    slopes: Callable[[ellipsoid.Ellipsoids, Tensor], Tensor] = ellipsoid.wrench_derivative,
) -> Tensor:
    """Derivative (nbody, 6, 6) of the medium's wrench on ellipsoids, as in `fluid_matrix` (mjd_ellipsoidFluid).

    symmetric: take the symmetric part, as `implicitfast` does save for bodies that float alone.
    slopes: which derivatives; not given: of all of the wrench.
    """
    p = m.plan.passive
    mat = d.geom_xmat[p.fluid_geom]
    arm = d.geom_xpos[p.fluid_geom] - d.subtree_com[m.plan.kinematics.body_root[p.fluid_body]]
    to_local = blocks(mat, skew(arm) @ mat, torch.zeros_like(mat), mat)
    slope = slopes(ellipsoid.ellipsoids(m), ellipsoid.geom_velocity(m, d))
    if symmetric:
        slope = torch.where(p.fluid_floats[:, None, None], slope, 0.5 * (slope + slope.mT))
    moved = to_local @ (ellipsoid.fluid_share(m)[..., None] * slope) @ to_local.mT
    return (p.fluid_on @ moved.flatten(1)).unflatten(-1, (6, 6))


def inertia_matrix(inertia: Tensor) -> Tensor:
    """Inertias (..., 10) as matrices (..., 6, 6) that take a velocity to a momentum."""
    arm = skew(inertia[..., 6:9])
    mass = inertia[..., 9:, None] * torch.eye(3, dtype=inertia.dtype, device=inertia.device)
    return blocks(symmetric(inertia), arm, -arm, mass)


def axis_acceleration(m: Model, d: Data) -> Tensor:
    """`e_k` (nv, 6): the part of `d(acceleration) / d(qvel_k)` that is the same for all bodies below dof k.

    A dof turns with the frame it acts in (`cdof_dot`), and turns all axes behind it; of the velocity that these have,
    the share up to and including dof k's own joint is taken here, the rest is in `bias_matrix`.
    """
    reached = m.plan.integration.upto @ (d.cdof * d.qvel[:, None])
    return d.cdof_dot + cross_motion(reached, d.cdof)


def free_bias_vel(m: Model, d: Data) -> Tensor:
    """`d(qfrc_bias) / d(qvel)` (f, 6, 6) of the bodies that float alone, by their own dofs (mjd_freeBias_vel).

    With the centre of mass at `s` from the joint, the angular velocity `w` in the world and the rotational inertia `J`,
    the bias force is `mass w x (w x s)`, and the torque `s x force + w x J w`. Linear velocity does not enter.
    """
    q = m.plan.integration
    body, turn, composite = q.free_body, d.xmat[q.free_body], d.crb[q.free_body]
    w = (turn @ d.qvel[q.free_dof[:, 3:], None]).squeeze(-1)
    s = d.subtree_com[body] - d.xpos[body]
    inertia = symmetric(composite)
    momentum = (inertia @ w[:, :, None]).squeeze(-1)
    around, arm = skew(w), skew(s)
    force = -composite[:, 9:, None] * (skew(cross(w, s)) + around @ arm)
    torque = arm @ force + around @ inertia - skew(momentum)
    rotational = torch.cat([force @ turn, turn.mT @ torque @ turn], dim=1)
    return torch.cat([torch.zeros_like(rotational), rotational], dim=-1)


def free_mhat(m: Model, d: Data, mhat: Tensor) -> Tensor:
    """The blocks (f, 6, 6) of `mhat` (nv, nv) of the bodies that float alone, with the derivative of the bias force."""
    p = m.plan.integration
    return mhat[p.free_dof[:, :, None], p.free_dof[:, None, :]] + m.opt.timestep * free_bias_vel(m, d)
