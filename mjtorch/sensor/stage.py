"""What the three stages share: run the groups, put the numbers into sensordata, apply cutoffs."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mjtorch.model import Data, DisableBit, Model
from mjtorch.model.plan.sensor import SensorGroup, SensorStage, SensorType
from mjtorch.model.sleeping import any_awake
from mjtorch.sensor.contact import contact
from mjtorch.sensor.distance import distance
from mjtorch.sensor.enclosed import enclosed
from mjtorch.sensor.frame import Frames
from mjtorch.sensor.past import reported
from mjtorch.sensor.range_finder import range_finder
from mjtorch.sensor.tactile import tactile
from mjtorch.sensor.touch_grid import touch_grid

# (m, d, group, frames) -> the readings (n, dim) or (n,) of a group of n sensors of one type
SensorFunction = Callable[[Model, Data, SensorGroup, Frames], Tensor]


def skip(m: Model, stage: SensorStage, past: bool) -> bool:
    """Whether there is nothing to do: no sensor in the stage, or sensors are disabled."""
    return not stage.types or (past and m.opt.disabled(DisableBit.SENSOR))


def sense(m: Model, d: Data, stage: SensorStage, table: Mapping[SensorType, SensorFunction], past: bool = True) -> Data:
    """Write the readings of `stage` into sensordata; the readings of other stages stay.

    past: whether sensors with delays or intervals report what they have recorded
    """
    frames = Frames(m, d, stage.frames)
    readings = [getattr(d, name) for name in stage.fields]
    readings += [table[group.type](m, d, group, frames) for group in stage.groups]
    readings += [contact(m, d, group) for group in stage.contacts]
    readings += [range_finder(m, d, group) for group in stage.ranges]
    readings += [tactile(m, d, plan) for plan in stage.tactile]
    readings += [distance(m, d, plan) for plan in stage.distances]
    readings += [touch_grid(m, d, plan) for plan in stage.grids]
    readings += [enclosed(m, d, plan) for plan in stage.enclosed]
    if stage.users:
        readings.append(users(m, d, stage))
    sensordata = torch.cat([*(x.reshape(-1) for x in readings), d.sensordata])[stage.order]
    sensordata = cutoff(m, stage, sensordata) if stage.clipped else sensordata
    for order in stage.remembered if past else ():
        sensordata = reported(m, d, sensordata, order)
    for p in m.plan.sleep:
        sensordata = torch.where(any_awake(m, d, p.sensor), sensordata, d.sensordata)
    return d.replace(sensordata=sensordata)


def users(m: Model, d: Data, stage: SensorStage) -> Tensor:
    """The readings (n,) of the stage's user sensors: what the callback says, or zero."""
    if not m.callbacks.has("sensor"):
        return d.sensordata.new_zeros(stage.users)
    return m.callbacks.tensor("sensor", (stage.users,), d.sensordata, m, d, stage.number)


def cutoff(m: Model, stage: SensorStage, sensordata: Tensor) -> Tensor:
    """Clip to `sensor_cutoff`, both ways or from above as the type of data says; a cutoff of zero is none."""
    limit = m.sensor_cutoff[stage.sensor]
    limited = limit > 0
    sensordata = torch.minimum(sensordata, torch.where(stage.above & limited, limit, math.inf))
    return torch.maximum(sensordata, torch.where(stage.below & limited, -limit, -math.inf))


def first_active_row(d: Data, rows: Tensor, values: Tensor) -> Tensor:
    """Of each sensor's constraint rows `rows (n, w)` the value (n,) of the first active one; zero if none is.

    values: (nefc,). The row `nefc` stands for no row.
    """
    nothing = values.new_zeros(1)
    active = torch.cat([d.efc_D, nothing])[rows] > 0
    candidates = torch.cat([values, nothing])[rows]
    reading = torch.zeros_like(candidates[:, 0])
    for is_active, value in zip(reversed(active.unbind(-1)), reversed(candidates.unbind(-1)), strict=True):
        reading = torch.where(is_active, value, reading)
    return reading
