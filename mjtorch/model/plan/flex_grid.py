"""Index plan of flexes whose vertices lie between the nodes of a grid."""

import itertools

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.flex_points import STRAIN, Builder, is_stiff
from mjtorch.model.plan.flex_yield import CellYieldPlan, cell_yield_plan

# How many numbers of `flex_bending` an edge between two faces of a shell has: both faces, where they meet in either,
# stiffness, and what their normals differ by at rest. Before them is how many edges there are.
CREASE_SIZE = 10
# Weights of nodes that are only errors of rounding.
NEGLIGIBLE = 1e-14


@tree.dataclass(kw_only=True)
class CellPlan(tree.Tree):
    """Cells with n nodes of grids, between which vertices are interpolated, or faces of shells of grids.

    point: (ncell, n) their nodes; node: (ncell, n) the same, in `flex_node0`
    gradient: (n, 3) of the shape functions at the centre, in a cell that is the unit cube; of faces (n, 2)
    """

    point: Tensor
    node: Tensor
    gradient: Tensor


@tree.dataclass(kw_only=True)
class ElasticCellPlan(tree.Tree):
    """Cells that resist deformation.

    start: static, where the stiffness of those of each flex begins in `flex_stiffness`, and how many cells it has
    flex: (ncell, 1) their flexes; damped: static, whether any of these has damping
    yielding: how they yield, if any does
    """

    damped: bool = tree.field(static=True)
    start: tuple[tuple[int, int], ...] = tree.field(static=True)
    cells: CellPlan
    flex: Tensor
    yielding: tuple[CellYieldPlan, ...]


@tree.dataclass(kw_only=True)
class CreasePlan(tree.Tree):
    """Edges between two faces of shells, which resist bending, and all faces with n nodes.

    face: (2, ncrease) the two faces, in `cells`
    slope: (2, ncrease, n, 2) of their shape functions where they meet
    stiffness: (ncrease, 1) where it lies in `flex_bending`; turn: (ncrease, 3) where what their normals differ by at
        rest does
    """

    cells: CellPlan
    face: Tensor
    slope: Tensor
    stiffness: Tensor
    turn: Tensor


@tree.dataclass(kw_only=True)
class StrainPlan(tree.Tree):
    """Cells whose deformation is constrained, each in nmode ways.

    mode: (nrow, 3 n) where the weight of each displacement in a row lies in `flex_stiffness`
    cell: (nrow,) the cell of each row; body: (nrow, n) the bodies of its nodes
    entry_row, entry_node, entry_pair: (k,) what is not zero in J: a row, a node of its cell, a pair of point and dof
    place: (k,) where it lies in the dense matrix (nrow, nv), flattened
    """

    cells: CellPlan
    mode: Tensor
    cell: Tensor
    body: Tensor
    entry_row: Tensor
    entry_node: Tensor
    entry_pair: Tensor
    place: Tensor


def elastic_cells(b: Builder) -> tuple[ElasticCellPlan, ...]:
    """Those of grids with linear, then with quadratic shape functions, then those of shells."""
    m, found = b.m, []
    for interp in (1, 2, -1, -2):
        alike = b.interpolated[m.flex_interp[b.interpolated] == interp].tolist()
        flexes = [f for f in alike if m.flex_edgeequality[f] != STRAIN and is_stiff(m, f)]
        nodes = [m.flex_nodeadr[f] + _cells(m.flex_cellnum[f], interp) for f in flexes]
        if flexes:
            count = [len(x) for x in nodes]
            found.append(
                ElasticCellPlan(
                    damped=bool(m.flex_damping[flexes].any()),
                    start=tuple((int(m.flex_stiffnessadr[f]), n) for f, n in zip(flexes, count, strict=True)),
                    cells=_cell_plan(b, np.concatenate(nodes), interp),
                    flex=b.make.ints(np.repeat(flexes, count)[:, None]),
                    yielding=cell_yield_plan(b, flexes, nodes, interp),
                )
            )
    return tuple(found)


def creases(b: Builder) -> tuple[CreasePlan, ...]:
    """Those of shells with linear, then with quadratic shape functions."""
    m, found = b.m, []
    for order in (1, 2):
        alike = b.interpolated[m.flex_interp[b.interpolated] == -order].tolist()
        nodes, faces, starts, before = [], [], [], 0
        for f in alike:
            if m.flex_bendingadr[f] >= 0:
                node = m.flex_nodeadr[f] + _cells(m.flex_cellnum[f], -order)
                first = m.flex_bendingadr[f]
                start = first + 1 + CREASE_SIZE * np.arange(int(m.flex_bending[first]))
                faces.append(before + m.flex_bending[start[:, None] + np.arange(2)].astype(int))
                nodes.append(node)
                starts.append(start)
                before += len(node)
        if not nodes:
            continue
        start = np.concatenate(starts)
        local = m.flex_bending[start[:, None] + np.arange(2, 6)].reshape(-1, 2, 2)
        (one, d_one), (two, d_two) = (_shape(local[..., axis].ravel(), order) for axis in range(2))
        slope = np.stack([d_one[:, :, None] * two[:, None], one[:, :, None] * d_two[:, None]], axis=-1)
        found.append(
            CreasePlan(
                cells=_cell_plan(b, np.concatenate(nodes), -order),
                face=b.make.ints(np.concatenate(faces).T),
                slope=b.make.floats(slope.reshape(len(start), 2, -1, 2).swapaxes(0, 1)),
                stiffness=b.make.ints(start[:, None] + 6),
                turn=b.make.ints(start[:, None] + np.arange(7, 10)),
            )
        )
    return tuple(found)


