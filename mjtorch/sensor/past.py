"""Sensors that report what they have measured before: with a delay, or at intervals (modeling.rst, "Delays")."""

import torch
from torch import Tensor

from mjtorch.model import Data, Model
from mjtorch.smooth.history import sampled


def is_due(m: Model, d: Data) -> Tensor:
    """Which channels (k,) of sensors that measure at intervals do so now."""
    p = m.plan.history.readings
    return d.history[p.user] + m.sensor_interval[p.owner, 0] <= d.time


def reported(m: Model, d: Data, sensordata: Tensor, order: Tensor) -> Tensor:
    """What sensors report (nsensordata,) that would measure `sensordata` now.

    order: (nsensordata,) where each element lies in [sensordata, readings of the past (k)].
    """
    history = m.plan.history
    p = history.readings
    past = sampled(p, d.history, d.time - m.sensor_delay[p.owner, None])
    if history.periodic.some:
        prompt = history.periodic.mask & ~p.delayed.mask & is_due(m, d)
        past = torch.where(prompt, sensordata[p.element], past)
    return torch.cat([sensordata, past])[order]
