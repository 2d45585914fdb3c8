"""Contacts under pyramidal and elliptic friction cones (mj_instantiateContact)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.constraint.element import Elements
from mjtorch.constraint.wrench import along
from mjtorch.math.impedance import mixed
from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Cone, Data, Model
from mjtorch.model.touching import colliders
from mjtorch.smooth.adhesion import acting, cone_friction, pulled, used_rows
from mjtorch.smooth.carried import carriers, moved, touched
from mjtorch.smooth.jacobian import dof_motion
from mjtorch.smooth.rod import rod_directions, rod_rows

# mjMINMU: no contact has less friction; an empty slot has none
MIN_FRICTION = 1e-5


def contact_jacobian(m: Model, d: Data, there: Tensor) -> Tensor:
    """Velocity of the second geom relative to the first (nc, nv), along the directions that the cone is made of.

    Instead of a geom it may be a vertex or an element of a flex.
    Pyramidal: normal plus and minus friction times each other direction. Elliptic: normal, tangents, spin, rolls.
    there: (ncon,) bool, the contacts whose rows are of interest; others have zero.
    """
    p, c = m.plan.constraint.contact, d.contact
    point, motion = dof_motion(m, d)
    directions = along(c.frame, c.pos - point)
    if p.max_dim > 3:
        directions = torch.cat([directions, F.pad(c.frame, (0, 3))], dim=1)
    # Said to be zero where nothing is, it is not computed there.
    there = there[:, None, None]
    row = along_rows(m, d, torch.where(there, directions, 0.0).flatten(0, 1))
    J = (row @ motion.mT) * moved(m, d, there)[p.slot]
    for rods in p.rods:
        row = along_rows(m, d, rod_directions(m, d, rods, point, there))
        J = J + rod_rows(m, rods, colliders(m, d)[p.slot], row, motion)
    return J


def answered(m: Model, d: Data) -> Tensor:
    """(ncon,) bool: whether any dof moves the geoms of a contact relative to each other."""
    carrier = m.plan.constraint.contact.carrier[touched(m, d)]
    found = (carrier[:, 1:] != carrier[:, :1]).any(-1)
    for rods in m.plan.constraint.contact.rods:
        found = found | rods.moves[colliders(m, d)].any(-1)
    return found


def along_rows(m: Model, d: Data, directions: Tensor) -> Tensor:
    """What each contact row (nc, k) is made of, from what the directions of all contacts (n, k) are."""
    p = m.plan.constraint.contact
    row = directions[p.direction]
    if m.opt.cone == Cone.PYRAMIDAL and p.max_dim > 1:
        mu = cone_friction(m, d).flatten()[p.edge_mu] * p.edge_sign
        row = row + mu[:, None] * directions[p.edge]
    if m.plan.collision.adhesion_source:
        row = torch.where(used_rows(m, d)[:, None], row, 0.0)
    return row


def regularizer_scale(m: Model, d: Data) -> Tensor:
    """What the regularizer R of each contact row (nc,) is times that of the normal (mj_makeImpedance).

    Elliptic: R of friction is R of the normal over impratio, and `R mu^2` is the same in all friction directions.
    Pyramidal: all edges have the R that gives the friction impedance of the elliptic cone.
    """
    p, c = m.plan.constraint.contact, d.contact
    ratio = m.opt.impratio.clamp(min=MIN_VALUE)
    mu = c.friction.clamp(min=MIN_FRICTION)
    first = mu[:, :1]
    if m.opt.cone == Cone.ELLIPTIC:
        relative = first / mu
        table = F.pad(relative * relative / ratio, (1, 0), value=1.0)
        return table.flatten()[p.scale]
    edges = (2 * first * first / ratio).squeeze(1)
    has_edges = p.has_edges > 0
    if m.plan.collision.adhesion_source:
        has_edges = has_edges & ~pulled(m, d)
    return torch.where(has_edges, edges, 1.0)[p.scale]


def friction_reference(m: Model, d: Data) -> Tensor:
    """solref (ncon, 2) of friction under the elliptic cone: `solreffriction`, or `solref` where that is unset."""
    own, normal = d.contact.solreffriction, d.contact.solref
    return torch.where(((own != 0).any(-1) & ~mixed(own))[:, None], own, normal)


def inverse_weight(m: Model, d: Data) -> Tensor:
    """Inverse weights (ncon,) [1/kg] of the two bodies of each contact, added: about the inverse inertia along it.

    Zero in empty slots, for which nothing is looked up.
    """
    p = m.plan.constraint.contact
    if p.node_body.shape[1]:
        weight = (m.body_invweight0[p.node_body, 0] * p.node_share).sum(-1)
    else:
        weight = m.body_invweight0[p.geom_body, 0]
    if m.plan.collision.corner.shape[0]:
        number, share = (torch.cat(x, dim=1) for x in zip(*carriers(m, d), strict=True))
        return torch.where(d.contact.detected, (weight[number] * share).sum(-1), 0.0)
    return torch.where(d.contact.detected[:, None], weight[colliders(m, d)], 0.0).sum(-1)


def present(m: Model, d: Data) -> Tensor:
    """(ncon,) bool, the contacts that have rows."""
    return acting(m, d) & answered(m, d) if m.plan.constraint.contact.has_rigid else acting(m, d)


def contact(m: Model, d: Data, there: Tensor) -> Elements:
    """The elements of the contact slots: normals, then elliptic frictions; there: as of `present`."""
    p, c = m.plan.constraint.contact, d.contact
    weight = inverse_weight(m, d)
    if m.opt.cone == Cone.PYRAMIDAL and p.max_dim > 1:
        mu = cone_friction(m, d)[:, 0]
        weight = weight * (1 + mu * mu * p.has_edges)
    elements = Elements(solref=c.solref, solimp=c.solimp, pos=c.dist, margin=c.includemargin, diag=weight, active=there)
    if len(p.frictional):
        friction = Elements(*(x[p.frictional] for x in elements._replace(solref=friction_reference(m, d))))
        elements = Elements(*(torch.cat(x) for x in zip(elements, friction, strict=True)))
    return elements
