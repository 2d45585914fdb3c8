"""What becomes of actions on their way to the actuators."""

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs.env import State, Wrapper


@tree.dataclass(kw_only=True)
class ClipAction(Wrapper):
    """Actions beyond the range are put at its ends."""

    def step(self, state: State, action: Tensor) -> State:
        """With a clipped action."""
        low, high = self.env.action_range
        return self.env.step(state, torch.clamp(action.to(low.dtype), low, high))


@tree.dataclass(kw_only=True)
class RescaleAction(Wrapper):
    """Actions from `low` to `high` are spread over the range of what is inside, which must be finite."""

    low: float | Tensor = -1.0
    high: float | Tensor = 1.0

    @property
    def action_range(self) -> tuple[Tensor, Tensor]:
        """From `low` to `high`."""
        least, most = self.env.action_range
        return torch.zeros_like(least) + self.low, torch.zeros_like(most) + self.high

    def step(self, state: State, action: Tensor) -> State:
        """With the action in the units of what is inside."""
        least, most = self.env.action_range
        share = (action.to(least.dtype) - self.low) / (self.high - self.low)
        return self.env.step(state, least + share * (most - least))


@tree.dataclass(kw_only=True)
class ActionNoise(Wrapper):
    """Normal noise of deviation `scale`, a number or one of each action (nu,), is added to actions."""

    scale: float | Tensor

    def step(self, state: State, action: Tensor) -> State:
        """With a noisy action."""
        own, key = random.split(state.key).unbind()
        dtype = self.env.task.dtype
        noise = self.scale * random.normal(own, tuple(action.shape), dtype=dtype)
        return self.env.step(state.replace(key=key), action.to(dtype) + noise)


@tree.dataclass(kw_only=True)
class ActionDelay(Wrapper):
    """Actions arrive late, by as many steps in all of an episode: `least` to `most`, drawn when it begins.

    Until the first one arrives, controls are those at rest. `memory["delay"]` is how late (), and the actions under way
    (most, nu), the last one first.
    """

    least: int = tree.field(static=True)
    most: int = tree.field(static=True)

    def reset(self, key: Tensor) -> State:
        """With a delay of its own."""
        if not 0 <= self.least <= self.most:
            raise ValueError(f"ActionDelay: 0 <= least <= most is wanted, got {self.least} and {self.most}")
        own, key = random.split(key).unbind()
        state = self.env.reset(key)
        late = random.randint(own, (), self.least, self.most + 1)
        waiting = self.env.task.rest.ctrl.expand(self.most, -1)
        return state.replace(memory={**state.memory, "delay": (late, waiting)})

    def step(self, state: State, action: Tensor) -> State:
        """With the action of some steps ago."""
        late, waiting = state.memory["delay"]
        waiting = torch.cat([action.to(waiting.dtype)[None], waiting])
        new = self.env.step(state, waiting[late])
        return new.replace(memory={**new.memory, "delay": (late, waiting[:-1])})
