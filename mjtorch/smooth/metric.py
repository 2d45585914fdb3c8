"""The inertia in which the integrator `discrete` takes a step (computation/index.rst, "Integrators").

Over a time step h springs and dampers resist acceleration as masses would: `M + h D + h^2 K`, with D and K the damping
and stiffness of joints, tendons, actuators, flexes and drag, as far as they are not negative.
"""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.flex import flex_metric
from mjtorch.math import linalg
from mjtorch.math.banded import Banded, banded
from mjtorch.math.vector import norm
from mjtorch.model import Data, DisableBit, Model, Solver
from mjtorch.model.plan.metric import MetricPlan
from mjtorch.model.sleeping import awake
from mjtorch.smooth.derivative import (
    actuator_len,
    actuator_vel,
    damping_derivative,
    dof_moment,
    drag_matrices,
    has_length_terms,
    has_velocity_terms,
    of_subtrees,
)
from mjtorch.smooth.inertia import full_m
from mjtorch.smooth.passive import stretch
from mjtorch.smooth.passive_contact import contact_metric
from mjtorch.smooth.polynomial import polynomial_slope
from mjtorch.smooth.tendon import tendon_damping_derivative, tendon_stretch


@tree.dataclass(kw_only=True)
class Whole(tree.Tree):
    """A matrix M (nv, nv) and its factor, qLD (nv, nv) lower, `M = qLD^T qLD`."""

    M: Tensor
    qLD: Tensor

    def times(self, x: Tensor) -> Tensor:
        """`M x` for x (nv,)."""
        return self.M @ x

    def trace(self) -> Tensor:
        """The sum () of the diagonal."""
        return self.M.diagonal().sum()

    def dense(self) -> Tensor:
        """M (nv, nv)."""
        return self.M

    def solve(self, b: Tensor) -> Tensor:
        """`M^-1 b` for b (nv,)."""
        return linalg.ltl_solve(self.qLD, b)


@tree.dataclass(kw_only=True)
class Metric(tree.Tree):
    """The effective inertia.

    matrix: all of it
    backbone: (nv, nv) without what tendons, actuators and flexes add between dofs; on its diagonal, of flexes, is what
        points have that move along fixed axes, and what the turns of frames of rods have
    added: (nv,) what the diagonal has more than that of the inertia
    shift: (nv,) what forces of springs change by over the step, at the present velocity
    coupled: (nv,) bool, dofs that tendons, actuators or flexes add something to
    """

    matrix: Whole | Banded
    backbone: Tensor
    added: Tensor
    shift: Tensor
    coupled: Tensor


def effective_inertia(m: Model, d: Data) -> Metric:
    """The effective inertia (mj_effBuild, mj_effShift, mj_effActuation). Needs `fwd_velocity` and `fwd_actuation`."""
    h = m.opt.timestep
    springs, dampers = not m.opt.disabled(DisableBit.SPRING), not m.opt.disabled(DisableBit.DAMPER)
    added, shift = torch.zeros_like(d.qvel), torch.zeros_like(d.qvel)
    if springs:
        stiffness = h * spring_slope(m, d)
        added, shift = added + h * stiffness, -stiffness * d.qvel
    if dampers:
        added = added + h * damping_derivative(m, d.qvel).clamp(min=0)
    backbone, drags = full_m(m, d) + torch.diag(added), []
    if (springs or dampers) and m.opt.fluid:
        # Only where C stores the inertia, which of free bodies about their centres is a diagonal.
        stored = m.plan.kinematics.M_dense < m.nC
        drag = -h * torch.where(stored, of_subtrees(m, d, drag_matrices(m, d)), 0.0)
        backbone, added, drags = backbone + drag, added + drag.diagonal(), [drag]
    total, coupled = backbone, torch.zeros_like(d.qvel, dtype=torch.bool)
    # The dual solver knows no couplings: their forces are as they are at the beginning of the step.
    for weight, pull, velocity, J in couplings(m, d) if m.opt.solver != Solver.PGS else ():
        weighted = weight[:, None] * J
        total, coupled = total + J.mT @ weighted, coupled | (weighted != 0).any(0)
        diagonal = weight @ (J * J)
        backbone, added = backbone + torch.diag(diagonal), added + diagonal
        shift = shift - (pull * velocity) @ J
    # All its elements, row after row, or those of a band that are not zero.
    listed = [in_band(m, d, x, added, drags) for x in m.plan.metric]
    for flexes in m.plan.flex if springs or dampers else ():
        places, change = flex_metric(m, d, flexes, springs, dampers)
        values, shift = listed[0] if listed else total.flatten(), shift + change
        for place, value in places:
            values = values.index_add(0, place, value)
            hit, col = torch.zeros_like(coupled, dtype=torch.long), place % m.nv
            for x in m.plan.metric:
                col = x.band.col[place]
            coupled = coupled | (hit.index_add(0, col, (value != 0).long()) > 0)
        on_diagonal = values[m.plan.metric[0].band.whole.diagonal()] if listed else values[:: m.nv + 1]
        diagonal = on_diagonal - total.diagonal()
        backbone = backbone + torch.diag(flexes.along_axes * diagonal)
        if listed:
            listed = [values]
            continue
        # Of rods, what resists the turns of frames is to rows what springs and dampers of joints are.
        for rods in flexes.rods:
            turns = d.qvel.new_zeros(m.nv + 1).index_fill(0, rods.turn_dof.flatten(), 1.0)[: m.nv] * diagonal
            backbone, added = backbone + torch.diag(turns), added + turns
        total = values.unflatten(0, (m.nv, m.nv))
        if m.plan.constraint.contact.passive:
            stiff, change = contact_metric(m, d)
            total, coupled, shift = total + stiff, coupled | (stiff != 0).any(0), shift + change
    for p in m.plan.sleep:
        shift = torch.where(awake(m, d, p.dof), shift, 0.0)
    return Metric(
        matrix=banded(m.plan.metric[0].band, listed[0]) if listed else Whole(M=total, qLD=linalg.ltl(total)),
        backbone=backbone,
        added=added,
        shift=shift,
        coupled=coupled,
    )


