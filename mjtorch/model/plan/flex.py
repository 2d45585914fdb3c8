"""Index plan of flexes: the points that bodies carry, the edges between them, elements, hinges and cells.

A *point* is what a flex has on a body: a vertex, or a node of a grid, between which vertices are interpolated. Points
are numbered: first the vertices that are points, in their order, then the nodes.
"""

import itertools

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.tensors import Tensors

# The edges of an element of 2 and of 3 dimensions, by its vertices, in the order of `flex_elemedge`.
ELEMENT_EDGES = {2: ((1, 2), (2, 0), (0, 1)), 3: ((0, 1), (1, 2), (2, 0), (2, 3), (0, 3), (1, 3))}
# How many numbers of `flex_bending` a hinge between two triangles has: a matrix (4, 4), and that of curved references.
HINGE_SIZE = 17


@tree.dataclass(kw_only=True)
class ElementPlan(tree.Tree):
    """The elements of n dimensions, which resist stretching.

    edge: (nelement, k) their edges, among those of `FlexPlan`
    stiffness: (nelement, k, k) where the stiffness between two of these lies in `flex_stiffness`
    flex: (nelement, 1) their flexes; damped: static, whether any of these has damping
    """

    damped: bool = tree.field(static=True)
    edge: Tensor
    stiffness: Tensor
    flex: Tensor


@tree.dataclass(kw_only=True)
class HingePlan(tree.Tree):
    """Two triangles with an edge in common, which resist bending.

    point: (nhinge, 4) the ends of the edge, then the opposite corners
    stiffness: (nhinge, 4, 4) where they lie in `flex_bending`; curvature: (nhinge, 1) likewise
    flex: (nhinge, 1) their flexes; damped, curved: static, whether any of them has damping, or a curved reference
    """

    damped: bool = tree.field(static=True)
    curved: bool = tree.field(static=True)
    point: Tensor
    stiffness: Tensor
    curvature: Tensor
    flex: Tensor


@tree.dataclass(kw_only=True)
class CellPlan(tree.Tree):
    """The cells with n nodes of grids, between which vertices are interpolated: elements of finite size.

    point: (ncell, n) their nodes; node: (ncell, n) the same, in `flex_node0`
    gradient: (n, 3) of the shape functions at the centre, in a cell that is the unit cube
    start: static, where the stiffness of those of each flex begins in `flex_stiffness`, and how many cells it has
    flex: (ncell, 1) their flexes; damped: static, whether any of these has damping
    """

    damped: bool = tree.field(static=True)
    start: tuple[tuple[int, int], ...] = tree.field(static=True)
    point: Tensor
    node: Tensor
    gradient: Tensor
    flex: Tensor


