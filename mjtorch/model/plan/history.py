"""Index plan of the buffers that hold past controls."""

from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.subset import Subset, plan_field


@tree.dataclass(kw_only=True)
class HistoryPlan(tree.Tree):
    """Rings of the samples of controls, one for each of k actuators, and in `history` one after the other.

    A ring of n samples is a number for the user, the place of the newest sample, n times and n values. Rings are taken
    as if all had as many samples as the longest, N; what is beyond n means nothing.

    count: (k, 1) n; slot: (1, N) 0, 1, 2, ...
    user, cursor: (k,), times, values: (k, N) addresses in `history`
    source: (nhistory,) where each element lies in [users, cursors, times, values]
    actuator, control: (k,) the actuators and their controls
    delayed: (k,); interpolation: (k,) 0 hold, 1 linear, 2 cubic; smooth: whether any is not 0
    control_source: (nu,) where each control lies in [ctrl, delayed ones (k)]
    initial_time: (nhistory,) times in time steps, at the beginning; initial: (nhistory,) what else is not zero
    """

    count: Tensor
    slot: Tensor
    user: Tensor
    cursor: Tensor
    times: Tensor
    values: Tensor
    source: Tensor
    actuator: Tensor
    control: Tensor
    delayed: Subset
    interpolation: Tensor
    smooth: bool = tree.field(static=True)
    control_source: Tensor
    initial_time: Tensor
    initial: Tensor


def build(mj_model: mujoco.MjModel, device: torch.device, dtype: torch.dtype) -> HistoryPlan:
    """The plan for `mj_model`."""
    m, actuator = mj_model, np.flatnonzero(mj_model.actuator_history[:, 0])
    count, start = m.actuator_history[actuator, 0], m.actuator_historyadr[actuator]
    slot = np.arange(int(count.max(initial=0)))[None]
    within = np.minimum(slot, count[:, None] - 1)
    times = start[:, None] + 2 + within
    values = times + count[:, None]
    initial_time, initial, source = np.zeros(m.nhistory), np.zeros(m.nhistory), np.zeros(m.nhistory, dtype=int)
    initial_time[times], initial[start + 1] = within - count[:, None], count - 1
    places = np.concatenate([start, start + 1, times.ravel(), values.ravel()])
    source[places[::-1]] = np.arange(len(places))[::-1]
    delayed, control = m.actuator_delay[actuator] > 0, m.actuator_ctrladr[actuator]
    control_source = np.arange(m.nu)
    control_source[control[delayed]] = m.nu + np.flatnonzero(delayed)
    arrays = {
        "count": count[:, None],
        "slot": slot,
        "user": start,
        "cursor": start + 1,
        "times": times,
        "values": values,
        "source": source,
        "actuator": actuator,
        "control": control,
        "delayed": delayed,
        "interpolation": m.actuator_history[actuator, 1],
        "control_source": control_source,
        "initial_time": initial_time,
        "initial": initial,
    }
    fields: dict[str, Any] = {name: plan_field(x, device, dtype) for name, x in arrays.items()}
    return HistoryPlan(smooth=bool((m.actuator_history[actuator, 1] * delayed).any()), **fields)
