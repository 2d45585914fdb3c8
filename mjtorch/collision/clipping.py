"""What of a polygon, or an edge, lies over another polygon, corner by corner as C lists it (polygonClip, polygonQuad).

The lines along the edges of the one polygon, the *ground*, cut the other one, the *subject*, one after the other. Where
a cut ends a side of the subject there is a new corner: which side it is on, and which line made it, tells what its
position is a function of.

An edge is a polygon of two corners, which has its one side twice, there and back: a cut ends both, at two corners in
one place. Of an edge that lies in a face all over, C keeps the two ends; if only the cut end is low enough to touch, it
keeps both of its corners, and lists the same contact twice, which makes it twice as stiff. So do we.

What remains is decided by rounding: which of two features is deepest where both are and, in C, which four of many
corners span most area where others do as well, as in regular polygons; here corners go on to where they do.
Before they did, in 10,334 poses in which hulls of meshes, and boxes, touched hulls of meshes, C had another number of
contacts in 2, and as many but others in 11.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.cutting import Cut, Outline, cut_off, snapped
from mjtorch.collision.rounding import blur, wrapped
from mjtorch.collision.support import where_rows
from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.control_flow.if_any import if_any
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math.value import value_of
from mjtorch.math.vector import cross, dot, norm

# What a pair of shapes has at most.
CONTACTS = 4
# Most polygons have no more corners. Pairs of which one has are listed anew, to be given the room that they need; only
# these are looked at for whether one surrounds the other.
FEW = 8
# How far from its plane, relative to its size, corners of a face that is flat may be.
UNEVEN = 1e-6


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
    constants = up.detach(), lines.detach(), normal.detach(), margin.detach()
    on, by, exists, fixed = listed(fixed1, fixed2, *constants)
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
    ground: Outline, subject: Outline, up: Tensor, lines: Tensor, normal: Tensor, margin: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What corners of `over` came from, two numbers as in `Cut`, which there are, (n, 4) each, and where, (n, 4, 3)."""
    cut = clipped(ground, up, lines, subject, normal)
    size = cut.corner.shape[1]
    height = dot(cut.corner[..., :3] - ground.corner[:, :1], up[:, None])
    there = counted(cut.number, size)
    low = there & (height <= margin[:, None])
    high, number, all_rows = (there & ~low).any(-1), low.sum(-1), torch.arange(size, device=up.device).expand_as(low)
    kept = if_any(high, lambda: first(low, size).element, all_rows.contiguous())
    all_there = cut.corner[..., :3].contiguous()
    point = if_any(high, lambda: all_there.gather(1, kept[..., None].expand(-1, -1, 3)), all_there)
    point = torch.where(counted(number, size)[..., None], point, point[:, :1])
    place = torch.arange(CONTACTS, device=up.device)
    is_edge = (subject.number == 2)[:, None]
    # Of an edge its two ends, whichever was found twice.
    from_first = point - point[:, :1]
    far = dot(from_first, from_first).argmax(-1, keepdim=True)
    index = torch.where(is_edge & (place == 1), far, place)
    many = ~is_edge[:, 0] & (number > CONTACTS)
    index = if_any(many, lambda: torch.where(many[:, None], largest(point, number, many), index), index)
    exists = place < torch.minimum(number[:, None], torch.where(is_edge, 2, CONTACTS))
    row = kept.gather(1, torch.where(exists, index, 0))
    found = cut.corner.gather(1, row[..., None].expand(-1, -1, 6))
    on, by = found[..., 4:].long().unbind(-1)
    return on, by, exists, found[..., :3]


def counted(number: Tensor, size: int) -> Tensor:
    """Which of `size` elements there are of so many `number (n,)`, (n, size) bool."""
    return torch.arange(size, device=number.device) < number[:, None]


def clipped(ground: Outline, up: Tensor, lines: Tensor, subject: Outline, normal: Tensor) -> Cut:
    """The subject, cut by each line of the ground; lines: (n, k, 3) the directions in which the ground is.

    Most often no line cuts anything off, or all do because the ground lies within the subject, and is what is left;
    small polygons are cut all the same.
    """
    k = subject.corner.shape[1]
    depth = depths(ground, lines, subject)
    cuts = (depth < 0).any(-1)
    start = turned(ground.number, subject.number)
    one = Cut(torch.nn.functional.pad(as_listed(subject, start), (0, 0, 0, k)), subject.number)
    within = torch.zeros_like(start, dtype=torch.bool)
    if k > FEW:
        within = surrounded(ground, up, subject, normal, depth)
        one = if_any(within, functools.partial(ground_left, within, one, ground, up, subject, normal, depth), one)
    partly = cuts.any(-1) & ~within

    def some() -> Cut:
        cutting = cuts & partly[:, None]
        chosen = first(cutting, k).element
        return where_rows(partly, cut_off(ground, lines, subject, chosen, cutting.sum(-1)), one)

    return if_any(partly, some, one)


