"""Recursive Newton-Euler as sums over the tree (mj_rne)."""

import torch
from torch import Tensor

from mjtorch.math.spatial import cross_force, inertia_mul
from mjtorch.model import Data, DisableBit, Model
from mjtorch.smooth.com import subtree_sum
from mjtorch.smooth.tendon import tendon_bias


def rne(m: Model, d: Data, *, flg_acc: bool = False) -> Data:
    """Bias force qfrc_bias: Coriolis, centrifugal and gravitational forces at zero acceleration (mj_rne).

    With what the armature of spatial tendons adds (mj_tendonBias).

    flg_acc: at the acceleration `qacc` instead: with the forces that it takes, but for those of armature
    """
    bias = inverse_dynamics(m, d, d.qacc if flg_acc else torch.zeros_like(d.qvel))
    return d.replace(qfrc_bias=bias + tendon_bias(m, d) if m.plan.tendon.swinging else bias)


def inverse_dynamics(m: Model, d: Data, qacc: Tensor) -> Tensor:
    """Generalised force (nv,) that gives `qacc` (nv,), without armature (mj_rne with flg_acc).

    Accelerations sum down the chains; forces `I a + v x* I v` sum up the subtrees and are projected on the dofs.
    """
    force = subtree_sum(m, body_force(d, body_acceleration(m, d, qacc)))
    return (d.cdof * force[m.plan.kinematics.dof_body]).sum(-1)


def body_acceleration(m: Model, d: Data, qacc: Tensor) -> Tensor:
    """Acceleration cacc (nbody, 6) of bodies under `qacc` (nv,), about the root's centre of mass.

    Rotation first [rad/s^2], then proper translation [m/s^2]: `-gravity` at rest.
    """
    cacc = m.plan.kinematics.body_dof @ (d.cdof_dot * d.qvel[:, None] + d.cdof * qacc[:, None])
    if not m.opt.disabled(DisableBit.GRAVITY):
        # An accelerating world instead of weight: every body is accelerated upwards.
        cacc = cacc - torch.cat([torch.zeros_like(m.opt.gravity), m.opt.gravity])
    return cacc


def body_force(d: Data, cacc: Tensor) -> Tensor:
    """Spatial force (nbody, 6) that gives each body by itself the acceleration `cacc` (nbody, 6)."""
    momentum = inertia_mul(d.cinert, torch.stack([cacc, d.cvel]))
    return momentum[0] + cross_force(d.cvel, momentum[1])
