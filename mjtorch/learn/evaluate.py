"""What a policy is worth."""

import dataclasses

import torch
from torch import Tensor

from mjtorch.envs.adapters.worlds import Worlds
from mjtorch.learn.experience import time_limit
from mjtorch.learn.run import Run


@dataclasses.dataclass(frozen=True)
class Episodes:
    """One episode of each world, under the most likely actions.

    returns: (worlds,) sums of rewards
    lengths: (worlds,) steps
    time: (steps,) [s] of the first world, as far as its episode goes
    qpos, qvel: (steps, nq), (steps, nv) of the first world
    """

    returns: Tensor
    lengths: Tensor
    time: Tensor
    qpos: Tensor
    qvel: Tensor


@torch.no_grad()
def evaluate(run: Run, worlds: int = 16, *, seed: int = 1) -> Episodes:
    """Whole episodes of a run's policy, as it is now, in worlds of their own."""
    many = Worlds(run.env, worlds, **run.experience.options)
    state = many.reset(seed)
    returns, lengths = torch.zeros_like(state.reward), torch.zeros_like(state.reward, dtype=torch.int64)
    over = torch.zeros_like(state.done)
    seen = []
    for _ in range(time_limit(run.env)):
        if not over[0]:
            seen.append((state.data.time[0], state.data.qpos[0], state.data.qvel[0]))
        state = many.step(run.policy(state.obs))
        returns, lengths = returns + state.reward * ~over, lengths + ~over
        over = over | state.done
        if over.all():
            break
    time, qpos, qvel = (torch.stack(x) for x in zip(*seen, strict=True))
    return Episodes(returns, lengths, time, qpos, qvel)
