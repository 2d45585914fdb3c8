"""Contacts of capsules and boxes: where the axis is nearest to the box, and at a second place further along it.

All in the frame of the box. Places on the axis run from -1 to 1, as do places on the edges.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.box import center_box, in_the_world
from mjtorch.collision.contact_points import ContactPoints, Solid, first_of
from mjtorch.collision.rounding import blur, rounding_of
from mjtorch.math.vector import MIN_VALUE, dot
from mjtorch.smooth.object import to_local

X, Y, Z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
SIDES = ((-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0), (1.0, 1.0))
# The twelve edges of a box: their direction, the two that follow it, and the middle of the edge in half lengths.
EDGES = (
    *((*X, *Y, *Z, 0.0, one, other) for one, other in SIDES),
    *((*Y, *Z, *X, one, 0.0, other) for one, other in SIDES),
    *((*Z, *X, *Y, one, other, 0.0) for one, other in SIDES),
)
# The second contact is no further along the axis than this: all of it.
WHOLE = 2.0
# Further than any place on an axis.
FAR = 1e9


class Nearest(NamedTuple):
    """Where axis and box are nearest, for n pairs: the end of the axis over a face, or any place and an edge.

    place: (n, 1) on the axis
    is_face: (n, 1) bool; face: (n, 3) bool, which one that is, none if the end is inside
    edge, second, third: (n, 3) one-hot, the direction of the edge and those that follow it
    corner: (n, 3) bool, the upper half, of the nearest end of the edge; edge_place: (n, 1)
    edge_end: (n, 1) bool, the place is that end
    """

    place: Tensor
    is_face: Tensor
    face: Tensor
    edge: Tensor
    second: Tensor
    third: Tensor
    corner: Tensor
    edge_place: Tensor
    edge_end: Tensor


class Edges(NamedTuple):
    """The nearest points of an axis and all edges: square (n, 12) [m^2] of their distance, and where they are.

    place: (n, 12) on the axis, edge_place: (n, 12); end: (n, 12) -1, 1 if that was cut off at an end, else 0
    """

    square: Tensor
    place: Tensor
    edge_place: Tensor
    end: Tensor


def capsule_box(capsule: Solid, box: Solid, reach: Tensor) -> ContactPoints:
    """One or two contacts (mjc_CapsuleBox), each that of a sphere on the axis.

    The second is where the capsule, seen from the first, leaves the face or the edge of the box that it lies along;
    there is none where it points away from an edge or a corner, or where the first is inside the box.
    """
    center = to_local(box.mat, capsule.pos - box.pos)
    axis = to_local(box.mat, capsule.axis)
    half_axis = axis * capsule.size[:, 1:2]
    slack = rounding_of(capsule.pos, box.size + capsule.size[:, 1:2])
    nearest = nearest_place(center, half_axis, box.size, slack)
    step, exists = second_step(nearest, center, axis, half_axis, box.size, slack)
    places = torch.stack([nearest.place, nearest.place + step], dim=1)
    centers = center[:, None] + places * half_axis[:, None]
    points = in_the_world(
        box, *center_box(centers, capsule.size[:, :1], box.size[:, None], box.rounding, slack[:, None])
    )
    return points._replace(exists=torch.cat([torch.ones_like(exists), exists], dim=-1))


def nearest_place(center: Tensor, half_axis: Tensor, size: Tensor, slack: Tensor) -> Nearest:
    """The place on axes with `center`, `half_axis` (n, 3) [m] that is nearest to boxes of `size` (n, 3) [m].

    slack: (n, 1) [m] what rounding may do to positions
    """
    table = torch.tensor(EDGES, dtype=center.dtype, device=center.device)
    edges = edge_points(center, half_axis, size, table, slack)
    ends = torch.stack([center - half_axis, center + half_axis], dim=1)
    beyond = ends.abs() > (size + slack)[:, None]
    gap = (ends.abs() - size[:, None]).clamp(min=0)
    over_face = beyond.sum(-1) <= 1
    square = torch.cat([dot(gap, gap).masked_fill(~over_face, torch.inf), edges.square], dim=-1).detach()
    # Of equally near ones the first.
    least = square.amin(-1, keepdim=True)
    chosen = first_of(square <= least + (MIN_VALUE + slack * (slack + 2 * least.sqrt())), 1)[:, 0]

    end, edge = chosen[:, :2], chosen[:, 2:].to(center.dtype)
    direction, second, third, corner = (edge @ table).split(3, dim=-1)
    cut = dot(edge, edges.end, keepdim=True)
    both = torch.tensor([-1.0, 1.0], dtype=center.dtype, device=center.device)
    return Nearest(
        place=dot(end.to(center.dtype), both, keepdim=True) + dot(edge, edges.place, keepdim=True),
        is_face=end.any(-1, keepdim=True),
        face=(end[..., None] & beyond).any(1),
        edge=direction,
        second=second,
        third=third,
        corner=corner + direction * cut > 0,
        edge_place=dot(edge, edges.edge_place, keepdim=True),
        edge_end=cut != 0,
    )


def edge_points(center: Tensor, half_axis: Tensor, size: Tensor, table: Tensor, slack: Tensor) -> Edges:
    """Nearest points of axes and edges, see `nearest_place`; those of parallel ones are infinitely far.

    With h the half axis, e the direction of the edge, l its half length and r from the centre of the axis to that of
    the edge: lines are nearest at x = h' . r / h' . h' on the axis, where h' is h without its component along e, and at
    (h . e x - r . e) / l on the edge. A place that is cut off at an end moves the other one.
    """
    edge, middle = table[:, :3], table[:, 9:]
    r = middle * size[:, None] - center[:, None]
    length, h, r_along = size @ edge.T, half_axis @ edge.T, (r * edge).sum(-1)
    across = half_axis[:, None] * (1 - edge)
    square = dot(across, across)
    crossing = length * length * (square - slack * slack) >= MIN_VALUE
    place = dot(across, r) / square.masked_fill(~crossing, 1.0)

    free = (h * place - r_along) / length
    edge_place = free.clamp(-1.0, 1.0)
    end_at = 1 + slack / length
    cut = free.abs() > end_at
    moved = (dot(half_axis[:, None], r) + edge_place * length * h) / dot(half_axis, half_axis, keepdim=True)
    place = torch.where(cut, moved, place)
    end = torch.where(cut, free.sign(), 0.0)

    off, place = place.abs() > 1, place.clamp(-1.0, 1.0)
    moved = (h * place - r_along) / length
    edge_place = torch.where(off, moved.clamp(-1.0, 1.0), edge_place)
    # C remembers the first cut even if the place has moved off the end again.
    end = torch.where(off & (moved.abs() > end_at), moved.sign(), end)
    gap = r - half_axis[:, None] * place[..., None] + edge * (length * edge_place)[..., None]
    return Edges(dot(gap, gap).masked_fill(~crossing, torch.inf), place, edge_place, end.detach())


def second_step(
    nearest: Nearest, center: Tensor, axis: Tensor, half_axis: Tensor, size: Tensor, slack: Tensor
) -> tuple[Tensor, Tensor]:
    """How far (n, 1) along the axis the second contact is from the first, and whether there is one, (n, 1) bool."""
    level = (axis.abs() < blur(axis.dtype)) | (half_axis.abs() < MIN_VALUE)
    # How much of the axis crosses the box, along each of its directions.
    span = torch.where(level, FAR, 2 * size / torch.where(level, 1.0, half_axis.abs()))
    # What is level does not rise.
    rises = (axis > 0) & ~level
    differ = rises ^ nearest.corner
    corner, corner_exists = from_corner(nearest.place, differ, axis, span)
    edge, edge_exists = from_edge(nearest, differ, rises, axis, span)
    face, face_exists = from_face(nearest, center, half_axis, size, level, slack)
    step = torch.where(nearest.is_face, face, torch.where(nearest.edge_end, corner, edge))
    exists = torch.where(nearest.is_face, face_exists, torch.where(nearest.edge_end, corner_exists, edge_exists))
    return step, exists


def from_corner(place: Tensor, differ: Tensor, axis: Tensor, span: Tensor) -> tuple[Tensor, Tensor]:
    """`second_step` from a corner: along the edge that the capsule is nearest to being parallel to, or over a face.

    differ: (n, 3) bool, the directions of the box in which the axis does not point to the corner.
    """
    count = differ.sum(-1, keepdim=True)
    single = count == 1
    odd = torch.where(single, differ, ~differ)
    way = torch.where(single, 1.0, -1.0).to(place.dtype)
    lengthwise = (torch.where(odd, axis * axis, 0.0)).sum(-1, keepdim=True) > 0.5 + blur(axis.dtype)
    here = lengthwise == odd
    ahead = torch.where(lengthwise, way, -way)
    step = torch.minimum(1 - ahead * place, torch.where(here, span, FAR).amin(-1, keepdim=True))
    return ahead * step, (count == 1) | (count == 2)


def from_edge(nearest: Nearest, differ: Tensor, rises: Tensor, axis: Tensor, span: Tensor) -> tuple[Tensor, Tensor]:
    """`second_step` from the middle of an edge: over the face that the capsule is nearest to being parallel to."""
    differ = differ & (nearest.edge == 0)
    steep = axis.abs()
    over = torch.where(
        dot(steep, nearest.second - nearest.third, keepdim=True) > blur(axis.dtype),
        nearest.second,
        nearest.third,
    )
    forwards = (differ & (over > 0)).any(-1, keepdim=True)
    way = torch.where(forwards, 1.0, -1.0).to(span.dtype)
    along_rises = (rises & (nearest.edge > 0)).any(-1, keepdim=True)
    left = torch.where(along_rises == forwards, 1 - nearest.edge_place, 1 + nearest.edge_place)
    along = 0.5 * dot(nearest.edge, span, keepdim=True)
    step = torch.minimum(1 - way * nearest.place, dot(over, span, keepdim=True))
    return way * torch.minimum(step, along * left), differ.sum(-1, keepdim=True) == 1


def from_face(
    nearest: Nearest, center: Tensor, half_axis: Tensor, size: Tensor, level: Tensor, slack: Tensor
) -> tuple[Tensor, Tensor]:
    """`second_step` from an end over a face: to the other end, or to where the axis passes an edge of the face."""
    way = torch.where(nearest.place < 0, 1.0, -1.0).to(size.dtype)
    tip = center + nearest.place * half_axis
    speed = torch.where(level, 1.0, way * half_axis)
    passes = torch.stack([size - tip, -size - tip], dim=1) / speed[:, None]
    # An edge that the tip is above is not passed.
    counts = (passes > (slack / speed.abs())[:, None]) & ~(level | nearest.face)[:, None]
    step = torch.where(counts, passes, WHOLE).amin((1, 2)).clamp(max=WHOLE)
    return way * step[:, None], nearest.face.any(-1, keepdim=True)
