"""The triangles of meshes and height fields, which rays meet."""

import math
from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.tensors import Tensors

# Triangles in a leaf of a tree of boxes, at most.
LEAF = 4
# Bits of each coordinate that decide how triangles are sorted.
BITS = 10
MESH, HFIELD = int(mujoco.mjtGeom.mjGEOM_MESH), int(mujoco.mjtGeom.mjGEOM_HFIELD)


@tree.dataclass(kw_only=True)
class BoxTrees(tree.Tree):
    """A complete binary tree of boxes for each of g geoms. Nodes are numbered by their height, leaves first.

    leaf: (nleaf, LEAF) triangles, the same one again where there are fewer
    children: for each height from 1 on, (n, 2) places among the nodes of the height below
    root: (g,) nodes, geom: (g,) theirs
    inside: (nnode,) where a ray goes on that meets a box, past: (nnode,) that misses it; -1 at the end
    """

    leaf: Tensor
    children: tuple[Tensor, ...]
    root: Tensor
    geom: Tensor
    inside: Tensor
    past: Tensor


@tree.dataclass(kw_only=True)
class TrianglePlan(tree.Tree):
    """n triangles between the vertices of some geoms: first the v vertices of meshes, then the w of height fields.

    A height field is its surface, four walls under it, and a box below. Its vertices lie at `grid` times its half
    lengths, as high as `height` says in [hfield_data, 0] of `size[2]`, or `size[3]` deep where `below` is 1.

    face: (n, 3) vertices, counterclockwise from outside; owner: (n,) the place of its geom in the plan of rays
    vert_geom: (v + w,) geom of each vertex
    mesh_vert: (v,) rows of `mesh_vert`
    hfield: (w,), grid: (w, 2), height: (w,), below: (w, 1)
    boxes: around those of each geom
    """

    face: Tensor
    owner: Tensor
    vert_geom: Tensor
    mesh_vert: Tensor
    hfield: Tensor
    grid: Tensor
    height: Tensor
    below: Tensor
    boxes: BoxTrees


class Surface(NamedTuple):
    """Triangles of a height field: faces (n, 3) between vertices, and for each vertex what `TrianglePlan` says."""

    face: np.ndarray
    grid: np.ndarray
    height: np.ndarray
    below: np.ndarray


def build(mj_model: mujoco.MjModel, make: Tensors, first: int, geoms: list[int]) -> TrianglePlan:
    """The triangles of `geoms`, meshes before height fields; `first` is the place of the first of them."""
    m = mj_model
    faces, owners, vert_geoms = [np.zeros((0, 3), int)], [np.zeros(0, int)], [np.zeros(0, int)]
    mesh_verts, fields = [np.zeros(0, int)], [np.zeros(0, int)]
    surfaces: list[Surface] = []
    count, corners = 0, [np.zeros((0, 3))]
    for place, g in enumerate(geoms, first):
        data = int(m.geom_dataid[g])
        if m.geom_type[g] == MESH:
            start, verts = m.mesh_faceadr[data], int(m.mesh_vertnum[data])
            face = m.mesh_face[start : start + m.mesh_facenum[data]]
            mesh_verts.append(np.arange(verts) + m.mesh_vertadr[data])
            corners.append(m.mesh_vert[mesh_verts[-1]])
        else:
            surfaces.append(_surface(m, data))
            face, verts = surfaces[-1].face, len(surfaces[-1].grid)
            fields.append(np.full(verts, data))
            corners.append(np.column_stack([surfaces[-1].grid, -surfaces[-1].below]))
        faces.append(face + count)
        owners.append(np.full(len(face), place))
        vert_geoms.append(np.full(verts, g))
        count += verts

    return TrianglePlan(
        face=make.ints(np.concatenate(faces)),
        owner=make.ints(np.concatenate(owners)),
        vert_geom=make.ints(np.concatenate(vert_geoms)),
        mesh_vert=make.ints(np.concatenate(mesh_verts)),
        hfield=make.ints(np.concatenate(fields)),
        grid=make.floats(np.concatenate([np.zeros((0, 2)), *(s.grid for s in surfaces)])),
        height=make.ints(np.concatenate([np.zeros(0, int), *(s.height for s in surfaces)])),
        below=make.floats(np.concatenate([np.zeros(0), *(s.below for s in surfaces)])[:, None]),
        boxes=_boxes(make, geoms, faces[1:], np.concatenate(corners)),
    )


