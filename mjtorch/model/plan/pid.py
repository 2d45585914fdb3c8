"""Index plan of the actuators that are MuJoCo's plugin `mujoco.pid`."""

from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import plugins
from mjtorch.model.plan.tensors import Subset, Tensors

# The attributes, in the order in which the plugin declares them.
KP, KI, KD, IMAX, SLEWMAX = range(5)


@tree.dataclass(kw_only=True)
class PidPlan(tree.Tree):
    """The n actuators that are PID controllers by plugin.

    out: (n,) their outputs
    control: (n,) which control each follows, limited: (n,) whether this has a range
    filtered: (n,) whether an activation stands for it, last: (n,) this
    integral, slewed: (n,) where the activations lie that hold the integral of the error and the last setpoint, in
        [act, 0]
    source: (na,) where each rate lies in [act, integrals, setpoints]
    gains: (n, 3) kp, ki and kd; imax: (n,) limit on the integral, slewmax: (n,) on the rate of the setpoint
    slews: (n,) whether there is one
    """

    out: Tensor
    limited: Subset
    control: Tensor
    filtered: Subset
    last: Tensor
    integral: Tensor
    slewed: Tensor
    source: Tensor
    gains: Tensor
    imax: Tensor
    slewmax: Tensor
    slews: Subset


def controllers(m: mujoco.MjModel) -> np.ndarray:
    """The actuators that are PID controllers by plugin."""
    known = np.array([*plugins.names(m), ""])
    return np.flatnonzero(known[m.actuator_plugin] == plugins.PID) if m.nplugin else np.zeros(0, dtype=np.int64)


def states(m: mujoco.MjModel) -> np.ndarray:
    """(na,) bool: the activations that belong to the plugin."""
    mine = np.zeros(m.na, dtype=bool)
    for i in controllers(m):
        own = m.actuator_actnum[i] - (m.actuator_dyntype[i] != mujoco.mjtDyn.mjDYN_NONE)
        mine[m.actuator_actadr[i] : m.actuator_actadr[i] + own] = True
    return mine


def build(m: mujoco.MjModel, make: Tensors) -> tuple[PidPlan, ...]:
    """The plan for `m`, if it has such actuators."""
    ids = controllers(m)
    if not len(ids):
        return ()
    given = np.array(
        [[float(x) if x else np.nan for x in plugins.configuration(m, int(m.actuator_plugin[i]))] for i in ids]
    )
    gains = np.nan_to_num(given[:, [KP, KI, KD]])
    integrates, slews = gains[:, 1] != 0, ~np.isnan(given[:, SLEWMAX])
    # The limit is given as one on the force.
    imax = np.where(
        integrates & ~np.isnan(given[:, IMAX]), given[:, IMAX] / np.where(integrates, gains[:, 1], 1), np.inf
    )
    filtered = m.actuator_dyntype[ids] != mujoco.mjtDyn.mjDYN_NONE
    first = m.actuator_actadr[ids]
    integral = np.where(integrates, first, m.na)
    slewed = np.where(slews, first + integrates, m.na)
    source = np.append(np.arange(m.na), 0)
    source[integral] = m.na + np.arange(len(ids))
    source[slewed] = m.na + len(ids) + np.arange(len(ids))
    fields = {
        "out": m.actuator_outadr[ids],
        "limited": m.actuator_ctrllimited[m.actuator_ctrladr[ids]].astype(bool),
        "control": m.actuator_ctrladr[ids],
        "filtered": filtered,
        "last": np.where(filtered, first + m.actuator_actnum[ids] - 1, m.na),
        "integral": integral,
        "slewed": slewed,
        "source": source[: m.na],
        "gains": gains,
        "imax": imax,
        "slewmax": np.where(slews, given[:, SLEWMAX], 0.0),
        "slews": slews,
    }
    made: dict[str, Any] = {name: make.field(x) for name, x in fields.items()}
    return (PidPlan(**made),)
