"""Support points of convex shapes: how far each reaches in a direction (mjc_support).

Spheres and capsules are a core, a point or a segment, with a radius around it; what is found for cores holds for the
shapes once the radii are taken off the distance.
"""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.math.shape import Shape
from mjtorch.math.vector import MIN_VALUE, basis, norm, normalize

# mjGEOM_HFIELD, which is what the prisms are called that a height field is made of, and mjGEOM_MESH.
PRISM, MESH = 1, 7


@tree.dataclass
class Convex(tree.Tree):
    """n convex geoms of one type.

    pos: (n, 3) [m], mat: (n, 3, 3), size: (n, 3) [m] as in MuJoCo
    vert: (n, nvert, 3) [m] vertices of meshes in the frame of the geom, a vertex repeated where there are fewer; the
        six of prisms, which may move; (n, 0, 3) for other types
    face: (n, nface, k) vertices of the polygons of meshes, counterclockwise from outside, the last one repeated where
        there are fewer, and a polygon where there are fewer; normal: (n, nface, 3) unit, outward; both empty likewise,
        or if the meshes have no polygons
    degree: the most polygons at a vertex of a mesh
    type: mjtGeom; sphere, capsule, ellipsoid, cylinder, box, mesh or prism
    """

    pos: Tensor
    mat: Tensor
    size: Tensor
    vert: Tensor
    face: Tensor
    normal: Tensor
    type: int = tree.field(static=True)
    degree: int = tree.field(static=True, default=0)


def primitive(type: int, pos: Tensor, mat: Tensor, size: Tensor) -> Convex:
    """Geoms that are no meshes; the shapes are those of the fields of `Convex`."""
    empty = pos.new_zeros((pos.shape[0], 0, 3))
    return Convex(pos, mat, size, empty, empty.long(), empty, type)


def detach(shape: Convex) -> Convex:
    """The shape as constants."""
    return tree.map(torch.Tensor.detach, shape)


def from_first(shape1: Convex, shape2: Convex) -> tuple[Convex, Convex, Tensor]:
    """Both shapes as seen from the centres (n, 3) [m] of the first, and these: far out, digits would be lost."""
    origin = shape1.pos
    return shape1.replace(pos=torch.zeros_like(origin)), shape2.replace(pos=shape2.pos - origin), origin


def to_local(shape: Convex, vector: Tensor) -> Tensor:
    """Vectors (n, 3) of the world in the frames of the geoms."""
    return (vector[:, None, :] @ shape.mat)[:, 0]


def to_world(shape: Convex, vector: Tensor) -> Tensor:
    """Vectors (n, 3) in the frames of the geoms in that of the world."""
    return (shape.mat @ vector[..., None])[..., 0]


def is_at(index: Tensor, count: int) -> Tensor:
    """Which of `count` elements each `index (...)` means, bool (..., count)."""
    return torch.arange(count, device=index.device) == index[..., None]


def radius(shape: Convex) -> Tensor:
    """How much (n,) [m] a shape is larger than its core."""
    round_core = shape.type in (Shape.SPHERE, Shape.CAPSULE)
    return shape.size[:, 0] if round_core else torch.zeros_like(shape.size[:, 0])


def support(shape: Convex, direction: Tensor) -> Tensor:
    """The points (n, 3) [m] of the cores that are furthest along `direction (n, 3)`, a unit vector of the world."""
    return to_world(shape, local_support(shape, to_local(shape, direction))) + shape.pos


def local_support(shape: Convex, direction: Tensor) -> Tensor:
    """`support` in the frame of the geom."""
    size, z = shape.size, direction[:, 2]
    match shape.type:
        case Shape.SPHERE:
            return torch.zeros_like(direction)
        case Shape.CAPSULE:
            zero = torch.zeros_like(z)
            return torch.stack([zero, zero, torch.where(z >= 0, size[:, 1], -size[:, 1])], dim=-1)
        case Shape.ELLIPSOID:
            return size * normalize(size * direction, basis(direction, 1, 0, 0))[0]
        case Shape.CYLINDER:
            across = norm(direction[:, :2], keepdim=True)
            on_axis = across < MIN_VALUE
            rim = torch.where(on_axis, 0.0, direction[:, :2] / torch.where(on_axis, 1.0, across))
            return torch.cat([size[:, :1] * rim, torch.where(z >= 0, size[:, 1], -size[:, 1])[:, None]], dim=-1)
        case Shape.BOX:
            return torch.where(direction >= 0, size, -size)
        case _:
            furthest = (shape.vert @ direction[..., None]).argmax(1, keepdim=True)
            return shape.vert.gather(1, furthest.expand(-1, 1, 3))[:, 0]
