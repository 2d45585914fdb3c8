"""Index plan of islands: which kinematic trees each constraint joins."""

import itertools
from collections.abc import Iterator

import mujoco
import numpy as np
from mujoco import mjtConstraint, mjtEq
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.colliders import collider_trees
from mjtorch.model.plan.constraint import ConstraintPlan
from mjtorch.model.plan.flex import coupled_trees, edge_trees, equality_edges
from mjtorch.model.plan.flex_grid import strain_trees
from mjtorch.model.plan.tensors import Tensors


@tree.dataclass(kw_only=True)
class IslandPlan(tree.Tree):
    """Edges between kinematic trees: those of equalities, friction and limits, then of each contact slot.

    An edge that touches one tree joins it with itself. What joins more than two trees makes a chain of edges.

    row: (nedge,) the row that says whether an edge is there; first the edges that are not contacts
    trees: (nfixed, 2) the trees of the edges that are not contacts
    geom_tree: (ncollider,) the tree of each, -1: none; dof_tree: (nv,) that of each dof
    node_tree: (ncollider, w) more trees of colliders: of elements, and of vertices that lie between nodes
    flex_trees: (ncoupled, 2) edges that elastic flexes make as soon as anything is constrained: what stiffness couples
    row_tree: (nefc - nc,) a tree of each row that is no contact's; row_slot: (nc,) the slot of each contact row
    """

    row: Tensor
    trees: Tensor
    flex_trees: Tensor
    geom_tree: Tensor
    node_tree: Tensor
    dof_tree: Tensor
    row_tree: Tensor
    row_slot: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors, constraint: ConstraintPlan) -> IslandPlan:
    """The plan for `mj_model` with these rows."""
    fixed = constraint.nefc - constraint.nc
    touched = trees_of_rows(mj_model, constraint)
    edges = [(row, pair) for row, trees in enumerate(touched) for pair in _chain(trees)]
    slot = np.array(constraint.efc_id[fixed:], dtype=int)
    # The first row of each slot: normals come before friction.
    contact_row = fixed + np.unique(slot, return_index=True)[1]
    node_tree = collider_trees(mj_model)
    joined = 2 * node_tree.shape[1] if node_tree.shape[1] > 1 else 1
    return IslandPlan(
        row=make.ints([*(row for row, _ in edges), *np.tile(contact_row, joined)]),
        trees=make.ints([pair for _, pair in edges], -1, 2),
        flex_trees=make.ints([pair for trees in coupled_trees(mj_model) for pair in _chain(trees)], -1, 2),
        geom_tree=make.ints(node_tree[:, 0]),
        node_tree=make.ints(node_tree[:, 1:]),
        dof_tree=make.ints(mj_model.dof_treeid),
        row_tree=make.ints([trees[0] for trees in touched]),
        row_slot=make.ints(slot),
    )


def trees_of_rows(m: mujoco.MjModel, constraint: ConstraintPlan) -> list[list[int]]:
    """The kinematic trees of each row that is no contact's, at least one each."""
    rows = zip(constraint.efc_type, constraint.efc_id, strict=True)
    count = constraint.nefc - constraint.nc
    edges = {k: iter(equality_edges(m, k)) for k in np.flatnonzero(m.eq_type == mjtEq.mjEQ_FLEX).tolist()}
    found = []
    for kind, number in list(rows)[:count]:
        of_flex = kind == mjtConstraint.mjCNSTR_EQUALITY and number in edges
        trees = edge_trees(m, next(edges[number])) if of_flex else _trees(m, kind, number)
        found.append(sorted(set(trees) - {-1}))
    return found


def tendon_trees(m: mujoco.MjModel, tendon: int) -> list[int]:
    """The kinematic trees that a tendon may move."""
    start = m.ten_J_rowadr[tendon]
    return np.unique(m.dof_treeid[m.ten_J_colind[start : start + m.ten_J_rownnz[tendon]]]).tolist()


def equality_bodies(m: mujoco.MjModel, number: int) -> list[int]:
    """The bodies that a connect, a weld or an equality of joints holds: two, or one."""
    objects = [int(k) for k in (m.eq_obj1id[number], m.eq_obj2id[number]) if k >= 0]
    if int(m.eq_type[number]) == int(mjtEq.mjEQ_JOINT):
        return m.jnt_bodyid[objects].tolist()
    return m.site_bodyid[objects].tolist() if int(m.eq_objtype[number]) == int(mujoco.mjtObj.mjOBJ_SITE) else objects


def _trees(m: mujoco.MjModel, kind: int, number: int) -> list[int]:
    """The trees of a row of this mjtConstraint, which belongs to the object with this number."""
    match kind:
        case mjtConstraint.mjCNSTR_EQUALITY if int(m.eq_type[number]) == int(mjtEq.mjEQ_TENDON):
            tendons = [int(k) for k in (m.eq_obj1id[number], m.eq_obj2id[number]) if k >= 0]
            return [k for tendon in tendons for k in tendon_trees(m, tendon)]
        case mjtConstraint.mjCNSTR_EQUALITY if int(m.eq_type[number]) == int(mjtEq.mjEQ_FLEXSTRAIN):
            return strain_trees(m, number)
        case mjtConstraint.mjCNSTR_EQUALITY:
            return m.body_treeid[equality_bodies(m, number)].tolist()
        case mjtConstraint.mjCNSTR_FRICTION_DOF:
            return [int(m.dof_treeid[number])]
        case mjtConstraint.mjCNSTR_LIMIT_JOINT:
            return [int(m.body_treeid[m.jnt_bodyid[number]])]
        case _:
            return tendon_trees(m, number)


def _chain(trees: list[int]) -> Iterator[tuple[int, int]]:
    """Edges that join all trees."""
    yield from itertools.pairwise(trees) if len(trees) > 1 else [(trees[0], trees[0])]
