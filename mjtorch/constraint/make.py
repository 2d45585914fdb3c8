"""Constraint rows, stage by stage: `make_constraint` after collision, `reference_constraint` once velocity is known."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.constraint import bodies, element
from mjtorch.constraint.contact import contact, contact_jacobian, present, regularizer_scale
from mjtorch.constraint.element import Elements
from mjtorch.constraint.equality import equality, jac_dot_v
from mjtorch.constraint.friction import friction, frictionloss, tendon_friction
from mjtorch.constraint.hardness import resolved
from mjtorch.constraint.limit import limit, tendon_limit
from mjtorch.constraint.surface import surface_velocity
from mjtorch.math.impedance import impedance, settled, stiffness_damping
from mjtorch.math.linalg import ltl_half_solve
from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Data, DisableBit, EnableBit, Integrator, Model
from mjtorch.model.sleeping import any_awake, awake
from mjtorch.model.touching import colliders
from mjtorch.smooth.adhesion import row_adhesion, used_rows


def make_constraint(m: Model, d: Data) -> Data:
    """Rows of all constraints at the current positions and contacts (mj_makeConstraint, mj_projectConstraint).

    Sets ne, nf, nl, nefc and efc_J, efc_pos, efc_margin, efc_frictionloss, efc_diagA, efc_KBIP, efc_D, efc_R.
    A row that is not active has zero J and D; its other numbers are finite.
    """
    p = m.plan.constraint
    if p.nefc == 0:
        zero = torch.zeros_like(d.nefc)
        return d.replace(ne=zero, nf=zero, nl=zero, nefc=zero)
    elements, jacobians, equality_pos = assemble(m, d)
    active = elements.active[p.element]
    if m.plan.sleep:
        active = active & may_act(m, d)
    if p.nc and m.plan.collision.adhesion_source:
        active = torch.cat([active[: -p.nc], active[-p.nc :] & used_rows(m, d)])
    by_family = active.split([len(x) for x in jacobians])
    families = [torch.where(on[:, None], x, 0.0) for on, x in zip(by_family, jacobians, strict=True)]
    J = torch.cat(families)

    imp, slope, width_imp = impedance(elements.solimp, elements.pos - elements.margin)
    refsafe = not m.opt.disabled(DisableBit.REFSAFE)
    implicit = m.opt.integrator == Integrator.DISCRETE
    stiffness, damping = stiffness_damping(elements.solref, width_imp, m.opt.timestep, refsafe and not implicit)
    pos, margin = elements.pos, elements.margin
    if not p.all_spring:
        stiffness, pos, margin = (x * p.spring for x in (stiffness, pos, margin))
    if implicit and refsafe:
        first = p.equality.id.shape[0] + p.nf  # equalities are as they are
        safe = settled(elements.solref[first:], imp[first:], stiffness[first:], damping[first:], m.opt.timestep)
        stiffness, damping = (torch.cat([x[:first], y]) for x, y in zip((stiffness, damping), safe, strict=True))
    # Said to be constant where nothing is, these are not computed there.
    imp, slope = torch.where(elements.active, imp, 0.5), torch.where(elements.active, slope, 0.0)
    rows = torch.stack([stiffness, damping, imp, slope, pos, margin, elements.diag], dim=-1)[p.element]
    imp, diag = rows[:, 2], rows[:, 6]
    if m.opt.enabled(EnableBit.DIAGEXACT):
        diag = exact_diagonal(m, d, J, diag)
    R = torch.where(active, ((1 - imp) / imp * diag).clamp(min=MIN_VALUE), 1.0)
    if p.has_rigid_row and R.dtype == torch.float32:
        stored = torch.cat([families[0][:0], *families[:-1]]) if p.nc and m.plan.solver.parts else J
        R = resolved(m, d, stored, R, active)
    if p.nc and p.contact.max_dim > 1:
        R = torch.cat([R[: -p.nc], R[-p.nc :] * regularizer_scale(m, d)])
    row_pos = torch.cat([equality_pos, rows[p.ne :, 4]]) if p.ne else rows[:, 4]
    ne, nf, nl = (x.sum() for x in active.split([p.ne, p.nf, p.nl, p.nc])[:3])
    return d.replace(
        ne=ne,
        nf=nf,
        nl=nl,
        nefc=active.sum(),
        efc_J=J,
        efc_pos=row_pos,
        efc_margin=rows[:, 5],
        efc_frictionloss=F.pad(frictionloss(m), (p.ne, p.nl + p.nc)) if p.nf else torch.zeros_like(R),
        efc_diagA=R * imp / (1 - imp),
        efc_KBIP=rows[:, :4],
        efc_D=torch.where(active, 1 / R, 0.0),
        efc_R=R,
    )


def may_act(m: Model, d: Data) -> Tensor:
    """(nefc,) bool: the rows of what is awake; none for contacts with what sleeps on until the next step."""
    (p,), touching = m.plan.sleep, colliders(m, d)[: len(m.plan.constraint.contact.slot_rows)]
    touches = p.carrier[touching]
    rests = ((touches < m.ntree) & ~awake(m, d, touches)).any(1)
    return torch.cat([any_awake(m, d, p.row), ~rests[m.plan.constraint.contact.slot]])


def assemble(m: Model, d: Data) -> tuple[Elements, list[Tensor], Tensor]:
    """Elements of all families in C's order, J (n, nv) of each, and the error of each equality row (ne,).

    A family that is disabled after the model was put has rows, none of them active.
    """
    p = m.plan.constraint
    equality_pos = d.qpos.new_zeros(0)
    parts: list[Elements] = []
    jacobians: list[Tensor] = []

    def unless_disabled(elements: Elements, flag: DisableBit) -> Elements:
        if m.opt.disabled(flag | DisableBit.CONSTRAINT):
            return elements._replace(active=torch.zeros_like(elements.active))
        return elements

    def add(elements: Elements, J: Tensor, flag: DisableBit) -> None:
        parts.append(unless_disabled(elements, flag))
        jacobians.append(J)

    if p.ne:
        elements, J, equality_pos = equality(m, d)
        add(elements, J, DisableBit.EQUALITY)
    if p.friction_dof.shape[0]:
        add(*friction(m, d), DisableBit.FRICTIONLOSS)
    if p.tendon.friction.shape[0]:
        add(*tendon_friction(m, d), DisableBit.FRICTIONLOSS)
    if p.limit.joint.shape[0]:
        add(*limit(m, d), DisableBit.LIMIT)
    if p.tendon.limit.shape[0]:
        add(*tendon_limit(m, d), DisableBit.LIMIT)
    if p.nc:
        there = present(m, d)
        parts.append(unless_disabled(contact(m, d, there), DisableBit.CONTACT))
    elements = element.cat(parts)
    if p.nc:
        # After what masks it: so a compiler computes the rows that are there, and each is masked as it is computed.
        jacobians.append(contact_jacobian(m, d, there))
    return elements, jacobians, equality_pos


def exact_diagonal(m: Model, d: Data, J: Tensor, approximate: Tensor) -> Tensor:
    """Diagonal (nefc,) of `J M^-1 J^T`; the rows of a contact have that of its first row (mj_makeY).

    approximate: (nefc,) the diagonal by inverse weights. Of a row that nothing can change, such as a weld of what moves
    as one, single precision leaves a J of rounding errors; nothing below that part of `approximate` is resolved.
    """
    p = m.plan.constraint
    half = ltl_half_solve(d.qLD, J.mT)
    diag = (half * half).sum(0)
    if diag.dtype == torch.float32:
        diag = torch.maximum(diag, torch.finfo(diag.dtype).eps * approximate)
    if p.nc:
        diag = torch.cat([diag[: -p.nc], diag[-p.nc :][p.contact.first]])
    return diag


def reference_constraint(m: Model, d: Data) -> Data:
    """Velocity of the rows and the acceleration that they ask for (mj_referenceConstraint). Sets efc_vel, efc_aref.

    `aref = -B vel - K imp (pos - margin)`, less what connects and welds accelerate by themselves. The velocity of
    contacts is that of the surfaces; contacts that stick are asked for `R adhesion` more.
    """
    p = m.plan.constraint
    if p.nefc == 0:
        return d
    # Zero it is anyway where no row is; said so, it is not computed.
    vel = bodies.build(m, d).times(d.qvel) if m.plan.solver.bodies else d.efc_J @ d.qvel
    vel = torch.where(d.efc_D != 0, vel, 0.0)
    if p.nc and m.plan.collision.moving:
        sliding = torch.where(d.efc_D[-p.nc :] > 0, surface_velocity(m, d), 0.0)
        vel = torch.cat([vel[: -p.nc], vel[-p.nc :] + sliding])
    stiffness, damping, imp, _ = d.efc_KBIP.unbind(-1)
    aref = -damping * vel - stiffness * imp * (d.efc_pos - d.efc_margin)
    if p.nc and m.plan.collision.adhesion_source:
        aref = aref + F.pad(d.efc_R[-p.nc :] * row_adhesion(m, d), (p.nefc - p.nc, 0))
    if p.equality.nconnect + p.equality.nweld:
        aref = torch.cat([aref[: p.ne] - jac_dot_v(m, d), aref[p.ne :]])
    return d.replace(efc_vel=vel, efc_aref=aref)
