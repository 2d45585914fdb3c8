"""RSL-RL: worlds as its runners take them.

from rsl_rl.runners import OnPolicyRunner
from mjtorch import envs
from mjtorch.envs.adapters.rsl_rl import VecEnv

worlds = VecEnv(envs.make("Ant-v5", mode="same_step"), num_envs=4096, seed=0)
OnPolicyRunner(worlds, config).learn(1000)
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mjtorch.envs.adapters.pictures import Pictures, frames
from mjtorch.envs.adapters.worlds import Worlds
from mjtorch.envs.env import Env, State
from mjtorch.envs.wrappers.episode import AutoReset, EpisodeStatistics, TimeLimit

try:
    import rsl_rl.env
    from tensordict import TensorDict
except ModuleNotFoundError as e:
    raise ModuleNotFoundError('this adapter needs RSL-RL: pip install "mjtorch[rsl-rl]"') from e


class VecEnv(rsl_rl.env.VecEnv):
    """Worlds of an environment with a time limit that begin again in the same step, float32.

    Observations are the group "policy"; actions are those of the environment, without bounds.

    Args:
        env: `AutoReset(mode="same_step")` around a `TimeLimit`.
        num_envs: how many worlds.
        seed: of their random numbers.
        cfg: what is to be logged of the environment.
        pictures: what `render` returns.
        **options: for `jit`.
    """

    def __init__(
        self,
        env: AutoReset,
        num_envs: int,
        *,
        seed: int = 0,
        cfg: Any = None,
        pictures: Pictures | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(env, AutoReset) or env.mode != "same_step":
            raise ValueError('VecEnv: RSL-RL wants worlds to begin again in the same step: make(..., mode="same_step")')
        self.worlds, self.pictures = Worlds(env, num_envs, **options), pictures
        self.num_envs, self.num_actions = num_envs, self.worlds.low.shape[0]
        self.max_episode_length = int(time_limit(env).limit)
        self.device, self.cfg = self.worlds.device, cfg or {}
        self.worlds.reset(seed)

    @property
    def state(self) -> State:
        """Of all worlds."""
        assert self.worlds.state is not None
        return self.worlds.state

    @property
    def episode_length_buf(self) -> Tensor:
        """How many steps (num_envs,) of their episodes worlds have made; may be set."""
        return self.state.memory["elapsed"]

    @episode_length_buf.setter
    def episode_length_buf(self, elapsed: Tensor) -> None:
        """Set how many steps (num_envs,) they have made."""
        memory = {**self.state.memory, "elapsed": elapsed.to(torch.int64)}
        self.worlds.state = self.state.replace(memory=memory)

    def get_observations(self) -> TensorDict:
        """What the worlds show now."""
        return TensorDict({"policy": self.state.obs.float()}, batch_size=[self.num_envs], device=self.device)

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Observations, rewards (num_envs,), whether episodes are over, and which of them for lack of time."""
        state = self.worlds.step(actions)
        return self.get_observations(), state.reward.float(), state.done.long(), {"time_outs": state.truncated}

    def render(self) -> np.ndarray:
        """Frames (worlds, height, width, 3)."""
        return frames(self.pictures, self.worlds.state)


def time_limit(env: Env) -> TimeLimit:
    """The time limit of an environment.

    Raises:
        ValueError: there is none.
    """
    inside: Any = env
    while not isinstance(inside, TimeLimit):
        if not isinstance(inside, AutoReset | EpisodeStatistics):
            raise ValueError("VecEnv: RSL-RL wants episodes of bounded length; put a TimeLimit next to the AutoReset")
        inside = inside.env
    return inside
