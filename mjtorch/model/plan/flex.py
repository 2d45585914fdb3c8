"""Index plan of flexes: the points that bodies carry, the edges between them, elements, hinges and cells.

A *point* is what a flex has on a body: a vertex, or a node of a grid, between which vertices are interpolated. Points
are numbered: first the vertices that are points, in their order, then the nodes.
"""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.flex_arc import ArcPlan, arcs, bending
from mjtorch.model.plan.flex_blocks import BlockPlan, block_plan, is_metric
from mjtorch.model.plan.flex_grid import (
    CreasePlan,
    ElasticCellPlan,
    StrainPlan,
    between,
    constrained_cells,
    creases,
    elastic_cells,
)
from mjtorch.model.plan.flex_points import (
    ELEMENT_EDGES,
    Builder,
    asking,
    edge_ends,
    elastic,
    element_edges,
    element_vertices,
    filled,
    is_neo_hookean,
    is_stiff,
    metric_place,
    stiffness_size,
)
from mjtorch.model.plan.flex_rod import RodPlan, rods, turned_bodies, twisting
from mjtorch.model.plan.flex_solid import SolidPlan, solids
from mjtorch.model.plan.flex_yield import (
    BENDING,
    THICKNESS,
    BendYieldPlan,
    StretchYieldPlan,
    bend_plan,
    remembered,
    stretch_plan,
    yields,
)
from mjtorch.model.plan.tensors import Tensors

# How many numbers of `flex_bending` a hinge between two triangles has: a matrix (4, 4), and that of curved references.
HINGE_SIZE = 17


@tree.dataclass(kw_only=True)
class ElementPlan(tree.Tree):
    """The elements of n dimensions, which resist stretching.

    edge: (nelement, k) their edges, among those of `FlexPlan`
    ends: (k, n + 1) 1 for the vertex of an element that an edge leads to, -1 for that which it comes from
    stiffness: (nelement, k, k) where the stiffness between two of these lies in `flex_stiffness`
    flex: (nelement, 1) their flexes; damped: static, whether any of these has damping
    yielding: how they yield, if any does
    """

    damped: bool = tree.field(static=True)
    edge: Tensor
    ends: Tensor
    stiffness: Tensor
    flex: Tensor
    yielding: tuple[StretchYieldPlan, ...]


@tree.dataclass(kw_only=True)
class HingePlan(tree.Tree):
    """Two triangles with an edge in common, which resist bending.

    point: (nhinge, 4) the ends of the edge, then the opposite corners
    stiffness: (nhinge, 4, 4) where they lie in `flex_bending`; curvature: (nhinge, 1) likewise
    flex: (nhinge, 1) their flexes; damped, curved: static, whether any of them has damping, or a curved reference
    yielding: how they yield, if any does
    """

    damped: bool = tree.field(static=True)
    curved: bool = tree.field(static=True)
    point: Tensor
    stiffness: Tensor
    curvature: Tensor
    flex: Tensor
    yielding: tuple[BendYieldPlan, ...]


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
        rigid_edge: (nrigid,) edges of rigid flexes; rigid_vertex: (2, nrigid) the vertices at their ends
    Forces
        springs, dampers: static, whether any flex has edges with stiffness, with damping
        edge_flex: (nedge,) the flex of each edge; yielding: (nedge,) 0 for edges whose ends lie on one body
        edge_body: (2, nflexedge) the bodies of both ends; simple: (nflexedge,) bool, whether both can do nothing but
            slide
        along_axes: (nv,) 1 for dofs of flexes, no lines, all of whose points move along fixed axes, or not at all
        elements: by their dimension; hinges: one or none; cells, creases: by the number of nodes of a cell or face
        solids: of another law than elements, one or none
        blocks: of elements, hinges, cells, solids, arcs (corners, pairs) and rods, where the integrator takes their
            stiffness for inertia
        rods: those that twist, one or none; arcs: lines without joints that bend, likewise
        memory: (k,) where what elements, solids, hinges, cells and rods remember lies in `plastic`, as
            `flex_memory` orders it
        kept: (l,) where what does not change of that lies, between cells and rods
        strains: by the number of nodes of their cells; rows of equalities, not forces
        moving: static, whether hinges, cells, solids, rods or arcs need the velocities of points
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
    rigid_edge: Tensor
    rigid_vertex: Tensor
    edge_flex: Tensor
    yielding: Tensor
    edge_body: Tensor
    simple: Tensor
    along_axes: Tensor
    elements: tuple[ElementPlan, ...]
    hinges: tuple[HingePlan, ...]
    cells: tuple[ElasticCellPlan, ...]
    creases: tuple[CreasePlan, ...]
    solids: tuple[SolidPlan, ...]
    rods: tuple[RodPlan, ...]
    arcs: tuple[ArcPlan, ...]
    memory: Tensor
    kept: Tensor
    strains: tuple[StrainPlan, ...]
    blocks: tuple[BlockPlan, ...]