def _cell_plan(b: Builder, node: np.ndarray, interp: int) -> CellPlan:
    """Of cells, or of faces of shells, with the nodes `node` (ncell, n)."""
    order, dim = abs(interp), 3 if interp > 0 else 2
    shape, slope = (x[0] for x in _shape(np.array([0.5]), order))
    gradient = [
        [np.prod([slope[i] if axis == along else shape[i] for axis, i in enumerate(step)]) for along in range(dim)]
        for step in itertools.product(range(order + 1), repeat=dim)
    ]
    return CellPlan(point=b.make.ints(b.first_node + node), node=b.make.ints(node), gradient=b.make.floats(gradient))


def strained_cells(m: mujoco.MjModel) -> list[tuple[int, int, np.ndarray, int]]:
    """Equalities of cells: (equality, interp, nodes, where the modes begin in `flex_stiffness`), by `flex_interp`."""
    found = []
    for i in np.flatnonzero(m.eq_type == mujoco.mjtEq.mjEQ_FLEXSTRAIN).tolist():
        f = int(m.eq_obj1id[i])
        interp, count = int(m.flex_interp[f]), m.flex_cellnum[f]
        step = np.array([count[1] * count[2], count[2], 1]) if interp > 0 else np.array([1, 0, 0])
        cell = int(m.eq_data[i, :3].astype(int) @ step)
        node = m.flex_nodeadr[f] + _cells(count, interp)[cell]
        found.append((i, interp, node, int(m.flex_stiffnessadr[f]) + cell * 9 * len(node) ** 2))
    return sorted(found, key=lambda x: x[1])


def strain_rows(m: mujoco.MjModel) -> list[tuple[int, int]]:
    """(equality, which of its rows) of the rows of all strains, in the order of `FlexPlan.strains`."""
    return [(i, k) for i, _, _, start in strained_cells(m) for k in range(int(m.flex_stiffness[start]))]


def strain_trees(m: mujoco.MjModel, number: int) -> list[int]:
    """The kinematic trees that an equality of a cell may move."""
    (node,) = (node for i, _, node, _ in strained_cells(m) if i == number)
    return m.body_treeid[m.flex_nodebodyid[node]].tolist()


def constrained_cells(b: Builder) -> tuple[StrainPlan, ...]:
    """By `flex_interp`."""
    m, found = b.m, []
    for interp, some in itertools.groupby(strained_cells(m), key=lambda x: x[1]):
        _, _, nodes, starts = zip(*some, strict=True)
        count = [int(m.flex_stiffness[start]) for start in starts]
        node, size = np.array(nodes), 3 * len(nodes[0])
        firsts = [start + 1 + size * k for start, n in zip(starts, count, strict=True) for k in range(n)]
        cell = np.repeat(np.arange(len(count)), count)
        entries = [
            (row, n, pair, row * m.nv + b.pairs[pair][1])
            for row, c in enumerate(cell)
            for n, point in enumerate(b.first_node + node[c])
            for pair in b.point_pair[point].tolist()
            if pair < len(b.pairs)
        ]
        entry_row, entry_node, entry_pair, place = np.array(entries, dtype=int).reshape(-1, 4).T
        found.append(
            StrainPlan(
                cells=_cell_plan(b, node, interp),
                mode=b.make.ints(np.array(firsts, dtype=int)[:, None] + np.arange(size)),
                cell=b.make.ints(cell),
                body=b.make.ints(m.flex_nodebodyid[node[cell]]),
                entry_row=b.make.ints(entry_row),
                entry_node=b.make.ints(entry_node),
                entry_pair=b.make.ints(entry_pair),
                place=b.make.ints(place),
            )
        )
    return tuple(found)


