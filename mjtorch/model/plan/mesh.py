"""Convex hulls of meshes, as tables that all geoms share."""

from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.measured import measured_meshes
from mjtorch.model.plan.tensors import Tensors

# Vertices that are looked at together.
ROW = 4
# Cells along the edges of the cube of directions around a hull, doubled while more vertices than `MEAN` may be the
# furthest in one, on average.
LEAST, MOST, MEAN = 16, 64, 3.0
# By how much of its size a cell is taken as larger, for directions that rounding puts into another one.
WIDER = 1e-3


@tree.dataclass(kw_only=True)
class Hulls(tree.Tree):
    """The hulls of n meshes, one after the other: h vertices, p polygons. Pairs of geoms hold numbers of these.

    The last hull, one vertex at zero, is that of what is no mesh: number -1 is it.

    vert: (h, 3) [m] in the frames of the geoms
    cube: (n, 2) cells along the edges of the cube of directions around each hull, and the number of its first cell
    cell: (c,) of each cell the first row of the vertices that are furthest out in some direction there
    vertex: (r, ROW) these, the last one again where there are fewer; way: (r, ROW, 3) [m] to them from the first one of
        the cell; follow: (r,) the row of further ones; -1: no more
    around: (h, 2) of the list of polygons around each vertex the first entry, and how many there are
    polygon: (i,) the list, in order of polygons; before: (i,) the vertex that comes before this one in the polygon
    corner: (p, 2) of the list of its corners the first entry, and how many each polygon has; outline: (c,) the list,
        counterclockwise from outside; normal: (p, 3) unit, outward
    degree, corners: static, the most polygons at a vertex, and the most corners of a polygon
    mesh: static, of which mesh each is
    """

    vert: Tensor
    cube: Tensor
    cell: Tensor
    vertex: Tensor
    way: Tensor
    follow: Tensor
    around: Tensor
    polygon: Tensor
    before: Tensor
    corner: Tensor
    outline: Tensor
    normal: Tensor
    degree: int = tree.field(static=True)
    corners: int = tree.field(static=True)
    mesh: tuple[int, ...] = tree.field(static=True)


class Hull(NamedTuple):
    """One hull: vert (v, 3) [m], the corners of its polygons in a row, how many each has (p,), their normals (p, 3)."""

    vert: np.ndarray
    outline: np.ndarray
    size: np.ndarray
    normal: np.ndarray


NO_POLYGONS = np.zeros(0, dtype=int), np.zeros(0, dtype=int), np.zeros((0, 3))
NOTHING = Hull(np.zeros((1, 3)), *NO_POLYGONS)


def build(mj_model: mujoco.MjModel, make: Tensors) -> tuple[Hulls, ...]:
    """The hulls of all meshes that have one, or that sensors measure from; none if there are none."""
    has_hull = np.flatnonzero(mj_model.mesh_graphadr >= 0).tolist()
    meshes = sorted({*has_hull, *measured_meshes(mj_model)})
    return (tables([_hull(mj_model, mesh) for mesh in meshes], make, tuple(meshes)),) if meshes else ()


