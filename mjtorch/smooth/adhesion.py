"""Contacts that stick (computation/index.rst, "Adhesion")."""

import torch
from torch import Tensor

from mjtorch.model import Data, Model


def adhesion(m: Model, d: Data) -> Tensor:
    """How hard (ncon,) [N] active contacts can pull: both geoms together, that of higher priority, or the pair."""
    c, (source,) = d.contact, m.plan.collision.adhesion_source
    row = source[c.geom[:, 0].clamp(min=0), c.geom[:, 1].clamp(min=0)]
    one, two = torch.cat([m.geom_adhesion, m.pair_adhesion])[row].unbind(-1)
    both = torch.where(row[:, 0] == row[:, 1], one, one + two)
    return torch.where(c.active, both, 0.0)


def row_adhesion(m: Model, d: Data) -> Tensor:
    """The part of it (nc,) [N] that each contact row has: normals have all, edges of pyramids equal shares."""
    p = m.plan.constraint.contact
    return adhesion(m, d)[p.slot] * p.normal_share


def adhesion_force(m: Model, d: Data) -> Tensor:
    """Generalised force (nv,) that pulls sticking geoms together along the normals of contacts (mj_adhesion)."""
    return -(row_adhesion(m, d) @ d.efc_J[-m.plan.constraint.nc :])
