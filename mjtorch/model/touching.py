"""What touches in contacts."""

import torch
from torch import Tensor

from mjtorch.model.data import Data
from mjtorch.model.model import Model


def colliders(m: Model, d: Data) -> Tensor:
    """(ncon, 2) the numbers of what touches: geoms, then vertices, then elements of flexes.

    Of empty slots what would touch there, if that is known, else 0.
    """
    if m.plan.collision.fixed:
        return m.plan.collision.geom
    c, first = d.contact, m.plan.collision.first_vertex
    geom = c.geom.clamp(min=0)
    if not first.shape[0]:
        return geom
    flex = c.flex.clamp(min=0)
    number = first[flex] + c.vert
    if m.plan.collision.corner.shape[0]:
        number = torch.where(c.vert < 0, m.plan.collision.first_element[flex] + c.elem, number)
    return torch.where(c.flex < 0, geom, number)


def of_geoms(m: Model, d: Data) -> Tensor | None:
    """(ncon,) bool: contacts of two geoms, not of flexes; None: all are."""
    return (d.contact.flex < 0).all(1) if m.plan.collision.touching else None
