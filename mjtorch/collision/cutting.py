"""Polygons, cut by one line after the other, as C cuts them (polygonClip): corner by corner, in C's order.

C makes a new list for each line. Here corners are linked to their neighbours: a line takes out those that are outside,
which lie in a row, and puts at most two in their place. So it costs a look at how far each corner is within the line.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.control_flow.fold import fold
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math.vector import dot

# A corner that is so near to a line [m] is on it, by precision.
SINGLE, DOUBLE = 1e-6, 1e-12


class Outline(NamedTuple):
    """n polygons, clockwise from outside; of two corners, edges.

    corner: (n, k, 3) [m], whatever is spare at the end; number: (n,) how many there are
    """

    corner: Tensor
    number: Tensor


class Cut(NamedTuple):
    """Outlines while they are cut, all constants.

    corner: (n, v, 6) position [m], and three whole numbers: the line that the side which begins here is on, and what
        the corner came from: the line that it is on, and the line of the ground that cut that; -1: none, it begins it.
        Lines of the subject come first, then those of the ground.
    number: (n,) how many there are
    """

    corner: Tensor
    number: Tensor


class Ring(NamedTuple):
    """Corners of n polygons, linked to their neighbours, in v rows; the last one is for what is not kept.

    corner: (n, v, 6) as in `Cut`
    before, after: (n, v) the rows of the neighbours; after is -1 where there is no corner
    used: (n,) how many rows have been used so far
    first: (n,) the row of the corner that a list begins with; -1: no corner is left
    """

    corner: Tensor
    before: Tensor
    after: Tensor
    used: Tensor
    first: Tensor


class Line(NamedTuple):
    """A line of n grounds.

    origin: (n, 1, 3) [m] a point of it, inward: (n, 1, 3) the direction in which the ground is
    number: (n,) which it is; lines: static, how many the subjects may have
    """

    origin: Tensor
    inward: Tensor
    number: Tensor
    lines: int


class Depths(NamedTuple):
    """How far corners of n rings are within a line.

    depth: (n, v) [m]; least: (n,) [m] the least of those, or zero, place: (n,) the row of that
    number: (n,) how many corners are outside
    """

    depth: Tensor
    least: Tensor
    place: Tensor
    number: Tensor


class Left(NamedTuple):
    """What is left of n rings when `number (n,)` corners in a row are taken out.

    after: (n, v) as in `Ring`; row: (n,) what comes next
    """

    after: Tensor
    row: Tensor
    number: Tensor


class Order(NamedTuple):
    """The first `number (n,)` rows of lists of corners (n, v), and the row (n,) that comes next, -1: none."""

    listed: Tensor
    row: Tensor
    number: Tensor


class Going(NamedTuple):
    """How far n polygons are cut: by `trip (n,)` of their lines; a list begins where line `seen (n,)` let it begin.

    again: (n,) how many cuts were not the first by their line; rounding could go on with them
    """

    ring: Ring
    trip: Tensor
    seen: Tensor
    again: Tensor


def snapped(depth: Tensor) -> Tensor:
    """Depths [m], zero on the line."""
    return torch.where(depth.abs() <= (DOUBLE if depth.dtype is torch.float64 else SINGLE), 0.0, depth)


def cut_off(ground: Outline, lines: Tensor, subject: Outline, chosen: Tensor, count: Tensor) -> Cut:
    """What the lines of the ground leave of the subject.

    lines: (n, k, 3) the directions in which the ground is
    chosen: (n, k) the lines, `count (n,)`, that cut something off; the others, too, list from the second corner on
    """
    none, most = torch.zeros_like(count), subject.corner.shape[1]

    def body(now: Going) -> Going:
        active = now.trip < count
        which = chosen.gather(1, now.trip.clamp(max=chosen.shape[1] - 1)[:, None])
        origin, direction = (x.gather(1, which[..., None].expand(-1, -1, 3)) for x in (ground.corner, lines))
        number = which[:, 0]
        ring = moved_on(now.ring, torch.where(active, number - now.seen, 0))
        ring, more = cut_once(ring, Line(origin, direction, number, most), active)
        more = more & (now.again < most)
        return Going(ring, now.trip + (active & ~more), torch.where(active, number, now.seen), now.again + more)

    end = while_loop(lambda now: (now.trip < count).any(), body, Going(linked(subject), none, none, none))
    return in_order(moved_on(end.ring, ground.number - end.seen))


def linked(subject: Outline) -> Ring:
    """Outlines of which nothing is cut off yet, with room for what is."""
    n, k = subject.corner.shape[:2]
    row = torch.arange(k, device=subject.number.device).expand(n, k)
    last = subject.number[:, None] - 1  # -1: there is none
    number = row.to(subject.corner.dtype)
    corner = torch.cat([subject.corner, torch.stack([number, number, torch.full_like(number, -1)], dim=-1)], dim=-1)
    before = torch.where(row == 0, last.clamp(min=0), row - 1)
    after = torch.where(row < last, row + 1, torch.where(row == last, 0, -1))
    pad = torch.nn.functional.pad
    first = torch.where(subject.number > 0, 0, -1)
    corner = pad(corner, (0, 0, 0, k + 1))
    return Ring(corner, pad(before, (0, k + 1)), pad(after, (0, k + 1), value=-1), subject.number, first)


def at(x: Tensor, row: Tensor) -> Tensor:
    """Elements (n,) of `x (n, v)`; of no row, -1, any."""
    return x.gather(1, row.clamp(min=0)[:, None])[:, 0]


def moved_on(ring: Ring, steps: Tensor) -> Ring:
    """The same, the list beginning so many corners later, `steps (n,)`."""

    def step(now: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        first, left = now
        return torch.where(left > 0, at(ring.after, first), first), left - 1

    left = torch.where(ring.first < 0, 0, steps)
    first, _ = while_loop(lambda now: (now[1] > 0).any(), step, (ring.first, left))
    return ring._replace(first=first)


def cut_once(ring: Ring, line: Line, active: Tensor) -> tuple[Ring, Tensor]:
    """The rings that are `active (n,)` without the corners in a row of which one is furthest outside of the line.

    And whether others are outside, (n,) bool: by rounding, polygons need not be convex.
    """
    depth, _, deepest, number = depths_in_line(ring, line)
    cuts = active & (number > 0)
    begin = furthest_back(ring.before, depth, torch.where(cuts, deepest, 0), cuts)
    after, b, taken = taken_out(ring.after, depth, begin, cuts)
    a, end = at(ring.before, begin), at(ring.before, b)
    depth_a, depth_b = at(depth, a), at(depth, b)
    left = cuts & (depth_a >= 0)
    # New corners are where the sides that lead out and in cross the line; a corner on it needs no other in its place.
    spare = after.shape[1] - 1
    out = left & (depth_a > 0)
    takes_row = out & (begin == end)
    back = left & (depth_b > 0) & ~(takes_row & (ring.used >= spare))
    is_new = takes_row & back
    row_out = torch.where(out, begin, spare)
    row_back = torch.where(back, torch.where(is_new, ring.used, end), spare)
    used = ring.used + is_new

    def written(x: Tensor, rows: list[Tensor], values: list[Tensor]) -> Tensor:
        return x.scatter(1, torch.stack(rows, dim=1), torch.stack(values, dim=1))

    follower, leader = torch.where(back, row_back, b), torch.where(out, row_out, a)
    first_gone = at(after, ring.first) < 0
    row_a, row_b = torch.where(left, a, spare), torch.where(left, b, spare)
    after = written(after, [row_a, row_out, row_back], [torch.where(out, row_out, follower), follower, b])
    before = written(ring.before, [row_out, row_back, row_b], [a, leader, torch.where(back, row_back, leader)])
    first = torch.where(cuts, torch.where(left, torch.where(first_gone, leader, ring.first), -1), ring.first)

    rows = torch.stack([a, begin, end, b], dim=1)[..., None]
    corner_a, corner_begin, corner_end, corner_b = ring.corner.gather(1, rows.expand(-1, -1, 6)).unbind(1)
    cutting = (line.lines + line.number).to(ring.corner.dtype)

    def crossing(one: Tensor, other: Tensor, depth1: Tensor, depth2: Tensor, on: Tensor) -> Tensor:
        share = depth1 / torch.where(depth1 == depth2, 1.0, depth1 - depth2)
        point = one[:, :3] + share[:, None] * (other[:, :3] - one[:, :3])
        return torch.cat([point, torch.stack([on, one[:, 3], cutting - line.lines], dim=-1)], dim=-1)

    leading_out = crossing(corner_a, corner_begin, depth_a, at(depth, begin), cutting)
    leading_in = crossing(corner_end, corner_b, at(depth, end), depth_b, corner_end[:, 3])
    # The side that a corner on the line begins is on the line if what came next is outside.
    on_line = torch.cat(
        [corner_a[:, :3], torch.where(depth_a == 0, cutting, corner_a[:, 3])[:, None], corner_a[:, 4:]], 1
    )
    places = torch.stack([row_a, row_out, row_back], dim=1)[..., None].expand(-1, -1, 6)
    corner = ring.corner.scatter(1, places, torch.stack([on_line, leading_out, leading_in], dim=1))
    return Ring(corner, before, after, used, first), cuts & (number > taken)


def depths_in_line(ring: Ring, line: Line) -> Depths:
    """How far within a line the corners of rings are."""

    def look(now: Depths, row: Tensor) -> Depths:
        here = snapped(dot(ring.corner.index_select(1, row)[..., :3] - line.origin, line.inward))
        here = torch.where(ring.after.index_select(1, row) >= 0, here, torch.inf)
        least, where = here.min(-1)
        further = least < now.least
        return Depths(
            now.depth.scatter(1, row.expand_as(here), here),
            torch.where(further, least, now.least),
            torch.where(further, row.index_select(0, where), now.place),
            now.number + (here < 0).sum(-1),
        )

    none = torch.zeros_like(ring.used)
    depth = torch.full_like(ring.corner[..., 0], torch.inf)
    return fold(look, ring.used, depth.shape[1] - 1, Depths(depth, torch.zeros_like(depth[:, 0]), none, none))


def furthest_back(before: Tensor, depth: Tensor, row: Tensor, active: Tensor) -> Tensor:
    """The first (n,) of the corners in a row with `row (n,)` that are outside of a line; if all are, the second."""

    def goes(now: Tensor) -> Tensor:
        back = at(before, now)
        return active & (at(depth, back) < 0) & (back != row)

    return while_loop(lambda now: goes(now).any(), lambda now: torch.where(goes(now), at(before, now), now), row)


def taken_out(after: Tensor, depth: Tensor, begin: Tensor, active: Tensor) -> Left:
    """What is left without the corners in a row from `begin (n,)` on that are outside of a line."""

    def goes(now: Left) -> Tensor:
        return active & (at(depth, now.row) < 0) & (at(now.after, now.row) >= 0)

    def body(now: Left) -> Left:
        going = goes(now)
        place = torch.where(going, now.row, after.shape[1] - 1)
        then = torch.where(going, at(now.after, now.row), now.row)
        return Left(now.after.scatter(1, place[:, None], -1), then, now.number + going)

    return while_loop(lambda now: goes(now).any(), body, Left(after, begin, torch.zeros_like(begin)))


def in_order(ring: Ring) -> Cut:
    """The list of corners, from the first one on."""
    n, v = ring.after.shape
    size = v - 1

    def body(now: Order) -> Order:
        there = now.row >= 0
        place = torch.where(there, now.number, size).clamp(max=size)
        then = at(ring.after, now.row)
        row = torch.where(there & (then != ring.first) & (now.number < size - 1), then, -1)
        return Order(now.listed.scatter(1, place[:, None], now.row.clamp(min=0)[:, None]), row, now.number + there)

    none = torch.zeros_like(ring.used)
    start = Order(torch.zeros((n, v), dtype=torch.long, device=none.device), ring.first, none)
    order = while_loop(lambda now: (now.row >= 0).any(), body, start)
    return Cut(ring.corner.gather(1, order.listed[:, :size, None].expand(n, size, 6)), order.number)
