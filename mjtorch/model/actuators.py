"""Which actuators use what, and what of it is refused: rows of the table of `support`."""

from collections.abc import Callable

import mujoco
import numpy as np
from mujoco import mjtBias, mjtDyn, mjtGain, mjtTrn

from mjtorch.model.plan.servo import misses_states, motor_parts, motors

Test = Callable[[mujoco.MjModel], np.ndarray]


def _multiple(m: mujoco.MjModel) -> np.ndarray:
    """(nactuator,) actuators with more than one control, output or activation."""
    return (m.actuator_ctrlnum != 1) | (m.actuator_outnum != 1) | (m.actuator_actnum > 1)


def _partly_motor(m: mujoco.MjModel) -> np.ndarray:
    """(nactuator,) actuators of whose three types some are those of a DC motor, but not all."""
    return motors(m) & ~motor_parts(m).all(axis=0)


def _mixed(m: mujoco.MjModel) -> np.ndarray:
    """(nactuator,) actuators with some types of a PID or orientation servo beside others."""
    trn, dyn, gain, bias = m.actuator_trntype, m.actuator_dyntype, m.actuator_gaintype, m.actuator_biastype
    plain = np.isin(dyn, [mjtDyn.mjDYN_NONE, mjtDyn.mjDYN_INTEGRATOR])
    turner = [gain == mjtGain.mjGAIN_SO3, bias == mjtBias.mjBIAS_SO3, trn == mjtTrn.mjTRN_SO3]
    affine = (bias == mjtBias.mjBIAS_AFFINE) & np.isin(dyn, [mjtDyn.mjDYN_NONE, mjtDyn.mjDYN_PID])
    pid = gain == mjtGain.mjGAIN_PID
    partly = np.any(turner, axis=0) & ~np.all(turner, axis=0)
    return partly | (turner[0] & ~plain) | (pid & ~affine) | (~pid & (dyn == mjtDyn.mjDYN_PID))


SUPPORTED: tuple[tuple[str, Test], ...] = (
    ("several controls, outputs and activations", _multiple),
    ("dcmotor beside other types", _partly_motor),
)
# What is not in MuJoCo, either.
ABSENT: tuple[tuple[str, Test, str], ...] = (
    ("dcmotor without the activations that its parameters ask for", misses_states, "set actdim accordingly"),
    ("pid or so3 beside other types", _mixed, "use the shortcuts"),
)
