"""Friction loss of dofs and tendons (mj_instantiateFriction)."""

import torch
from torch import Tensor

from mjtorch.constraint.element import Elements
from mjtorch.model import Data, Model


def friction(m: Model, d: Data) -> tuple[Elements, Tensor]:
    """One row per dof that had friction loss when the model was put; active while it still has.

    Returns the elements and J (nf, nv).
    """
    p = m.plan.constraint
    dof = p.friction_dof
    zero = torch.zeros_like(d.qvel[dof])
    elements = Elements(
        solref=m.dof_solref[dof],
        solimp=m.dof_solimp[dof],
        pos=zero,
        margin=zero,
        diag=m.dof_invweight0[dof],
        active=m.dof_frictionloss[dof] != 0,
    )
    return elements, p.friction_column


def tendon_friction(m: Model, d: Data) -> tuple[Elements, Tensor]:
    """One row per tendon that had friction loss when the model was put; active while it still has.

    Returns the elements and J (n, nv).
    """
    k = m.plan.constraint.tendon.friction
    zero = torch.zeros_like(d.ten_length[k])
    elements = Elements(
        solref=m.tendon_solref_fri[k],
        solimp=m.tendon_solimp_fri[k],
        pos=zero,
        margin=zero,
        diag=m.tendon_invweight0[k],
        active=m.tendon_frictionloss[k] != 0,
    )
    return elements, d.ten_J[k]


def frictionloss(m: Model) -> Tensor:
    """The bounds (nf,) [N or N m] of the friction rows."""
    p = m.plan.constraint
    bound = m.dof_frictionloss[p.friction_dof]
    return torch.cat([bound, m.tendon_frictionloss[p.tendon.friction]]) if p.tendon.friction.shape[0] else bound
