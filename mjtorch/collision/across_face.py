"""Where shapes are least deep in each other across a face, which most are that rest on something.

The depth is what two shapes overlap by along the direction in which that is least. Along the normal n of a face of the
one shape they overlap by d, how deep the furthest point p of the other one is under its plane. Where p lies a distance
r inside of the outline of the face, no direction that makes an angle t with n is better unless `r < d tan(t / 2)`: the
difference of both shapes, the set of all p1 - p2, has a disc of that radius around `d n`. It has what p and the centre
of the other shape make up as well, at a height of -s and l aside: so directions that are nearly opposite to n are no
better if `s cos(u) - l sin(u) >= d`, with `u = 2 atan(d / r)`. Then nothing else is to be searched.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.clipping import UNEVEN
from mjtorch.collision.multicontact import BOX, HULL
from mjtorch.collision.plane_mesh import face_around
from mjtorch.collision.support import Core, is_at, numbered_support, to_local, to_world, where_rows
from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.math.shape import Shape
from mjtorch.math.vector import MIN_VALUE, cross, dot, norm
from mjtorch.model.plan.mesh import Hulls

END = (Shape.CYLINDER,)
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

    found: (n,) bool, which are; the rest means nothing for others
    of_second: (n,) bool, whether it is a face of shape 2
    normal: (n, 3) from 1 to 2, dist: (n,) [m], negative in penetration
    corner: (n, 3, 3) [m] three corners of the face, vertex: (n, 3) their numbers if they are vertices of hulls
    point: (n, c) the furthest point of the other shape, as in `Support`
    """

    found: Tensor
    of_second: Tensor
    normal: Tensor
    dist: Tensor
    corner: Tensor
    vertex: Tensor
    point: Tensor


def across_face(
    shape1: Core, shape2: Core, corner1: Tensor, corner2: Tensor, towards: Tensor, hulls: Hulls | None
) -> Across:
    """Whether pairs are least deep across the face that looks most `towards (n, 3)`, a direction from 1 to 2.

    It is one of the larger shape, if that has faces; of a hull, one around the furthest of some points (n, 4, c) on
    the shapes, as in `Support`. All are constants.
    """
    types = tuple(sorted({*shape1.types, *shape2.types}))
    one, two = shape1.replace(types=types), shape2.replace(types=types)
    flat1, flat2 = one.among(faced(hulls)), two.among(faced(hulls))
    of_second = torch.where(flat1 & flat2, two.extent > one.extent, flat2)
    away = of_second[:, None]
    this, other = where_rows(of_second, two, one), where_rows(of_second, one, two)
    up, corner = torch.where(away, -towards, towards), where_rows(of_second, corner2, corner1)
    found = on_face(this, other, corner, up, hulls)
    return found._replace(of_second=of_second, normal=torch.where(away, -found.normal, found.normal))


def on_face(this: Core, other: Core, corner: Tensor, up: Tensor, hulls: Hulls | None) -> Across:
    """Whether a face of `this` is such a face; up: (n, 3) where it is looked for, out of this shape."""
    face = facing(this, corner, up, hulls)
    normal = to_world(this, face.normal)
    point = numbered_support(other, -normal, hulls, middle=True)
    at = to_local(this, point[:, :3] - this.pos)
    around = outlined(this, face, at, hulls)
    depth, radius = around.height - dot(face.normal, at), around.radius
    rounding = 64 * torch.finfo(up.dtype).eps * (this.extent + other.extent)

    above = other.pos - point[:, :3]
    rise = dot(normal, above, keepdim=True)
    aside, height, deep = norm(above - rise * normal), rise[:, 0] - depth, depth.clamp(min=0)
    share = deep / torch.where(radius > 0, radius, 1.0)
    square = share * share
    no_other_side = height * (1 - square) - 2 * aside * share >= deep * (1 + square)
    found = face.exists & (radius > 2 * deep + rounding) & no_other_side
    three = around.corner @ this.mat.mT + this.pos[:, None]
    return Across(found, torch.zeros_like(found), normal, -depth, three, around.vertex, point)


def facing(shape: Core, corner: Tensor, up: Tensor, hulls: Hulls | None) -> Face:
    """The faces that look most along `up (n, 3)`; corner: as for `across_face`."""
    direction = to_local(shape, up)
    face = Face(torch.zeros_like(up), torch.zeros_like(shape.type), shape.among(faced(hulls)))
    if shape.has(END):
        end = torch.where(direction[:, 2:] < 0, -1.0, 1.0).to(up.dtype)
        face = face._replace(normal=torch.nn.functional.pad(end, (2, 0)))
    if shape.has(BOX):
        axis = is_at(direction.abs().argmax(-1), 3)
        normal = torch.where(axis, torch.where(direction < 0, -1.0, 1.0), 0.0).to(up.dtype)
        face = face._replace(normal=torch.where(shape.among(BOX)[:, None], normal, face.normal))
    if shape.has(HULL) and HULL[0] in faced(hulls):
        assert hulls is not None, "meshes need hulls"
        furthest = dot(corner[..., :3], up[:, None]).argmax(-1, keepdim=True)
        number = face_around(hulls, corner[..., 3].gather(1, furthest)[:, 0].long(), direction)
        normal = torch.where(shape.among(HULL)[:, None], hulls.normal[number], face.normal)
        face = face._replace(normal=normal, number=number)
    return face


def outlined(shape: Core, face: Face, at: Tensor, hulls: Hulls | None) -> Outlined:
    """Faces around points `at (n, 3)` [m], all in the frames of the shapes."""
    on_plane = at * (face.normal == 0) + shape.half * face.normal
    around = Outlined(
        height=shape.half[:, 2],
        radius=shape.round[:, 0] - norm(at[:, :2]),
        # Whatever is on the end of a cylinder.
        corner=on_plane[:, None].expand(-1, 3, 3),
        vertex=torch.zeros_like(shape.type)[:, None].expand(-1, 3),
    )
    if shape.has(BOX):
        across, mine = face.normal != 0, shape.among(BOX)
        side = torch.where(across[:, None], face.normal[:, None], torch.tensor(SIDES, device=at.device).to(at.dtype))
        around = Outlined(
            torch.where(mine, (face.normal.abs() * shape.half).sum(-1), around.height),
            torch.where(mine, torch.where(across, torch.inf, shape.half - at.abs()).amin(-1), around.radius),
            torch.where(mine[:, None, None], side * shape.half[:, None], around.corner),
            around.vertex,
        )
    if shape.has(HULL) and HULL[0] in faced(hulls):
        assert hulls is not None, "meshes need hulls"
        mine, polygon = shape.among(HULL), polygon_around(hulls, face, at, shape.extent)
        around = where_rows(mine, polygon, around)
    return around


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


def faced(hulls: Hulls | None) -> tuple[int, ...]:
    """The types that have faces; static."""
    return (*END, *BOX, *(HULL if hulls is not None and hulls.corners else ()))
