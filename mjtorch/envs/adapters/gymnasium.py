"""Gymnasium: importing this module registers the environments.

import gymnasium, mjtorch.envs.adapters.gymnasium

worlds = gymnasium.make_vec("mjtorch/Ant-v5", num_envs=4096)
obs, info = worlds.reset(seed=0)
obs, reward, terminated, truncated, info = worlds.step(worlds.action_space.sample())
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.envs.adapters.pictures import MODE, Pictures, frames
from mjtorch.envs.adapters.worlds import Worlds
from mjtorch.envs.env import Env, State
from mjtorch.envs.gymnasium.table import TASKS
from mjtorch.envs.make import VERSION, make, mj_model
from mjtorch.envs.velocity import table as velocity
from mjtorch.envs.wrappers.episode import AutoReset, EpisodeStatistics, TimeLimit

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode
    from gymnasium.vector.utils import batch_space
except ModuleNotFoundError as e:
    raise ModuleNotFoundError('this adapter needs Gymnasium: pip install "mjtorch[envs]"') from e

# What Gymnasium calls its ways to reset.
MODES = {"next_step": "NextStep", "same_step": "SameStep", "disabled": "Disabled"}


class VectorEnv(gymnasium.vector.VectorEnv):
    """Worlds of an environment as Gymnasium sees many.

    Everything the task reports is in `info`, of all worlds; with "same_step" also `final_obs` and `final_info`, which
    mean something where `info["_final_obs"]` holds. With "disabled", `reset(options={"reset_mask": mask})` begins some.

    Args:
        env: with an `AutoReset` around it, whose mode is that of the worlds.
        num_envs: how many worlds.
        output: "numpy" for arrays, "torch" for tensors, on the device of the worlds.
        pictures: what `render` returns, a tuple of frames; Gymnasium's `RecordVideo` wants those of all worlds.
        **options: for `jit`, such as `threads` or `backend`.
    """

    metadata: dict[str, Any] = {"render_modes": [MODE]}  # noqa: RUF012 - Gymnasium's

    def __init__(
        self,
        env: AutoReset,
        num_envs: int,
        *,
        output: str = "numpy",
        pictures: Pictures | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(env, AutoReset):
            raise TypeError(f"VectorEnv: the outermost environment must be an AutoReset, got {type(env).__name__}")
        if output not in ("numpy", "torch"):
            raise ValueError(f"VectorEnv: output must be 'numpy' or 'torch', got {output!r}")
        self.worlds, self.num_envs, self.output = Worlds(env, num_envs, **options), num_envs, output
        self.mode, self.pictures = env.mode, pictures
        self.render_mode = MODE if pictures else None
        self.metadata = {
            **self.metadata,
            "autoreset_mode": AutoresetMode(MODES[env.mode]),
            "render_fps": frame_rate(env),
        }
        self.single_observation_space, self.single_action_space = spaces(self.worlds)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """All worlds begin, or those of `options["reset_mask"]`; a seed makes their random numbers anew."""
        mask = (options or {}).get("reset_mask")
        if mask is not None:
            if seed is not None:
                raise ValueError("VectorEnv: worlds of a reset_mask go on with their own random numbers; give no seed")
            state = self.worlds.reset_where(torch.as_tensor(mask, device=self.worlds.device))
        else:
            if isinstance(seed, list):
                seeds: Any = [self._fresh_seed() if s is None else s for s in seed]
            else:
                seeds = self._fresh_seed() if seed is None and self.worlds.state is None else seed
            state = self.worlds.reset(seeds)
        return self._out(state.obs), self._info(state, {})

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """All worlds one step further.

        Raises:
            ValueError: resets are disabled and an episode was over before.
        """
        before = self.worlds.state
        if self.mode == "disabled" and before is not None and bool(before.done.any()):
            raise ValueError(
                'VectorEnv: an episode is over; call reset(options={"reset_mask": terminated | truncated})'
            )
        state = self.worlds.step(actions)
        final: dict[str, Any] = {}
        if self.mode == "same_step":
            done = self._out(state.done)
            reported = {name: x for name, x in state.info.items() if name != "final_obs"}
            final = {
                "final_info": self._info(state.replace(info=reported), {}),
                "_final_info": done,
                "_final_obs": done,
            }
        flags = self._out(state.terminated), self._out(state.truncated)
        return self._out(state.obs), self._out(state.reward), *flags, self._info(state, final)

    def render(self) -> tuple[np.ndarray, ...]:
        """Frames (height, width, 3) of the worlds that are drawn."""
        return tuple(frames(self.pictures, self.worlds.state))

    def close_extras(self, **_: Any) -> None:
        """End the process that draws."""
        if self.pictures is not None:
            self.pictures.close()

    def _info(self, state: State, more: dict[str, Any]) -> dict[str, Any]:
        """What is reported, with Gymnasium's masks of the worlds that report it."""
        everyone = self._out(torch.ones_like(state.done))
        info = tree.map(self._out, state.info)
        return {**info, **{f"_{name}": everyone for name in info}, **more}

    def _out(self, x: Tensor) -> Any:
        return x if self.output == "torch" else np.ascontiguousarray(x.numpy(force=True))

    def _fresh_seed(self) -> int:
        return int(self.np_random.integers(2**63))


