"""Contacts that stick (computation/index.rst, "Adhesion")."""

import torch
from torch import Tensor

from mjtorch.model import Data, Model
from mjtorch.smooth.passive_contact import is_passive


def adhesion(m: Model, d: Data) -> Tensor:
    """How hard (ncon,) [N] contacts can pull: both geoms together, that of higher priority, or the pair. Not flexes."""
    c, (source,) = d.contact, m.plan.collision.adhesion_source
    number, values = c.geom, [m.geom_adhesion, m.pair_adhesion]
    if m.plan.collision.touching:
        number = torch.where(c.flex < 0, c.geom, m.ngeom + c.flex)
        values.insert(1, m.geom_adhesion.new_zeros(m.nflex))
    row = source[number[:, 0].clamp(min=0), number[:, 1].clamp(min=0)]
    one, two = torch.cat(values)[row].unbind(-1)
    both = torch.where(row[:, 0] == row[:, 1], one, one + two)
    pulls = c.detected & ~is_passive(m, d) if m.plan.constraint.contact.passive else c.detected
    return torch.where(pulls, both, 0.0)


def acting(m: Model, d: Data) -> Tensor:
    """(ncon,) bool: contacts that exert forces, those that stick across a gap too."""
    active = d.contact.active & ~is_passive(m, d) if m.plan.constraint.contact.passive else d.contact.active
    return active | (adhesion(m, d) != 0) if m.plan.collision.adhesion_source else active


def pulled(m: Model, d: Data) -> Tensor:
    """(ncon,) bool: contacts that stick across a gap, without friction; those to come have theirs.

    For models in which contacts stick.
    """
    apart = (d.contact.dist >= d.contact.includemargin) & (adhesion(m, d) != 0)
    return apart & ~d.contact.speculative if m.plan.collision.speculative else apart


def cone_friction(m: Model, d: Data) -> Tensor:
    """Friction coefficients (ncon, 5) of the cones of contacts: none across a gap."""
    friction = d.contact.friction
    return torch.where(pulled(m, d)[:, None], 0.0, friction) if m.plan.collision.adhesion_source else friction


def used_rows(m: Model, d: Data) -> Tensor:
    """(nc,) bool: contact rows, but those that a contact across a gap has no use for: it has one along the normal."""
    p = m.plan.constraint.contact
    return (p.first == torch.arange(p.first.shape[0], device=p.first.device)) | ~pulled(m, d)[p.slot]


def row_adhesion(m: Model, d: Data) -> Tensor:
    """The part of it (nc,) [N] that each contact row has: normals have all, edges of pyramids equal shares."""
    p = m.plan.constraint.contact
    share = torch.where(pulled(m, d)[p.slot], used_rows(m, d), p.normal_share)
    return adhesion(m, d)[p.slot] * share


def adhesion_force(m: Model, d: Data) -> Tensor:
    """Generalised force (nv,) that pulls sticking geoms together along the normals of contacts (mj_adhesion)."""
    return -(row_adhesion(m, d) @ d.efc_J[-m.plan.constraint.nc :])
