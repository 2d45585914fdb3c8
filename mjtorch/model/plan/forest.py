"""Index plan of the kinematic trees as the solver takes them: one by one, with what joins them."""

import itertools

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.colliders import collider_body, element_flex
from mjtorch.model.plan.constraint import ConstraintPlan
from mjtorch.model.plan.geom_pairs import tested_pairs
from mjtorch.model.plan.island import trees_of_rows
from mjtorch.model.plan.kinematics import TreesPlan
from mjtorch.model.plan.tensors import Tensors

# With fewer dofs the second derivative is factored whole: to find out which contacts join which trees costs more.
LEAST_DOFS = 200


@tree.dataclass(kw_only=True)
class GroupPlan(tree.Tree):
    """The kinematic trees that have n dofs each, in the order of `TreesPlan`.

    number: (ntree,) which trees these are
    first, last: (ntree, n) the bodies that each dof moves lie from the first up to the last, which is not one of them
    source: (ntree, n, n) where each element of their blocks lies in [values of `ForestPlan.row` and `col`, 0]
    """

    number: Tensor
    first: Tensor
    last: Tensor
    source: Tensor


@tree.dataclass(kw_only=True)
class ForestPlan(tree.Tree):
    """How contacts and other rows of several dofs touch kinematic trees.

    joins, own: static, whether contacts may touch two trees, and whether a tree may touch itself; where elements of
        flexes touch something neither is asked
    leaves: static, whether no dof moves more than one body
    groups: the trees, by size
    row, col: (npair,) pairs of dofs of which the second moves what the first moves, or is the first
    M: (npair,) where each pair lies in [M, 0]; diagonal: (nv,) which pair is each dof with itself
    geom_tree: (ncollider,) the tree of each, -1: none
    upper_row, upper_col: (21,) the upper half of a symmetric matrix (6, 6)
    symmetric: (36,) where the elements of the whole matrix lie in that
    shared: (nshared,) the rows that touch several trees, of those that have several dofs and are no contact's
    """

    joins: bool = tree.field(static=True)
    own: bool = tree.field(static=True)
    leaves: bool = tree.field(static=True)
    groups: tuple[GroupPlan, ...]
    row: Tensor
    col: Tensor
    M: Tensor
    diagonal: Tensor
    geom_tree: Tensor
    upper_row: Tensor
    upper_col: Tensor
    symmetric: Tensor
    shared: Tensor


def build(
    m: mujoco.MjModel, make: Tensors, constraint: ConstraintPlan, trees: tuple[TreesPlan, ...], single: np.ndarray
) -> tuple[ForestPlan, ...]:
    """The plan for `m`, if it has `trees`, many dofs or no contacts among them and rows of several dofs that it is for.

    Those of elliptic contacts, of equalities of flexes, and of vertices that lie between nodes are not.

    single: (nefc,) bool, the rows of one dof
    """
    elliptic = int(mujoco.mjtConstraint.mjCNSTR_CONTACT_ELLIPTIC) in constraint.efc_type
    of_edges = constraint.equality.nedge or constraint.equality.nmode
    first, second = m.body_treeid[collider_body(m)][tested_pairs(m).geom].T
    both = (first >= 0) & (second >= 0)
    joins, own = (bool((both & among).any()) for among in (first != second, first == second))
    elements = len(element_flex(m)) > 0
    if (
        (m.nv < LEAST_DOFS and (joins or own or elements))
        or not trees
        or elliptic
        or single.all()
        or of_edges
        or constraint.contact.node_body.shape[1]
    ):
        return ()
    moved = moved_bodies(m)
    pairs = [(i, j) for i in range(m.nv) for j in ancestors(m, i)]
    row, col = np.array(pairs).T
    place = np.full((m.nv, m.nv), len(pairs))
    place[row, col] = place[col, row] = np.arange(len(pairs))
    stored = np.full((m.nv, m.nv), m.nC)
    stored[np.repeat(np.arange(m.nv), m.M_rownnz), m.M_colind[: m.nC]] = np.arange(m.nC)
    groups = [t.dof.cpu().numpy() for t in trees]
    touched = [t for t, alone in zip(trees_of_rows(m, constraint), single, strict=False) if not alone]
    upper = np.array(list(itertools.combinations_with_replacement(range(6), 2)))
    full = np.zeros((6, 6), dtype=int)
    full[tuple(upper.T)] = full[tuple(upper.T[::-1])] = np.arange(len(upper))
    return (
        ForestPlan(
            joins=joins and not elements,
            own=own and not elements,
            leaves=bool((moved[:, 1] - moved[:, 0] == 1).all()),
            groups=tuple(
                GroupPlan(
                    number=make.ints(m.dof_treeid[dof[:, 0]]),
                    first=make.ints(moved[dof, 0]),
                    last=make.ints(moved[dof, 1]),
                    source=make.ints(place[dof[:, :, None], dof[:, None, :]]),
                )
                for dof in groups
            ),
            row=make.ints(row),
            col=make.ints(col),
            M=make.ints(stored[row, col]),
            diagonal=make.ints(place.diagonal()),
            geom_tree=make.ints(m.body_treeid[collider_body(m)]),
            upper_row=make.ints(upper[:, 0]),
            upper_col=make.ints(upper[:, 1]),
            symmetric=make.ints(full.ravel()),
            shared=make.ints([k for k, t in enumerate(touched) if len(t) > 1]),
        ),
    )


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
