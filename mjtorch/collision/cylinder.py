"""Contacts of cylinders with spheres."""

import torch
from torch import Tensor

from mjtorch.collision.contact_points import ContactPoints, Solid
from mjtorch.collision.sphere import core_to_core, surface
from mjtorch.math.vector import dot, norm


def sphere_cylinder(sphere: Solid, cylinder: Solid, reach: Tensor) -> ContactPoints:
    """One contact, with the side, a cap or a rim (mjc_SphereCylinder); from inside, with the nearer of side and cap."""
    radius, half_length = cylinder.size[:, :1], cylinder.size[:, 1:2]
    offset = sphere.pos - cylinder.pos
    along = dot(cylinder.axis, offset, keepdim=True)
    outwards = offset - cylinder.axis * along
    away = norm(outwards, keepdim=True)
    within, above = along.abs() < half_length, away < radius
    to_cap = half_length - along.abs() < radius - away
    side, cap = within & ~(above & to_cap), above & ~(within & ~to_cap)

    # The side acts as a sphere about the nearest point of the axis, a rim as its nearest point.
    up = torch.where(along > 0, cylinder.axis, -cylinder.axis)
    # Where it is a rim that is met, the centre of the sphere is not on the axis.
    scale = radius / torch.where(side | cap, 1.0, away)
    core = cylinder.pos + torch.where(side, cylinder.axis * along, up * half_length + outwards * scale)
    core_radius = torch.where(side, radius, 0.0)
    normal, distance = core_to_core(
        sphere.pos, core, sphere.axis, cylinder.axis, sphere.size[:, 0] + cylinder.size[:, 0]
    )
    height = along.abs() - half_length
    normal = torch.where(cap, -up, normal)
    distance = torch.where(cap, height, distance)
    core = torch.where(cap, sphere.pos - up * height, core)
    dist, pos = surface(distance, normal[:, None], core[:, None], sphere.size[:, :1], core_radius)
    return ContactPoints(dist, pos, normal[:, None], torch.ones_like(side))
