"""Stable-Baselines3: worlds as its algorithms take them.

from stable_baselines3 import PPO
from mjtorch import envs
from mjtorch.envs.adapters.stable_baselines3 import VecEnv

PPO("MlpPolicy", VecEnv(envs.make("Hopper-v5", mode="same_step"), num_envs=64)).learn(1_000_000)
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from mjtorch.envs.adapters.gymnasium import spaces
from mjtorch.envs.adapters.pictures import MODE, Pictures, frames
from mjtorch.envs.adapters.worlds import Worlds
from mjtorch.envs.wrappers.episode import AutoReset

try:
    import stable_baselines3.common.vec_env as base
except ModuleNotFoundError as e:
    raise ModuleNotFoundError('this adapter needs Stable-Baselines3: pip install "mjtorch[sb3]"') from e


class VecEnv(base.VecEnv):
    """Worlds of an environment that begin again in the same step.

    Where an episode is over, its `info` has what the task reports, `terminal_observation`, `TimeLimit.truncated`, and
    `episode` with return and length if they are counted; others are empty.

    Args:
        env: `AutoReset(mode="same_step")` around anything.
        num_envs: how many worlds.
        pictures: what `get_images` and `render` show.
        **options: for `jit`.
    """

    def __init__(self, env: AutoReset, num_envs: int, *, pictures: Pictures | None = None, **options: Any) -> None:
        if not isinstance(env, AutoReset) or env.mode != "same_step":
            raise ValueError(
                'VecEnv: Stable-Baselines3 wants worlds to begin again in the same step: make(..., mode="same_step")'
            )
        self.worlds, self.pictures = Worlds(env, num_envs, **options), pictures
        self.render_mode = MODE if pictures else None
        self.actions = np.zeros(0)
        super().__init__(num_envs, *spaces(self.worlds))

    def reset(self) -> np.ndarray:
        """All worlds begin, with the seeds that `seed` gave them."""
        seeds = [s for s in self._seeds if s is not None]
        if not seeds and self.worlds.state is None:
            seeds = torch.randint(2**31, (self.num_envs,)).tolist()
        state = self.worlds.reset(seeds or None)
        self._reset_seeds()
        return state.obs.numpy(force=True)

    def step_async(self, actions: np.ndarray) -> None:
        """With these actions `step_wait` will step."""
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """All worlds one step further."""
        state = self.worlds.step(self.actions)
        parts = (state.obs, state.reward, state.done, state.truncated)
        obs, reward, done, truncated = (np.ascontiguousarray(x.numpy(force=True)) for x in parts)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if done.any():
            reported = {name: x.numpy(force=True) for name, x in state.info.items()}
            for k in done.nonzero()[0]:
                info = {name: x[k] for name, x in reported.items()}
                info["terminal_observation"] = info.pop("final_obs")
                if "episode_return" in info:
                    info["episode"] = {"r": float(info["episode_return"]), "l": int(info["episode_length"])}
                infos[k] = {**info, "TimeLimit.truncated": bool(truncated[k])}
        return obs, reward, done, infos

    def close(self) -> None:
        """End the process that draws."""
        if self.pictures is not None:
            self.pictures.close()

    def get_images(self) -> Sequence[np.ndarray]:
        """Frames (height, width, 3) of the worlds that are drawn; `render` tiles them."""
        return list(frames(self.pictures, self.worlds.state))

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the environment, which is that of all worlds."""
        value = self.render_mode if attr_name == "render_mode" else getattr(self.worlds.env, attr_name)
        return [value for _ in self._indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Not of one world: `worlds.env` is of all, and is replaced, not changed."""
        raise NotImplementedError("VecEnv: set worlds.env to an environment with other numbers: env.replace(...)")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Not of one world: all compute together."""
        raise NotImplementedError("VecEnv: worlds have no methods of their own; step and reset compute all together")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Not by Gymnasium's wrappers; but episodes are monitored where `EpisodeStatistics` counts them."""
        return [False for _ in self._indices(indices)]

    def _indices(self, indices: Any) -> Sequence[int] | Iterable[int]:
        return self._get_indices(indices)