def tables(parts: Sequence[Hull], make: Tensors, mesh: tuple[int, ...]) -> Hulls:
    """The hulls, and that of what is no mesh, as tables."""
    parts = [*parts, NOTHING]
    first = np.cumsum([0, *(len(part.vert) for part in parts)])
    vert = np.concatenate([part.vert for part in parts])
    cubes = [furthest(part.vert) for part in parts]
    begin = np.cumsum([0, *(6 * side * side for _, _, side in cubes)])
    cell, vertex, follow, origin = _rows(
        np.concatenate([cell + at for (cell, _, _), at in zip(cubes, begin, strict=False)]),
        np.concatenate([vertex + at for (_, vertex, _), at in zip(cubes, first, strict=False)]),
    )
    outline = np.concatenate([part.outline + at for part, at in zip(parts, first, strict=False)])
    size = np.concatenate([part.size for part in parts])
    start = _starts(size)
    before = np.roll(outline, 1)
    before[start] = outline[start + size - 1]
    by_vertex, degree = outline.argsort(kind="stable"), np.bincount(outline, minlength=len(vert))
    return Hulls(
        vert=make.floats(vert),
        cube=make.ints(np.stack([[side for _, _, side in cubes], begin[:-1]], axis=-1)),
        cell=make.ints(cell),
        vertex=make.ints(vertex),
        way=make.floats(vert[vertex] - vert[origin][:, None]),
        follow=make.ints(follow),
        around=make.ints(np.stack([_starts(degree), degree], axis=-1)),
        polygon=make.ints(np.repeat(np.arange(len(size)), size)[by_vertex] if len(size) else [0], -1),
        before=make.ints(before[by_vertex] if len(size) else [0], -1),
        corner=make.ints(np.stack([start, size], axis=-1) if len(size) else [[0, 1]], -1, 2),
        outline=make.ints(outline if len(size) else [0], -1),
        normal=make.floats(np.concatenate([part.normal for part in parts]) if len(size) else [[0.0, 0.0, 1.0]], -1, 3),
        degree=int(degree.max()),
        corners=int(size.max(initial=0)),
        mesh=mesh,
    )


def _starts(count: np.ndarray) -> np.ndarray:
    """Where lists of so many entries (n,) begin that lie one after the other."""
    return np.cumsum(count) - count


