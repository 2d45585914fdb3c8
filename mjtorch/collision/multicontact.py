"""Several contacts of shapes that touch along faces or edges (mjc_multicontact).

The nearest points lie on a feature of each shape: a vertex, an edge or a face. Faces next to these features that are
opposite to each other within a few degrees, or an edge that lies in a face likewise, touch in more than a point. Of the
one polygon, or edge, what is above the other polygon is cut out; its corners become contacts, four at most. Which, in
which order, and which twice is said in `clipping`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.clipping import CONTACTS, Outline, first, outline, over
from mjtorch.collision.support import MESH, Core, to_local, to_world
from mjtorch.math.shape import Shape
from mjtorch.math.vector import norm

# mjFACE_TOL, mjEDGE_TOL: cosines of the angles between opposite normals, and between an edge and a normal.
OPPOSITE = -0.996
WITHIN = 0.0888
# Corners of the polygon that stands for the end of a cylinder.
END = 16
# Vertices of a box by the signs of x, y, z (bits 0, 1, 2); its faces +x, -x, +y, -y, +z, -z, counterclockwise.
BOX_FACES = ((5, 1, 3, 7), (0, 4, 6, 2), (6, 7, 3, 2), (0, 1, 5, 4), (4, 5, 7, 6), (1, 0, 2, 3))
# Cosine, with the axis or across it, above which a normal of a cylinder is not on its side, or not on its end.
RIM = 1e-2
# Sine of the angle to the axis below which a normal of a capsule is on its end.
ON_END = 0.9


class Features(NamedTuple):
    """Faces and edges of n shapes around the nearest points, in the world.

    face: (n, d, k, 3) [m] polygons, normal: (n, d, 3) outward, has_face: (n, d) bool
    start, end: (n, e, 3) [m] edges, has_edge: (n, e) bool; size: (n,) 1 at a vertex, 2 on an edge, 3 on a face
    """

    face: Tensor
    normal: Tensor
    has_face: Tensor
    start: Tensor
    end: Tensor
    has_edge: Tensor
    size: Tensor


class Patch(NamedTuple):
    """Points where n pairs of shapes touch.

    dist: (n, 4) [m], pos: (n, 4, 3) [m], normal: (n, 3) from 1 to 2, exists: (n, 4) bool, none where there is no patch
    """

    dist: Tensor
    pos: Tensor
    normal: Tensor
    exists: Tensor


def no_patch(like: Tensor) -> Patch:
    """What stands for the points of pairs that touch in one point; like: (n,)."""
    n = len(like)
    none = torch.zeros((n, CONTACTS), dtype=torch.bool, device=like.device)
    return Patch(like.new_zeros((n, CONTACTS)), like.new_zeros((n, CONTACTS, 3)), like.new_zeros((n, 3)), none)


def features(shape: Core, normal: Tensor, corner: Tensor) -> Features:
    """What is around the corners (n, 3, 3) [m] that the nearest point of a core was found from.

    normal: (n, 3) outward
    """
    kinds = [(types, around) for types, around in _FEATURES if shape.has(types)]
    found = [around(shape, normal, corner) for _, around in kinds]
    if len(found) == 1:
        return found[0]
    most = [max(x) for x in zip(*((*f.face.shape[1:3], f.start.shape[1]) for f in found), strict=True)]
    chosen, *others = (_filled(f, *most) for f in found)
    for (types, _), other in zip(kinds[1:], others, strict=True):
        mine = shape.among(types)
        chosen = Features(
            *(torch.where(mine.view(-1, *(1,) * (x.dim() - 1)), x, y) for x, y in zip(other, chosen, strict=True))
        )
    return chosen


def _filled(f: Features, faces: int, corners: int, edges: int) -> Features:
    """The same with room for so many faces, corners of a face, and edges."""
    spare, more = faces - f.face.shape[1], edges - f.start.shape[1]
    face = torch.cat([f.face, f.face[:, :, -1:].expand(-1, -1, corners - f.face.shape[2], 3)], dim=2)
    pad = torch.nn.functional.pad
    return Features(
        face=pad(face, (0, 0, 0, 0, 0, spare)),
        normal=pad(f.normal, (0, 0, 0, spare)),
        has_face=pad(f.has_face, (0, spare)),
        start=pad(f.start, (0, 0, 0, more)),
        end=pad(f.end, (0, 0, 0, more)),
        has_edge=pad(f.has_edge, (0, more)),
        size=f.size,
    )


def _round(shape: Core, normal: Tensor, corner: Tensor) -> Features:
    """A capsule or cylinder: the line along its side that is furthest out, and the end that is."""
    local = to_local(shape, normal.detach())
    is_cylinder = shape.among((Shape.CYLINDER,))[:, None]
    n, length = normal.shape[0], shape.half[:, 2:]
    radius = torch.where(is_cylinder, shape.round[:, :1], shape.radius[:, None])
    out = norm(local[:, :2], keepdim=True).clamp(min=1e-12)
    # As in C, the line of a capsule is nearer to its axis where its end is what touches.
    side = torch.nn.functional.pad(radius * local[:, :2] / torch.where(is_cylinder, out, 1.0), (0, 1))
    half = torch.nn.functional.pad(length, (2, 0))
    start, end = (to_world(shape, side + sign * half) + shape.pos for sign in (-1, 1))
    up = torch.where(local[:, 2:] >= 0, 1.0, -1.0)
    # The last corner is on the x axis. Counterclockwise from outside: the other way round at the lower end.
    angle = torch.arange(1, END + 1, device=normal.device, dtype=normal.dtype) * (2 * math.pi / END)
    ring = torch.stack([angle.cos().expand(n, END), up * angle.sin()], dim=-1) * radius[..., None]
    point = torch.cat([ring, (up * length)[:, None].expand(n, END, 1)], dim=-1)
    on_end, on_side = local[:, 2:].abs() > RIM, out > torch.where(is_cylinder, RIM, ON_END)
    return Features(
        face=(point @ shape.mat.mT + shape.pos[:, None])[:, None],
        normal=(up * shape.mat[:, :, 2])[:, None],
        has_face=is_cylinder & on_end,
        start=start[:, None],
        end=end[:, None],
        has_edge=on_side,
        size=torch.where(on_side[:, 0], 2, 3),
    )


def _box(shape: Core, normal: Tensor, corner: Tensor) -> Features:
    """A box: the faces and edges at the corners of the nearest feature."""
    signs = torch.tensor([[(v >> k) % 2 * 2 - 1 for k in range(3)] for v in range(8)], device=normal.device)
    face = torch.tensor(BOX_FACES, device=normal.device)
    axes = torch.eye(3, dtype=normal.dtype, device=normal.device)
    normals = torch.stack([axes, -axes], dim=1).flatten(0, 1)
    n = normal.shape[0]
    return _polytope(shape, signs * shape.half[:, None], face.expand(n, 6, 4), normals.expand(n, 6, 3), corner, 3)


def _mesh(shape: Core, normal: Tensor, corner: Tensor) -> Features:
    """The hull of a mesh: the faces and edges at the corners of the nearest feature."""
    return _polytope(shape, shape.vert, shape.face, shape.normal, corner, None)


def _polytope(shape: Core, vert: Tensor, face: Tensor, normal: Tensor, corner: Tensor, degree: int | None) -> Features:
    """Faces that have all corners of the feature, and edges between these corners, or all edges of one corner.

    degree: faces at each vertex of a box; of a mesh, None
    """
    n, count = face.shape[0], face.shape[2]
    local = (corner - shape.pos[:, None]).detach() @ shape.mat.detach()
    away = (vert[:, None].detach() - local[:, :, None]).abs().sum(-1)
    one, two, three = away.argmin(-1).unbind(-1)
    # Put two that differ in front.
    two, three = torch.where(two == one, three, two), torch.where(two == one, two, three)
    is_vertex = two == one
    is_face = ~is_vertex & (three != one) & (three != two)
    size = 1 + (~is_vertex).long() + is_face.long()

    has = torch.stack([(face == v[:, None, None]).any(-1) for v in (one, two, three)])
    around = first(has.all(0), degree or shape.degree)
    chosen = face.gather(1, around.element[..., None].expand(-1, -1, count))
    world = vert @ shape.mat.mT + shape.pos[:, None]
    polygon = world.gather(1, chosen.flatten(1)[..., None].expand(-1, -1, 3)).unflatten(1, chosen.shape[1:])
    normals = normal.gather(1, around.element[..., None].expand(-1, -1, 3)) @ shape.mat.mT

    if degree:
        before = one[:, None] ^ torch.tensor([1, 2, 4], device=one.device)
    else:
        # The vertex before the corner in each polygon: the polygons of a corner have all its edges.
        before = torch.where(chosen == chosen.roll(1, -1), -1, chosen.roll(1, -1))
        before = torch.where(chosen == one[:, None, None], before, -1).amax(-1)
        before = torch.where(around.exists, before, -1)
    other = torch.where(is_vertex[:, None], before, two[:, None])
    only = torch.arange(before.shape[1], device=before.device) == 0
    edge = torch.where(is_vertex[:, None], before >= 0, only & ~is_face[:, None])
    start = world.gather(1, one[:, None, None].expand(n, other.shape[1], 3))
    end = world.gather(1, other.clamp(min=0)[..., None].expand(-1, -1, 3))
    return Features(polygon, normals, around.exists, start, end, edge, size)


# What is around the nearest point, of shapes of some types.
_FEATURES = (
    ((Shape.CAPSULE, Shape.CYLINDER), _round),
    ((Shape.BOX,), _box),
    ((MESH,), _mesh),
)


def multicontact(one: Features, two: Features, margin: Tensor) -> Patch:
    """The contacts of opposite faces, or of an edge in a face, no further apart than `margin (n,)` [m]."""
    opposite = (one.normal[:, :, None] * two.normal[:, None]).sum(-1)
    opposite = opposite.masked_fill(~(one.has_face[:, :, None] & two.has_face[:, None]), torch.inf)
    facing, face1, face2 = _first_below(opposite, OPPOSITE)
    edge1_first = one.size < 3
    lies1, under1, edge1 = _first_below(_tilt(one, two), WITHIN)
    lies2, under2, edge2 = _first_below(_tilt(two, one), WITHIN)
    by_edge1 = ~facing & edge1_first & lies1
    by_edge2 = ~facing & ~by_edge1 & (two.size < 3) & lies2

    polygon1, normal1 = _face(one, torch.where(by_edge2, under2, face1))
    polygon2, normal2 = _face(two, torch.where(by_edge1, under1, face2))
    count = max(polygon1.corner.shape[1], polygon2.corner.shape[1])
    outlines = (_padded(x, count) for x in (polygon1, polygon2, _edge(one, edge1), _edge(two, edge2)))
    polygon1, polygon2, segment1, segment2 = outlines
    # An edge of 1 on a face of 2, an edge of 2 on a face of 1, or a face of 2 on one of 1.
    is_edge, is_1, is_2 = by_edge1 | by_edge2, by_edge1[:, None], by_edge2[:, None]
    ground, up = _either(by_edge1, polygon2, polygon1), torch.where(is_1, normal2, normal1)
    subject = _either(by_edge1, segment1, _either(by_edge2, segment2, polygon2))
    # Those that do not touch like this are cut by no line.
    touch = facing | is_edge
    ground = ground._replace(number=torch.where(touch, ground.number, 0))

    corner, exists = over(ground, up, subject, normal2, margin)
    exists = exists & touch[:, None]
    height = ((corner - ground.corner[:, :1]) * up[:, None]).sum(-1, keepdim=True)
    foot = corner - height * up[:, None]
    # From the face of 1, the distance is along the normal of the face of 2.
    above = ((foot - polygon2.corner[:, :1]) * normal2[:, None]).sum(-1, keepdim=True)
    dist = torch.where(is_edge[:, None, None], height, above)
    pos = foot + 0.5 * dist * torch.where(is_edge[:, None], up, -normal2)[:, None]
    return Patch(dist[..., 0], pos, torch.where(is_2, up, -normal2), exists)


def _first_below(value: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
    """Whether any of `value (n, a, b)` is below `limit`, and where the first is, all (n,)."""
    below = value.detach().flatten(1) < limit
    order = torch.arange(below.shape[1], device=value.device)
    place = torch.where(below, order, below.shape[1]).amin(-1)
    found = place < below.shape[1]
    place = torch.where(found, place, 0)
    return found, place // value.shape[2], place % value.shape[2]


def _tilt(edges: Features, faces: Features) -> Tensor:
    """Cosines (n, d, e) of the angles between normals of the one and edges of the other, at least zero."""
    edge = edges.end - edges.start
    unit = edge / norm(edge, keepdim=True).clamp(min=1e-12)
    cosine = (unit[:, None] * faces.normal[:, :, None]).sum(-1).abs()
    return cosine.masked_fill(~(edges.has_edge[:, None] & faces.has_face[:, :, None]), torch.inf)


def _face(f: Features, index: Tensor) -> tuple[Outline, Tensor]:
    n, _, count, _ = f.face.shape
    polygon = f.face.gather(1, index[:, None, None, None].expand(n, 1, count, 3))[:, 0]
    return outline(polygon), f.normal.gather(1, index[:, None, None].expand(n, 1, 3))[:, 0]


def _edge(f: Features, index: Tensor) -> Outline:
    pick = index[:, None, None].expand(-1, 1, 3)
    ends = torch.cat([f.start.gather(1, pick), f.end.gather(1, pick)], dim=1)
    return Outline(ends, torch.full_like(index, 2))


def _either(mask: Tensor, one: Outline, other: Outline) -> Outline:
    """`one` where the mask (n,) is true."""
    return Outline(
        torch.where(mask[:, None, None], one.corner, other.corner), torch.where(mask, one.number, other.number)
    )


def _padded(outline: Outline, count: int) -> Outline:
    """With room for `count` corners."""
    return Outline(torch.nn.functional.pad(outline.corner, (0, 0, 0, count - outline.corner.shape[1])), outline.number)


def may_touch_along_faces(shape1: Core, shape2: Core) -> bool:
    """Whether several contacts are looked for; static."""
    flat = (Shape.CAPSULE, Shape.CYLINDER, Shape.BOX, MESH)
    without_faces = any(shape.has((MESH,)) and not shape.face.shape[1] for shape in (shape1, shape2))
    return shape1.only(flat) and shape2.only(flat) and not without_faces
