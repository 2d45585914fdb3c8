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

from mjtorch.collision.multicontact import BOX
from mjtorch.collision.support import MESH, Core, is_at, numbered_support, to_local, to_world, where_rows
from mjtorch.collision.witness import Closest, Nearest, vertices
from mjtorch.math.shape import Shape
from mjtorch.math.vector import dot, norm
from mjtorch.model.plan.mesh import Hulls

FLAT = (Shape.CYLINDER, Shape.BOX)
# How far apart [m] across a face ends of an edge may be to be as near to it: so near C's search comes.
LEVEL = 1e-6
# Three corners of any face of a box, by the signs of what is along the face.
SIDES = ((1, 1, 1), (-1, 1, -1), (1, -1, -1))


class Outlined(NamedTuple):
    """Faces of n shapes around points.

    height: (n,) [m] of the plane, radius: (n,) [m] of the largest circle around the point on the face, less than zero
        outside of it
    corner: (n, 3, 3) [m] three corners, in the frames of the shapes
    """

    height: Tensor
    radius: Tensor
    corner: Tensor


class Across(NamedTuple):
    """n pairs of shapes that are least deep in each other, or nearest, across a face.

    found: (n,) bool, which are; of others normal and dist still tell how far they are apart at least, if it `exists`
    exists: (n,) bool, whether there is such a face at all
    of_second: (n,) bool, whether it is a face of shape 2
    normal: (n, 3) from 1 to 2, dist: (n,) [m], negative in penetration
    corner: (n, 3, 3) [m] three corners of the face
    point: (n, c) the furthest point of the other shape, as in `Support`
    """

    found: Tensor
    exists: Tensor
    of_second: Tensor
    normal: Tensor
    dist: Tensor
    corner: Tensor
    point: Tensor


def on_second(shape1: Core, shape2: Core) -> Tensor:
    """Whether it is shape 2 whose faces are looked at, (n,) bool: the larger one's, if that has faces."""
    flat1, flat2 = (shape.among((*FLAT, MESH)) for shape in (shape1, shape2))
    return torch.where(flat1 & flat2, shape2.extent > shape1.extent, flat2)


def on_flat(shape1: Core, shape2: Core) -> Tensor:
    """Whether that is a box or a cylinder, (n,) bool."""
    return torch.where(on_second(shape1, shape2), shape2.among(FLAT), shape1.among(FLAT))


def across_face(shape1: Core, shape2: Core, hulls: Hulls | None) -> Across:
    """Whether pairs are least deep across a face of the one that `on_second` says, where that is a box or a cylinder.

    It is the face that the centre of the other shape is beyond. All are constants.
    """
    types = tuple(sorted({*shape1.types, *shape2.types}))
    one, two, second = shape1.replace(types=types), shape2.replace(types=types), on_second(shape1, shape2)
    this, other = where_rows(second, two, one), where_rows(second, one, two)
    face = facing(this, to_local(this, other.pos - this.pos))
    normal = to_world(this, face)
    point = numbered_support(other, -normal, hulls if one.has((MESH,)) else None, level=LEVEL)
    at = to_local(this, point[:, :3] - this.pos)
    around = outlined(this, face, at)
    depth, radius, exists = around.height - dot(face, at), around.radius, this.among(FLAT)
    rounding = 64 * torch.finfo(depth.dtype).eps * (this.extent + other.extent)

    above = other.pos - point[:, :3]
    rise = dot(normal, above, keepdim=True)
    aside, height, deep = norm(above - rise * normal), rise[:, 0] - depth, depth.clamp(min=0)
    share = deep / torch.where(radius > 0, radius, 1.0)
    square = share * share
    no_other_side = height * (1 - square) - 2 * aside * share >= deep * (1 + square)
    return Across(
        found=exists & (radius > 2 * deep + rounding) & no_other_side,
        exists=exists,
        of_second=second,
        normal=torch.where(second[:, None], -normal, normal),
        dist=-depth,
        corner=around.corner @ this.mat.mT + this.pos[:, None],
        point=point,
    )


def facing(shape: Core, offset: Tensor) -> Tensor:
    """The normals (n, 3) of the faces of boxes and cylinders that points `offset (n, 3)` [m] are beyond, in frames."""
    up = torch.where(offset < 0, -1.0, 1.0).to(offset.dtype)
    normal = torch.nn.functional.pad(up[:, 2:], (2, 0))
    if shape.has(BOX):
        axis = is_at((offset.abs() - shape.half).argmax(-1), 3)
        normal = torch.where(shape.among(BOX)[:, None], torch.where(axis, up, 0.0), normal)
    return normal


def outlined(shape: Core, face: Tensor, at: Tensor) -> Outlined:
    """Faces of boxes and cylinders, of normals `face (n, 3)`, around points `at (n, 3)` [m], all in their frames."""
    on_plane = at * (face == 0) + shape.half * face
    around = Outlined(
        height=shape.half[:, 2],
        radius=shape.round[:, 0] - norm(at[:, :2]),
        # Whatever is on the end of a cylinder.
        corner=on_plane[:, None].expand(-1, 3, 3),
    )
    if not shape.has(BOX):
        return around
    across, mine = face != 0, shape.among(BOX)
    side = torch.where(across[:, None], face[:, None], torch.tensor(SIDES, device=at.device).to(at.dtype))
    return Outlined(
        torch.where(mine, (face.abs() * shape.half).sum(-1), around.height),
        torch.where(mine, torch.where(across, torch.inf, shape.half - at.abs()).amin(-1), around.radius),
        torch.where(mine[:, None, None], side * shape.half[:, None], around.corner),
    )


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
        torch.where(second, vertex, 0),
        torch.where(second, 0, vertex),
        near.found,
    )