@tree.dataclass(kw_only=True)
class FlexPlan(tree.Tree):
    """What flexes are made of.

    Points
        body, root: (npoint,) the body that carries each, and the root of its tree
        local: (npoint,) where their positions in the bodies lie in [flex_vert, flex_node]
        centered: static, whether these are all zero
        pair_point, pair_dof: (npair,) points of flexes that are not rigid, and the dofs that move each
        point_pair: (npoint, w) the pairs of each point; `npair` stands for none
    Vertices
        direct: static, whether all vertices are points
        vertex: (nflexvert,) where each lies in [points, interpolated ones]
        node: (ninterpolated, w) points between which these lie, weight: (ninterpolated, w, 1) of each
    Edges, nedge of them: of flexes that are neither rigid nor interpolated; of all others the length counts as 0
        first, second: (nedge,) their points
        edge_id: (nedge,) their numbers in the model; edge: (nflexedge,) where each of the model's lies in [these, 0]
        every_edge: static, whether these are all
        entry_edge, entry_first, entry_second: (nentry,) for each of the first numbers of `flexedge_J` the edge, and the
            pairs of both its ends with the dof; `npair`: that end is not moved
        entry_dof: (nentry,) the dof; nentry, padding: static, how many numbers there are, and how many come after
        entry_place: (nentry,) where they lie in the dense matrix (nflexedge, nv), flattened
        row_entry: (nflexedge, w) the entries of each row of `flexedge_J`; `nentry` stands for none
    Forces
        springs, dampers: static, whether any flex has edges with stiffness, with damping
        edge_flex: (nedge,) the flex of each edge; yielding: (nedge,) 0 for edges whose ends lie on one body
        edge_body: (2, nflexedge) the bodies of both ends; simple: (nflexedge,) bool, whether both can do nothing but
            slide
        elements: by their dimension; hinges: one or none; cells: by their number of nodes
        moving: static, whether hinges or cells need the velocities of points
        passive: static, whether there are any passive forces
    """

    centered: bool = tree.field(static=True)
    direct: bool = tree.field(static=True)
    every_edge: bool = tree.field(static=True)
    nentry: int = tree.field(static=True)
    padding: int = tree.field(static=True)
    springs: bool = tree.field(static=True)
    dampers: bool = tree.field(static=True)
    moving: bool = tree.field(static=True)
    passive: bool = tree.field(static=True)
    body: Tensor
    root: Tensor
    local: Tensor
    pair_point: Tensor
    pair_dof: Tensor
    point_pair: Tensor
    vertex: Tensor
    node: Tensor
    weight: Tensor
    first: Tensor
    second: Tensor
    edge_id: Tensor
    edge: Tensor
    entry_edge: Tensor
    entry_first: Tensor
    entry_second: Tensor
    entry_dof: Tensor
    entry_place: Tensor
    row_entry: Tensor
    edge_flex: Tensor
    yielding: Tensor
    edge_body: Tensor
    simple: Tensor
    elements: tuple[ElementPlan, ...]
    hinges: tuple[HingePlan, ...]
    cells: tuple[CellPlan, ...]


class _Builder:
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
        moved = [[] if stiff else _dofs(m, int(b)) for b, stiff in zip(self.body, rigid, strict=True)]
        self.pairs = [(p, dof) for p, dofs in enumerate(moved) for dof in dofs]
        self.number = {pair: k for k, pair in enumerate(self.pairs)}
        starts = np.concatenate([[0], np.cumsum([len(dofs) for dofs in moved])]).astype(int)
        self.point_pair = _filled([range(*x) for x in itertools.pairwise(starts)], len(self.pairs))
        # Edges: those of the model that are here, and their points.
        ids = [range(m.flex_edgeadr[f], m.flex_edgeadr[f] + m.flex_edgenum[f]) for f in self.edged]
        self.edge_id = np.array([e for some in ids for e in some], dtype=int)
        flex = np.repeat(np.arange(m.nflex), m.flex_edgenum)
        self.edge_flex = flex[self.edge_id]
        self.ends = self.point_of_vertex[m.flex_edge[self.edge_id].T + m.flex_vertadr[self.edge_flex]].reshape(2, -1)
        self.place = np.full(m.nflexedge, len(self.edge_id))
        self.place[self.edge_id] = np.arange(len(self.edge_id))


