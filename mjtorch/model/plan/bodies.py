"""Index plan of the rows of contacts as what bodies do where they touch, and bodies as what dofs do to them."""

import itertools

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.colliders import collider_body, element_flex
from mjtorch.model.plan.geom_pairs import tested_pairs
from mjtorch.model.plan.tensors import Tensors


@tree.dataclass(kw_only=True)
class BodiesPlan(tree.Tree):
    """How contacts touch bodies, and which dofs move these.

    joins, own: static, whether contacts may touch two kinematic trees, and whether a tree may touch itself
    elements: static, whether elements of flexes may touch something
    leaves: static, whether no dof moves more than one body
    first, last: (nv,) the bodies that each dof moves lie from the first up to the last, which is not one of them
    row, col: (npair,) pairs of dofs of which the second moves what the first moves, or is the first
    diagonal: (nv,) which pair is each dof with itself; source: (nv, nv) where each two lie in [pairs, 0]; (0, 0) if
        trees are solved one by one
    geom_tree: (ncollider,) the tree of each, -1: none
    upper_row, upper_col: (21,) the upper half of a symmetric matrix (6, 6)
    symmetric: (36,) where the elements of the whole matrix lie in that
    """

    joins: bool = tree.field(static=True)
    own: bool = tree.field(static=True)
    elements: bool = tree.field(static=True)
    leaves: bool = tree.field(static=True)
    first: Tensor
    last: Tensor
    row: Tensor
    col: Tensor
    diagonal: Tensor
    source: Tensor
    geom_tree: Tensor
    upper_row: Tensor
    upper_col: Tensor
    symmetric: Tensor


def build(m: mujoco.MjModel, make: Tensors) -> BodiesPlan:
    """The plan for `m`."""
    tree_of = m.body_treeid[collider_body(m)]
    first, second = tree_of[tested_pairs(m).geom].T
    both = (first >= 0) & (second >= 0)
    moved = moved_bodies(m)
    row, col = dof_pairs(m)
    upper = np.array(list(itertools.combinations_with_replacement(range(6), 2)))
    full = np.zeros((6, 6), dtype=int)
    full[tuple(upper.T)] = full[tuple(upper.T[::-1])] = np.arange(len(upper))
    return BodiesPlan(
        joins=bool((both & (first != second)).any()),
        own=bool((both & (first == second)).any()),
        elements=len(element_flex(m)) > 0,
        leaves=bool((moved[:, 1] - moved[:, 0] == 1).all()),
        first=make.ints(moved[:, 0]),
        last=make.ints(moved[:, 1]),
        row=make.ints(row),
        col=make.ints(col),
        diagonal=make.ints(np.flatnonzero(row == col)),
        source=make.ints([], 0, 0),
        geom_tree=make.ints(tree_of),
        upper_row=make.ints(upper[:, 0]),
        upper_col=make.ints(upper[:, 1]),
        symmetric=make.ints(full.ravel()),
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
