"""Index plan of the actuators with controllers of their own: PID and orientation servos, DC motors."""

from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.tensors import Subset, Tensors
from mjtorch.model.plan.transmission import out_actuator

Dyn, Gain, Bias = mujoco.mjtDyn, mujoco.mjtGain, mujoco.mjtBias
# mjtInput: the controls that a servo may have, in their order
INPUTS = (1, 2, 4, 8)
QUATERNION = 2  # mjtChart
# Places in the parameters (XMLreference, "pid", "dcmotor")
PID_IMAX, PID_SLEW, MOTOR_SLEW, MOTOR_IMAX = 0, 1, 7, 8
NDYN = mujoco.mjNDYN
SLOTS = 5
SLEW, INTEGRAL, TEMPERATURE, BRISTLE, CURRENT = range(SLOTS)


@tree.dataclass(kw_only=True)
class ServoPlan(tree.Tree):
    """PID and orientation servos, and what DC motors share with the former.

    "Inputs" are [ctrl, 0], "states" [act, 0], where what an actuator lacks is zero.
        slew_act, slew_ctrl, slew_out, slew_prm: (k,) limits on the rate of change of a control: the activation that
            holds what it has come to, the control, the output, and the address of the limit in `actuator_dynprm`
        slewed_source: (nu,) where each control lies in [ctrl, limited ones]
        integral_act, integral_ctrl, integral_out, integral_prm: (k,) the same for integrals of the position error
        is_pid: (nout,); pid_actuator, pid_out: (p,)
        pid_input: (p, 3) position, velocity and force among the inputs; pid_state: (p,) integral among the states
        turner: (s,) orientation servos: those whose target is a rotation vector, then those with quaternions
        turner_out: (s, 3); expmap: (e, 3) address of each rotation vector in [ctrl, act]; quaternion: (s - e, 4)
        turner_act: (t, 3) activations that hold rotation vectors
        is_turner: (nout,), turner_limited: (s,) has a limit on its torque
    """

    slew_act: Tensor
    slew_ctrl: Tensor
    slew_out: Tensor
    slew_prm: Tensor
    slewed_source: Tensor
    integral_act: Tensor
    integral_ctrl: Tensor
    integral_out: Tensor
    integral_prm: Tensor
    is_pid: Subset
    pid_actuator: Tensor
    pid_out: Tensor
    pid_input: Tensor
    pid_state: Tensor
    turner: Tensor
    turner_out: Tensor
    expmap: Tensor
    quaternion: Tensor
    turner_act: Tensor
    is_turner: Subset
    turner_limited: Subset


