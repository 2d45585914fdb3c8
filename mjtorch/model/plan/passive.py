"""Index plan of the passive room."""

from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.transmission import damping, on_joint

FREE, BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)

# Which sizes the semi-axes of an ellipsoid about a geom are; of a capsule the radius adds to the last.
SEMIAXES = {
    int(mujoco.mjtGeom.mjGEOM_SPHERE): (0, 0, 0),
    int(mujoco.mjtGeom.mjGEOM_CAPSULE): (0, 0, 1),
    int(mujoco.mjtGeom.mjGEOM_CYLINDER): (0, 0, 1),
}


@tree.dataclass(kw_only=True)
class PassivePlan(tree.Tree):
    """Where springs pull, and which kinds of passive force the model has.

    Every hinge and slide joint counts as a spring, every dof as damped, so that stiffness and damping may be batched or
    trained from zero. What costs more is left out where it is zero in the model that was put: springs of ball and free
    joints, polynomial terms, gravity compensation (`body_gravcomp`).

    scalar_joint, scalar_qpos: (nscalar,) hinge and slide joints, their address in qpos
    quat_qpos: (nturn, 4), shift_qpos: (nshift, 3) addresses in qpos of the ball and free joints with springs
    vector_joint: (nturn + nshift,) joint of each spring that has a direction, the turns first
    spring_dof: (nv,) where each dof's force lies in [scalar springs, vector springs, 0]
    boxes, ellipsoids: whether the fluid, if there is one, acts on inertia boxes and on geoms as ellipsoids
    box_body: (nbody, 1) 0 for bodies with such geoms
    fluid_geom, fluid_body: (k,) these geoms, and their bodies; fluid_on: (nbody, k) 0/1, which geom is on which body
    fluid_floats: (k,) bool, on bodies that float alone
    semiaxis: (k, 3) where each semi-axis lies in the sizes of these geoms; capped: (k, 3) 1 if the radius adds to it
    gravcomp_dof: (nv,) 1 where gravity compensation is passive, 0 where actuators provide it (`jnt_actgravcomp`)
    """

    scalar_joint: Tensor
    scalar_qpos: Tensor
    quat_qpos: Tensor
    shift_qpos: Tensor
    vector_joint: Tensor
    spring_dof: Tensor
    gravcomp_dof: Tensor
    box_body: Tensor
    fluid_geom: Tensor
    fluid_body: Tensor
    fluid_on: Tensor
    fluid_floats: Tensor
    semiaxis: Tensor
    capped: Tensor
    boxes: bool = tree.field(static=True)
    ellipsoids: bool = tree.field(static=True)
    stiffness_poly: bool = tree.field(static=True)
    damping_poly: bool = tree.field(static=True)
    gravcomp: bool = tree.field(static=True)


def build(mj_model: mujoco.MjModel, make: Tensors) -> PassivePlan:
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

    return PassivePlan(
        **_ellipsoids(mj_model, make),
        scalar_joint=make.ints(scalar),
        scalar_qpos=make.ints([qpos[j] for j in scalar]),
        quat_qpos=make.ints([range(adr, adr + 4) for adr in quat_adr], -1, 4),
        shift_qpos=make.ints([range(qpos[j], qpos[j] + 3) for j in shift], -1, 3),
        vector_joint=make.ints(turn + shift),
        spring_dof=make.ints(spring_dof),
        gravcomp_dof=make.floats(mj_model.jnt_actgravcomp[mj_model.dof_jntid] == 0),
        stiffness_poly=bool((mj_model.jnt_stiffnesspoly != 0).any()),
        damping_poly=bool(mj_model.dof_dampingpoly.any() or damping(mj_model, on_joint(mj_model))[:, 1:].any()),
        gravcomp=bool((mj_model.body_gravcomp != 0).any()),
    )


def _ellipsoids(m: mujoco.MjModel, make: Tensors) -> dict[str, Any]:
    """What the fluid acts on as an ellipsoid."""
    geom = np.flatnonzero(m.geom_fluid[:, 0] > 0)
    body, kind = m.geom_bodyid[geom], m.geom_type[geom]
    box_body = np.ones((m.nbody, 1))
    box_body[body] = 0
    floats = (m.jnt_type == FREE) & (m.tree_dofnum[m.body_treeid[m.jnt_bodyid]] == 6)
    order = np.array([SEMIAXES.get(int(k), (0, 1, 2)) for k in kind], dtype=np.int64).reshape(-1, 3)
    capsule = kind == mujoco.mjtGeom.mjGEOM_CAPSULE

    return {
        "box_body": make.floats(box_body),
        "fluid_geom": make.ints(geom),
        "fluid_body": make.ints(body),
        "fluid_on": make.floats(np.arange(m.nbody)[:, None] == body),
        "fluid_floats": make.bools(np.isin(m.body_weldid[body], m.jnt_bodyid[floats])),
        "semiaxis": make.ints(3 * np.arange(len(geom))[:, None] + order),
        "capped": make.floats(capsule[:, None] * np.array([0.0, 0.0, 1.0])),
        "boxes": bool((box_body[1:] * (m.body_mass[1:, None] > 0)).any()),
        "ellipsoids": len(geom) > 0,
    }
