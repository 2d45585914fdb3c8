"""Convex hulls of meshes, as tables that all geoms share."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.distance import measured_meshes
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
    """One hull: vert (v, 3) [m], polygons, their normals (p, 3)."""

    vert: np.ndarray
    polygons: list[list[int]]
    normal: np.ndarray


NOTHING = Hull(np.zeros((1, 3)), [], np.zeros((0, 3)))


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
    polygons = [[int(v) + at for v in p] for part, at in zip(parts, first, strict=False) for p in part.polygons]
    cubes = [furthest(part.vert) for part in parts]
    begin = np.cumsum([0, *(6 * side * side for _, _, side in cubes)])
    cell, vertex, follow, origin = _rows(
        np.concatenate([cell + at for (cell, _, _), at in zip(cubes, begin, strict=False)]),
        np.concatenate([vertex + at for (_, vertex, _), at in zip(cubes, first, strict=False)]),
    )
    around: list[list[tuple[int, int]]] = [[] for _ in vert]
    for number, corners in enumerate(polygons):
        for v, before in zip(corners, [corners[-1], *corners[:-1]], strict=True):
            around[v].append((number, before))
    degree, size = [len(x) for x in around], [len(x) for x in polygons]
    return Hulls(
        vert=make.floats(vert),
        cube=make.ints(np.stack([[side for _, _, side in cubes], begin[:-1]], axis=-1)),
        cell=make.ints(cell),
        vertex=make.ints(vertex),
        way=make.floats(vert[vertex] - vert[origin][:, None]),
        follow=make.ints(follow),
        around=make.ints(np.stack([np.cumsum([0, *degree[:-1]]), degree], axis=-1)),
        polygon=make.ints([p for p, _ in itertools.chain(*around)] or [0], -1),
        before=make.ints([v for _, v in itertools.chain(*around)] or [0], -1),
        corner=make.ints(np.stack([np.cumsum([0, *size])[:-1], size], axis=-1) if size else [[0, 1]], -1, 2),
        outline=make.ints(list(itertools.chain(*polygons)) or [0], -1),
        normal=make.floats(np.concatenate([part.normal for part in parts]) if size else [[0.0, 0.0, 1.0]], -1, 3),
        degree=max(degree),
        corners=max(size, default=0),
        mesh=mesh,
    )


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
    out = np.einsum("nki,ni->nk", ends(cell[first], side)[group], vert[vertex])
    kept, lost = np.zeros((2, len(cell)), dtype=bool)
    for height in (*out.T, out.sum(1)):
        at = np.flatnonzero(height == np.maximum.reduceat(height, first)[group])
        top = at[np.diff(group[at], prepend=-1) > 0]
        kept[top] = True
        lost |= (out <= out[top][group]).all(1)
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
    first = np.flatnonzero(np.diff(cell, prepend=-1)).tolist()
    listed, content, width = vertex.tolist(), vertex.tobytes(), vertex.itemsize
    known: dict[bytes, int] = {}
    number: list[int] = []
    rows: list[list[int]] = []
    follow: list[int] = []
    origin: list[int] = []
    for begin, end in itertools.pairwise([*first, len(cell)]):
        key = content[width * begin : width * end]
        if key not in known:
            known[key] = len(rows)
            for k in range(begin, end, ROW):
                part = listed[k : min(k + ROW, end)]
                rows.append(part + part[-1:] * (ROW - len(part)))
                follow.append(len(rows) if k + ROW < end else -1)
                origin.append(listed[begin])
        number.append(known[key])
    return np.array(number), np.array(rows), np.array(follow), np.array(origin)


def hull_reach(mj_model: mujoco.MjModel) -> np.ndarray:
    """How far (ngeom, 3) [m] the meshes of geoms reach along their axes, either way; zero for other geoms."""
    reach = np.zeros((mj_model.ngeom, 3))
    types = [mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_SDF]
    for geom in np.flatnonzero(np.isin(mj_model.geom_type, types) & (mj_model.geom_dataid >= 0)):
        first, count = (int(x[mj_model.geom_dataid[geom]]) for x in (mj_model.mesh_vertadr, mj_model.mesh_vertnum))
        reach[geom] = np.abs(mj_model.mesh_vert[first : first + count]).max(0)
    return reach


def _hull(mj_model: mujoco.MjModel, mesh: int) -> Hull:
    """The hull of a mesh: vertices, the edges of its triangles, and the polygons that these make."""
    first, count = mj_model.mesh_vertadr[mesh], mj_model.mesh_vertnum[mesh]
    vert = mj_model.mesh_vert[first : first + count].astype(float)
    if mj_model.mesh_graphadr[mesh] < 0:
        return Hull(vert, [], np.zeros((0, 3)))
    graph = mj_model.mesh_graph[mj_model.mesh_graphadr[mesh] :]
    used = graph[2 + graph[0] : 2 + 2 * graph[0]].tolist()
    number = {v: k for k, v in enumerate(used)}
    polygons = range(mj_model.mesh_polyadr[mesh], mj_model.mesh_polyadr[mesh] + mj_model.mesh_polynum[mesh])
    address, length = mj_model.mesh_polyvertadr, mj_model.mesh_polyvertnum
    face = [mj_model.mesh_polyvert[address[p] : address[p] + length[p]].tolist() for p in polygons]
    return Hull(vert[used], [[number[v] for v in p] for p in face], mj_model.mesh_polynormal[list(polygons)])