def build(mj_model: mujoco.MjModel, make: Tensors) -> tuple[FlexPlan, ...]:
    """The plan for `mj_model`, if it has flexes."""
    if not mj_model.nflex:
        return ()
    b, m = _Builder(mj_model, make), mj_model
    entries = _entries(b)
    node, weight = _between(b)
    elements, hinges, cells = _elements(b), _hinges(b), _cells(b)
    vertex = np.where(b.point_of_vertex < 0, 0, b.point_of_vertex)
    vertex[b.point_of_vertex < 0] = b.npoint + np.arange(len(node))
    offsets = np.concatenate([m.flex_vert, m.flex_node])[b.local]
    point, dof = np.array(b.pairs, dtype=int).reshape(-1, 2).T
    nentry = len(entries)
    entry_edge, entry_dof, entry_first, entry_second = np.array(entries, dtype=int).reshape(-1, 4).T
    starts = np.minimum(m.flexedge_J_rowadr, nentry)
    rows = [range(start, start + count) for start, count in zip(starts, m.flexedge_J_rownnz, strict=True)]
    some = np.array(b.edged, dtype=int)
    ends, simple = np.zeros((2, m.nflexedge), dtype=int), np.zeros(m.nflexedge, dtype=bool)
    ends[:, b.edge_id] = b.body[b.ends]
    simple[b.edge_id] = (m.body_simple[b.body[b.ends]] == 2).all(axis=0) & ~m.flexedge_rigid[b.edge_id].astype(bool)
    springs, dampers = bool(m.flex_edgestiffness[some].any()), bool(m.flex_edgedamping[some].any())
    return (
        FlexPlan(
            centered=not offsets.any(),
            direct=b.npoint == m.nflexvert and not len(b.interpolated),
            every_edge=len(b.edge_id) == m.nflexedge,
            nentry=nentry,
            padding=m.nJfe - nentry,
            springs=springs,
            dampers=dampers,
            moving=any(h.damped for h in hinges) or any(c.damped for c in cells),
            passive=springs or dampers or bool(elements or hinges or cells),
            body=make.ints(b.body),
            root=make.ints(m.body_rootid[b.body]),
            local=make.ints(b.local),
            pair_point=make.ints(point),
            pair_dof=make.ints(dof),
            point_pair=make.ints(b.point_pair),
            vertex=make.ints(vertex),
            node=make.ints(node),
            weight=make.floats(weight[..., None]),
            first=make.ints(b.ends[0]),
            second=make.ints(b.ends[1]),
            edge_id=make.ints(b.edge_id),
            edge=make.ints(b.place),
            entry_edge=make.ints(entry_edge),
            entry_first=make.ints(entry_first),
            entry_second=make.ints(entry_second),
            entry_dof=make.ints(entry_dof),
            entry_place=make.ints(b.edge_id[entry_edge] * m.nv + entry_dof),
            row_entry=make.ints(_filled(rows, nentry)),
            edge_flex=make.ints(b.edge_flex),
            yielding=make.floats(~m.flexedge_rigid[b.edge_id].astype(bool)),
            edge_body=make.ints(ends),
            simple=make.bools(simple),
            elements=elements,
            hinges=hinges,
            cells=cells,
        ),
    )


def equality_edges(m: mujoco.MjModel, number: int) -> np.ndarray:
    """The edges that an equality of a flex holds at their lengths: those that some dof can change."""
    flex = int(m.eq_obj1id[number])
    edges = np.arange(m.flex_edgeadr[flex], m.flex_edgeadr[flex] + m.flex_edgenum[flex])
    return edges[~m.flexedge_rigid[edges].astype(bool) & (m.flexedge_J_rownnz[edges] > 0)]


def edge_trees(m: mujoco.MjModel, edge: int) -> list[int]:
    """The kinematic trees that move an edge."""
    start = m.flexedge_J_rowadr[edge]
    return np.unique(m.dof_treeid[m.flexedge_J_colind[start : start + m.flexedge_J_rownnz[edge]]]).tolist()


def slack_elements(m: mujoco.MjModel) -> np.ndarray:
    """(nflexstiffness,) bool: the numbers of flexes that have no stiffness."""
    found = np.zeros(m.nflexstiffness, dtype=bool)
    for flex in np.flatnonzero(m.flex_stiffnessadr >= 0).tolist():
        start = m.flex_stiffnessadr[flex]
        found[start : start + _stiffness_size(m, flex)] = not _stiff(m, flex)
    return found


def flat_hinges(m: mujoco.MjModel) -> np.ndarray:
    """(nflexbending,) bool: the numbers for curved references of hinges, if all are flat."""
    found = np.zeros(m.nflexbending, dtype=bool)
    for flex in np.flatnonzero((m.flex_dim == 2) & (m.flex_bendingadr >= 0)):
        curvature = m.flex_bendingadr[flex] + HINGE_SIZE * np.arange(1, m.flex_edgenum[flex] + 1) - 1
        found[curvature] = True
    return found & ~m.flex_bending[found].any()


