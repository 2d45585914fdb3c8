"""Where shapes are least deep in each other across a face, which most are that rest on something.

The depth is what two shapes overlap by along the direction in which that is least. Along the normal n of a face of the
one shape they overlap by d, how deep the furthest point p of the other one is under its plane. Where p lies a distance
r inside of the outline of the face, no direction that makes an angle t with n is better unless `r < d tan(t / 2)`: the
difference of both shapes, the set of all p1 - p2, has a disc of that radius around `d n`. It has what p and the centre
of the other shape make up as well, at a height of -s and l aside: so directions that are nearly opposite to n are no
better if `s cos(u) - l sin(u) >= d`, with `u = 2 atan(d / r)`. Then nothing else is to be searched.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.clipping import UNEVEN
from mjtorch.collision.multicontact import BOX, HULL
from mjtorch.collision.plane_mesh import face_around
from mjtorch.collision.support import Core, is_at, numbered_support, to_local, to_world, where_rows
from mjtorch.collision.witness import Closest, Nearest, vertices
from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.math.shape import Shape
from mjtorch.math.vector import MIN_VALUE, cross, dot, norm
from mjtorch.model.plan.mesh import Hulls

FLAT = (Shape.CYLINDER, Shape.BOX)
# Three corners of any face of a box, by the signs of what is along the face.
SIDES = ((1, 1, 1), (-1, 1, -1), (1, -1, -1))


class Face(NamedTuple):
    """Faces of n shapes, in their frames.

    normal: (n, 3) outward, number: (n,) which polygon each is of those of hulls; exists: (n,) bool
    """

    normal: Tensor
    number: Tensor
    exists: Tensor


class Outlined(NamedTuple):
    """Faces of n shapes around points.

    height: (n,) [m] of the plane, radius: (n,) [m] of the largest circle around the point on the face, less than zero
        outside of it
    corner: (n, 3, 3) [m] three corners, in the frames of the shapes, vertex: (n, 3) their numbers if they are hulls'
    """

    height: Tensor
    radius: Tensor
    corner: Tensor
    vertex: Tensor


class Across(NamedTuple):
    """n pairs of shapes that are least deep in each other, or nearest, across a face.

    found: (n,) bool, which are; of others normal and dist still tell how far they are apart at least, if it `exists`
    exists: (n,) bool, whether there is such a face at all
    of_second: (n,) bool, whether it is a face of shape 2
    normal: (n, 3) from 1 to 2, dist: (n,) [m], negative in penetration
    corner: (n, 3, 3) [m] three corners of the face, vertex: (n, 3) their numbers if they are vertices of hulls
    point: (n, c) the furthest point of the other shape, as in `Support`
    """

    found: Tensor
    exists: Tensor
    of_second: Tensor
    normal: Tensor
    dist: Tensor
    corner: Tensor
    vertex: Tensor
    point: Tensor


# Of a shape and the other one of n pairs, and whether it is shape 2: the face to look at, and what is around a point.
Look = Callable[[Core, Core, Tensor], tuple[Face, Callable[[Tensor], Outlined]]]


def with_faces(hulls: Hulls | None) -> tuple[int, ...]:
    """The types of shapes that have faces; static."""
    return (*FLAT, *(HULL if hulls is not None and hulls.corners else ()))


def on_second(shape1: Core, shape2: Core, hulls: Hulls | None) -> Tensor:
    """Whether it is shape 2 whose faces are looked at, (n,) bool: the larger one's, if that has faces."""
    flat1, flat2 = (shape.among(with_faces(hulls)) for shape in (shape1, shape2))
    return torch.where(flat1 & flat2, shape2.extent > shape1.extent, flat2)


def on_flat(shape1: Core, shape2: Core, hulls: Hulls | None) -> Tensor:
    """Whether that is a box or a cylinder, (n,) bool."""
    return torch.where(on_second(shape1, shape2, hulls), shape2.among(FLAT), shape1.among(FLAT))


def across_face(shape1: Core, shape2: Core, hulls: Hulls | None) -> Across:
    """Whether pairs are least deep across a face of a box or cylinder, that which the centre of the other is beyond.

    All are constants.
    """

    def look(this: Core, other: Core, second: Tensor) -> tuple[Face, Callable[[Tensor], Outlined]]:
        face = facing(this, to_local(this, other.pos - this.pos))
        return face, lambda at: outlined(this, face, at)

    return across(shape1, shape2, look, hulls)


def across_polygon(
    shape1: Core, shape2: Core, corner1: Tensor, corner2: Tensor, towards: Tensor, hulls: Hulls
) -> Across:
    """Whether pairs are least deep across a polygon of a hull, that which looks most `towards (n, 3)`, from 1 to 2.

    corner1, corner2: (n, 4, c) points on the shapes, as in `Support`: it is one around the furthest of these
    """

    def look(this: Core, other: Core, second: Tensor) -> tuple[Face, Callable[[Tensor], Outlined]]:
        up = torch.where(second[:, None], -towards, towards)
        corner = where_rows(second, corner2, corner1)
        furthest = dot(corner[..., :3], up[:, None]).argmax(-1, keepdim=True)
        vertex = corner[..., 3].gather(1, furthest)[:, 0].long()
        number = face_around(hulls, vertex, to_local(this, up))
        face = Face(hulls.normal[number], number, this.among(HULL))
        return face, lambda at: polygon_around(hulls, face, at, this.extent)

    return across(shape1, shape2, look, hulls)


