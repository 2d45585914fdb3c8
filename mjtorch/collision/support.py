"""Support points of convex shapes: how far each reaches in a direction (mjc_support).

Every shape is the sum of its `parts`, a box, an ellipsoid and a ball, and of the hull of a mesh: its furthest point is
the sum of theirs. So shapes of different types are one batch and go through one loop. The ball is left out of the
*core*; what is found for cores holds for the shapes once the radii are taken off the distance.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math.shape import TYPES, Shape, parts
from mjtorch.math.vector import MIN_VALUE, norm
from mjtorch.model.plan.mesh import ROW, Hulls

# mjGEOM_HFIELD, which is what the prisms of a height field are called, and elements of flexes; mjGEOM_MESH.
PRISM, MESH = 1, 7
HULLS = (PRISM, MESH)
# Types with a box in them, types with an ellipsoid, and those without a corner.
BOXED, CURVED, SMOOTH = (
    (Shape.CAPSULE, Shape.CYLINDER, Shape.BOX),
    (Shape.ELLIPSOID, Shape.CYLINDER),
    (Shape.SPHERE, Shape.ELLIPSOID),
)


@tree.dataclass
class Convex(tree.Tree):
    """n convex geoms of one type.

    pos: (n, 3) [m], mat: (n, 3, 3), size: (n, 3) [m] as in MuJoCo
    hull: (n,) which of a table of hulls each is, -1 if it is no mesh
    type: mjtGeom; sphere, capsule, ellipsoid, cylinder, box or mesh
    """

    pos: Tensor
    mat: Tensor
    size: Tensor
    hull: Tensor
    type: int = tree.field(static=True)


@tree.dataclass
class Core(tree.Tree):
    """n convex geoms of any types as sums of parts.

    pos: (n, 3) [m], mat: (n, 3, 3); half, round: (n, 3) [m] half lengths of the box and of the ellipsoid, in these axes
    radius: (n,) [m] of the ball, extent: (n,) [m] the size of the geom; type: (n,) mjtGeom
    hull: (n,) as in `Convex`; prism: (n, k, 3) [m] vertices of prisms, six, and of
        elements of flexes, which may move, in these axes; (n, 0, 3) for others
    types: static, the types that there are
    """

    pos: Tensor
    mat: Tensor
    half: Tensor
    round: Tensor
    radius: Tensor
    extent: Tensor
    type: Tensor
    hull: Tensor
    prism: Tensor
    types: tuple[int, ...] = tree.field(static=True)

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
    return Convex(pos, mat, size, torch.full_like(pos[:, 0], -1, dtype=torch.long), type)


def core(shape: Convex) -> Core:
    """Shapes of one type as sums of parts."""
    type = torch.full(shape.pos.shape[:1], int(shape.type), device=shape.pos.device)
    return assembled((int(shape.type),), type, shape.pos, shape.mat, shape.size).replace(hull=shape.hull)


def assembled(types: tuple[int, ...], type: Tensor, pos: Tensor, mat: Tensor, size: Tensor) -> Core:
    """Shapes of several types as sums of parts, those that are meshes still without hulls."""
    half, round, radius = parts(types[0] if len(types) == 1 else type, size)
    none = pos.new_zeros((pos.shape[0], 0, 3))
    return Core(pos, mat, half, round, radius, norm(size), type, torch.full_like(type, -1), none, types)


def hull_core(vert: Tensor, radius: Tensor) -> Core:
    """The hulls of n times k points `vert (n, k, 3)` [m], and balls of `radius (n,)` [m] around all that is in them."""
    center = vert.mean(1).detach()
    vert = vert - center[:, None]
    none, number = torch.zeros_like(center), torch.zeros_like(center[:, 0], dtype=torch.long)
    return Core(
        pos=center,
        mat=torch.eye(3, dtype=vert.dtype, device=vert.device).expand(len(vert), 3, 3),
        half=none,
        round=none,
        radius=radius,
        extent=norm(vert.abs().amax(1).detach()),
        type=number + PRISM,
        hull=number - 1,
        prism=vert,
        types=(PRISM,),
    )


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


def where_rows(mask: Tensor, one: Any, other: Any) -> Any:
    """`one` where `mask (n,)` is true, else `other`: tensors (n, ...), or trees of them."""
    return tree.map(lambda x, y: torch.where(mask.view(-1, *(1,) * (x.dim() - 1)), x, y), one, other)


def support(shape: Core, direction: Tensor, hulls: Hulls | None) -> Tensor:
    """The points (n, 3) [m] of the cores that are furthest along `direction (n, 3)`, a unit vector of the world."""
    return numbered_support(shape, direction, hulls)[:, :3]


def numbered_support(shape: Core, direction: Tensor, hulls: Hulls | None, level: float | None = None) -> Tensor:
    """`support`, and if there are `hulls`, in a fourth column the number of the vertex; level: static, of boxes."""
    local = to_local(shape, direction)
    point, vertex = primitive_support(shape, local, level), None
    if shape.has((PRISM,)):
        furthest = (shape.prism @ local[..., None]).argmax(1, keepdim=True)
        point = point + shape.prism.gather(1, furthest.expand(-1, 1, 3))[:, 0]
    if shape.has((MESH,)):
        assert hulls is not None, "meshes need hulls"
        vertex = hull_support(hulls, shape.hull, local)
        point = point + hulls.vert[vertex]
    world = to_world(shape, point) + shape.pos
    if hulls is None:
        return world
    number = torch.zeros_like(world[:, :1]) if vertex is None else vertex[:, None].to(world.dtype)
    return torch.cat([world, number], dim=-1)


def primitive_support(shape: Core, direction: Tensor, level: float | None = None) -> Tensor:
    """`support` of the box and the ellipsoid in the frame of the geom.

    level: static, how far apart [m] along the direction the ends of an edge, or of a face, may be for its middle to be
        meant, not a corner; None: that is never
    """
    found = []
    if shape.has(BOXED):
        ends = torch.where(direction >= 0, shape.half, -shape.half)
        if level is not None:
            ends = torch.where(2 * direction.abs() * shape.half <= level, 0.0, ends)
        found.append(ends)
    if shape.has(CURVED):
        # A disc alone needs no scaling, which would cost a digit.
        is_scaled = shape.has((Shape.ELLIPSOID,))
        scaled = shape.round * direction if is_scaled else torch.where(shape.round > 0, direction, 0.0)
        length = norm(scaled, keepdim=True)
        # Along the axis of a disc: its middle.
        none = length < MIN_VALUE
        found.append(shape.round * torch.where(none, 0.0, scaled / torch.where(none, 1.0, length)))
    return sum(found[1:], found[0]) if found else torch.zeros_like(direction)


class Furthest(NamedTuple):
    """How far the search on n hulls has come: (n,) each.

    row: of the vertices that are looked at next, -1: all are
    entry: the one that is furthest of those before, in the list of all rows; height: [m] how far out it is
    """

    row: Tensor
    entry: Tensor
    height: Tensor


def hull_support(hulls: Hulls, hull: Tensor, direction: Tensor) -> Tensor:
    """The vertices (n,) of some of the `hulls`, `hull (n,)`, that are furthest along `direction (n, 3)`.

    Of the cell of directions that it is in, it is known which few may be.
    """
    side, first = hulls.cube[hull].unbind(-1)
    row = hulls.cell.index_select(0, first + cell(direction, side))

    def body(now: Furthest) -> Furthest:
        row = now.row.clamp(min=0)
        height, place = (hulls.way.index_select(0, row) @ direction[..., None])[..., 0].max(-1)
        further = (now.row >= 0) & (height > now.height)
        return Furthest(
            torch.where(now.row < 0, -1, hulls.follow.index_select(0, row)),
            torch.where(further, row * ROW + place, now.entry),
            torch.where(further, height, now.height),
        )

    start = Furthest(row, row * ROW, torch.full_like(direction[:, 0], -torch.inf))
    found = while_loop(lambda now: (now.row >= 0).any(), body, start)
    return hulls.vertex.flatten().index_select(0, found.entry)


def cell(direction: Tensor, side: Tensor) -> Tensor:
    """The cells (n,) of cubes with `side (n,)` cells along their edges that directions (n, 3) point at."""
    x, y, z = direction.unbind(-1)
    size_x, size_y, size_z = direction.abs().unbind(-1)
    is_x, is_y = (size_x >= size_y) & (size_x >= size_z), size_y >= size_z

    def chosen(of_x: Tensor, of_y: Tensor, of_z: Tensor) -> Tensor:
        return torch.where(is_x, of_x, torch.where(is_y, of_y, of_z))

    along, half = chosen(x, y, z), 0.5 * side.to(direction.dtype)
    # Of what is no direction, too, a compiler knows that the numbers are small.
    across = (torch.stack([chosen(y, z, x), chosen(z, x, y)]) / along.abs()).clamp(-1, 1)
    row, col = torch.minimum(((across + 1) * half).long().clamp(min=0), side - 1)
    face = torch.where(is_x, 0, torch.where(is_y, 2, 4)) + (along < 0)
    return (face * side + row) * side + col
