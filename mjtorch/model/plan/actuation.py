"""Index plan of the actuation room."""

from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.subset import Subset, plan_field
from mjtorch.model.plan.transmission import servos, tendon as tendon_of

# A group outside 0..30 cannot be disabled; any larger number stands for all of them.
NO_GROUP, LAST_GROUP = 40, 30


@tree.dataclass(kw_only=True)
class ActuationPlan(tree.Tree):
    """How actuators, activations and joints refer to each other.

    Activations; stateful actuators have one each
        act_actuator: (na,) the actuator of each activation
        filters, exact, early, actlimited, act_wraps: (na,) dyntype filter or filterexact, dyntype filterexact,
            `actuator_actearly`, `actuator_actlimited`, integrators among `wraps`
        muscle_act: (k,) activations with muscle dynamics
        act_source: (na,) where each rate lies in [rates (na), muscle rates (k)]
    Forces
        ctrllimited, forcelimited: (nu,)
        input_source: (nu,) where each actuator's input lies in [ctrl (nu), act (na)]
        gain_affine, bias_affine: (nu,)
        muscle_gain, muscle_bias: (k,) actuators with muscle gain and bias
        gain_source, bias_source: (nu,) where each gain and bias lies in [the others' (nu), muscles' (k)]
        group: (nu,) group that `opt.disableactuator` refers to
        actfrclimited: (nv,) the joint's total actuator force is clamped
        ten_actfrclimited: (nu,) the total actuator force of the actuator's tendon is limited
        ten_share: (nu, nu) [i, j] is 1 where actuators i and j pull the same tendon
        ten_pulled: (nu,) the actuator's tendon, 0 if it has none
        actgravcomp: (nv,) gravity compensation counts as actuator force
        dof_joint: (nv,) joint of each dof
    """

    act_actuator: Tensor
    filters: Subset
    exact: Subset
    early: Subset
    actlimited: Subset
    act_wraps: Subset
    muscle_act: Tensor
    act_source: Tensor
    ctrllimited: Subset
    forcelimited: Subset
    input_source: Tensor
    gain_affine: Subset
    bias_affine: Subset
    muscle_gain: Tensor
    muscle_bias: Tensor
    gain_source: Tensor
    bias_source: Tensor
    group: Tensor
    actfrclimited: Subset
    ten_actfrclimited: Subset
    ten_share: Tensor
    ten_pulled: Tensor
    actgravcomp: Subset
    dof_joint: Tensor


def build(mj_model: mujoco.MjModel, device: torch.device, dtype: torch.dtype) -> ActuationPlan:
    """The plan for `mj_model`."""
    arrays = _activation(mj_model) | _force(mj_model)
    fields: dict[str, Any] = {name: plan_field(x, device, dtype) for name, x in arrays.items()}
    return ActuationPlan(**fields)


def _merge(n: int, replaced: np.ndarray) -> np.ndarray:
    """(n,) where each element lies in [all n elements, new values of the `replaced` ones]."""
    source = np.arange(n)
    source[replaced] = n + np.arange(len(replaced))
    return source


def _activation(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    actuator = np.zeros(m.na, dtype=np.int64)
    for i in np.flatnonzero(m.actuator_actadr >= 0):
        start = m.actuator_actadr[i]
        actuator[start : start + m.actuator_actnum[i]] = i
    dyn, kind = m.actuator_dyntype[actuator], mujoco.mjtDyn
    muscle = np.flatnonzero(dyn == kind.mjDYN_MUSCLE)
    return {
        "act_actuator": actuator,
        "filters": (dyn == kind.mjDYN_FILTER) | (dyn == kind.mjDYN_FILTEREXACT),
        "exact": dyn == kind.mjDYN_FILTEREXACT,
        "early": m.actuator_actearly[actuator].astype(bool),
        "actlimited": m.actuator_actlimited[actuator].astype(bool),
        "act_wraps": (servos(m)["wraps"] & (m.actuator_dyntype == kind.mjDYN_INTEGRATOR))[actuator],
        "muscle_act": muscle,
        "act_source": _merge(m.na, muscle),
    }


def _force(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    stateful = m.actuator_actnum > 0
    last = m.actuator_actadr + m.actuator_actnum - 1
    muscle_gain = np.flatnonzero(m.actuator_gaintype == mujoco.mjtGain.mjGAIN_MUSCLE)
    muscle_bias = np.flatnonzero(m.actuator_biastype == mujoco.mjtBias.mjBIAS_MUSCLE)
    limited = np.zeros(m.nv, dtype=bool)
    limited[m.jnt_dofadr[m.jnt_actfrclimited.astype(bool)]] = True
    group, tendon = m.actuator_group, tendon_of(m)
    ten_limited = np.append(m.tendon_actfrclimited, 0).astype(bool)[tendon] & (tendon >= 0)
    return {
        "ctrllimited": m.actuator_ctrllimited.astype(bool),
        "forcelimited": m.actuator_forcelimited.astype(bool),
        "input_source": np.where(stateful, m.nu + last, np.arange(m.nu)),
        "gain_affine": m.actuator_gaintype == mujoco.mjtGain.mjGAIN_AFFINE,
        "bias_affine": m.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE,
        "muscle_gain": muscle_gain,
        "muscle_bias": muscle_bias,
        "gain_source": _merge(m.nu, muscle_gain),
        "bias_source": _merge(m.nu, muscle_bias),
        "group": np.where((group < 0) | (group > LAST_GROUP), NO_GROUP, group),
        "actfrclimited": limited,
        "ten_actfrclimited": ten_limited,
        "ten_share": ((tendon == tendon[:, None]) & (tendon >= 0)).astype(float),
        "ten_pulled": np.maximum(tendon, 0),
        "actgravcomp": m.jnt_actgravcomp.astype(bool)[m.dof_jntid],
        "dof_joint": m.dof_jntid,
    }