def furthest(vert: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Which of the points (v, 3) are furthest out in some direction of each cell of a cube around them.

    Pairs of cell and point, in the order of the cells, and how many cells there are along an edge. Cells lie face by
    face, +x, -x, +y, ..., on each row by row, as `cell` in `mjtorch/collision/support.py` counts them. Each is made of
    four of a cube with half as many along its edges: only what may be furthest in the large one is looked at.
    """
    side, count = 1, len(vert)
    pairs = _undominated(vert, np.repeat(np.arange(6), count), np.tile(np.arange(count), 6), side)
    while side < LEAST or (side < MOST and len(pairs[0]) > MEAN * 6 * side * side):
        face, place = np.divmod(pairs[0], side * side)
        row, col = 2 * np.stack(np.divmod(place, side))
        side *= 2
        quarters = [(face * side + row + down) * side + col + right for down in (0, 1) for right in (0, 1)]
        cell, vertex = np.concatenate(quarters), np.tile(pairs[1], 4)
        order = cell.argsort(kind="stable")
        pairs = _undominated(vert, cell[order], vertex[order], side)
    return *pairs, side


def _undominated(vert: np.ndarray, cell: np.ndarray, vertex: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Those of the pairs of `furthest` of which the point may be the furthest in the cell.

    How far out a point is, is linear on a face of the cube: what is no further out than another point at the corners
    of a cell is so all over it. The others that are tried are the furthest at the corners and in the middle.
    """
    first = np.flatnonzero(np.diff(cell, prepend=-1))
    group = np.repeat(np.arange(len(first)), np.diff(first, append=len(cell)))
    corners, at = ends(cell[first], side), vert[vertex].T
    out = np.stack([sum(x[group] * y for x, y in zip(corners[:, k].T, at, strict=True)) for k in range(4)])
    kept, lost = np.zeros((2, len(cell)), dtype=bool)
    for height in (*out, out.sum(0)):
        highest = np.flatnonzero(height == np.maximum.reduceat(height, first)[group])
        top = highest[np.diff(group[highest], prepend=-1) > 0]
        kept[top] = True
        lost |= np.logical_and.reduce([x <= x[top][group] for x in out])
    keep = kept | ~lost
    return cell[keep], vertex[keep]


def ends(cell: np.ndarray, side: int) -> np.ndarray:
    """The directions (n, 4, 3) to the corners of cells (n,) of a cube with `side` along its edges, a little `WIDER`."""
    face, place = np.divmod(cell, side * side)
    at = np.stack(np.divmod(place, side), axis=-1)[:, None] + 0.5
    at = (at + (0.5 + WIDER) * np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])) * 2 / side - 1
    axis = (face // 2 + np.arange(3)[:, None]) % 3
    found = np.empty((len(cell), 4, 3))
    for which, value in zip(axis, (1.0 - 2 * (face % 2)[:, None], *np.moveaxis(at, -1, 0)), strict=True):
        found[np.arange(len(cell)), :, which] = value
    return found


def _rows(cell: np.ndarray, vertex: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`Hulls.cell`, `vertex` and `follow`, from pairs in order of cells; and the first vertex of the cell of each row.

    Cells with the same vertices share their rows.
    """
    first = np.flatnonzero(np.diff(cell, prepend=-1))
    count = np.diff(first, append=len(cell))
    like = np.arange(len(first))  # of each cell the first one with the same vertices
    for some in np.unique(count):
        cells = np.flatnonzero(count == some)
        _, index, inverse = np.unique(
            vertex[first[cells, None] + np.arange(some)], axis=0, return_index=True, return_inverse=True
        )
        like[cells] = cells[index][inverse.ravel()]  # of NumPy 2.0 a column
    own = np.flatnonzero(like == np.arange(len(like)))
    rows = -(-count[own] // ROW)
    number = np.zeros(len(first), dtype=int)
    number[own] = _starts(rows)
    owner = np.repeat(own, rows)
    place = ROW * (np.arange(len(owner)) - number[owner])
    listed = vertex[first[owner, None] + np.minimum(place[:, None] + np.arange(ROW), count[owner, None] - 1)]
    follow = np.where(place + ROW < count[owner], np.arange(len(owner)) + 1, -1)
    return number[like], listed, follow, vertex[first[owner]]


def hull_boxes(mj_model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """Boxes around meshes along the axes of their geoms: middles (ngeom, 3), half lengths (ngeom, 3) [m]; else zero."""
    middle, half = np.zeros((2, mj_model.ngeom, 3))
    types = [mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_SDF]
    for geom in np.flatnonzero(np.isin(mj_model.geom_type, types) & (mj_model.geom_dataid >= 0)):
        first, count = (int(x[mj_model.geom_dataid[geom]]) for x in (mj_model.mesh_vertadr, mj_model.mesh_vertnum))
        vert = mj_model.mesh_vert[first : first + count].astype(float)
        low, high = vert.min(0), vert.max(0)
        middle[geom], half[geom] = 0.5 * (low + high), 0.5 * (high - low)
    return middle, half


def _hull(mj_model: mujoco.MjModel, mesh: int) -> Hull:
    """The hull of a mesh: vertices, and the polygons that its triangles make."""
    first, count = mj_model.mesh_vertadr[mesh], mj_model.mesh_vertnum[mesh]
    vert = mj_model.mesh_vert[first : first + count].astype(float)
    if mj_model.mesh_graphadr[mesh] < 0:
        return Hull(vert, *NO_POLYGONS)
    graph = mj_model.mesh_graph[mj_model.mesh_graphadr[mesh] :]
    used = graph[2 + graph[0] : 2 + 2 * graph[0]]
    number = np.zeros(count, dtype=int)
    number[used] = np.arange(len(used))
    polygons = slice(mj_model.mesh_polyadr[mesh], mj_model.mesh_polyadr[mesh] + mj_model.mesh_polynum[mesh])
    size = mj_model.mesh_polyvertnum[polygons].astype(int)
    corner = np.repeat(mj_model.mesh_polyvertadr[polygons] - _starts(size), size) + np.arange(size.sum())
    return Hull(vert[used], number[mj_model.mesh_polyvert[corner]], size, mj_model.mesh_polynormal[polygons])
