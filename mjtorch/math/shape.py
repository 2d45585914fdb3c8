"""Primitive shapes in their own frames: what is inside, and where rays meet the surface. All broadcast."""

import enum
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE, dot, norm, normalize


class Shape(enum.IntEnum):
    """mjtGeom, the ones that a few sizes describe.

    PLANE z = 0, half lengths x and y (zero or less: infinite); SPHERE radius; CAPSULE and CYLINDER along z, radius and
    half length; ELLIPSOID and BOX half lengths.
    """

    PLANE = 0
    SPHERE = 2
    CAPSULE = 3
    ELLIPSOID = 4
    CYLINDER = 5
    BOX = 6


# Half lengths of the box, then of the ellipsoid, then the radius of the ball that a shape is the sum of, as sums of its
# sizes; by mjtGeom, of which 7, a mesh, is none of that.
_NO, _1, _2, _3 = (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)
_PARTS = {
    Shape.SPHERE: (_NO, _NO, _NO, _NO, _NO, _NO, _1),
    Shape.CAPSULE: (_NO, _NO, _2, _NO, _NO, _NO, _1),
    Shape.ELLIPSOID: (_NO, _NO, _NO, _1, _2, _3, _NO),
    Shape.CYLINDER: (_NO, _NO, _2, _1, _1, _NO, _NO),
    Shape.BOX: (_1, _2, _3, _NO, _NO, _NO, _NO),
}
TYPES = 9


