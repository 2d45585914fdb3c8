"""When episodes end, what happens then, and what is known of them."""

from typing import Literal

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.control_flow import cond
from mjtorch.envs.env import Env, State, Wrapper, check_count

Mode = Literal["next_step", "same_step", "disabled"]
MODES = ("next_step", "same_step", "disabled")


@tree.dataclass(kw_only=True)
class TimeLimit(Wrapper):
    """Episodes are truncated after `limit` steps; `memory["elapsed"]` () counts them."""

    limit: int | Tensor

    def reset(self, key: Tensor) -> State:
        """From zero.

        Raises:
            ValueError: the limit is not a positive int.
        """
        check_count("TimeLimit", "limit", self.limit)
        state = self.env.reset(key)
        elapsed = torch.zeros((), dtype=torch.int64, device=state.obs.device)
        return state.replace(memory={**state.memory, "elapsed": elapsed})

    def step(self, state: State, action: Tensor) -> State:
        """One more."""
        new = self.env.step(state, action)
        elapsed = state.memory["elapsed"] + 1
        over = new.truncated | (elapsed >= self.limit)
        return new.replace(truncated=over, memory={**new.memory, "elapsed": elapsed})


@tree.dataclass(kw_only=True)
class EpisodeStatistics(Wrapper):
    """The sum of rewards and the number of steps of the episode so far: `info["episode_return"]`, `"episode_length"`.

    Where an episode is over they are those of all of it. Put `AutoReset` around it.
    """

    def reset(self, key: Tensor) -> State:
        """From zero."""
        state = self.env.reset(key)
        length = torch.zeros((), dtype=torch.int64, device=state.obs.device)
        return _counted(state, state.reward, length)

    def step(self, state: State, action: Tensor) -> State:
        """One more."""
        total, length = state.memory["episode"]
        new = self.env.step(state, action)
        return _counted(new, total + new.reward, length + 1)


def _counted(state: State, total: Tensor, length: Tensor) -> State:
    return state.replace(
        info={**state.info, "episode_return": total, "episode_length": length},
        memory={**state.memory, "episode": (total, length)},
    )


@tree.dataclass(kw_only=True)
class AutoReset(Wrapper):
    """Worlds whose episode is over begin another one by themselves; compiled, it costs nothing where none does.

    mode: as Gymnasium defines them.
        "next_step": the step that ends an episode shows its last observation; the one after it ignores the action,
            begins the next episode and has reward 0.
        "same_step": the step that ends an episode has its reward, flags and info, and begins the next one, whose
            observation it shows; the last one of each step is `info["final_obs"]`.
        "disabled": none does; see `reset_where`.

    `memory["diverged"]` () counts the steps that left numbers that are not finite; see `Task`.
    """

    mode: Mode = tree.field(static=True, default="next_step")

    def reset(self, key: Tensor) -> State:
        """Nothing has diverged yet.

        Raises:
            ValueError: there is no such mode.
        """
        if self.mode not in MODES:
            raise ValueError(f"AutoReset: mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        state = self.env.reset(key)
        return self._told(state, state.obs, torch.zeros((), dtype=torch.int64, device=state.obs.device))

    def step(self, state: State, action: Tensor) -> State:
        """A step, or a reset, or both."""
        new = self.env.step(state, action)
        if self.mode == "same_step":
            told = {"reward": new.reward, "terminated": new.terminated, "truncated": new.truncated, "info": new.info}
            chosen = cond(new.done, lambda: again(self.env, new).replace(**told), lambda: new)
        elif self.mode == "next_step":
            chosen = cond(state.done, lambda: again(self.env, new), lambda: new)
        else:
            chosen = new
        return self._told(chosen, new.obs, state.memory["diverged"] + chosen.info["diverged"])

    def _told(self, state: State, last: Tensor, diverged: Tensor) -> State:
        info = {**state.info, "final_obs": last} if self.mode == "same_step" else state.info
        return state.replace(info=info, memory={**state.memory, "diverged": diverged})


def reset_where(env: Env, state: State, mask: Tensor) -> State:
    """`state`, or where `mask` () holds the beginning of another episode of `env`; divergences are still counted."""

    def fresh() -> State:
        new = again(env, state)
        return new.replace(memory={**new.memory, "diverged": state.memory.get("diverged", new.info["diverged"])})

    return cond(mask, fresh, lambda: state)


def again(env: Env, over: State) -> State:
    """The beginning of another episode; what is remembered around `env` stays."""
    new = env.reset(over.key)
    return new.replace(memory={**over.memory, **new.memory})
