"""Cylinders side by side, with each other, with a capsule or the edge of a box: if parallel they touch along a line.

A search ends anywhere on it, and at other places with other last bits, in C too. The middle holds them best.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.rounding import blur
from mjtorch.collision.support import Core, to_local, to_world, where_rows
from mjtorch.collision.witness import AT_END, Nearest
from mjtorch.math.shape import Shape
from mjtorch.math.vector import basis, cross, dot, norm, normalize

CYLINDER, LONG = (Shape.CYLINDER,), (Shape.CYLINDER, Shape.CAPSULE, Shape.BOX)
# Cosine of the angle, to what the search has found, above which a normal across the lines is the same but for rounding.
SAME = 0.98


class Line(NamedTuple):
    """What n shapes have around them, or for an edge.

    center: (n, 3) [m], axis: (n, 3) unit, half: (n, 1) [m] its length; radius: (n, 1) [m] of what is around it
    there: (n,) bool, whether there is one
    """

    center: Tensor
    axis: Tensor
    half: Tensor
    radius: Tensor
    there: Tensor


def may_touch_along_lines(one: Core, two: Core) -> bool:
    """Whether some may; static."""
    return (one.has(CYLINDER) and two.has(LONG)) or (one.has(LONG) and two.has(CYLINDER))


def side_by_side(one: Core, two: Core, found: Nearest) -> Nearest:
    """What is nearest of n pairs of cores, `found`, with those put right that touch along a line."""
    of1, of2 = line_of(one, two, found.point1), line_of(two, one, found.point2)
    offset = of2.center - of1.center
    along = dot(offset, of1.axis, keepdim=True)
    low, high = torch.maximum(-of1.half, along - of2.half), torch.minimum(of1.half, along + of2.half)
    normal, distance = normalize(offset - along * of1.axis, basis(offset, 1, 0, 0))
    # An edge in a cylinder may be beyond its axis.
    inwards = (dot(normal, found.normal) < 0)[:, None]
    normal, distance = torch.where(inwards, -normal, normal), torch.where(inwards, -distance, distance)
    middle = of1.center + 0.5 * (low + high) * of1.axis
    touching = Nearest(
        normal,
        (distance - of1.radius - of2.radius)[:, 0],
        middle + of1.radius * normal,
        middle + (distance - of2.radius) * normal,
    )
    is_line = of1.there & of2.there & (high > low)[:, 0] & (distance.abs() > AT_END * one.extent[:, None])[:, 0]
    is_line = is_line & (norm(cross(of1.axis, of2.axis)) <= blur(along.dtype))
    is_line = is_line & (dot(normal, found.normal) > SAME)
    return where_rows(is_line & (one.among(CYLINDER) | two.among(CYLINDER)), touching, found)


def line_of(shape: Core, other: Core, point: Tensor) -> Line:
    """The axes of cylinders and capsules; of boxes the edges at `point (n, 3)` [m] that lie along the others' axes."""
    axis, half = shape.mat[:, :, 2], shape.half[:, 2:]
    line = Line(shape.pos, axis, half, shape.round[:, :1], shape.among((Shape.CYLINDER, Shape.CAPSULE)))
    if not shape.has((Shape.BOX,)):
        return line
    local, way = to_local(shape, point - shape.pos).detach(), to_local(shape, other.mat[:, :, 2]).detach()
    is_way = torch.arange(3, device=way.device) == way.abs().argmax(-1, keepdim=True)
    is_edge = (is_way | (local.abs() >= (1 - AT_END) * shape.half)).all(-1)
    edge = Line(
        shape.pos + to_world(shape, torch.where(is_way, 0.0, shape.half * local.sign())),
        to_world(shape, is_way.to(way.dtype)),
        torch.where(is_way, shape.half, 0.0).sum(-1, keepdim=True),
        torch.zeros_like(half),
        is_edge,
    )
    return where_rows(shape.among((Shape.BOX,)), edge, line)
