"""Index plan of the buffers that hold past controls and past readings of sensors."""

from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.tensors import Subset, Tensors
from mjtorch.model.plan.version import is_since


@tree.dataclass(kw_only=True)
class Rings(tree.Tree):
    """Rings of samples, and in `history` one after the other: for each of k channels the place of its ring.

    A ring of n samples is a number for the user, the place of the newest sample, n times, and n values for each of its
    channels. Rings are taken as if all had as many samples as the longest, N; what is beyond n means nothing.

    count: (k, 1) n; slot: (1, N) 0, 1, 2, ...
    user, cursor: (k,), times, values: (k, N) addresses in `history`
    source: (nhistory,) where each element lies in [users, cursors, times, values, history]
    owner: (k,) the actuator or sensor; element: (k,) its control, or element of sensordata
    delayed: (k,); interpolation: (k,) 0 hold, 1 linear, 2 cubic; smooth: whether one that is read is not 0
    """

    count: Tensor
    slot: Tensor
    user: Tensor
    cursor: Tensor
    times: Tensor
    values: Tensor
    source: Tensor
    owner: Tensor
    element: Tensor
    delayed: Subset
    interpolation: Tensor
    smooth: bool = tree.field(static=True)


@tree.dataclass(kw_only=True)
class HistoryPlan(tree.Tree):
    """The rings of actuators, whose channels are controls, and those of sensors.

    control_source: (nu,) where each control lies in [ctrl, delayed ones (k)]
    periodic: (k,) of the channels of sensors, whether these measure at intervals
    initial_time: (nhistory,) times in time steps, at the beginning; initial: (nhistory,) what else is not zero
    ticked: (r,) elements that are times at the beginning of sensors that measure at intervals; of_sensor: (r,) these
        sensors; before: (r,) how many intervals before the first; rounded: (r,) whether up to a time step
    slack: how far above a time step, relative to it, a time counts as the same (from MuJoCo 4.0 on)
    distinct: whether these times are at least a time step apart, however short the interval (from MuJoCo 4.0 on)
    """

    controls: Rings
    readings: Rings
    control_source: Tensor
    periodic: Subset
    initial_time: Tensor
    initial: Tensor
    ticked: Tensor
    of_sensor: Tensor
    before: Tensor
    rounded: Subset
    slack: float = tree.field(static=True)
    distinct: bool = tree.field(static=True)


def build(mj_model: mujoco.MjModel, make: Tensors) -> HistoryPlan:
    """The plan for `mj_model`."""
    m = mj_model
    actuator, sensor = np.flatnonzero(m.actuator_history[:, 0]), np.flatnonzero(m.sensor_history[:, 0])
    period = m.sensor_interval[:, 0] > 0
    delayed, control = m.actuator_delay[actuator] > 0, m.actuator_ctrladr[actuator]
    control_source = np.arange(m.nu)
    control_source[control[delayed]] = m.nu + np.flatnonzero(delayed)

    initial_time, initial = np.zeros(m.nhistory), np.zeros(m.nhistory)
    ticks: list[tuple[int, int, int, bool]] = []
    rings = [(int(m.actuator_historyadr[i]), int(m.actuator_history[i, 0]), -1) for i in actuator]
    rings += [(int(m.sensor_historyadr[i]), int(m.sensor_history[i, 0]), int(i)) for i in sensor]
    for start, n, owner in rings:
        initial[start + 1] = n - 1
        if owner >= 0 and period[owner]:
            ticks.append((start, owner, 0, False))
            ticks += [(start + 2 + j, owner, n - 1 - j, True) for j in range(n)]
        else:
            initial_time[start + 2 : start + 2 + n] = np.arange(n) - n
            initial_time[start] = -1 if owner >= 0 else 0
    ticked, of_sensor, before, rounded = np.array(ticks, dtype=int).reshape(-1, 4).T

    readings = np.repeat(sensor, m.sensor_dim[sensor])
    arrays = {
        "control_source": control_source,
        "periodic": period[readings],
        "initial_time": initial_time,
        "initial": initial,
        "ticked": ticked,
        "of_sensor": of_sensor,
        "before": before.astype(float),
        "rounded": rounded.astype(bool),
    }
    fields: dict[str, Any] = {name: make.field(x) for name, x in arrays.items()}
    return HistoryPlan(
        controls=_rings(m, "actuator", actuator, np.ones_like(actuator), control, delayed, make),
        readings=_rings(
            m,
            "sensor",
            sensor,
            m.sensor_dim[sensor],
            _joined([m.sensor_adr[i] + np.arange(m.sensor_dim[i]) for i in sensor]),
            m.sensor_delay[sensor] > 0,
            make,
            period[sensor],
        ),
        slack=1e-9 if is_since(4) else 0.0,
        distinct=is_since(4),
        **fields,
    )


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Integers one after the other."""
    return np.concatenate([np.zeros(0, dtype=int), *parts])


def _rings(
    m: mujoco.MjModel,
    kind: str,
    owners: np.ndarray,
    dims: np.ndarray,
    element: np.ndarray,
    delayed: np.ndarray,
    make: Tensors,
    periodic: np.ndarray | None = None,
) -> Rings:
    """The rings of `owners`, which have `dims` channels, as many elements altogether."""
    ring = np.repeat(np.arange(len(owners)), dims)
    count, interpolation = getattr(m, f"{kind}_history")[owners].reshape(-1, 2)[ring].T
    start = getattr(m, f"{kind}_historyadr")[owners][ring]
    slot = np.arange(int(count.max(initial=0)))[None]
    within = np.minimum(slot, count[:, None] - 1)
    times = start[:, None] + 2 + within
    channel = _joined([np.arange(n) for n in dims])
    values = (start + 2 + count + channel)[:, None] + within * dims[ring][:, None]
    places = np.concatenate([start, start + 1, times.ravel(), values.ravel()])
    source = len(places) + np.arange(m.nhistory)
    source[places[::-1]] = np.arange(len(places))[::-1]
    read = delayed if periodic is None else delayed | periodic
    arrays = {
        "count": count[:, None],
        "slot": slot,
        "user": start,
        "cursor": start + 1,
        "times": times,
        "values": values,
        "source": source,
        "owner": owners[ring],
        "element": element,
        "delayed": delayed[ring],
        "interpolation": interpolation,
    }
    fields: dict[str, Any] = {name: make.field(x) for name, x in arrays.items()}
    return Rings(smooth=bool((interpolation * read[ring]).any()), **fields)
