"""Sensors of how far objects jut out of sites (mjSENS_INSIDESITE with `enclosed`)."""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch.collision.frame import make_frame
from mjtorch.control_flow import fori_loop
from mjtorch.math.shape import parts
from mjtorch.math.vector import MIN_VALUE, dot, norm
from mjtorch.model import Data, Model
from mjtorch.model.plan.enclosed import EnclosedPlan, Objects
from mjtorch.sensor.volume import hull_corners, normals
from mjtorch.smooth.object import to_local

# How far a shape reaches along directions (n, k, 3): (n, k) [m].
Reach = Callable[[Tensor], Tensor]
# Directions where sites have edges, near (n, k, 3) and as near as (n, k, t, 3): (n, k, j, 3).
Ridges = Callable[[Tensor, Tensor], Tensor]

# Directions all over the sphere in which a search begins, the best one of each octant of which goes on, and steps.
DIRECTIONS, STEPS = 200, 60
# How far [rad] a step looks around at first, in how many directions, and how much less far where nothing is better.
WIDTH, AROUND, NARROWER, WIDER = 0.2, 6, 0.4, 3.0


def enclosed(m: Model, d: Data, plan: EnclosedPlan) -> Tensor:
    """How far (s,) [m] the furthest points of objects are outside of sites; of what is inside, less than nothing.

    Over all directions u it is the largest `h_object(u) - h_site(u)`, of how far both reach from the middle of the site
    (the Hausdorff distance, one way). There may be many directions that are better than all nearby: the search begins
    everywhere. C's may end at one that is not the best, up to 2.5 cm below. Derivatives are those along the direction
    that is found.
    """
    found = [_jutting(m, d, x) for x in plan.objects]
    nothing = d.site_xpos.new_full((1,), -torch.inf)
    return torch.cat([*found, nothing])[plan.place].amax(-1)


def _jutting(m: Model, d: Data, x: Objects) -> Tensor:
    """How far (n,) [m] objects jut out of their sites."""
    pos, mat = (d.site_xpos, d.site_xmat) if x.is_site else (d.geom_xpos, d.geom_xmat)
    size = (m.site_size if x.is_site else m.geom_size)[x.number]
    frame = d.site_xmat[x.site]
    offset = to_local(frame, pos[x.number] - d.site_xpos[x.site])
    turned = frame.mT @ mat[x.number]
    triangle = [hull_corners(m, volume) for volume in x.hull]
    site = reach_of_points(triangle[0].flatten(0, 1)) if triangle else reach_of(x.site_type, m.site_size[x.site])
    shape = reach_of_points(m.mesh_vert[x.vert]) if x.vert.shape[0] else reach_of(x.type, size)

    def excess(direction: Tensor) -> Tensor:
        """By how much (n, k) [m] objects reach further along unit vectors (n, k, 3) in the frames of sites."""
        return shape(direction @ turned) + (direction @ offset[..., None])[..., 0] - site(direction)

    start = [turned.mT, -turned.mT, *(_unit(normals(corner)).expand(len(turned), -1, -1) for corner in triangle)]
    ridges = between(triangle[0].flatten(0, 1).detach()) if triangle else planes
    return excess(furthest(excess, torch.cat(start, 1).detach(), ridges).detach()[:, None])[:, 0]


def _unit(x: Tensor) -> Tensor:
    """Vectors (n, 3) without their lengths."""
    return x / norm(x, keepdim=True).clamp(min=MIN_VALUE)


def reach_of(type: Tensor, size: Tensor) -> Reach:
    """Of shapes of `type (n,)` and `size (n, 3)` [m], in their own frames."""
    half, round, radius = parts(type, size)

    def reach(direction: Tensor) -> Tensor:
        box = (direction.abs() @ half[..., None])[..., 0]
        return box + norm(direction * round[:, None]) + radius[:, None]

    return reach


