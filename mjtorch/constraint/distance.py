"""Contacts from a distance: forces that only derivatives see (arXiv 2506.14186 has the idea)."""

import torch
from torch import Tensor

from mjtorch.collision import collision
from mjtorch.constraint.contact import contact_jacobian, inverse_weight
from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Data, Model


def force_from_distance(m: Model, d: Data) -> Tensor:
    """Forces (nv,) [N or N m] between geoms that nearly touch, as `Gradient.distance` says; not in C.

    A contact that is further apart than its margin by `gap`, and less than `width`, pushes with
    `(width - gap)^2 / (2 width timeconst^2 weight)`: force and stiffness begin at zero, and where the geoms touch the
    stiffness is that of a contact with that time constant. Geoms that touch are left to the constraints.
    """
    (s,) = m.settings.distance
    wide = m.replace(
        geom_gap=m.geom_gap + 0.5 * s.width,
        flex_gap=m.flex_gap + 0.5 * s.width,
        pair_gap=m.pair_gap + s.width,
        plan=m.plan.replace(collision=s.collision, constraint=m.plan.constraint.replace(contact=s.contact)),
    )
    near = d.replace(contact=collision(wide, d).contact)
    c = near.contact
    gap = c.dist - c.includemargin
    apart = c.detected & (gap > 0) & (gap < s.width)
    depth = torch.where(apart, s.width - gap, 0.0)
    weight = inverse_weight(wide, near).clamp(min=MIN_VALUE)
    force = depth * depth / (2 * s.width * s.timeconst * s.timeconst * weight)
    return force @ contact_jacobian(wide, near, c.detected)