def _dofs(m: mujoco.MjModel, body: int) -> list[int]:
    """The dofs that move a body."""
    found: list[int] = []
    while body:
        found += range(m.body_dofadr[body], m.body_dofadr[body] + m.body_dofnum[body])
        body = int(m.body_parentid[body])
    return sorted(found)


def _filled(rows: list[range], nothing: int) -> np.ndarray:
    """(k, w) the numbers in each row, filled up with `nothing`."""
    table = np.full((len(rows), max([0, *map(len, rows)])), nothing)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table


def _entries(b: _Builder) -> list[tuple[int, int, int, int]]:
    """(edge, dof, pair of the first end, pair of the second end) of each number in `flexedge_J`, in C's order."""
    m, none = b.m, len(b.pairs)
    found = []
    for edge in np.argsort(m.flexedge_J_rowadr, kind="stable"):
        start, place = m.flexedge_J_rowadr[edge], int(b.place[edge])
        for dof in m.flexedge_J_colind[start : start + m.flexedge_J_rownnz[edge]].tolist():
            ends = [b.number.get((int(point), dof), none) for point in b.ends[:, place]]
            found.append((place, dof, *ends))
    return found


def _elements(b: _Builder) -> tuple[ElementPlan, ...]:
    """The elements of triangles, then those of tetrahedra."""
    m, found = b.m, []
    for dim, edges in ELEMENT_EDGES.items():
        k, upper = len(edges), np.triu_indices(len(edges))
        place = np.zeros((k, k), dtype=int)
        place[upper] = place[upper[::-1]] = np.arange(len(upper[0]))
        flexes = [f for f in b.edged if m.flex_dim[f] == dim and _stiff(m, f)]
        edge, stiffness = [], []
        for f in flexes:
            n, start, adr = m.flex_elemnum[f], m.flex_stiffnessadr[f], m.flex_elemedgeadr[f]
            edge.append(b.place[m.flex_edgeadr[f] + m.flex_elemedge[adr : adr + k * n].reshape(n, k)])
            stride = _stiffness_size(m, f) // n
            stiffness.append(start + stride * np.arange(n)[:, None, None] + place)
        if flexes:
            flex = np.repeat(flexes, m.flex_elemnum[flexes])
            found.append(
                ElementPlan(
                    damped=bool(m.flex_damping[flexes].any()),
                    edge=b.make.ints(np.concatenate(edge)),
                    stiffness=b.make.ints(np.concatenate(stiffness)),
                    flex=b.make.ints(flex[:, None]),
                )
            )
    return tuple(found)


def _stiff(m: mujoco.MjModel, flex: int) -> bool:
    """Whether a flex resists stretching."""
    start = m.flex_stiffnessadr[flex]
    return bool(start >= 0 and m.flex_stiffness[start : start + _stiffness_size(m, flex)].any())


def _stiffness_size(m: mujoco.MjModel, flex: int) -> int:
    """How many numbers of `flex_stiffness` a flex has."""
    starts = sorted({*m.flex_stiffnessadr[m.flex_stiffnessadr >= 0].tolist(), int(m.nflexstiffness)})
    start = int(m.flex_stiffnessadr[flex])
    return starts[starts.index(start) + 1] - start


def _hinges(b: _Builder) -> tuple[HingePlan, ...]:
    m = b.m
    point, start, flex = [], [], []
    for f in b.edged:
        if m.flex_dim[f] != 2 or m.flex_bendingadr[f] < 0:
            continue
        edges = np.arange(m.flex_edgeadr[f], m.flex_edgeadr[f] + m.flex_edgenum[f])
        inner = np.flatnonzero(m.flex_edgeflap[edges, 1] >= 0)
        corners = np.concatenate([m.flex_edge[edges[inner]], m.flex_edgeflap[edges[inner]]], axis=1)
        point.append(b.point_of_vertex[m.flex_vertadr[f] + corners])
        start.append(m.flex_bendingadr[f] + HINGE_SIZE * inner)
        flex += [f] * len(inner)
    if not flex:
        return ()
    first = np.concatenate(start)[:, None]
    curvature = first + HINGE_SIZE - 1
    return (
        HingePlan(
            damped=bool(m.flex_damping[flex].any()),
            curved=bool(m.flex_bending[curvature].any()),
            point=b.make.ints(np.concatenate(point)),
            stiffness=b.make.ints((first + np.arange(16)).reshape(-1, 4, 4)),
            curvature=b.make.ints(curvature),
            flex=b.make.ints(flex, -1, 1),
        ),
    )


