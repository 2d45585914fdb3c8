"""The points, pairs and edges of the flexes of a model, in numpy, from which the plans of flexes are made."""

import itertools

import mujoco
import numpy as np

from mjtorch.model.plan.tensors import Tensors

# What `flex_edgeequality` is of flexes of which the deformation of cells is constrained, by modes in `flex_stiffness`.
STRAIN = 3
# The edges of an element of 2 and of 3 dimensions, by its vertices, in the order of `flex_elemedge`.
ELEMENT_EDGES = {2: ((1, 2), (2, 0), (0, 1)), 3: ((0, 1), (1, 2), (2, 0), (2, 3), (0, 3), (1, 3))}


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


def asking(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that ask for passive contacts."""
    return np.asarray(getattr(m, "flex_passive", np.zeros(m.nflex))) != 0


def elastic(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: membranes, shells and solids that resist stretching or bending, as a continuum."""
    stretches = np.array([is_stiff(m, f) for f in range(m.nflex)], dtype=bool) & (m.flex_edgeequality != STRAIN)
    return (stretches | (m.flex_bendingadr >= 0)) & ~m.flex_rigid.astype(bool) & (m.flex_dim > 1)
