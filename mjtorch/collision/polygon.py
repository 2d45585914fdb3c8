"""Convex polygons of up to so many corners: clipping them."""

import torch
from torch import Tensor

from mjtorch.collision.contact_points import first_of

# Corners whose squared distance is below this share of the squared size of the face are one; as in C.
SAME_SINGLE, SAME_DOUBLE = 1e-10, 1e-14


def clipped(corner: Tensor, half: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
    """What of convex polygons (n, v, 3) lies within rectangles `half` (n, 2) about the origin in x and y.

    slack: (n, 1) [m] how far from a side of the rectangle a corner is on it. z is interpolated. Returns corners
    (n, v + 4, 3) in their order, those that are spare are zero, and how many of them there are, (n, 1).
    """
    count = torch.full_like(corner[:, 0, :1], corner.shape[1], dtype=torch.int64)
    corner, count = clip(corner, count, half, slack, 0)
    return clip(corner, count, half, slack, 1)


def clip(corner: Tensor, count: Tensor, half: Tensor, slack: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """What of convex polygons (n, v, 3) is between -half and half (n, 2) [m] along an axis, 0 or 1.

    count: (n, 1) the corners that there are. Returns two corners more, (n, v + 2, 3), and the new count.
    """
    index = torch.arange(corner.shape[1], device=corner.device)
    last = (index + 1 == count)[..., None]
    side = torch.where(last, corner[:, :1], torch.cat([corner[:, 1:], corner[:, :1]], dim=1)) - corner
    start, way, half = corner[..., axis], side[..., axis], half[:, axis : axis + 1]
    # Each corner begins a side, which may enter through one line and then leave through the other.
    lines = torch.stack([-half, half], dim=-1)
    lines = torch.where(way[..., None] < 0, -lines, lines)
    ahead, left = lines - start[..., None], lines - (start + way)[..., None]
    # A corner on a line needs no other in its place.
    crosses = (ahead * left < 0) & (torch.minimum(ahead.abs(), left.abs()) > slack[..., None])
    share = ahead / way[..., None].masked_fill(~crosses, 1.0)
    crossing = corner[:, :, None] + share[..., None] * side[:, :, None]
    all_corners = torch.cat([corner[:, :, None], crossing], dim=2).flatten(1, 2)
    inside = torch.cat([(start.abs() <= half + slack)[..., None], crosses], dim=2)
    there = (inside & (index < count)[..., None]).flatten(1, 2)
    chosen = first_of(there, corner.shape[1] + 2).to(corner.dtype)
    return chosen @ all_corners, there.sum(-1, keepdim=True)


def distinct(corner: Tensor, count: Tensor, wanted: Tensor, half: Tensor) -> Tensor:
    """Which corners (n, v) of those `wanted` (n, v) bool there are, without those too near to one before."""
    index = torch.arange(corner.shape[1], device=corner.device)
    there = wanted & (index < count)
    gap = corner[:, :, None, :2] - corner[:, None, :, :2]
    same = SAME_DOUBLE if corner.dtype is torch.float64 else SAME_SINGLE
    near = (gap * gap).sum(-1) < same * (half * half).sum(-1)[:, None, None]
    before = index < index[:, None]
    return there & ~(near & before & there[:, None]).any(-1)
