"""Worlds that are learned in, and what is known of their episodes."""

from collections import deque
from typing import Any

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs import AutoReset, ClipAction, Env, Moments, RescaleAction, State, TimeLimit, Wrapper, make
from mjtorch.envs.adapters.worlds import Worlds

# How many of the last episodes are averaged.
EPISODES = 100

# Added to the variance of discounted rewards.
EPSILON = 1e-8


class Experience:
    """Many worlds of a task, whose actions go from -1 to 1, beginning again by themselves; and the scale of rewards.

    Worlds start somewhere in an episode, so that not all end at once; those first episodes are not counted.

    steps: how many all worlds have made together
    scale: () what rewards are multiplied with: one over the deviation of their discounted sums

    Args:
        env: what `learnable` returns.
        count: of worlds.
        discount: of rewards.
        seed: of all random numbers of the worlds.
        **options: for `jit`, such as `threads`.
    """

    def __init__(self, env: Env, count: int, *, discount: float, seed: int, **options: Any) -> None:
        self.worlds, self.options = Worlds(env, count, **options), options
        self.discount, self.steps = discount, 0
        state = self.worlds.reset(seed)
        device, limit = state.obs.device, time_limit(env)
        elapsed = random.randint(random.fold_in(random.key(seed, device=device), 1), (count,), 0, limit)
        self.state = state.replace(memory={**state.memory, "elapsed": elapsed})
        self.partial = torch.ones(count, dtype=torch.bool, device=device)
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
        self.steps += self.worlds.count
        self.discounted = self.discount * self.discounted + state.reward
        self.moments = self.moments.seen(self.discounted)
        done = state.done
        if done.any():
            whole = done & ~self.partial
            self.returns.extend(state.info["episode_return"][whole].tolist())
            self.lengths.extend(state.info["episode_length"][whole].tolist())
            self.discounted, self.partial = self.discounted * ~done, self.partial & ~done

    def scalars(self) -> dict[str, float]:
        """Means over the last episodes, if there are any, and how many steps diverged."""
        found = {"episode/diverged": float(self.state.memory["diverged"].sum())}
        if self.returns:
            found["episode/return"] = sum(self.returns) / len(self.returns)
            found["episode/length"] = sum(self.lengths) / len(self.lengths)
        return found

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on as if nothing had happened."""
        return {
            "state": tree.state_dict(self._essence(self.state)),
            "moments": tree.state_dict(self.moments),
            "partial": self.partial,
            "discounted": self.discounted,
            "steps": self.steps,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        essence = tree.load_state_dict(self._essence(self.state), saved["state"])
        self.state = self.state.replace(**{**essence, "data": self.state.data.replace(**essence["data"])})
        self.moments = tree.load_state_dict(self.moments, saved["moments"])
        self.partial, self.discounted, self.steps = saved["partial"], saved["discounted"], saved["steps"]
        self.returns, self.lengths = deque(saved["returns"], EPISODES), deque(saved["lengths"], EPISODES)

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