def _cells(b: _Builder) -> tuple[CellPlan, ...]:
    """Those of linear, then those of quadratic shape functions."""
    m, found = b.m, []
    for order in (1, 2):
        flexes = [int(f) for f in b.interpolated if m.flex_interp[f] == order and _stiff(m, int(f))]
        nodes = [m.flex_nodeadr[f] + _grid_cells(m.flex_cellnum[f], order) for f in flexes]
        if not flexes:
            continue
        count = [len(x) for x in nodes]
        shape, slope = (x[0] for x in _shape(np.array([0.5]), order))
        gradient = [
            (slope[i] * shape[j] * shape[k], shape[i] * slope[j] * shape[k], shape[i] * shape[j] * slope[k])
            for i, j, k in itertools.product(range(order + 1), repeat=3)
        ]
        node = np.concatenate(nodes)
        found.append(
            CellPlan(
                damped=bool(m.flex_damping[flexes].any()),
                start=tuple((int(m.flex_stiffnessadr[f]), n) for f, n in zip(flexes, count, strict=True)),
                point=b.make.ints(b.first_node + node),
                node=b.make.ints(node),
                gradient=b.make.floats(gradient),
                flex=b.make.ints(np.repeat(flexes, count)[:, None]),
            )
        )
    return tuple(found)


def _grid_cells(cellnum: np.ndarray, order: int) -> np.ndarray:
    """(ncell, (order + 1)^3) the nodes of each cell of a grid, counted from its first node."""
    _, ny, nz = cellnum * order + 1
    corner = np.array(list(itertools.product(*(range(n) for n in cellnum)))) * order
    step = np.array(list(itertools.product(range(order + 1), repeat=3)))
    return (corner[:, None] + step) @ np.array([ny * nz, nz, 1])


def _shape(x: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Shape functions (n, order + 1) of a line at x (n,) in [0, 1], and their slopes: Lagrange's polynomials."""
    if order == 1:
        return np.stack([1 - x, x], -1), np.stack([-np.ones_like(x), np.ones_like(x)], -1)
    return (
        np.stack([(1 - x) * (1 - 2 * x), 4 * x * (1 - x), x * (2 * x - 1)], -1),
        np.stack([4 * x - 3, 4 - 8 * x, 4 * x - 1], -1),
    )


def _between(b: _Builder) -> tuple[np.ndarray, np.ndarray]:
    """(n, w) the nodes between which each interpolated vertex lies, as points, and their weights, 0 where filled up."""
    m = b.m
    width = int(max([0, *(np.abs(m.flex_interp[b.interpolated]) + 1) ** 3]))
    points, weights = [np.zeros((0, width), dtype=int)], [np.zeros((0, width))]
    for f in b.interpolated:
        order, count = int(m.flex_interp[f]), m.flex_cellnum[f]
        at = m.flex_vert0[m.flex_vertadr[f] : m.flex_vertadr[f] + m.flex_vertnum[f]] * count
        cell = np.clip(np.floor(at).astype(int), 0, count - 1)
        x, y, z = (_shape(s, order)[0] for s in np.clip(at - cell, 0, 1).T)
        weight = (x[:, :, None, None] * y[:, None, :, None] * z[:, None, None, :]).reshape(len(at), -1)
        node = _grid_cells(count, order)[cell @ np.array([count[1] * count[2], count[2], 1])]
        filling = [(0, 0), (0, width - node.shape[1])]
        points.append(np.pad(b.first_node + m.flex_nodeadr[f] + node, filling))
        weights.append(np.pad(weight, filling))
    return np.concatenate(points), np.concatenate(weights)
