"""Index plan of the flag `ipc`: which vertices, edges and triangles of membranes may touch each other, and geoms."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.colliders import SURFACES, membranes, no_contacts, owned_geoms, pushes_membranes
from mjtorch.model.plan.flex_points import dofs_of, element_vertices
from mjtorch.model.plan.solver import RowsPlan
from mjtorch.model.plan.tensors import Tensors

BALL, ROD, BOX, MESH = (int(getattr(mujoco.mjtGeom, f"mjGEOM_{x}")) for x in ("SPHERE", "CAPSULE", "BOX", "MESH"))
BOX_CORNERS = np.array([*itertools.product((-1.0, 1.0), repeat=3)])
# What is sharp about geoms, in multiples of their sizes: points, and the ends of edges.
CORNERS = {BALL: np.zeros((1, 1, 3)), ROD: np.array([[[0, 0, -1.0]], [[0, 0, 1.0]]]), BOX: BOX_CORNERS[:, None]}
EDGES = {
    ROD: np.array([[[0, 0, -1.0], [0, 0, 1.0]]]),
    BOX: np.array([x for x in itertools.combinations(BOX_CORNERS, 2) if np.not_equal(*x).sum() == 1]),
}
# Of which sizes.
SIZES = {BALL: (0, 0, 0), ROD: (0, 0, 1), BOX: (0, 1, 2)}
# Kinds of vertices among themselves: how many of these belong to the first of what meets.
LEADING = {"vertex-triangle": 1, "edge-edge": 2}
# All pairs are listed, however far apart: of more than these a step would take too much memory.
MOST_LISTED = 200_000
# How many pairs push at a time, per vertex; of a vertex that lies on another membrane there are about ten.
ROWS_PER_VERTEX = 8


@tree.dataclass(kw_only=True)
class PairsPlan(tree.Tree):
    """Pairs of one kind, n of them.

    kind: static, its key in the table of gaps
    leading: static, how many of the vertices belong to the first of what meets: all, if the second is a geom
    point: (n, k) the vertices that take part, in the order that the kind has them
    geom: (n,) what they meet; of vertices among themselves there is none
    sign, size: (n, f, 3) the f points of the geom that are sharp, as multiples of its sizes, and of which of these
    vert: (n, f) the same of meshes, in `mesh_vert`; one after the last of these: the geom is none
    face: (n, t, 3) the corners of the triangles that the hull of a mesh is made of, normal: (n, t, 3) these point to
    round: (n,) 1 where the surface is the first of the sizes away from these, else 0
    """

    kind: str = tree.field(static=True)
    leading: int = tree.field(static=True)
    point: Tensor
    geom: Tensor
    sign: Tensor
    size: Tensor
    vert: Tensor
    face: Tensor
    normal: Tensor
    round: Tensor


@tree.dataclass(kw_only=True)
class IpcPlan(tree.Tree):
    """Vertices of membranes, n of them, and all p pairs of what may touch.

    vertex, flex, body: (n,) their numbers, flexes and bodies
    dof: (n, k) the dofs that move each, all of them slides; `nv`: none; joint: (n, k) their joints
    share: (n,) of the mass of their bodies, and of what hangs there, the part that those weigh that are pinned to what
        moves; 0 of others
    own: (nv,) bool, the dofs of vertices; waits: (nv,) bool, these, and those of trees to which vertices are pinned
    pairs: by kind; mutual: static, how many of them are of vertices among themselves, which come first
    point: (p, 4) the vertices that take part; `n` stands for none
    itself: (p,) bool, pairs of a membrane and itself
    capacity: static, how many may push at a time
    rows: how the rows of all constraints are stored, with those of pairs after them
    """

    mutual: int = tree.field(static=True)
    capacity: int = tree.field(static=True)
    vertex: Tensor
    flex: Tensor
    body: Tensor
    dof: Tensor
    joint: Tensor
    share: Tensor
    own: Tensor
    waits: Tensor
    pairs: tuple[PairsPlan, ...]
    point: Tensor
    itself: Tensor
    rows: RowsPlan


class Sharp(NamedTuple):
    """Parts of a geom, each with f points that are sharp: see `PairsPlan`."""

    sign: np.ndarray
    size: np.ndarray
    vert: np.ndarray


class Pairs(NamedTuple):
    """Pairs of one kind as in `PairsPlan`, in numpy."""

    kind: str
    point: np.ndarray
    geom: np.ndarray
    sign: np.ndarray
    size: np.ndarray
    vert: np.ndarray
    face: np.ndarray
    normal: np.ndarray
    round: np.ndarray


def build(m: mujoco.MjModel, make: Tensors, rows: RowsPlan, contact_capacity: int | None) -> tuple[IpcPlan, ...]:
    """One, if the flag is enabled in a model that has membranes. rows: those of all constraints.

    contact_capacity: how many pairs may push at a time, if that is more than there would be room for
    """
    if not pushes_membranes(m):
        return ()
    vertex = member_vertices(m)
    body, n = m.flex_vertbodyid[vertex], len(vertex)
    flex = np.repeat(np.arange(m.nflex), m.flex_vertnum)[vertex]
    chains, alone = [dofs_of(m, int(b)) for b in body], free(m, vertex)
    dof = np.full((n, max(map(len, chains))), m.nv)
    for row, chain in zip(dof, chains, strict=True):
        row[: len(chain)] = chain
    pinned = ~alone & (m.body_weldid[body] != 0)
    carried = np.bincount(body[pinned], minlength=m.nbody)[body]
    own = np.isin(np.arange(m.nv), dof[alone])
    carriers = np.isin(m.dof_treeid, m.body_treeid[body[pinned]])
    pairs = all_pairs(m)
    padded = [np.pad(x.point, [(0, 0), (0, 4 - x.point.shape[1])], constant_values=n) for x in pairs]
    point = np.concatenate([np.zeros((0, 4), dtype=np.int64), *padded])
    mutual = sum(len(x.point) for x in pairs if x.kind in LEADING)
    of_flex = np.append(flex, -1)[point]
    capacity = min(len(point), max(ROWS_PER_VERTEX * n, contact_capacity or 0))
    return (
        IpcPlan(
            mutual=mutual,
            capacity=capacity,
            vertex=make.ints(vertex),
            flex=make.ints(flex),
            body=make.ints(body),
            dof=make.ints(dof),
            joint=make.ints(np.append(m.dof_jntid, 0)[dof]),
            share=make.floats(np.where(pinned, 1 / np.maximum(carried, 1), 0.0)),
            own=make.bools(own),
            waits=make.bools(own | carriers),
            pairs=tuple(of_kind(x, make) for x in pairs),
            point=make.ints(point),
            itself=make.bools((np.arange(len(point)) < mutual) & (of_flex[:, 0] == of_flex[:, 3])),
            rows=followed(rows, capacity, make),
        ),
    )


def of_kind(x: Pairs, make: Tensors) -> PairsPlan:
    """Pairs as tensors."""
    width = x.point.shape[1]
    return PairsPlan(
        kind=x.kind,
        leading=LEADING.get(x.kind) or width,
        point=make.ints(x.point),
        geom=make.ints(x.geom),
        sign=make.floats(x.sign, *x.sign.shape),
        size=make.ints(x.size, *x.size.shape),
        vert=make.ints(x.vert, *x.vert.shape),
        face=make.ints(x.face, *x.face.shape),
        normal=make.floats(x.normal, *x.normal.shape),
        round=make.floats(x.round),
    )


def followed(rows: RowsPlan, more: int, make: Tensors) -> RowsPlan:
    """How rows are stored that have `more` after them, none of which has one dof."""
    source, order = rows.source.cpu().numpy(), rows.order.cpu().numpy()
    rest = len(order) - rows.nsingle
    moved = np.where(source < rest, source, source + more)
    return rows.replace(
        source=make.ints(np.concatenate([moved, rest + np.arange(more)])),
        order=make.ints(np.concatenate([order, len(order) + np.arange(more)])),
    )


def member_vertices(m: mujoco.MjModel) -> np.ndarray:
    """(n,) the vertices of membranes."""
    return np.flatnonzero(np.repeat(membranes(m), m.flex_vertnum))


def free(m: mujoco.MjModel, vertex: np.ndarray) -> np.ndarray:
    """(n,) bool: vertices that have a body of their own, which slides."""
    body = m.flex_vertbodyid[vertex]
    alone = np.bincount(m.flex_vertbodyid[m.flex_vertbodyid >= 0], minlength=m.nbody)[body] == 1
    slide = m.jnt_type == mujoco.mjtJoint.mjJNT_SLIDE
    slides = np.bincount(m.jnt_bodyid[slide], minlength=m.nbody)[body] == 3
    return alone & slides & (m.body_dofnum[body] == 3) & (m.flex_vert[vertex] == 0).all(1)


def all_pairs(m: mujoco.MjModel) -> list[Pairs]:
    """All that may touch, by kind, first vertices among themselves; each mesh is a kind of its own."""
    if no_contacts(m):
        return []
    vertex = member_vertices(m)
    number = np.full(m.nflexvert, -1)
    number[vertex] = np.arange(len(vertex))
    flexes, first = np.flatnonzero(membranes(m)).tolist(), m.flex_vertadr
    points = {f: number[first[f] + np.arange(m.flex_vertnum[f])] for f in flexes}
    edges = {f: number[first[f] + m.flex_edge[m.flex_edgeadr[f] :][: m.flex_edgenum[f]]] for f in flexes}
    triangles = {f: number[element_vertices(m, f)] for f in flexes}
    found: dict[tuple, list[Pairs]] = {}

    def add(kind: str, point: np.ndarray, geoms: Sequence[int] = (), sharp: Sharp | None = None) -> None:
        """All of `point` with all parts of a geom that are `sharp`."""
        some = smooth(m) if sharp is None else sharp
        one, two = np.indices((len(point), len(some.vert))).reshape(2, -1)
        ids, n = np.repeat(np.array(geoms, dtype=np.int64), len(one)), len(one)
        face, normal = hull(m, geoms[0]) if kind == "vertex-mesh" else (np.zeros((0, 3), dtype=int), np.zeros((0, 3)))
        pairs = Pairs(
            kind=kind,
            point=point[one],
            geom=ids,
            sign=some.sign[two],
            size=some.size[two],
            vert=some.vert[two],
            face=np.tile(face, (n, 1, 1)),
            normal=np.tile(normal, (n, 1, 1)),
            round=np.isin(m.geom_type[ids], (BALL, ROD)).astype(float),
        )
        found.setdefault((kind, *(geoms if kind == "vertex-mesh" else ())), []).append(pairs)

    for f, g in itertools.product(flexes, repeat=2):
        if not may_meet(m, f, g):
            continue
        near = joined(points[f][:, None], triangles[g])
        add("vertex-triangle", near[(near[:, :1] != near[:, 1:]).all(1)])
        if f <= g:
            crossed = joined(edges[f], edges[g])
            one, two = crossed[:, :2, None], crossed[:, None, 2:]
            once = f != g or np.triu(np.ones((len(edges[f]),) * 2, dtype=bool), 1).ravel()
            add("edge-edge", crossed[(one != two).all((1, 2)) & once])
    moves = m.body_weldid[m.flex_vertbodyid[vertex]] != 0
    for geom, f in np.argwhere(owned_geoms(m)).tolist():
        apart = ~filtered(m, m.flex_vertbodyid[vertex], int(m.geom_bodyid[geom]))
        if m.geom_type[geom] != MESH or polygons(m, geom):
            add(f"vertex-{SURFACES[int(m.geom_type[geom])]}", points[f][(moves & apart)[points[f]]][:, None], [geom])
        add("corner-triangle", triangles[f][apart[triangles[f]].any(1)], [geom], corners(m, geom))
        add("edge-border", edges[f][apart[edges[f]].any(1)], [geom], borders(m, geom))
    every = [Pairs(kind, *map(np.concatenate, list(zip(*some, strict=True))[1:])) for (kind, *_), some in found.items()]
    return sorted((x for x in every if len(x.point)), key=lambda x: x.kind not in LEADING)


def smooth(m: mujoco.MjModel) -> Sharp:
    """A part without sharp points."""
    return of_sizes(m, np.zeros((1, 0, 3)), (0, 0, 0))


def of_sizes(m: mujoco.MjModel, sign: np.ndarray, size: tuple[int, int, int]) -> Sharp:
    """Parts of a geom that is no mesh."""
    return Sharp(sign, np.tile(np.array(size), (*sign.shape[:2], 1)), np.full(sign.shape[:2], m.nmeshvert))


def of_mesh(vert: np.ndarray) -> Sharp:
    """Parts of a mesh."""
    none = np.zeros((*vert.shape, 3))
    return Sharp(none, none.astype(int), vert)


def corners(m: mujoco.MjModel, geom: int) -> Sharp:
    """The sharp points of a geom."""
    kind, mesh = int(m.geom_type[geom]), int(m.geom_dataid[geom])
    if kind == MESH:
        return of_mesh(m.mesh_vertadr[mesh] + np.arange(m.mesh_vertnum[mesh])[:, None])
    return of_sizes(m, CORNERS.get(kind, np.zeros((0, 1, 3))), SIZES.get(kind, (0, 0, 0)))


def borders(m: mujoco.MjModel, geom: int) -> Sharp:
    """The sharp edges of a geom."""
    kind = int(m.geom_type[geom])
    if kind == MESH:
        ends = [np.stack([x, np.roll(x, -1)], axis=1) for x, _ in polygons(m, geom)]
        pair = np.concatenate([np.zeros((0, 2), dtype=int), *ends])
        return of_mesh(pair[pair[:, 0] < pair[:, 1]])
    return of_sizes(m, EDGES.get(kind, np.zeros((0, 2, 3))), SIZES.get(kind, (0, 0, 0)))


def hull(m: mujoco.MjModel, geom: int) -> tuple[np.ndarray, np.ndarray]:
    """Triangles (t, 3) that the faces of a mesh are made of, and what these point to (t, 3)."""
    faces = polygons(m, geom)
    fans = [np.stack([np.full(len(x) - 2, x[0]), x[1:-1], x[2:]], axis=1) for x, _ in faces]
    normals = [np.tile(normal, (len(fan), 1)) for fan, (_, normal) in zip(fans, faces, strict=True)]
    return np.concatenate([np.zeros((0, 3), dtype=int), *fans]), np.concatenate([np.zeros((0, 3)), *normals])


def polygons(m: mujoco.MjModel, geom: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The corners (k,) of each face of the hull of a mesh, in `mesh_vert`, and its normal (3,)."""
    mesh = int(m.geom_dataid[geom])
    some = range(m.mesh_polyadr[mesh], m.mesh_polyadr[mesh] + m.mesh_polynum[mesh])
    start, count = m.mesh_polyvertadr, m.mesh_polyvertnum
    return [
        (m.mesh_vertadr[mesh] + m.mesh_polyvert[start[p] : start[p] + count[p]].astype(int), m.mesh_polynormal[p])
        for p in some
    ]