def parts(type: int | Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a convex shape is the sum of: a box, an ellipsoid, either of which may be flat or nothing, and a ball.

    A cylinder, for one, is the sum of a segment and a disc. type: mjtGeom of all, or of each (n,); size: (n, 3) [m].
    Returns half lengths of the box (n, 3), of the ellipsoid (n, 3), and the radius of the ball (n,), all [m]; zero for
    a mesh and for a plane.
    """
    rows = [_PARTS[Shape(k)] if k in _PARTS else (_NO,) * 7 for k in range(TYPES)]
    table = torch.tensor(rows, dtype=size.dtype, device=size.device)
    # Three products, not views of one: loops do not take two views of one tensor.
    half, round, radius = ((part @ size[..., None])[..., 0] for part in table[type].split([3, 3, 1], dim=-2))
    return half, round, radius[:, 0]


def reach(mat: Tensor, half: Tensor, round: Tensor, radius: Tensor) -> Tensor:
    """How far (n, 3) [m] a shape with these `parts` reaches from its centre along the axes of the world.

    mat: (n, 3, 3) its axes, in the columns
    """
    box = (mat.abs() @ half[..., None])[..., 0]
    return box + norm(mat * round[:, None]) + radius[:, None]


class Boxes(NamedTuple):
    """Boxes around shapes.

    pos: (n, 3) [m] centres, mat: (n, 3, 3) axes, in the columns; own: (n, 3) [m] half lengths along these axes
    world: (n, 3) [m] half lengths of boxes along the axes of the world around the same shapes
    """

    pos: Tensor
    mat: Tensor
    own: Tensor
    world: Tensor


def with_elements(boxes: Boxes, vert: Tensor, corner: Tensor, radius: Tensor) -> Boxes:
    """The same, then points at `vert` (n, 3) [m], then boxes along the axes of the world around elements.

    corner: (k, 3) which of the points their corners are; radius: (k,) [m]
    """
    at = vert[corner]
    low, high = at.amin(1), at.amax(1)
    half = torch.cat([torch.zeros_like(vert), 0.5 * (high - low) + radius[:, None]])
    axes = torch.eye(3, dtype=vert.dtype, device=vert.device).expand(len(half), 3, 3)
    return Boxes(
        torch.cat([boxes.pos, vert, 0.5 * (low + high)]),
        torch.cat([boxes.mat, axes]),
        torch.cat([boxes.own, half]),
        torch.cat([boxes.world, half]),
    )


def apart_along_axes(boxes: Boxes, one: Tensor, two: Tensor) -> Tensor:
    """How far apart (k,) [m] shapes `one (k,)` and `two (k,)` are at least: as their boxes along an axis of the world.

    Negative where these overlap along all axes. To the last digit it is the same whichever is the first.
    """
    return ((boxes.pos[two] - boxes.pos[one]).abs() - (boxes.world[one] + boxes.world[two])).amax(-1)


def apart_along_faces(boxes: Boxes, one: Tensor, two: Tensor) -> Tensor:
    """The same (k,) [m] along the normals of the faces of their own boxes."""
    offset, mat1, mat2 = boxes.pos[two] - boxes.pos[one], boxes.mat[one], boxes.mat[two]
    half1, half2, turn = boxes.own[one], boxes.own[two], (mat1.mT @ mat2).abs()
    along1, along2 = ((offset[:, None] @ mat)[:, 0].abs() for mat in (mat1, mat2))
    by_one = along1 - half1 - (turn @ half2[..., None])[..., 0]
    by_two = along2 - half2 - (turn.mT @ half1[..., None])[..., 0]
    return torch.maximum(by_one, by_two).amax(-1)


def inside(shape: Shape, size: Tensor, point: Tensor) -> Tensor:
    """Whether points (..., 3) [m] are inside shapes of `size` (..., 3) [m]; bool (...) (mju_insideGeom)."""
    radius, z = size[..., 0], point[..., 2]
    square = radius * radius
    match shape:
        case Shape.PLANE:
            return z < 0
        case Shape.SPHERE:
            return dot(point, point) < square
        case Shape.CAPSULE:
            beyond = (z.abs() - size[..., 1]).clamp(min=0)
            return dot(point[..., :2], point[..., :2]) + beyond * beyond < square
        case Shape.ELLIPSOID:
            scaled = point / size
            return dot(scaled, scaled) < 1
        case Shape.CYLINDER:
            return (z.abs() < size[..., 1]) & (dot(point[..., :2], point[..., :2]) < square)
        case Shape.BOX:
            return (point.abs() < size).all(-1)


def ray(shape: Shape, size: Tensor, point: Tensor, direction: Tensor) -> Tensor:
    """How far along `direction` a ray from `point` first meets a surface, in lengths of `direction` (mju_rayGeom).

    size, point, direction: (..., 3) [m]. Returns (...), -1 where the ray misses. From inside it meets the far surface;
    a plane is met from above only.
    """
    hits = MEETINGS[shape](size, point, direction)
    nearest = torch.where(hits >= 0, hits, math.inf).amin(-1)
    return torch.where(nearest < math.inf, nearest, -1.0)


def depth(shape: Shape, size: Tensor, point: Tensor) -> Tensor:
    """How deep (...) [m] points (..., 3) [m] are inside shapes of `size` (..., 3) [m], zero outside (mjc_distance).

    To the nearest surface; an estimate for ellipsoids, and along rays that bend towards the faces for boxes.
    """
    return _depth(shape, size, point).clamp(min=0)


def distance(shape: Shape, size: Tensor, point: Tensor) -> Tensor:
    """How far (...) [m] points (..., 3) [m] are from shapes of `size` (..., 3) [m], inside `-depth` (mjc_distance)."""
    deep = _depth(shape, size, point)
    if shape not in (Shape.CYLINDER, Shape.BOX):
        return -deep
    return norm(_beyond(shape, size, point).clamp(min=0)) - deep.clamp(min=0)


def _depth(shape: Shape, size: Tensor, point: Tensor) -> Tensor:
    """`depth`, which outside may be anything that is not positive."""
    radius, half = size[..., 0], size[..., 1]
    match shape:
        case Shape.PLANE:
            return -point[..., 2]
        case Shape.SPHERE:
            return radius - norm(point)
        case Shape.CAPSULE:
            beyond = point[..., 2:] - point[..., 2:].clamp(-half[..., None], half[..., None])
            return radius - norm(torch.cat([point[..., :2], beyond], dim=-1))
        case Shape.ELLIPSOID:
            scaled, slope = norm(point / size), norm(point / (size * size))
            return scaled * (1 - scaled) / torch.where(slope == 0, 1.0, slope)
        case Shape.CYLINDER:
            return torch.minimum(radius - norm(point[..., :2]), half - point[..., 2].abs())
        case Shape.BOX:
            gap = size - point.abs()
            gap = torch.where((gap > 0).all(-1, keepdim=True), gap, 0.0)
            length = norm(size / torch.where(gap > 0, gap, 1.0))
            return length * (gap * gap / size).amin(-1)


def _beyond(shape: Shape, size: Tensor, point: Tensor) -> Tensor:
    """How far points are beyond the faces of boxes (..., 3), the side and the ends of cylinders (..., 2) [m]."""
    if shape == Shape.BOX:
        return point.abs() - size
    return torch.stack([norm(point[..., :2]), point[..., 2].abs()], dim=-1) - size[..., :2]


def gradient(shape: Shape, size: Tensor, point: Tensor) -> Tensor:
    """Gradient (..., 3) of `distance` at points (..., 3) [m], as C has it (mjc_gradient).

    Of unit length, but zero where there is none. Inside a box it turns from the centre towards the normals of the
    faces, and of an ellipsoid, whose `distance` is an estimate, it is the direction only.
    """
    none = torch.zeros_like(point)
    match shape:
        case Shape.PLANE:
            return none + torch.tensor([0.0, 0.0, 1.0], dtype=point.dtype, device=point.device)
        case Shape.SPHERE:
            return normalize(point, none)[0]
        case Shape.CAPSULE:
            z, half = point[..., 2:], size[..., 1:2]
            return normalize(torch.cat([point[..., :2], z - z.clamp(-half, half)], dim=-1), none)[0]
        case Shape.ELLIPSOID:
            square = size * size
            scaled, slope = norm(point / size, keepdim=True), norm(point / square, keepdim=True)
            ratio = scaled / torch.where(slope == 0, 1.0, slope)
            inner = point / (square * torch.where(scaled == 0, 1.0, scaled))
            outer = point / (square * square) * (ratio * (scaled - 1) / torch.where(slope == 0, 1.0, slope))
            return normalize((2 * scaled - 1) * inner - outer, none)[0]
        case Shape.CYLINDER:
            beyond = _beyond(shape, size, point)
            outward = normalize(beyond.clamp(min=0), torch.zeros_like(beyond))[0]
            is_side = beyond[..., :1] > beyond[..., 1:]
            nearest = torch.cat([is_side, ~is_side], dim=-1).to(point.dtype)
            weight = torch.where(beyond.amax(-1, keepdim=True) < 0, nearest, outward)
            side = normalize(point[..., :2], none[..., :2])[0]
            return torch.cat([weight[..., :1] * side, weight[..., 1:] * point[..., 2:].sign()], dim=-1)
        case Shape.BOX:
            beyond = _beyond(shape, size, point)
            inside = (beyond < 0).all(-1, keepdim=True)
            radial = size / torch.where(inside, -beyond, 1.0)
            outward = normalize(torch.where(inside, radial, beyond.clamp(min=0)), none)[0]
            return torch.where(point < 0, -outward, outward)


def normal(shape: Shape, size: Tensor, point: Tensor) -> Tensor:
    """Outward unit normal (..., 3) at points (..., 3) [m] of the surface of a shape of `size` (..., 3) [m].

    Where surfaces join it is that of the end of a cylinder, and of the first of a box's axes.
    """
    up = torch.tensor([0.0, 0.0, 1.0], dtype=point.dtype, device=point.device)
    match shape:
        case Shape.PLANE:
            return up.expand_as(point)
        case Shape.SPHERE:
            outward = point
        case Shape.CAPSULE:
            z = point[..., 2:]
            outward = torch.cat([point[..., :2], z - z.clamp(-size[..., 1:2], size[..., 1:2])], dim=-1)
        case Shape.ELLIPSOID:
            outward = point / (size * size)
        case Shape.CYLINDER:
            z = point[..., 2:]
            flat = z.abs() - size[..., 1:2] >= norm(point[..., :2], keepdim=True) - size[..., :1]
            side = F.pad(point[..., :2], (0, 1))
            outward = torch.where(flat, z.sign() * up, side)
        case Shape.BOX:
            axis = (point.abs() - size).argmax(-1, keepdim=True)
            mine = torch.arange(3, device=point.device) == axis
            outward = torch.where(mine, point.sign(), 0.0)
    return normalize(outward, up.expand_as(point))[0]


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """`a / b`, -1 where b is zero."""
    zero = b.abs() < MIN_VALUE
    return torch.where(zero, -1.0, a / torch.where(zero, 1.0, b))


def _roots(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Both roots (..., 2) of `a x^2 + 2 b x + c`, -1 where there are none."""
    discriminant = b * b - a * c
    real = (discriminant >= 0) & (a >= MIN_VALUE)
    # Where the ray grazes, the derivative of the root is infinite: zero is as good.
    grazes = discriminant <= 0
    root = torch.where(grazes, 0.0, torch.where(grazes, 1.0, discriminant).sqrt())
    both = torch.stack([-b - root, root - b], dim=-1) / torch.where(real, a, 1.0)[..., None]
    return torch.where(real[..., None], both, -1.0)


def _sphere(radius: Tensor, point: Tensor, direction: Tensor) -> Tensor:
    """Meetings (..., 2) with a sphere, or with a circle in two dimensions."""
    return _roots(dot(direction, direction), dot(direction, point), dot(point, point) - radius * radius)


def _at(hits: Tensor, point: Tensor, direction: Tensor) -> Tensor:
    """Where rays are at `hits` (..., k): (..., k, 3)."""
    return point[..., None, :] + hits[..., None] * direction[..., None, :]


def _plane_hits(size: Tensor, point: Tensor, direction: Tensor) -> Tensor:
    falls = direction[..., 2:] <= -MIN_VALUE
    hits = torch.where(falls, _quotient(-point[..., 2:], direction[..., 2:]), -1.0)
    half = size[..., None, :2]
    within = (_at(hits, point, direction)[..., :2].abs() <= half) | (half <= 0)
    return torch.where(within.all(-1), hits, -1.0)


def _sphere_hits(size: Tensor, point: Tensor, direction: Tensor) -> Tensor:
    return _sphere(size[..., 0], point, direction)


def _capsule_hits(size: Tensor, point: Tensor, direction: Tensor) -> Tensor:
    radius, half = size[..., 0], size[..., 1:2]
    side = _sphere(radius, point[..., :2], direction[..., :2])
    axis = torch.tensor([0.0, 0.0, 1.0], dtype=point.dtype, device=point.device) * half[..., None, :]
    from_ends = point[..., None, :] + torch.cat([axis, -axis], dim=-2)  # the lower end, then the upper
    caps = _sphere(radius[..., None], from_ends, direction[..., None, :]).flatten(-2)
    hits = torch.cat([side, caps], dim=-1)
    z = _at(hits, point, direction)[..., 2]
    on_side, on_lower, on_upper = z[..., :2].abs() <= half, z[..., 2:4] <= -half, z[..., 4:] >= half
    return torch.where(torch.cat([on_side, on_lower, on_upper], dim=-1), hits, -1.0)


def _ellipsoid_hits(size: Tensor, point: Tensor, direction: Tensor) -> Tensor:
    return _sphere(torch.ones_like(size[..., 0]), point / size, direction / size)


def _cylinder_hits(size: Tensor, point: Tensor, direction: Tensor) -> Tensor:
    radius, half = size[..., :1], size[..., 1:2]
    side = _sphere(size[..., 0], point[..., :2], direction[..., :2])
    flat = _quotient(torch.cat([-half, half], dim=-1).sub(point[..., 2:]), direction[..., 2:])
    hits = torch.cat([side, flat], dim=-1)
    at = _at(hits, point, direction)
    on_side, on_flat = at[..., :2, 2].abs() <= half, dot(at[..., 2:, :2], at[..., 2:, :2]) <= radius * radius
    return torch.where(torch.cat([on_side, on_flat], dim=-1), hits, -1.0)


def _box_hits(size: Tensor, point: Tensor, direction: Tensor) -> Tensor:
    hits = _quotient(torch.cat([-size - point, size - point], dim=-1), torch.cat([direction, direction], dim=-1))
    within = _at(hits, point, direction).abs() <= size[..., None, :]
    # A ray is on the plane of a face that it meets but for rounding.
    own = torch.eye(3, dtype=torch.bool, device=point.device).repeat(2, 1)
    return torch.where((within | own).all(-1), hits, -1.0)


MEETINGS: dict[Shape, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    Shape.PLANE: _plane_hits,
    Shape.SPHERE: _sphere_hits,
    Shape.CAPSULE: _capsule_hits,
    Shape.ELLIPSOID: _ellipsoid_hits,
    Shape.CYLINDER: _cylinder_hits,
    Shape.BOX: _box_hits,
}
