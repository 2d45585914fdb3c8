"""The points, pairs and edges of the flexes of a model, in numpy, from which the plans of flexes are made."""

import itertools

import mujoco
import numpy as np

from mjtorch.model.option import EnableBit
from mjtorch.model.plan.tensors import Tensors

# What `flex_edgeequality` is of flexes of which the deformation of cells is constrained, by modes in `flex_stiffness`.
STRAIN = 3
# The edges of an element of 2 and of 3 dimensions, by its vertices, in the order of `flex_elemedge`.
ELEMENT_EDGES = {2: ((1, 2), (2, 0), (0, 1)), 3: ((0, 1), (1, 2), (2, 0), (2, 3), (0, 3), (1, 3))}

# How many numbers of `flex_stiffness` a tetrahedron has; those after the metric are of Neo-Hookean solids alone.
METRIC, SOLID_SIZE = 21, 24


class Builder:
    """Structure of the flexes of one model in numpy, and what makes tensors of it."""

    def __init__(self, mj_model: mujoco.MjModel, make: Tensors) -> None:
        self.m, self.make = mj_model, make
        m = mj_model
        self.interpolated = np.flatnonzero(m.flex_interp)
        # The flexes that have edges here.
        self.edged = [f for f in range(m.nflex) if not m.flex_interp[f] and not m.flex_rigid[f]]
        of_vertex = np.repeat(np.arange(m.nflex), m.flex_vertnum)
        is_point = m.flex_interp[of_vertex] == 0
        nodes = np.arange(m.nflexnode)
        self.point_of_vertex = np.where(is_point, np.cumsum(is_point) - 1, -1)
        self.npoint = int(is_point.sum()) + m.nflexnode
        self.first_node = self.npoint - m.nflexnode
        self.body = np.concatenate([m.flex_vertbodyid[is_point], m.flex_nodebodyid])
        self.local = np.concatenate([np.flatnonzero(is_point), m.nflexvert + nodes])
        of_node = np.repeat(np.arange(m.nflex), m.flex_nodenum)
        rigid = m.flex_rigid[np.concatenate([of_vertex[is_point], of_node])].astype(bool)
        moved = [[] if stiff else dofs_of(m, int(b)) for b, stiff in zip(self.body, rigid, strict=True)]
        self.pairs = [(p, dof) for p, dofs in enumerate(moved) for dof in dofs]
        self.number = {pair: k for k, pair in enumerate(self.pairs)}
        starts = np.concatenate([[0], np.cumsum([len(dofs) for dofs in moved])]).astype(int)
        self.point_pair = filled([range(*x) for x in itertools.pairwise(starts)], len(self.pairs))
        # Edges: those of the model that are here, and their points.
        ids = [range(m.flex_edgeadr[f], m.flex_edgeadr[f] + m.flex_edgenum[f]) for f in self.edged]
        self.edge_id = np.array([e for some in ids for e in some], dtype=int)
        flex = np.repeat(np.arange(m.nflex), m.flex_edgenum)
        self.edge_flex = flex[self.edge_id]
        self.ends = self.point_of_vertex[m.flex_edge[self.edge_id].T + m.flex_vertadr[self.edge_flex]].reshape(2, -1)
        self.place = np.full(m.nflexedge, len(self.edge_id))
        self.place[self.edge_id] = np.arange(len(self.edge_id))


def dofs_of(m: mujoco.MjModel, body: int) -> list[int]:
    """The dofs that move a body."""
    found: list[int] = []
    while body:
        found += range(m.body_dofadr[body], m.body_dofadr[body] + m.body_dofnum[body])
        body = int(m.body_parentid[body])
    return sorted(found)


def filled(rows: list[range], nothing: int) -> np.ndarray:
    """(k, w) the numbers in each row, filled up with `nothing`."""
    table = np.full((len(rows), max([0, *map(len, rows)])), nothing)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table


def is_stiff(m: mujoco.MjModel, flex: int) -> bool:
    """Whether a flex resists stretching: of elements the first number says so."""
    start = m.flex_stiffnessadr[flex]
    size = stiffness_size(m, flex) if start >= 0 and m.flex_interp[flex] else 1
    return bool(start >= 0 and m.flex_stiffness[start : start + size].any())