def surrounded(ground: Outline, up: Tensor, subject: Outline, normal: Tensor, depth: Tensor) -> Tensor:
    """Whether subjects lie around the ground, and on none of its lines, (n,) bool; depth: as of `depths`."""
    k = subject.corner.shape[1]
    all_cut = ((depth < 0).any(-1) | ~counted(ground.number, k)).all(-1) & (depth != 0).all(-1).all(-1)
    all_cut = all_cut & (subject.number > 2) & (ground.number > 2)

    def around() -> Tensor:
        # What is not quite flat is where its sides are.
        to = torch.where(counted(subject.number, k)[..., None], subject.corner - subject.corner[:, :1], 0.0)
        flat = dot(to, normal[:, None]).abs().amax(-1) <= UNEVEN * norm(to).amax(-1)
        return all_cut & flat & (depths(subject, inward(subject, -up), ground) > 0).all(-1).all(-1)

    return if_any(all_cut, around, all_cut)


def depths(ground: Outline, lines: Tensor, subject: Outline) -> Tensor:
    """How far [m] within each line of the ground each corner of the subject is, (n, k, k), infinite where none is."""
    k = subject.corner.shape[1]
    origin = ground.corner[:, :1]
    at_line = dot(ground.corner - origin, lines, keepdim=True)
    depth = dot(lines[:, :, None], (subject.corner - origin)[:, None]) - at_line
    there = counted(ground.number, k)[:, :, None] & counted(subject.number, k)[:, None]
    return torch.where(there, snapped(depth), torch.inf)


def turned(times: Tensor, number: Tensor) -> Tensor:
    """Which of so many corners `number (n,)` comes first after so many lines, `times (n,)`, that cut nothing off."""
    return times.clamp(min=0) % number.clamp(min=1)


def as_listed(subject: Outline, start: Tensor) -> Tensor:
    """Rows (n, k, 6) as in `Cut` of subjects of which nothing is cut off, from corner `start (n,)` on."""
    n, k = subject.corner.shape[:2]
    place = start[:, None] + torch.arange(k, device=start.device)
    place = torch.where(place < subject.number[:, None], place, place - subject.number[:, None]).clamp(0, k - 1)
    source = torch.stack([place, place, torch.full_like(place, -1)], dim=-1).to(subject.corner.dtype)
    return torch.cat([subject.corner.gather(1, place[..., None].expand(n, k, 3)), source], dim=-1)


def ground_left(
    within: Tensor, other: Cut, ground: Outline, up: Tensor, subject: Outline, normal: Tensor, depth: Tensor
) -> Cut:
    """Where that is `within (n,)` the subject, all the ground, in the order in which its lines list it; else the other.

    depth: as of `depths`
    """
    n, k = subject.corner.shape[:2]
    count = ground.number[:, None]
    first = beginning(depth, ground.number, subject.number)
    place = first[:, None] - torch.arange(2 * k, device=up.device)
    place = torch.where(place < 0, place + count, place).clamp(0, k - 1)
    corner = lifted(ground.corner, up, subject, normal).gather(1, place[..., None].expand(n, 2 * k, 3))
    # But for the first one, a corner of the ground is where a line cuts what lies along the line before.
    is_first = place == 0
    along = torch.where(is_first, count, place) - 1
    on, by = k + torch.where(is_first, 0, along), torch.where(is_first, count - 1, place)
    source = torch.stack([k + along, on, by], dim=-1).to(corner.dtype)
    return where_rows(within, Cut(torch.cat([corner, source], dim=-1), ground.number), other)


