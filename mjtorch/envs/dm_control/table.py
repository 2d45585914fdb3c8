"""dm_control's suite, by domain and task."""

import dataclasses
import importlib
from typing import Any

import mujoco
import numpy as np
import torch

from mjtorch.envs.dm_control import arm, classic, dog, humanoid, planar, quadruped, swimming
from mjtorch.envs.dm_control.suite import INF, SuiteTask
from mjtorch.envs.env import Env, Task
from mjtorch.envs.wrappers.randomize import RandomizeModel
from mjtorch.model import put_model


@dataclasses.dataclass(frozen=True)
class Entry:
    """A task: the arguments of its model and its parameters.

    seconds: after how many an episode is truncated
    control: [s] one step of the agent, 0 for a time step of the physics
    model: arguments of dm_control's function that makes the model
    numbers: what it changes in the model, by field, name and entry
    """

    task: type[SuiteTask]
    seconds: float
    control: float = 0.0
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    numbers: tuple[tuple[str, str, str, float], ...] = ()


def _poles(swing_up: bool, sparse: bool = False, poles: int = 1) -> Entry:
    return Entry(classic.Cartpole, 10, parameters={"swing_up": swing_up, "sparse": sparse}, model={"num_poles": poles})


def _moving(task: type[SuiteTask], seconds: float, control: float, speed: float, **more: Any) -> Entry:
    return Entry(task, seconds, control, {"speed": speed, **more})


def _reach(radius: float) -> Entry:
    return Entry(classic.Reacher, 20, numbers=(("geom", "target", "size", radius),))


def _turn(radius: float) -> Entry:
    return Entry(planar.Turn, 20, 0.02, numbers=(("site", "target", "size", radius),))


def _dog(task: type[SuiteTask], speed: float = 0) -> Entry:
    """On a floor that it cannot leave in an episode."""
    floor = 15 * max(speed, 1)
    return Entry(task, 15, 0.015, {"speed": speed} if speed else {}, {"floor_size": floor})


def _quadruped(task: type[SuiteTask], speed: float = 0, **model: Any) -> Entry:
    return Entry(task, 20, 0.02, {"speed": speed}, {"floor_size": 20 * speed} if speed else model)


def _bring(**model: bool) -> Entry:
    return Entry(arm.Bring, 10, 0.01, model=model)


