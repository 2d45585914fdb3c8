"""Contacts of spheres and capsules pair by pair, for models with so many pairs that only near ones are looked at."""

import torch
from torch import Tensor

from mjtorch.collision.capsule import nearest_of_segments
from mjtorch.collision.contact_points import ContactPoints, Solid
from mjtorch.collision.sphere import core_to_core, nearest_on_segment, surface


def sphere_sphere(one: Solid, two: Solid, reach: Tensor) -> ContactPoints:
    """One contact (mjc_SphereSphere)."""
    return _contacts(one, two, one.pos[:, None], two.pos[:, None])


def sphere_capsule(sphere: Solid, capsule: Solid, reach: Tensor) -> ContactPoints:
    """One contact, with the nearest point of the axis (mjc_SphereCapsule)."""
    nearest = nearest_on_segment(sphere.pos, capsule.pos, capsule.axis, capsule.size[:, 1:2])
    return _contacts(sphere, capsule, sphere.pos[:, None], nearest[:, None])


def capsule_capsule(one: Solid, two: Solid, reach: Tensor) -> ContactPoints:
    """One contact, or two of capsules that are parallel (mjc_CapsuleCapsule)."""
    half1, half2 = (solid.axis * solid.size[:, 1:2] for solid in (one, two))
    point1, point2, parallel = nearest_of_segments(one.pos, half1, two.pos, half2)
    found = _contacts(one, two, point1.transpose(0, 1), point2.transpose(0, 1))
    return found._replace(exists=torch.stack([torch.ones_like(parallel), parallel], dim=-1))


def _contacts(one: Solid, two: Solid, point1: Tensor, point2: Tensor) -> ContactPoints:
    """The contacts of round geoms whose cores are nearest at `point1`, `point2` (n, k, 3) [m]."""
    axis1, axis2 = (solid.axis[:, None].expand_as(point1) for solid in (one, two))
    normal, distance = core_to_core(point1, point2, axis1, axis2, one.size[:, :1] + two.size[:, :1])
    dist, pos = surface(distance[..., 0], normal, point2, one.size[:, :1], two.size[:, :1])
    return ContactPoints(dist, pos, normal, torch.ones_like(dist, dtype=torch.bool))
