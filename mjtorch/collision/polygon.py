"""Convex polygons of up to so many corners: clipping them."""

import torch
from torch import Tensor

from mjtorch.collision.contact_points import first_of

# Corners whose squared distance is below this share of the squared size of the face are one; as in C.
SAME_SINGLE, SAME_DOUBLE = 1e-10, 1e-14


def clipped(corner: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """What of convex polygons (n, v, 3) lies within rectangles `half` (n, 2) about the origin in x and y.

    z is interpolated. Returns corners (n, v + 4, 3) in their order, those that are spare are zero, and how many of them
    there are, (n, 1).
    """
    count = torch.full_like(corner[:, 0, :1], corner.shape[1], dtype=torch.int64)
    for axis in (0, 1):
        for side in (1, -1):
            corner, count = clip(corner, count, side * corner[..., axis] - half[:, axis : axis + 1])
    return corner, count


def clip(corner: Tensor, count: Tensor, beyond: Tensor) -> tuple[Tensor, Tensor]:
    """Cut off the part of convex polygons (n, v, 3) that is `beyond` (n, v) a line, at positive distances from it.

    count: (n, 1) the corners that there are. Returns one corner more, (n, v + 1, 3), and the new count.
    """
    index = torch.arange(corner.shape[1], device=corner.device)
    last = (index + 1 == count)[..., None]
    ahead = torch.cat([corner, beyond[..., None]], dim=-1)
    ahead = torch.where(last, ahead[:, :1], torch.cat([ahead[:, 1:], ahead[:, :1]], dim=1))
    following, beyond_next = ahead[..., :3], ahead[..., 3]
    crosses = ((beyond < 0) & (beyond_next > 0)) | ((beyond > 0) & (beyond_next < 0))
    share = beyond / (beyond - beyond_next).masked_fill(~crosses, 1.0)
    crossing = corner + share[..., None] * (following - corner)
    # Each corner is followed by the crossing of the side that it begins.
    both = torch.stack([corner, crossing], dim=2).flatten(1, 2)
    there = (torch.stack([beyond <= 0, crosses], dim=2) & (index < count)[..., None]).flatten(1, 2)
    chosen = first_of(there, corner.shape[1] + 1).to(corner.dtype)
    return chosen @ both, there.sum(-1, keepdim=True)


def distinct(corner: Tensor, count: Tensor, wanted: Tensor, half: Tensor) -> Tensor:
    """Which corners (n, v) of those `wanted` (n, v) bool there are, without those too near to one before."""
    index = torch.arange(corner.shape[1], device=corner.device)
    there = wanted & (index < count)
    gap = corner[:, :, None, :2] - corner[:, None, :, :2]
    same = SAME_DOUBLE if corner.dtype is torch.float64 else SAME_SINGLE
    near = (gap * gap).sum(-1) < same * (half * half).sum(-1)[:, None, None]
    before = index < index[:, None]
    return there & ~(near & before & there[:, None]).any(-1)