class SingleEnv(gymnasium.Env):
    """One world as Gymnasium sees it; for learning take many, which cost little more.

    Args:
        env: the environment; episodes begin when `reset` is called.
        pictures: what `render` returns, one frame.
        **options: for `jit`.
    """

    metadata: dict[str, Any] = {"render_modes": [MODE]}  # noqa: RUF012 - Gymnasium's

    def __init__(self, env: Env, *, pictures: Pictures | None = None, **options: Any) -> None:
        self.worlds, self.pictures = Worlds(env, 1, **options), pictures
        self.render_mode = MODE if pictures else None
        self.metadata = {**self.metadata, "render_fps": frame_rate(env)}
        self.observation_space, self.action_space = spaces(self.worlds)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The world begins."""
        super().reset(seed=seed)
        state = self.worlds.reset(int(self.np_random.integers(2**63)))
        return self._world(state.obs), tree.map(self._world, state.info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step further."""
        state = self.worlds.step(np.asarray(action)[None])
        flags = bool(state.terminated[0]), bool(state.truncated[0])
        return self._world(state.obs), float(state.reward[0]), *flags, tree.map(self._world, state.info)

    def render(self) -> np.ndarray:
        """A frame (height, width, 3)."""
        return frames(self.pictures, self.worlds.state)[0]

    def close(self) -> None:
        """End the process that draws."""
        if self.pictures is not None:
            self.pictures.close()

    def _world(self, x: Tensor) -> Any:
        array = x[0].numpy(force=True)
        return array.item() if array.ndim == 0 else array.copy()


def frame_rate(env: Env) -> int:
    """Steps of the agent in a second, of which `render` shows each."""
    return max(1, round(1 / float(env.task.dt)))


def chosen_pictures(
    name: str, render_mode: str | None, width: int, height: int, camera: Any, parameters: dict[str, Any]
) -> Pictures | None:
    """What `render` is to return of the task `name`, as Gymnasium's arguments say.

    Raises:
        ValueError: there is no such mode.
    """
    if render_mode is None:
        return None
    if render_mode != MODE:
        raise ValueError(f'render_mode must be None or "{MODE}", got {render_mode!r}')
    return Pictures(mj_model(name, **parameters), camera=camera, size=(height, width))


def spaces(worlds: Worlds) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    """Of the observations and the actions of one world; actions are float32, as Gymnasium's are."""
    dtype = np.float64 if worlds.env.task.dtype == torch.float64 else np.float32
    low, high = (x.numpy(force=True).astype(np.float32) for x in (worlds.low, worlds.high))
    return (
        gymnasium.spaces.Box(-np.inf, np.inf, (worlds.size,), dtype),
        gymnasium.spaces.Box(low, high, dtype=np.float32),
    )


def make_vec(
    name: str,
    num_envs: int,
    *,
    max_episode_steps: int | None = None,
    autoreset_mode: str | AutoresetMode = "next_step",
    output: str = "numpy",
    backend: str = "auto",
    threads: int | None = None,
    render_mode: str | None = None,
    width: int = 480,
    height: int = 480,
    camera_name: str | None = None,
    **parameters: Any,
) -> VectorEnv:
    """Worlds of `mjtorch.envs.make(name)`: what `gymnasium.make_vec("mjtorch/NAME")` calls.

    Args:
        name: such as "Ant-v5".
        num_envs: how many worlds.
        max_episode_steps: as `limit` of `make`.
        autoreset_mode: one of Gymnasium's, or its name in `MODES`.
        output: "numpy" or "torch".
        backend, threads: as for `jit`.
        render_mode: "rgb_array" to have `render`, a tuple of frames.
        width, height, camera_name: of the frames.
        **parameters: as for `make`.
    """
    mode: Any = next((name for name, value in MODES.items() if autoreset_mode in (name, AutoresetMode(value))), None)
    if mode is None:
        raise ValueError(f"make_vec: autoreset_mode must be one of {', '.join(MODES)}, got {autoreset_mode!r}")
    pictures = chosen_pictures(name, render_mode, width, height, camera_name, parameters)
    env = make(name, limit=max_episode_steps, mode=mode, **parameters)
    return VectorEnv(env, num_envs, output=output, pictures=pictures, backend=backend, threads=threads)


def make_single(
    name: str,
    *,
    backend: str = "auto",
    threads: int | None = None,
    render_mode: str | None = None,
    width: int = 480,
    height: int = 480,
    camera_name: str | None = None,
    **parameters: Any,
) -> SingleEnv:
    """One world of a task: what `gymnasium.make("mjtorch/NAME")` calls, which puts its own time limit around."""
    pictures = chosen_pictures(name, render_mode, width, height, camera_name, parameters)
    env: Any = make(name, **parameters)
    while isinstance(env, AutoReset | EpisodeStatistics | TimeLimit):
        env = env.env
    return SingleEnv(env, pictures=pictures, backend=backend, threads=threads)


def register() -> None:
    """Enter environments into Gymnasium's registry, as `mjtorch/Ant-v5`, unless they are there."""
    steps = {f"{name}{VERSION}": entry.steps for name, entry in TASKS.items()}
    for name, limit in {**steps, **dict.fromkeys(velocity.TASKS, velocity.STEPS)}.items():
        if f"mjtorch/{name}" not in gymnasium.registry:
            gymnasium.register(
                id=f"mjtorch/{name}",
                entry_point=f"{__name__}:make_single",
                vector_entry_point=f"{__name__}:make_vec",
                max_episode_steps=limit,
                kwargs={"name": name},
            )


register()
