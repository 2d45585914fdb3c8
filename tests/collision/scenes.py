"""Scenes whose objects keep one another in place: a stack, a pile, a hand that lifts a ball."""

import mujoco
import numpy as np
from mujoco import mjtGeom, mjtJoint
from numpy.typing import NDArray

PILED = (mjtGeom.mjGEOM_SPHERE, mjtGeom.mjGEOM_CAPSULE, mjtGeom.mjGEOM_ELLIPSOID, mjtGeom.mjGEOM_CYLINDER)
PILED += (mjtGeom.mjGEOM_BOX,)


def stack(boxes: int) -> mujoco.MjModel:
    """Boxes of 20 cm and 1 kg on one another, each a little beside the one below."""
    spec, rng = _floor(), np.random.default_rng(0)
    for level in range(boxes):
        body = spec.worldbody.add_body(pos=[*rng.uniform(-0.005, 0.005, 2), 0.1 + 0.2005 * level])
        body.add_freejoint()
        body.add_geom(type=mjtGeom.mjGEOM_BOX, size=[0.1, 0.1, 0.1], mass=1)
    return spec.compile()


def pile(objects: int) -> mujoco.MjModel:
    """Objects of all primitive shapes, of 10 to 40 cm, that fall into a crate, nine after nine."""
    spec, rng = _floor(), np.random.default_rng(0)
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        size = [0.05 if x else 0.6, 0.05 if y else 0.6, 0.3]
        spec.worldbody.add_geom(type=mjtGeom.mjGEOM_BOX, pos=[0.6 * x, 0.6 * y, 0.3], size=size)
    for number in range(objects):
        quat = rng.standard_normal(4)
        place = np.array([number % 3 - 1, number // 3 % 3 - 1, number // 9])
        body = spec.worldbody.add_body(pos=[0, 0, 0.22] + 0.38 * place + rng.uniform(-0.02, 0.02, 3), quat=quat)
        body.add_freejoint()
        body.add_geom(type=PILED[number % len(PILED)], size=rng.uniform(0.05, 0.1, 3), density=500)
    return spec.compile()


def hand() -> mujoco.MjModel:
    """A palm with three fingers of two links over a ball on the floor, all of them meshes, moved by position servos.

    Controls: the height of the palm, then base and tip of each finger.
    """
    spec = _floor()
    for name, vert in (("palm", _prism(0.05, 0.01, 8)), ("link", _prism(0.012, 0.03, 6, taper=0.8))):
        spec.add_mesh(name=name, uservert=vert.flatten())
    spec.add_mesh(name="ball", uservert=_sphere(0.035, 40).flatten())
    rubber = {"density": 500, "friction": [1.2, 0.01, 0.001], "condim": 4}

    palm = spec.worldbody.add_body(pos=[0, 0, 0.15])
    palm.add_joint(name="lift", type=mjtJoint.mjJNT_SLIDE, axis=[0, 0, 1], damping=[20, 0, 0])
    palm.add_geom(type=mjtGeom.mjGEOM_MESH, meshname="palm", density=500)
    for finger in range(3):
        angle = 2 * np.pi * finger / 3
        pos = [0.05 * np.cos(angle), 0.05 * np.sin(angle), -0.01]
        body = palm.add_body(pos=pos, quat=[np.cos(angle / 2), 0, 0, np.sin(angle / 2)])
        for part in ("base", "tip"):
            joint = {"name": f"{part}{finger}", "damping": [0.02, 0, 0], "armature": 0.0005}
            body.add_joint(type=mjtJoint.mjJNT_HINGE, axis=[0, 1, 0], **joint)
            body.add_geom(type=mjtGeom.mjGEOM_MESH, meshname="link", pos=[0, 0, -0.03], **rubber)
            if part == "base":
                body = body.add_body(pos=[0, 0, -0.06])
    ball = spec.worldbody.add_body(name="ball", pos=[0.003, 0.002, 0.07])
    ball.add_freejoint()
    ball.add_geom(type=mjtGeom.mjGEOM_MESH, meshname="ball", **rubber | {"density": 400})

    for joint in spec.joints:
        if joint.type != mjtJoint.mjJNT_FREE:
            actuator = spec.add_actuator(target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
            actuator.set_to_position(kp=2000.0 if joint.name == "lift" else 1.5)
    return spec.compile()


def grasp(steps: int) -> NDArray[np.float64]:
    """Controls (steps, 7) of the hand: it closes in 0.8 s, and from 1.2 s on rises by 10 cm."""
    time = np.arange(steps) * 0.002
    close, rise = np.clip(time / 0.8, 0, 1), np.clip(0.1 * (time - 1.2), 0, 0.1)
    return np.stack([rise] + 3 * [0.45 * close, 0.9 * close], axis=1)


def _floor() -> mujoco.MjSpec:
    spec = mujoco.MjSpec()
    spec.worldbody.add_geom(type=mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.1])
    return spec


def _prism(radius: float, half: float, sides: int, taper: float = 1.0) -> NDArray[np.float64]:
    """The corners (2 sides, 3) of a prism along z, whose upper end is narrower."""
    angle = 2 * np.pi * np.arange(sides) / sides
    low = np.stack([radius * np.cos(angle), radius * np.sin(angle), np.full(sides, -half)], axis=1)
    return np.concatenate([low, low * [taper, taper, -1]])


def _sphere(radius: float, count: int) -> NDArray[np.float64]:
    """Points (count, 3) spread over a sphere, by the golden angle."""
    z = 1 - (2 * np.arange(count) + 1) / count
    angle, across = np.pi * (1 + 5**0.5) * (np.arange(count) + 0.5), np.sqrt(1 - z * z)
    return radius * np.stack([across * np.cos(angle), across * np.sin(angle), z], axis=1)
