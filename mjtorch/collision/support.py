"""Support points of convex shapes: how far each reaches in a direction (mjc_support).

Every shape is the sum of its `parts`, a box, an ellipsoid and a ball, and of the hull of a mesh: its furthest point is
the sum of theirs. So shapes of different types are one batch and go through one loop. The ball is left out of the
*core*; what is found for cores holds for the shapes once the radii are taken off the distance.
"""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.control_flow.if_any import if_any
from mjtorch.math.shape import TYPES, Shape, parts
from mjtorch.math.vector import MIN_VALUE, norm

# mjGEOM_HFIELD, which is what the prisms are called that a height field is made of, and mjGEOM_MESH.
PRISM, MESH = 1, 7
HULLS = (PRISM, MESH)
# Types with a box in them, types with an ellipsoid, and those without a corner.
BOXED, CURVED, SMOOTH = (
    (Shape.CAPSULE, Shape.CYLINDER, Shape.BOX),
    (Shape.ELLIPSOID, Shape.CYLINDER),
    (Shape.SPHERE, Shape.ELLIPSOID),
)
# So many vertices are looked through sooner than it is asked whether there are any.
FEW_VERTICES = 16


@tree.dataclass
class Convex(tree.Tree):
    """n convex geoms of one type.

    pos: (n, 3) [m], mat: (n, 3, 3), size: (n, 3) [m] as in MuJoCo
    vert: (n, nvert, 3) [m] vertices of meshes in the frame of the geom, a vertex repeated where there are fewer;
        (n, 0, 3) for other types
    face: (n, nface, k) vertices of the polygons of meshes, counterclockwise from outside, the last one repeated where
        there are fewer, and a polygon where there are fewer; normal: (n, nface, 3) unit, outward; both empty likewise,
        or if the meshes have no polygons
    degree: the most polygons at a vertex of a mesh
    type: mjtGeom; sphere, capsule, ellipsoid, cylinder, box or mesh
    """

    pos: Tensor
    mat: Tensor
    size: Tensor
    vert: Tensor
    face: Tensor
    normal: Tensor
    type: int = tree.field(static=True)
    degree: int = tree.field(static=True, default=0)


@tree.dataclass
class Core(tree.Tree):
    """n convex geoms of any types as sums of parts.

    pos: (n, 3) [m], mat: (n, 3, 3); half, round: (n, 3) [m] half lengths of the box and of the ellipsoid, in these axes
    radius: (n,) [m] of the ball, extent: (n,) [m] the size of the geom; type: (n,) mjtGeom
    vert, face, normal, degree: as in `Convex`; zero for what is no mesh; of prisms the six vertices, which may move
    types: static, the types that there are
    """

    pos: Tensor
    mat: Tensor
    half: Tensor
    round: Tensor
    radius: Tensor
    extent: Tensor
    type: Tensor
    vert: Tensor
    face: Tensor
    normal: Tensor
    types: tuple[int, ...] = tree.field(static=True)
    degree: int = tree.field(static=True, default=0)

    def has(self, types: tuple[int, ...]) -> bool:
        """Whether any shape may be of one of `types`; static."""
        return not set(self.types).isdisjoint(types)

    def only(self, types: tuple[int, ...]) -> bool:
        """Whether all shapes are of one of `types`; static."""
        return set(self.types) <= set(types)

    def among(self, types: tuple[int, ...]) -> Tensor:
        """Which shapes are of one of `types`, (n,) bool."""
        if self.only(types) or not self.has(types):
            return torch.full_like(self.type, self.only(types), dtype=torch.bool)
        table = torch.tensor([k in types for k in range(TYPES)], device=self.type.device)
        return table[self.type]


def primitive(type: int, pos: Tensor, mat: Tensor, size: Tensor) -> Convex:
    """Geoms that are no meshes; the shapes are those of the fields of `Convex`."""
    empty = pos.new_zeros((pos.shape[0], 0, 3))
    return Convex(pos, mat, size, empty, empty.long(), torch.zeros_like(empty), type)


def core(shape: Convex) -> Core:
    """Shapes of one type as sums of parts."""
    type = torch.full(shape.pos.shape[:1], int(shape.type), device=shape.pos.device)
    found = assembled((int(shape.type),), type, shape.pos, shape.mat, shape.size)
    return found.replace(vert=shape.vert, face=shape.face, normal=shape.normal, degree=shape.degree)


def assembled(types: tuple[int, ...], type: Tensor, pos: Tensor, mat: Tensor, size: Tensor) -> Core:
    """Shapes of several types as sums of parts, those that are meshes still without hulls."""
    half, round, radius = parts(types[0] if len(types) == 1 else type, size)
    empty = pos.new_zeros((pos.shape[0], 0, 3))
    none = torch.zeros_like(empty)
    return Core(pos, mat, half, round, radius, norm(size), type, empty, empty.long(), none, types)


def detach(shape: Core) -> Core:
    """The shape as constants."""
    return tree.map(torch.Tensor.detach, shape)


def from_first(shape1: Core, shape2: Core) -> tuple[Core, Core, Tensor]:
    """Both shapes as seen from the centres (n, 3) [m] of the first, and these: far out, digits would be lost."""
    origin = shape1.pos
    return shape1.replace(pos=torch.zeros_like(origin)), shape2.replace(pos=shape2.pos - origin), origin


def to_local(shape: Core, vector: Tensor) -> Tensor:
    """Vectors (n, 3) of the world in the frames of the geoms."""
    return (vector[:, None, :] @ shape.mat)[:, 0]


def to_world(shape: Core, vector: Tensor) -> Tensor:
    """Vectors (n, 3) in the frames of the geoms in that of the world."""
    return (shape.mat @ vector[..., None])[..., 0]


def is_at(index: Tensor, count: int) -> Tensor:
    """Which of `count` elements each `index (...)` means, bool (..., count)."""
    return torch.arange(count, device=index.device) == index[..., None]


def support(shape: Core, direction: Tensor) -> Tensor:
    """The points (n, 3) [m] of the cores that are furthest along `direction (n, 3)`, a unit vector of the world."""
    return to_world(shape, local_support(shape, to_local(shape, direction))) + shape.pos


def local_support(shape: Core, direction: Tensor) -> Tensor:
    """`support` in the frame of the geom."""
    found = []
    if shape.has(BOXED):
        found.append(torch.where(direction >= 0, shape.half, -shape.half))
    if shape.has(CURVED):
        # A disc alone needs no scaling, which would cost a digit.
        is_scaled = shape.has((Shape.ELLIPSOID,))
        scaled = shape.round * direction if is_scaled else torch.where(shape.round > 0, direction, 0.0)
        length = norm(scaled, keepdim=True)
        # Along the axis of a disc: its middle.
        none = length < MIN_VALUE
        found.append(shape.round * torch.where(none, 0.0, scaled / torch.where(none, 1.0, length)))
    if shape.has(HULLS) and (shape.only(HULLS) or shape.vert.shape[1] <= FEW_VERTICES):
        found.append(hull_support(shape, direction))
    elif shape.has(HULLS):
        none = torch.zeros_like(direction)
        found.append(if_any(shape.among(HULLS), lambda: hull_support(shape, direction), none))
    return sum(found[1:], found[0]) if found else torch.zeros_like(direction)


def hull_support(shape: Core, direction: Tensor) -> Tensor:
    """`local_support` of hulls."""
    furthest = (shape.vert @ direction[..., None]).argmax(1, keepdim=True)
    return shape.vert.gather(1, furthest.expand(-1, 1, 3))[:, 0]
