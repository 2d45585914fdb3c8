"""Distances between geoms (mj_geomDistance)."""

import torch
from torch import Tensor

from mjtorch.collision.convex import closest
from mjtorch.collision.support import Convex, from_first


def geom_distance(
    shape1: Convex, shape2: Convex, distmax: Tensor, *, iterations: int = 35, tolerance: float | Tensor = 1e-6
) -> tuple[Tensor, Tensor]:
    """The signed distances of n pairs of convex geoms, and the points where they are nearest (mj_geomDistance).

    distmax: (n,) [m] distances are at most that; iterations, tolerance [m]: mjOption.ccd_iterations, ccd_tolerance

    Returns dist (n,) [m], negative in penetration, and fromto (n, 2, 3) [m], a point on geom 1 and one on geom 2; zero
    where the geoms are further apart than `distmax`.
    """
    shape1, shape2, origin = from_first(shape1, shape2)
    found = closest(shape1, shape2, iterations, tolerance).nearest
    near = found.dist < distmax
    fromto = torch.stack([found.point1, found.point2], dim=1) + origin[:, None]
    return torch.where(near, found.dist, distmax), torch.where(near[:, None, None], fromto, 0.0)
