"""The distance between convex shapes that are apart (Gilbert, Johnson and Keerthi), for n pairs at once.

The difference of two shapes is the set of all p2 - p1. Its point x nearest to the origin goes from the nearest point of
shape 1 to that of shape 2. It is approached by simplices with corners on the difference: each trip replaces a corner
that x does not need by the furthest point towards the origin.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.support import is_at
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math.vector import basis, cross, dot, norm, normalize

# The corners that span the edges and the faces of a tetrahedron.
EDGES = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
FACES = ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3))
# The three that are opposite to each corner, with the parity that makes their volumes add up.
OPPOSITE = ((1, 3, 2), (0, 2, 3), (0, 3, 1), (0, 1, 2))

# Furthest points (n, c) of both shapes, of the first against and of the second along directions (n, 3): where they are
# [m] and, where shapes may be hulls, the number of the vertex.
Support = Callable[[Tensor], tuple[Tensor, Tensor]]


class Simplex(NamedTuple):
    """Corners of n simplices on the difference of two shapes, and their points nearest to the origin.

    point1, point2: (n, 4, c) corners, on shape 1 and on shape 2, as in `Support`
    weight: (n, 4) of the corners in the nearest point; nearest: (n, 3) [m] that point
    done: (n,) bool, no corner comes closer, or none has to
    apart: (n,) bool, the last direction separates the shapes by more than rounding: nothing else shows that they do not
        touch
    beyond: (n,) bool, the shapes are known to be further apart than was asked about
    reach: (n, 4) the direction along which the difference was found to reach least far, and how far [m] that is
    """

    point1: Tensor
    point2: Tensor
    weight: Tensor
    nearest: Tensor
    done: Tensor
    apart: Tensor
    beyond: Tensor
    reach: Tensor


class Entry(NamedTuple):
    """Where the search enters n differences.

    point1, point2: (n, c) the furthest towards each other along some direction, as in `Support`
    dist: (n,) [m] how far apart the shapes are along it, and so at least; negative: they overlap
    """

    point1: Tensor
    point2: Tensor
    dist: Tensor


def entered(support: Support, start: Tensor) -> Entry:
    """Where the differences of n pairs are entered along `start (n, 3)`, such as from centre to centre."""
    direction = normalize(start, basis(start, 1, 0, 0))[0]
    point1, point2 = support(-direction)
    return Entry(point1, point2, dot(direction, difference(point1, point2)))


def gjk(
    support: Support, entry: Entry, active: Tensor, reach: Tensor, iterations: int, tolerance: float | Tensor
) -> Simplex:
    """The nearest points of n pairs of convex shapes that are `apart`; what is said of others is how far it came.

    active: (n,) bool, pairs that are of interest
    reach: (n,) [m] distances that are of interest: the first direction that separates two shapes by more ends it
    tolerance: [m] on the distance, reached if it can be in so many `iterations`
    """
    point1, point2 = entry.point1, entry.point2
    start = difference(point1, point2)
    first = Simplex(
        point1=point1[:, None].expand(-1, 4, -1).contiguous(),
        point2=point2[:, None].expand(-1, 4, -1).contiguous(),
        weight=basis(start, 1, 0, 0, 0).expand(start.shape[0], 4).contiguous(),
        nearest=start,
        done=~active,
        apart=torch.zeros_like(active),
        beyond=torch.zeros_like(active),
        reach=torch.nn.functional.pad(basis(start, 1, 0, 0).expand_as(start), (0, 1), value=torch.inf),
    )
    count = torch.zeros((), dtype=torch.long, device=start.device)

    def unfinished(carry: tuple[Simplex, Tensor]) -> Tensor:
        return ~carry[0].done.all() & (carry[1] < iterations)

    def body(carry: tuple[Simplex, Tensor]) -> tuple[Simplex, Tensor]:
        return improved(support, carry[0], reach, tolerance), carry[1] + 1

    return while_loop(unfinished, body, (first, count))[0]


def difference(point1: Tensor, point2: Tensor) -> Tensor:
    """Points (..., 3) [m] of the difference of two shapes, from points of these as in `Support`."""
    return point2[..., :3] - point1[..., :3]


def improved(support: Support, s: Simplex, reach: Tensor, tolerance: float | Tensor) -> Simplex:
    """One trip of the algorithm: the same simplex, `done`, where the nearest point of all is reached."""
    square = dot(s.nearest, s.nearest)
    eps = torch.finfo(square.dtype).eps
    length = torch.where(square > 0, square, 1.0).sqrt()
    new1, new2 = support(-s.nearest / length[:, None])
    new = difference(new1, new2)
    # By convexity the distance is at least nearest . new / length, and the depth at most the opposite.
    along = dot(s.nearest, new)
    less = (~s.done & (-along < s.reach[:, 3] * length))[:, None]
    beyond = ~s.done & (along > reach * length)
    rounding = 4 * eps * (square + length * norm(new))
    close = square - along <= (0.5 * tolerance * tolerance) + rounding
    # A corner of no weight; there is one, or the origin is inside.
    slot = is_at(s.weight.argmin(-1), 4)[..., None]
    point1, point2 = torch.where(slot, new1[:, None], s.point1), torch.where(slot, new2[:, None], s.point2)
    weight, nearest = nearest_to_origin(difference(point1, point2))
    better = ~s.done & ~close & ~beyond & (dot(nearest, nearest) < square)
    row, corner = better[:, None], better[:, None, None]
    intersecting = dot(nearest, nearest) <= (64 * eps) ** 2 * dot(new, new)
    return Simplex(
        point1=torch.where(corner, point1, s.point1),
        point2=torch.where(corner, point2, s.point2),
        weight=torch.where(row, weight, s.weight),
        nearest=torch.where(row, nearest, s.nearest),
        done=~better | intersecting,
        apart=torch.where(s.done, s.apart, along > rounding),
        beyond=s.beyond | beyond,
        reach=torch.where(less, torch.cat([-s.nearest, -along[:, None]], dim=-1) / length[:, None], s.reach),
    )


def nearest_to_origin(corner: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (n, 4) and position (n, 3) of the point of a tetrahedron `corner (n, 4, 3)` nearest to the origin.

    Corners may coincide. The point is inside, on a face, on an edge or at a corner: all 15 are tried, and those that
    have no nearest point of their own, or are degenerate, passed over.
    """
    n = corner.shape[0]
    weights, points, valid = zip(_corners(corner), _edges(corner), _faces(corner), _inside(corner), strict=True)
    weight, point = torch.cat(weights, dim=1), torch.cat(points, dim=1)
    square = dot(point, point).masked_fill(~torch.cat(valid, dim=1), torch.inf)
    best = square.argmin(1)[:, None, None]
    return weight.gather(1, best.expand(n, 1, 4))[:, 0], point.gather(1, best.expand(n, 1, 3))[:, 0]


