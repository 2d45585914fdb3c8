"""A planar arm with a hand: manipulator, stacker."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs.dm_control.suite import INF, SuiteTask, placed, tolerance, until_free
from mjtorch.model import Data, Model
from mjtorch.model.access import KINDS
from mjtorch.smooth.kinematics import kinematics

ARM = ("arm_root", "arm_shoulder", "arm_elbow", "arm_wrist", "finger", "fingertip", "thumb", "thumbtip")
TOUCH = ("palm_touch", "finger_touch", "thumb_touch", "fingertip_touch", "thumbtip_touch")

# What counts as close [m]; how often the prop is in the hand at first, and how often at its target.
CLOSE = 0.01
IN_HAND, IN_TARGET = 0.1, 0.1


@tree.dataclass(kw_only=True)
class Hand(SuiteTask):
    """What they share: what the arm feels and sees."""

    reads: ClassVar[tuple[str, ...]] = ("xpos", "xquat", "site_xpos", "sensordata")

    def arm_anywhere(self, key: Tensor) -> Tensor:
        """Positions (nq,) with the arm anywhere, the hand symmetric."""
        m, qpos = self.m, self.m.qpos0
        share = random.uniform(key, (len(ARM),), dtype=self.dtype)
        for i, name in enumerate(ARM):
            joint = m.joint(name)
            low, high = joint.range if joint.limited else m.qpos0.new_tensor([-math.pi, math.pi])
            # finger and thumb alike
            part = share[ARM.index("thumb")] if name == "finger" else share[i]
            qpos = placed(m, qpos, name, (low + part * (high - low))[None])
        return qpos

    def felt(self, d: Data) -> tuple[Tensor, ...]:
        """Sines and cosines of joints, velocities, touch, where the hand is."""
        joints = d.joint(self.m, list(ARM))
        turned = torch.stack([joints.qpos.sin(), joints.qpos.cos()], dim=-1).flatten()
        touch = d.sensor(self.m, list(TOUCH)).data.log1p()
        return turned, joints.qvel, touch, self.pose(d, "hand")

    def pose(self, d: Data, *names: str) -> Tensor:
        """Places and turns of bodies in the plane, four numbers each, one after the other."""
        bodies = d.body(self.m, list(names))
        return torch.cat([bodies.xpos[:, [0, 2]], bodies.xquat[:, [0, 2]]], dim=-1).flatten()

    def between(self, d: Data, first: str, second: str) -> Tensor:
        """How far two sites are apart () [m]."""
        return torch.linalg.vector_norm(d.site(self.m, first).xpos - d.site(self.m, second).xpos)


def turn(angle: Tensor) -> Tensor:
    """By `angle` () [rad] in the plane: a quaternion (4,)."""
    zero = torch.zeros_like(angle)
    return torch.stack([(angle / 2).cos(), zero, (angle / 2).sin(), zero])


def has(m: Model, body: str) -> bool:
    """Whether the model has such a body."""
    return body in m.names[list(KINDS).index("body")]


@tree.dataclass(kw_only=True)
class Bring(Hand):
    """Bring a ball or a peg to a target, which may be in a receptacle: whatever there is in the model.

    Unlike in dm_control, a target stays where it was drawn if what is drawn with it touches something.
    """

    reads: ClassVar[tuple[str, ...]] = Hand.reads

    @property
    def prop(self) -> str:
        """What is to be brought."""
        return "peg" if has(self.m, "peg") else "ball"

    @staticmethod
    def draw(key: Tensor, m: Model) -> Model:
        """With a target anywhere."""
        share = random.uniform(key, (3,), dtype=m.qpos0.dtype)
        x, z, angle = 0.8 * share[0] - 0.4, 0.1 + 0.3 * share[1], math.pi * (2 * share[2] - 1)
        prop, receptacle = ("peg", "slot") if has(m, "peg") else ("ball", "cup")
        bodies = [f"target_{prop}"]
        if has(m, receptacle):
            bodies, angle = [*bodies, receptacle], angle / 3
        for name in bodies:
            y = m.body(name).pos[1]
            m = m.body(name).set("pos", torch.stack([x, y, z]))
            m = m.body(name).set("quat", turn(angle))
        return m

    def start(self, key: Tensor) -> Data:
        """With the prop in the hand, at the target, or moving anywhere."""

        def draw(key: Tensor) -> Data:
            a, b, c = random.split(key, 3).unbind()
            m, prop = self.m, self.prop
            d = kinematics(m, self.rest.replace(qpos=self.arm_anywhere(a)))
            kind = random.uniform(b, (), dtype=self.dtype)
            share = random.uniform(c, (4,), dtype=self.dtype)
            grasp, target = d.site(m, "grasp"), m.body(f"target_{prop}")
            pointing = math.pi - torch.atan2(grasp.xmat[2, 0], grasp.xmat[0, 0])
            in_hand = torch.stack([grasp.xpos[0], grasp.xpos[2], pointing])
            in_target = torch.stack([target.pos[0], target.pos[2], 2 * torch.atan2(target.quat[2], target.quat[0])])
            anywhere = torch.stack([share[0] - 0.5, 0.7 * share[1], 2 * math.pi * share[2]])
            free = kind >= IN_HAND + IN_TARGET
            place = torch.where(free, anywhere, torch.where(kind < IN_HAND, in_hand, in_target))
            qpos, speed = d.qpos, torch.where(free, 10 * share[3] - 5, 0.0)
            for axis, x in zip("xzy", place, strict=True):
                qpos = placed(m, qpos, f"{prop}_{axis}", x[None])
            # a dof of each joint: velocities lie as positions do
            return self.rest.replace(qpos=qpos, qvel=placed(m, self.rest.qvel, f"{prop}_x", speed[None]))

        return until_free(self, key, draw)

    def observe(self, d: Data) -> Tensor:
        """What the arm feels, and where the prop and its target are."""
        moving = d.joint(self.m, [f"{self.prop}_{axis}" for axis in "xzy"]).qvel
        return torch.cat([*self.felt(d), self.pose(d, self.prop), moving, self.pose(d, f"target_{self.prop}")])

    def reward(self, d: Data) -> Tensor:
        """How near it is; a peg must also be turned as the target, and to grasp it is worth a third."""

        def close(first: str, second: str) -> Tensor:
            return tolerance(self.between(d, first, second), 0, CLOSE, margin=2 * CLOSE)

        if self.prop == "ball":
            return close("ball", "target_ball")
        grasping = (close("peg_grasp", "grasp") + close("peg_pinch", "pinch")) / 2
        bringing = (close("peg", "target_peg") + close("target_peg_tip", "peg_tip")) / 2
        return torch.maximum(bringing, grasping / 3)


@tree.dataclass(kw_only=True)
class Stack(Hand):
    """Stack boxes: one of them is to be at a target, which may be high up, and the hand away from it."""

    @property
    def boxes(self) -> list[str]:
        """Of the model."""
        return [f"box{i}" for i in range(4) if has(self.m, f"box{i}")]

    @staticmethod
    def draw(key: Tensor, m: Model) -> Model:
        """With a target anywhere, as high as one of the boxes."""
        a, b = random.split(key).unbind()
        size, count = m.geom("target").size[0], sum(has(m, f"box{i}") for i in range(4))
        high = size * (2 * random.randint(a, (), 0, count) + 1)
        x = random.uniform(b, (), -0.37, 0.37, dtype=m.qpos0.dtype)
        return m.body("target").set("pos", torch.stack([x, m.body("target").pos[1], high.to(x.dtype)]))

    def start(self, key: Tensor) -> Data:
        """With boxes on one side."""

        def draw(key: Tensor) -> Data:
            a, b = random.split(key).unbind()
            qpos = self.arm_anywhere(a)
            share = random.uniform(b, (len(self.boxes), 3), dtype=self.dtype)
            for name, (x, z, y) in zip(self.boxes, share, strict=True):
                place = {"x": 0.1 + 0.2 * x, "z": 0.7 * z, "y": 2 * math.pi * y}
                for axis, value in place.items():
                    qpos = placed(self.m, qpos, f"{name}_{axis}", value[None])
            return self.rest.replace(qpos=qpos)

        return until_free(self, key, draw)

    def observe(self, d: Data) -> Tensor:
        """What the arm feels, where the boxes are and how they move, where the target is."""
        moving = d.joint(self.m, [f"{name}_{axis}" for name in self.boxes for axis in "xyz"]).qvel
        target = d.body(self.m, "target").xpos[[0, 2]]
        return torch.cat([*self.felt(d), self.pose(d, *self.boxes), moving, target])

    def reward(self, d: Data) -> Tensor:
        """How near the nearest box is, and how far away the hand."""
        size = self.m.geom("target").size[0]
        nearest = torch.stack([self.between(d, name, "target") for name in self.boxes]).amin()
        away = tolerance(self.between(d, "grasp", "target"), 0.1, INF, margin=CLOSE)
        return tolerance(nearest, margin=2 * size) * away
