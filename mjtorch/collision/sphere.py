"""Contact of round geoms once the nearest points of their cores (centre, axis) are known."""

import torch
from torch import Tensor

from mjtorch.collision.rounding import blur
from mjtorch.math.vector import MIN_VALUE, cross, dot, normalize


def nearest_on_segment(point: Tensor, center: Tensor, axis: Tensor, half_length: Tensor) -> Tensor:
    """The point (..., 3) of a segment that is nearest to `point (..., 3)` [m] (mjc_SphereCapsule).

    center: (..., 3) [m], axis: (..., 3) unit, half_length: (..., 1) [m]; a length of zero makes the segment a point.
    """
    along = (axis * (point - center)).sum(-1, keepdim=True)
    return center + axis * torch.maximum(torch.minimum(along, half_length), -half_length)


def core_to_core(point1: Tensor, point2: Tensor, axis1: Tensor, axis2: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
    """Normal (..., 3) from core point 1 to core point 2 and the distance (..., 1) [m] between them (mjc_SphereSphere).

    point1, point2: (..., 3) [m]; radii: (...) [m] their sum. Where the points coincide up to rounding, as those of axes
    that cross do, the normal is along the cross product of the geoms' z axes, `axis1` and `axis2` (..., 3); where these
    are parallel too, it is x. The distance is along the normal.
    """
    gap, unit = point2 - point1, blur(point1.dtype)
    x = torch.eye(1, 3, dtype=axis1.dtype, device=axis1.device)
    sideways, _ = normalize(cross(axis1, axis2), x, unit)
    limit = (unit * (point2.abs().sum(-1) + radii)).clamp(min=MIN_VALUE)[..., None]
    normal, _ = normalize(gap, sideways, limit)
    return normal, dot(gap, normal, keepdim=True)


def surface(
    distance: Tensor, normal: Tensor, point2: Tensor, radius1: Tensor, radius2: Tensor
) -> tuple[Tensor, Tensor]:
    """Distance (...) [m] between two round surfaces and the point (..., 3) [m] midway between them.

    distance: (...) [m] between the cores, normal: (..., 3) from 1 to 2, point2: (..., 3) [m] on core 2,
    radius1, radius2: (...) [m]; a plane has radius zero. The distance is negative in penetration.
    """
    dist = distance - radius1 - radius2
    return dist, point2 - normal * (radius2 + 0.5 * dist)[..., None]
