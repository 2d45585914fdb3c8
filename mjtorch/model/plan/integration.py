"""Index plan of the integrators and of the velocity derivatives they use."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.kinematics import KinematicsPlan
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.transmission import damping, on_joint
from mjtorch.model.plan.version import is_since

FREE, BALL = 0, 1


@tree.dataclass(kw_only=True)
class IntegrationPlan(tree.Tree):
    """Which parts of qpos are numbers and which are quaternions, and what depends on what.

    linear_qpos, linear_dof: (n,) addresses of the positions that add, and of their velocities
    quat_qpos: (k, 4), quat_dof: (k, 3) addresses of quaternions, and of their angular velocities
    qpos_source: (nq,) where each element of qpos lies in [linear, quaternions]
    dof_source: (nv,) where each element of qvel lies in [linear, angular velocities]
    free_body: (f,), free_dof: (f, 6) bodies that float alone: a free joint and no other in the tree
    free_M: (f, 6, 6) where each element of their blocks of the inertia lies in [M, 0]
    free_source: (nv,) where each dof's acceleration lies in [all dofs (nv), those of the bodies that float alone]
    bound: (nv, 1) 0 for the dofs of the bodies that float alone
    below, above: (nv, nv) 0/1, [i, j] is 1 where dof j moves the body of dof i; where only dof i moves that of dof j
    upto: (nv, nv) 0/1, [i, j] is 1 where dof j moves the frame in which the joint of dof i has acted
    damped: whether any dof, or an actuator on a joint, had damping
    rk_correction: Runge-Kutta combines angular velocities with the Munthe-Kaas correction, and advances activations
        with the velocities of actuators at the start (from MuJoCo 4.0 on)
    drops_saturated: actuators at the limit of their joint, tendon, voltage or rate of current lose their velocity
        derivative (from MuJoCo 4.0 on)
    """

    linear_qpos: Tensor
    linear_dof: Tensor
    quat_qpos: Tensor
    quat_dof: Tensor
    qpos_source: Tensor
    dof_source: Tensor
    free_body: Tensor
    free_dof: Tensor
    free_M: Tensor
    free_source: Tensor
    bound: Tensor
    below: Tensor
    above: Tensor
    upto: Tensor
    damped: bool = tree.field(static=True)
    rk_correction: bool = tree.field(static=True)
    drops_saturated: bool = tree.field(static=True)


def build(mj_model: mujoco.MjModel, make: Tensors, masks: KinematicsPlan) -> IntegrationPlan:
    """The plan for `mj_model`, whose chains of dofs are in `masks`."""
    below = masks.body_dof[masks.dof_body]
    addresses = {name: make.ints(x) for name, x in {**_positions(mj_model), **_floating(mj_model)}.items()}
    free_dof = addresses["free_dof"]
    return IntegrationPlan(
        **addresses,
        free_M=masks.M_dense[free_dof[:, :, None], free_dof[:, None, :]],
        bound=make.floats(_bound(mj_model)),
        below=below,
        above=below.mT * (1 - below),
        upto=below * (1 - masks.dof_before.mT),
        damped=bool(
            (mj_model.dof_damping > 0).any()
            or mj_model.dof_dampingpoly.any()
            or damping(mj_model, on_joint(mj_model)).any()
        ),
        rk_correction=is_since(4),
        drops_saturated=is_since(4),
    )


def _positions(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    quats = np.flatnonzero(m.jnt_type <= BALL)
    skip = 3 * (m.jnt_type[quats] == FREE)
    quat_qpos = (m.jnt_qposadr[quats] + skip)[:, None] + np.arange(4)
    quat_dof = (m.jnt_dofadr[quats] + skip)[:, None] + np.arange(3)
    linear_qpos = np.setdiff1d(np.arange(m.nq), quat_qpos)
    linear_dof = np.setdiff1d(np.arange(m.nv), quat_dof)
    return {
        "linear_qpos": linear_qpos,
        "linear_dof": linear_dof,
        "quat_qpos": quat_qpos,
        "quat_dof": quat_dof,
        "qpos_source": np.argsort(np.concatenate([linear_qpos, quat_qpos.ravel()])),
        "dof_source": np.argsort(np.concatenate([linear_dof, quat_dof.ravel()])),
    }


def _floating(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    alone = m.tree_dofnum[m.dof_treeid[m.jnt_dofadr]] == 6
    joints = np.flatnonzero((m.jnt_type == FREE) & alone)
    bodies, dofs = m.jnt_bodyid[joints], m.jnt_dofadr[joints][:, None] + np.arange(6)
    source = np.arange(m.nv)
    source[dofs.ravel()] = m.nv + np.arange(dofs.size)
    return {"free_body": bodies, "free_dof": dofs, "free_source": source}


def _bound(m: mujoco.MjModel) -> np.ndarray:
    bound = np.ones((m.nv, 1))
    bound[_floating(m)["free_dof"].ravel()] = 0
    return bound
