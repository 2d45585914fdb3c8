"""Controls and readings of the past: actuators and sensors with a delay (modeling.rst, "Delays")."""

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Data, Model
from mjtorch.model.plan.history import Rings


def samples(p: Rings, history: Tensor) -> tuple[Tensor, Tensor]:
    """Times [s] and values (k, N) of the samples, the oldest first."""
    place = history[p.cursor].long()[:, None] + 1 + p.slot.clamp(max=p.count - 1)
    place = torch.where(place >= p.count, place - p.count, place)
    return history[p.times].gather(1, place), history[p.values].gather(1, place)


def tolerance(time: Tensor) -> Tensor:
    """How far apart [s] times (k, 1) may be that count as the same, C's in double precision, else by rounding."""
    if time.dtype == torch.float64:
        return torch.full_like(time, MIN_VALUE)
    return 8 * torch.finfo(time.dtype).eps * time.abs() + MIN_VALUE


def at(x: Tensor, place: Tensor) -> Tensor:
    """Elements (k, 1) of `x` (k, N), the last ones where `place` (k, 1) is beyond."""
    return x.gather(1, place.clamp(0, x.shape[1] - 1))


def delayed_controls(m: Model, d: Data) -> Tensor:
    """Controls (nu,) as they were `actuator_delay` ago (mj_readCtrl)."""
    p = m.plan.history
    found = sampled(p.controls, d.history, d.time - m.actuator_delay[p.controls.owner, None])
    return torch.cat([d.ctrl, found])[p.control_source]


def sampled(p: Rings, history: Tensor, time: Tensor) -> Tensor:
    """What was recorded (k,) at `time` (k, 1) [s] (mju_historyRead).

    Between samples the last one holds, or a line or a cubic spline runs through them; before the first and after the
    last sample these hold.
    """
    times, values = samples(p, history)
    close = tolerance(time)
    first = ((times < time - close) & (p.slot < p.count)).sum(1, keepdim=True)
    first = first.clamp(max=p.count - 1)
    # The sample at or after the time, and the one before.
    after, before = at(values, first), at(values, first - 1)
    exact = (at(times, first) - time).abs() <= close
    found = between(p, times, values, time, first) if p.smooth else before
    outside = (first == 0) | (time >= at(times, p.count - 1) - close)
    return torch.where(outside | exact, after, found).squeeze(1)


def between(p: Rings, times: Tensor, values: Tensor, time: Tensor, first: Tensor) -> Tensor:
    """Values (k, 1) at `time` (k, 1), between the samples `first - 1` and `first` (k, 1), held, linear or cubic."""
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


def recorded(
    p: Rings, history: Tensor, time: Tensor, value: Tensor, user: Tensor | None = None, due: Tensor | None = None
) -> Tensor:
    """`history` (nhistory,) with `value` (k,) as samples of the present `time` () [s] (mju_historyInsert).

    They push out the oldest samples, replace those of the same time, or the oldest if older than all. Not given: user
    (k,), the numbers for the user stay; due: (k,) bool, which are recorded, all are.
    """
    times, values = samples(p, history)
    value = value[:, None]
    time = time.expand(value.shape)
    close = tolerance(time)
    first = ((times < time - close) & (p.slot < p.count)).sum(1, keepdim=True)
    same = (first < p.count) & ((at(times, first) - time).abs() <= close)
    place = torch.where(same | (first == 0), first, first - 1)

    def inserted(x: Tensor, new: Tensor) -> Tensor:
        following = torch.cat([x[:, 1:], x[:, -1:]], dim=1)
        moved = torch.where(~same & (p.slot < place), following, x)
        result = torch.where(p.slot == place, new, moved)
        return result if due is None else torch.where(due[:, None], result, x)

    newest = ~same & (first == p.count)
    newest = newest if due is None else newest & due[:, None]
    cursor = history[p.cursor][:, None].long() + newest
    cursor = torch.where(cursor >= p.count, cursor - p.count, cursor)
    ring = p.slot.clamp(max=p.count - 1) - cursor - 1
    ring = torch.where(ring < 0, ring + p.count, ring)
    rings = [inserted(x, new).gather(1, ring).flatten() for x, new in ((times, time), (values, value))]
    user = history[p.user] if user is None else user
    return torch.cat([user, cursor.squeeze(1).to(times.dtype), *rings, history])[p.source]
