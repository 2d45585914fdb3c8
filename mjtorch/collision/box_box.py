"""Contacts of two boxes: the axis that separates them best, then one contact of two edges, or up to eight of a face."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.contact_points import ContactPoints, Solid, first_of
from mjtorch.collision.polygon import clipped, distinct
from mjtorch.collision.rounding import blur, first_largest, rounding_of
from mjtorch.math.value import value_of
from mjtorch.math.vector import MIN_VALUE, cross, dot, normalize
from mjtorch.smooth.object import to_local

# An edge wins over a face only if it is better by this share of its depth ...
EDGE_BIAS = 1e-6
# ... and, where it points nearly as the face does, by more than this share of the depth of the face.
ALIGNED, ALIGNED_BIAS = 0.99, 0.05
# The directions of a box, each preceded by the two that follow it.
CYCLE = ((1, 2, 0), (2, 0, 1), (0, 1, 2))
CORNERS = ((1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0))
# Which of two ambiguous corners are flipped.
FLIPS = ((False, False), (False, True), (True, False), (True, True))


class Rounding(NamedTuple):
    """What rounding blurs.

    separation: in sums of half lengths; parallel: squared sine; sign: of an axis component
    """

    separation: float
    parallel: float
    sign: float


SINGLE = Rounding(1e-6, 1e-7, 1e-5)
DOUBLE = Rounding(1e-13, 1e-16, 1e-9)


class Boxes(NamedTuple):
    """n pairs of boxes.

    rot: (n, 3, 3) axes of 2 in the frame of 1, in columns; pos21: (n, 3) [m] centre of 2 in 1; pos12: of 1 in 2
    slack: (n, 1) [m] what rounding may do to positions
    """

    one: Solid
    two: Solid
    rot: Tensor
    pos21: Tensor
    pos12: Tensor
    slack: Tensor


class Axis(NamedTuple):
    """Along what two boxes overlap least.

    apart: (n, 1) bool, they are further apart than contacts matter
    is_edge: (n, 1) bool; edge1, edge2: (n, 3) one-hot, the best pair of edges, even where a face is better
    face: (n, 1) the best face: 0 to 2 of box 1, 3 to 5 of box 2
    """

    apart: Tensor
    is_edge: Tensor
    edge1: Tensor
    edge2: Tensor
    face: Tensor


def box_box(one: Solid, two: Solid, reach: Tensor) -> ContactPoints:
    """Up to eight contacts (mjc_BoxBox)."""
    offset = two.pos - one.pos
    slack = rounding_of(one.pos, one.size + two.size)
    boxes = Boxes(one, two, one.mat.mT @ two.mat, to_local(one.mat, offset), to_local(two.mat, -offset), slack)
    rounding = DOUBLE if offset.dtype is torch.float64 else SINGLE
    axis = separating_axis(tree.map(Tensor.detach, boxes), reach, rounding)
    edge, face = edge_contact(boxes, axis, rounding), face_contacts(boxes, axis.face, reach)
    is_edge = axis.is_edge
    exists = torch.where(is_edge, torch.arange(8, device=is_edge.device) == 0, face.exists) & ~axis.apart
    pos, normal = (torch.where(is_edge[..., None], a, b) for a, b in ((edge.pos, face.pos), (edge.normal, face.normal)))
    if one.rounding is not None:
        normal = value_of(normal, rounded_normal(boxes, one.rounding, rounding)[:, None].expand(normal.shape))
    return ContactPoints(torch.where(is_edge, edge.dist, face.dist), pos, normal, exists)


def rounded_normal(boxes: Boxes, width: Tensor, rounding: Rounding) -> Tensor:
    """Smooth normal (n, 3), in the world: of all axes, those that separate best, by how much; width: () [m]."""
    unit = torch.eye(3, dtype=width.dtype, device=width.device)
    faces, edges, across = separations(boxes, unit, rounding)
    axes = torch.cat([unit.expand(boxes.rot.shape), boxes.rot.mT, across], dim=1)
    outward = torch.where(dot(axes, boxes.pos21[:, None], keepdim=True) < 0, -axes, axes)
    weight = (torch.cat([faces, edges], dim=-1) / width).softmax(-1)
    normal, _ = normalize((weight[..., None] * outward).sum(1), torch.zeros_like(boxes.pos21))
    return (boxes.one.mat @ normal[..., None])[..., 0]


def separations(boxes: Boxes, unit: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor, Tensor]:
    """How far apart [m] the boxes are along the normals of faces (n, 6), of box 1 and then 2, and across edges (n, 9).

    And the directions (n, 9, 3) across edges, in the frame of box 1, whose axes are `unit` (3, 3). Parallel edges are
    infinitely far from apart.
    """
    one, two, rot = boxes.one.size, boxes.two.size, boxes.rot
    face1 = boxes.pos21.abs() - one - (rot.abs() * two[:, None]).sum(-1)
    face2 = boxes.pos12.abs() - two - (rot.abs() * one[:, :, None]).sum(-2)
    across = cross(unit[:, None], rot.mT[:, None]).flatten(1, 2)
    square = dot(across, across)
    crossing = square >= rounding.parallel
    across = across * square.masked_fill(~crossing, 1.0).rsqrt()[..., None]
    extent = (across.abs() * one[:, None]).sum(-1) + ((across @ rot).abs() * two[:, None]).sum(-1)
    edges = (dot(across, boxes.pos21[:, None]).abs() - extent).masked_fill(~crossing, -torch.inf)
    return torch.cat([face1, face2], dim=-1), edges, across


def separating_axis(boxes: Boxes, reach: Tensor, rounding: Rounding) -> Axis:
    """The axis along which the boxes overlap least: the normal of one of six faces, or normal to one of nine pairs of
    edges."""
    one, two, rot = boxes.one.size, boxes.two.size, boxes.rot
    unit = torch.eye(3, dtype=rot.dtype, device=rot.device)
    faces, edges, across = separations(boxes, unit, rounding)
    best_face = faces.amax(-1, keepdim=True)
    face = first_largest(faces, boxes.slack)

    best_edge = edges.amax(-1, keepdim=True)
    slack = boxes.slack + EDGE_BIAS * best_edge.abs().masked_fill(torch.isinf(best_edge), 0.0)
    # Of nearly equal ones the first.
    edge = first_of(edges >= best_edge - slack, 1)[:, 0].to(rot.dtype)

    normals = torch.cat([unit.expand(rot.shape), rot.mT], dim=1)
    normal = normals.gather(1, face[..., None].expand(-1, 1, 3))[:, 0]
    aligned = dot((edge[:, None] @ across)[:, 0], normal, keepdim=True).abs() > ALIGNED
    needed = torch.where(aligned, ALIGNED_BIAS * best_face.abs() + MIN_VALUE, 0.0)
    is_edge = (best_edge - slack > best_face) & (best_edge >= best_face + needed)
    tolerance = reach + rounding.separation * (one + two).sum(-1)
    pair = edge.unflatten(-1, (3, 3))
    return Axis(torch.maximum(best_face, best_edge) > tolerance[:, None], is_edge, pair.sum(-1), pair.sum(-2), face)


def edge_contact(boxes: Boxes, axis: Axis, rounding: Rounding) -> ContactPoints:
    """The contact of two edges, midway between their nearest points; one for each pair."""
    rot, edge1, edge2 = boxes.rot, axis.edge1, axis.edge2
    direction = (rot @ edge2[..., None])[..., 0]
    across = cross(edge1, direction)
    square = dot(across, across, keepdim=True)
    parallel = square < rounding.parallel
    square = square.masked_fill(parallel, 1.0)
    normal = across * square.rsqrt()
    normal = torch.where(dot(normal, boxes.pos21, keepdim=True) < -boxes.slack, -normal, normal)

    flips = torch.tensor(FLIPS, device=rot.device)
    start1 = edge_middles(normal, boxes.one.size, edge1, flips[:, :1], rounding)
    start2 = -edge_middles(to_local(rot, normal), boxes.two.size, edge2, flips[:, 1:], rounding)
    start2 = start2 @ rot.mT + boxes.pos21[:, None]
    half1, half2 = dot(edge1, boxes.one.size, keepdim=True), dot(edge2, boxes.two.size, keepdim=True)
    gap = start2 - start1
    # Nearest points of two segments, by their ways from the middles: each is cut off and moves the other.
    cosine = dot(edge1, direction, keepdim=True)
    along1, along2 = dot(gap, edge1[:, None]), dot(gap, direction[:, None])
    way1 = _cut((along1 - cosine * along2) / square, half1)
    way2 = _cut(cosine * way1 - along2, half2)
    way1 = _cut(along1 + cosine * way2, half1)
    point1, point2 = start1 + way1[..., None] * edge1[:, None], start2 + way2[..., None] * direction[:, None]
    gap = point2 - point1
    nearest = first_largest(-dot(gap, gap).detach().sqrt(), boxes.slack)[..., None].expand(-1, 1, 3)
    point1, point2 = point1.gather(1, nearest), point2.gather(1, nearest)

    turned, normal = boxes.one.mat.mT, normal[:, None]
    pos = boxes.one.pos[:, None] + 0.5 * (point1 + point2) @ turned
    return ContactPoints(dot(point2 - point1, normal), pos, normal @ turned, torch.ones_like(axis.is_edge))


def edge_middles(direction: Tensor, size: Tensor, edge: Tensor, flip: Tensor, rounding: Rounding) -> Tensor:
    """Middles (n, 4, 3) [m] of the edges of boxes furthest along `direction` (n, 3); edge: (n, 3) one-hot, their own.

    A component of the direction that rounding may have turned leaves both edges possible: of the four, those with
    `flip` (4, 1) bool take the other.
    """
    middle = torch.where(direction > -rounding.sign, size, -size) * (1 - edge)
    unclear = (direction.abs() < rounding.sign) & (edge == 0)
    return torch.where(unclear[:, None] & flip, -middle[:, None], middle[:, None])


def face_contacts(boxes: Boxes, face: Tensor, reach: Tensor) -> ContactPoints:
    """Contacts of the face (n, 1) with that face of the other box which looks at it most.

    They are the corners of what of the latter is over the former; those further above it than `reach` do not exist.
    """
    first = face < 3
    cycle = torch.tensor(CYCLE, device=face.device)
    order = cycle[face[:, 0] % 3]  # two directions in the face, and its normal
    pos = torch.where(first, boxes.pos21, boxes.pos12).gather(1, order)
    size = torch.where(first, boxes.one.size, boxes.two.size).gather(1, order)
    up = torch.where(pos[:, 2:] >= -boxes.slack, 1.0, -1.0).to(pos.dtype)

    # The other box, in these directions, and above the face.
    axes = torch.where(first[..., None], boxes.rot, boxes.rot.mT).gather(1, order[..., None].expand(-1, 3, 3))
    other = cycle[first_largest(axes[:, 2].detach().abs(), blur(axes.dtype))[:, 0]]
    axes = axes.gather(2, other[:, None].expand(-1, 3, 3))
    upright = torch.cat([torch.ones_like(pos[:, :2]), up], dim=-1)
    other_size = torch.where(first, boxes.two.size, boxes.one.size).gather(1, other)
    side1, side2, height = (upright[..., None] * axes * other_size[:, None]).unbind(-1)
    # Its face that looks down at the other.
    center = upright * pos - torch.where(height[:, 2:] > 0, height, -height)
    signs = torch.tensor(CORNERS, dtype=pos.dtype, device=pos.device)
    corner = center[:, None] + signs[:, :1] * side1[:, None] + signs[:, 1:] * side2[:, None]
    polygon, count = clipped(corner, size[:, :2], boxes.slack)

    # Its height above the face, and the middle between them.
    dist = polygon[..., 2] - size[:, 2:]
    exists = distinct(polygon, count, dist <= reach[:, None], size[:, :2])
    middle = torch.cat([polygon[..., :2], (up * (size[:, 2:] + 0.5 * dist))[..., None]], dim=-1)
    mat = torch.where(first[..., None], boxes.one.mat, boxes.two.mat).gather(2, order[:, None].expand(-1, 3, 3))
    origin = torch.where(first, boxes.one.pos, boxes.two.pos)
    normal = torch.where(first, up, -up) * mat[..., 2]
    return ContactPoints(dist, origin[:, None] + middle @ mat.mT, normal[:, None].expand(polygon.shape), exists)


def _cut(way: Tensor, half: Tensor) -> Tensor:
    """`way` between `-half` and `half`."""
    return torch.maximum(torch.minimum(way, half), -half)
