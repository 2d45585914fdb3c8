"""Whether convex shapes overlap, and along which direction (Minkowski portal refinement, as in libccd), for n pairs.

The overlap of two shapes is the set of all p1 - p2; it contains the origin where they intersect. A ray goes from a
point within the overlap, the difference of their centres, through the origin. A *portal* is a triangle of points on the
surface of the overlap that the ray goes through. Each trip looks for the furthest point along the portal's normal and
puts it in the place of one of the three: so the portal moves out to the surface, to where the ray leaves the overlap.
That is not where the shapes are least deep in each other, unless they are hardly so.

Snethen, "XenoCollide: Complex Collision Made Simple", Game Programming Gems 7 (2008).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.gjk import Support
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math.triangle import nearest_on_triangle
from mjtorch.math.vector import basis, cross, dot, norm, normalize

# What libccd takes for zero, CCD_EPS, whatever is measured.
ZERO = 2.0**-52
# Most trips until a portal is found that hides the origin, or none can be; some five do.
MOST = 100


class Portal(NamedTuple):
    """Tetrahedra of n pairs, and how far the search has come.

    corner: (n, 4, 9) [m] the first inside of the overlap, the others on its surface: a point on the core of shape 1,
        one on that of shape 2, and the direction, outward from 1, along which these are furthest; zero for the first
    direction: (n, 3) the direction to look in, outward; at last the normal of the portal
    built: (n,) bool, the ray goes through the triangle; hit: (n,) bool, the origin is inside of the tetrahedron
    moves: (n,) how often the portal was moved out since then; done: (n,) bool
    """

    corner: Tensor
    direction: Tensor
    built: Tensor
    hit: Tensor
    moves: Tensor
    done: Tensor


class Exit(NamedTuple):
    """Where the ray leaves the overlaps of n pairs.

    normal: (n, 3) from 1 to 2, depth: (n,) [m] along it; facing: (n, 3) the normal of the portal
    hit: (n,) bool, they overlap; else the rest means nothing
    corner: (n, 4, 9) as in `Portal`
    share: (n, 3) of the last three corners in the point of the portal nearest to the origin
    """

    normal: Tensor
    facing: Tensor
    depth: Tensor
    hit: Tensor
    corner: Tensor
    share: Tensor


def mpr(
    support: Support,
    center1: Tensor,
    center2: Tensor,
    radius: Tensor,
    active: Tensor,
    iterations: int,
    tolerance: Tensor,
) -> Exit:
    """Where the ray leaves the overlaps of n pairs of shapes, the cores and balls around them.

    center1, center2: (n, 3) [m] points within the cores; radius: (n,) [m] of both balls together
    active: (n,) bool, pairs that are of interest
    tolerance: (n,) [m], reached if it can be in so many `iterations`
    """

    def unfinished(carry: tuple[Portal, Tensor]) -> Tensor:
        return ~carry[0].done.all() & (carry[1] < MOST + iterations)

    def body(carry: tuple[Portal, Tensor]) -> tuple[Portal, Tensor]:
        return refined(support, carry[0], radius, iterations, tolerance), carry[1] + 1

    first = begun(support, center1, center2, radius, active)
    count = torch.zeros((), dtype=torch.long, device=active.device)
    last = while_loop(unfinished, body, (first, count))[0]
    return left(last, radius)


def overlap(corner: Tensor, radius: Tensor) -> Tensor:
    """Points (n, ..., 3) [m] of the overlap, from `corner (n, ..., 9)` as in `Portal`."""
    point1, point2, direction = corner.split(3, dim=-1)
    return point1 - point2 + radius.view(-1, *(1,) * (corner.dim() - 1)) * direction


def furthest(support: Support, direction: Tensor) -> Tensor:
    """The corners (n, 9), as in `Portal`, that are furthest along `direction (n, 3)`."""
    point1, point2 = support(-direction)
    return torch.cat([point1[:, :3], point2[:, :3], direction], dim=-1)


def _unit(x: Tensor) -> Tensor:
    """Unit vectors, of triangles however small."""
    length = norm(x, keepdim=True)
    return x / torch.where(length > 0, length, 1.0)


def begun(support: Support, center1: Tensor, center2: Tensor, radius: Tensor, active: Tensor) -> Portal:
    """The first point inside and two on the surface: what is furthest towards the origin, and across that."""
    inside = center1 - center2
    same = (inside.abs() < ZERO).all(-1, keepdim=True)
    moved = torch.where(same, center1 + basis(center1, 10 * ZERO, 0, 0), center1)
    first = torch.cat([moved, center2, torch.zeros_like(center1)], dim=-1)
    inside = moved - center2
    towards = -_unit(inside)
    second = furthest(support, towards)
    point = overlap(second, radius)
    across = cross(inside, point)
    # The origin is on the ray to that point: there, the ray leaves the overlap.
    ahead = dot(across, across) < ZERO
    along = _unit(across)
    third = furthest(support, along)
    missed = (dot(point, towards) < ZERO) | (~ahead & (dot(overlap(third, radius), along) < ZERO))
    normal = _unit(cross(point - inside, overlap(third, radius) - inside))
    # Its faces are to look away from the origin.
    turned = (dot(normal, inside, keepdim=True) > 0) & ~ahead[:, None]
    one, two = torch.where(turned, third, second), torch.where(turned | ahead[:, None], second, third)
    return Portal(
        corner=torch.stack([first, one, two, two], dim=1),
        direction=torch.where(ahead[:, None], towards, torch.where(turned, -normal, normal)),
        built=ahead,
        hit=ahead & ~missed & active,
        moves=torch.zeros_like(active, dtype=torch.long),
        done=missed | ahead | ~active,
    )


def refined(support: Support, p: Portal, radius: Tensor, iterations: int, tolerance: Tensor) -> Portal:
    """One trip: a new corner, in the place of which it is; the same portal where it is `done`."""
    new = furthest(support, p.direction)
    v, inside = overlap(new, radius), overlap(p.corner, radius)
    v0, v1, v2, v3 = inside.unbind(1)
    reach = dot(v, p.direction)
    gain = reach - dot(inside[:, 1:], p.direction[:, None]).amax(1)
    close = gain <= tolerance + ZERO

    # Until the ray goes through it: a face of the tetrahedron that the origin is beyond says which corner goes.
    beyond1 = dot(cross(v1, v), v0) < -ZERO
    beyond2 = dot(cross(v, v2), v0) < -ZERO
    building = torch.where(beyond1, 2, torch.where(beyond2, 1, 3))
    # Then: of the three triangles with the new corner, the one that the ray goes through is kept.
    aside = cross(v, v0)
    side1, side2, side3 = (dot(x, aside) > 0 for x in (v1, v2, v3))
    growing = torch.where(side1, torch.where(side2, 1, 3), torch.where(side3, 2, 1))

    missed = ~p.hit & torch.where(p.built, (reach <= -ZERO) | close, reach < ZERO)
    reached = p.hit & (close | (p.moves > iterations))
    stays = p.done | missed | reached
    place = torch.where(p.built, growing, building)
    takes = (torch.arange(4, device=place.device) == place[:, None]) & ~stays[:, None]
    corner = torch.where(takes[..., None], new[:, None], p.corner)
    built = p.built | (~stays & ~beyond1 & ~beyond2)

    v0, v1, v2, v3 = overlap(corner, radius).unbind(1)
    normal = _unit(torch.where(built[:, None], cross(v2 - v1, v3 - v1), cross(v1 - v0, v2 - v0)))
    normal = torch.where(stays[:, None], p.direction, normal)
    hit = p.hit | (built & ~stays & (dot(normal, v1) > -ZERO))
    return Portal(corner, normal, built, hit, p.moves + (p.hit & ~stays), stays)


def left(p: Portal, radius: Tensor) -> Exit:
    """Where the ray leaves the overlap: what is nearest to the origin on the portal."""
    corner = overlap(p.corner, radius)[:, 1:]
    share = nearest_on_triangle(corner, torch.zeros_like(corner[:, 0]), least=ZERO)
    near = (share[..., None] * corner).sum(1)
    away, length = normalize(near, p.direction)
    # The normal is known better than what is short.
    within = (share > 0).all(-1)
    normal = torch.where(within[:, None], p.direction, away)
    depth = torch.where(within, dot(p.direction, corner[:, 0]), length[:, 0])
    return Exit(normal, p.direction, depth, p.hit & (length[:, 0] >= ZERO), p.corner, share)


def shares(corner: Tensor, spare: Tensor) -> Tensor:
    """The shares (n, 4) of the corners (n, 4, 3) [m] of tetrahedra in the origin.

    spare: (n, 3) those of the last three corners where the tetrahedra are flat
    """
    v0, v1, v2, v3 = corner.unbind(1)
    volume = torch.stack(
        [dot(cross(v1, v2), v3), dot(cross(v3, v2), v0), dot(cross(v0, v1), v3), dot(cross(v2, v1), v0)], dim=-1
    )
    total = volume.sum(-1, keepdim=True)
    size = norm(corner.detach()).amax(-1, keepdim=True)
    flat = total < (4 * torch.finfo(total.dtype).eps * size**3).clamp(min=ZERO)
    return torch.where(flat, torch.nn.functional.pad(spare, (1, 0)), volume / torch.where(flat, 1.0, total))
