"""Contact frames."""

import torch
from torch import Tensor

from mjtorch.collision.rounding import blur
from mjtorch.math.vector import cross, dot


def make_frame(normal: Tensor, axis: Tensor | None = None, aligned: Tensor | None = None) -> Tensor:
    """Frames (n, 3, 3) with rows normal, tangent 1, tangent 2 (mju_makeFrame).

    normal: (n, 3) unit. Tangent 1 is y made orthogonal to the normal, or z where the normal is nearer to y than 60
    degrees. Where `aligned (n, 1)`, it is `axis (n, 3)` instead; should that be parallel to the normal, x, or y where
    the normal is nearer to x than 60 degrees (C uses x then, and its frame is not orthogonal).
    """
    x, y, z = torch.eye(3, dtype=normal.dtype, device=normal.device).unbind(0)
    tangent = torch.where(normal[:, 1:2].abs() < 0.5, y, z)
    if axis is not None and aligned is not None:
        across = axis - normal * dot(normal, axis, keepdim=True)
        degenerate = dot(across, across, keepdim=True) < blur(normal.dtype) ** 2
        spare = torch.where(normal[:, :1].abs() < 0.5, x, y)
        tangent = torch.where(aligned, torch.where(degenerate, spare, axis), tangent)
    # Never of zero length: what is made orthogonal here is not parallel to the normal.
    tangent = tangent - normal * dot(normal, tangent, keepdim=True)
    tangent = tangent * dot(tangent, tangent, keepdim=True).rsqrt()
    return torch.stack([normal, tangent, cross(normal, tangent)], dim=1)
