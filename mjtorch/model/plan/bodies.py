"""Index plan of the rows of contacts as what bodies do where they touch, and bodies as what dofs do to them."""

from collections.abc import Sequence

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.colliders import collider_body, element_flex, patched
from mjtorch.model.plan.geom_pairs import GeomPairs
from mjtorch.model.plan.tensors import Tensors


@tree.dataclass(kw_only=True)
class HeldEdgesPlan(tree.Tree):
    """The rows of n edges of flexes, which have up to w numbers each: no more than two points have dofs.

    others: (ne - n,) the rows of equalities that are not theirs
    entry: (n, w) where these lie in [flexedge_J, 0], dof: (n, w) their dofs
    one, two: (nproduct,) the numbers, of the n * w, whose products their blocks of the second derivative get, pair:
        (nproduct,) at which of the pairs of `BodiesPlan`, edge: (nproduct,) of which edge they are
    """

    others: Tensor
    entry: Tensor
    dof: Tensor
    one: Tensor
    two: Tensor
    pair: Tensor
    edge: Tensor


@tree.dataclass(kw_only=True)
class BodiesPlan(tree.Tree):
    """How contacts touch bodies, and which dofs move these.

    joins: static, whether contacts may touch two kinematic trees, own: static, the trees that may touch themselves
    elements: static, whether elements of flexes may touch something
    leaves: static, whether no dof moves more than one body
    turning: static, whether any joint turns bodies; where all are slides motion has no angular part
    first, last: (nv,) the bodies that each dof moves lie from the first up to the last, which is not one of them
    row, col: (npair,) pairs of dofs of which the second moves what the first moves, or is the first
    diagonal: (nv,) which pair is each dof with itself
    own_dof: (nbody, w) the dofs of each body, has_dof: (nbody, w) 1, or 0 where it has fewer
    hops: where chains are long, the body (nbody,) that is 1, 2, 4, ... above each; the world is above itself
    geom_tree: (ncollider,) the tree of each, -1: none
    edges: those that equalities hold, if there are any
    fixed_dof: (nfixed, w) the dofs that rows of several dofs may touch which are no contact's and no edge's; filled up
        with one that the row does not touch. All (nfixed, nv) in order, if that is less than twice as many
    symmetric: (36,) where the elements of a matrix (6, 6) lie among its `halves`, or (9,) of one of (3, 3)
    """

    joins: bool = tree.field(static=True)
    own: tuple[int, ...] = tree.field(static=True)
    elements: bool = tree.field(static=True)
    leaves: bool = tree.field(static=True)
    turning: bool = tree.field(static=True)
    first: Tensor
    last: Tensor
    row: Tensor
    col: Tensor
    diagonal: Tensor
    own_dof: Tensor
    has_dof: Tensor
    hops: tuple[Tensor, ...]
    geom_tree: Tensor
    edges: tuple[HeldEdgesPlan, ...]
    fixed_dof: Tensor
    symmetric: Tensor


def build(
    m: mujoco.MjModel,
    make: Tensors,
    tried: GeomPairs,
    edge: np.ndarray,
    others: np.ndarray,
    touched: Sequence[Sequence[int]],
) -> BodiesPlan:
    """The plan for `m`.

    tried: its `tried_pairs`
    edge: (n,) those of flexes that equalities hold at their lengths, in the order of their rows
    others: (ne - n,) the rows of equalities that are not theirs
    touched: the kinematic trees that each row touches which has several dofs and is no contact's and no edge's
    """
    tree_of = m.body_treeid[collider_body(m)]
    first, second = tree_of[tried.geom].T
    both = (first >= 0) & (second >= 0)
    moved = moved_bodies(m)
    row, col = dof_pairs(m)
    number = np.arange(max(1, m.body_dofnum.max()))
    has_dof = number < m.body_dofnum[:, None]
    turning = bool((m.jnt_type != mujoco.mjtJoint.mjJNT_SLIDE).any())
    return BodiesPlan(
        joins=patched(m) or bool((both & (first != second)).any()),
        own=tuple(np.unique(first[both & (first == second)]).tolist()),
        elements=len(element_flex(m)) > 0,
        leaves=bool((moved[:, 1] - moved[:, 0] == 1).all()),
        turning=turning,
        first=make.ints(moved[:, 0]),
        last=make.ints(moved[:, 1]),
        row=make.ints(row),
        col=make.ints(col),
        diagonal=make.ints(np.flatnonzero(row == col)),
        own_dof=make.ints(np.where(has_dof, m.body_dofadr[:, None] + number, 0)),
        has_dof=make.floats(has_dof),
        hops=(),
        geom_tree=make.ints(tree_of),
        edges=held_edges(m, make, edge, others, row, col),
        fixed_dof=make.ints(fixed_dofs(m, touched)),
        symmetric=make.ints(whole(turning).ravel()),
    )


