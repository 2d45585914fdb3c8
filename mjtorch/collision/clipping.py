"""What of a polygon, or an edge, lies over another polygon, corner by corner as C lists it (polygonClip, polygonQuad).

The lines along the edges of the one polygon, the *ground*, cut the other one, the *subject*, one after the other. Where
a cut ends a side of the subject there is a new corner: which side it is on, and which line made it, tells what its
position is a function of.

An edge is a polygon of two corners, which has its one side twice, there and back: a cut ends both, at two corners in
one place. Of an edge that lies in a face all over, C keeps the two ends; if only the cut end is low enough to touch, it
keeps both of its corners, and lists the same contact twice, which makes it twice as stiff. So do we.

What remains is decided by rounding: which of two features is deepest where both are and, in C, which four of many
corners span most area where others do as well, as in regular polygons; here the first do. In 10,334 poses in which
hulls of meshes, and boxes, touched hulls of meshes, C had another number of contacts in 2, and as many but others in
11.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.rounding import larger, wrapped
from mjtorch.control_flow.collect import collect
from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.control_flow.if_any import if_any
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math.value import value_of
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
    number: (n,) how many there are
    """

    corner: Tensor
    number: Tensor


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
    on, by, exists, fixed = listed(fixed1, fixed2, up.detach(), lines.detach(), margin.detach())
    return positions(ground, up, lines, subject, normal, on, by, fixed), exists


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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What corners of `over` came from, two numbers as in `Cut`, which there are, (n, 4) each, and where, (n, 4, 3)."""
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
    whole = (number == subject.number) | (number == ground.number)
    index = if_any(many, lambda: torch.where(many[:, None], largest(point, number, many, whole), index), index)
    exists = place < torch.minimum(number[:, None], torch.where(is_edge, 2, CONTACTS))
    found = corner.gather(1, index[..., None].expand(-1, -1, 6))
    on, by = found[..., 4:].long().unbind(-1)
    return on, by, exists, found[..., :3]


def clipped(ground: Outline, lines: Tensor, subject: Outline) -> Cut:
    """The subject, cut by each line of the ground; lines: (n, k, 3) the directions in which the ground is."""
    n, k = subject.corner.shape[:2]
    number = torch.arange(k, device=lines.device).to(lines.dtype).expand(n, k)
    start = torch.cat([subject.corner, torch.stack([number, number, torch.full_like(number, -1)], dim=-1)], dim=-1)
    # Each line reads one half and writes the other; the last row takes what is not kept.
    corner = torch.nn.functional.pad(start, (0, 0, 0, 3 * k + 1))

    def body(line: Tensor, now: Cut) -> Cut:
        here, there = 2 * k * (line % 2), 2 * k * ((line + 1) % 2)
        origin, direction = (x.index_select(1, line[None]) for x in (ground.corner, lines))
        active = line < ground.number
        cut = Line(origin, direction, line, k)
        corner, number = collect(
            lambda rows, i: halved(rows, i, here, now.number, cut),
            torch.where(active, now.number, 0),
            2 * k,
            now.corner,
            there.expand(n),
            2 * k,
        )
        return Cut(corner, torch.where(active, number, now.number))

    last = fori_loop(0, ground.number.amax(), body, Cut(corner, subject.number))
    place = 2 * k * (ground.number % 2)[:, None] + torch.arange(2 * k, device=lines.device)
    return last._replace(corner=last.corner.gather(1, place[..., None].expand(n, 2 * k, 6)))


class Line(NamedTuple):
    """A line of n grounds.

    origin: (n, 1, 3) [m] a point of it, inward: (n, 1, 3) the direction in which the ground is; number: () which it is
    lines: static, how many the subjects may have
    """

    origin: Tensor
    inward: Tensor
    number: Tensor
    lines: int


def halved(rows: Tensor, side: Tensor, here: Tensor, number: Tensor, line: Line) -> tuple[Tensor, Tensor]:
    """What a line leaves of sides of polygons: a new corner where it cuts them, and the one that they end in.

    rows: (n, m, 6) corners as in `Cut`, of the `number (n,)` that there are the first one is row `here`
    side: (k,) which sides; returns rows (n, k, 2, 6), and which of them there are
    """
    cutting = (line.lines + line.number).to(rows.dtype)

    def at(i: Tensor) -> tuple[Tensor, Tensor]:
        corner = rows.gather(1, (here + i)[..., None].expand(-1, -1, 6))
        depth = dot(corner[..., :3] - line.origin, line.inward)
        is_on = depth.abs() <= (DOUBLE if depth.dtype is torch.float64 else SINGLE)
        return corner, torch.where(is_on, 0.0, depth)

    def ahead(i: Tensor) -> Tensor:
        return torch.where(i + 1 < number[:, None], i + 1, 0)

    first = side.expand(len(number), -1)
    second = ahead(first)
    (a, depth), (b, depth1), (_, depth2) = at(first), at(second), at(ahead(second))
    crosses, stays = depth * depth1 < 0, depth1 >= 0
    share = depth / torch.where(crosses, depth - depth1, 1.0)
    point = a[..., :3] + share[..., None] * (b[..., :3] - a[..., :3])
    on = torch.where(depth > 0, cutting, a[..., 3])[..., None]
    new = torch.cat([point, on, a[..., 3:4], (cutting - line.lines).expand_as(on)], dim=-1)
    # A corner on the line needs no other in its place; the side that it begins is on the line if the next is outside.
    on = torch.where((depth1 == 0) & (depth2 < 0), cutting, b[..., 3])[..., None]
    end = torch.cat([b[..., :3], on, b[..., 4:]], dim=-1)
    return torch.stack([new, end], dim=2), torch.stack([crosses, stays], dim=2)


def positions(
    ground: Outline, up: Tensor, lines: Tensor, subject: Outline, normal: Tensor, on: Tensor, by: Tensor, fixed: Tensor
) -> Tensor:
    """Corners (n, c, 3) [m] of what lies over the ground, by where they came from, `on` and `by (n, c)` as in `Cut`.

    fixed: (n, c, 3) [m] these corners as constants; faces of hulls are not quite flat
    """

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
    return torch.where((on < k)[..., None], crossing, value_of(fixed, lifted))


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


def largest(point: Tensor, count: Tensor, many: Tensor, whole: Tensor) -> Tensor:
    """Four of the corners of convex polygons (n, v, 3) [m] that span much, if not always most, area, (n, 4).

    count: (n,) the corners that there are; many: (n,) bool, which polygons are asked about
    whole: (n,) bool, which are faces of which nothing is cut off: of these corners also move on to where they span as
        much, so that of the end of a cylinder a square is left, as in C more often than not, by rounding
    """
    (n, room), count = point.shape[:2], count.clamp(min=1)
    place = torch.arange(CONTACTS, device=count.device).expand(n, CONTACTS).contiguous()
    # How far behind each other corners are that are pushed on.
    touching = torch.tensor([0, 1, 1], device=count.device)

    def on_polygon(corner: Tensor) -> Tensor:
        return wrapped(corner, count[:, None]).clamp(max=room - 1)

    def spanned(corner: Tensor) -> Tensor:
        index = on_polygon(corner)[..., None].expand(n, CONTACTS, 3)
        a, b, c, d = point.gather(1, index).unbind(1)
        twice = cross(c - a, d - b)
        return dot(twice, twice)

    def is_open(now: Turning) -> Tensor:
        return many & (now.corner[:, 0] < count)

    def body(now: Turning) -> Turning:
        on, last = is_open(now), now.moves == 3
        tried = now.corner + (place == now.moves[:, None])
        span = spanned(tried)
        further = torch.where(whole, ~larger(now.span, span) & (tried[:, 3] < 2 * count), larger(span, now.span))
        better = on & further
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
    return on_polygon(while_loop(lambda now: is_open(now).any(), body, start).best)
