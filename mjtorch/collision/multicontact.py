"""Several contacts of shapes that touch along faces or edges (mjc_multicontact).

The nearest points lie on a feature of each shape: a vertex, an edge or a face. Faces next to these features that are
opposite to each other within a few degrees, or an edge that lies in a face likewise, touch in more than a point. Of the
one polygon, or edge, what is above the other polygon is cut out; its corners become contacts, four at most. Which, in
which order, and which twice is said in `clipping`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.clipping import CONTACTS, FEW, outline, over
from mjtorch.collision.cutting import Outline
from mjtorch.collision.rounding import blur
from mjtorch.collision.support import MESH, Core, to_local, to_world, where_rows
from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.math.shape import Shape
from mjtorch.math.vector import norm
from mjtorch.model.plan.mesh import Hulls

# mjFACE_TOL, mjEDGE_TOL: cosines of the angles between opposite normals, and between an edge and a normal.
OPPOSITE = -0.996
WITHIN = 0.0888
# Types by what is around their nearest points.
ROUND, BOX, HULL = (Shape.CAPSULE, Shape.CYLINDER), (Shape.BOX,), (MESH,)
# Corners of the polygon that stands for the end of a cylinder.
END = 16
# Vertices of a box by the signs of x, y, z (bits 0, 1, 2); its faces +x, -x, +y, -y, +z, -z, counterclockwise.
BOX_FACES = ((5, 1, 3, 7), (0, 4, 6, 2), (6, 7, 3, 2), (0, 1, 5, 4), (4, 5, 7, 6), (1, 0, 2, 3))
# Cosine, with the axis or across it, above which a normal of a cylinder is not on its side, or not on its end.
RIM = 1e-2
# Sine of the angle to the axis below which a normal of a capsule is on its end.
ON_END = 0.9


class Polygons(NamedTuple):
    """The faces of n shapes, by their numbers, as `features` has them; of other shapes these may be out of range.

    most: static, the most corners that one has; number: how many faces (n,) have
    corners: of faces, no more than so many (n, k, 3) [m], in the world, counterclockwise; the last one repeated
    """

    most: int
    number: Callable[[Tensor], Tensor]
    corners: Callable[[Tensor, int], Tensor]


class Features(NamedTuple):
    """Faces and edges of n shapes around the nearest points, in the world.

    face: (n, d) the numbers of faces, as `polygon` takes them, normal: (n, d, 3) outward, has_face: (n, d) bool
    start, end: (n, e, 3) [m] edges, has_edge: (n, e) bool
    size: (n,) 1 at a vertex or at an end of the line of a cylinder, 2 on an edge, 3 on a face, 4 on a round end
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


def features(shape: Core, normal: Tensor, corner: Tensor, vertex: Tensor, hulls: Hulls | None) -> Features:
    """What is around the corners (n, 3, 3) [m] that the nearest point of a core was found from.

    normal: (n, 3) outward; vertex: (n, 3) numbers of the corners that are vertices of `hulls`
    """
    found: list[tuple[tuple[int, ...], Features]] = []
    if shape.has(ROUND):
        found.append((ROUND, _round(shape, normal, corner)))
    if shape.has(BOX):
        found.append((BOX, _box(shape, corner)))
    if shape.has(HULL):
        assert hulls is not None, "meshes need hulls"
        found.append((HULL, _mesh(shape, vertex, hulls)))
    faces = max(f.face.shape[1] for _, f in found)
    edges = max(f.start.shape[1] for _, f in found)
    chosen, *others = (_filled(f, faces, edges) for _, f in found)
    for (types, _), other in zip(found[1:], others, strict=True):
        chosen = where_rows(shape.among(types), other, chosen)
    return chosen


def polygons(shape: Core, hulls: Hulls | None) -> Polygons:
    """The faces of cores."""
    sizes = {ROUND: END, BOX: len(BOX_FACES[0]), HULL: hulls.corners if hulls is not None else 0}

    def number(face: Tensor) -> Tensor:
        found = torch.zeros_like(face)
        for types in (types for types in sizes if shape.has(types)):
            own = polygon_corners(hulls, face, 1)[1] if types == HULL and hulls is not None else sizes[types]
            found = torch.where(shape.among(types), own, found)
        return found

    def corners(face: Tensor, most: int) -> Tensor:
        found: list[tuple[tuple[int, ...], Tensor]] = []
        if shape.has(ROUND):
            found.append((ROUND, _end(shape, face)[:, :most]))
        if shape.has(BOX):
            found.append((BOX, _box_face(shape, face)))
        if shape.has(HULL):
            assert hulls is not None, "meshes need hulls"
            found.append((HULL, polygon_corners(hulls, face, most)[0]))
        room = max(x.shape[1] for _, x in found)
        chosen, *others = (torch.cat([x, x[:, -1:].expand(-1, room - x.shape[1], 3)], dim=1) for _, x in found)
        for (types, _), other in zip(found[1:], others, strict=True):
            chosen = where_rows(shape.among(types), other, chosen)
        return chosen @ shape.mat.mT + shape.pos[:, None]

    return Polygons(max(size for types, size in sizes.items() if shape.has(types)), number, corners)


