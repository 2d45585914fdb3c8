"""What constraints do to bodies: the forces of contacts, and those that bodies exert on each other."""

import torch
from torch import Tensor

from mjtorch.constraint.equality import between, pairs, weld_scale
from mjtorch.constraint.tendon import tendon_actions
from mjtorch.model import Cone, Data, Model
from mjtorch.model.arguments import check_both, checked_ids
from mjtorch.model.touching import of_geoms
from mjtorch.smooth.adhesion import adhesion, cone_friction
from mjtorch.smooth.com import subtree_sum
from mjtorch.smooth.jacobian import applied_force, wrench_at
from mjtorch.smooth.rne import body_acceleration, body_force

# bodies (k,), the points (k, 3) [m] where something acts on them, its force (k, 3) [N] and torque (k, 3) [N m]
Action = tuple[Tensor, Tensor, Tensor, Tensor]


def contact_force(m: Model, d: Data, contact_id: int | Tensor | None = None, *, to_world_frame: bool = False) -> Tensor:
    """Force [N], then torque [N m] of every contact slot (n, 6), along the rows of `contact.frame` (mj_contactForce).

    It acts on the second geom, and its opposite on the first; the normal force is negative only where geoms stick. Zero
    for slots that make no constraint rows. Needs `efc_force`.

    Args:
        m, d: the model and its data.
        contact_id: a slot, for (6,), or (k,) int64 several, for (k, 6); not given: all of them.
        to_world_frame: in the axes of the world instead.

    Raises:
        TypeError, IndexError: there is no such slot.
    """
    check_both(m, d, "contact_force")
    if contact_id is not None:
        contact_id = checked_ids("contact_force", "contact_id", contact_id, len(d.contact.dim), d.qpos)
    force = _in_frames(m, d)
    if to_world_frame:
        force = (force.unflatten(1, (2, 1, 3)) @ d.contact.frame[:, None]).flatten(1)
    return force if contact_id is None else force[contact_id]


def contact_efc_address(m: Model, d: Data) -> Tensor:
    """The first constraint row of every contact slot (n,) int64, -1 where it makes none (mjContact.efc_address)."""
    p = m.plan.constraint
    if not p.nc:
        return torch.full_like(d.contact.geom1, -1)
    first = p.contact.slot_rows.amin(1)
    active = torch.cat([d.efc_D[-p.nc :], d.efc_D.new_zeros(1)])[first] > 0
    return torch.where(active, first + (p.nefc - p.nc), -1)


def _in_frames(m: Model, d: Data) -> Tensor:
    """Forces and torques (n, 6) along the rows of `contact.frame`."""
    p = m.plan.constraint
    if not p.nc:
        return d.contact.pos.new_zeros(len(d.contact.dim), 6)
    force = torch.cat([d.efc_force[-p.nc :], d.efc_force.new_zeros(1)])[p.contact.slot_rows]
    if m.opt.cone == Cone.PYRAMIDAL:
        plus, minus = force[:, 1:].unflatten(1, (-1, 2)).unbind(-1)
        force = torch.cat([force.sum(1, keepdim=True), (plus - minus) * cone_friction(m, d)], dim=1)
    if m.plan.collision.adhesion_source:
        force = torch.cat([force[:, :1] - adhesion(m, d)[:, None], force[:, 1:]], dim=1)
    return force


def rne_postconstraint(m: Model, d: Data) -> Data:
    """Accelerations of bodies and forces on them, once `qacc` and `efc_force` are known (mj_rnePostConstraint).

    Sets cacc, cfrc_ext and cfrc_int (nbody, 6), rotation or torque first, about the root's centre of mass in world
    axes. cacc contains minus gravity; cfrc_ext are contacts, connects, welds, spatial tendons and `xfrc_applied`, zero
    for the world; cfrc_int is what a body gets from its parent, for the world what everything needs from outside.
    Forces of springs, dampers, actuators and limits of joints are internal and so part of cfrc_int. Needs what
    `forward` computes.
    """
    cacc = body_acceleration(m, d, d.qacc)
    outside = torch.cat([torch.zeros_like(cacc[:1]), external_force(m, d)[1:]])
    return d.replace(cacc=cacc, cfrc_ext=outside, cfrc_int=subtree_sum(m, body_force(d, cacc) - outside))


def external_force(m: Model, d: Data) -> Tensor:
    """Spatial force (nbody, 6) on each body by contacts, connects, welds, spatial tendons and `xfrc_applied`."""
    p, root = m.plan.constraint, m.plan.kinematics.body_root
    total = applied_force(m, d)
    actions: list[Action] = []
    if p.nc:
        actions.append(contact_actions(m, d))
    if p.equality.nconnect + p.equality.nweld:
        actions.append(pair_actions(m, d))
    if m.plan.tendon.first.shape[0]:
        actions.append(tendon_actions(m, d))
    if not actions:
        return total
    body, point, force, torque = (torch.cat(x) for x in zip(*actions, strict=True))
    return total.index_add(0, body, wrench_at(force, torque, point - d.subtree_com[root[body]]))


def contact_actions(m: Model, d: Data) -> Action:
    """What contacts of two geoms do to the bodies of the first ones, then to those of the second."""
    c, only = d.contact, of_geoms(m, d)
    body = m.plan.constraint.contact.geom_body[c.geom.clamp(min=0)]
    wrench = contact_force(m, d, to_world_frame=True)
    if only is not None:
        wrench = torch.where(only[:, None], wrench, 0.0)
    force, torque = wrench.unflatten(1, (2, 3)).unbind(1)
    return body.mT.flatten(), c.pos.repeat(2, 1), torch.cat([-force, force]), torch.cat([-torque, torque])


def pair_actions(m: Model, d: Data) -> Action:
    """What connects and welds do to their first bodies, then to their second."""
    p = m.plan.constraint.equality
    pair, npair = pairs(m, d), p.nconnect + p.nweld
    efc_force = d.efc_force[: m.plan.constraint.ne]
    if not p.in_order:
        efc_force = efc_force[p.row]
    force = efc_force[: 3 * npair].unflatten(0, (npair, 3))
    torque = torch.zeros_like(force)
    if p.nweld:
        # A weld's rows measure half the vector part of a quaternion: what does work with them is the torque.
        rows = efc_force[3 * npair : 3 * (npair + p.nweld)].unflatten(0, (p.nweld, 3))
        world = torch.eye(4, dtype=rows.dtype, device=rows.device)[1:, None]
        rate = 0.5 * weld_scale(m) * between(pair, world.expand(3, p.nweld, 4))
        torque = torch.cat([torque[: p.nconnect], (rate * rows).sum(-1).mT])
    return p.body.flatten(), pair.anchor.flatten(0, 1), torch.cat([force, -force]), torch.cat([torque, -torque])
