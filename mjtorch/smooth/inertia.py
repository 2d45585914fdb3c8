"""The joint-space inertia matrix: composite bodies, factor, solve, multiply (mj_crb, mj_factorM, mj_solveM)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.math import linalg
from mjtorch.math.spatial import inertia_mul
from mjtorch.model import Data, Model
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
    d, factor = factorised(d, full_m(m, d))
    return d.replace(qLD=factor)


def factorised(d: Data, inertia: Tensor) -> tuple[Data, Tensor]:
    """Lower factor (nv, nv) of an `inertia` (nv, nv), and `d` with a warning more if that was too close to singular."""
    factor, clamped = linalg.ltl(inertia)
    return d.replace(warning=d.warning + F.pad(clamped[None], (INERTIA, len(d.warning) - INERTIA - 1))), factor


def full_m(m: Model, d: Data) -> Tensor:
    """M as a dense symmetric matrix (nv, nv) (mj_fullM)."""
    return torch.cat([d.M, d.M.new_zeros(1)])[m.plan.kinematics.M_dense]


def solve_m(m: Model, d: Data, x: Tensor) -> Tensor:
    """`M^-1 x` for x (nv,) or columns (nv, k), by the factor in `d.qLD` (mj_solveM)."""
    return linalg.ltl_solve(d.qLD, x)


def mul_m(m: Model, d: Data, x: Tensor) -> Tensor:
    """`M x` for x (nv,) or columns (nv, k) (mj_mulM)."""
    return full_m(m, d) @ x
