"""Contacts of planes."""

import torch
from torch import Tensor

from mjtorch.collision.contact_points import ContactPoints, Solid, first_of
from mjtorch.collision.rounding import blur
from mjtorch.math.vector import cross, dot, normalize
from mjtorch.smooth.object import to_local

# The corners of a box: x changes first.
CORNERS = tuple((2.0 * (i & 1) - 1, (i & 2) - 1.0, (i & 4) / 2 - 1) for i in range(8))


def plane_point(origin: Tensor, normal: Tensor, point: Tensor) -> Tensor:
    """Signed height (..., 1) [m] of `point` above the plane through `origin` with unit `normal`, all (..., 3) [m].

    The core of mjc_PlaneSphere and, applied to both ends of the axis, of mjc_PlaneCapsule: a capsule touches a plane
    with the two spheres at its ends.
    """
    return dot(point - origin, normal, keepdim=True)


def touching_plane(plane: Solid, point: Tensor, exists: Tensor) -> ContactPoints:
    """Contacts of planes at points (n, k, 3) [m] of the other surfaces; exists: (n, k) bool."""
    normal = plane.axis[:, None].expand(point.shape)
    dist = dot(point - plane.pos[:, None], normal)
    return ContactPoints(dist, point - 0.5 * dist[..., None] * normal, normal, exists)


def plane_box(plane: Solid, box: Solid, reach: Tensor) -> ContactPoints:
    """The first four corners that are within reach and no higher than the centre of the box (mjc_PlaneBox)."""
    normal = plane.axis
    signs = torch.tensor(CORNERS, dtype=normal.dtype, device=normal.device)
    corner = (signs * box.size[:, None]) @ box.mat.mT
    rise = dot(corner, normal[:, None])
    height = plane_point(plane.pos, normal, box.pos) + rise
    chosen = first_of((rise <= 0) & (height <= reach[:, None]), 4)
    return touching_plane(plane, box.pos[:, None] + chosen.to(normal.dtype) @ corner, chosen.any(-1))


def plane_cylinder(plane: Solid, cylinder: Solid, reach: Tensor) -> ContactPoints:
    """The lowest points of the lower and the upper rim, and two more of the lower one, a third of a turn away each.

    (mjc_PlaneCylinder) Where the axis is along the normal, the local x axis says which points are the lowest; where it
    is across it, the upper rim comes first.
    """
    normal, axis = plane.axis, cylinder.axis
    rise = dot(axis, normal, keepdim=True)
    down = torch.where(rise > blur(normal.dtype), -axis, axis)
    sink = down * dot(down, normal, keepdim=True) - normal
    square = dot(sink, sink, keepdim=True)
    upright = square < blur(normal.dtype) ** 2
    lowest = torch.where(upright, cylinder.mat[..., 0], sink * square.masked_fill(upright, 1.0).rsqrt())
    radius, half_length = cylinder.size[:, :1], cylinder.size[:, 1:2]
    aside, down = (0.75**0.5 * radius) * cross(lowest, down), half_length * down
    lowest = radius * lowest
    offset = torch.stack(
        [lowest + down, lowest - down, down + aside - 0.5 * lowest, down - aside - 0.5 * lowest], dim=1
    )
    return touching_plane(plane, cylinder.pos[:, None] + offset, torch.ones_like(offset[..., 0], dtype=torch.bool))


def plane_ellipsoid(plane: Solid, ellipsoid: Solid, reach: Tensor) -> ContactPoints:
    """The lowest point of the ellipsoid (mjc_PlaneConvex)."""
    scaled = -to_local(ellipsoid.mat, plane.axis) * ellipsoid.size
    lowest, _ = normalize(scaled, ellipsoid.mat[..., 0])
    point = (ellipsoid.mat @ (ellipsoid.size * lowest)[..., None])[..., 0] + ellipsoid.pos
    return touching_plane(plane, point[:, None], torch.ones_like(point[:, :1], dtype=torch.bool))