def build(mj_model: mujoco.MjModel, make: Tensors) -> tuple[FlexPlan, ...]:
    """The plan for `mj_model`, if it has flexes."""
    if not mj_model.nflex:
        return ()
    b, m = Builder(mj_model, make), mj_model
    entries = _entries(b)
    node, weight = between(b)
    elements, hinges, cells, bent, lines = _elements(b), _hinges(b), elastic_cells(b), creases(b), rods(b)
    tetrahedra, curved = solids(b), arcs(b)
    memory, kept = remembered(
        m, *(y for plans in (elements, tetrahedra, hinges, cells) for x in plans for y in x.yielding)
    )
    vertex = np.where(b.point_of_vertex < 0, 0, b.point_of_vertex)
    vertex[b.point_of_vertex < 0] = b.npoint + np.arange(len(node))
    offsets = np.concatenate([m.flex_vert, m.flex_node])[b.local]
    point, dof = np.array(b.pairs, dtype=int).reshape(-1, 2).T
    nentry = len(entries)
    entry_edge, entry_dof, entry_first, entry_second = np.array(entries, dtype=int).reshape(-1, 4).T
    starts = np.minimum(m.flexedge_J_rowadr, nentry)
    rows = [range(start, start + count) for start, count in zip(starts, m.flexedge_J_rownnz, strict=True)]
    flex_of_edge = np.repeat(np.arange(m.nflex), m.flex_edgenum)
    rigid = np.flatnonzero(m.flex_rigid.astype(bool)[flex_of_edge] & (m.flex_interp[flex_of_edge] == 0))
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
            moving=any(x.damped for some in (hinges, cells, tetrahedra, lines, curved) for x in some),
            passive=springs or dampers or bool(elements or hinges or cells or bent or tetrahedra or lines or curved),
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
            row_entry=make.ints(filled(rows, nentry)),
            rigid_edge=make.ints(rigid),
            rigid_vertex=make.ints(m.flex_edge[rigid].T + m.flex_vertadr[flex_of_edge[rigid]], 2, len(rigid)),
            edge_flex=make.ints(b.edge_flex),
            yielding=make.floats(~m.flexedge_rigid[b.edge_id].astype(bool)),
            edge_body=make.ints(ends),
            simple=make.bools(simple),
            along_axes=make.floats(_along_axes(m)),
            elements=elements,
            hinges=hinges,
            cells=cells,
            creases=bent,
            solids=tetrahedra,
            rods=lines,
            arcs=curved,
            memory=make.ints(memory),
            kept=make.ints(kept),
            strains=constrained_cells(b),
            blocks=_blocks(b, hinges, cells, tetrahedra, curved, lines) if is_metric(m) else (),
        ),
    )


