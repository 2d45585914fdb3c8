"""What `put_model` leaves out of the program because it is zero: a number that comes there later would do nothing."""

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch.control_flow.context import is_traced, level_of
from mjtorch.model.plan.flex import flat_hinges, slack_elements
from mjtorch.model.plan.sensor import UNCLIPPED
from mjtorch.model.plan.tendon import spatial_tendons
from mjtorch.model.plan.transmission import damping, on_joint, on_tendon

# By field: the elements of one world, counted as if it were flat, that must stay zero.
LeftOut = tuple[tuple[str, tuple[int, ...]], ...]
Shapes = tuple[tuple[str, tuple[int, ...]], ...]

TURNING = (int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL))
CLIPPED = (int(mujoco.mjtDataType.mjDATATYPE_REAL), int(mujoco.mjtDataType.mjDATATYPE_POSITIVE))


def left_out(m: mujoco.MjModel) -> LeftOut:
    """What a program for `m` has not got; the rooms of `mjtorch.model.plan` decide it, each for its own."""
    clipped = np.isin(m.sensor_datatype, CLIPPED) & ~np.isin(m.sensor_type, UNCLIPPED)
    sticky = m.geom_adhesion.any() or m.pair_adhesion.any()
    found = {
        **_of_joints(m),
        **_of_tendons(m),
        **_of_actuators(m),
        "body_gravcomp": _all_or_none(m.body_gravcomp),
        "geom_surfacevel": _all_or_none(m.geom_surfacevel),
        "geom_adhesion": np.full(m.ngeom, not sticky),
        "pair_adhesion": np.full(m.npair, not sticky),
        "geom_fluid": (m.geom_fluid == 0) & (np.arange(m.geom_fluid.shape[1]) == 0),
        **_of_flexes(m),
        "sensor_cutoff": (m.sensor_cutoff == 0) & clipped,
    }
    return tuple((name, tuple(np.flatnonzero(x).tolist())) for name, x in found.items() if np.any(x))


def check_left_out(elements: LeftOut, shapes: Shapes, changes: Mapping[str, Any]) -> None:
    """Raise `ValueError` where one of the `changes` gives a number to what was left out.

    Numbers that are not known, in a function that is traced or mapped, are not looked at.
    """
    if torch.compiler.is_dynamo_compiling():
        return
    for name, flat in elements:
        x = changes.get(name)
        if not isinstance(x, Tensor) or x.is_meta or level_of(x) or is_traced([x]):
            continue
        shape = dict(shapes)[name]
        if tuple(x.shape[x.dim() - len(shape) :]) != shape:  # which `step` refuses
            continue
        wrong = x.detach().reshape(-1, *shape).flatten(1)[:, list(flat)].any(0).nonzero()
        if len(wrong):
            element = flat[int(wrong[0, 0])] // max(1, int(np.prod(shape[1:])))
            raise ValueError(
                f"replace: m.{name}[{element}] was zero when the model was put, and what it is for was left out; give "
                "it a number in mj_model before put_model"
            )


def _all_or_none(x: np.ndarray) -> np.ndarray:
    """All elements, if none has a number."""
    return np.full(x.shape, not x.any())


def _of_joints(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    limp = ~((m.jnt_stiffness != 0) | m.jnt_stiffnesspoly.any(axis=1)) & np.isin(m.jnt_type, TURNING)
    by_actuators = damping(m, on_joint(m))[:, 1:].any()
    return {
        "jnt_stiffness": limp,
        "jnt_stiffnesspoly": _all_or_none(m.jnt_stiffnesspoly) | limp[:, None],
        "dof_dampingpoly": _all_or_none(m.dof_dampingpoly) & ~by_actuators,
        "dof_frictionloss": m.dof_frictionloss == 0,
    }


def _of_tendons(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    by_actuators, loaded = damping(m, on_tendon(m)), np.zeros(m.ntendon, dtype=bool)
    loaded[m.actuator_trnid[on_tendon(m) & (m.actuator_armature != 0), 0]] = True
    heavy, spatial = loaded | (m.tendon_armature != 0), spatial_tendons(m)
    springs_bend, dampers_bend = m.tendon_stiffnesspoly.any(), m.tendon_dampingpoly.any() or by_actuators[:, 1:].any()
    return {
        "tendon_stiffness": _all_or_none(m.tendon_stiffness) & ~springs_bend,
        "tendon_stiffnesspoly": np.full(m.tendon_stiffnesspoly.shape, not springs_bend),
        "tendon_damping": _all_or_none(m.tendon_damping) & ~by_actuators.any() & ~dampers_bend,
        "tendon_dampingpoly": np.full(m.tendon_dampingpoly.shape, not dampers_bend),
        "tendon_armature": np.where(spatial, not heavy[spatial].any(), not heavy.any()),
        "tendon_frictionloss": m.tendon_frictionloss == 0,
    }


def _of_actuators(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    names = ("actuator_damping", "actuator_dampingpoly", "actuator_armature")
    found = {name: np.zeros(getattr(m, name).shape, dtype=bool) for name in names}
    for some, bends in ((on_joint(m), m.dof_dampingpoly.any()), (on_tendon(m), m.tendon_dampingpoly.any())):
        both = damping(m, some)
        found["actuator_damping"][some] = not both.any()
        found["actuator_dampingpoly"][some] = not both.any() or not (both[:, 1:].any() or bends)
        found["actuator_armature"][some] = not m.actuator_armature[some].any()
    return found


def _of_flexes(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    """Springs and dampers of flexes that have none, elements without stiffness, references that are flat."""
    found = {name: getattr(m, name) == 0 for name in ("flex_edgestiffness", "flex_edgedamping", "flex_damping")}
    found["flex_stiffness"], found["flex_bending"] = slack_elements(m), flat_hinges(m)
    return found
