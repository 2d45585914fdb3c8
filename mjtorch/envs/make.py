"""`make`: environments by name."""

import difflib
from typing import Any

import mujoco

from mjtorch.envs.dm_control import table as suite
from mjtorch.envs.env import Env, check_count, with_tensors
from mjtorch.envs.gymnasium.table import TASKS, load, mj_model_of
from mjtorch.envs.velocity import table as velocity
from mjtorch.envs.wrappers.episode import MODES, AutoReset, EpisodeStatistics, Mode, TimeLimit

# Gymnasium's version of its tasks that these are.
VERSION = "-v5"


def names() -> tuple[str, ...]:
    """What `make` can make."""
    return (*(f"{name}{VERSION}" for name in TASKS), *suite.TASKS, *velocity.TASKS)


def make(name: str, *, limit: int | None = None, mode: Mode = "next_step", **parameters: Any) -> AutoReset:
    """An environment by its name, such as "Ant-v5", with a time limit, statistics of episodes, and resets.

        env = mjtorch.envs.make("Ant-v5", healthy_reward=0.5, dtype=torch.float64)

    Args:
        name: one of `names()`: Gymnasium's MuJoCo tasks; those of dm_control's suite, such as "walker-run"; and robots
            that follow commands of velocity, such as "go1-flat". Their models come out of the installed packages
            `gymnasium`, `dm_control` and `mjlab`.
        limit: steps after which an episode is truncated, if not those of the task.
        mode: when worlds whose episode is over begin another one; see `AutoReset`.
        **parameters: `device`, `dtype` and `contact_capacity` as for `put_model`; for Gymnasium's tasks also its own,
            such as `forward_reward_weight`, `frame_skip` or `xml_file`; for robots that follow commands `randomize` and
            bounds of the commands, such as `forward=(0.0, 1.5)`.

    Raises:
        ValueError: there is no such environment, or no such mode, or a number makes no sense.
        TypeError: it has no such parameter.
        ModuleNotFoundError: the package with its model is not installed.
    """
    if mode not in MODES:
        raise ValueError(f"make: mode must be one of {', '.join(MODES)}, got {mode!r}")
    base = _base("make", name)
    task: Env
    if base in suite.TASKS:
        task = suite.load(base, **parameters)
        usual = suite.steps(base, task.task)
    elif base in velocity.TASKS:
        task, usual = velocity.load(base, **parameters), velocity.STEPS
    else:
        task, usual = load(base, **parameters), TASKS[base].steps
    if limit is not None:
        check_count("make", "limit", limit)
    limit = usual if limit is None else limit
    limited = task if limit is None else TimeLimit(env=task, limit=limit)
    return with_tensors(AutoReset(env=EpisodeStatistics(env=limited), mode=mode))


def mj_model(name: str, *, xml_file: str | None = None, **_: Any) -> mujoco.MjModel:
    """What the model of `make(name, ...)` is made of: what is needed to draw its worlds.

        frames = mjtorch.render(envs.mj_model("Ant-v5"), state.data, worlds=range(9))

    Args:
        name, xml_file: as for `make`, whose other parameters change nothing here.

    Raises:
        ValueError: there is no such environment.
        ModuleNotFoundError: the package with its model is not installed.
    """
    base = _base("mj_model", name)
    if base in velocity.TASKS:
        return velocity.read(base)
    return suite.read(base) if base in suite.TASKS else mj_model_of(base, xml_file)


def _base(caller: str, name: str) -> str:
    """The name of an environment without its version."""
    if name not in names():
        close = difflib.get_close_matches(str(name), names(), cutoff=0.4) or names()
        raise ValueError(f"{caller}: there is no environment {name!r}; did you mean {' or '.join(close)}?")
    return name.removesuffix(VERSION)
