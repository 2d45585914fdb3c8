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

# Neighbours of a vertex that are looked at together.
RING = 8
# Cells along the edges of the cube of directions for which it is known where to begin.
SIDE = 16
# How much of the length of an edge a vertex must be further out than its neighbour to be so by more than rounding.
SLACK = 8


@tree.dataclass(kw_only=True)
class Hulls(tree.Tree):
    """The hulls of n meshes, one after the other: h vertices, p polygons. Pairs of geoms hold numbers of these.

    The last hull, one vertex at zero, is that of what is no mesh: number -1 is it.

    vert: (h, 3) [m] in the frames of the geoms
    start: (n, 6 side side) of each cell of a cube around the hull a vertex that is far out there; side: static
    ring: (h,) the row of the first neighbours of each vertex; -1: it has none
    neighbour: (r, RING) vertices, the one in the middle again where there are fewer; edge: (r, RING, 3) [m] the way to
        them; slack: (r, RING) [m] what of it is rounding; follow: (r,) the row of further neighbours; -1: no more
    around: (h, 2) of the list of polygons around each vertex the first entry, and how many there are
    polygon: (i,) the list, in order of polygons; before: (i,) the vertex that comes before this one in the polygon
    corner: (p, 2) of the list of its corners the first entry, and how many each polygon has; outline: (c,) the list,
        counterclockwise from outside; normal: (p, 3) unit, outward
    degree, corners: static, the most polygons at a vertex, and the most corners of a polygon
    mesh: static, of which mesh each is
    """

    vert: Tensor
    start: Tensor
    ring: Tensor
    neighbour: Tensor
    edge: Tensor
    slack: Tensor
    follow: Tensor
    around: Tensor
    polygon: Tensor
    before: Tensor
    corner: Tensor
    outline: Tensor
    normal: Tensor
    side: int = tree.field(static=True)
    degree: int = tree.field(static=True)
    corners: int = tree.field(static=True)
    mesh: tuple[int, ...] = tree.field(static=True)


class Hull(NamedTuple):
    """One hull: vert (v, 3) [m], the neighbours of each vertex, polygons, their normals (p, 3)."""

    vert: np.ndarray
    near: list[list[int]]
    polygons: list[list[int]]
    normal: np.ndarray


NOTHING = Hull(np.zeros((1, 3)), [[]], [], np.zeros((0, 3)))


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
    near = [[int(v) + at for v in ring] for part, at in zip(parts, first, strict=False) for ring in part.near]
    polygons = [[int(v) + at for v in p] for part, at in zip(parts, first, strict=False) for p in part.polygons]
    directions = cells(SIDE)
    start = [at + (directions @ part.vert.T).argmax(1) for part, at in zip(parts, first, strict=False)]
    # Where nothing is known but points, the first one has all others around it.
    start = [
        row if all(part.near) else np.full_like(row, at) for row, part, at in zip(start, parts, first, strict=False)
    ]
    ring, neighbour, follow = _rings(near)
    edge = vert[neighbour] - vert[np.array(_owners(near), dtype=np.int64)][:, None]
    eps = np.finfo(np.float32 if str(make.dtype).endswith("32") else np.float64).eps
    around: list[list[tuple[int, int]]] = [[] for _ in vert]
    for number, corners in enumerate(polygons):
        for v, before in zip(corners, [corners[-1], *corners[:-1]], strict=True):
            around[v].append((number, before))
    degree, size = [len(x) for x in around], [len(x) for x in polygons]
    return Hulls(
        vert=make.floats(vert),
        start=make.ints(np.array(start)),
        ring=make.ints(ring),
        neighbour=make.ints(neighbour),
        edge=make.floats(edge),
        slack=make.floats(SLACK * eps * np.linalg.norm(edge, axis=-1)),
        follow=make.ints(follow),
        around=make.ints(np.stack([np.cumsum([0, *degree[:-1]]), degree], axis=-1)),
        polygon=make.ints([p for p, _ in itertools.chain(*around)] or [0], -1),
        before=make.ints([v for _, v in itertools.chain(*around)] or [0], -1),
        corner=make.ints(np.stack([np.cumsum([0, *size])[:-1], size], axis=-1) if size else [[0, 1]], -1, 2),
        outline=make.ints(list(itertools.chain(*polygons)) or [0], -1),
        normal=make.floats(np.concatenate([part.normal for part in parts]) if size else [[0.0, 0.0, 1.0]], -1, 3),
        side=SIDE,
        degree=max(degree),
        corners=max(size, default=0),
        mesh=mesh,
    )


def cells(side: int) -> np.ndarray:
    """The directions (6 side side, 3) to the centres of the cells of a cube's faces +x, -x, +y, ..."""
    across = (np.arange(side) + 0.5) * 2 / side - 1
    u, v = (x.ravel() for x in np.meshgrid(across, across, indexing="ij"))
    faces = []
    for axis, sign in itertools.product(range(3), (1, -1)):
        face = np.zeros((side * side, 3))
        face[:, axis], face[:, (axis + 1) % 3], face[:, (axis + 2) % 3] = sign, u, v
        faces.append(face)
    return np.concatenate(faces)


def _owners(near: list[list[int]]) -> list[int]:
    """Whose neighbours are in each row of `_rings`."""
    return [v for v, ring in enumerate(near) for _ in range(0, len(ring), RING)] or [0]


def _rings(near: list[list[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`Hulls.ring`, `neighbour` and `follow`."""
    ring: list[int] = []
    rows: list[list[int]] = []
    follow: list[int] = []
    for v, others in enumerate(near):
        ring.append(len(rows) if others else -1)
        for k in range(0, len(others), RING):
            part = others[k : k + RING]
            rows.append(part + [v] * (RING - len(part)))
            follow.append(len(rows) if k + RING < len(others) else -1)
    return np.array(ring), np.array(rows or [[0] * RING]), np.array(follow or [-1])


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
        return Hull(vert, [list(range(1, count)), *([] for _ in range(count - 1))], [], np.zeros((0, 3)))
    graph = mj_model.mesh_graph[mj_model.mesh_graphadr[mesh] :]
    size, faces = int(graph[0]), int(graph[1])
    edges, used, ends = np.split(graph[2 : 2 + 3 * size + 3 * faces], [size, 2 * size])
    listed = ends.tolist()
    near = [listed[at : listed.index(-1, at)] for at in edges.tolist()]
    number = {v: k for k, v in enumerate(used.tolist())}
    polygons = range(mj_model.mesh_polyadr[mesh], mj_model.mesh_polyadr[mesh] + mj_model.mesh_polynum[mesh])
    address, length = mj_model.mesh_polyvertadr, mj_model.mesh_polyvertnum
    face = [mj_model.mesh_polyvert[address[p] : address[p] + length[p]].tolist() for p in polygons]
    return Hull(vert[used], near, [[number[v] for v in p] for p in face], mj_model.mesh_polynormal[list(polygons)])