def beginning(depth: Tensor, lines: Tensor, corners: Tensor) -> Tensor:
    """The corner of the ground (n,) that a list of what is left of a subject around it begins with.

    Each line lists what it leaves from what follows what the list began with. Before all have cut, that is what of the
    subject is left: from where the first line crosses it, its *entry*, its corners, and where the last one does, its
    *exit*; and corners of the ground but the first, backwards, between the last line and the first.

    depth: (n, k, k) as of `depths`, lines, corners: (n,) how many there are
    """
    k = depth.shape[-1]
    entry, leave, chain = k, k + 1, k + 2
    of_first = depth[:, 0]
    place = torch.arange(k, device=depth.device)
    before = torch.where(place == 0, corners[:, None], place) - 1
    enters = (of_first > 0) & (of_first.gather(1, before.clamp(min=0)) < 0)
    after_entry = enters.long().argmax(-1, keepdim=True)
    from_entry = before.gather(1, after_entry).clamp(min=0)

    def of(rows: Tensor, corner: Tensor) -> Tensor:
        return rows.gather(-1, corner)[:, 0]

    outer, inner = of(of_first, from_entry), of(of_first, after_entry)
    share = outer / torch.where(outer < inner, outer - inner, -1.0)
    pick = torch.cat([from_entry, after_entry], dim=-1)

    def step(line: Tensor, now: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        at, least, of_entry = now
        here = depth.index_select(1, line[None])[:, 0]
        one, two = here.gather(1, pick).unbind(-1)
        least = torch.minimum(least, here)
        of_entry = torch.where(line == 0, of_entry, torch.minimum(of_entry, one + share * (two - one)))
        corner = at.clamp(max=k - 1)
        ahead = torch.where(corner + 1 < corners, corner + 1, 0)
        is_corner = at < k
        follower = torch.where(is_corner, ahead, after_entry[:, 0])
        stays = torch.where(is_corner, of(least, corner[:, None]), of_entry) > 0
        onwards = torch.where(of(least, follower[:, None]) > 0, follower, leave)
        cut = torch.where(line == 0, entry, chain + line)
        on_subject = torch.where((at != leave) & stays, onwards, cut)
        on_ground = torch.where(at > chain + 1, at - 1, torch.where(of_entry > 0, entry, leave))
        then = torch.where(at >= chain, on_ground, on_subject)
        then = torch.where((then == leave) & (line == lines - 1), chain, then)
        return torch.where(line < lines, then, at), least, of_entry

    none = torch.full_like(share, torch.inf)
    start = torch.zeros_like(lines), torch.full_like(of_first, torch.inf), none
    return (fori_loop(0, lines.amax(), step, start)[0] - chain).clamp(min=0)


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
    return torch.where((on < k)[..., None], crossing, value_of(fixed, lifted(corner, up, subject, normal)))


def lifted(corner: Tensor, up: Tensor, subject: Outline, normal: Tensor) -> Tensor:
    """Points (n, c, 3) [m] of the ground moved along `up (n, 3)` into the plane of the subject; normal: (n, 3) its."""
    slope = dot(up, normal)[:, None]
    slope = torch.where(slope.abs() < 0.1, 1.0, slope)
    rise = dot(subject.corner[:, :1] - corner, normal[:, None]) / slope
    return corner + rise[..., None] * up[:, None]


class Turning(NamedTuple):
    """Four corners of n polygons that go around them.

    corner: (n, 4) which ones are tried, counted on beyond the last one, best: (n, 4) those that span most so far
    span: (n,) [m^2] twice the area of these
    moves: (n,) which of the four moves on next: the last three while they span as much, else the first
    """

    corner: Tensor
    best: Tensor
    span: Tensor
    moves: Tensor


def largest(point: Tensor, count: Tensor, many: Tensor) -> Tensor:
    """Four of the corners of convex polygons (n, v, 3) [m] that span much, if not always most, area, (n, 4).

    Corners also move on to where they span as much, which in C rounding decides: of the end of a cylinder a square is
    left then, and of half of it never a sliver. count: (n,) the corners that there are; many: (n,) bool, which polygons
    are asked about
    """
    (n, room), count = point.shape[:2], count.clamp(min=1)
    place = torch.arange(CONTACTS, device=count.device).expand(n, CONTACTS).contiguous()
    # Where corners are comes of cuts, and slivers are rounded as all that is as far apart.
    slack = 8 * blur(point.dtype) * (point - point[:, :1]).square().sum(-1).amax(-1)
    # How far behind each other corners are that are pushed on.
    touching = torch.tensor([0, 1, 1], device=count.device)

    def on_polygon(corner: Tensor) -> Tensor:
        return wrapped(corner, count[:, None]).clamp(max=room - 1)

    def spanned(corner: Tensor) -> Tensor:
        index = on_polygon(corner)[..., None].expand(n, CONTACTS, 3)
        a, b, c, d = point.gather(1, index).unbind(1)
        return norm(cross(c - a, d - b))

    def is_open(now: Turning) -> Tensor:
        return many & (now.corner[:, 0] < count)

    def body(now: Turning) -> Turning:
        on, last = is_open(now), now.moves == 3
        tried = now.corner + (place == now.moves[:, None])
        span = spanned(tried)
        further = (span >= now.span - slack) & (tried[:, 3] < 2 * count) & (tried.diff() >= 0).all(-1)
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
