"""Contacts of planes."""

import torch
from torch import Tensor

from mjtorch.collision.contact_points import ContactPoints, Solid, first_of
from mjtorch.math.vector import dot

# The corners of a box: x changes first.
CORNERS = tuple((2.0 * (i & 1) - 1, (i & 2) - 1.0, (i & 4) / 2 - 1) for i in range(8))


def plane_point(origin: Tensor, normal: Tensor, point: Tensor) -> Tensor:
    """Signed height (..., 1) [m] of `point` above the plane through `origin` with unit `normal`, all (..., 3) [m].

    The core of mjc_PlaneSphere and, applied to both ends of the axis, of mjc_PlaneCapsule: a capsule touches a plane
    with the two spheres at its ends.
    """
    return dot(point - origin, normal, keepdim=True)


def touching_plane(normal: Tensor, dist: Tensor, point: Tensor, exists: Tensor) -> ContactPoints:
    """Contacts at points (n, k, 3) [m] whose height above a plane is `dist` (n, k) [m]; normal: (n, 3)."""
    normals = normal[:, None].expand(point.shape)
    return ContactPoints(dist, point - 0.5 * dist[..., None] * normals, normals, exists)


def plane_box(plane: Solid, box: Solid, reach: Tensor) -> ContactPoints:
    """The first four corners that are within reach and lower than the centre of the box (mjc_PlaneBox)."""
    normal = plane.axis
    signs = torch.tensor(CORNERS, dtype=normal.dtype, device=normal.device)
    corner = (signs * box.size[:, None]) @ box.mat.mT
    rise = dot(corner, normal[:, None])
    height = plane_point(plane.pos, normal, box.pos) + rise
    chosen = first_of((rise <= 0) & (height <= reach[:, None]), 4)
    weight = chosen.to(normal.dtype)
    point = box.pos[:, None] + weight @ corner
    return touching_plane(normal, dot(weight, height[:, None]), point, chosen.any(-1))
