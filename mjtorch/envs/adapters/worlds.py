"""Many worlds of an environment and their state: what all adapters stand on."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import mujoco
import torch
from torch import Tensor

from mjtorch import random
from mjtorch.compiler import jit
from mjtorch.envs.env import Env, State, reset, step, with_tensors
from mjtorch.envs.wrappers.episode import reset_where
from mjtorch.overflow import Action, Guard


class Worlds:
    """`count` worlds of `env`, compiled, that remember where they are.

    state: of all worlds; None before the first reset
    low, high: the least and the greatest actions (nu,)
    size: how many numbers an observation has

    Args:
        env: for one world.
        count: of worlds.
        on_overflow: what to do if contacts find no slot, as for `mjtorch.on_overflow`; not given: they are counted in
            `state.data.warning`.
        mj_model: what the model of the task was made of, to grow.
        **options: for `jit`, such as `threads` or `backend`.
    """

    def __init__(
        self,
        env: Env,
        count: int,
        *,
        on_overflow: Action | None = None,
        mj_model: mujoco.MjModel | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(env, Env):
            raise TypeError(
                f"env must be a mjtorch.envs.Env, got {type(env).__name__}; envs.make gives one by its name"
            )
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"the number of worlds must be a positive int, got {count!r}")
        self.env, self.count = with_tensors(env), count
        self.state: State | None = None
        self.guard = Guard(on_overflow, mj_model) if on_overflow is not None else None
        self.low, self.high = env.action_range
        self.size = env.reset(random.key(0, device=self.device)).obs.shape[0]
        self._reset = jit(reset, in_dims=(None, 0), **options)
        self._step = jit(step, in_dims=(None, 0, 0), **options)
        self._reset_where = jit(reset_where, in_dims=(None, 0, 0), **options)

    @property
    def device(self) -> torch.device:
        """Where the worlds are."""
        return self.env.task.m.qpos0.device

    @torch.no_grad()
    def reset(self, seed: int | Sequence[int] | Tensor | None = None) -> State:
        """All worlds begin, with a seed for all, one for each, or keys (count, 2); without, with what comes next."""
        if seed is None:
            if self.state is None:
                raise ValueError("the first reset needs a seed")
            keys = self.state.key
        elif isinstance(seed, Integral):
            keys = random.split(random.key(int(seed), device=self.device), self.count)
        elif isinstance(seed, Tensor):
            if tuple(seed.shape) != (self.count, 2):
                raise ValueError(f"{self.count} worlds need keys {(self.count, 2)}, got {tuple(seed.shape)}")
            keys = seed
        else:
            if not isinstance(seed, Iterable) or not all(isinstance(x, Integral) for x in seed):
                raise TypeError(f"seed must be an int, or one for each world, got {seed!r}")
            seeds = [int(x) for x in seed]
            if len(seeds) != self.count:
                raise ValueError(f"{self.count} worlds need as many seeds, got {len(seeds)}")
            keys = torch.vmap(random.key)(torch.tensor(seeds, dtype=torch.int64, device=self.device))
        self.state = self._reset(self.env, keys)
        return self.state

    @torch.no_grad()
    def reset_where(self, mask: Tensor) -> State:
        """Those worlds begin again where `mask` (count,) holds."""
        if mask.dtype != torch.bool or tuple(mask.shape) != (self.count,):
            raise ValueError(f"a mask of worlds is bool of shape {(self.count,)}, got {mask.dtype} {tuple(mask.shape)}")
        self.state = self._reset_where(self.env, self._begun(), mask)
        return self.state

    @torch.no_grad()
    def step(self, actions: Any) -> State:
        """All worlds under `actions` (count, nu), anything that `torch.as_tensor` takes."""
        actions, shape = torch.as_tensor(actions, device=self.device), (self.count, self.low.shape[0])
        if tuple(actions.shape) != shape:
            raise ValueError(f"actions must have shape {shape}, (worlds, actuators), got {tuple(actions.shape)}")
        if not actions.is_floating_point():
            raise TypeError(f"actions must be floats, got {actions.dtype}")
        before = self._begun()
        self.state = self._step(self.env, before, actions)
        while self.guard is not None and self.guard.is_lost(self.env.task.m, before.data, self.state.data):
            m, data = self.guard.fit(self.env.task.m, before.data)
            self.env, before = self.env.with_model(m), before.replace(data=data)
            self.state = self._step(self.env, before, actions)
        return self.state

    def _begun(self) -> State:
        if self.state is None:
            raise ValueError("call reset before the first step")
        return self.state
