"""What of a polygon, or an edge, lies over another polygon, corner by corner as C lists it (polygonClip, polygonQuad).

The lines along the edges of the one polygon, the *ground*, cut the other one, the *subject*, one after the other. Where
a cut ends a side of the subject there is a new corner: which side it is on, and which line made it, tells what its
position is a function of.

An edge is a polygon of two corners, which has its one side twice, there and back: a cut ends both, at two corners in
one place. Of an edge that lies in a face all over, C keeps the two ends; if only the cut end is low enough to touch, it
keeps both of its corners, and lists the same contact twice, which makes it twice as stiff. So do we.

What remains is decided by rounding: which four of many corners span most area where others do as well, as in regular
polygons, and which of two features is deepest where both are. In 10,334 poses in which hulls of meshes, and boxes,
touched hulls of meshes, C had another number of contacts in 2, and as many but others in 11.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.control_flow.if_any import if_any
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math.vector import cross, dot, norm

# What a pair of shapes has at most.
CONTACTS = 4
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
    number: (n,) how many there are; turn: (n,) which of them is the first, from which on they go around
    line: () the line of the ground that cuts next
    """

    corner: Tensor
    number: Tensor
    turn: Tensor
    line: Tensor


class Chosen(NamedTuple):
    """Which elements were chosen (n, k), and which of these exist."""

    element: Tensor
    exists: Tensor


def first(mask: Tensor, count: int) -> Chosen:
    """The first `count` elements of `mask (n, m)` that are true."""
    n, size = mask.shape
    rank = torch.where(mask, mask.cumsum(-1) - 1, count).clamp(max=count)
    place = torch.zeros((n, count + 1), dtype=torch.long, device=mask.device)
    index = place.scatter(1, rank, torch.arange(size, device=mask.device).expand(n, size))[:, :count]
    return Chosen(index, torch.arange(count, device=mask.device) < mask.sum(-1, keepdim=True))


def outline(polygon: Tensor) -> Outline:
    """Polygons (n, k, 3) [m] counterclockwise from outside, the last corner repeated, in C's order: from it on back."""
    back = torch.arange(polygon.shape[1] - 1, -1, -1, device=polygon.device)
    spare = (polygon[:, 1:] == polygon[:, :-1]).all(-1).sum(-1)
    element = (back - spare[:, None]).clamp(min=0)[..., None].expand_as(polygon)
    return Outline(polygon.gather(1, element), polygon.shape[1] - spare)


