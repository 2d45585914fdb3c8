"""Sensors of how far objects jut out of sites (mjSENS_INSIDESITE with `enclosed`)."""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch.collision.frame import make_frame
from mjtorch.control_flow import fori_loop
from mjtorch.math.shape import parts
from mjtorch.math.vector import norm
from mjtorch.model import Data, Model
from mjtorch.model.plan.enclosed import EnclosedPlan, Objects
from mjtorch.smooth.object import to_local

# How far a shape reaches along directions (n, k, 3): (n, k) [m].
Reach = Callable[[Tensor], Tensor]

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
    found = [_jutting(m, d, x, kind) for x, kind in zip(plan.objects, plan.site_type, strict=True)]
    nothing = d.site_xpos.new_full((1,), -torch.inf)
    return torch.cat([*found, nothing])[plan.place].amax(-1)


def _jutting(m: Model, d: Data, x: Objects, site_type: Tensor) -> Tensor:
    """How far (n,) [m] objects jut out of their sites."""
    pos, mat = (d.site_xpos, d.site_xmat) if x.is_site else (d.geom_xpos, d.geom_xmat)
    size = (m.site_size if x.is_site else m.geom_size)[x.number]
    frame = d.site_xmat[x.site]
    offset = to_local(frame, pos[x.number] - d.site_xpos[x.site])
    turned = frame.mT @ mat[x.number]
    site = reach_of(site_type, m.site_size[x.site])
    shape = reach_of_points(m.mesh_vert[x.vert]) if x.vert.shape[0] else reach_of(x.type, size)

    def excess(direction: Tensor) -> Tensor:
        """By how much (n, k) [m] objects reach further along unit vectors (n, k, 3) in the frames of sites."""
        return shape(direction @ turned) + (direction @ offset[..., None])[..., 0] - site(direction)

    return excess(furthest(excess, torch.cat([turned.mT, -turned.mT], 1).detach()).detach()[:, None])[:, 0]


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


def furthest(excess: Callable[[Tensor], Tensor], more: Tensor) -> Tensor:
    """Unit vectors (n, 3) along which `excess` is largest; more: (n, k, 3) where else to begin.

    It is not smooth across the planes of the frame: directions in these, and along its axes, are tried as such.
    """

    def value(direction: Tensor) -> Tensor:
        return excess(direction).detach()

    start = torch.cat([spread(more).expand(len(more), -1, -1), more], 1)
    octant = (start > 0).to(torch.long) @ torch.tensor([1, 2, 4], device=more.device)
    elsewhere = octant[:, None] != torch.arange(8, device=more.device)[:, None]
    best = _chosen(start, value(start)[:, None].masked_fill(elsewhere, -torch.inf).argmax(-1))
    angle = torch.arange(AROUND, device=more.device) * (2 * torch.pi / AROUND)
    axes = torch.eye(3).to(more)

    def step(k: Tensor, carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        now, width = carry
        across = make_frame(now.flatten(0, 1))[:, 1:].unflatten(0, now.shape[:2])
        turned = angle + k
        turns = torch.stack([turned.cos(), turned.sin()], -1).to(more)
        nearby = now[:, :, None] + width[..., None, None] * (turns @ across)
        tried = torch.cat([now[:, :, None], nearby], 2)
        in_planes = (tried[:, :, :, None] * (1 - axes)).flatten(2, 3)
        tried = torch.cat([tried, in_planes, now[:, :, None] * axes], 2)
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