def _along_axes(m: mujoco.MjModel) -> np.ndarray:
    """`along_axes`, of `FlexPlan` (mj_flexSimple)."""
    found = np.zeros(m.nv, dtype=bool)
    still = m.body_weldid == 0
    for f in np.flatnonzero(m.flex_dim > 1):
        first, count, body = m.flex_vertadr[f], m.flex_vertnum[f], m.flex_vertbodyid
        if m.flex_interp[f]:
            first, count, body = m.flex_nodeadr[f], m.flex_nodenum[f], m.flex_nodebodyid
        bodies = body[first : first + count]
        if ((m.body_simple[bodies] == 2) | still[bodies]).all():
            found |= np.isin(m.dof_bodyid, bodies)
    return found


def equality_edges(m: mujoco.MjModel, number: int) -> np.ndarray:
    """The edges that an equality of a flex holds at their lengths: those that some dof can change."""
    flex = int(m.eq_obj1id[number])
    edges = np.arange(m.flex_edgeadr[flex], m.flex_edgeadr[flex] + m.flex_edgenum[flex])
    return edges[~m.flexedge_rigid[edges].astype(bool) & (m.flexedge_J_rownnz[edges] > 0)]


def coupled_trees(m: mujoco.MjModel) -> list[list[int]]:
    """The kinematic trees of each flex of `elastic_trees`, if it has several."""
    return [trees for trees in elastic_trees(m).values() if len(trees) > 1]


def elastic_trees(m: mujoco.MjModel) -> dict[int, list[int]]:
    """The kinematic trees of flexes that resist deformation by more than springs, or ask for passive contacts."""
    turns, found = twisting(m), {}
    for f in np.flatnonzero(elastic(m) | turns | bending(m) | asking(m)).tolist():
        first, count, body = m.flex_vertadr[f], m.flex_vertnum[f], m.flex_vertbodyid
        if m.flex_interp[f]:
            first, count, body = m.flex_nodeadr[f], m.flex_nodenum[f], m.flex_nodebodyid
        bodies = [*body[first : first + count], *(turned_bodies(m, f) if turns[f] else [])]
        found[f] = sorted({*m.body_treeid[bodies].tolist()} - {-1})
    return found


def edge_trees(m: mujoco.MjModel, edge: int) -> list[int]:
    """The kinematic trees that move an edge."""
    start = m.flexedge_J_rowadr[edge]
    return np.unique(m.dof_treeid[m.flexedge_J_colind[start : start + m.flexedge_J_rownnz[edge]]]).tolist()


def slack_elements(m: mujoco.MjModel) -> np.ndarray:
    """(nflexstiffness,) bool: the numbers of flexes that have no stiffness."""
    found = np.zeros(m.nflexstiffness, dtype=bool)
    for flex in np.flatnonzero(m.flex_stiffnessadr >= 0).tolist():
        start = m.flex_stiffnessadr[flex]
        found[start : start + stiffness_size(m, flex)] = not is_stiff(m, flex)
        if yields(m, BENDING)[flex]:
            found[start + THICKNESS] = False
    return found


def flat_hinges(m: mujoco.MjModel) -> np.ndarray:
    """(nflexbending,) bool: the numbers for curved references of hinges, if all are flat."""
    found = np.zeros(m.nflexbending, dtype=bool)
    for flex in np.flatnonzero((m.flex_dim == 2) & (m.flex_interp == 0) & (m.flex_bendingadr >= 0)):
        curvature = m.flex_bendingadr[flex] + HINGE_SIZE * np.arange(1, m.flex_edgenum[flex] + 1) - 1
        found[curvature] = True
    return found & ~m.flex_bending[found].any()


def _entries(b: Builder) -> list[tuple[int, int, int, int]]:
    """(edge, dof, pair of the first end, pair of the second end) of each number in `flexedge_J`, in C's order."""
    m, none = b.m, len(b.pairs)
    found = []
    for edge in np.argsort(m.flexedge_J_rowadr, kind="stable"):
        start, place = m.flexedge_J_rowadr[edge], int(b.place[edge])
        for dof in m.flexedge_J_colind[start : start + m.flexedge_J_rownnz[edge]].tolist():
            ends = [b.number.get((int(point), dof), none) for point in b.ends[:, place]]
            found.append((place, dof, *ends))
    return found