def in_band(m: Model, d: Data, p: MetricPlan, added: Tensor, drags: list[Tensor]) -> Tensor:
    """The values (nvalue,) of the inertia, with `added` (nv,) on its diagonal, and beside that what `drags` have."""
    values = torch.cat([d.M, d.M.new_zeros(1)])[p.M] + added[p.band.row] * p.band.diagonal
    for drag in drags:
        values = values + drag[p.band.row, p.band.col] * (1 - p.band.diagonal)
    return values


def couplings(m: Model, d: Data) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """What tendons and actuators add: `h^2 k + h b` and `h k` (n,), velocities (n,), and what they act by (n, nv)."""
    h, found = m.opt.timestep, []
    springs = m.plan.tendon.springs and not m.opt.disabled(DisableBit.SPRING)
    dampers = m.plan.tendon.dampers and not m.opt.disabled(DisableBit.DAMPER)
    if springs or dampers:
        k = b = torch.zeros_like(d.ten_velocity)
        k = tendon_slope(m, d).clamp(min=0) if springs else k
        b = tendon_damping_derivative(m, d).clamp(min=0) if dampers else b
        found.append((h * h * k + h * b, h * k, d.ten_velocity, d.ten_J))
    if has_velocity_terms(m) or has_length_terms(m):
        k, b = (-actuator_len(m, d)).clamp(min=0), (-actuator_vel(m, d)).clamp(min=0)
        found.append((h * h * k + h * b, h * k, d.actuator_velocity, dof_moment(m, d)))
    return found


def spring_slope(m: Model, d: Data) -> Tensor:
    """Stiffness (nv,) of the joint springs where they are, not less than zero; turns have it about all axes."""
    p = m.plan.passive
    scalar, vector = stretch(m, d)

    def slope(joint: Tensor, x: Tensor) -> Tensor:
        k = m.jnt_stiffness[joint]
        return polynomial_slope(k, m.jnt_stiffnesspoly[joint], x) if p.stiffness_poly else k

    parts = [slope(p.scalar_joint, scalar)]
    if p.vector_joint.shape[0]:
        parts.append(slope(p.vector_joint, norm(vector))[:, None].expand(-1, 3).flatten())
    return torch.cat([*parts, d.qpos.new_zeros(1)])[p.spring_dof].clamp(min=0)


def tendon_slope(m: Model, d: Data) -> Tensor:
    """Stiffness (ntendon,) of the springs of tendons that are not at rest."""
    x, k = tendon_stretch(m, d), m.tendon_stiffness
    if m.plan.tendon.stiffness_poly:
        k = polynomial_slope(k, m.tendon_stiffnesspoly, x)
    return torch.where(x != 0, k, 0.0)
