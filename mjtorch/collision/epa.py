"""How deep convex shapes are in each other (the expanding polytope algorithm), for n pairs at once.

The difference of two shapes, the set of all p2 - p1, contains the origin if they intersect; the depth is the distance
of the origin from its surface. A polytope with corners on the surface is grown: each trip takes the face whose plane is
nearest to the origin, and adds the furthest point of the difference beyond it, until there is none.

Planes have signed distances, so that the polytope need not contain the origin at first: it starts as the tetrahedron
that a search for the origin ended with or, if that is flat, as one as large as a few furthest points make it, which for
bodies with a volume never is.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.gjk import Support, difference
from mjtorch.collision.support import is_at, where_rows
from mjtorch.control_flow.fold import fold
from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.control_flow.if_any import if_any
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math.compact import appended
from mjtorch.math.vector import MIN_VALUE, basis, cross, dot, norm, normalize

# How many times a face away from it the nearest point may be, in the plane.
FAR = 8.0
# Most polytopes end with so many corners, or fewer. As their arrays are as large as the room there is, others get more
# later.
ROOM = 16
# How often a polytope is begun, at most.
ATTEMPTS = 3
# A tetrahedron is flat whose `volumes` is a smaller part of that of a cube of its size.
SLIM = 1e-4
# Corners of the faces of the first tetrahedron, counterclockwise from outside if its volume is positive.
TETRAHEDRON = ((0, 2, 1), (0, 1, 3), (1, 2, 3), (0, 3, 2))


class Polytope(NamedTuple):
    """n polytopes with triangular faces; V corners at most, and 2 V - 4 faces (Euler), F with one that never is.

    point1, point2: (n, V, c) corners, on shape 1 and on shape 2, as in `Support`
    face: (n, F, 3) corners, plane: (n, F, 4) outward normals and distances [m] from the origin; alive: (n, F) bool
    reach: (n, 4) the normal along which the difference was found to reach least far, and how far [m] that is
    done: (n,) bool, no face can be moved further out; spoilt: (n,) bool, because of rounding
    """

    point1: Tensor
    point2: Tensor
    face: Tensor
    plane: Tensor
    alive: Tensor
    reach: Tensor
    done: Tensor
    spoilt: Tensor


class Seen(NamedTuple):
    """What n new corners see of the faces of polytopes.

    visible: (n, F) the faces in order, `removed (n,)` of them
    free: (n, F) the slots that have no other face, in order, `spare (n,)` of them
    """

    visible: Tensor
    removed: Tensor
    free: Tensor
    spare: Tensor


class Depth(NamedTuple):
    """The face of the difference nearest to the origin.

    normal: (n, 3) outward, depth: (n,) [m], negative if the shapes are apart (and then not their distance)
    point1, point2: (n, 3, c) its corners, on shape 1 and on shape 2, as in `Support`
    weight: (n, 3) of the corners in the point of the face nearest to the origin
    reach: (n, 4) as in `Polytope`: a normal and an upper bound of the depth
    enough: (n,) [m] what bound and depth differ by if the iteration converged
    """

    normal: Tensor
    depth: Tensor
    point1: Tensor
    point2: Tensor
    weight: Tensor
    reach: Tensor
    enough: Tensor


def epa(
    support: Support,
    simplex: Tensor,
    start: Tensor,
    reach: Tensor,
    active: Tensor,
    iterations: int,
    tolerance: float | Tensor,
    relative: float | Tensor = 0.0,
) -> Depth:
    """The depth of n pairs of convex shapes, reached within `tolerance` [m] if it can be in so many `iterations`.

    relative: a tolerance, or one for each pair, as a part of the size of the difference; the larger one counts
    simplex: (n, 4, 2 c) corners that a polytope begins with, on shape 1 and on shape 2 as in `Support`
    start: (n, 3) a direction that the first tetrahedron extends in where these are flat
    reach: (n, 4) what is known of them, as in `Polytope`; active: (n,) bool, pairs that are of interest
    """

    def unsettled(carry: tuple[Depth, Tensor, Tensor]) -> Tensor:
        return carry[1].any() & (carry[2] < ATTEMPTS)

    def body(carry: tuple[Depth, Tensor, Tensor]) -> tuple[Depth, Tensor, Tensor]:
        found, wanted, attempt = carry
        first = torch.where(attempt == 0, start, found.reach[:, :3])
        new, spoilt = attempted(support, simplex, first, found.reach, wanted, attempt, iterations, tolerance, relative)
        return where_rows(wanted, new, found), wanted & spoilt, attempt + 1

    nothing = no_depth(start, simplex.shape[-1] // 2)._replace(reach=reach)
    return while_loop(unsettled, body, (nothing, active, torch.zeros((), dtype=torch.long, device=start.device)))[0]


def attempted(
    support: Support,
    simplex: Tensor,
    start: Tensor,
    reach: Tensor,
    active: Tensor,
    attempt: Tensor,
    iterations: int,
    tolerance: float | Tensor,
    relative: float | Tensor,
) -> tuple[Depth, Tensor]:
    """What one polytope for each pair says, as in `epa`, and where rounding spoilt it, (n,) bool.

    attempt: (), each sees less of the faces in whose plane a new corner is; only the first begins with the `simplex`
    """
    most = 4 + iterations
    room = min(ROOM, most)
    flat = active & ((attempt > 0) | is_flat(simplex))
    corners = if_any(flat, lambda: torch.where(flat[:, None, None], wide(support, start, simplex), simplex), simplex)
    polytope = tetrahedron(corners, reach, room)
    polytope = polytope._replace(done=~active)
    scale = norm(difference(polytope.point1[:, :4], polytope.point2[:, :4])).amax(-1)
    rounding = 64 * torch.finfo(scale.dtype).eps * scale
    # Points and a face are compared along the same normal, so that it does not count what that is off by.
    enough = torch.maximum(0.25 * rounding, relative * scale).clamp(min=tolerance)

    def grown(p: Polytope, corners: int) -> Polytope:
        """Polytopes with `corners`, or done before, grown as far as there is room."""
        size, count = p.point1.shape[1], torch.full((), corners, dtype=torch.long, device=start.device)

        def unfinished(carry: tuple[Polytope, Tensor]) -> Tensor:
            return ~carry[0].done.all() & (carry[1] < size)

        def body(carry: tuple[Polytope, Tensor]) -> tuple[Polytope, Tensor]:
            return expanded(support, carry[0], carry[1], (attempt - 1) * rounding, enough), carry[1] + 1

        return while_loop(unfinished, body, (p, count))[0]

    def nearest(p: Polytope) -> tuple[Depth, Tensor]:
        return nearest_face(p, enough), p.spoilt

    few = grown(polytope, 4)
    found = nearest(few)
    if room == most:
        return found
    return if_any(~few.done, lambda: nearest(grown(with_room(few, most), room)), found)


def with_room(p: Polytope, corners: int) -> Polytope:
    """The same polytopes with room for so many corners."""
    more, pad = corners - p.point1.shape[1], torch.nn.functional.pad
    faces = 2 * corners - 3 - p.face.shape[1]
    return p._replace(
        point1=pad(p.point1, (0, 0, 0, more)),
        point2=pad(p.point2, (0, 0, 0, more)),
        face=pad(p.face, (0, 0, 0, faces)),
        plane=pad(p.plane, (0, 0, 0, faces)),
        alive=pad(p.alive, (0, faces)),
    )


def no_depth(like: Tensor, columns: int) -> Depth:
    """What stands for the depth of n pairs that are apart; like: (n, 3), columns: c of `Support`."""
    row, one, corners = torch.zeros_like(like), torch.zeros_like(like[:, 0]), like.new_zeros((*like.shape, columns))
    return Depth(row, one, corners, corners.clone(), row.clone(), like.new_zeros((len(like), 4)), one.clone())


def is_flat(point: Tensor) -> Tensor:
    """Whether (n,) tetrahedra (n, 4, 2 c) have next to no volume, which rounding could turn inside out."""
    position = _difference(point)
    size = norm(position[:, 1:] - position[:, :1]).amax(-1)
    return volumes(point).abs() <= SLIM * size**3


def volumes(point: Tensor) -> Tensor:
    """Six times the signed volumes (n,) of tetrahedra (n, 4, 2 c)."""
    position = _difference(point)
    return dot(_edges(point)[1], position[:, 3] - position[:, 0])


def wide(support: Support, start: Tensor, like: Tensor) -> Tensor:
    """Corners of tetrahedra on the difference, as `like` (n, 4, 2 c), that are far from each other; start: as in `epa`.

    Both ends along the first direction, then what is furthest across these two, then across these three.
    """
    first = normalize(start, basis(start, 1, 0, 0))[0]
    trip = torch.tensor([0, 0, 1, 2], device=start.device)

    def further(number: Tensor, point: Tensor) -> Tensor:
        across, normal = _edges(point)
        unit = torch.where(number == 0, first, torch.where(number == 1, across, normal))
        unit = unit / norm(unit, keepdim=True).clamp(min=MIN_VALUE)
        forth, back = torch.cat(support(unit), dim=-1), torch.cat(support(-unit), dim=-1)
        reach = dot(unit, _difference(forth) + _difference(back) - 2 * _difference(point[:, 0]), keepdim=True)
        far = torch.where(reach >= 0, forth, back)
        found = torch.stack([forth, back, far, far], dim=1)
        return torch.where((trip == number)[:, None], found, point)

    point: Tensor = fori_loop(0, 3, further, torch.zeros_like(like), unroll=False)
    return point


def tetrahedron(point: Tensor, reach: Tensor, corners: int) -> Polytope:
    """The polytope of corners `point` (n, 4, 2 c), with room for `corners`; reach: as in `Polytope`."""
    n, volume = len(point), volumes(point)
    faces = torch.tensor(TETRAHEDRON, device=point.device).expand(n, 4, 3)
    faces = torch.where((volume > 0)[:, None, None], faces, faces.flip(-1))
    corner = _difference(point).gather(1, faces.flatten(1)[..., None].expand(n, 12, 3)).unflatten(1, (4, 3))
    one, two = point.chunk(2, dim=-1)
    first_four = Polytope(
        point1=one,
        point2=two,
        face=faces,
        plane=plane_of(*corner.unbind(2)),
        alive=torch.ones_like(faces[..., 0], dtype=torch.bool),
        reach=reach,
        done=torch.zeros_like(volume, dtype=torch.bool),
        spoilt=torch.zeros_like(volume, dtype=torch.bool),
    )
    return with_room(first_four, corners)


def _difference(points: Tensor) -> Tensor:
    return difference(*points.chunk(2, dim=-1))


def _edges(point: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (n, 3) across the first edge of tetrahedra (n, 4, 2 c), and across their first face."""
    origin, second, third, _ = _difference(point).unbind(1)
    edge = second - origin
    across = cross(edge, is_at(edge.abs().argmin(-1), 3).to(edge.dtype))
    return across, cross(edge, third - origin)