def _blocks(
    b: Builder,
    hinges: tuple[HingePlan, ...],
    cells: tuple[ElasticCellPlan, ...],
    tetrahedra: tuple[SolidPlan, ...],
    curved: tuple[ArcPlan, ...],
    lines: tuple[RodPlan, ...],
) -> tuple[BlockPlan, ...]:
    """Of elements, hinges, cells, solids, corners and pairs of arcs, and rods, in this order."""
    m, points = b.m, []
    for dim in ELEMENT_EDGES:
        found = [element_vertices(m, f) for f in _stretching(b, dim)]
        points += [b.point_of_vertex[np.concatenate(found)]] if found else []
    tensors = [x.point for x in hinges] + [x.cells.point for x in cells]
    tensors += [x.point for x in tetrahedra] + [y for x in curved for y in (x.point, x.pair_point)]
    tensors += [x.points for x in lines]
    return tuple(block_plan(b, x) for x in (*points, *(x.cpu().numpy() for x in tensors)))


def _stretching(b: Builder, dim: int) -> list[int]:
    """The flexes of elements of `dim` dimensions that resist stretching, but for Neo-Hookean solids."""
    m = b.m
    return [f for f in b.edged if m.flex_dim[f] == dim and is_stiff(m, f) and not is_neo_hookean(m, f)]


def _elements(b: Builder) -> tuple[ElementPlan, ...]:
    """The elements of triangles, then those of tetrahedra."""
    m, found = b.m, []
    for dim in ELEMENT_EDGES:
        flexes = _stretching(b, dim)
        if flexes:
            flex = np.repeat(flexes, m.flex_elemnum[flexes])
            found.append(
                ElementPlan(
                    damped=bool(m.flex_damping[flexes].any()),
                    edge=b.make.ints(np.concatenate([element_edges(b, f) for f in flexes])),
                    ends=b.make.floats(edge_ends(dim)),
                    stiffness=b.make.ints(np.concatenate([metric_place(m, f) for f in flexes])),
                    flex=b.make.ints(flex[:, None]),
                    yielding=stretch_plan(b, flexes),
                )
            )
    return tuple(found)


def _hinges(b: Builder) -> tuple[HingePlan, ...]:
    m = b.m
    point, start, flex, edge = [], [], [], []
    for f in b.edged:
        if m.flex_dim[f] != 2 or m.flex_bendingadr[f] < 0:
            continue
        edges = np.arange(m.flex_edgeadr[f], m.flex_edgeadr[f] + m.flex_edgenum[f])
        inner = np.flatnonzero(m.flex_edgeflap[edges, 1] >= 0)
        corners = np.concatenate([m.flex_edge[edges[inner]], m.flex_edgeflap[edges[inner]]], axis=1)
        point.append(b.point_of_vertex[m.flex_vertadr[f] + corners])
        start.append(m.flex_bendingadr[f] + HINGE_SIZE * inner)
        flex += [f] * len(inner)
        edge.append(edges[inner])
    if not flex:
        return ()
    first = np.concatenate(start)[:, None]
    curvature = first + HINGE_SIZE - 1
    return (
        HingePlan(
            damped=bool(m.flex_damping[flex].any()),
            curved=bool(m.flex_bending[curvature].any()),
            yielding=bend_plan(b, np.concatenate(edge), np.array(flex), first[:, 0]),
            point=b.make.ints(np.concatenate(point)),
            stiffness=b.make.ints((first + np.arange(16)).reshape(-1, 4, 4)),
            curvature=b.make.ints(curvature),
            flex=b.make.ints(flex, -1, 1),
        ),
    )
