"""Index plan of the actuation room."""

from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import pid
from mjtorch.model.plan.servo import motors, slots, turners as servo_fields
from mjtorch.model.plan.tensors import Subset, Tensors
from mjtorch.model.plan.transmission import out_actuator, servos, tendon as tendon_of, wrapped_filters

# A group outside 0..30 cannot be disabled; any larger number stands for all of them.
NO_GROUP, LAST_GROUP = 40, 30


@tree.dataclass(kw_only=True)
class Actuators(tree.Tree):
    """Where the numbers of some actuators lie, k of them with n activations; for callbacks.

    id: (k,) in fields of the model such as actuator_gainprm
    ctrl: (k,) their controls, in `ctrl`; out: (k,) their outputs, in actuator_length and actuator_velocity
    act: (n,) their activations, in `act` and `act_dot`: those of an actuator side by side
    """

    id: Tensor
    ctrl: Tensor
    out: Tensor
    act: Tensor


@tree.dataclass(kw_only=True)
class ActuationPlan(tree.Tree):
    """How actuators, activations and joints refer to each other.

    plain: no output is that of a servo or DC motor; single: and actuators have an output each
    out_actuator: (nout,) the actuator of each output
    force_source: (nout,) where each force lies in [the others' (nout), PID servos, DC motors, orientation servos (3 s)]
    Activations
        act_control, act_output: (na,) the control that an activation follows (nu: none), its actuator's first output
        act_actuator: (na,) the actuator of each activation
        filters, exact, early, actlimited, act_wraps: (na,) dyntype filter or filterexact, dyntype filterexact,
            `actuator_actearly`, `actuator_actlimited`, integrators and filters among `wraps`
        muscle_act: (k,) activations with muscle dynamics
        act_source: (na,) where each rate lies in [rates (na), those of muscles, of controls whose rate of change is
            limited, of integrals, of the user's, of DC motors: temperatures, bristles and currents of all]
        motor_states: whether DC motors have any of the last
        user_dyn: those whose dynamics is the user's, if any
    Forces
        ctrllimited: (nu,), forcelimited: (nout,)
        input_source: (nout,) where each output's input lies in [ctrl (nu), act (na), 0]
        gain_affine, bias_affine: (nout,)
        muscle_gain, muscle_bias: (k,) outputs with muscle gain and bias
        user_gain, user_bias: those whose gain or bias is the user's, if any
        gain_source, bias_source: (nout,) where each gain and bias lies in [the others' (nout), muscles', the user's]
        group: (nout,) group that `opt.disableactuator` refers to
        actfrclimited: (nv,) the joint's total actuator force is clamped
        ten_actfrclimited: (nout,) the total actuator force of the actuator's tendon is limited
        ten_share: (nout, nout) [i, j] is 1 where actuators i and j pull the same tendon
        ten_pulled: (nout,) the actuator's tendon, 0 if it has none
        actgravcomp: (nv,) gravity compensation counts as actuator force
        dof_joint: (nv,) joint of each dof
    """

    plain: bool = tree.field(static=True)
    single: bool = tree.field(static=True)
    motor_states: bool = tree.field(static=True)
    out_actuator: Tensor
    force_source: Tensor
    act_actuator: Tensor
    act_control: Tensor
    act_output: Tensor
    filters: Subset
    exact: Subset
    early: Subset
    actlimited: Subset
    act_wraps: Subset
    muscle_act: Tensor
    user_dyn: tuple[Actuators, ...]
    act_source: Tensor
    ctrllimited: Subset
    forcelimited: Subset
    input_source: Tensor
    gain_affine: Subset
    bias_affine: Subset
    muscle_gain: Tensor
    muscle_bias: Tensor
    user_gain: tuple[Actuators, ...]
    user_bias: tuple[Actuators, ...]
    gain_source: Tensor
    bias_source: Tensor
    group: Tensor
    actfrclimited: Subset
    ten_actfrclimited: Subset
    ten_share: Tensor
    ten_pulled: Tensor
    actgravcomp: Subset
    dof_joint: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors) -> ActuationPlan:
    """The plan for `mj_model`."""
    arrays = _activation(mj_model) | _force(mj_model) | {"out_actuator": out_actuator(mj_model)}
    fields: dict[str, Any] = {name: make.field(x) for name, x in arrays.items()}
    fields |= {
        name: (Actuators(**{k: make.ints(x) for k, x in _at(mj_model, ids).items()}),) if len(ids) else ()
        for name, ids in _users(mj_model).items()
    }
    return ActuationPlan(
        plain=not (_special(mj_model) | motors(mj_model)).any(),
        single=bool((mj_model.actuator_outnum == 1).all()),
        motor_states=bool((slots(mj_model)[:, 2:] < mj_model.na).any()),
        **fields,
    )


def _special(m: mujoco.MjModel) -> np.ndarray:
    """(nactuator,) whether the force is that of a servo or DC motor of its own kind."""
    kinds = mujoco.mjtGain
    return np.isin(m.actuator_gaintype, [kinds.mjGAIN_PID, kinds.mjGAIN_DCMOTOR, kinds.mjGAIN_SO3])


