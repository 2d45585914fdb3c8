"""Four legs, a spine, a tail and a jaw: dog."""

import math
from typing import Any, ClassVar

import mujoco
import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs.dm_control.suite import INF, SuiteTask, hinges, number, placed, tolerance
from mjtorch.model import Data
from mjtorch.model.access import Bound
from mjtorch.model.enums import ObjType
from mjtorch.smooth.object import object_velocity

# Of the height at rest, what counts as standing; [deg] from which on it is not upright.
STAND, LEAN = 0.9, 30
BITE_MARGIN = 2.0


@tree.dataclass(kw_only=True)
class Stand(SuiteTask):
    """Upright on its feet.

    torso_height, pelvis_height: [m] that count as standing
    """

    torso_height: Any
    pelvis_height: Any
    reads: ClassVar[tuple[str, ...]] = ("xpos", "xmat", "sensordata")

    @classmethod
    def measured(cls, mj_model: mujoco.MjModel) -> dict[str, float]:
        """Heights, from those at rest."""
        mj_data = mujoco.MjData(mj_model)
        mujoco.mj_kinematics(mj_model, mj_data)
        return {f"{name}_height": float(STAND * mj_data.body(name).xpos[2]) for name in ("torso", "pelvis")}

    def start(self, key: Tensor) -> Data:
        """Facing anywhere, moving, and tense."""
        a, b, c = random.split(key, 3).unbind()
        m = self.m
        half = random.uniform(a, (), 0.0, math.pi, dtype=self.dtype)
        zero = torch.zeros_like(half)
        qpos = placed(m, m.qpos0, "root", torch.stack([half.cos(), zero, zero, half.sin()]), skip=3)
        x, y, turn = 2 * random.normal(b, (3, 1), dtype=self.dtype)
        still = self.rest.qvel[2:5]
        qvel = torch.cat([x, y, still, turn, self.rest.qvel[6:]])
        low, high = m.actuator_ctrlrange.unbind(-1)
        act = low + random.uniform(c, (m.na,), dtype=self.dtype) * (high - low)
        return self.rest.replace(qpos=qpos, qvel=qvel, act=act)

    def sensed(self, d: Data, *names: str) -> Tensor:
        """What sensors show, one after the other."""
        return d.sensor(self.m, list(names)).data

    def velocity(self, d: Data) -> Tensor:
        """Of the centre of mass, as the torso sees it (3,) [m/s]."""
        return self.sensed(d, "torso_linvel") @ d.body(self.m, "torso").xmat

    def observe(self, d: Data) -> Tensor:
        """Joints, heights, how it is turned, velocity, sensors, activations."""
        m, joints = self.m, hinges(self.m)
        parts = (
            d.joint(m, joints).qpos,
            d.joint(m, joints).qvel,
            d.body(m, ["torso", "pelvis"]).xpos[:, 2],
            d.body(m, ["skull", "torso", "pelvis"]).xmat[:, 2].flatten(),
            self.velocity(d),
            self.sensed(d, "accelerometer", "velocimeter", "gyro"),
            self.sensed(d, "foot_L", "foot_R", "hand_L", "hand_R"),
            self.sensed(d, *TOUCH),
            d.act,
        )
        return torch.cat([*parts, *self.more(d)])

    def more(self, d: Data) -> tuple[Tensor, ...]:
        """What else it sees."""
        return ()

    def factors(self, d: Data) -> tuple[Tensor, ...]:
        """What the reward is the product of."""
        m, least = self.m, math.cos(math.radians(LEAN))
        up = d.body(m, ["skull", "torso", "pelvis"]).xmat[:, 2, 2]
        weight = -m.opt.gravity[2] * m.body("torso").subtreemass
        return (
            tolerance(d.body(m, "torso").xpos[2], self.torso_height, INF, margin=self.torso_height),
            tolerance(d.body(m, "pelvis").xpos[2], self.pelvis_height, INF, margin=self.pelvis_height),
            tolerance(up, least, INF, sigmoid="linear", margin=least + 1, value_at_margin=0).prod(),
            tolerance(self.sensed(d, *TOUCH).sum(), weight, INF, margin=weight, sigmoid="linear", value_at_margin=0.9),
        )

    def reward(self, d: Data) -> Tensor:
        """The product of all."""
        return torch.stack(self.factors(d)).prod()


