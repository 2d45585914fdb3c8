"""Rows of equalities that keep cells of grids from deforming (mj_instantiateEquality, "flexstrain")."""

import torch
from torch import Tensor

from mjtorch.flex.elasticity import corotated
from mjtorch.flex.kinematics import pair_motion, points
from mjtorch.model import Data, Model
from mjtorch.model.plan.flex import FlexPlan


def strain_rows(m: Model, d: Data, p: FlexPlan) -> tuple[Tensor, Tensor, Tensor]:
    """Error (n,), J (n, nv) and approximate inverse inertia (n,) [1/kg] of the ways in which cells must not deform.

    Each is a weighted sum of the displacements of a cell's nodes in a frame that turns with it; J leaves out that the
    frame turns.
    """
    pos = points(m, d, p)
    motion = pair_motion(d, p, pos)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for s in p.strains:
        frame, displaced = corotated(m, s.cells, pos)
        mode = m.flex_stiffness[s.mode].unflatten(-1, (-1, 3))
        error = (mode * displaced[s.cell]).sum((-2, -1))
        along = (mode @ frame.mT[s.cell])[s.entry_row, s.entry_node]
        rows = len(s.mode)
        flat = d.qvel.new_zeros(rows * m.nv).index_add(0, s.place, (along * motion[s.entry_pair]).sum(-1))
        found.append((error, flat.reshape(rows, m.nv), m.body_invweight0[s.body][..., 0].mean(-1)))
    error, J, weight = (torch.cat(x) for x in zip(*found, strict=True))
    return error, J, weight
