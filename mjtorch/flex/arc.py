"""Arcs: elastic lines whose edges no joints turn (XMLreference, "flex-elasticity", 1D flexes).

At a corner two edges are bent by a vector k, as in `rod.py`. Its energy is `w (S - S0)^2`, of the size `S^2 = k^2 +
(k0 / 10^4)^2`, k0 being that of k at rest. Two corners that are bent at rest and have an edge in common have besides
`g |z1 - R z0|^2`, where z is `k / S`, 1 in size at rest, and R turns about that edge by what the planes of both differ
by at rest. What bends nowhere has no plane: that is what the small part of S is for. (C was probed for all of this.)
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch import tree
from mjtorch.flex.rod import Bend, bend_of, of_points, sized
from mjtorch.flex.rod_stiffness import Stiffness, Weights
from mjtorch.math.vector import MIN_VALUE, cross, dot, normalize
from mjtorch.model import Model
from mjtorch.model.plan.flex_arc import ArcPlan

# A bend that is smaller than this share of that at rest has no direction.
SMALL = 1e-4


@tree.dataclass(kw_only=True)
class Corners(tree.Tree):
    """How n corners are bent, and k pairs of them.

    bend: of both edges; stiffness: (n, 1) [N m], 2 w
    size, rest: (n, 1) S and S0; place: (n, 3) z; along: (n, 3) the edge that a corner has in common with another, or 0
    weighted: (k, 2) [N m] 2 g, times cosine and sine of the angle at rest; twist: (k, 1) [N m] 2 g
    """

    bend: Bend
    stiffness: Tensor
    size: Tensor
    rest: Tensor
    place: Tensor
    along: Tensor
    weighted: Tensor
    twist: Tensor


def corners(m: Model, p: ArcPlan, pos: Tensor) -> Corners:
    """The corners of lines between points at `pos` (npoint, 3) [m]."""
    edge = arrows(p, pos)
    along, length = normalize(edge, torch.zeros_like(edge))
    bend = bend_of(edge, length)
    rest = m.flex_bending[p.rest].clamp(min=0)
    least = (SMALL * rest).square()
    size = (dot(bend.bend, bend.bend, keepdim=True) + least).clamp(min=MIN_VALUE**2).sqrt()
    weighted = 2 * (1 + SMALL**2) * m.flex_bending[p.angle]
    return Corners(
        bend=bend,
        stiffness=2 * m.flex_bending[p.stiffness],
        size=size,
        rest=(1 + SMALL**2) ** 0.5 * rest,
        place=bend.bend / size,
        along=(p.inner.mT[..., None] * along).sum(0),
        weighted=weighted,
        twist=dot(weighted, weighted, keepdim=True).clamp(min=MIN_VALUE**2).sqrt(),
    )


def arrows(p: ArcPlan, x: Tensor) -> Tensor:
    """What differs between the points of both edges of corners (2, n, 3), of `x` (npoint, 3)."""
    return x[p.point[:, 1:].mT] - x[p.point[:, :-1].mT]


def arc_force(m: Model, p: ArcPlan, pos: Tensor, velocity: Tensor | None) -> Tensor:
    """What corners do to their points (2, n, 9) [N]: springs and dampers. pos, velocity: (npoint, 3) of points"""
    c = corners(m, p, pos)
    push = torch.stack([spring_push(p, c), torch.zeros_like(c.place)])
    if velocity is not None and p.damped:
        rate = c.bend.rate(arrows(p, velocity))
        push = torch.stack([push[0], damper_push(m, p, c, rate)])
    return -of_points(c.bend.forces(push).movedim(1, 0))


def spring_push(p: ArcPlan, c: Corners) -> Tensor:
    """Derivatives (n, 3) [N m] of the energy by bends."""
    (one, two), (along, _) = c.place[p.pair], c.along[p.pair]
    cosine, sine = c.weighted.split(1, dim=-1)
    on_one = c.twist * one - cosine * two + sine * cross(along, two)
    on_two = c.twist * two - cosine * one - sine * cross(along, one)
    apart = by_bends(p, c, torch.stack([on_one, on_two]))
    return c.stiffness * (c.size - c.rest) * c.place + apart


def by_bends(p: ArcPlan, c: Corners, push: Tensor) -> Tensor:
    """Pushes (2, k, 3) on the places of pairs, as pushes on the bends of corners (n, 3)."""
    place = c.place[p.pair]
    push = (push - place * dot(place, push, keepdim=True)) / c.size[p.pair]
    return torch.zeros_like(c.place).index_add(0, p.pair.flatten(), push.flatten(0, 1))


def damper_push(m: Model, p: ArcPlan, c: Corners, rate: Tensor) -> Tensor:
    """What resists that bends change by `rate` (n, 3) [1/s]: in size, and of pairs against each other."""
    push = m.flex_damping[p.flex] * c.stiffness * sized(c.bend, rate)
    turn = against(p, c)
    turning = m.flex_damping[p.pair_flex] * c.twist * dot(turn, rate[p.pair], keepdim=True).sum(0)
    return push.index_add(0, p.pair.flatten(), (turning * turn).flatten(0, 1))


def against(p: ArcPlan, c: Corners) -> Tensor:
    """How the angle between planes of pairs follows from their bends (2, k, 3); less where the other is straight."""
    unit, length = normalize(c.bend.bend, torch.zeros_like(c.place))
    size = c.size[p.pair]
    across = cross(c.along[p.pair], unit[p.pair]) * (length[p.pair] / size).flip(0) / size
    return torch.stack([-across[0], across[1]])


def arc_stiffness(m: Model, p: ArcPlan, pos: Tensor, weights: Weights) -> tuple[Stiffness, Stiffness]:
    """Of the points of corners (n, 9, 9), and of pairs (k, 12, 12) [N/m], without what could be negative."""
    c = corners(m, p, pos)
    axes = torch.eye(3, dtype=pos.dtype, device=pos.device)
    rows = of_points(c.bend.forces(axes[:, None].expand(-1, len(p.point), -1)).movedim(1, 0)).transpose(0, 1)
    place, along = (x[:, :, None] * x[:, None] for x in (c.place, c.along))
    slack = (1 - c.rest / c.size).clamp(min=0)[..., None]
    spring = c.stiffness[..., None] * (place + slack * (axes - place - along))
    damper = c.stiffness[..., None] * sized(c.bend, axes.expand(len(p.point), -1, -1))
    on_corners = _weighted(rows.mT @ spring @ rows, rows.mT @ damper @ rows, weights, m.flex_damping[p.flex])

    one, two = rows[p.pair]
    both = torch.stack([F.pad(one, (0, 3)), F.pad(two, (3, 0))])
    first = c.along[p.pair[0]]
    across = axes - first[:, :, None] * first[:, None]
    moved = across @ (axes - place[p.pair]) @ both / c.size[p.pair][..., None]
    cosine, sine = (c.weighted / c.twist)[..., None].unbind(1)
    turned = cosine[..., None] * moved[0] + sine[..., None] * cross(first[:, None], moved[0].mT).mT
    apart = moved[1] - turned
    twist = c.twist[..., None]
    angle = (against(p, c)[:, :, None] @ both).sum(0)
    return on_corners, _weighted(
        twist * apart.mT @ apart, twist * angle.mT @ angle, weights, m.flex_damping[p.pair_flex]
    )


def _weighted(spring: Tensor, damper: Tensor, weights: Weights, damping: Tensor) -> Stiffness:
    """Stiffness of springs, and what is inertia of it and of dampers, which have `damping` (n, 1)."""
    return Stiffness(spring, weights.spring * spring + weights.damper * damping[..., None] * damper)
