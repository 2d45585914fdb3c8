"""How many contact slots a model gets."""

import copy
from collections.abc import Iterator

import mujoco
import numpy as np

from mjtorch.model.option import DisableBit, EnableBit, Integrator

# A model with no more candidates than this keeps them all: choosing among so few costs more than it saves.
FEW = 12
STEPS = 2400  # rollout steps in all, for a model of moderate size; larger models get fewer
WORK = 300_000  # bound on steps times dofs and geoms
EPISODES = 4
HOLD = 25  # steps that a random control is held
DIVERGED = 1e8  # an acceleration above this ends the episode


def slots(mj_model: mujoco.MjModel, candidates: dict[int, int], capacity: int | None) -> dict[int, int]:
    """Number of contact slots for each condim.

    Args:
        mj_model: the model; it is not changed.
        candidates: condim -> the most contacts that its pairs can make at a time.
        capacity: the most contacts to keep, shared out by how many of each condim short rollouts show; not given: twice
            as many as they show and four more. Never more than `candidates`, all of them if they are few.
    """
    total = sum(candidates.values())
    if total <= (FEW if capacity is None else capacity):
        return dict(candidates)
    if capacity is not None and len(candidates) == 1:
        return dict.fromkeys(candidates, capacity)
    seen = observed(mj_model)
    if capacity is None:
        return {dim: min(count, 2 * seen.get(dim, 0) + 4) for dim, count in candidates.items()}
    return _share(capacity, candidates, {dim: seen.get(dim, 0) for dim in candidates})


def _share(capacity: int, candidates: dict[int, int], seen: dict[int, int]) -> dict[int, int]:
    """Deal out `capacity` slots one by one, each to the group that has the fewest for what it was seen to need."""
    share = dict.fromkeys(candidates, 0)
    for _ in range(capacity):
        open_groups = [dim for dim in candidates if share[dim] < candidates[dim]]
        share[min(open_groups, key=lambda dim: (share[dim] / (seen[dim] + 1), dim))] += 1
    return share


def observed(mj_model: mujoco.MjModel) -> dict[int, int]:
    """condim -> the most contacts seen at a time in short rollouts with random controls (the same on every call)."""
    most = np.zeros(7, dtype=np.int64)
    for data in states(mj_model):
        most = np.maximum(most, np.bincount(data.contact.dim, minlength=7)[:7])
    return {dim: int(count) for dim, count in enumerate(most) if count}


def states(mj_model: mujoco.MjModel) -> Iterator[mujoco.MjData]:
    """What short rollouts pass through; `mj_model` is not changed, the data is the same object time and again."""
    model = copy.copy(mj_model)
    # What is measured or reported is of no use here.
    model.opt.disableflags |= DisableBit.SENSOR
    model.opt.enableflags &= ~(EnableBit.ENERGY | EnableBit.FWDINV)
    steps = min(STEPS, WORK // (model.nv + model.ngeom))
    starts = [None, *range(min(model.nkey, EPISODES))]
    episodes = max(EPISODES, len(starts))
    for episode in range(episodes):
        yield from _rollout(model, starts[episode % len(starts)], episode, max(1, steps // episodes))


def _rollout(model: mujoco.MjModel, keyframe: int | None, seed: int, steps: int) -> Iterator[mujoco.MjData]:
    """The states of one episode, until it diverges; the first half of the seeds start almost at rest."""
    rng = np.random.default_rng(seed)
    data = mujoco.MjData(model)
    if keyframe is not None:
        mujoco.mj_resetDataKeyframe(model, data, keyframe)
    data.qvel += (0.01 if seed < EPISODES // 2 else 1.0) * rng.standard_normal(model.nv)
    low, high = np.where(model.actuator_ctrllimited[:, None], model.actuator_ctrlrange, [-1.0, 1.0]).T
    implicit = model.opt.integrator in (Integrator.IMPLICIT, Integrator.IMPLICITFAST)
    advance = mujoco.mj_implicit if implicit else mujoco.mj_Euler
    for step in range(steps):
        if step % HOLD == 0:
            data.ctrl[:] = rng.uniform(low, high)
        mujoco.mj_forward(model, data)
        yield data
        # `mj_step` would warn about a divergence, aloud; here it is of no interest.
        if not np.abs(data.qacc).max(initial=0.0) < DIVERGED or not np.abs(data.qvel).max(initial=0.0) < DIVERGED:
            return
        advance(model, data)
