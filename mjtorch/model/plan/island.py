"""Index plan of islands: which kinematic trees each constraint joins."""

import itertools
from collections.abc import Iterator

import mujoco
import numpy as np
from mujoco import mjtConstraint, mjtEq, mjtTrn
from torch import Tensor

from mjtorch import tree
from mjtorch.model.option import Integrator
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
    flex_trees: (ncoupled, 2) edges that elastic flexes make as soon as anything is constrained: what stiffness couples;
        flexes that ask for passive contacts, too
    spring_trees, damper_trees, actuator_trees: (n, 2) edges that springs, dampers and actuators make likewise between
        trees that are awake, if the integrator is `discrete`, which couples these; else none
    row_tree: (nefc - nc,) a tree of each row that is no contact's; row_slot: (nc,) the slot of each contact row
    """

    row: Tensor
    trees: Tensor
    flex_trees: Tensor
    spring_trees: Tensor
    damper_trees: Tensor
    actuator_trees: Tensor
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
    couplings = coupled_by_forces(mj_model)
    joined = 2 * node_tree.shape[1] if node_tree.shape[1] > 1 else 1
    return IslandPlan(
        row=make.ints([*(row for row, _ in edges), *np.tile(contact_row, joined)]),
        trees=make.ints([pair for _, pair in edges], -1, 2),
        flex_trees=make.ints([pair for trees in coupled_trees(mj_model) for pair in _chain(trees)], -1, 2),
        spring_trees=make.ints(couplings[0], -1, 2),
        damper_trees=make.ints(couplings[1], -1, 2),
        actuator_trees=make.ints(couplings[2], -1, 2),
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


def coupled_by_forces(m: mujoco.MjModel) -> list[list[tuple[int, int]]]:
    """Pairs of kinematic trees that springs and dampers of tendons, and actuators, couple in the effective inertia.

    By the kinds of forces, whatever their size. Of actuators on tendons damping and armature count as dampers.
    """
    if int(m.opt.integrator) != Integrator.DISCRETE:
        return [[], [], []]
    springs = (m.tendon_stiffness != 0) | m.tendon_stiffnesspoly.any(1)
    dampers = (m.tendon_damping != 0) | m.tendon_dampingpoly.any(1)
    on_tendon = m.actuator_trntype == mjtTrn.mjTRN_TENDON
    adds = (m.actuator_damping != 0) | m.actuator_dampingpoly.any(1) | (m.actuator_armature != 0)
    dampers[m.actuator_trnid[on_tendon & adds, 0]] = True
    gain, bias = mujoco.mjtGain, mujoco.mjtBias
    pulls = np.isin(m.actuator_gaintype, [gain.mjGAIN_AFFINE, gain.mjGAIN_MUSCLE, gain.mjGAIN_DCMOTOR])
    pulls |= ~np.isin(m.actuator_biastype, [bias.mjBIAS_NONE, bias.mjBIAS_USER])
    tendons = [[tendon_trees(m, k) for k in np.flatnonzero(which).tolist()] for which in (springs, dampers)]
    every = [*tendons, [_actuator_trees(m, k) for k in np.flatnonzero(pulls).tolist()]]
    return [sorted({pair for trees in some for pair in itertools.combinations(trees, 2)}) for some in every]


def _actuator_trees(m: mujoco.MjModel, actuator: int) -> list[int]:
    """The kinematic trees that an actuator moves, if there are several."""
    first, second = (int(k) for k in m.actuator_trnid[actuator])
    kind = int(m.actuator_trntype[actuator])
    if kind == mjtTrn.mjTRN_TENDON:
        return tendon_trees(m, first)
    if kind not in (mjtTrn.mjTRN_SLIDERCRANK, mjtTrn.mjTRN_SITE, mjtTrn.mjTRN_SO3) or second < 0:
        return []
    return sorted({*m.body_treeid[m.site_bodyid[[first, second]]].tolist()} - {-1})


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
