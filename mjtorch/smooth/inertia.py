"""The joint-space inertia matrix: composite bodies, factor, solve, multiply (mj_crb, mj_factorM, mj_solveM)."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch import tree
from mjtorch.math import linalg
from mjtorch.math.spatial import inertia_mul
from mjtorch.model import Data, Model
from mjtorch.model.arguments import check_numbers
from mjtorch.model.plan.kinematics import TreesPlan
from mjtorch.smooth.reflected import dof_armature, tendon_armature

# mjWARN_INERTIA: where `Data.warning` counts the inertias that are too close to singular.
INERTIA = 0


def crb(m: Model, d: Data) -> Data:
    """Composite inertias and the mass matrix M, lower triangle in `M_rowadr`, `M_colind` order (mj_crb, mj_makeM).

    `M[i, j] = cdof_i . I_composite(i) cdof_j` for dof j at or above dof i, plus armature on the diagonal.
    The armature of tendons, `J^T armature J`, adds where M has elements: between the dofs of one chain.
    """
    p = m.plan.kinematics
    composite = p.inertia_subtree @ d.cinert
    momentum = inertia_mul(composite[p.dof_body], d.cdof)
    coupling = (momentum[p.M_row] * d.cdof[p.M_col]).sum(-1)
    M = coupling + dof_armature(m)[p.M_row] * p.M_diagonal
    if m.plan.tendon.armature:
        M = M + (d.ten_J.mT @ (tendon_armature(m)[:, None] * d.ten_J))[p.M_row, p.M_col]
    return d.replace(crb=composite, M=M)


def factor_m(m: Model, d: Data) -> Data:
    """Dense lower factor qLD of `M = qLD^T qLD` (mj_factorM). Counts a warning where M is too close to singular."""
    d, factors = factorised(m, d, stored_blocks(m, d.M))
    return d.replace(qLD=by_tree(m, factors).dense() if m.plan.kinematics.trees else factors[0][0])


def factorised(m: Model, d: Data, blocks: list[Tensor]) -> tuple[Data, list[Tensor]]:
    """`d`, with a warning more if any of the `blocks` (ntree, n, n) is too close to singular, and their lower factors.

    Trees are factored one by one: what is not in their blocks is zero.
    """
    if m.plan.kinematics.is_sound:
        return d, [linalg.ltl(x) for x in blocks]
    factors, flags = map(list, zip(*(linalg.clamped_ltl(x) for x in blocks), strict=True))
    clamped = torch.cat(flags).any()
    return d.replace(warning=d.warning + F.pad(clamped[None], (INERTIA, len(d.warning) - INERTIA - 1))), factors


def stored_blocks(m: Model, stored: Tensor) -> list[Tensor]:
    """The blocks (ntree, n, n) that belong to kinematic trees, by their size n, of a matrix stored as M is (nC,).

    All of it (1, nv, nv) where trees are not taken one by one.
    """
    p, stored = m.plan.kinematics, torch.cat([stored, stored.new_zeros(1)])
    return [stored[t.M] for t in p.trees] if p.trees else [stored[p.M_dense][None]]


def tree_blocks(m: Model, matrix: Tensor) -> list[Tensor]:
    """`stored_blocks` of a `matrix` (nv, nv)."""
    trees = m.plan.kinematics.trees
    return [matrix[t.dof[:, :, None], t.dof[:, None, :]] for t in trees] if trees else [matrix[None]]


@tree.dataclass(kw_only=True)
class TreeBlocks(tree.Tree):
    """A matrix `A` (nv, nv) of which nothing but the blocks of kinematic trees need not be zero.

    trees: by their size, blocks: (ntree, n, n) what A has of them
    place: (nv,) where each dof lies in those of `trees`
    source: (nv, nv) where each element of the dense matrix lies in [blocks, 0]
    """

    trees: tuple[TreesPlan, ...]
    blocks: tuple[Tensor, ...]
    place: Tensor
    source: Tensor

    def times(self, x: Tensor) -> Tensor:
        """`A x` for x (nv,)."""
        return self._by_tree(lambda block, own: block @ own, x[:, None])[:, 0]

    def ltl_solve(self, x: Tensor) -> Tensor:
        """`(A^T A)^-1 x` for x (nv,) or columns (nv, k), A lower."""
        return self._by_tree(linalg.ltl_solve, x)

    def dense(self) -> Tensor:
        """`A`."""
        return torch.cat([*(x.flatten() for x in self.blocks), self.blocks[0].new_zeros(1)])[self.source]

    def _by_tree(self, f: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
        parts = zip(self.trees, self.blocks, strict=True)
        return torch.cat([f(block, x[t.dof]).flatten(0, 1) for t, block in parts])[self.place]


def by_tree(m: Model, blocks: Sequence[Tensor]) -> TreeBlocks:
    """The matrix of `blocks` (ntree, n, n), in models of several trees."""
    p = m.plan.kinematics
    return TreeBlocks(trees=p.trees, blocks=tuple(blocks), place=p.tree_dof, source=p.tree_source)


def factored_solve(m: Model, factors: Sequence[Tensor], x: Tensor) -> Tensor:
    """`A^-1 x` for x (nv,) or columns (nv, k), by the `factors` (ntree, n, n) that `factorised` has found of `A`."""
    if not m.plan.kinematics.trees:
        return linalg.ltl_solve(factors[0][0], x)
    return by_tree(m, factors).ltl_solve(x)


def full_m(m: Model, d: Data) -> Tensor:
    """M as a dense symmetric matrix (nv, nv) (mj_fullM)."""
    return torch.cat([d.M, d.M.new_zeros(1)])[m.plan.kinematics.M_dense]


def diagonal_m(m: Model, d: Data) -> Tensor:
    """The diagonal (nv,) of M."""
    return d.M[m.plan.kinematics.M_dense.diagonal()]


def solve_m(m: Model, d: Data, x: Tensor) -> Tensor:
    """`M^-1 x` for x (nv,) or columns (nv, k), by the factor in `d.qLD` (mj_solveM)."""
    check_numbers("solve_m", "x", x, ((m.nv,), (m.nv, -1)), d.qLD)
    if not m.plan.kinematics.trees:
        return linalg.ltl_solve(d.qLD, x)
    return factored_solve(m, tree_blocks(m, d.qLD), x)


def mul_m(m: Model, d: Data, x: Tensor) -> Tensor:
    """`M x` for x (nv,) or columns (nv, k) (mj_mulM)."""
    check_numbers("mul_m", "x", x, ((m.nv,), (m.nv, -1)), d.M)
    return full_m(m, d) @ x