TOUCH = ("palm_L", "palm_R", "sole_L", "sole_R")


@tree.dataclass(kw_only=True)
class Move(Stand):
    """And forward.

    speed: [m/s] wanted
    """

    speed: float = tree.field(static=True)

    def factors(self, d: Data) -> tuple[Tensor, ...]:
        """And fast."""
        kind: Any = {"margin": max(1.0, self.speed), "value_at_margin": 0, "sigmoid": "linear"}
        forward = tolerance(self.velocity(d)[0], self.speed, 2 * self.speed, **kind)
        return *super().factors(d), (4 * forward + 1) / 5


@tree.dataclass(kw_only=True)
class Fetch(Stand):
    """Fetch a ball that was thrown."""

    reads: ClassVar[tuple[str, ...]] = (
        *Stand.reads,
        *"geom_xpos geom_xmat site_xpos site_xmat cvel subtree_com".split(),
    )

    def start(self, key: Tensor) -> Data:
        """With a ball that comes in from the edge."""
        own, key = random.split(key).unbind()
        a, b = random.split(key).unbind()
        d, m = super().start(own), self.m
        share, height, speed = random.uniform(a, (3,), dtype=self.dtype).unbind()
        azimuth, radius = 2 * math.pi * share, 0.75 * m.geom("floor").size[0]
        outward = torch.stack([azimuth.sin(), azimuth.cos()])
        inward = -outward + 0.05 * random.normal(b, (2,), dtype=self.dtype)
        up = (2 * -m.opt.gravity[2] * 3 * height).sqrt()
        place = torch.cat([radius * outward, outward.new_tensor([0.05])])
        dof = m.jnt_dofadr[number(m.joint("ball_root"))]
        thrown = torch.cat([5 * speed * inward, up[None]])
        qvel = torch.cat([d.qvel[:dof], thrown, d.qvel[dof + 3 :]])
        return d.replace(qpos=placed(m, d.qpos, "ball_root", place), qvel=qvel)

    def more(self, d: Data) -> tuple[Tensor, ...]:
        """The ball and the target, as the head sees them."""
        m, head = self.m, d.site(self.m, "head")

        def speed(kind: ObjType, which: Bound) -> Tensor:
            return object_velocity(m, d, kind, torch.tensor([number(which)], device=d.qpos.device))[0, 3:]

        ball, target = d.geom(m, "ball").xpos, d.geom(m, "target").xpos
        relative = speed(ObjType.GEOM, m.geom("ball")) - speed(ObjType.SITE, m.site("head"))
        return tuple(x @ head.xmat for x in (ball - head.xpos, relative, target - head.xpos))

    def factors(self, d: Data) -> tuple[Tensor, ...]:
        """And at the ball, and the ball at the target."""
        m, ball, target = self.m, d.geom(self.m, "ball").xpos, d.geom(self.m, "target").xpos
        bites = d.site(m, ["upper_bite", "lower_bite"]).xpos
        to_mouth = torch.linalg.vector_norm(ball - bites, dim=-1).mean()
        to_target, radius = torch.linalg.vector_norm(ball - target), m.geom("target").size[0]
        kind: Any = {"sigmoid": "reciprocal"}
        reached = tolerance(to_mouth, 0, m.site("upper_bite").size[0], margin=BITE_MARGIN, **kind)
        reached = torch.where(to_target < 2 * radius, 1.0, (6 * reached + 1) / 7)
        brought = tolerance(to_target, 0, radius, margin=m.geom("floor").size[0], **kind)
        return *super().factors(d), reached, (brought + 1) / 2
