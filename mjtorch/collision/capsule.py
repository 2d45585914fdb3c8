"""Nearest points of two segments, the cores of capsules."""

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE, cross, dot

# sin^2 of the angle below which C takes two axes as parallel.
PARALLEL = 1e-8


def nearest_of_segments(
    center1: Tensor, half_axis1: Tensor, center2: Tensor, half_axis2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest points of segments `center -+ half_axis`, all (n, 3) [m] (mjc_CapsuleCapsule).

    Returns points on segment 1 and on segment 2, (2, n, 3), and `parallel (n,)` bool. Segments at an angle have one
    pair of nearest points, in row 0 (row 1 then is finite but means nothing). Parallel segments have two: at both ends
    of segment 1, or, where those lie beyond segment 2, at its ends.

    With points p = a + s u and q = c + t v, 0 <= s, t <= 1, and w = a - c: for crossing lines
    s = (u x v) . (v x w) / |u x v|^2, and the t nearest to a given s is (u . v s + v . w) / v . v.
    """
    a, u = center1 - half_axis1, 2 * half_axis1
    c, v = center2 - half_axis2, 2 * half_axis2
    w = a - c
    uu, vv, uv, uw, vw = dot(u, u), dot(v, v), dot(u, v), dot(u, w), dot(v, w)
    point1, point2 = uu <= MIN_VALUE, vv <= MIN_VALUE
    uu_safe, vv_safe = uu.masked_fill(point1, 1.0), vv.masked_fill(point2, 1.0)
    # The s that is nearest to t = 0 and to t = 1.
    s_start, s_end = (-uw / uu_safe).clamp(0.0, 1.0), ((uv - uw) / uu_safe).clamp(0.0, 1.0)

    across = cross(u, v)
    det = dot(across, across)
    crossing = det > PARALLEL * uu * vv
    s = (dot(across, cross(v, w)) / det.masked_fill(~crossing, 1.0)).clamp(0.0, 1.0)
    # Nearest to a single point on segment 2 is what is nearest to its start.
    s = torch.where(crossing, s, s_start.masked_fill(~point2, 0.0))
    s = torch.stack([s, torch.ones_like(s)])
    t = (uv * s + vw) / vv_safe
    s = torch.where(t < 0, s_start, torch.where(t > 1, s_end, s))
    t = t.clamp(0.0, 1.0)
    return a + s[..., None] * u, c + t[..., None] * v, ~(crossing | point1 | point2)
