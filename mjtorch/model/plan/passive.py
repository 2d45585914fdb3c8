"""Index plan of the passive room."""

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree

FREE, BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)


@tree.dataclass(kw_only=True)
class PassivePlan(tree.Tree):
    """Where springs pull, and which kinds of passive force the model has.

    Every hinge and slide joint counts as a spring, every dof as damped, so that stiffness and damping may be batched or
    trained from zero. What costs more is left out where it is zero in the model that was put: springs of ball and free
    joints, polynomial terms, gravity compensation (`body_gravcomp`), the fluid (`opt.density`, `opt.viscosity`).

    scalar_joint, scalar_qpos: (nscalar,) hinge and slide joints, their address in qpos
    quat_qpos: (nturn, 4), shift_qpos: (nshift, 3) addresses in qpos of the ball and free joints with springs
    vector_joint: (nturn + nshift,) joint of each spring that has a direction, the turns first
    spring_dof: (nv,) where each dof's force lies in [scalar springs, vector springs, 0]
    gravcomp_dof: (nv,) 1 where gravity compensation is passive, 0 where actuators provide it (`jnt_actgravcomp`)
    """

    scalar_joint: Tensor
    scalar_qpos: Tensor
    quat_qpos: Tensor
    shift_qpos: Tensor
    vector_joint: Tensor
    spring_dof: Tensor
    gravcomp_dof: Tensor
    stiffness_poly: bool = tree.field(static=True)
    damping_poly: bool = tree.field(static=True)
    gravcomp: bool = tree.field(static=True)
    fluid: bool = tree.field(static=True)


def build(mj_model: mujoco.MjModel, device: torch.device, dtype: torch.dtype) -> PassivePlan:
    """The plan for `mj_model`."""
    kind, qpos, dof = mj_model.jnt_type, mj_model.jnt_qposadr, mj_model.jnt_dofadr
    has_spring = (mj_model.jnt_stiffness != 0) | (mj_model.jnt_stiffnesspoly != 0).any(axis=1)
    scalar = [j for j in range(mj_model.njnt) if kind[j] not in (FREE, BALL)]
    turn = [j for j in range(mj_model.njnt) if kind[j] in (FREE, BALL) and has_spring[j]]
    shift = [j for j in turn if kind[j] == FREE]
    quat_adr = [qpos[j] + 3 * (kind[j] == FREE) for j in turn]

    first = [dof[j] + 3 * (kind[j] == FREE) for j in turn] + [dof[j] for j in shift]
    pulled = [dof[j] for j in scalar] + [adr + k for adr in first for k in range(3)]
    spring_dof = np.full(mj_model.nv, len(pulled))
    spring_dof[np.array(pulled, dtype=int)] = np.arange(len(pulled))

    def index(x: object, *shape: int) -> Tensor:
        return torch.tensor(np.array(x, dtype=np.int64).reshape(-1, *shape), device=device)

    return PassivePlan(
        scalar_joint=index(scalar),
        scalar_qpos=index([qpos[j] for j in scalar]),
        quat_qpos=index([range(adr, adr + 4) for adr in quat_adr], 4),
        shift_qpos=index([range(qpos[j], qpos[j] + 3) for j in shift], 3),
        vector_joint=index(turn + shift),
        spring_dof=index(spring_dof),
        gravcomp_dof=torch.tensor(mj_model.jnt_actgravcomp[mj_model.dof_jntid] == 0, dtype=dtype, device=device),
        stiffness_poly=bool((mj_model.jnt_stiffnesspoly != 0).any()),
        damping_poly=bool((mj_model.dof_dampingpoly != 0).any()),
        gravcomp=bool((mj_model.body_gravcomp != 0).any()),
        fluid=bool(mj_model.opt.density or mj_model.opt.viscosity),
    )