@tree.dataclass(kw_only=True)
class MotorPlan(tree.Tree):
    """DC motors: n actuators whose dynamics, gain or bias is that of one.

    whole: all three of all of them are
    actuator, out: (n,); inputs: (n, 4) position, velocity, torque and voltage among the inputs
    state: (n, 5) slew, integral, temperature, bristle and current among the states
    drives, resists: (n,) have the gain and the bias of a motor
    follows: (n,) the torque follows the voltage within the time step: gain of a motor, no current that is used late
    controlled, thermal, bristled, inductive: (n,) have a controller, and states of these kinds
    integral_act, integral_motor, bristle_act, bristle_motor: (k,) activations of these kinds, and their motors
    next_source: (na,) where each new activation lies in [all, integrals, bristles]
    """

    whole: bool = tree.field(static=True)
    actuator: Tensor
    out: Tensor
    inputs: Tensor
    state: Tensor
    drives: Subset
    resists: Subset
    follows: Subset
    controlled: Subset
    thermal: Subset
    bristled: Subset
    inductive: Subset
    integral_act: Tensor
    integral_motor: Tensor
    bristle_act: Tensor
    bristle_motor: Tensor
    next_source: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors) -> tuple[ServoPlan, MotorPlan]:
    """The plans for `mj_model`."""

    def fields(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        return {name: make.field(x) for name, x in arrays.items()}

    servos = _states(mj_model) | _pid(mj_model) | turners(mj_model)
    whole = bool(np.all(motor_parts(mj_model)[:, motors(mj_model)]))
    return ServoPlan(**fields(servos)), MotorPlan(whole=whole, **fields(_motors(mj_model)))


def slots(m: mujoco.MjModel) -> np.ndarray:
    """(nactuator, 5) activations of slew, integral, temperature, bristle and current; `na` where there is none.

    Only those that change as in DC motors and PID servos.
    """
    zero = np.zeros(m.nactuator)
    moves, pid = m.actuator_dyntype == Dyn.mjDYN_DCMOTOR, m.actuator_dyntype == Dyn.mjDYN_PID
    pids = np.stack([m.actuator_dynprm[:, PID_SLEW], m.actuator_gainprm[:, 0], zero, zero, zero], axis=1) > 0
    return _addresses(m, (_motor_states(m) & moves[:, None]) | (pids & pid[:, None]))


def _motor_states(m: mujoco.MjModel) -> np.ndarray:
    """(nactuator, 5) which activations the parameters of DC motors ask for."""
    dyn, gain = m.actuator_dynprm, m.actuator_gainprm
    return np.stack([dyn[:, MOTOR_SLEW], gain[:, 5], dyn[:, 2], dyn[:, 5], dyn[:, 0]], axis=1) > 0


def _addresses(m: mujoco.MjModel, there: np.ndarray) -> np.ndarray:
    """(nactuator, 5) where the activations lie that are `there`, one after the other; `na` for others."""
    return np.where(there, m.actuator_actadr[:, None] + np.cumsum(there, axis=1) - 1, m.na)


def motor_parts(m: mujoco.MjModel) -> np.ndarray:
    """(3, nactuator) whether the dynamics, the gain and the bias is that of a DC motor."""
    types = (m.actuator_dyntype, Dyn.mjDYN_DCMOTOR), (m.actuator_gaintype, Gain.mjGAIN_DCMOTOR)
    return np.array([kinds == kind for kinds, kind in (*types, (m.actuator_biastype, Bias.mjBIAS_DCMOTOR))])


def motors(m: mujoco.MjModel) -> np.ndarray:
    """(nactuator,) actuators that are DC motors in some part."""
    return np.any(motor_parts(m), axis=0)


def misses_states(m: mujoco.MjModel) -> np.ndarray:
    """(nactuator,) DC motors without the activations that their parameters ask for: C stops there, or errs."""
    moves, drives, resists = motor_parts(m)
    there = _motor_states(m)
    bristle = there[:, BRISTLE] & (there[:, : BRISTLE + 1].sum(axis=1) > m.actuator_actnum)
    return ((moves | drives) & (there.sum(axis=1) != m.actuator_actnum)) | (resists & bristle)


def _inputs(m: mujoco.MjModel, actuator: np.ndarray) -> np.ndarray:
    """(n, 4) where position, velocity, force and voltage lie in [ctrl, 0]."""
    there = (m.actuator_ctrlspec[actuator, None] & np.array(INPUTS)) != 0
    return np.where(there, m.actuator_ctrladr[actuator, None] + np.cumsum(there, axis=1) - 1, m.nu)


def _states(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    """Controls whose rate of change is limited, and integrals of the position error."""
    result: dict[str, np.ndarray] = {}
    for slot, name, pid, motor in ((SLEW, "slew", PID_SLEW, MOTOR_SLEW), (INTEGRAL, "integral", PID_IMAX, MOTOR_IMAX)):
        actuator = np.flatnonzero(slots(m)[:, slot] < m.na)
        result |= {
            f"{name}_act": slots(m)[actuator, slot],
            f"{name}_ctrl": m.actuator_ctrladr[actuator],
            f"{name}_out": m.actuator_outadr[actuator],
            f"{name}_prm": NDYN * actuator + np.where(motors(m)[actuator], motor, pid),
        }
    source = np.arange(m.nu)
    source[result["slew_ctrl"]] = m.nu + np.arange(len(result["slew_ctrl"]))
    return result | {"slewed_source": source}


def _pid(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    is_pid = m.actuator_gaintype == Gain.mjGAIN_PID
    actuator = np.flatnonzero(is_pid)
    return {
        "is_pid": is_pid[out_actuator(m)],
        "pid_actuator": actuator,
        "pid_out": m.actuator_outadr[actuator],
        "pid_input": _inputs(m, actuator)[:, :3],
        "pid_state": slots(m)[actuator, INTEGRAL],
    }


def turners(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    """Orientation servos: the fields of `ServoPlan` about them."""
    is_turner = m.actuator_gaintype == Gain.mjGAIN_SO3
    by_quaternion = m.actuator_ctrlspec == QUATERNION
    vectors, quaternions = np.flatnonzero(is_turner & ~by_quaternion), np.flatnonzero(is_turner & by_quaternion)
    turner = np.concatenate([vectors, quaternions])
    holds = m.actuator_actnum[vectors] > 0
    first = np.where(holds, m.nu + m.actuator_actadr[vectors], m.actuator_ctrladr[vectors])
    return {
        "turner": turner,
        "turner_out": m.actuator_outadr[turner, None] + np.arange(3),
        "expmap": first[:, None] + np.arange(3),
        "quaternion": m.actuator_ctrladr[quaternions, None] + np.arange(4),
        "turner_act": m.actuator_actadr[vectors[holds], None] + np.arange(3),
        "is_turner": is_turner[out_actuator(m)],
        "turner_limited": m.actuator_forcelimited[turner].astype(bool),
    }


def _motors(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    actuator = np.flatnonzero(motors(m))
    moves, drives, resists = motor_parts(m)[:, actuator, None]
    there = _motor_states(m)[actuator]
    # Of bristles both dynamics and bias know, of the other states dynamics and gain.
    known = there & np.where(np.arange(SLOTS) == BRISTLE, moves | resists, moves | drives)
    state = np.where(known, _addresses(m, _motor_states(m))[actuator], m.na)
    integral, bristle = (np.flatnonzero(there[:, k] & moves[:, 0]) for k in (INTEGRAL, BRISTLE))
    source = np.arange(m.na)
    changed = np.concatenate([state[integral, INTEGRAL], state[bristle, BRISTLE]])
    source[changed] = m.na + np.arange(len(changed))
    return {
        "actuator": actuator,
        "out": m.actuator_outadr[actuator],
        "inputs": _inputs(m, actuator),
        "state": state,
        "drives": drives[:, 0],
        "resists": resists[:, 0],
        "follows": drives[:, 0] & (m.actuator_actearly[actuator].astype(bool) | ~there[:, CURRENT]),
        "controlled": (_inputs(m, actuator)[:, :3] < m.nu).any(axis=1),
        "thermal": there[:, TEMPERATURE],
        "bristled": there[:, BRISTLE],
        "inductive": there[:, CURRENT],
        "integral_act": state[integral, INTEGRAL],
        "integral_motor": integral,
        "bristle_act": state[bristle, BRISTLE],
        "bristle_motor": bristle,
        "next_source": source,
    }