def _users(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    """The ids of the actuators that have something of the user's."""
    kinds = {
        "user_dyn": m.actuator_dyntype == mujoco.mjtDyn.mjDYN_USER,
        "user_gain": m.actuator_gaintype == mujoco.mjtGain.mjGAIN_USER,
        "user_bias": m.actuator_biastype == mujoco.mjtBias.mjBIAS_USER,
    }
    return {name: np.flatnonzero(x) for name, x in kinds.items()}


def _at(m: mujoco.MjModel, ids: np.ndarray) -> dict[str, np.ndarray]:
    """The fields of `Actuators`."""
    parts = [m.actuator_actadr[i] + np.arange(m.actuator_actnum[i]) for i in ids]
    act = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    return {"id": ids, "ctrl": m.actuator_ctrladr[ids], "out": m.actuator_outadr[ids], "act": act}


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
    own = np.isin(dyn, [kind.mjDYN_PID, kind.mjDYN_DCMOTOR])
    by_plugin = pid.states(m)
    nth = np.arange(m.na) - m.actuator_actadr[actuator]
    nth[(dyn == kind.mjDYN_USER) | np.isin(actuator, pid.controllers(m))] = 0
    control = m.actuator_ctrladr[actuator] + nth
    output = m.actuator_outadr[actuator]
    motor, state = motors(m), slots(m)
    users = _at(m, _users(m)["user_dyn"])["act"]
    replaced = [muscle, *(state[state[:, k] < m.na, k] for k in (0, 1)), users]
    source = _merge(m.na, np.concatenate(replaced))
    own_states = state[motor, 2:].T.ravel()
    source[own_states[own_states < m.na]] = m.na + sum(map(len, replaced)) + np.flatnonzero(own_states < m.na)
    return {
        "act_actuator": actuator,
        "act_control": np.where(own, m.nu, control),
        "act_output": output,
        "filters": ((dyn == kind.mjDYN_FILTER) | (dyn == kind.mjDYN_FILTEREXACT)) & ~by_plugin,
        "exact": (dyn == kind.mjDYN_FILTEREXACT) | (np.arange(m.na)[:, None] == state[motor, 4]).any(axis=1),
        "early": m.actuator_actearly[actuator].astype(bool),
        "actlimited": m.actuator_actlimited[actuator].astype(bool) & (dyn != kind.mjDYN_DCMOTOR),
        "act_wraps": servos(m)["wraps"][output] & np.isin(dyn, [int(kind.mjDYN_INTEGRATOR), *wrapped_filters()]),
        "muscle_act": muscle,
        "act_source": source,
    }


def _force(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    actuator, gains, biases = out_actuator(m), mujoco.mjtGain, mujoco.mjtBias
    gain, bias, special = m.actuator_gaintype[actuator], m.actuator_biastype[actuator], _special(m)[actuator]
    last = m.actuator_actadr + m.actuator_actnum - 1
    source = np.where(m.actuator_actnum > 0, m.nu + last, m.actuator_ctrladr)[actuator]
    special_out = [np.flatnonzero(gain == gains.mjGAIN_PID), np.flatnonzero(motors(m)[actuator])]
    # The plan of servos has the orientation servos in an order of its own.
    turner_out = servo_fields(m)["turner_out"].ravel()
    muscle_gain, muscle_bias = np.flatnonzero(gain == gains.mjGAIN_MUSCLE), np.flatnonzero(bias == biases.mjBIAS_MUSCLE)
    users = {name: m.actuator_outadr[ids] for name, ids in _users(m).items()}
    limited = np.zeros(m.nv, dtype=bool)
    limited[m.jnt_dofadr[m.jnt_actfrclimited.astype(bool)]] = True
    group, tendon = m.actuator_group[actuator], tendon_of(m)
    ten_limited = np.append(m.tendon_actfrclimited, 0).astype(bool)[tendon] & (tendon >= 0)
    return {
        "ctrllimited": m.actuator_ctrllimited.astype(bool),
        "forcelimited": m.actuator_forcelimited[actuator].astype(bool) & (gain != gains.mjGAIN_SO3),
        "force_source": _merge(m.nout, np.concatenate([*special_out, turner_out])),
        "input_source": np.where(special, m.nu + m.na, source),
        "gain_affine": gain == gains.mjGAIN_AFFINE,
        "bias_affine": (bias == biases.mjBIAS_AFFINE) | (bias == biases.mjBIAS_SO3),
        "muscle_gain": muscle_gain,
        "muscle_bias": muscle_bias,
        "gain_source": _merge(m.nout, np.concatenate([muscle_gain, users["user_gain"]])),
        "bias_source": _merge(m.nout, np.concatenate([muscle_bias, users["user_bias"]])),
        "group": np.where((group < 0) | (group > LAST_GROUP), NO_GROUP, group),
        "actfrclimited": limited,
        "ten_actfrclimited": ten_limited,
        "ten_share": ((tendon == tendon[:, None]) & (tendon >= 0)).astype(float),
        "ten_pulled": np.maximum(tendon, 0),
        "actgravcomp": m.jnt_actgravcomp.astype(bool)[m.dof_jntid],
        "dof_joint": m.dof_jntid,
    }
