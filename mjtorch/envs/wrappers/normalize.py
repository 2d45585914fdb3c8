"""Observations and rewards of about mean 0 and deviation 1."""

from typing import Any, Self

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.envs.env import State, Wrapper

# Added to variances.
EPSILON = 1e-8


@tree.dataclass
class Moments(tree.Tree):
    """Mean and variance of what was seen.

    mean, var: of the shape of what is seen
    count: () how much was
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    @classmethod
    def like(cls, x: Tensor) -> Self:
        """Of nothing yet, which counts as mean 0 and variance 1, for things of the shape of `x`."""
        return cls(torch.zeros_like(x), torch.ones_like(x), torch.zeros_like(x.flatten().sum()))

    def seen(self, batch: Tensor) -> Self:
        """After a batch (n, ...) more (Chan, Golub and LeVeque, 1979)."""
        n = batch.shape[0]
        mean, var = batch.mean(0), batch.var(0, correction=0)
        count = self.count + n
        shift = mean - self.mean
        # as if nothing had a variance before anything was seen
        old = torch.where(self.count > 0, self.var, torch.zeros_like(self.var))
        square = old * self.count + var * n + shift**2 * self.count * n / count
        return self.replace(mean=self.mean + shift * n / count, var=square / count, count=count)


@tree.dataclass(kw_only=True)
class NormalizeObservation(Wrapper):
    """Observations `(obs - mean) / sqrt(var + 1e-8)`, cut at `limit`; those before are `memory["raw_obs"]`.

    The moments are the same in all worlds, and change only where you say so, between steps and without compiling anew:

        env = env.replace(moments=env.moments.seen(state.memory["raw_obs"]))
    """

    moments: Moments
    limit: Any = float("inf")

    def reset(self, key: Tensor) -> State:
        """The first observation, normalized."""
        return self._normalized(self.env.reset(key))

    def step(self, state: State, action: Tensor) -> State:
        """The next observation, normalized."""
        return self._normalized(self.env.step(state, action))

    def _normalized(self, state: State) -> State:
        obs = (state.obs - self.moments.mean) / (self.moments.var + EPSILON).sqrt()
        obs = torch.clamp(obs, -self.limit, self.limit)
        return state.replace(obs=obs, memory={**state.memory, "raw_obs": state.obs})


@tree.dataclass(kw_only=True)
class NormalizeReward(Wrapper):
    """Rewards over the deviation of discounted sums of rewards, which are `memory["discounted"]` ().

    The moments are treated as those of `NormalizeObservation`:

        env = env.replace(moments=env.moments.seen(state.memory["discounted"]))
    """

    moments: Moments
    discount: float | Tensor = 0.99

    def reset(self, key: Tensor) -> State:
        """From zero."""
        state = self.env.reset(key)
        return state.replace(memory={**state.memory, "discounted": torch.zeros_like(state.reward)})

    def step(self, state: State, action: Tensor) -> State:
        """With the normalized reward."""
        new = self.env.step(state, action)
        total = self.discount * state.memory["discounted"] * ~state.done + new.reward
        reward = new.reward / (self.moments.var + EPSILON).sqrt()
        return new.replace(reward=reward, memory={**new.memory, "discounted": total})
