"""What becomes of observations on their way to the agent."""

from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs.env import State, Wrapper
from mjtorch.envs.wrappers.action import check_share


@tree.dataclass(kw_only=True)
class ObservationNoise(Wrapper):
    """Observations are off, evenly: by up to `scale`, each step anew, and by up to `offset`, the same in all of an
    episode, as of sensors that were not calibrated. Numbers, or one of each part of an observation (n,).

    `memory["offset"]` (n,) is that of the episode.
    """

    scale: float | Tensor = 0.0
    offset: float | Tensor = 0.0

    def reset(self, key: Tensor) -> State:
        """With an offset of its own.

        Raises:
            TypeError, ValueError: `scale` or `offset` is neither a number nor a tensor of the shape of an observation.
        """
        own, key = random.split(key).unbind()
        state = self.env.reset(key)
        for name, x in (("scale", self.scale), ("offset", self.offset)):
            check_share("ObservationNoise", name, x, state.obs)
        offset = self.offset * _even(own, state.obs)
        return self._noisy(state.replace(memory={**state.memory, "offset": offset}))

    def step(self, state: State, action: Tensor) -> State:
        """With a noisy observation."""
        return self._noisy(self.env.step(state, action))

    def _noisy(self, state: State) -> State:
        own, key = random.split(state.key).unbind()
        noise = self.scale * _even(own, state.obs) + state.memory["offset"]
        return state.replace(obs=state.obs + noise, key=key)


def _even(key: Tensor, like: Tensor) -> Tensor:
    return random.uniform(key, tuple(like.shape), -1.0, 1.0, dtype=like.dtype)
