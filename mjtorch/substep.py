"""Adaptive substeps: a time step in as many parts as its error asks for (Bogacki and Shampine, 1989)."""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.control_flow import cond, scan
from mjtorch.integrate import displacement_rate, integrate_pos
from mjtorch.model import Data, DisableBit, Model
from mjtorch.smooth.actuation import disabled_actuators, within_range

# The three evaluations after the first. What leads to each: the last rate and the weighted sum so far; then what its
# own rate counts in that sum, third order, and in its difference from the second order.
TABLEAU = ((1 / 2, 0.0, 1 / 3, 1 / 12), (3 / 4, 0.0, 4 / 9, 1 / 9), (0.0, 1.0, 0.0, -1 / 8))
FIRST_WEIGHT, FIRST_ERROR = 2 / 9, -5 / 72
# The next substep is at most so much shorter or longer, and a bit shorter than the error seems to allow.
SHRINK, GROW, SAFETY = 0.2, 5.0, 0.9


@tree.dataclass
class Motion(tree.Tree):
    """Rates of change, or displacements: of positions (nv,), of velocities (nv,) and of activations (na,)."""

    qpos: Tensor
    qvel: Tensor
    act: Tensor


@tree.dataclass
class Point(tree.Tree):
    """A state within the step, and what the dynamics say about it. warm: (nv,) where the solver may start."""

    qpos: Tensor
    qvel: Tensor
    act: Tensor
    qacc: Tensor
    act_dot: Tensor
    warm: Tensor
    warning: Tensor


@tree.dataclass
class Stage(tree.Tree):
    """Within a substep: the last evaluation and its rates, the weighted sum of rates and of their errors."""

    at: Point
    last: Motion
    mean: Motion
    error: Motion


@tree.dataclass
class Progress(tree.Tree):
    """Within a time step. elapsed: () the share that is done; size: () the share to try next."""

    at: Point
    elapsed: Tensor
    size: Tensor


def substepped(m: Model, d: Data, forward: Callable[[Model, Data], Data]) -> Data:
    """The state one time step later, by adaptive substeps; see `Substeps`. Not in C.

    Within a time step the controls are constant. Sizes have no derivatives: the result has those of the substeps taken.

    Args:
        m: the model.
        d: what is known at the beginning of the step.
        forward: forward dynamics; it need not compute sensors and energy.
    """
    (s,) = m.settings.substeps
    one = torch.ones_like(m.opt.timestep)
    start = Progress(point(m, d), torch.zeros_like(one), one)

    def trip(now: Progress, attempts_left: Tensor) -> tuple[Progress, None]:
        return cond(now.elapsed < 1, lambda: attempt(m, d, forward, now, attempts_left), lambda: now), None

    last, _ = scan(trip, start, one.new_tensor([*range(s.limit, 0, -1)]), unroll=False)
    at = last.at
    return d.replace(
        qpos=at.qpos,
        qvel=at.qvel,
        act=at.act,
        time=d.time + m.opt.timestep,
        qacc_warmstart=at.warm,
        warning=at.warning,
    )


def attempt(
    m: Model, d: Data, forward: Callable[[Model, Data], Data], now: Progress, attempts_left: Tensor
) -> Progress:
    """One substep, or none and a shorter one next time if its error is too large."""
    (s,) = m.settings.substeps
    rest = 1 - now.elapsed
    shortest = rest / attempts_left
    size = torch.minimum(torch.maximum(now.size, shortest), rest)
    at, error = substep(m, d, forward, now.at, size * m.opt.timestep)
    error = error.detach() / s.tolerance
    change = (SAFETY * error.clamp(min=1e-9) ** (-1 / 3)).clamp(SHRINK, GROW)
    good = (error <= 1) | (size <= shortest)
    elapsed = torch.where(size >= rest, 1.0, now.elapsed + size)
    return Progress(
        tree.where(good, at, now.at.replace(warning=at.warning)),
        torch.where(good, elapsed, now.elapsed),
        size * torch.where(change.isnan(), SHRINK, change),
    )


def substep(m: Model, d: Data, forward: Callable[[Model, Data], Data], start: Point, h: Tensor) -> tuple[Point, Tensor]:
    """Where `h` () [s] leads from `start`, and the largest error () relative to `1 + size` of what is integrated."""
    rates = rates_at(m, start, torch.zeros_like(start.qvel))

    def evaluate(now: Stage, row: Tensor) -> tuple[Stage, None]:
        reach, share, weight, correction = row.unbind()
        moved = tree.map(lambda a, b: h * (reach * a + share * b), now.last, now.mean)
        found = forward(
            m,
            d.replace(
                qpos=integrate_pos(m, start.qpos, moved.qpos, torch.ones_like(h)),
                qvel=start.qvel + moved.qvel,
                act=within_range(m, start.act + moved.act),
                qacc_warmstart=now.at.warm,
                warning=now.at.warning,
            ),
        )
        at = point(m, found)
        rates = rates_at(m, at, moved.qpos)
        mean, error = (
            tree.map(lambda total, x, share=share: total + share * x, total, rates)
            for total, share in ((now.mean, weight), (now.error, correction))
        )
        return Stage(at, rates, mean, error), None

    first = Stage(start, rates, *(tree.map(lambda x, k=k: k * x, rates) for k in (FIRST_WEIGHT, FIRST_ERROR)))
    last, _ = scan(evaluate, first, h.new_tensor(TABLEAU), unroll=False)
    return last.at, relative_error(start, last, h)


def point(m: Model, d: Data) -> Point:
    """The state of `d` and the rates that follow from it; activations of disabled actuators stay."""
    act_dot = d.act_dot
    if m.na and m.opt.disabled(DisableBit.ACTUATION):
        act_dot = torch.zeros_like(act_dot)
    elif m.na and m.opt.disableactuator:
        act_dot = act_dot.masked_fill(disabled_actuators(m)[m.plan.actuation.act_output], 0.0)
    return Point(d.qpos, d.qvel, d.act, d.qacc, act_dot, d.qacc, d.warning)


def rates_at(m: Model, at: Point, moved: Tensor) -> Motion:
    """How fast the displacement `moved` (nv,) from the start of the substep to `at`, velocity and activation change."""
    return Motion(displacement_rate(m, at.qvel, moved), at.qacc, at.act_dot)


def relative_error(start: Point, last: Stage, h: Tensor) -> Tensor:
    """The largest of all errors (); turns are as large as radians, whatever the quaternion."""
    parts = (
        (last.error.qpos, torch.zeros_like(last.error.qpos)),
        (last.error.qvel, torch.maximum(start.qvel.abs(), last.at.qvel.abs())),
        (last.error.act, torch.maximum(start.act.abs(), last.at.act.abs())),
    )
    return torch.cat([(h * error).abs() / (1 + scale) for error, scale in parts]).amax()