def stiffness_size(m: mujoco.MjModel, flex: int) -> int:
    """How many numbers of `flex_stiffness` a flex has."""
    starts = sorted({*m.flex_stiffnessadr[m.flex_stiffnessadr >= 0].tolist(), int(m.nflexstiffness)})
    start = int(m.flex_stiffnessadr[flex])
    return starts[starts.index(start) + 1] - start


def is_neo_hookean(m: mujoco.MjModel, flex: int) -> bool:
    """Whether a flex is a solid of another law than Saint Venant's and Kirchhoff's."""
    if m.flex_dim[flex] != 3 or m.flex_interp[flex] or not is_stiff(m, flex):
        return False
    start, count = m.flex_stiffnessadr[flex], m.flex_elemnum[flex]
    return bool(m.flex_stiffness[start : start + SOLID_SIZE * count].reshape(count, -1)[:, METRIC:].any())


def element_vertices(m: mujoco.MjModel, flex: int) -> np.ndarray:
    """(nelement, n + 1) the vertices of elements of a flex of n dimensions, in the model."""
    size = m.flex_dim[flex] + 1
    start, count = m.flex_elemdataadr[flex], m.flex_elemnum[flex] * size
    return m.flex_vertadr[flex] + m.flex_elem[start : start + count].reshape(-1, size)


def rest_vertices(m: mujoco.MjModel, flex: int) -> np.ndarray:
    """(nelement, n + 1, 3) [m] where these are at rest."""
    return 2 * m.flex_size[flex] * m.flex_vert0[element_vertices(m, flex)]


def element_edges(b: Builder, flex: int) -> np.ndarray:
    """(nelement, k) the edges of elements of a flex, among those of `FlexPlan`."""
    m, k = b.m, len(ELEMENT_EDGES[int(b.m.flex_dim[flex])])
    start, count = m.flex_elemedgeadr[flex], m.flex_elemnum[flex] * k
    return b.place[m.flex_edgeadr[flex] + m.flex_elemedge[start : start + count].reshape(-1, k)]


def element_start(m: mujoco.MjModel, flex: int) -> np.ndarray:
    """(nelement,) where the numbers of elements of a flex begin in `flex_stiffness`."""
    n = int(m.flex_elemnum[flex])
    return m.flex_stiffnessadr[flex] + stiffness_size(m, flex) // n * np.arange(n)


def metric_place(m: mujoco.MjModel, flex: int) -> np.ndarray:
    """(nelement, k, k) where the stiffness between the edges of elements of a flex lies in `flex_stiffness`."""
    k = len(ELEMENT_EDGES[int(m.flex_dim[flex])])
    upper = np.triu_indices(k)
    place = np.zeros((k, k), dtype=int)
    place[upper] = place[upper[::-1]] = np.arange(len(upper[0]))
    return element_start(m, flex)[:, None, None] + place


def edge_ends(dim: int) -> np.ndarray:
    """(k, dim + 1) of the edges of an element: 1 for the vertex they lead to, -1 for that which they come from."""
    edges = ELEMENT_EDGES[dim]
    ends = np.zeros((len(edges), dim + 1))
    ends[np.arange(len(edges))[:, None], edges] = [-1, 1]
    return ends


def asking(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that ask for passive contacts; lines and rigid ones, and all with the flag ipc, in vain."""
    asks = np.asarray(getattr(m, "flex_passive", np.zeros(m.nflex))) != 0
    asks &= not m.opt.enableflags & EnableBit.IPC
    return asks & (m.flex_dim > 1) & ~m.flex_rigid.astype(bool)


def elastic(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: membranes, shells and solids that resist stretching or bending, as a continuum."""
    stretches = np.array([is_stiff(m, f) for f in range(m.nflex)], dtype=bool) & (m.flex_edgeequality != STRAIN)
    return (stretches | (m.flex_bendingadr >= 0)) & ~m.flex_rigid.astype(bool) & (m.flex_dim > 1)
