"""What is kept of controls and of the readings of sensors."""

import torch
from torch import Tensor

from mjtorch.model import Data, Model
from mjtorch.sensor.acceleration import sensor_acc
from mjtorch.sensor.past import is_due
from mjtorch.sensor.position import sensor_pos
from mjtorch.sensor.velocity import sensor_vel
from mjtorch.smooth.history import recorded


def remembered(m: Model, d: Data, sensed: Data) -> Tensor:
    """`history` (nhistory,) with the controls and the readings of this step (mj_advance).

    sensed: what sensors with a delay measure.
    """
    controls, readings = m.plan.history.controls, m.plan.history.readings
    history = d.history
    if controls.owner.shape[0]:
        history = recorded(controls, history, d.time, d.ctrl[controls.element])
    if not readings.owner.shape[0]:
        return history
    value = d.sensordata[readings.element]
    if readings.delayed.some:
        value = torch.where(readings.delayed.mask, measured(m, sensed)[readings.element], value)
    periodic = m.plan.history.periodic
    if not periodic.some:
        return recorded(readings, history, d.time, value)
    due = is_due(m, d) | ~periodic.mask
    tick = torch.where(periodic.mask & due, m.sensor_interval[readings.owner, 0], 0.0)
    return recorded(readings, history, d.time, value, history[readings.user] + tick, due)


def measured(m: Model, d: Data) -> Tensor:
    """What sensors would report (nsensordata,) without delays, even if they are disabled."""
    d = sensor_vel(m, sensor_pos(m, d, past=False), past=False)
    return sensor_acc(m, d, past=False).sensordata