def polygon_corners(hulls: Hulls, face: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The corners (n, k, 3) [m] of polygons `face (n,)` of hulls, the last one repeated, and how many they are (n,).

    most: there is room for no more of them
    """
    first, count = hulls.corner[face.clamp(max=len(hulls.corner) - 1)].unbind(-1)
    place = torch.minimum(torch.arange(min(hulls.corners, most), device=face.device), count[:, None] - 1)
    return hulls.vert[hulls.outline[first[:, None] + place]], count


def _filled(f: Features, faces: int, edges: int) -> Features:
    """The same with room for so many faces and edges."""
    spare, more = faces - f.face.shape[1], edges - f.start.shape[1]
    pad = torch.nn.functional.pad
    return Features(
        face=pad(f.face, (0, spare)),
        normal=pad(f.normal, (0, 0, 0, spare)),
        has_face=pad(f.has_face, (0, spare)),
        start=pad(f.start, (0, 0, 0, more)),
        end=pad(f.end, (0, 0, 0, more)),
        has_edge=pad(f.has_edge, (0, more)),
        size=f.size,
    )


def _round(shape: Core, normal: Tensor, corner: Tensor) -> Features:
    """A capsule or cylinder: the line along its side that is furthest out, and the end that is.

    Of a cylinder the nearest point lies on that line if corners are at both of its ends, or if it is level, whatever
    corners are then left of a search; else it is one of the ends.
    """
    local = to_local(shape, normal.detach())
    is_cylinder = shape.among((Shape.CYLINDER,))[:, None]
    along = _in_frame(shape, corner)[..., 2]
    level = local[:, 2].abs() <= blur(local.dtype)
    on_line = ~is_cylinder[:, 0] | level | ((along > 0).any(1) & (along < 0).any(1))
    length = shape.half[:, 2:]
    radius = torch.where(is_cylinder, shape.round[:, :1], shape.radius[:, None])
    out = norm(local[:, :2], keepdim=True).clamp(min=1e-12)
    # As in C, the line of a capsule is nearer to its axis where its end is what touches.
    side = torch.nn.functional.pad(radius * local[:, :2] / torch.where(is_cylinder, out, 1.0), (0, 1))
    half = torch.nn.functional.pad(length, (2, 0))
    start, end = (to_world(shape, side + sign * half) + shape.pos for sign in (-1, 1))
    is_up, axis = local[:, 2:] >= 0, shape.mat[:, :, 2]
    on_end, on_side = local[:, 2:].abs() > RIM, torch.where(is_cylinder, out > RIM, out > ON_END)
    return Features(
        face=is_up.long(),
        normal=torch.where(is_up, axis, -axis)[:, None],
        has_face=is_cylinder & on_end,
        start=start[:, None],
        end=end[:, None],
        has_edge=on_side,
        size=torch.where(on_side[:, 0], torch.where(on_line, 2, 1), 4),
    )


def _in_frame(shape: Core, corner: Tensor) -> Tensor:
    """Where corners (n, k, 3) [m] lie in the frames of the shapes; which ones these are has no derivative."""
    return (corner - shape.pos[:, None]).detach() @ shape.mat.detach()


def _end(shape: Core, face: Tensor) -> Tensor:
    """The polygons that stand for the lower ends, 0, and the upper ends, 1, of cylinders, in their frames."""
    up = (2 * face[:, None] - 1).to(shape.half.dtype)
    # The last corner is on the x axis. Counterclockwise from outside: the other way round at the lower end.
    angle = torch.arange(1, END + 1, device=face.device, dtype=shape.half.dtype) * (2 * math.pi / END)
    ring = torch.stack([angle.cos().expand(len(face), END), up * angle.sin()], dim=-1) * shape.round[:, None, :1]
    return torch.cat([ring, (up * shape.half[:, 2:])[:, None].expand(-1, END, 1)], dim=-1)


def _box(shape: Core, corner: Tensor) -> Features:
    """A box: the faces and edges at the corners of the nearest feature."""
    local = _in_frame(shape, corner)
    # The middle of an edge, or of a face, stands for its ends: it is at neither end of one axis, or of two.
    middle, number = local.abs() < 0.5 * shape.half[:, None], torch.arange(3, device=corner.device)
    up = torch.where(middle, middle.cumsum(-1) != number[:, None], local >= 0)
    vertex = (up * torch.tensor([1, 2, 4], device=corner.device)).sum(-1)
    faces = [[k for k, face in enumerate(BOX_FACES) if v in face] for v in range(8)]
    around = torch.tensor(faces, device=corner.device)[vertex]
    axes = torch.eye(3, dtype=corner.dtype, device=corner.device)
    normal = torch.stack([axes, -axes], dim=1).flatten(0, 1)
    ends = vertex[:, :1] ^ torch.tensor([1, 2, 4], device=corner.device)
    signs = _signs(corner)
    return _polytope(shape, vertex, around, ends, normal, lambda v: signs[v] * shape.half[:, None])


def _box_face(shape: Core, face: Tensor) -> Tensor:
    """The corners (n, 4, 3) [m] of faces of boxes, in their frames."""
    corner = torch.tensor(BOX_FACES, device=face.device)[face.clamp(max=len(BOX_FACES) - 1)]
    return _signs(shape.half)[corner] * shape.half[:, None]


def _signs(like: Tensor) -> Tensor:
    """Those of the vertices (8, 3) of a box."""
    signs = [[(v >> k) % 2 * 2 - 1 for k in range(3)] for v in range(8)]
    return torch.tensor(signs, device=like.device, dtype=like.dtype)


def _mesh(shape: Core, vertex: Tensor, hulls: Hulls) -> Features:
    """The hull of a mesh: the faces and edges at the corners of the nearest feature."""
    around, entry = polygons_around(hulls, vertex)
    ends = torch.where(around[:, 0] >= 0, hulls.before[entry[:, 0]], -1)
    return _polytope(shape, vertex, around, ends, hulls.normal, lambda v: hulls.vert[v])


def polygons_around(hulls: Hulls, vertex: Tensor) -> tuple[Tensor, Tensor]:
    """The polygons (..., d) around vertices (...), -1 where there are fewer, and their entries in the list."""
    first, count = hulls.around[vertex].unbind(-1)
    place = torch.arange(hulls.degree, device=vertex.device)
    entry = (first[..., None] + place).clamp(max=len(hulls.polygon) - 1)
    return torch.where(place < count[..., None], hulls.polygon[entry], -1), entry


def _polytope(
    shape: Core, vertex: Tensor, around: Tensor, ends: Tensor, normals: Tensor, at: Callable[[Tensor], Tensor]
) -> Features:
    """Faces that have all corners of the feature, and edges between these corners, or all edges of one corner.

    vertex: (n, 3) corners, around: (n, 3, d) the faces at each, -1 where there are fewer; ends: (n, e) where the edges
    of the first corner end, -1 where there are fewer; normals: (p, 3) of all faces; at: local positions of vertices
    """
    one, two, three = vertex.unbind(-1)

    def found(j: Tensor, has: Tensor) -> Tensor:
        return has | (around[:, :1] == around[:, 1:].index_select(2, j[None]))

    most = (around >= 0).any(1).any(0).sum()
    has = fori_loop(0, most, found, torch.zeros_like(around[:, 1:], dtype=torch.bool))
    # Put two that differ in front.
    two, three = torch.where(two == one, three, two), torch.where(two == one, two, three)
    is_vertex = two == one
    is_face = ~is_vertex & (three != one) & (three != two)
    face = around[:, 0].clamp(min=0)
    other = torch.where(is_vertex[:, None], ends, two[:, None])
    only = torch.arange(other.shape[1], device=other.device) == 0
    start, end = (at(v) @ shape.mat.mT + shape.pos[:, None] for v in (one[:, None], other.clamp(min=0)))
    return Features(
        face=face,
        normal=normals[face] @ shape.mat.mT,
        has_face=(around[:, 0] >= 0) & has.all(1),
        start=start.expand_as(end),
        end=end,
        has_edge=torch.where(is_vertex[:, None], other >= 0, only & ~is_face[:, None]),
        size=1 + (~is_vertex).long() + is_face.long(),
    )


class Meeting(NamedTuple):
    """Which features of n shapes meet: a face and a face, or by an edge of either, an edge and a face.

    facing, by_edge1, by_edge2: (n,) bool
    face1, face2: (n,) numbers of faces, normal1, normal2: (n, 3) of these, outward
    edge1, edge2: (n, 2, 3) [m] ends
    """

    facing: Tensor
    by_edge1: Tensor
    by_edge2: Tensor
    face1: Tensor
    face2: Tensor
    normal1: Tensor
    normal2: Tensor
    edge1: Tensor
    edge2: Tensor


class Large(NamedTuple):
    """What of n pairs of shapes meets; there: (n,) bool, which by a face that has more than `FEW` corners."""

    there: Tensor
    met: Meeting


def multicontact(
    one: Features, two: Features, faces1: Polygons, faces2: Polygons, margin: Tensor
) -> tuple[Patch, tuple[Large, ...]]:
    """The contacts of opposite faces, or of an edge in a face, no further apart than `margin (n,)` [m].

    And, if there are faces with many corners, what `with_room` needs to find those of such faces.
    """
    met = meeting(one, two)
    if not has_large(faces1, faces2):
        return with_room(met, faces1, faces2, margin), ()
    large1, large2 = faces1.number(met.face1) > FEW, faces2.number(met.face2) > FEW
    large = (large1 & (met.facing | met.by_edge2)) | (large2 & (met.facing | met.by_edge1))
    few = met._replace(facing=met.facing & ~large, by_edge1=met.by_edge1 & ~large, by_edge2=met.by_edge2 & ~large)
    return contacts(few, faces1, faces2, margin, FEW), (Large(large, met),)


def has_large(faces1: Polygons, faces2: Polygons) -> bool:
    """Whether there are faces that have many corners, static."""
    return max(faces1.most, faces2.most) > 2 * FEW


def no_large(like: Tensor) -> Large:
    """What stands for pairs of which no face has many corners; like: (n,)."""
    n = len(like)
    no, face = torch.zeros((2, n), dtype=torch.bool, device=like.device), torch.zeros_like(like, dtype=torch.long)
    normal, edge = like.new_zeros(n, 3), like.new_zeros(n, 2, 3)
    return Large(no[0], Meeting(no[1], no[1], no[1], face, face, normal, normal, edge, edge))


def with_room(met: Meeting, faces1: Polygons, faces2: Polygons, margin: Tensor) -> Patch:
    """The contacts of features that meet, however many corners these have; margin: (n,) [m] as in `multicontact`."""
    return contacts(met, faces1, faces2, margin, max(faces1.most, faces2.most))


def meeting(one: Features, two: Features) -> Meeting:
    """Which features of two shapes meet."""
    limit = one.normal.new_full(one.size.shape, OPPOSITE)
    facing, face1, face2 = _best(one.has_face, lambda i: _opposite(_of_face(one.normal, i), two), limit)
    # As in C, of a vertex that is above the end of a cylinder no edge is looked for.
    edge1_first, edge2_first = (
        ~facing & (edges.size < 3) & ((edges.size > 1) | (faces.size < 4)) for edges, faces in ((one, two), (two, one))
    )
    lies1, under1, edge1 = _first_lying(one, two, edge1_first)
    lies2, under2, edge2 = _first_lying(two, one, edge2_first)
    by_edge1 = edge1_first & lies1
    by_edge2 = ~by_edge1 & edge2_first & lies2

    face1, normal1 = _face(one, torch.where(by_edge2, under2, face1))
    face2, normal2 = _face(two, torch.where(by_edge1, under1, face2))
    ends1, ends2 = _edge(one, edge1), _edge(two, edge2)
    return Meeting(facing, by_edge1, by_edge2, face1, face2, normal1, normal2, ends1, ends2)


def contacts(met: Meeting, faces1: Polygons, faces2: Polygons, margin: Tensor, most: int) -> Patch:
    """The contacts of features that meet, right where these have no more than so many corners."""
    facing, by_edge1, by_edge2, face1, face2, normal1, normal2, *edges = met
    outlines = outline(faces1.corners(face1, most)), outline(faces2.corners(face2, most))
    count = max(x.corner.shape[1] for x in outlines)
    segments = (Outline(x, torch.full_like(face1, 2)) for x in edges)
    polygon1, polygon2, segment1, segment2 = (_padded(x, count) for x in (*outlines, *segments))
    # An edge of 1 on a face of 2, an edge of 2 on a face of 1, or a face of 2 on one of 1.
    is_edge, is_1, is_2 = by_edge1 | by_edge2, by_edge1[:, None], by_edge2[:, None]
    ground, up = _either(by_edge1, polygon2, polygon1), torch.where(is_1, normal2, normal1)
    subject = _either(by_edge1, segment1, _either(by_edge2, segment2, polygon2))
    # Of those that do not touch like this nothing is left, and nothing is looked for.
    touch = facing | is_edge
    ground, subject = (x._replace(number=torch.where(touch, x.number, 0)) for x in (ground, subject))

    corner, exists = over(ground, up, subject, normal2, margin)
    height = ((corner - ground.corner[:, :1]) * up[:, None]).sum(-1, keepdim=True)
    foot = corner - height * up[:, None]
    # From the face of 1, the distance is along the normal of the face of 2.
    above = ((foot - corner) * normal2[:, None]).sum(-1, keepdim=True)
    dist = torch.where(is_edge[:, None, None], height, above)
    pos = foot + 0.5 * dist * torch.where(is_edge[:, None], up, -normal2)[:, None]
    return Patch(dist[..., 0], pos, torch.where(is_2, up, -normal2), exists)


def _best(rows: Tensor, measure: Callable[[Tensor], Tensor], limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether a measure is below the limit anywhere in the rows (n, d) that count, and where it is least, all (n,).

    measure: that of the rows (n,), (n, e); limit: (n,); of equal ones the first row and column count
    """
    nowhere = torch.zeros_like(rows[:, 0], dtype=torch.long)
    place, slack = torch.arange(rows.shape[1], device=rows.device), blur(limit.dtype)

    def look(i: Tensor, seen: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        least, row = seen
        here = measure(i.expand(len(rows))).amin(1)
        better = rows.index_select(1, i[None])[:, 0] & (here < least - slack)
        return torch.where(better, here, least), torch.where(better, i, row)

    least, row = fori_loop(0, (rows.any(0) * (place + 1)).amax(), look, (limit, nowhere))
    found, here = least < limit, measure(row)
    place = torch.arange(here.shape[1], device=rows.device)
    column = torch.where(here <= here.amin(1, keepdim=True) + slack, place, here.shape[1]).amin(1)
    return found, row, column * found


def _opposite(normal: Tensor, other: Features) -> Tensor:
    """Cosines (n, d) of the angles between the normal (n, 3) of a face and those of other ones; 1: there is none."""
    return torch.where(other.has_face, (normal[:, None] * other.normal.detach()).sum(-1), 1.0)


def _first_lying(edges: Features, faces: Features, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether, where that is `wanted (n,)`, an edge lies within a face, and the first such face and edge, all (n,)."""
    edge = (edges.end - edges.start).detach()
    unit = edge / norm(edge, keepdim=True).clamp(min=1e-12)

    def lies(i: Tensor) -> Tensor:
        cosine = (unit * _of_face(faces.normal, i)[:, None]).sum(-1).abs()
        return -((cosine < WITHIN) & edges.has_edge).to(cosine.dtype)

    return _best(faces.has_face & wanted[:, None], lies, unit.new_zeros(unit.shape[:1]))


def _of_face(normal: Tensor, index: Tensor) -> Tensor:
    """The normals (n, 3) of faces, of all of them (n, d, 3)."""
    return normal.detach().gather(1, index[:, None, None].expand(-1, 1, 3))[:, 0]


def _face(f: Features, index: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers (n,) and normals (n, 3) of faces."""
    face = f.face.gather(1, index[:, None])[:, 0]
    return face, f.normal.gather(1, index[:, None, None].expand(-1, 1, 3))[:, 0]


def _edge(f: Features, index: Tensor) -> Tensor:
    """The ends (n, 2, 3) [m] of edges."""
    pick = index[:, None, None].expand(-1, 1, 3)
    return torch.cat([f.start.gather(1, pick), f.end.gather(1, pick)], dim=1)


def _either(mask: Tensor, one: Outline, other: Outline) -> Outline:
    """`one` where the mask (n,) is true."""
    return Outline(
        torch.where(mask[:, None, None], one.corner, other.corner), torch.where(mask, one.number, other.number)
    )


def _padded(outline: Outline, count: int) -> Outline:
    """With room for `count` corners."""
    return Outline(torch.nn.functional.pad(outline.corner, (0, 0, 0, count - outline.corner.shape[1])), outline.number)


def may_touch_along_faces(shape1: Core, shape2: Core, hulls: Hulls | None) -> bool:
    """Whether several contacts are looked for; static."""
    flat = (*ROUND, *BOX, *HULL)
    without_faces = hulls is not None and not hulls.corners and (shape1.has(HULL) or shape2.has(HULL))
    return shape1.only(flat) and shape2.only(flat) and not without_faces