TASKS = {
    "acrobot-swingup": Entry(classic.Acrobot, 10, parameters={"margin": 1.0}),
    "acrobot-swingup_sparse": Entry(classic.Acrobot, 10, parameters={"margin": 0.0}),
    "ball_in_cup-catch": Entry(planar.BallInCup, 20, 0.02),
    "cartpole-balance": _poles(False),
    "cartpole-balance_sparse": _poles(False, True),
    "cartpole-swingup": _poles(True),
    "cartpole-swingup_sparse": _poles(True, True),
    "cartpole-three_poles": _poles(True, poles=3),
    "cartpole-two_poles": _poles(True, poles=2),
    "cheetah-run": _moving(planar.Cheetah, 10, 0, 10),
    "dog-fetch": Entry(dog.Fetch, 15, 0.015, model={"remove_ball": False}),
    "dog-run": _dog(dog.Move, 9),
    "dog-stand": _dog(dog.Stand),
    "dog-trot": _dog(dog.Move, 3),
    "dog-walk": _dog(dog.Move, 1),
    "finger-spin": Entry(planar.Spin, 20, 0.02, numbers=(("joint", "hinge", "damping", 0.03),)),
    "finger-turn_easy": _turn(0.07),
    "finger-turn_hard": _turn(0.03),
    "fish-swim": Entry(swimming.FishSwim, 40, 0.04),
    "fish-upright": Entry(swimming.FishUpright, 40, 0.04),
    "hopper-hop": _moving(planar.Hopper, 20, 0.02, 2),
    "hopper-stand": _moving(planar.Hopper, 20, 0.02, 0),
    "humanoid-run": _moving(humanoid.Humanoid, 25, 0.025, 10),
    "humanoid-run_pure_state": _moving(humanoid.Humanoid, 25, 0.025, 10, pure_state=True),
    "humanoid-stand": _moving(humanoid.Humanoid, 25, 0.025, 0),
    "humanoid-walk": _moving(humanoid.Humanoid, 25, 0.025, 1),
    "humanoid_CMU-run": _moving(humanoid.HumanoidCMU, 20, 0.02, 10),
    "humanoid_CMU-stand": _moving(humanoid.HumanoidCMU, 20, 0.02, 0),
    "humanoid_CMU-walk": _moving(humanoid.HumanoidCMU, 20, 0.02, 1),
    "lqr-lqr_2_1": Entry(classic.LQR, INF, model={"n_bodies": 2, "n_actuators": 1}),
    "lqr-lqr_6_2": Entry(classic.LQR, INF, model={"n_bodies": 6, "n_actuators": 2}),
    "manipulator-bring_ball": _bring(use_peg=False, insert=False),
    "manipulator-bring_peg": _bring(use_peg=True, insert=False),
    "manipulator-insert_ball": _bring(use_peg=False, insert=True),
    "manipulator-insert_peg": _bring(use_peg=True, insert=True),
    "pendulum-swingup": Entry(classic.Pendulum, 20),
    "point_mass-easy": Entry(classic.PointMass, 20),
    "point_mass-hard": Entry(classic.PointMassTurned, 20),
    "quadruped-escape": _quadruped(quadruped.Escape, floor_size=40, terrain=True, rangefinders=True),
    "quadruped-fetch": _quadruped(quadruped.Fetch, walls_and_ball=True),
    "quadruped-run": _quadruped(quadruped.Walker, 5),
    "quadruped-walk": _quadruped(quadruped.Walker, 0.5),
    "reacher-easy": _reach(0.05),
    "reacher-hard": _reach(0.015),
    "stacker-stack_2": Entry(arm.Stack, 10, 0.01, model={"n_boxes": 2}),
    "stacker-stack_4": Entry(arm.Stack, 10, 0.01, model={"n_boxes": 4}),
    "swimmer-swimmer15": Entry(swimming.Swimmer, 30, 0.03, model={"n_joints": 15}),
    "swimmer-swimmer6": Entry(swimming.Swimmer, 30, 0.03, model={"n_joints": 6}),
    "walker-run": _moving(planar.Walker, 25, 0.025, 8),
    "walker-stand": _moving(planar.Walker, 25, 0.025, 0),
    "walker-walk": _moving(planar.Walker, 25, 0.025, 1),
}


def load(
    name: str,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    contact_capacity: int | None = None,
) -> Env:
    """The task `name`, without any wrapper but one that draws what differs between episodes in its model.

    Raises:
        ModuleNotFoundError: dm_control, whose models these are, is not installed.
    """
    entry = TASKS[name]
    mj_model = read(name)
    m = put_model(mj_model, device=device, dtype=dtype, contact_capacity=contact_capacity)
    skip = round(entry.control / mj_model.opt.timestep) or 1
    task = entry.task.of(m, frame_skip=skip, **entry.parameters, **entry.task.measured(mj_model))
    draw = getattr(task, "draw", None)
    return task if draw is None else RandomizeModel(env=task, draw=draw, derive=False)


def steps(name: str, task: Task) -> int | None:
    """After how many an episode is truncated; None for never."""
    entry = TASKS[name]
    return None if entry.seconds == INF else round(entry.seconds / float(task.dt))


def read(name: str) -> mujoco.MjModel:
    """The model of the task `name`, from the installed package."""
    entry, domain = TASKS[name], name.partition("-")[0]
    try:
        source = importlib.import_module(f"dm_control.suite.{domain}")
    except ModuleNotFoundError as e:
        raise ModuleNotFoundError(
            'the models of these tasks are dm_control\'s: pip install "mjtorch[dm-control]"'
        ) from e
    # stiffness of springs is drawn for each episode anyway
    more = {"random": np.random.RandomState(0)} if domain == "lqr" else {}
    make = getattr(source, "get_model_and_assets", None) or source.make_model
    made = make(**entry.model, **more)
    xml, assets = made if isinstance(made, tuple) else (made, source.common.ASSETS)
    mj_model = mujoco.MjModel.from_xml_string(xml if isinstance(xml, str) else xml.decode(), assets)
    for kind, of, field, value in entry.numbers:
        getattr(getattr(mj_model, kind)(of), field)[0] = value
    return mj_model