def over(ground: Outline, up: Tensor, subject: Outline, normal: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
    """At most four corners (n, 4, 3) [m] of what of the subject is over the ground, and which of these there are.

    up, normal: (n, 3) of ground and subject; margin: (n,) [m] how far above the ground a corner may be; both outlines
    have room for as many corners
    """
    lines = inward(ground, up)
    fixed1, fixed2 = (Outline(x.corner.detach(), x.number) for x in (ground, subject))
    on, by, exists = listed(fixed1, fixed2, up.detach(), lines.detach(), margin.detach())
    return positions(ground, up, lines, subject, normal, on, by), exists


def inward(ground: Outline, up: Tensor) -> Tensor:
    """The directions (n, k, 3) in which the ground is, across its sides."""
    across = cross(following(ground.corner, ground.number) - ground.corner, up[:, None])
    return across / norm(across, keepdim=True).clamp(min=1e-12)


def following(rows: Tensor, count: Tensor) -> Tensor:
    """The next of rows (n, k, c), of which the first ones, `count (n,)`, are a circle."""
    is_last = torch.arange(1, rows.shape[1] + 1, device=rows.device) == count[:, None]
    return torch.where(is_last[..., None], rows[:, :1], rows.roll(-1, 1))


def listed(
    ground: Outline, subject: Outline, up: Tensor, lines: Tensor, margin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What the corners of `over` came from, two numbers as in `Cut`, and which there are: (n, 4) each."""
    cut = clipped(ground, lines, subject)
    size = cut.corner.shape[1]
    height = dot(cut.corner[..., :3] - ground.corner[:, :1], up[:, None])
    there = torch.arange(size, device=up.device) < cut.number[:, None]
    low = first(there & (height <= margin[:, None]), size)
    corner = cut.corner.gather(1, low.element[..., None].expand(-1, -1, 6))
    number = low.exists.sum(-1)

    point = torch.where(low.exists[..., None], corner[..., :3], corner[:, :1, :3])
    place = torch.arange(CONTACTS, device=up.device)
    is_edge = (subject.number == 2)[:, None]
    # Of an edge its two ends, whichever was found twice.
    from_first = point - point[:, :1]
    far = dot(from_first, from_first).argmax(-1, keepdim=True)
    index = torch.where(is_edge & (place == 1), far, place)
    many = ~is_edge[:, 0] & (number > CONTACTS)
    index = if_any(many, lambda: torch.where(many[:, None], largest(point, number, many), index), index)
    exists = place < torch.minimum(number[:, None], torch.where(is_edge, 2, CONTACTS))
    on, by = corner[..., 4:].gather(1, index[..., None].expand(-1, -1, 2)).long().unbind(-1)
    return on, by, exists


def clipped(ground: Outline, lines: Tensor, subject: Outline) -> Cut:
    """The subject, cut by each line of the ground; lines: (n, k, 3) the directions in which the ground is."""
    n, k = subject.corner.shape[:2]
    number = torch.arange(2 * k, device=lines.device).to(lines.dtype).expand(n, 2 * k)
    corner = torch.nn.functional.pad(subject.corner, (0, 0, 0, k))
    start = torch.cat([corner, torch.stack([number, number, torch.full_like(number, -1)], dim=-1)], dim=-1)
    most = ground.number.amax()

    def body(now: Cut) -> Cut:
        origin, direction = (x.index_select(1, now.line[None]) for x in (ground.corner, lines))
        depth = dot(now.corner[..., :3] - origin, direction)
        depth = torch.where(depth.abs() > (DOUBLE if depth.dtype is torch.float64 else SINGLE), depth, 0.0)
        outside = (torch.arange(2 * k, device=depth.device) < now.number[:, None]) & (depth < 0)
        active = now.line < ground.number
        # Most lines cut nothing off: then the next corner becomes the first.
        cuts, ahead = active & outside.any(-1), now.turn + 1
        turn = torch.where(active, torch.where(ahead < now.number, ahead, 0), now.turn)

        def cut() -> Cut:
            after = halved(now._replace(corner=turned(now.corner, now)), turned(depth[..., None], now)[..., 0], k)
            return Cut(
                torch.where(cuts[:, None, None], after.corner, now.corner),
                torch.where(cuts, after.number, now.number),
                torch.where(cuts, 0, turn),
                after.line,
            )

        return if_any(cuts, cut, Cut(now.corner, now.number, turn, now.line + 1))

    first = Cut(start, subject.number, torch.zeros_like(subject.number), torch.zeros_like(most))
    last = while_loop(lambda now: now.line < most, body, first)
    return last._replace(corner=turned(last.corner, last))


def turned(rows: Tensor, cut: Cut) -> Tensor:
    """What belongs to the corners, rows (n, v, c), from the first one on."""
    place = torch.arange(rows.shape[1], device=rows.device) + cut.turn[:, None]
    place = torch.where(place < cut.number[:, None], place, place - cut.number[:, None]).clamp(min=0)
    return rows.gather(1, place[..., None].expand_as(rows))


def halved(now: Cut, depth: Tensor, lines: int) -> Cut:
    """The part that is not outside of the line of the ground; depth: (n, v) [m] of corners in there, or zero.

    lines: how many the subject may have; corners begin with the first
    """
    size = depth.shape[1]
    there = torch.arange(size, device=depth.device) < now.number[:, None]
    ahead = following(depth[..., None], now.number)[..., 0]
    crosses, stays = there & (depth * ahead < 0), there & (ahead >= 0)
    cutting = lines + now.line.to(depth.dtype)
    position, side, origin = now.corner.split((3, 1, 2), dim=-1)
    # A corner on the line needs no other in its place; the side that it begins is on the line if the next is outside.
    ends = torch.where(((depth == 0) & (ahead < 0))[..., None], cutting, side)
    after = following(torch.cat([position, ends, origin], dim=-1), now.number)
    share = depth / torch.where(crosses, depth - ahead, 1.0)
    new = position + share[..., None] * (after[..., :3] - position)
    new_side = torch.where((depth > 0)[..., None], cutting, side)
    new = torch.cat([new, new_side, side, (cutting - lines).expand_as(side)], dim=-1)
    rows = torch.stack([new, after], dim=2).flatten(1, 2)
    kept = torch.stack([crosses, stays], dim=2).flatten(1, 2)
    chosen = first(kept, size).element
    corner = rows.gather(1, chosen[..., None].expand(-1, -1, 6))
    return Cut(corner, kept.sum(-1).clamp(max=size), torch.zeros_like(now.turn), now.line + 1)


def positions(
    ground: Outline, up: Tensor, lines: Tensor, subject: Outline, normal: Tensor, on: Tensor, by: Tensor
) -> Tensor:
    """Corners (n, c, 3) [m] of what lies over the ground, by where they came from, `on` and `by (n, c)` as in `Cut`."""

    def pick(x: Tensor, index: Tensor) -> Tensor:
        return x.gather(1, index[..., None].expand(-1, -1, 3))

    k = subject.corner.shape[1]
    side, line = on.clamp(max=k - 1), by.clamp(min=0)
    start, end = pick(subject.corner, side), pick(following(subject.corner, subject.number), side)
    cutting, edge = pick(lines, line), pick(ground.corner, line)
    depth, ahead = dot(start - edge, cutting), dot(end - edge, cutting)
    crosses = (by >= 0) & (on < k) & (depth != ahead)
    share = torch.where(crosses, depth, 0.0) / torch.where(crosses, depth - ahead, 1.0)
    crossing = start + share.clamp(0, 1)[..., None] * (end - start)
    # Two lines of the ground meet at its corner, over which the subject is.
    before = on - k
    corner = pick(ground.corner, torch.where(by == before + 1, line, before.clamp(min=0)))
    slope = dot(up, normal)[:, None]
    slope = torch.where(slope.abs() < 0.1, 1.0, slope)
    rise = dot(subject.corner[:, :1] - corner, normal[:, None]) / slope
    lifted = corner + rise[..., None] * up[:, None]
    return torch.where((on < k)[..., None], crossing, lifted)


class Turning(NamedTuple):
    """Four corners of n polygons that go around them.

    corner: (n, 4) which ones are tried, counted on beyond the last one, best: (n, 4) those that span most so far
    span: (n,) [m^4] twice the area of these, squared
    moves: (n,) which of the four moves on next: the last three while they span more, else the first
    """

    corner: Tensor
    best: Tensor
    span: Tensor
    moves: Tensor


def largest(point: Tensor, count: Tensor, many: Tensor) -> Tensor:
    """Four of the corners of convex polygons (n, v, 3) [m] that span much, if not always most, area, (n, 4).

    count: (n,) the corners that there are; many: (n,) bool, which polygons are asked about
    """
    n, count = len(count), count.clamp(min=1)
    place = torch.arange(CONTACTS, device=count.device).expand(n, CONTACTS).contiguous()
    # How far behind each other corners are that are pushed on.
    touching = torch.tensor([0, 1, 1], device=count.device)

    def spanned(corner: Tensor) -> Tensor:
        index = (corner % count[:, None])[..., None].expand(n, CONTACTS, 3)
        a, b, c, d = point.gather(1, index).unbind(1)
        twice = cross(c - a, d - b)
        return dot(twice, twice)

    def is_open(now: Turning) -> Tensor:
        return many & (now.corner[:, 0] < count)

    def body(now: Turning) -> Turning:
        on, last = is_open(now), now.moves == 3
        tried = now.corner + (place == now.moves[:, None])
        span = spanned(tried)
        better = on & (span > now.span)
        # Once the others are where they are best the first one goes on, and pushes those that it has met.
        met = (now.corner.diff() == touching).cumprod(-1)
        pushed = now.corner + torch.nn.functional.pad(met, (1, 0), value=1)
        corner = torch.where((on & last)[:, None], pushed, now.corner)
        return Turning(
            torch.where(better[:, None], tried, corner),
            torch.where(better[:, None], tried, now.best),
            torch.where(better, span, now.span),
            torch.where(better, now.moves - last.long(), torch.where(now.moves == 2, 1, 3)),
        )

    start = Turning(place, place, spanned(place), torch.full_like(count, 3))
    return while_loop(lambda now: is_open(now).any(), body, start).best % count[:, None]
