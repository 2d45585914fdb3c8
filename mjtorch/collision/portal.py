"""Contacts of convex shapes that have no formula of their own, with the flag `nativeccd` disabled (mjc_Convex)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.contact_points import ContactPoints
from mjtorch.collision.convex import opposite
from mjtorch.collision.frame import make_frame
from mjtorch.collision.mpr import Exit, mpr, overlap, shares
from mjtorch.collision.round_normal import round_normals
from mjtorch.collision.support import Core, detach, from_first
from mjtorch.collision.witness import Nearest, surface, witness
from mjtorch.control_flow.map import each
from mjtorch.math.quaternion import from_axis_angle, to_mat
from mjtorch.math.value import value_of
from mjtorch.math.vector import norm
from mjtorch.model.plan.mesh import Hulls

# By how much [rad] shapes are turned to find more contacts, and how far apart these have to be, relative to the smaller
# of the two.
TURN, DISTINCT = 1e-3, 1e-3
# About which rows of the frame of the first contact, and in which direction.
TURNS = ((1, -1.0), (1, 1.0), (2, -1.0), (2, 1.0))


class Settings(NamedTuple):
    """How contacts are sought: mjOption.ccd_iterations, ccd_tolerance [m], and what meshes refer to."""

    iterations: int
    tolerance: float | Tensor
    hulls: Hulls | None


class Overlaps(NamedTuple):
    """How n pairs of shapes overlap, all of them balls of a margin thicker.

    dist: (n,) [m] without the margin; normal: (n, 3) from 1 to 2; pos: (n, 3) [m] within both
    hit: (n,) bool, they overlap; else the rest is zero
    """

    dist: Tensor
    normal: Tensor
    pos: Tensor
    hit: Tensor


def portal_contacts(shape1: Core, shape2: Core, near: Tensor, margin: Tensor, settings: Settings) -> ContactPoints:
    """One contact for each of n pairs of shapes, where they are less than `margin (n,)` [m] apart.

    near: (n,) bool, which pairs may be
    """
    one, two, origin = from_first(shape1, shape2)
    found = overlaps(one, two, near, margin, settings)
    normal = round_normals(one, two, found.pos, found.normal)
    row = found.hit[:, None]
    pos, normal = (torch.where(row, x, 0.0) for x in (found.pos + origin, normal))
    return ContactPoints(found.dist[:, None], pos[:, None], normal[:, None], row)


def more_contacts(
    shape1: Core, shape2: Core, first: ContactPoints, margin: Tensor, size: Tensor, settings: Settings
) -> ContactPoints:
    """The contacts of n pairs of shapes, up to five: the first one, and those of the shapes a little turned about it.

    first: the first ones; margin: (n,) as before; size: (n,) [m] of the smaller shape of each pair
    """
    one, two, origin = from_first(shape1, shape2)
    frame, about = make_frame(first.normal[:, 0]).detach(), (first.pos[:, 0] - origin).detach()
    sign = torch.tensor([turn for _, turn in TURNS], dtype=frame.dtype, device=frame.device)
    axis = frame[:, [row for row, _ in TURNS]]
    turn = to_mat(from_axis_angle(axis, TURN * sign.expand_as(axis[..., 0]))).flatten(0, 1)

    def four(x: Tensor) -> Tensor:
        return x.repeat_interleave(len(TURNS), dim=0)

    every1, every2 = tree.map(four, one), tree.map(four, two)
    turned1, turned2 = turned(every1, four(about), turn), turned(every2, four(about), turn.mT)
    found = overlaps(turned1, turned2, four(first.exists[:, 0]), four(margin), settings)
    normal = round_normals(every1, every2, found.pos, found.normal)
    pos, normal, hit = (x.unflatten(0, (-1, len(TURNS))) for x in (found.pos, normal, found.hit))
    pos = torch.cat([first.pos, torch.where(hit[..., None], pos + origin[:, None], 0.0)], dim=1)
    normal = torch.cat([first.normal, torch.where(hit[..., None], normal, 0.0)], dim=1)
    exists = distinct(pos.detach(), torch.cat([first.exists, hit], dim=1), DISTINCT * size)
    return ContactPoints(first.dist.expand_as(exists), pos, normal, exists)


def turned(shape: Core, about: Tensor, turn: Tensor) -> Core:
    """Shapes turned about points (n, 3) [m] by matrices (n, 3, 3)."""
    pos = about + (turn @ (shape.pos - about)[..., None])[..., 0]
    return shape.replace(pos=pos, mat=turn @ shape.mat)


def distinct(pos: Tensor, exists: Tensor, apart: Tensor) -> Tensor:
    """Which contacts at `pos (n, k, 3)` [m] are further than `apart (n,)` [m] from those before them, (n, k) bool."""
    close = norm(pos[:, :, None] - pos[:, None]) <= apart[:, None, None]
    kept = [exists[:, 0]]
    for k in range(1, exists.shape[1]):
        kept.append(exists[:, k] & ~(close[:, k, :k] & torch.stack(kept, dim=1)).any(1))
    return torch.stack(kept, dim=1)


def overlaps(shape1: Core, shape2: Core, near: Tensor, margin: Tensor, settings: Settings) -> Overlaps:
    """How n pairs of shapes overlap; those that are not `near (n,)` bool do not.

    margin: (n,) [m] by which they are thicker together; it has no derivative
    """
    margin = margin.detach()
    limit = (torch.zeros_like(margin) + settings.tolerance).detach()

    def search(pairs: tuple[Core, Core, Tensor, Tensor, Tensor]) -> Exit:
        return searched(*pairs, settings)

    pairs = detach(shape1), detach(shape2), near, margin, limit
    found: Exit = each(search, pairs, where=near, otherwise=lambda x: none(x[0].pos))
    return each(
        lambda x: followed(*x), (shape1, shape2, found, margin), where=found.hit, otherwise=lambda x: nowhere(x[3])
    )


def searched(shape1: Core, shape2: Core, near: Tensor, margin: Tensor, tolerance: Tensor, settings: Settings) -> Exit:
    """What the search says of shapes that are constants; tolerance: (n,) [m], the rest as in `overlaps`."""
    rounding = 64 * torch.finfo(margin.dtype).eps * (shape1.extent + shape2.extent)
    support = opposite(shape1, shape2, settings.hulls, level=0.0)
    radius = shape1.radius + shape2.radius + margin
    limit = torch.maximum(tolerance, rounding)
    return mpr(support, shape1.pos, shape2.pos, radius, near, settings.iterations, limit)


def none(like: Tensor) -> Exit:
    """What stands for pairs that are of no interest; like: (n, 3)."""
    n, zero = len(like), torch.zeros_like(like)
    return Exit(zero, zero.clone(), zero[:, 0].clone(), zero[:, 0] > 0, like.new_zeros((n, 4, 9)), zero.clone())


def nowhere(like: Tensor) -> Overlaps:
    """What stands for pairs that do not overlap; like: (n,)."""
    zero = torch.zeros_like(like)
    row = zero[:, None].expand(-1, 3)
    return Overlaps(zero, row.contiguous(), row.clone(), zero > 0)


def followed(shape1: Core, shape2: Core, found: Exit, margin: Tensor) -> Overlaps:
    """What was found as a function of the shapes; margin: (n,) [m].

    The place is where the ray between the centres leaves the overlap, through a portal that turns as the surfaces do.
    Of curved shapes the portal is so small that, if they are deep in each other, its point nearest to the origin is the
    place where the ray leaves, and the distance one along the ray. Derivatives are those along the portal's normal.
    """
    half = 0.5 * margin
    thick1, thick2 = shape1.radius.detach() + half, shape2.radius.detach() + half
    core1, core2, direction = found.corner[:, 1:].split(3, dim=-1)
    normal, share = found.facing, found.share[..., None]
    at1 = (share * (core1 + thick1[:, None, None] * direction)).sum(1) - thick1[:, None] * normal
    at2 = (share * (core2 - thick2[:, None, None] * direction)).sum(1) + thick2[:, None] * normal
    start = Nearest(normal, thick1 + thick2 - found.depth, at1, at2)
    near = witness(shape1, shape2, start, core1, core2)
    gap = value_of(margin - found.depth, near.dist - shape1.radius - shape2.radius)

    turn = near.normal - near.normal.detach()
    moved1, moved2 = around(shape1, core1, direction, turn), around(shape2, core2, -direction, -turn)
    center1, center2 = (
        fixed[:, None] + (shape.pos - shape.pos.detach())[:, None]
        for fixed, shape in zip(found.corner[:, 0, :6].split(3, dim=-1), (shape1, shape2), strict=True)
    )
    outward = found.corner[:, :, 6:] + torch.nn.functional.pad(turn[:, None].expand(-1, 3, -1), (0, 0, 1, 0))
    corner = torch.cat([torch.cat([center1, moved1], dim=1), torch.cat([center2, moved2], dim=1), outward], dim=-1)
    fixed = place(found.corner, thick1, thick2, found.share)
    pos = place(corner, shape1.radius + half, shape2.radius + half, found.share)
    return Overlaps(gap, value_of(found.normal, near.normal), value_of(fixed, pos), found.hit)


def around(shape: Core, point: Tensor, normal: Tensor, turn: Tensor) -> Tensor:
    """Points (n, k, 3) [m] of cores where the normals are `normal (n, k, 3)`, as functions of the shapes.

    turn: (n, 3) by which the normals change, of value zero
    """
    k = point.shape[1]
    every = tree.map(lambda x: x.repeat_interleave(k, dim=0), shape)
    point, normal = point.flatten(0, 1), normal.flatten(0, 1)
    here = surface(every, point, normal, point[:, None].expand(-1, 3, 3))
    moved = here.point + (here.bend @ turn.repeat_interleave(k, dim=0)[..., None])[..., 0]
    return moved.unflatten(0, (-1, k))


def place(corner: Tensor, thick1: Tensor, thick2: Tensor, share: Tensor) -> Tensor:
    """The point (n, 3) [m] in both shapes of which the origin is made.

    corner: (n, 4, 9), share: (n, 3) as in `Exit`; thick1, thick2: (n,) [m] of the balls around the cores
    """
    weight = shares(overlap(corner, thick1 + thick2), share)[..., None]
    point1, point2, direction = corner.split(3, dim=-1)
    both = point1 + point2 + (thick1 - thick2)[:, None, None] * direction
    return 0.5 * (weight * both).sum(1)