def _boxes(make: Tensors, geoms: list[int], faces: list[np.ndarray], corner: np.ndarray) -> BoxTrees:
    """Trees of boxes around the triangles of each geom, sorted so that what lies together is close by.

    corner: (v, 3) about where vertices lie; heights, which may change, do not matter
    """
    leaves, heights, after = [np.zeros((0, LEAF), int)], [], 0
    for face in faces:
        n = len(face)
        depth = max(0, math.ceil(math.log2(max(1, n) / LEAF)))
        ends = np.arange(2**depth + 1) * n // 2**depth
        place = np.minimum(ends[:-1, None] + np.arange(LEAF), ends[1:, None] - 1)
        leaves.append(after + _along_curve(corner[face].mean(1))[place])
        heights.append(depth)
        after += n
    widths = [[2 ** (depth - h) if h <= depth else 0 for depth in heights] for h in range(max(heights, default=0) + 1)]
    start = np.cumsum([0, *(w for row in widths for w in row)])[:-1].reshape(len(widths), -1)
    total = sum(map(sum, widths))
    inside, past = np.full(total, -1), np.full(total, -1)
    children = []
    for h in reversed(range(1, len(widths))):
        below = [np.zeros((0, 2), int)]
        for g, width in enumerate(widths[h]):
            node, pair = start[h, g] + np.arange(width), start[h - 1, g] + np.arange(2 * width).reshape(-1, 2)
            inside[node], past[pair[:, 0]], past[pair[:, 1]] = pair[:, 0], pair[:, 1], past[node]
            below.append(pair - start[h - 1, 0])
        children.append(np.concatenate(below))
    nleaf = sum(widths[0])
    inside[:nleaf] = past[:nleaf]
    root = [start[depth, g] for g, depth in enumerate(heights)]
    return BoxTrees(
        leaf=make.ints(np.concatenate(leaves)),
        children=tuple(make.ints(x) for x in reversed(children)),
        root=make.ints(np.array(root, dtype=int)),
        geom=make.ints(np.array(geoms, dtype=int)),
        inside=make.ints(inside),
        past=make.ints(past),
    )


def _along_curve(points: np.ndarray) -> np.ndarray:
    """The order of points (n, 3) along Morton's curve, which goes through each half of a box before the other."""
    low, extent = points.min(0), np.ptp(points, axis=0)
    cell = ((points - low) / np.where(extent > 0, extent, 1) * (2**BITS - 1)).astype(np.int64)
    code = sum((cell[:, k] >> bit & 1) << (3 * bit + k) for bit in range(BITS) for k in range(3))
    return np.argsort(code, kind="stable")


def _surface(m: mujoco.MjModel, field: int) -> Surface:
    """The triangles of a height field."""
    nrow, ncol, adr, nothing = m.hfield_nrow[field], m.hfield_ncol[field], m.hfield_adr[field], m.nhfielddata
    row, col = (x.ravel() for x in np.indices((nrow, ncol)))
    lattice = np.stack([2 * col / (ncol - 1) - 1, 2 * row / (nrow - 1) - 1], axis=-1)
    number = np.arange(nrow * ncol).reshape(nrow, ncol)
    a, b, c, d = number[:-1, :-1], number[:-1, 1:], number[1:, 1:], number[1:, :-1]
    top = [np.stack(x, axis=-1).reshape(-1, 3) for x in ((a, b, c), (a, c, d))]
    # Around the field, counterclockwise from above; the walls stand on copies of these vertices at height zero.
    rim = np.concatenate([number[0, :-1], number[:-1, -1], number[-1, :0:-1], number[:0:-1, 0]])
    n = nrow * ncol
    foot, after = n + np.arange(len(rim)), n + (np.arange(len(rim)) + 1) % len(rim)
    walls = [np.stack(x, axis=-1) for x in ((foot, after, np.roll(rim, -1)), (foot, np.roll(rim, -1), rim))]
    corner = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    up, down = n + len(rim) + np.arange(4), n + len(rim) + 4 + np.arange(4)
    box = [[up[[0, 1, 2]], up[[0, 2, 3]]], [down[[0, 2, 1]], down[[0, 3, 2]]]]
    for i in range(4):
        j = (i + 1) % 4
        box.append([np.array([down[i], down[j], up[j]]), np.array([down[i], up[j], up[i]])])
    return Surface(
        face=np.concatenate([*top, *walls, np.array(box).reshape(-1, 3)]),
        grid=np.concatenate([lattice, lattice[rim], corner, corner]),
        height=np.concatenate([adr + np.arange(n), np.full(len(rim) + 8, nothing)]),
        below=np.repeat([0.0, 1.0], [n + len(rim) + 4, 4]),
    )