def fixed_dofs(m: mujoco.MjModel, touched: Sequence[Sequence[int]]) -> np.ndarray:
    """`BodiesPlan.fixed_dof`, of rows that touch these kinematic trees."""
    of_rows = [np.flatnonzero(np.isin(m.dof_treeid, trees)) for trees in touched]
    width = max(map(len, of_rows), default=0)
    if 2 * width > m.nv:
        return np.tile(np.arange(m.nv), (len(touched), 1))
    filling = [np.setdiff1d(np.arange(width + 1), dofs)[:1].repeat(width - len(dofs)) for dofs in of_rows]
    rows = [np.concatenate(x) for x in zip(of_rows, filling, strict=True)]
    return np.array(rows, dtype=int).reshape(len(touched), width)


def whole(turning: bool) -> np.ndarray:
    """`BodiesPlan.symmetric`, as a matrix."""
    half = np.zeros((3, 3), dtype=int)
    upper = np.triu_indices(3)
    half[upper] = half[upper[::-1]] = np.arange(6)
    across = 6 + np.arange(9).reshape(3, 3)
    return np.block([[half, across.T], [across, 15 + half]]) if turning else half


def held_edges(
    m: mujoco.MjModel, make: Tensors, edge: np.ndarray, others: np.ndarray, row: np.ndarray, col: np.ndarray
) -> tuple[HeldEdgesPlan, ...]:
    """The plan of the rows of the edges (n,), if there are any.

    others: (ne - n,) as in `HeldEdgesPlan`; row, col: (npair,) as in `BodiesPlan`
    """
    if not len(edge):
        return ()
    start, count = m.flexedge_J_rowadr[edge], m.flexedge_J_rownnz[edge]
    number = np.arange(count.max())
    there = number < count[:, None]
    entry = np.where(there, start[:, None] + number, m.nJfe)
    dof = np.where(there, m.flexedge_J_colind[np.where(there, entry, 0)], 0)
    places = {pair: k for k, pair in enumerate(zip(row.tolist(), col.tolist(), strict=True))}
    products = [
        (k, i, j, places[dof[k, i], dof[k, j]])
        for k in range(len(edge))
        for i in range(count[k])
        for j in range(count[k])
        if (dof[k, i], dof[k, j]) in places
    ]
    of, one, two, pair = np.array(products).T
    return (
        HeldEdgesPlan(
            others=make.ints(others),
            entry=make.ints(entry),
            dof=make.ints(dof),
            one=make.ints(of * len(number) + one),
            two=make.ints(of * len(number) + two),
            pair=make.ints(pair),
            edge=make.ints(of),
        ),
    )


def mean_chain(m: mujoco.MjModel) -> float:
    """How many dofs move a body, on average."""
    moved = moved_bodies(m)
    return float((moved[:, 1] - moved[:, 0]).sum()) / max(1, m.nbody - 1)


def dof_pairs(m: mujoco.MjModel) -> np.ndarray:
    """(2, npair) the pairs of dofs of which the second moves what the first moves, or is the first."""
    return np.array([(i, j) for i in range(m.nv) for j in ancestors(m, i)]).reshape(-1, 2).T


def pair_places(m: mujoco.MjModel) -> np.ndarray:
    """(nv, nv) which pair each two dofs are; npair: none."""
    row, col = dof_pairs(m)
    place = np.full((m.nv, m.nv), len(row))
    place[row, col] = place[col, row] = np.arange(len(row))
    return place


def ancestors(m: mujoco.MjModel, dof: int) -> list[int]:
    """A dof and those that move what it moves, too."""
    found = []
    while dof >= 0:
        found.append(dof)
        dof = int(m.dof_parentid[dof])
    return found


def moved_bodies(m: mujoco.MjModel) -> np.ndarray:
    """(nv, 2) the first body that each dof moves, and the one after the last: bodies are numbered depth first."""
    end = np.arange(1, m.nbody + 1)
    for body in range(m.nbody - 1, 0, -1):
        end[m.body_parentid[body]] = max(end[m.body_parentid[body]], end[body])
    return np.stack([m.dof_bodyid, end[m.dof_bodyid]], axis=1)