def _corners(corner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = corner.shape[0]
    identity = torch.eye(4, dtype=corner.dtype, device=corner.device)
    return identity.expand(n, 4, 4), corner, torch.ones((n, 4), dtype=torch.bool, device=corner.device)


def _edges(corner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ends = torch.tensor(EDGES, device=corner.device)
    start, edge = corner[:, ends[:, 0]], corner[:, ends[:, 1]] - corner[:, ends[:, 0]]
    square = dot(edge, edge)
    t = -dot(start, edge) / torch.where(square > 0, square, 1.0)
    member = torch.eye(4, dtype=corner.dtype, device=corner.device)[ends]
    weight = (1 - t)[..., None] * member[:, 0] + t[..., None] * member[:, 1]
    return weight, start + t[..., None] * edge, (t > 0) & (t < 1)


def _faces(corner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ends = torch.tensor(FACES, device=corner.device)
    a, b, c = corner[:, ends].unbind(2)
    edge1, edge2 = b - a, c - a
    normal = cross(edge1, edge2)
    square = dot(normal, normal)
    # Of corners on one line, a normal is nothing but rounding.
    eps = torch.finfo(corner.dtype).eps
    flat = square > (4 * eps) ** 2 * dot(edge1, edge1) * dot(edge2, edge2)
    square = torch.where(flat, square, 1.0)
    part2, part3 = dot(cross(edge2, a), normal) / square, dot(cross(a, edge1), normal) / square
    part = torch.stack([1 - part2 - part3, part2, part3], dim=-1)
    member = torch.eye(4, dtype=corner.dtype, device=corner.device)[ends]
    weight = (part[..., None] * member).sum(-2)
    return weight, normal * (dot(normal, a) / square)[..., None], flat & (part > 0).all(-1)


def _inside(corner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b, c = corner[:, torch.tensor(OPPOSITE, device=corner.device)].unbind(2)
    volume = dot(a, cross(b, c))
    total = volume.sum(-1, keepdim=True)
    weight = volume / torch.where(total == 0, 1.0, total)
    inside = ((volume > 0).all(-1) | (volume < 0).all(-1))[:, None]
    # The origin, but for a tetrahedron so flat that its volume is nothing but rounding.
    return weight[:, None], (weight[..., None] * corner).sum(1, keepdim=True), inside
