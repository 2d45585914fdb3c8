"""Index plan of flexes that yield: what elements, hinges and cells remember of how they were deformed for good."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.flex_points import Builder, edge_ends, rest_vertices
from mjtorch.model.plan.flex_rod import memory_places

# Bits of `flex_plasticmode`.
BENDING, STRETCHING = 1, 2
# Where the thickness of a flex that yields to bending lies in its `flex_stiffness`, behind the metric of a triangle.
THICKNESS = 6
# Where the elements of a symmetric matrix lie in its numbers, by its size; and rows and columns of these.
WHOLE = {2: [[0, 2], [2, 1]], 3: [[0, 3, 4], [3, 1, 5], [4, 5, 2]]}
SYMMETRIC = {2: ([0, 1, 0], [0, 1, 1]), 3: ([0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2])}


@tree.dataclass(kw_only=True)
class StretchYieldPlan(tree.Tree):
    """The elements, of n dimensions and k edges, that yield to stretching.

    offset: (nelement, k) where what squared lengths rest at, beyond those at `qpos0`, lies in [plastic, 0], of all
    own: (m,) which of all elements yield; place: (m, k) their offsets in `plastic`
    growth: (m, k, k) what metric tensors (`SYMMETRIC`) add to squared lengths; metric: (m, k, k) the inverse
    """

    offset: Tensor
    own: Tensor
    place: Tensor
    growth: Tensor
    metric: Tensor


@tree.dataclass(kw_only=True)
class BendYieldPlan(tree.Tree):
    """The hinges that yield to bending.

    offset: (nhinge, 1) where what curvatures are more than those of the reference lies in [plastic, 0], of all
    own: (m,) which of all hinges yield; place: (m,) their offsets in `plastic`
    edge: (m,) their edges, in the model; stiffness: (m,) that between their corners, thickness: (m,) likewise, where
        they lie in `flex_bending` and `flex_stiffness`
    """

    offset: Tensor
    own: Tensor
    place: Tensor
    edge: Tensor
    stiffness: Tensor
    thickness: Tensor


@tree.dataclass(kw_only=True)
class CellYieldPlan(tree.Tree):
    """The cells of grids, or faces of their shells, that yield to stretching.

    offset: (ncell, k) where the strains (`SYMMETRIC`) at which they rest lie in [plastic, 0], of all; those between two
        axes are of the angle, weight: (k,) 0.5 for these and else 1
    own: (m,) which of all cells yield; place: (m, k) their strains in `plastic`
    axes: (ncell, 3, n) the axes that strains are by: of faces along their sides at rest
    """

    offset: Tensor
    weight: Tensor
    own: Tensor
    place: Tensor
    axes: Tensor


def yields(m: mujoco.MjModel, mode: int) -> np.ndarray:
    """(nflex,) bool: flexes that yield to `BENDING` or `STRETCHING`, but rigid ones."""
    found = np.asarray(getattr(m, "flex_plasticmode", np.zeros(m.nflex, dtype=int))) & mode != 0
    return found & ~m.flex_rigid.astype(bool)


def stretch_place(m: mujoco.MjModel, flex: int) -> np.ndarray:
    """(nelement, k) where offsets of a flex that yields to stretching lie in `plastic`."""
    k = 3 if m.flex_dim[flex] == 2 else 6
    return m.flex_plasticadr[flex] + np.arange(m.flex_elemnum[flex] * k).reshape(-1, k)


def bend_place(m: mujoco.MjModel, flex: int) -> np.ndarray:
    """(nedge,) where offsets of a flex that yields to bending lie in `plastic`."""
    before = stretch_place(m, flex).size if yields(m, STRETCHING)[flex] else 0
    return m.flex_plasticadr[flex] + before + np.arange(m.flex_edgenum[flex])


def stretch_plan(b: Builder, flexes: list[int]) -> tuple[StretchYieldPlan, ...]:
    """Of the elements of `flexes`, which are of one dimension; none if no flex yields."""
    m, some = b.m, yields(b.m, STRETCHING)
    if not some[flexes].any():
        return ()
    dim = int(m.flex_dim[flexes[0]])
    of = np.repeat(flexes, m.flex_elemnum[flexes])
    width = 3 if dim == 2 else 6
    offset = np.full((len(of), width), m.nplastic)
    for f in flexes:
        if some[f]:
            offset[of == f] = stretch_place(m, f)
    own = np.flatnonzero(some[of])
    growth = np.concatenate([_growth(m, f, dim) for f in flexes if some[f]])
    return (
        StretchYieldPlan(
            offset=b.make.ints(offset),
            own=b.make.ints(own),
            place=b.make.ints(offset[own]),
            growth=b.make.floats(growth),
            metric=b.make.floats(np.linalg.inv(growth)),
        ),
    )


def _growth(m: mujoco.MjModel, flex: int, dim: int) -> np.ndarray:
    """`StretchYieldPlan.growth` of the elements of one flex."""
    arrow = edge_ends(dim) @ rest_vertices(m, flex)
    if dim == 2:
        # In axes of the triangle.
        along = arrow[:, 0] / np.linalg.norm(arrow[:, 0], axis=1, keepdims=True)
        beside = arrow[:, 1] - along * (along * arrow[:, 1]).sum(1, keepdims=True)
        axes = np.stack([along, beside / np.linalg.norm(beside, axis=1, keepdims=True)], axis=2)
        arrow = arrow @ axes
    row, col = SYMMETRIC[dim]
    return arrow[..., row] * arrow[..., col] * np.where(np.equal(row, col), 1, 2)


def bend_plan(b: Builder, edge: np.ndarray, flex: np.ndarray, start: np.ndarray) -> tuple[BendYieldPlan, ...]:
    """Of hinges (n,) at edges of flexes, whose numbers in `flex_bending` start at `start`; none if none yields."""
    m, some = b.m, yields(b.m, BENDING)
    own = np.flatnonzero(some[flex])
    if not len(own):
        return ()
    offset = np.full(len(edge), m.nplastic)
    for k in own:
        offset[k] = bend_place(m, flex[k])[edge[k] - m.flex_edgeadr[flex[k]]]
    return (
        BendYieldPlan(
            offset=b.make.ints(offset[:, None]),
            own=b.make.ints(own),
            place=b.make.ints(offset[own]),
            edge=b.make.ints(edge[own]),
            stiffness=b.make.ints(start[own] + 11),
            thickness=b.make.ints(m.flex_stiffnessadr[flex[own]] + THICKNESS),
        ),
    )


def cell_yield_plan(b: Builder, flexes: list[int], nodes: list[np.ndarray], interp: int) -> tuple[CellYieldPlan, ...]:
    """Of the cells or faces of `flexes`, whose nodes are `nodes` (ncell, n); none if no flex yields."""
    m, some = b.m, yields(b.m, STRETCHING)
    if not some[flexes].any():
        return ()
    dim, order = 3 if interp > 0 else 2, abs(interp)
    k = len(SYMMETRIC[dim][0])
    offset = [
        cell_place(m, f, len(x)) if some[f] else np.full((len(x), k), m.nplastic)
        for f, x in zip(flexes, nodes, strict=True)
    ]
    own = np.flatnonzero(np.repeat(some[flexes], [len(x) for x in nodes]))
    node = m.flex_node0[np.concatenate(nodes)]
    sides = np.stack([node[:, order * (order + 1)], node[:, order]], axis=2) - node[:, :1].swapaxes(1, 2)
    sides = sides / np.linalg.norm(sides, axis=1, keepdims=True)
    return (
        CellYieldPlan(
            offset=b.make.ints(np.concatenate(offset)),
            weight=b.make.floats(np.where(np.equal(*SYMMETRIC[dim]), 1, 0.5)),
            own=b.make.ints(own),
            place=b.make.ints(np.concatenate(offset)[own]),
            axes=b.make.floats(sides if dim == 2 else np.broadcast_to(np.eye(3), (len(node), 3, 3))),
        ),
    )


def cell_place(m: mujoco.MjModel, flex: int, count: int) -> np.ndarray:
    """(count, k) where strains of the cells or faces of a grid that yields lie in `plastic`."""
    k = len(SYMMETRIC[3 if m.flex_interp[flex] > 0 else 2][0])
    return m.flex_plasticadr[flex] + np.arange(count * k).reshape(-1, k)


def remembered(
    m: mujoco.MjModel, *plans: StretchYieldPlan | BendYieldPlan | CellYieldPlan
) -> tuple[np.ndarray, np.ndarray]:
    """Where what flexes remember lies in `plastic`: offsets of `plans`, then what never changes, which is the second
    result, then rods."""
    places = [np.zeros(0, dtype=int), *(x.place.cpu().numpy().ravel() for x in plans)]
    every = [bend_place(m, f) for f in np.flatnonzero(yields(m, BENDING)).tolist()]
    kept = np.setdiff1d(np.concatenate([places[0], *every]), np.concatenate(places))
    return np.concatenate([*places, kept, *memory_places(m)]), kept
