"""Contacts of convex shapes that have no formula of their own (mjc_Convex)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.epa import epa
from mjtorch.collision.gjk import gjk
from mjtorch.collision.support import Convex, detach, radius, support
from mjtorch.collision.witness import Nearest, witness
from mjtorch.math.shape import Shape
from mjtorch.math.vector import dot, norm


class Contacts(NamedTuple):
    """Contacts of n pairs of geoms, k for each.

    dist: (n, k) [m], pos: (n, k, 3) [m] halfway between the surfaces, normal: (n, 3) from 1 to 2
    exists: (n, k) bool, whatever the distance
    """

    dist: Tensor
    pos: Tensor
    normal: Tensor
    exists: Tensor


def convex(shape1: Convex, shape2: Convex, iterations: int = 35, tolerance: float = 1e-6) -> Contacts:
    """The contact of each of n pairs of shapes (mjc_Convex).

    iterations, tolerance [m]: mjOption.ccd_iterations, ccd_tolerance
    """
    found = nearest(shape1, shape2, iterations, tolerance)
    pos = 0.5 * (found.point1 + found.point2)
    exists = torch.ones_like(found.dist, dtype=torch.bool)
    return Contacts(found.dist[:, None], pos[:, None], found.normal, exists[:, None])


def nearest(shape1: Convex, shape2: Convex, iterations: int, tolerance: float) -> Nearest:
    """The points of n pairs of shapes that are nearest to each other, or deepest in each other."""
    fixed1, fixed2 = detach(shape1), detach(shape2)

    def furthest(direction: Tensor) -> tuple[Tensor, Tensor]:
        return support(fixed1, -direction), support(fixed2, direction)

    start = fixed2.pos - fixed1.pos
    apart = gjk(furthest, start, iterations, tolerance)
    distance = norm(apart.nearest, keepdim=True)
    touch = distance <= tolerance
    deep = epa(furthest, start, touch[:, 0], iterations, tolerance)

    normal = torch.where(touch, -deep.normal, apart.nearest / torch.where(touch, 1.0, distance))
    corner = touch[..., None]
    corner1 = torch.where(corner, torch.nn.functional.pad(deep.point1, (0, 0, 0, 1)), apart.point1)
    corner2 = torch.where(corner, torch.nn.functional.pad(deep.point2, (0, 0, 0, 1)), apart.point2)
    weight = torch.where(touch, torch.nn.functional.pad(deep.weight, (0, 1)), apart.weight)
    point1, point2 = (weight[..., None] * corner1).sum(1), (weight[..., None] * corner2).sum(1)
    if {Shape.ELLIPSOID, Shape.CYLINDER} & {shape1.type, shape2.type}:
        # Not converged: what is known best is a direction, not a face.
        coarse = touch & (deep.reach[:, 3:] > deep.depth[:, None] + tolerance)
        normal = torch.where(coarse, -deep.reach[:, :3], normal)
    cores = Nearest(normal, dot(normal, point2 - point1), point1, point2)
    cores = witness(shape1, shape2, cores, corner1, corner2, weight)
    radius1, radius2 = radius(shape1), radius(shape2)
    return Nearest(
        cores.normal,
        cores.dist - radius1 - radius2,
        cores.point1 + radius1[:, None] * cores.normal,
        cores.point2 - radius2[:, None] * cores.normal,
    )