def reach_of_points(point: Tensor) -> Reach:
    """Of the hull of points (k, 3) [m]."""
    return lambda direction: (direction @ point.mT).amax(-1)


def planes(now: Tensor, tried: Tensor) -> Tensor:
    """Directions (n, k, j, 3) on the ridges of sites that sizes describe: in the planes of the frame, and its axes.

    now: (n, k, 3), tried: (n, k, t, 3) directions nearby
    """
    axes = torch.eye(3).to(now)
    return torch.cat([(tried[:, :, :, None] * (1 - axes)).flatten(2, 3), now[:, :, None] * axes], 2)


def between(point: Tensor) -> Ridges:
    """The same for the hull of points (k, 3): directions are put where the furthest points of both are as far."""

    def of_pairs(now: Tensor, tried: Tensor) -> Tensor:
        here, there = (point[(x @ point.mT).argmax(-1)] for x in (now[:, :, None], tried))
        edge = there - here
        return tried - edge * dot(tried, edge, keepdim=True) / dot(edge, edge, keepdim=True).clamp(min=MIN_VALUE)

    return of_pairs


def furthest(excess: Callable[[Tensor], Tensor], more: Tensor, ridges: Ridges) -> Tensor:
    """Unit vectors (n, 3) along which `excess` is largest; more: (n, k, 3) where else to begin.

    It is not smooth across some planes: directions in these, by `ridges`, are tried as such.
    """

    def value(direction: Tensor) -> Tensor:
        return excess(direction).detach()

    start = torch.cat([spread(more).expand(len(more), -1, -1), more], 1)
    octant = (start > 0).to(torch.long) @ torch.tensor([1, 2, 4], device=more.device)
    elsewhere = octant[:, None] != torch.arange(8, device=more.device)[:, None]
    best = _chosen(start, value(start)[:, None].masked_fill(elsewhere, -torch.inf).argmax(-1))
    angle = torch.arange(AROUND, device=more.device) * (2 * torch.pi / AROUND)

    def step(k: Tensor, carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        now, width = carry
        across = make_frame(now.flatten(0, 1))[:, 1:].unflatten(0, now.shape[:2])
        turned = angle + k
        turns = torch.stack([turned.cos(), turned.sin()], -1).to(more)
        nearby = now[:, :, None] + width[..., None, None] * (turns @ across)
        tried = torch.cat([now[:, :, None], nearby], 2)
        tried = torch.cat([tried, ridges(now, tried)], 2)
        length = norm(tried, keepdim=True)
        tried = torch.where(length > 0.1, tried / length.clamp(min=0.1), now[:, :, None])
        found = value(tried.flatten(1, 2)).unflatten(1, tried.shape[1:3])
        number = found.argmax(-1, keepdim=True)
        then = tried.gather(2, number[..., None].expand(-1, -1, 1, 3))[:, :, 0]
        return then, torch.where(number[..., 0] == 0, NARROWER * width, WIDER * width)

    widths = torch.full_like(best[..., 0], WIDTH)
    best, _ = fori_loop(0, STEPS, step, (best, widths), unroll=False)
    return _chosen(best, value(best).argmax(-1, keepdim=True))[:, 0]


def spread(like: Tensor) -> Tensor:
    """Unit vectors (k, 3) all over the sphere, on a spiral, and along the axes."""
    k = torch.arange(DIRECTIONS, device=like.device).to(like)
    z = 1 - (2 * k + 1) / DIRECTIONS
    across, angle = (1 - z * z).sqrt(), k * (torch.pi * (3 - 5**0.5))
    axes = torch.eye(3, dtype=like.dtype, device=like.device)
    return torch.cat([torch.stack([across * angle.cos(), across * angle.sin(), z], -1), axes, -axes])


def _chosen(x: Tensor, which: Tensor) -> Tensor:
    """Those of x (n, k, 3) that are chosen (n, j)."""
    return x.gather(1, which[..., None].expand(-1, -1, 3))