def _cells(cellnum: np.ndarray, interp: int) -> np.ndarray:
    """(ncell, n) the nodes of each cell of a grid, or of each face of a shell, counted from its first node.

    Of shells in pairs of opposite sides: across x, y and z; the axes of a face follow that across it.
    """
    order = abs(interp)
    size = cellnum * order + 1
    stride = np.array([size[1] * size[2], size[2], 1])
    if interp > 0:
        corner = np.array(list(itertools.product(*(range(n) for n in cellnum)))) * order
        step = np.array(list(itertools.product(range(order + 1), repeat=3)))
        return (corner[:, None] + step) @ stride
    faces = []
    for side in range(6):
        across, one, two = (side // 2 + np.arange(3)) % 3
        corner = np.zeros((cellnum[one] * cellnum[two], 3), dtype=int)
        corner[:, [one, two]] = order * np.array(list(itertools.product(range(cellnum[one]), range(cellnum[two]))))
        corner[:, across] = side % 2 * (size[across] - 1)
        step = np.zeros(((order + 1) ** 2, 3), dtype=int)
        step[:, [one, two]] = list(itertools.product(range(order + 1), repeat=2))
        faces.append((corner[:, None] + step) @ stride)
    return np.concatenate(faces)


def _shape(x: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Shape functions (n, order + 1) of a line at x (n,) in [0, 1], and their slopes: Lagrange's polynomials."""
    if order == 1:
        return np.stack([1 - x, x], -1), np.stack([-np.ones_like(x), np.ones_like(x)], -1)
    return (
        np.stack([(1 - x) * (1 - 2 * x), 4 * x * (1 - x), x * (2 * x - 1)], -1),
        np.stack([4 * x - 3, 4 - 8 * x, 4 * x - 1], -1),
    )


def between(b: Builder) -> tuple[np.ndarray, np.ndarray]:
    """(n, w) the nodes between which each interpolated vertex lies, as points, and their weights, 0 where filled up."""
    m, tables = b.m, []
    for f in b.interpolated:
        interp, count = int(m.flex_interp[f]), m.flex_cellnum[f]
        at = m.flex_vert0[m.flex_vertadr[f] : m.flex_vertadr[f] + m.flex_vertnum[f]] * count
        cell = np.clip(np.floor(at).astype(int), 0, count - 1)
        x, y, z = (_shape(s, abs(interp))[0] for s in np.clip(at - cell, 0, 1).T)
        weight = (x[:, :, None, None] * y[:, None, :, None] * z[:, None, None, :]).reshape(len(at), -1)
        node = _cells(count, abs(interp))[cell @ np.array([count[1] * count[2], count[2], 1])]
        if interp < 0:
            node, weight = _through_surface(node, weight, count * abs(interp) + 1)
        tables.append((b.first_node + m.flex_nodeadr[f] + node, weight))
    return _stacked(tables)


def on_surface(b: Builder) -> tuple[np.ndarray, np.ndarray]:
    """(n, w) the nodes that move each node, as points, and their weights: itself, or if it is within a shell others."""
    m, tables = b.m, []
    for f in b.interpolated:
        count = m.flex_nodenum[f]
        node, weight = np.arange(count)[:, None], np.ones((count, 1))
        if m.flex_interp[f] < 0:
            node, weight = _through_surface(node, weight, m.flex_cellnum[f] * abs(m.flex_interp[f]) + 1)
        tables.append((b.first_node + m.flex_nodeadr[f] + node, weight))
    return _stacked(tables)


def _stacked(tables: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of tables of different widths, one after the other."""
    width = max([0, *(node.shape[1] for node, _ in tables)])
    nodes, weights = zip(*[[filled_up(x, width) for x in pair] for pair in tables], strict=True) if tables else ([], [])
    return np.concatenate([np.zeros((0, width), dtype=int), *nodes]), np.concatenate([np.zeros((0, width)), *weights])


def filled_up(rows: np.ndarray, width: int, number: int = 0) -> np.ndarray:
    """(n, width) rows that are filled up with a number."""
    return np.pad(rows, [(0, 0), (0, width - rows.shape[1])], constant_values=number)


def _through_surface(node: np.ndarray, weight: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights (n, w) of nodes of a grid of `size` (3,) nodes, as those of nodes on its surface.

    What lies inside a shell is interpolated between its sides: a sum of the interpolations along each axis, less what
    is counted twice (Gordon and Hall, "Transfinite element methods", 1973).
    """
    total = np.zeros((len(node), int(size.prod())))
    np.add.at(total, (np.arange(len(node))[:, None], node), weight)
    inside = np.array(list(itertools.product(*(range(1, n - 1) for n in size))), dtype=int).reshape(-1, 3)
    for at in inside:
        lines = []
        for i, n in zip(at, size, strict=True):
            line = np.eye(n)[i]
            line[[0, -1]] -= np.array([n - 1 - i, i]) / (n - 1)
            lines.append(line)
        away = np.einsum("i,j,k->ijk", *lines).ravel()
        own = int(np.ravel_multi_index(tuple(at), tuple(size)))
        away[own] = 0
        total -= total[:, own : own + 1] * away
        total[:, own] = 0
    there = np.abs(total) > NEGLIGIBLE
    width = int(there.sum(axis=1).max())
    found = np.argsort(~there, axis=1, kind="stable")[:, :width]
    return found, np.take_along_axis(total, found, axis=1)
