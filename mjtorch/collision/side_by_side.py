"""Cylinders and capsules side by side, with each other or an edge: if parallel they touch along a line.

A search ends anywhere on it, and at other places with other last bits, in C too. The middle holds them best.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.rounding import blur
from mjtorch.collision.support import MESH, Core, hull_support, to_local, to_world, where_rows
from mjtorch.collision.witness import AT_END, Nearest
from mjtorch.math.shape import Shape
from mjtorch.math.vector import basis, cross, dot, norm, normalize
from mjtorch.model.plan.mesh import Hulls

ROUND = (Shape.CYLINDER, Shape.CAPSULE)
# What either may touch along a line; capsules meet each other, and boxes, by formulas of their own.
LONG = {Shape.CYLINDER: (*ROUND, Shape.BOX, MESH), Shape.CAPSULE: (MESH,)}
# Cosine of the angle, to what the search has found, above which a normal across the lines is the same but for rounding.
SAME = 0.98
# By how much a direction is tilted for the ends of the edge across it.
TILT = 1e-3


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
    both = ((one, two), (two, one))
    return any(x.has((type,)) and y.has(others) for type, others in LONG.items() for x, y in both)


def side_by_side(one: Core, two: Core, found: Nearest, hulls: Hulls | None) -> Nearest:
    """What is nearest of n pairs of cores, `found`, with those put right that touch along a line."""
    of1 = line_of(one, two, found.point1, found.normal, hulls)
    of2 = line_of(two, one, found.point2, -found.normal, hulls)
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
    is_line = is_line & (norm(cross(of1.axis, of2.axis)) <= slack(one, two))
    is_line = is_line & (dot(normal, found.normal) > SAME)
    return where_rows(is_line & (one.among(ROUND) | two.among(ROUND)), touching, found)


def slack(one: Core, two: Core) -> Tensor | float:
    """Sine of the angle (n,), or of all, below which axes are parallel: vertices of meshes are in single precision."""
    exact, single = blur(one.pos.dtype), blur(torch.float32)
    if exact >= single or not (one.has((MESH,)) or two.has((MESH,))):
        return exact
    return torch.where(one.among((MESH,)) | two.among((MESH,)), single, exact)


def line_of(shape: Core, other: Core, point: Tensor, normal: Tensor, hulls: Hulls | None) -> Line:
    """The axes of cylinders and capsules; of others the edges at `point (n, 3)` [m] that lie along the others' axes.

    normal: (n, 3) outward there
    """
    line = Line(shape.pos, shape.mat[:, :, 2], shape.half[:, 2:], shape.round[:, :1], shape.among(ROUND))
    way = other.mat[:, :, 2].detach()
    if shape.has((Shape.BOX,)):
        line = where_rows(shape.among((Shape.BOX,)), edge_of_box(shape, way, point), line)
    if shape.has((MESH,)):
        assert hulls is not None, "meshes need hulls"
        line = where_rows(shape.among((MESH,)), edge_of_hull(shape, way, point, normal, hulls), line)
    return line


def edge_of_box(shape: Core, way: Tensor, point: Tensor) -> Line:
    """The edges at `point (n, 3)` [m] that lie, roughly, along `way (n, 3)`."""
    local, way = to_local(shape, point - shape.pos).detach(), to_local(shape, way).detach()
    is_way = torch.arange(3, device=way.device) == way.abs().argmax(-1, keepdim=True)
    is_edge = (is_way | (local.abs() >= (1 - AT_END) * shape.half)).all(-1)
    return Line(
        shape.pos + to_world(shape, torch.where(is_way, 0.0, shape.half * local.sign())),
        to_world(shape, is_way.to(way.dtype)),
        torch.where(is_way, shape.half, 0.0).sum(-1, keepdim=True),
        torch.zeros_like(point[:, :1]),
        is_edge,
    )


def edge_of_hull(shape: Core, way: Tensor, point: Tensor, normal: Tensor, hulls: Hulls) -> Line:
    """The edges across `normal (n, 3)` that reach furthest along `way (n, 3)`, if they are at `point (n, 3)` [m]."""
    ends = torch.stack([normal - TILT * way, normal + TILT * way], dim=1).detach()
    vertex = hull_support(hulls, shape.hull.repeat_interleave(2), (ends @ shape.mat.detach()).flatten(0, 1))
    low, high = hulls.vert[vertex].unflatten(0, (-1, 2)).unbind(1)
    axis, length = normalize(high - low, basis(low, 1, 0, 0))
    axis = to_world(shape, axis)
    center = shape.pos + to_world(shape, 0.5 * (low + high))
    beside = norm(cross(axis, point - center)).detach()
    is_edge = beside <= max(AT_END, blur(axis.dtype)) * shape.extent
    return Line(center, axis, 0.5 * length, torch.zeros_like(length), is_edge)
