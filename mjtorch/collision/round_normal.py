"""Normals of contacts from where these are on round shapes (mjc_fixNormal).

A search by polytopes knows the place of a contact better than its normal: round shapes have one at every place.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch.collision.support import Core, to_local, to_world
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math.shape import Shape
from mjtorch.math.value import value_of
from mjtorch.math.vector import MIN_VALUE, basis, dot, norm, normalize

# What part of the length of a cylinder belongs to an end.
NEAR_END = 0.05
# How closely normals of ellipsoids are sought, and in how many trips at most.
CLOSELY, TRIPS = 1e-6, 30


def round_normals(shape1: Core, shape2: Core, pos: Tensor, normal: Tensor) -> Tensor:
    """Normals (n, 3) from 1 to 2 of contacts at `pos (n, 3)` [m]: of shapes that are round there, of two the mean.

    normal: (n, 3) those where neither is
    """
    outward1, is_round1 = outward(shape1, pos, normal)
    outward2, is_round2 = outward(shape2, pos, -normal)
    mean = normalize(outward1 - outward2, normal)[0]
    both, first, second = (x[:, None] for x in (is_round1 & is_round2, is_round1, is_round2))
    return torch.where(both, mean, torch.where(first, outward1, torch.where(second, -outward2, normal)))


def outward(shape: Core, pos: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """The outward normals (n, 3) of shapes at `pos (n, 3)` [m], and which are round there (n,) bool.

    normal: (n, 3) those of the others
    """
    at, found, is_round = to_local(shape, pos - shape.pos), normal, torch.zeros_like(pos[:, 0], dtype=torch.bool)
    for type, of in ROUND.items():
        if shape.has((type,)):
            turned, there = of(shape, at, to_local(shape, normal).detach())
            mine = there & shape.among((type,))
            found, is_round = torch.where(mine[:, None], to_world(shape, turned), found), is_round | mine
    return found, is_round


def _of_capsule(shape: Core, at: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Away from the axis, of which a sphere has no length."""
    half = shape.half[:, 2:]
    away = torch.cat([at[:, :2], at[:, 2:] - torch.minimum(torch.maximum(at[:, 2:], -half), half)], dim=-1)
    return normalize(away, basis(at, 1, 0, 0))[0], torch.ones_like(at[:, 0], dtype=torch.bool)


def of_cylinder(shape: Core, at: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Away from the axis, unless that is near an end, or much nearer to an end than to the side.

    shape: cylinders; at, normal: (n, 3) in their frames
    """
    radius, half, z = shape.round[:, 0], shape.half[:, 2], at[:, 2].abs()
    away, distance = normalize(torch.nn.functional.pad(at[:, :2], (0, 1)), basis(at, 1, 0, 0))
    return away, (z <= (1 - NEAR_END) * half) & ((half - z).abs() >= 0.25 * (radius - distance[:, 0]).abs())


def _of_ellipsoid(shape: Core, at: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Along the line on which they are nearest to the surface."""
    size = torch.where(shape.among((Shape.ELLIPSOID,))[:, None], shape.round, 1.0)
    square, fixed = (size * size).detach(), at.detach()
    beyond = (fixed * fixed / square).sum(-1) - 1
    inner, outer = _from_inside(square, fixed, beyond, normal), _from_outside(square, fixed)
    found = torch.where((beyond <= 0)[:, None], inner, outer)
    # The point q of the surface is where at = q + shift S^-2 q, and the normal is along S^-2 q = at / (S^2 + shift).
    shift = (norm(size.detach() * found) * (dot(found, fixed) - norm(size.detach() * found)))[:, None]
    # Across the middle of a flat one, the two sides are as near.
    inner = (square + shift).abs() <= 1e-6 * square
    scaled = at / torch.where(inner, 1.0, size * size + shift)
    excess = (size * scaled).square().sum(-1, keepdim=True) - 1
    slope = -2 * (square * scaled.square() / torch.where(inner, 1.0, square + shift)).sum(-1, keepdim=True).detach()
    shift = shift - (excess - excess.detach()) / torch.where(slope < -MIN_VALUE, slope, -1.0)
    exact = normalize(at / torch.where(inner, 1.0, size * size + shift), found)[0]
    return value_of(found, exact), torch.ones_like(beyond, dtype=torch.bool)


def _from_inside(square: Tensor, at: Tensor, beyond: Tensor, normal: Tensor) -> Tensor:
    """The normals (n, 3) where rays from inside meet the surface, again and again along the last ones.

    square: (n, 3) [m^2] of the half lengths; beyond: (n,) not positive; normal: (n, 3) the first ones
    """

    def unfinished(carry: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return ~carry[1].all() & (carry[2] < TRIPS)

    def body(carry: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        normal, done, trip = carry
        a, b = (normal * normal / square).sum(-1), (at * normal / square).sum(-1)
        root = b * b - a * beyond
        far = (-b + root.clamp(min=0).sqrt()) / a
        turned = normalize((at + far[:, None] * normal) / square, normal)[0]
        stuck = done | (root < MIN_VALUE) | (far < 0)
        turned = torch.where(stuck[:, None], normal, turned)
        return turned, stuck | (norm(turned - normal) < CLOSELY), trip + 1

    trip = torch.zeros((), dtype=torch.long, device=at.device)
    return while_loop(unfinished, body, (normal, beyond > 0, trip))[0]


def _from_outside(square: Tensor, at: Tensor) -> Tensor:
    """The normals (n, 3) where the surface is nearest to points outside, by Newton's method.

    square: (n, 3) [m^2] of the half lengths
    """
    weight = at * at * square

    def unfinished(carry: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return ~carry[1].all() & (carry[2] < TRIPS)

    def body(carry: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        shift, done, trip = carry
        inverse = 1 / (square + shift[:, None])
        excess = (weight * inverse**2).sum(-1) - 1
        step = excess / (2 * (weight * inverse**3).sum(-1)).clamp(min=MIN_VALUE)
        done = done | (excess < CLOSELY) | (step < CLOSELY)
        return torch.where(done, shift, shift + step), done, trip + 1

    trip = torch.zeros((), dtype=torch.long, device=at.device)
    none = torch.zeros_like(at[:, 0])
    shift = while_loop(unfinished, body, (none, (weight / square**2).sum(-1) <= 1, trip))[0]
    return normalize(at / (square + shift[:, None]), basis(at, 1, 0, 0))[0]


# Of shapes (n), places (n, 3) [m] and normals (n, 3) in their frames: the outward normals, and which are round there.
ROUND: dict[Shape, Callable[[Core, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    Shape.SPHERE: _of_capsule,
    Shape.CAPSULE: _of_capsule,
    Shape.ELLIPSOID: _of_ellipsoid,
    Shape.CYLINDER: of_cylinder,
}
