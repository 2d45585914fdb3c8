"""Surfaces that move while their geoms do not, such as conveyor belts (geom/surfacevel)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.constraint.contact import along_rows
from mjtorch.math.vector import basis, cross
from mjtorch.model import Data, Model


def surface_velocity(m: Model, d: Data) -> Tensor:
    """How fast (nc,) surfaces slide and spin along the contact rows, the second relative to the first.

    (mj_addSurfaceVel) The surface of a geom moves as a rigid body in its frame, as `geom_surfacevel` says, but never
    along the normal, nor does it make things roll.
    """
    c = d.contact
    geom = c.geom.clamp(min=0)
    field = m.geom_surfacevel[geom].unflatten(-1, (2, 3, 1))
    if m.plan.collision.touching:
        field = torch.where((c.geom >= 0)[..., None, None, None], field, 0.0)
    linear, angular = (d.geom_xmat[geom][:, :, None] @ field).squeeze(-1).unbind(2)
    linear = linear + cross(angular, c.pos[:, None] - d.geom_xpos[geom])
    slide, spin = ((c.frame @ (x[:, 1] - x[:, 0])[..., None]).squeeze(-1) for x in (linear, angular))
    velocity = slide * basis(slide, 0, 1, 1)
    if m.plan.constraint.contact.max_dim > 3:
        velocity = F.pad(velocity, (0, 3)) + F.pad(spin * basis(spin, 1, 0, 0), (3, 0))
    return along_rows(m, d, velocity.flatten()[:, None]).squeeze(1)