def plane_of(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Unit normals and distances (..., 4) of planes through points (..., 3); infinitely far if they are on a line."""
    normal = cross(b - a, c - a)
    length = norm(normal, keepdim=True)
    flat = length < MIN_VALUE**2
    normal = normal / torch.where(flat, 1.0, length)
    return torch.cat([normal, torch.where(flat, torch.inf, dot(normal, a, keepdim=True))], dim=-1)


def expanded(support: Support, p: Polytope, corner: Tensor, level: Tensor, enough: Tensor) -> Polytope:
    """Move the nearest face out to the furthest point beyond it, which becomes `corner`.

    level: (n,) [m] over which a point is seen from a plane, enough: (n,) [m] under which the face is `done`
    """
    n, size, faces = p.face.shape[0], p.point1.shape[1], p.face.shape[1] - 1
    nearest = lowest(p, (2 * corner - 4).expand(n))
    plane = p.plane.gather(1, nearest[:, None, None].expand(n, 1, 4))[:, 0]
    new1, new2 = support(plane[:, :3])
    new = difference(new1, new2)
    extent = dot(plane[:, :3], new, keepdim=True)
    gain = extent[:, 0] - plane[:, 3]
    less = ~p.done[:, None] & (extent < p.reach[:, 3:])
    done = p.done | ~(gain > enough)

    seen = looked_at(p, corner, new, level)
    sums = around(p, seen)
    on_rim, sides = rim(sums, corner.expand(n))
    # By Euler two more than are removed, less two for each corner inside of the rim; else rounding spoilt the polytope.
    inner = seen.removed + 2 - sides
    spoilt = p.spoilt | ~done & ((inner < 0) | (inner % 2 != 0) | (sides < 3))
    done = done | spoilt
    added, removed = (torch.where(done, 0, x) for x in (sides, seen.removed))

    def spread(now: tuple[Tensor, Tensor, Tensor], place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Faces from the new corner to sides of the rim. The k-th side gets the k-th slot that is free."""
        face, plane, alive = now
        start, there = on_rim.index_select(1, place), place < added[:, None]
        end = follower(sums.gather(1, start), size)
        slot = torch.where(there, seen.free.index_select(1, place), faces)
        one, other = (
            difference(*(x.gather(1, at[..., None].expand(-1, -1, x.shape[2])) for x in (p.point1, p.point2)))
            for at in (start, end)
        )
        # The new corner first, as in C: an edge that shapes touch along begins with the first corner of its face.
        triangle = torch.stack([corner.expand_as(start), start, end], dim=-1)
        across = plane_of(one, other, new[:, None].expand_as(one))
        return (
            face.scatter(1, slot[..., None].expand_as(triangle), triangle),
            plane.scatter(1, slot[..., None].expand_as(across), across),
            alive.scatter(1, slot, there),
        )

    def remove(alive: Tensor, place: Tensor) -> Tensor:
        there = place < removed[:, None]
        return alive.scatter(1, torch.where(there, seen.visible.index_select(1, place), faces), False)

    left = fold(remove, removed, faces, p.alive)
    face, planes, alive = fold(spread, added, size, (p.face, p.plane, left))
    # Of a polytope that is done, no face has this corner.
    row = corner.expand(n, 1, new1.shape[1])
    return Polytope(
        point1=p.point1.scatter(1, row, new1[:, None]),
        point2=p.point2.scatter(1, row, new2[:, None]),
        face=face,
        plane=planes,
        alive=alive,
        reach=torch.where(less, torch.cat([plane[:, :3], extent], dim=-1), p.reach),
        done=done,
        spoilt=spoilt,
    )


def lowest(p: Polytope, count: Tensor) -> Tensor:
    """The first (n,) of the faces, of the first `count (n,)`, whose planes are nearest to the origin."""

    def look(now: tuple[Tensor, Tensor], face: Tensor) -> tuple[Tensor, Tensor]:
        distance = torch.where(p.alive.index_select(1, face), p.plane.index_select(1, face)[..., 3], torch.inf)
        least, where = distance.min(-1)
        nearer = least < now[0]
        return torch.where(nearer, least, now[0]), torch.where(nearer, face.index_select(0, where), now[1])

    start = torch.full_like(p.plane[:, 0, 0], torch.inf), torch.zeros_like(count)
    return fold(look, count, p.face.shape[1] - 1, start)[1]


def looked_at(p: Polytope, corner: Tensor, new: Tensor, level: Tensor) -> Seen:
    """What a new corner, `new (n, 3)` [m], sees of the faces between corners before it; level: as for `expanded`."""
    n, faces = p.face.shape[0], p.face.shape[1] - 1

    def look(now: Seen, face: Tensor) -> Seen:
        # A face whose plane passes through the new corner is replaced, too: so no sliver arises between the two.
        plane, alive = p.plane.index_select(1, face), p.alive.index_select(1, face)
        visible = alive & (dot(plane[..., :3], new[:, None]) - plane[..., 3] >= level[:, None])
        return Seen(
            *appended(now.visible, now.removed, visible, face),
            *appended(now.free, now.spare, visible | ~alive, face),
        )

    none, nothing = p.face.new_zeros(n), p.face.new_zeros(n, faces + 1)
    # No more than two of the slots that there are then have had no face so far.
    return fold(look, (2 * corner - 2).expand(n), faces, Seen(nothing, none, nothing.clone(), none))


def around(p: Polytope, seen: Seen) -> Tensor:
    """Sums (n, V) around each corner of the faces that are visible, see `follower`."""
    unit = _unit(p.point1.shape[1])

    def add(now: Tensor, place: Tensor) -> Tensor:
        face = seen.visible.index_select(1, place)[..., None].expand(-1, -1, 3)
        corners, there = p.face.gather(1, face), place < seen.removed[:, None]
        after, before = corners.roll(-1, -1), corners.roll(1, -1)
        change = torch.where(there[..., None], (after - before) * (1 + unit * (after + before)), 0)
        return now.scatter_add(1, corners.flatten(1), change.flatten(1))

    return fold(add, seen.removed, p.face.shape[1] - 1, torch.zeros_like(p.point1[..., 0], dtype=torch.long))


def rim(around: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The first `count (n,)` corners on the line around the visible faces (n, V + 1), in order, and how many (n,)."""
    n, size = around.shape

    def look(now: tuple[Tensor, Tensor], place: Tensor) -> tuple[Tensor, Tensor]:
        return appended(*now, around.index_select(1, place) != 0, place)

    return fold(look, count, size, (around.new_zeros(n, size + 1), torch.zeros_like(count)))


def follower(around: Tensor, corners: int) -> Tensor:
    """Which corner follows on the line around the visible faces, of `corners`, by the sums `around` one on it.

    Of all visible faces around a corner, what comes after it in each, less what comes before it, adds up to its
    follower on the line less its predecessor, as the rest cancels. So do the squares, to the difference of the squares.
    One integer holds both sums; it is zero where a corner is not on the line.
    """
    unit = _unit(corners)
    squares = (around + unit // 2) // unit
    difference = (around - unit * squares).to(torch.float32)
    twice = squares.to(torch.float32) / torch.where(difference != 0, difference, 1.0) + difference
    return (0.5 * twice).round().clamp(0, corners - 1).long()


def _unit(corners: int) -> int:
    """What squares are counted in where an integer holds sums of numbers of so many corners, and of their squares."""
    return 2 ** (4 * corners).bit_length()


def nearest_face(p: Polytope, enough: Tensor) -> Depth:
    """What there is to know of the face nearest to the origin; enough: (n,) [m] as in `Depth`."""
    n = p.face.shape[0]
    nearest = p.plane[..., 3].masked_fill(~p.alive, torch.inf).argmin(-1)[:, None, None]
    plane = p.plane.gather(1, nearest.expand(n, 1, 4))[:, 0]
    # Cores on one line have no face: they touch in any direction across.
    flat = torch.isinf(plane[:, 3:])
    normal = torch.where(flat, p.reach[:, :3], plane[:, :3])
    depth = plane[:, 3].masked_fill(flat[:, 0], 0.0)
    corner = p.face.gather(1, nearest.expand(n, 1, 3))[:, 0, :, None].expand(n, 3, p.point1.shape[2])
    point1, point2 = p.point1.gather(1, corner), p.point2.gather(1, corner)
    position = difference(point1, point2) - (normal * depth[:, None])[:, None]
    # Areas of the triangles that the nearest point makes with the edges.
    opposite = cross(position.roll(-1, 1), position.roll(1, 1))
    # Negative where a face in the same plane is the one that the point is in, which does as well.
    area = dot(opposite, normal[:, None])
    total = area.sum(-1, keepdim=True)
    weight = area / torch.where(total > 0, total, 1.0)
    # Nor is the point far from the face, if rounding is not all that there is of its area.
    weight = torch.where((total > 0) & (weight.abs() < FAR).all(-1, keepdim=True), weight, 1.0 / 3.0)
    return Depth(normal, depth, point1, point2, weight, p.reach, enough)
