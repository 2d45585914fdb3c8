"""Controls of the past: actuators that act with a delay (modeling.rst, "Delays")."""

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Data, Model


def samples(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """Times [s] and values (k, N) of the samples, the oldest first."""
    p = m.plan.history
    place = d.history[p.cursor].long()[:, None] + 1 + p.slot.clamp(max=p.count - 1)
    place = torch.where(place >= p.count, place - p.count, place)
    return d.history[p.times].gather(1, place), d.history[p.values].gather(1, place)


def tolerance(time: Tensor) -> Tensor:
    """How far apart [s] times (k, 1) may be that count as the same, C's in double precision, else by rounding."""
    if time.dtype == torch.float64:
        return torch.full_like(time, MIN_VALUE)
    return 8 * torch.finfo(time.dtype).eps * time.abs() + MIN_VALUE


def at(x: Tensor, place: Tensor) -> Tensor:
    """Elements (k, 1) of `x` (k, N), the last ones where `place` (k, 1) is beyond."""
    return x.gather(1, place.clamp(0, x.shape[1] - 1))


def delayed_controls(m: Model, d: Data) -> Tensor:
    """Controls (nu,) as they were `actuator_delay` ago (mj_readCtrl).

    Between samples the last one holds, or a line or a cubic spline runs through them; before the first and after the
    last sample these hold.
    """
    p = m.plan.history
    times, values = samples(m, d)
    time = d.time - m.actuator_delay[p.actuator, None]
    close = tolerance(time)
    first = ((times < time - close) & (p.slot < p.count)).sum(1, keepdim=True)
    first = first.clamp(max=p.count - 1)
    # The sample at or after the time, and the one before.
    after, before = at(values, first), at(values, first - 1)
    exact = (at(times, first) - time).abs() <= close
    found = between(m, times, values, time, first) if p.smooth else before
    outside = (first == 0) | (time >= at(times, p.count - 1) - close)
    found = torch.where(outside | exact, after, found)
    return torch.cat([d.ctrl, found.squeeze(1)])[p.control_source]


def between(m: Model, times: Tensor, values: Tensor, time: Tensor, first: Tensor) -> Tensor:
    """Values (k, 1) at `time` (k, 1), between the samples `first - 1` and `first` (k, 1), held, linear or cubic."""
    p = m.plan.history
    low, high = at(values, first - 1), at(values, first)
    span = at(times, first) - at(times, first - 1)
    safe = torch.where(span > 0, span, 1.0)
    x = ((time - at(times, first - 1)) / safe).clamp(0, 1)

    def slope(left: Tensor, right: Tensor, inside: Tensor) -> Tensor:
        reach = at(times, right) - at(times, left)
        inside = inside & (reach > 0)
        return torch.where(inside, (at(values, right) - at(values, left)) / torch.where(inside, reach, 1.0), 0.0)

    into, out = slope(first - 2, first, first > 1), slope(first - 1, first + 1, first < p.count - 1)
    square, cube = x * x, x * x * x
    cubic = (2 * cube - 3 * square + 1) * low + (3 * square - 2 * cube) * high
    cubic = cubic + safe * ((cube - 2 * square + x) * into + (cube - square) * out)
    kind = p.interpolation[:, None]
    return torch.where(kind == 0, low, torch.where(kind == 1, low + x * (high - low), cubic))


def recorded(m: Model, d: Data) -> Tensor:
    """`history` (nhistory,) with the present controls as samples of the present time (mju_historyInsert).

    They push out the oldest samples, replace those of the same time, or the oldest if older than all.
    """
    p = m.plan.history
    times, values = samples(m, d)
    control = d.ctrl[p.control][:, None]
    time = d.time.expand(control.shape)
    close = tolerance(time)
    first = ((times < time - close) & (p.slot < p.count)).sum(1, keepdim=True)
    same = (first < p.count) & ((at(times, first) - time).abs() <= close)
    place = torch.where(same | (first == 0), first, first - 1)

    def inserted(x: Tensor, new: Tensor) -> Tensor:
        following = torch.cat([x[:, 1:], x[:, -1:]], dim=1)
        moved = torch.where(~same & (p.slot < place), following, x)
        return torch.where(p.slot == place, new, moved)

    newest = ~same & (first == p.count)
    cursor = d.history[p.cursor][:, None].long() + newest
    cursor = torch.where(cursor >= p.count, cursor - p.count, cursor)
    ring = p.slot.clamp(max=p.count - 1) - cursor - 1
    ring = torch.where(ring < 0, ring + p.count, ring)
    rings = [inserted(x, new).gather(1, ring).flatten() for x, new in ((times, time), (values, control))]
    return torch.cat([d.history[p.user], cursor.squeeze(1).to(times.dtype), *rings])[p.source]