def many(m: mujoco.MjModel) -> bool:
    """Whether there are too many pairs to list."""
    flexes = np.flatnonzero(membranes(m)).tolist()
    count, edges, vertices = m.flex_elemnum, m.flex_edgenum, m.flex_vertnum
    total = 0
    for f, g in itertools.product(flexes, repeat=2):
        if may_meet(m, f, g):
            total += int(vertices[f]) * int(count[g]) + int(edges[f]) * int(edges[g]) // 2
    for geom, f in np.argwhere(owned_geoms(m)).tolist():
        faces = len(hull(m, geom)[0]) if m.geom_type[geom] == MESH else 1
        total += faces * int(vertices[f])
        total += len(corners(m, geom).vert) * int(count[f]) + len(borders(m, geom).vert) * int(edges[f])
    return total > MOST_LISTED


def turned(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: membranes with vertices on bodies that do more than slide, or with slides below what moves."""
    vertex = member_vertices(m)
    body = m.flex_vertbodyid[vertex]
    flex = np.repeat(np.arange(m.nflex), m.flex_vertnum)[vertex]
    slides = m.jnt_type[m.dof_jntid] == mujoco.mjtJoint.mjJNT_SLIDE
    turns = np.array([not slides[dofs_of(m, int(b))].all() for b in body], dtype=bool)
    below = free(m, vertex) & (m.body_weldid[m.body_parentid[body]] != 0)
    return np.isin(np.arange(m.nflex), flex[turns | below])


def joined(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """All rows of `one` with all of `two`, side by side."""
    count = len(one), len(two)
    return np.concatenate([np.repeat(one, count[1], axis=0), np.tile(two, (count[0], 1))], axis=1)


def may_meet(m: mujoco.MjModel, f: int, g: int) -> bool:
    """Whether vertices and edges of one flex may touch those of another, or of itself."""
    masks = bool(m.flex_contype[f] & m.flex_conaffinity[g] or m.flex_contype[g] & m.flex_conaffinity[f])
    return masks and (f != g or bool(m.flex_selfcollide[f]))


def filtered(m: mujoco.MjModel, body: np.ndarray, other: int) -> np.ndarray:
    """(n,) bool: bodies that do not touch the body `other`, which is fixed: those that are, too, and excluded ones."""
    signature = (np.minimum(body, other) << 16) + np.maximum(body, other)
    return (m.body_weldid[body] == 0) | np.isin(signature, m.exclude_signature)
