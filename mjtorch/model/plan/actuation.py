"""Index plan of the actuation room."""

from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree

FREE, BALL = 0, 1
TENDON = 4  # where a joint's type would stand
# A group outside 0..30 cannot be disabled; any larger number stands for all of them.
NO_GROUP, LAST_GROUP = 40, 30


@tree.dataclass(kw_only=True)
class Subset(tree.Tree):
    """Which of `n` elements have a property. mask: (n,) bool; some, every: static, so that a stage can skip work."""

    mask: Tensor
    some: bool = tree.field(static=True)
    every: bool = tree.field(static=True)


@tree.dataclass(kw_only=True)
class ActuationPlan(tree.Tree):
    """How actuators, activations and joints refer to each other.

    Transmissions; "wrench" is all gears in a row, the gears that are turned into another frame, a zero, and the moments
    of the actuators on tendons
        scalar_source: (nu,) where the position of each actuator's joint starts in [qpos, ten_length], or its tendon's
            length lies
        turned_qpos: (k, 4) quaternions of the joints whose actuators act in the parent frame of a ball or free joint
        turned_gear: (k, 3) where the gears to be turned lie in `actuator_gear.flatten()`
        ball_qpos: (b, 4), ball_gear: (b, 3) quaternion and wrench address of each actuator on a ball joint
        on_tendon: (nu,), pulling, pulled: (t,) actuators on tendons, and their tendons
        length_source: (nu,) where each length lies in [scalar joints and tendons (nu), ball joints (b), 0]
        moment_source: (nu, nv) where each element of the moment lies in the wrench
        has_scalar_length: all actuators act on slide and hinge joints and tendons
        scalar: all actuators act on slide and hinge joints
        wraps: (nu,) could be position servos on a ball joint, whose setpoint is an angle
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

    scalar_source: Tensor
    turned_qpos: Tensor
    turned_gear: Tensor
    ball_qpos: Tensor
    ball_gear: Tensor
    on_tendon: Subset
    pulling: Tensor
    pulled: Tensor
    length_source: Tensor
    moment_source: Tensor
    has_scalar_length: bool = tree.field(static=True)
    scalar: bool = tree.field(static=True)
    wraps: Subset
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
    arrays = {**_transmission(mj_model), **_activation(mj_model), **_force(mj_model)}
    fields: dict[str, Any] = {name: _plan_field(x, device) for name, x in arrays.items()}
    has_scalar_length = bool((_kind(mj_model) > BALL).all())
    tendon = _tendon(mj_model)
    return ActuationPlan(
        has_scalar_length=has_scalar_length,
        scalar=has_scalar_length and bool((tendon < 0).all()),
        ten_share=torch.tensor((tendon == tendon[:, None]) & (tendon >= 0), dtype=dtype, device=device),
        **fields,
    )


def _plan_field(x: np.ndarray, device: torch.device) -> Tensor | Subset:
    """A boolean array becomes a `Subset`, addresses become int64."""
    if x.dtype == bool:
        return Subset(mask=torch.tensor(x, device=device), some=bool(x.any()), every=bool(x.all()))
    return torch.tensor(x.astype(np.int64), device=device)


def _joint(m: mujoco.MjModel) -> np.ndarray:
    """(nu,) the joint that each actuator acts on, 0 for those on tendons."""
    return np.where(_tendon(m) < 0, m.actuator_trnid[:, 0], 0)


def _tendon(m: mujoco.MjModel) -> np.ndarray:
    """(nu,) the tendon that each actuator acts on, -1 for those on joints."""
    return np.where(m.actuator_trntype == mujoco.mjtTrn.mjTRN_TENDON, m.actuator_trnid[:, 0], -1)


def _kind(m: mujoco.MjModel) -> np.ndarray:
    """(nu,) the type of the joint that each actuator acts on, TENDON for those on tendons."""
    return np.where(_tendon(m) < 0, m.jnt_type[_joint(m)] if m.njnt else 0, TENDON)


def _merge(n: int, replaced: np.ndarray) -> np.ndarray:
    """(n,) where each element lies in [all n elements, new values of the `replaced` ones]."""
    source = np.arange(n)
    source[replaced] = n + np.arange(len(replaced))
    return source


def _transmission(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    joint, kind, tendon = _joint(m), _kind(m), _tendon(m)
    qposadr, dofadr = m.jnt_qposadr[joint], m.jnt_dofadr[joint]
    quat_qpos = qposadr + 3 * (kind == FREE)
    turning_gear = 6 * np.arange(m.nu) + 3 * (kind == FREE)

    in_parent = m.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINTINPARENT
    turned = np.flatnonzero(in_parent & (kind <= BALL))
    ball = np.flatnonzero(kind == BALL)
    pulling = np.flatnonzero(kind == TENDON)
    zero = 6 * m.nu + 3 * len(turned)

    # Where the rotational (or only) part of each wrench lies: turned ones follow the plain gears.
    rotation = turning_gear.copy()
    rotation[turned] = 6 * m.nu + 3 * np.arange(len(turned))
    moment = np.full((m.nu, m.nv), zero)
    for i in range(m.nu):
        dof = dofadr[i]
        if kind[i] == FREE:
            moment[i, dof : dof + 3] = 6 * i + np.arange(3)
            moment[i, dof + 3 : dof + 6] = rotation[i] + np.arange(3)
        else:
            count = 3 if kind[i] == BALL else 1
            moment[i, dof : dof + count] = rotation[i] + np.arange(count)
    moment[pulling] = zero + 1 + np.arange(len(pulling) * m.nv).reshape(len(pulling), m.nv)

    length = np.where(kind == FREE, m.nu + len(ball), np.arange(m.nu))
    length[ball] = m.nu + np.arange(len(ball))
    return {
        "scalar_source": np.where(kind == TENDON, m.nq + tendon, qposadr),
        "turned_qpos": quat_qpos[turned, None] + np.arange(4),
        "turned_gear": turning_gear[turned, None] + np.arange(3),
        "ball_qpos": quat_qpos[ball, None] + np.arange(4),
        "ball_gear": rotation[ball, None] + np.arange(3),
        "on_tendon": kind == TENDON,
        "pulling": pulling,
        "pulled": tendon[pulling],
        "length_source": length,
        "moment_source": moment,
        "wraps": _wraps(m),
    }


def _wraps(m: mujoco.MjModel) -> np.ndarray:
    """(nu,) actuators shaped like a position servo on a ball joint; their gains decide at run time."""
    stateless_or_integrator = (m.actuator_dyntype == mujoco.mjtDyn.mjDYN_NONE) | (
        m.actuator_dyntype == mujoco.mjtDyn.mjDYN_INTEGRATOR
    )
    return (
        (_kind(m) == BALL)
        & (m.actuator_gaintype == mujoco.mjtGain.mjGAIN_FIXED)
        & (m.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE)
        & stateless_or_integrator
    )


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
        "act_wraps": (_wraps(m) & (m.actuator_dyntype == kind.mjDYN_INTEGRATOR))[actuator],
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
    group, tendon = m.actuator_group, _tendon(m)
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
        "ten_pulled": np.maximum(tendon, 0),
        "actgravcomp": m.jnt_actgravcomp.astype(bool)[m.dof_jntid],
        "dof_joint": m.dof_jntid,
    }
