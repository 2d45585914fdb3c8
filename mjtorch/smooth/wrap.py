"""Where tendons touch the spheres and cylinders that they wrap around or pass through (mju_wrap).

All happens in a plane with the geom's centre as its origin: for a sphere the one through both ends of the tendon's
segment, for a cylinder the one across its axis. There the geom is a circle of radius r. An end at distance l sees its
tangent points at the angle `acos(r / l)` to either side; two ends see each other if the angle between them is not more
than the sum of those. Otherwise the tendon goes straight to a tangent point, around the circle, and straight on.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.control_flow import fori_loop
from mjtorch.math.vector import MIN_VALUE, cross, dot, norm, normalize
from mjtorch.model import Data, Model

# Iterations of Newton's method; from where it starts it converges quadratically, save for ends close to the circle.
ITERATIONS = 12


class Wrap(NamedTuple):
    """How n segments of tendons touch the geom on their way.

    touches: (n,) bool, false where a segment is straight
    pos: (2, n, 3) [m] where a segment reaches and where it leaves the geom
    length: (n,) [m] of the curve between the two
    """

    touches: Tensor
    pos: Tensor
    length: Tensor


class Ends(NamedTuple):
    """Two ends of n segments in their planes, the circle being at the origin.

    pos: (2, n, 2) [m], both outside; length: (2, n) [m] distances from the origin, radius: (n,) [m]
    tangent: (2, n) [m] distances from the tangent points, view: (2, n) angles [rad] between an end and these
    turn: (n,) angle [rad] from the first to the second end, within -pi..pi
    """

    pos: Tensor
    length: Tensor
    radius: Tensor
    tangent: Tensor
    view: Tensor
    turn: Tensor


def wrap(m: Model, d: Data) -> Wrap:
    """The wraps of all segments of tendons that have a geom to touch (mju_wrap)."""
    p = m.plan.tendon
    center, mat, radius = d.geom_xpos[p.wrap_geom], d.geom_xmat[p.wrap_geom], m.geom_size[p.wrap_geom, 0]
    local = ((d.site_xpos[p.wrap_site] - center)[..., None, :] @ mat).squeeze(-2)
    axes = plane(m, local)
    flat = (local[..., None, :] @ axes.mT).squeeze(-2)

    outside = (dot(flat[:2], flat[:2]) >= radius * radius).all(0) & (radius > MIN_VALUE)
    # An end inside the circle has no tangent, and a derivative that is not finite there: look from elsewhere.
    elsewhere = torch.stack([radius + 1, torch.zeros_like(radius)], dim=-1)
    ends = seen_from(torch.where(outside[:, None], flat[:2], elsewhere), radius)
    touches, turn, view = outside, ends.turn, ends.view.sum(0)
    if p.any_side:
        around, sided = sided_turn(ends, normal_side(flat[2]), p.homotopic)
        touches, turn = touches & (around | ~p.has_side), torch.where(p.has_side, sided, turn)
    touches = touches & (turn.abs() > view)
    curve = radius * torch.where(touches, turn.abs() - view, 0.0)
    pos = tangent_points(ends, torch.where(turn < 0, -1.0, 1.0).to(turn.dtype))
    if n := p.inner:
        inner = Ends(*(x[..., -n:, :] if x.dim() == 3 else x[..., -n:] for x in ends))
        inside = norm(local[2, -n:]) < inner.radius
        through = torch.where(inside, outside[-n:] & (inner.turn.abs() < view[-n:]), touches[-n:])
        touches = torch.cat([touches[:-n], through])
        curve = torch.cat([curve[:-n], torch.where(inside, 0.0, curve[-n:])])
        pos = torch.cat([pos[:, :-n], torch.where(inside[:, None], inner_point(inner), pos[:, -n:])], dim=1)
    return in_space(m, Wrap(touches, pos, curve), local, axes, center, mat)


def plane(m: Model, local: Tensor) -> Tensor:
    """Two axes (n, 2, 3) of the planes of the wraps, in the frames of the geoms. local: (2 or 3, n, 3) the ends [m]."""
    p = m.plan.tendon
    axes = torch.eye(3, dtype=local.dtype, device=local.device)
    cylinder = axes[:2].expand(local.shape[1], 2, 3)
    if not p.any_sphere:
        return cylinder
    first = normalize(local[0], axes[0])[0]
    # Ends in line with the centre leave the plane open: it is laid through the diagonal of two axes.
    largest = first.abs().argmax(-1, keepdim=True)
    other = cross(first, torch.where(largest == torch.arange(3, device=local.device), 0.0, 1.0).to(first.dtype))
    normal = normalize(cross(local[0], local[1]), normalize(other, axes[2])[0])[0]
    sphere = torch.stack([first, cross(normal, first)], dim=1)
    return sphere if p.all_sphere else torch.where(p.is_sphere[:, None], sphere, cylinder)


def angle(a: Tensor, b: Tensor) -> Tensor:
    """Angle (...) [rad] by which the direction `a` turns to that of `b` (..., 2), within -pi..pi."""
    return torch.atan2(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0], dot(a, b))


def turned(a: Tensor) -> Tensor:
    """`a` (..., 2) turned by a right angle, counterclockwise."""
    return torch.stack([-a[..., 1], a[..., 0]], dim=-1)


def seen_from(pos: Tensor, radius: Tensor) -> Ends:
    """The circle of `radius` (n,) seen from `pos` (2, n, 2) outside it."""
    square = dot(pos, pos)
    room = square - radius * radius
    touching = room <= 0
    tangent = torch.where(touching, 0.0, torch.where(touching, 1.0, room).sqrt())
    return Ends(pos, square.sqrt(), radius, tangent, torch.atan2(tangent, radius), angle(pos[0], pos[1]))


def tangent_points(e: Ends, sense: Tensor) -> Tensor:
    """Where (2, n, 2) [m] the path around the circle begins and ends; sense: (n,) 1 counterclockwise, else -1."""
    sense = torch.stack([sense, -sense])
    reach = (e.radius / (e.length * e.length))[..., None]
    return reach * (e.radius[:, None] * e.pos + (sense * e.tangent)[..., None] * turned(e.pos))


def normal_side(side: Tensor) -> Tensor:
    """The direction (n, 2) of the side site, x if it lies at the centre. No derivative depends on it."""
    side = side.detach()
    return normalize(side, side.new_tensor([1.0, 0.0]))[0]


def sided_turn(e: Ends, side: Tensor, homotopic: bool) -> tuple[Tensor, Tensor]:
    """Which way around to the side of `side` (n, 2): whether (n,) bool at all, and by what angle (n,) [rad].

    From MuJoCo 4.0 on (`homotopic`) the tendon turns as much as a path from the first end through the side site to the
    second one. Before, it takes the way whose middle is nearer to the side site, unless the ends see each other on that
    side of the centre.
    """
    pos = e.pos.detach()
    if homotopic:
        through = angle(pos[0], side) + angle(side, pos[1])
        more = ((through - e.turn.detach()) / (2 * math.pi)).round()
        return torch.ones_like(through, dtype=torch.bool), e.turn + 2 * math.pi * more
    return half_plane_turn(e, pos, side)


def half_plane_turn(e: Ends, pos: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """`sided_turn` by the rule before MuJoCo 4.0. pos: (2, n, 2) the ends."""
    view, turn = e.view.detach().sum(0), e.turn.detach()
    senses = torch.stack([torch.ones_like(turn), -torch.ones_like(turn)])
    arc = (senses * turn - view).remainder(2 * math.pi)
    # The straight parts cross each other unless the rest of the circle is wide enough.
    crossing = 2 * math.pi - arc <= 2 * e.view.detach().amin(0)
    middle = torch.stack([tangent_points(e, s).detach().sum(0) for s in senses.unbind()])
    good = dot(normalize(middle, side)[0], side)
    good = torch.where(crossing, -math.inf, good)
    forward = good[0] >= good[1]
    gap = pos[1] - pos[0]
    square = dot(gap, gap)
    share = -dot(gap, pos[0]) / square.clamp(min=MIN_VALUE)
    nearest = pos[0] + share.clamp(0, 1)[:, None] * gap
    clear = (turn.abs() < view) & (dot(side, nearest) >= 0)
    around = ~(clear | torch.where(forward, crossing[0], crossing[1])) & (square > MIN_VALUE)
    full = torch.where(forward, arc[0] + view, -arc[1] - view)
    return around, e.turn + full - turn


def inner_point(e: Ends) -> Tensor:
    """The point (n, 2) [m] of the circle by which the shortest way between the ends leads that does not miss the disk.

    A ray of light from one end is reflected there towards the other. With the angle b between the rays and the normal,
    `F(b) = 2 b - asin(A sin b) - asin(B sin b) - |turn| = 0` with `A, B = r / l`; F is convex and rises, so Newton's
    method goes down to the root from b = pi/2. A last step outside the loop has the derivative. (C stops at 1e-6.)
    """
    # An end on the circle has an infinite derivative.
    ratio = (e.radius / e.length).clamp(max=1 - 4 * torch.finfo(e.length.dtype).eps)
    whole = e.turn.abs()
    fixed_ratio, fixed_whole = ratio.detach(), whole.detach()

    def improve(b: Tensor, ratio: Tensor, whole: Tensor) -> Tensor:
        swing = ratio * b.sin()
        slope = 2 - (ratio * b.cos() / (1 - swing * swing).clamp(min=MIN_VALUE).sqrt()).sum(0)
        return b - (2 * b - swing.asin().sum(0) - whole) / slope.detach().clamp(min=MIN_VALUE)

    start = torch.full_like(fixed_whole, math.pi / 2)
    b = fori_loop(0, ITERATIONS, lambda i, b: improve(b, fixed_ratio, fixed_whole), start, unroll=False)
    b = improve(b.detach(), ratio, whole)
    away = (b - (ratio[0] * b.sin()).asin()) * torch.where(e.turn < 0, -1.0, 1.0).to(b.dtype)
    direction = e.pos[0] / e.length[0][:, None]
    return e.radius[:, None] * (away.cos()[:, None] * direction + away.sin()[:, None] * turned(direction))


def in_space(m: Model, flat: Wrap, local: Tensor, axes: Tensor, center: Tensor, mat: Tensor) -> Wrap:
    """The wraps `flat`, whose points are given in their planes (2, n, 2), in the world.

    Along the axis of a cylinder the path rises evenly from one end to the other.
    """
    p = m.plan.tendon
    pos, length = (flat.pos[..., None, :] @ axes).squeeze(-2), flat.length
    if not p.all_sphere:
        before, after = norm((local[:2] - pos)[..., :2])
        whole = before + length + after
        share = torch.stack([before, before + length]) / torch.where(whole > 0, whole, 1.0)
        low, high = local[:2, :, 2]
        height = low + share * (high - low)
        height = torch.where(p.is_sphere[:, 0], 0.0, height) if p.any_sphere else height
        pos = pos + height[..., None] * torch.eye(3, dtype=pos.dtype, device=pos.device)[2]
        length = norm(torch.stack([length, height[1] - height[0]], dim=-1))
    return Wrap(flat.touches, center + (mat @ pos[..., None]).squeeze(-1), length)
