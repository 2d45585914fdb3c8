"""TorchRL: worlds as its collectors take them.

from mjtorch import envs
from mjtorch.envs.adapters.torchrl import WorldsEnv

worlds = WorldsEnv(envs.make("Ant-v5", mode="disabled"), num_envs=4096)
data = worlds.rollout(100)
"""

from typing import Any

import torch

from mjtorch.envs.adapters.pictures import Pictures, frames
from mjtorch.envs.adapters.worlds import Worlds
from mjtorch.envs.env import State
from mjtorch.envs.wrappers.episode import AutoReset

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Bounded, Categorical, Composite, Unbounded
    from torchrl.envs import EnvBase
except ModuleNotFoundError as e:
    raise ModuleNotFoundError('this adapter needs TorchRL: pip install "mjtorch[torchrl]"') from e


class WorldsEnv(EnvBase):
    """Worlds of an environment, which begin again when TorchRL tells them to.

    Args:
        env: `AutoReset(mode="disabled")` around anything.
        num_envs: how many worlds.
        seed: of their random numbers.
        pictures: what `render` returns, and TorchRL's `PixelRenderTransform` asks for; that one wants all worlds.
        **options: for `jit`.
    """

    def __init__(
        self, env: AutoReset, num_envs: int, *, seed: int = 0, pictures: Pictures | None = None, **options: Any
    ) -> None:
        if not isinstance(env, AutoReset) or env.mode != "disabled":
            raise ValueError('WorldsEnv: TorchRL says itself which worlds begin again: make(..., mode="disabled")')
        worlds = Worlds(env, num_envs, **options)
        super().__init__(device=worlds.device, batch_size=[num_envs])
        self.worlds, self.pictures = worlds, pictures
        self.next_seed: int | None = seed
        dtype, batch = env.task.dtype, (num_envs,)
        kind: dict[str, Any] = {"device": worlds.device, "dtype": dtype}
        low, high = (x.expand(*batch, -1).clone() for x in (worlds.low, worlds.high))
        self.observation_spec = Composite(observation=Unbounded((*batch, worlds.size), **kind), shape=batch)
        self.action_spec = Bounded(low, high, shape=(*batch, low.shape[-1]), **kind)
        self.reward_spec = Unbounded((*batch, 1), **kind)
        flag: dict[str, Any] = {"n": 2, "shape": (*batch, 1), "dtype": torch.bool, "device": worlds.device}
        names = ("done", "terminated", "truncated")
        self.done_spec = Composite({name: Categorical(**flag) for name in names}, shape=batch)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        """All worlds, or those that `_reset` says."""
        some = tensordict is not None and "_reset" in tensordict.keys()  # noqa: SIM118 - no dict
        if some and self.worlds.state is not None and self.next_seed is None:
            return self._told(self.worlds.reset_where(tensordict["_reset"].squeeze(-1)))  # type: ignore[index]
        state, self.next_seed = self.worlds.reset(self.next_seed), None
        return self._told(state)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        state = self.worlds.step(tensordict["action"])
        told = self._told(state)
        return told.set("reward", state.reward.unsqueeze(-1))

    def render(self) -> torch.Tensor:
        """Frames (worlds, height, width, 3), uint8."""
        return torch.from_numpy(frames(self.pictures, self.worlds.state))

    def _told(self, state: State) -> TensorDictBase:
        flags = {"done": state.done, "terminated": state.terminated, "truncated": state.truncated}
        values = {"observation": state.obs, **{name: x.unsqueeze(-1).clone() for name, x in flags.items()}}
        return TensorDict(values, batch_size=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self.next_seed = seed
