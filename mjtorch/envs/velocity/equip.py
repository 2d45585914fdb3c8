"""Models of robots on legs: with motors, on a ground, and on disk once they were compiled."""

import contextlib
import fnmatch
import sys

import mujoco
import numpy as np
from mujoco import MjSpec, mjtJoint, mjtTrn

from mjtorch.compiler.cache import fingerprint, store
from mjtorch.envs.velocity import robots, terrain
from mjtorch.envs.velocity.robots import Robot, fitting

GROUNDS = {"flat": terrain.add_flat, "rough": terrain.add_rough}

# How many numbers a command has.
COMMAND = 3
# Of a time step [s].
TIMESTEP = 0.005
# Controls reach so far from how it stands: that share of the angle at which a servo does all that it can.
REACH = 0.5
# Of the soles, if they are not drawn.
FRICTION = 0.8


def compiled(robot: Robot, ground: str) -> mujoco.MjModel:
    """`equipped`, as the cache has it if it was there before: MuJoCo takes half a second for a humanoid's meshes.

    Raises:
        ModuleNotFoundError: the package that the robot is in is not installed.
    """
    file = robot.path()
    try:
        code = fingerprint.of(sys.modules[__name__], robots, terrain)
        # Meshes lie in a folder beside that of the file.
        content = [x.read_bytes() for x in sorted(file.parent.parent.rglob("*")) if x.is_file() and x.suffix != ".pyc"]
        name = store.key(mujoco.__version__, code, file.name, repr(robot), ground, *content) + ".mjb"
        found = store.load(name, lambda path: mujoco.MjModel.from_binary_path(str(path)))
    except (
        fingerprint.UnfamiliarError,
        OSError,
        ValueError,
    ):  # of a cache that cannot be used `jit` complains
        return equipped(robot.spec(), robot, ground)
    if found is None:
        found = equipped(robot.spec(), robot, ground)
        with contextlib.suppress(OSError, ValueError):
            kept = np.empty(mujoco.mj_sizeModel(found), np.uint8)
            mujoco.mj_saveModel(found, None, kept)
            store.save(name, kept.tobytes())
    return found


def equipped(spec: MjSpec, robot: Robot, ground: str) -> mujoco.MjModel:
    """The robot with motors, on the ground, of which nothing but its soles touches that."""
    GROUNDS[ground](spec, "ground")
    spec.nuserdata = COMMAND
    option = spec.option
    option.timestep, option.integrator = TIMESTEP, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.iterations, option.ls_iterations = 10, 20
    for geom in spec.geoms:
        touches = any(fnmatch.fnmatchcase(geom.name, pattern) for pattern in robot.feet.values())
        geom.contype, geom.conaffinity = int(geom.name == "ground"), int(touches)
        if touches:
            geom.condim, geom.priority, geom.friction[0] = 3, 1, FRICTION
    for actuator in list(spec.actuators):
        spec.delete(actuator)
    for joint in spec.joints:
        if joint.type == mjtJoint.mjJNT_FREE:
            continue
        motor = fitting(robot.motors, joint.name, "motors")
        joint.armature, joint.actfrcrange = motor.armature, (0, 0)
        joint.actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE
        servo = spec.add_actuator(name=joint.name, target=joint.name, trntype=mjtTrn.mjTRN_JOINT)
        servo.set_to_position(kp=motor.stiffness, kv=motor.damping)
        reach, stands = REACH * motor.effort / motor.stiffness, stand(robot, joint.name)
        servo.ctrlrange, servo.forcerange = (stands - reach, stands + reach), (-motor.effort, motor.effort)
    return spec.compile()


def stand(robot: Robot, joint: str) -> float:
    """The angle of a joint when it stands [rad]."""
    return fitting({**robot.pose, "*": 0.0}, joint, "pose")
