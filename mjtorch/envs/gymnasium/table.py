"""Gymnasium's MuJoCo tasks, version 5, by name."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import mujoco
import torch

from mjtorch.envs.env import Task
from mjtorch.envs.gymnasium import arm, humanoid, pendulum, runner
from mjtorch.model import put_model


@dataclasses.dataclass(frozen=True)
class Entry:
    """A task: its file and its parameters.

    steps: after how many an episode is truncated
    bodies: names of those that it needs the numbers of
    """

    task: type[Task]
    xml_file: str
    frame_skip: int
    steps: int = 1000
    bodies: tuple[str, ...] = ()


TASKS = {
    "Ant": Entry(runner.Ant, "ant.xml", 5),
    "HalfCheetah": Entry(runner.HalfCheetah, "half_cheetah.xml", 5),
    "Hopper": Entry(runner.Hopper, "hopper.xml", 4),
    "Humanoid": Entry(humanoid.Humanoid, "humanoid.xml", 5),
    "HumanoidStandup": Entry(humanoid.HumanoidStandup, "humanoidstandup.xml", 5),
    "InvertedDoublePendulum": Entry(pendulum.InvertedDoublePendulum, "inverted_double_pendulum.xml", 5),
    "InvertedPendulum": Entry(pendulum.InvertedPendulum, "inverted_pendulum.xml", 2),
    "Pusher": Entry(arm.Pusher, "pusher_v5.xml", 5, 100, ("tips_arm", "object", "goal")),
    "Reacher": Entry(arm.Reacher, "reacher.xml", 2, 50, ("fingertip", "target")),
    "Swimmer": Entry(runner.Swimmer, "swimmer.xml", 4),
    "Walker2d": Entry(runner.Walker2d, "walker2d_v5.xml", 4),
}


def load(
    name: str,
    *,
    xml_file: str | None = None,
    frame_skip: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    contact_capacity: int | None = None,
    **parameters: Any,
) -> Task:
    """The task `name`, without any wrapper.

    Args:
        name: one of `TASKS`.
        xml_file: another model, as Gymnasium takes it: a name among its own, or a path that begins with "/", "." or
            "~".
        frame_skip: time steps of the physics in one step of the agent, if not those of the task.
        device, dtype, contact_capacity: as for `put_model`.
        **parameters: Gymnasium's, such as `forward_reward_weight=2.0`.

    Raises:
        TypeError: the task has no such parameter.
        ModuleNotFoundError: Gymnasium, whose models these are, is not installed.
    """
    entry = TASKS[name]
    known = sorted(
        f.name for f in dataclasses.fields(entry.task) if f.name not in ("m", "rest", "frame_skip", "bodies")
    )
    for unknown in sorted(set(parameters) - set(known)):
        raise TypeError(f"{name} has no parameter {unknown!r}; it has {', '.join(known)}, xml_file and frame_skip")
    mj_model = read(name, xml_file)
    if isinstance(parameters.get("main_body"), str):
        parameters["main_body"] = mj_model.body(parameters["main_body"]).id
    if entry.bodies:
        parameters["bodies"] = tuple(mj_model.body(body).id for body in entry.bodies)
    m = put_model(mj_model, device=device, dtype=dtype, contact_capacity=contact_capacity)
    return entry.task.of(m, frame_skip=frame_skip or entry.frame_skip, **parameters)


def read(name: str, xml_file: str | None = None) -> mujoco.MjModel:
    """The model of the task `name`, or another."""
    return mujoco.MjModel.from_xml_path(str(model_path(xml_file or TASKS[name].xml_file)))


def model_path(xml_file: str) -> Path:
    """Where a model lies: in the installed package, unless it is a path already."""
    if xml_file.startswith((".", "/", "~")):
        return Path(xml_file).expanduser()
    found = importlib.util.find_spec("gymnasium")
    if found is None or found.origin is None:
        raise ModuleNotFoundError('the models of these tasks are Gymnasium\'s: pip install "mjtorch[envs]"')
    return Path(found.origin).parent / "envs" / "mujoco" / "assets" / xml_file