def across(shape1: Core, shape2: Core, look: Look, hulls: Hulls | None) -> Across:
    """Whether pairs are least deep across the face that is looked at."""
    types = tuple(sorted({*shape1.types, *shape2.types}))
    one, two, second = shape1.replace(types=types), shape2.replace(types=types), on_second(shape1, shape2, hulls)
    this, other = where_rows(second, two, one), where_rows(second, one, two)
    face, outline = look(this, other, second)
    normal = to_world(this, face.normal)
    numbers = hulls if one.has(HULL) else None
    point = numbered_support(other, -normal, numbers, middle=True)
    at = to_local(this, point[:, :3] - this.pos)
    around = outline(at)
    depth, radius = around.height - dot(face.normal, at), around.radius
    rounding = 64 * torch.finfo(depth.dtype).eps * (this.extent + other.extent)

    above = other.pos - point[:, :3]
    rise = dot(normal, above, keepdim=True)
    aside, height, deep = norm(above - rise * normal), rise[:, 0] - depth, depth.clamp(min=0)
    share = deep / torch.where(radius > 0, radius, 1.0)
    square = share * share
    no_other_side = height * (1 - square) - 2 * aside * share >= deep * (1 + square)
    return Across(
        found=face.exists & (radius > 2 * deep + rounding) & no_other_side,
        exists=face.exists,
        of_second=second,
        normal=torch.where(second[:, None], -normal, normal),
        dist=-depth,
        corner=around.corner @ this.mat.mT + this.pos[:, None],
        vertex=around.vertex,
        point=point,
    )


def facing(shape: Core, offset: Tensor) -> Face:
    """The faces of boxes and cylinders that points `offset (n, 3)` [m] are beyond; all in the frames of the shapes."""
    none, up = torch.zeros_like(shape.type), torch.where(offset < 0, -1.0, 1.0).to(offset.dtype)
    normal = torch.nn.functional.pad(up[:, 2:], (2, 0))
    if shape.has(BOX):
        axis = is_at((offset.abs() - shape.half).argmax(-1), 3)
        normal = torch.where(shape.among(BOX)[:, None], torch.where(axis, up, 0.0), normal)
    return Face(normal, none, shape.among(FLAT))


def outlined(shape: Core, face: Face, at: Tensor) -> Outlined:
    """Faces of boxes and cylinders around points `at (n, 3)` [m], all in the frames of the shapes."""
    on_plane = at * (face.normal == 0) + shape.half * face.normal
    around = Outlined(
        height=shape.half[:, 2],
        radius=shape.round[:, 0] - norm(at[:, :2]),
        # Whatever is on the end of a cylinder.
        corner=on_plane[:, None].expand(-1, 3, 3),
        vertex=torch.zeros_like(shape.type)[:, None].expand(-1, 3),
    )
    if not shape.has(BOX):
        return around
    across, mine = face.normal != 0, shape.among(BOX)
    side = torch.where(across[:, None], face.normal[:, None], torch.tensor(SIDES, device=at.device).to(at.dtype))
    return Outlined(
        torch.where(mine, (face.normal.abs() * shape.half).sum(-1), around.height),
        torch.where(mine, torch.where(across, torch.inf, shape.half - at.abs()).amin(-1), around.radius),
        torch.where(mine[:, None, None], side * shape.half[:, None], around.corner),
        around.vertex,
    )


def polygon_around(hulls: Hulls, face: Face, at: Tensor, size: Tensor) -> Outlined:
    """The same for polygons of hulls; one that is not quite flat has no circle. size: (n,) [m] of the shapes."""
    entry, count = hulls.corner[face.number].unbind(-1)

    def corner(number: Tensor) -> Tensor:
        return hulls.vert[hulls.outline[entry + torch.where(number < count, number, 0)]]

    first = dot(face.normal, corner(torch.zeros_like(entry)))

    def look(number: Tensor, carry: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        radius, low, high = carry
        there = number < count
        start, end = corner(number.expand_as(entry)), corner(number + 1)
        out = cross(end - start, face.normal)
        within = -dot(at - start, out) / norm(out).clamp(min=MIN_VALUE)
        height = torch.where(there, dot(face.normal, start), first)
        return (
            torch.where(there, torch.minimum(radius, within), radius),
            torch.minimum(low, height),
            torch.maximum(high, height),
        )

    start = torch.full_like(first, torch.inf), first, first
    radius, low, high = fori_loop(0, count.amax(), look, start)
    vertex = hulls.outline[entry[:, None] + torch.arange(3, device=at.device)]
    return Outlined(high, torch.where(high - low <= UNEVEN * size, radius, -torch.inf), hulls.vert[vertex], vertex)


def closest_across(near: Across) -> Closest:
    """Where pairs are nearest that are so across a face."""
    second = near.of_second[:, None]
    point = near.point[:, :3]
    # One point is on the face.
    off = near.normal * near.dist[:, None]
    foot = torch.where(second, point + off, point - off)
    corner, vertex = near.point[:, None, :3].expand(-1, 3, -1), vertices(near.point[:, None]).expand(-1, 3)
    return Closest(
        Nearest(near.normal, near.dist, torch.where(second, point, foot), torch.where(second, foot, point)),
        torch.where(second[..., None], corner, near.corner),
        torch.where(second[..., None], near.corner, corner),
        torch.where(second, vertex, near.vertex),
        torch.where(second, near.vertex, vertex),
        near.found,
    )
