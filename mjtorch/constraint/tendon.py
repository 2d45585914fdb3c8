"""What spatial tendons do to the bodies that they touch (mj_rnePostConstraint, from MuJoCo 3.14 on)."""

import torch
from torch import Tensor

from mjtorch.constraint.equality import scalar_slope
from mjtorch.constraint.limit import tendon_side
from mjtorch.model import Data, DisableBit, Model
from mjtorch.smooth.reflected import tendon_armature
from mjtorch.smooth.tendon import lines, tendon_damper, tendon_spring, tendon_swing


def tendon_force(m: Model, d: Data) -> Tensor:
    """Force (ntendon,) [N] along each tendon, positive where it pushes its ends apart.

    By springs, dampers, actuators, friction loss, limits, equality constraints, and the inertia of accelerated
    armature. Needs what `forward` computes.
    """
    p, tendons, actuation = m.plan.constraint, m.plan.tendon, m.plan.transmission
    force = torch.zeros_like(d.ten_length)
    if tendons.springs and not m.opt.disabled(DisableBit.SPRING):
        force = force + tendon_spring(m, d)
    if tendons.dampers and not m.opt.disabled(DisableBit.DAMPER):
        force = force + tendon_damper(m, d)
    if tendons.armature:
        force = force - tendon_armature(m) * (d.ten_J @ d.qacc + tendon_swing(m, d))
    if actuation.pulling.shape[0]:
        k = actuation.pulling
        force = force.index_add(0, actuation.pulled, m.actuator_gear[k, 0] * d.actuator_force[k])
    _, rubbing = d.efc_force[p.ne : p.ne + p.nf].split([p.friction_dof.shape[0], p.tendon.friction.shape[0]])
    if p.tendon.friction.shape[0]:
        force = force.index_add(0, p.tendon.friction, rubbing)
    if p.tendon.limit.shape[0]:
        stop = p.ne + p.nf + p.nl
        limits = d.efc_force[stop - p.tendon.limit.shape[0] : stop]
        force = force.index_add(0, p.tendon.limit, tendon_side(m, d) * limits)
    return force + equality_force(m, d) if p.equality.ntendon else force


def equality_force(m: Model, d: Data) -> Tensor:
    """Force (ntendon,) [N] of the equality constraints between tendons."""
    p = m.plan.constraint.equality
    rows = d.efc_force[: m.plan.constraint.ne]
    if not p.in_order:
        rows = rows[p.row]
    rows = rows[-p.ntendon :]
    there = p.tendon_there[1, :, 0]
    both = torch.cat([rows, -scalar_slope(m, d)[-p.ntendon :] * there * rows])
    return torch.zeros_like(d.ten_length).index_add(0, p.tendon.flatten(), both)


def tendon_actions(m: Model, d: Data) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What spatial tendons do to the bodies where their straight lines begin, then to those where they end.

    A line pushes its end along itself and its beginning back, with its share of the tendon's force: the rate of work is
    that of the force and the tendon's length. Curves on geoms act where lines touch the geom.
    """
    path = lines(m, d)
    force = (path.share * (tendon_force(m, d) @ m.plan.tendon.line_tendon))[:, None] * path.along
    forces = torch.cat([-force, force])
    return m.plan.tendon.line_body.flatten(), path.pos.flatten(0, 1), forces, torch.zeros_like(forces)
