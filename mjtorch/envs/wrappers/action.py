"""What becomes of actions on their way to the actuators."""

from typing import Any

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs.env import State, Wrapper, check_count


def check_share(caller: str, name: str, x: Any, action: Tensor) -> None:
    """Raise unless `x` is a number, or a tensor of one for each action."""
    if isinstance(x, bool) or not isinstance(x, int | float | Tensor):
        raise TypeError(f"{caller}: {name} must be a number or a tensor, got {type(x).__name__}")
    if isinstance(x, Tensor) and x.shape not in ((), action.shape):
        raise ValueError(f"{caller}: {name} must have shape () or {tuple(action.shape)}, got {tuple(x.shape)}")


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
        """With the action in the units of what is inside.

        Raises:
            TypeError, ValueError: the bounds are neither numbers nor tensors of as many as there are actions, or equal.
        """
        for name, bound in (("low", self.low), ("high", self.high)):
            check_share("RescaleAction", name, bound, action)
        if not isinstance(self.low, Tensor) and not isinstance(self.high, Tensor) and not self.low < self.high:
            raise ValueError(f"RescaleAction: low must be below high, got {self.low} and {self.high}")
        least, most = self.env.action_range
        share = (action.to(least.dtype) - self.low) / (self.high - self.low)
        return self.env.step(state, least + share * (most - least))


@tree.dataclass(kw_only=True)
class ActionNoise(Wrapper):
    """Normal noise of deviation `scale`, a number or one of each action (nu,), is added to actions."""

    scale: float | Tensor

    def step(self, state: State, action: Tensor) -> State:
        """With a noisy action.

        Raises:
            TypeError, ValueError: `scale` is neither a number nor a tensor of as many as there are actions.
        """
        check_share("ActionNoise", "scale", self.scale, action)
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
        check_count("ActionDelay", "least", self.least, 0)
        check_count("ActionDelay", "most", self.most, 0)
        if self.least > self.most:
            raise ValueError(f"ActionDelay: least must not be above most, got {self.least} and {self.most}")
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
