"""What a policy is worth."""

import dataclasses

import torch
from torch import Tensor

from mjtorch.envs import State
from mjtorch.envs.adapters.worlds import Worlds
from mjtorch.learn.experience import time_limit
from mjtorch.learn.run import Run


@dataclasses.dataclass(frozen=True)
class Episodes:
    """One episode of each world, under the most likely actions.

    returns: (worlds,) sums of rewards
    lengths: (worlds,) steps
    means: (worlds,) of what the task reports of a step, by name, over all steps
    time: (steps,) [s] of the first world, as far as its episode goes
    qpos, qvel: (steps, nq), (steps, nv) of the first world
    """

    returns: Tensor
    lengths: Tensor
    means: dict[str, Tensor]
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
    seen, sums = [], {name: torch.zeros_like(x) for name, x in reports(state).items()}
    for _ in range(time_limit(run.env)):
        if not over[0]:
            seen.append((state.data.time[0], state.data.qpos[0], state.data.qvel[0]))
        state = many.step(run.policy(state.obs))
        returns, lengths = returns + state.reward * ~over, lengths + ~over
        sums = {name: sums[name] + x * ~over for name, x in reports(state).items()}
        over = over | state.done
        if over.all():
            break
    time, qpos, qvel = (torch.stack(x) for x in zip(*seen, strict=True))
    return Episodes(returns, lengths, {name: x / lengths for name, x in sums.items()}, time, qpos, qvel)


def reports(state: State) -> dict[str, Tensor]:
    """What a task reports of a step of all worlds, one number (worlds,) each."""
    wrappers = ("final_obs", "episode_return", "episode_length", "diverged")
    return {name: x for name, x in state.info.items() if name not in wrappers and x.dim() == 1}
