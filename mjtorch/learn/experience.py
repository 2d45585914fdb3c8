"""Worlds that are learned in, and what is known of their episodes."""

from collections import deque
from typing import Any

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs import AutoReset, ClipAction, Env, Moments, RescaleAction, State, TimeLimit, Wrapper, make
from mjtorch.envs.adapters.worlds import Worlds
from mjtorch.learn.team import Team

# How many of the last episodes are averaged.
EPISODES = 100

# Added to the variance of discounted rewards.
EPSILON = 1e-8

# One process.
ALONE = Team()


class Experience:
    """Many worlds of a task, whose actions go from -1 to 1, beginning again by themselves; and the scale of rewards.

    Worlds start somewhere in an episode, so that not all end at once; those first episodes are not counted.

    Of a team of processes, each has as many of the worlds; all have the same scale of rewards.

    steps: how many all worlds have made together
    scale: () what rewards are multiplied with: one over the deviation of their discounted sums

    Args:
        env: what `learnable` returns.
        count: of worlds, of all processes together.
        discount: of rewards.
        seed: of all random numbers of the worlds.
        team: the processes.
        **options: for `jit`, such as `threads`.

    Raises:
        ValueError: worlds cannot be shared out evenly.
    """

    def __init__(self, env: Env, count: int, *, discount: float, seed: int, team: Team = ALONE, **options: Any) -> None:
        self.team, own = team, team.share(count)
        self.worlds, self.options = Worlds(env, own.stop - own.start, **options), options
        self.discount, self.steps = discount, 0
        key, limit = random.key(seed, device=self.worlds.device), time_limit(env)
        state = self.worlds.reset(random.split(key, count)[own])
        elapsed = random.randint(random.fold_in(key, 1), (count,), 0, limit)[own]
        self.state = state.replace(memory={**state.memory, "elapsed": elapsed})
        self.partial = torch.ones_like(state.done)
        self.discounted = torch.zeros_like(state.reward)
        self.moments = Moments.like(state.reward[0])
        self.returns: deque[float] = deque(maxlen=EPISODES)
        self.lengths: deque[float] = deque(maxlen=EPISODES)

    @property
    def state(self) -> State:
        """Of all worlds."""
        assert self.worlds.state is not None
        return self.worlds.state

    @state.setter
    def state(self, state: State) -> None:
        """Where worlds go on."""
        self.worlds.state = state

    @property
    def scale(self) -> Tensor:
        """What rewards are multiplied with (), so that discounted sums of them have about deviation 1."""
        return (self.moments.var + EPSILON).rsqrt()

    def step(self, actions: Tensor) -> State:
        """All worlds one step further, noted down."""
        state = self.worlds.step(actions)
        self.note(state)
        return state

    @torch.no_grad()
    def note(self, state: State) -> None:
        """Count a step that led to `state`, and the episodes that it ended."""
        self.steps += self.worlds.count * self.team.size
        self.discounted = self.discount * self.discounted + state.reward
        self.moments = self.moments.seen(self.team.all(self.discounted))
        done = state.done
        if done.any():
            whole = done & ~self.partial
            self.returns.extend(state.info["episode_return"][whole].tolist())
            self.lengths.extend(state.info["episode_length"][whole].tolist())
            self.discounted, self.partial = self.discounted * ~done, self.partial & ~done

    def scalars(self) -> dict[str, float]:
        """Means over the last episodes of each process, if there are any, and how many steps diverged."""
        diverged = float(self.state.memory["diverged"].sum())
        diverged, count, returns, lengths = self.team.total(
            diverged, len(self.returns), sum(self.returns), sum(self.lengths)
        )
        found = {"episode/diverged": diverged}
        if count:
            found["episode/return"], found["episode/length"] = returns / count, lengths / count
        return found

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on as if nothing had happened: of all processes, for the first one."""
        own = {
            "state": tree.state_dict(self._essence(self.state)),
            "partial": self.partial,
            "discounted": self.discounted,
        }
        parts = self.team.collect(tree.map(Tensor.cpu, own) if self.team.size > 1 else own)
        episodes = self.team.collect((list(self.returns), list(self.lengths)))
        if not self.team.leads:
            return {}
        worlds = tree.map(lambda *x: torch.cat(x), *parts) if len(parts) > 1 else own
        returns, lengths = ([x for own in column for x in own] for column in zip(*episodes, strict=True))
        moments = tree.state_dict(self.moments)
        return {**worlds, "moments": moments, "steps": self.steps, "returns": returns, "lengths": lengths}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there, perhaps by another number of processes."""
        own = self.team.share(len(saved["partial"]))
        device = self.worlds.device
        mine = {name: x[own].to(device) for name, x in saved["state"].items()}
        essence = tree.load_state_dict(self._essence(self.state), mine)
        self.state = self.state.replace(**{**essence, "data": self.state.data.replace(**essence["data"])})
        self.moments = tree.load_state_dict(self.moments, saved["moments"])
        self.partial, self.discounted = (saved[name][own].to(device) for name in ("partial", "discounted"))
        self.steps = saved["steps"]
        known = slice(None) if self.team.leads else slice(0)
        self.returns, self.lengths = deque(saved["returns"][known], EPISODES), deque(saved["lengths"][known], EPISODES)

    def _essence(self, state: State) -> dict[str, Any]:
        """A state without what of its data is at rest."""
        data = {name: getattr(state.data, name) for name in self.worlds.env.task.fields}
        names = ("obs", "reward", "terminated", "truncated", "key", "info", "memory")
        return {"data": data, **{name: getattr(state, name) for name in names}}


def learnable(task: str | AutoReset, **parameters: Any) -> Env:
    """The environment with actions from -1 to 1, beyond which they are cut, that begins again in the same step.

    Raises:
        ValueError: it does not begin again in the same step, or there is no such task.
        TypeError: parameters are for tasks by name.
    """
    if isinstance(task, str):
        task = make(task, mode="same_step", **parameters)
    elif parameters:
        raise TypeError(f"parameters are for tasks by name, got {', '.join(parameters)}")
    if not isinstance(task, AutoReset) or task.mode != "same_step":
        raise ValueError('worlds that are learned in begin again in the same step: AutoReset(..., mode="same_step")')
    if not torch.stack(task.action_range).isfinite().all():
        raise ValueError("what is learned are actions in a range; actuators without ctrlrange have none")
    return ClipAction(env=RescaleAction(env=task))


def time_limit(env: Any) -> int:
    """Steps of the longest episodes.

    Raises:
        ValueError: there is no `TimeLimit` around the task.
    """
    while not isinstance(env, TimeLimit):
        if not isinstance(env, Wrapper):
            raise ValueError("what is learned has episodes of bounded length; put a TimeLimit around the task")
        env = env.env
    return int(env.limit)
