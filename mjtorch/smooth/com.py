"""Centres of mass, inertias and motion axes about them, and velocities (mj_comPos, mj_comVel)."""

import torch
from torch import Tensor

from mjtorch.math.spatial import cross_motion, symmetric
from mjtorch.math.vector import MIN_VALUE, cross
from mjtorch.model import Data, Model


def subtree_sum(m: Model, x: Tensor) -> Tensor:
    """Sum `x (nbody, ...)` over each body and all below it."""
    return (m.plan.kinematics.subtree @ x.flatten(1)).reshape(x.shape)


def inertia_about(inertia: Tensor, mat: Tensor, mass: Tensor, offset: Tensor) -> Tensor:
    """Ten-number inertia (n, 10) about a point, from principal moments (mju_inertCom).

    inertia: (n, 3) [kg m^2] principal moments, or (n, 6) with products behind, mat: (n, 3, 3) principal axes,
    mass: (n,) [kg], offset: (n, 3) [m] from the point to the centre of mass.
    """
    scaled = mat * inertia[:, None, :] if inertia.shape[1] == 3 else mat @ symmetric(inertia)
    principal = scaled @ mat.mT
    square = (offset * offset).sum(-1)[:, None, None] * torch.eye(3, dtype=mat.dtype, device=mat.device)
    full = principal + mass[:, None, None] * (square - offset[:, :, None] * offset[:, None, :])
    unique = full.flatten(1)[:, [0, 4, 8, 1, 2, 5]]
    return torch.cat([unique, mass[:, None] * offset, mass[:, None]], dim=-1)


def com_pos(m: Model, d: Data) -> Data:
    """Centre of mass of every subtree; inertias and dof axes about that of the kinematic tree's root (mj_comPos).

    Sets subtree_com, cinert, cdof. A subtree without mass has its "centre" at `xipos`.
    """
    p = m.plan.kinematics
    weighted = torch.cat([m.body_mass[:, None] * d.xipos, m.body_mass[:, None]], dim=-1)
    moment, mass = subtree_sum(m, weighted).split([3, 1], dim=-1)
    massless = mass < MIN_VALUE
    subtree_com = torch.where(massless, d.xipos, moment / torch.where(massless, 1.0, mass))

    root_com = subtree_com[p.body_root]
    cinert = inertia_about(m.body_inertia, d.ximat, m.body_mass, d.xipos - root_com)

    world = torch.eye(3, dtype=d.xmat.dtype, device=d.xmat.device)
    axis = torch.cat([d.xaxis, d.xmat.mT.flatten(0, 1), world])[p.dof_axis]
    arm = root_com[p.dof_body] - d.xanchor[p.dof_joint]
    turning = axis * p.dof_turns
    cdof = torch.cat([turning, torch.where(p.dof_turns > 0, cross(axis, arm), axis)], dim=-1)
    return d.replace(subtree_com=subtree_com, cinert=cinert, cdof=cdof)


def com_vel(m: Model, d: Data) -> Data:
    """Velocities of bodies and rates of change of the dof axes, about the root's centre of mass (mj_comVel).

    Sets cvel, cdof_dot. A dof's axis is carried by the dofs before it in the chain; the three dofs of a ball joint
    share the frame before the joint, free translations do not turn at all.
    """
    p = m.plan.kinematics
    v = d.cdof * d.qvel[:, None]
    cdof_dot = cross_motion(p.dof_before @ v, d.cdof) * p.dof_moving
    return d.replace(cvel=p.body_dof @ v, cdof_dot=cdof_dot)
