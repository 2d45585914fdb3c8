"""Velocity-tracking tasks by name, and how their models are made."""

from typing import Any

import mujoco
import numpy as np
import torch
from mujoco import mjtGeom

from mjtorch.envs.env import Env
from mjtorch.envs.velocity.equip import COMMAND, GROUNDS, compiled, stand
from mjtorch.envs.velocity.randomize import Variation
from mjtorch.envs.velocity.robots import G1, GO1, Robot, fitting
from mjtorch.envs.velocity.task import PHASE, Velocity
from mjtorch.envs.wrappers.action import ActionDelay
from mjtorch.envs.wrappers.observation import ObservationNoise
from mjtorch.envs.wrappers.randomize import RandomizeModel
from mjtorch.model import put_model

ROBOTS = {"go1": GO1, "g1": G1}
TASKS = tuple(f"{robot}-{ground}" for robot in ROBOTS for ground in GROUNDS)

# How many time steps are one of the agent, and how many of those are an episode: 20 s.
SKIP, STEPS = 4, 1000
# Where heights are seen: so far forward and sideways, so far apart [m].
SCAN_AHEAD, SCAN_ASIDE, SCAN_STEP = 0.8, 0.4, 0.2
# Steps by which actions are late.
DELAY = (0, 1)
# What sensors are off, each way: velocities [m/s, rad/s], where down is, joints [rad, rad/s], heights [m]; and joints,
# all of an episode.
NOISE = {"linear": 0.1, "angular": 0.2, "down": 0.05, "joint": 0.01, "joint_speed": 1.5, "relief": 0.05}
UNCALIBRATED = 0.015


def read(name: str) -> mujoco.MjModel:
    """The model of the task `name`.

    Raises:
        ModuleNotFoundError: the package that its robot is in is not installed.
    """
    robot, ground = name.split("-")
    return compiled(ROBOTS[robot], ground)


def load(name: str, **options: Any) -> Env:
    """The task `name`; `options` as for `velocity`."""
    return velocity(read(name), ROBOTS[name.split("-")[0]], name, **options)


def velocity(
    mj_model: mujoco.MjModel,
    robot: Robot,
    name: str,
    *,
    randomize: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    contact_capacity: int | None = None,
    **parameters: Any,
) -> Env:
    """The task of a robot, `mj_model` being what `equipped` returned.

    Args:
        mj_model: of the robot on its ground.
        robot: of which it was made.
        name: for errors.
        randomize: whether friction, masses and motors differ between episodes, actions are late, observations off, and
            the robot is pushed.
        device, dtype, contact_capacity: as for `put_model`.
        **parameters: of `Velocity`, such as `forward=(0.0, 1.5)`.

    Raises:
        TypeError: the task has no such parameter.
    """
    known = ("forward", "left", "turn", "standing", "command_seconds", "push_seconds", "push_speed", "push_turn")
    for unknown in sorted(set(parameters) - set(known)):
        raise TypeError(f"{name} has no parameter {unknown!r}; it has {', '.join(known)} and randomize")
    m = put_model(mj_model, device=device, dtype=dtype, contact_capacity=contact_capacity)
    if not randomize:
        parameters = {"push_speed": 0.0, "push_turn": 0.0, **parameters}
    joints = [mj_model.joint(k).name for k in range(1, mj_model.njnt)]
    rest = standing(mj_model, [stand(robot, joint) for joint in joints])
    number = m.qpos0.new_tensor
    sites = [mj_model.site(site).id for site in robot.feet]
    ahead, aside = (np.arange(-x, x + SCAN_STEP / 2, SCAN_STEP) for x in (SCAN_AHEAD, SCAN_ASIDE))
    task = Velocity.of(
        m,
        frame_skip=SKIP,
        stand=number(rest.qpos[7:]),
        loose=number([fitting(robot.loose, joint, "loose") for joint in joints]),
        tight=number([fitting(robot.tight, joint, "tight") for joint in joints]),
        sole=number(rest.site_xpos[sites, 2]),
        late=number([robot.late[site] for site in robot.feet]),
        strides=robot.strides,
        scan=number(np.stack(np.meshgrid(ahead, aside, indexing="ij"), -1).reshape(-1, 2)),
        feet=tuple(sites),
        **parameters,
    )
    task = task.replace(rest=task.rest.replace(qpos=number(rest.qpos), ctrl=number(rest.qpos[7:])))
    if not randomize:
        return task
    soles = np.flatnonzero(mj_model.geom_conaffinity).tolist()
    env: Env = RandomizeModel(env=task, draw=Variation(base=int(mj_model.jnt_bodyid[0]), feet=tuple(soles)))
    env = ActionDelay(env=env, least=DELAY[0], most=DELAY[1])
    return ObservationNoise(env=env, scale=number(_off(task)), offset=number(_uncalibrated(task)))


def standing(mj_model: mujoco.MjModel, pose: list[float]) -> mujoco.MjData:
    """The robot with joints at `pose` [rad], its soles at height 0."""
    data = mujoco.MjData(mj_model)
    data.qpos[:7], data.qpos[7:] = (0, 0, 0, 1, 0, 0, 0), pose
    mujoco.mj_kinematics(mj_model, data)
    data.qpos[2] -= min(bottom(mj_model, data, geom) for geom in np.flatnonzero(mj_model.geom_conaffinity).tolist())
    mujoco.mj_kinematics(mj_model, data)
    return data


def bottom(mj_model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> float:
    """How low a geom reaches [m]: exactly for spheres and capsules, by the box around it for others."""
    up, (radius, half, _) = data.geom_xmat[geom].reshape(3, 3)[2], mj_model.geom_size[geom]
    kind = mj_model.geom_type[geom]
    if kind == mjtGeom.mjGEOM_SPHERE:
        return data.geom_xpos[geom, 2] - radius
    if kind == mjtGeom.mjGEOM_CAPSULE:
        return data.geom_xpos[geom, 2] - radius - half * abs(up[2])
    centre, size = np.split(mj_model.geom_aabb[geom], 2)
    return data.geom_xpos[geom, 2] + up @ centre - np.abs(up) @ size


def _off(task: Velocity) -> list[float]:
    nu, x = task.m.nu, NOISE
    heights = len(task.scan) if task.m.nhfield else 0
    base = [*[x["linear"]] * 3, *[x["angular"]] * 3, *[x["down"]] * 3]
    return [
        *base,
        *[x["joint"]] * nu,
        *[x["joint_speed"]] * nu,
        *[0.0] * (nu + COMMAND + PHASE),
        *[x["relief"]] * heights,
    ]


def _uncalibrated(task: Velocity) -> list[float]:
    nu, heights = task.m.nu, len(task.scan) if task.m.nhfield else 0
    return [*[0.0] * 9, *[UNCALIBRATED] * nu, *[0.0] * (2 * nu + COMMAND + PHASE + heights)]
