"""Contacts of planes, spheres and capsules: all pairs of these together, as distances between their cores."""

import torch
from torch import Tensor

from mjtorch.collision.capsule import nearest_of_segments
from mjtorch.collision.plane import plane_point
from mjtorch.collision.sphere import core_to_core, nearest_on_segment, surface
from mjtorch.model import Data, Model


def round_contacts(m: Model, d: Data, axis: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dist (n,) [m], normal (n, 3) from 1 to 2, pos (n, 3) [m] and exists (n,) bool of the rows of these pairs.

    axis: (ngeom, 3) the z axes of the geoms. What does not exist is the second contact of capsules at an angle. The
    core of a plane is the plane, of a sphere its centre, of a capsule its axis.
    """
    p = m.plan.collision
    half_axis = axis * (m.geom_size[:, 1:2] * p.extent[:, 1:])
    radius = (m.geom_size[:, 0] * p.extent[:, 0])[p.core_geom]
    parts, exists = [], p.certain
    if p.plane.shape[1]:
        origin, center = d.geom_xpos[p.plane].unbind(0)
        normal, point = axis[p.plane[0]], center + p.plane_end * half_axis[p.plane[1]]
        parts.append(torch.cat([plane_point(origin, normal, point), normal, point], dim=-1))
    if p.round.shape[1]:
        point1, point2, parallel = round_points(m, d, axis, half_axis)
        axis1, axis2 = axis[p.round].unbind(0)
        normal, distance = core_to_core(point1, point2, axis1, axis2, radius[-len(point2) :].sum(-1))
        parts.append(torch.cat([distance, normal, point2], dim=-1))
        exists = exists if parallel is None else torch.cat([exists, parallel])
    distance, normal, point = torch.cat(parts).split([1, 3, 3], dim=-1)
    dist, pos = surface(distance[:, 0], normal, point, *radius.unbind(-1))
    return dist, normal, pos, exists


def round_points(m: Model, d: Data, axis: Tensor, half_axis: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Nearest points (n, 3) of the cores of spheres and capsules, and which pairs of capsules are parallel (ncapsule,).

    The second half of the capsule rows exists only for parallel ones.
    """
    p = m.plan.collision
    points1, points2, parallel = [], [], None
    if p.sphere.shape[1]:
        center1, center2 = d.geom_xpos[p.sphere].unbind(0)
        half_length = (m.geom_size[:, 1:2] * p.extent[:, 1:])[p.sphere[1]]
        points1.append(center1)
        points2.append(nearest_on_segment(center1, center2, axis[p.sphere[1]], half_length))
    if p.capsule.shape[1]:
        center1, center2 = d.geom_xpos[p.capsule].unbind(0)
        half1, half2 = half_axis[p.capsule].unbind(0)
        point1, point2, parallel = nearest_of_segments(center1, half1, center2, half2)
        points1.append(point1.flatten(0, 1))
        points2.append(point2.flatten(0, 1))
    return torch.cat(points1), torch.cat(points2), parallel
