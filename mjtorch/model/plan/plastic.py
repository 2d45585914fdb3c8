"""Index plan of plastic springs, which rest where they have last yielded to."""

from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.flex import FlexPlan
from mjtorch.model.plan.tensors import Tensors

BALL = 1


@tree.dataclass(kw_only=True)
class PlasticPlan(tree.Tree):
    """Where the rest positions and lengths of springs lie.

    rest_source: (nq,) where each rest position lies in [qpos_spring, plastic]
    ten_rest_source: (ntendon, 2) where each rest length lies in [tendon_lengthspring.flatten(), plastic]
    initial: (nplastic,) where `plastic` starts in [qpos_spring, tendon_lengthspring.flatten(), 0]
    joint, qpos, place: (k,) slides and hinges that yield, their address in qpos, and in `plastic`
    ball, ball_qpos, ball_place: (b,), (b, 4), (b, 4) the same for ball joints
    tendon, tendon_place: (t,), (t, 2) the same for tendons
    source: (nplastic,) where each new element lies in [slides and hinges, balls, tendons, flexes]
    """

    rest_source: Tensor
    ten_rest_source: Tensor
    initial: Tensor
    joint: Tensor
    qpos: Tensor
    place: Tensor
    ball: Tensor
    ball_qpos: Tensor
    ball_place: Tensor
    tendon: Tensor
    tendon_place: Tensor
    source: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors, flexes: tuple[FlexPlan, ...]) -> PlasticPlan:
    """The plan for `mj_model`."""
    fields: dict[str, Any] = {name: make.field(x) for name, x in _addresses(mj_model, flexes).items()}
    return PlasticPlan(**fields)


def _addresses(m: mujoco.MjModel, flexes: tuple[FlexPlan, ...]) -> dict[str, np.ndarray]:
    # MuJoCo before 4.0 has no plastic springs.
    joint_adr = getattr(m, "jnt_plasticadr", np.full(m.njnt, -1))
    tendon_adr = getattr(m, "tendon_plasticadr", np.full(m.ntendon, -1))
    joint = np.flatnonzero((joint_adr >= 0) & (m.jnt_type > BALL))
    ball = np.flatnonzero((joint_adr >= 0) & (m.jnt_type == BALL))
    tendon = np.flatnonzero(tendon_adr >= 0)
    qpos, ball_qpos = m.jnt_qposadr[joint], m.jnt_qposadr[ball, None] + np.arange(4)
    place, ball_place = joint_adr[joint], joint_adr[ball, None] + np.arange(4)
    tendon_place = tendon_adr[tendon, None] + np.arange(2)

    rest, lengths = np.arange(m.nq), np.arange(2 * m.ntendon).reshape(-1, 2)
    rest[qpos], rest[ball_qpos] = m.nq + place, m.nq + ball_place
    lengths[tendon] = lengths.size + tendon_place
    tendon_start = m.nq + 2 * tendon[:, None] + np.arange(2)
    places = np.concatenate([place, ball_place.ravel(), tendon_place.ravel()])
    places = np.concatenate([places, *(x.memory.cpu().numpy() for x in flexes)])
    starts = np.concatenate([qpos, ball_qpos.ravel(), tendon_start.ravel()])
    starts = np.pad(starts, (0, len(places) - len(starts)), constant_values=m.nq + 2 * m.ntendon)
    order = np.argsort(places)
    return {
        "rest_source": rest,
        "ten_rest_source": lengths,
        "initial": starts[order],
        "joint": joint,
        "qpos": qpos,
        "place": place,
        "ball": ball,
        "ball_qpos": ball_qpos,
        "ball_place": ball_place,
        "tendon": tendon,
        "tendon_place": tendon_place,
        "source": order,
    }
