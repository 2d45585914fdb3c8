"""Four legs: quadruped."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs.dm_control.suite import INF, SuiteTask, free_height, hinges, number, placed, random_quat, tolerance
from mjtorch.model import Data, Model
from mjtorch.model.plan.sensor import SensorType

TOES = ["toe_front_left", "toe_back_left", "toe_back_right", "toe_front_right"]

# Of the terrain: its bumps are at least so high, at most 1, and so far apart [m]; the middle is as flat as at 0.04.
LEAST_BUMP, BUMP_SCALE, FLAT = 0.15, 2, 0.04


@tree.dataclass(kw_only=True)
class Walker(SuiteTask):
    """Upright, and forward as fast as wanted.

    speed: [m/s]
    """

    speed: float = tree.field(static=True, default=0.0)
    reads: ClassVar[tuple[str, ...]] = ("xpos", "xmat", "site_xpos", "sensordata")

    def start(self, key: Tensor) -> Data:
        """Turned anyhow, as low as nothing touches."""
        zero = self.m.qpos0.new_zeros(2)
        return free_height(self, self.rest, zero, random_quat(key, self.dtype))

    def sensed(self, d: Data, *types: SensorType) -> Tensor:
        """What sensors of these types show."""
        return d.sensor(self.m, [i for i, kind in enumerate(self.m.sensor_type) if kind in types]).data

    def seen(self, d: Data, x: Tensor) -> Tensor:
        """A place (..., 3) as the torso sees it."""
        torso = d.body(self.m, "torso")
        return (x - torso.xpos) @ torso.xmat

    def observe(self, d: Data) -> Tensor:
        """Joints and activations, velocity, whether it is upright, turning and acceleration, forces at the toes."""
        m, joints = self.m, hinges(self.m)
        forces = self.sensed(d, SensorType.FORCE, SensorType.TORQUE).asinh()
        velocity, upright = d.sensor(m, "velocimeter").data, d.body(m, "torso").xmat[2, 2:]
        motion = (d.joint(m, joints).qpos, d.joint(m, joints).qvel, d.act, velocity, upright)
        return torch.cat([*motion, self.sensed(d, SensorType.GYRO, SensorType.ACCELEROMETER), forces, *self.more(d)])

    def more(self, d: Data) -> tuple[Tensor, ...]:
        """What else it sees."""
        return ()

    def upright(self, d: Data, degrees: float = 0) -> Tensor:
        """1 within so many degrees of upright, 0 upside down."""
        least = math.cos(math.radians(degrees))
        up = d.body(self.m, "torso").xmat[2, 2]
        return tolerance(up, least, INF, sigmoid="linear", margin=1 + least, value_at_margin=0)

    def reward(self, d: Data) -> Tensor:
        """Upright and fast."""
        forward = d.sensor(self.m, "velocimeter").data[0]
        fast = tolerance(forward, self.speed, INF, sigmoid="linear", margin=self.speed, value_at_margin=0.5)
        return self.upright(d) * fast


@tree.dataclass(kw_only=True)
class Escape(Walker):
    """Out of a bowl full of bumps."""

    @staticmethod
    def draw(key: Tensor, m: Model) -> Model:
        """With other bumps."""
        import numpy as np
        from scipy import ndimage  # type: ignore[import-untyped, unused-ignore]

        res, size = math.isqrt(m.hfield_data.shape[0]), float(m.hfield_size[0, 0])
        count = int(2 * size / BUMP_SCALE)
        # splines through the bumps are linear in their heights
        smooth = m.hfield_data.new_tensor(ndimage.zoom(np.eye(count), (res / count, 1)))
        bumps = random.uniform(key, (count, count), LEAST_BUMP, 1.0, dtype=m.qpos0.dtype)
        side = torch.linspace(-1, 1, res, dtype=m.qpos0.dtype, device=key.device)
        radius = (side[:, None] ** 2 + side**2).sqrt().clamp(FLAT, 1)
        bowl = 0.5 - (2 * math.pi * radius).cos() / 2
        return m.replace(hfield_data=(bowl * (smooth @ bumps @ smooth.T)).flatten())

    def more(self, d: Data) -> tuple[Tensor, ...]:
        """Where the middle is, and how far away the ground."""
        far = self.sensed(d, SensorType.RANGEFINDER)
        return self.seen(d, torch.zeros_like(d.xpos[0])), torch.where(far == -1, 1.0, far.tanh())

    def reward(self, d: Data) -> Tensor:
        """Upright and far from the middle."""
        size = self.m.hfield_size[0, 0]
        away = torch.linalg.vector_norm(d.site(self.m, "workspace").xpos)
        far = tolerance(away, size, INF, margin=size, value_at_margin=0, sigmoid="linear")
        return self.upright(d, 20) * far


@tree.dataclass(kw_only=True)
class Fetch(Walker):
    """Bring a ball to the middle."""

    def start(self, key: Tensor) -> Data:
        """Anywhere on its feet, with a ball that falls anywhere."""
        a, b, c, e = random.split(key, 4).unbind()
        m, reach = self.m, 0.9 * self.m.geom("floor").size[0]
        half = random.uniform(a, (), 0.0, math.pi, dtype=self.dtype)
        zero = torch.zeros_like(half)
        quat = torch.stack([half.cos(), zero, zero, half.sin()])
        own, ball = (reach * random.uniform(k, (2,), -1.0, 1.0, dtype=self.dtype) for k in (b, c))
        d = free_height(self, self.rest, own, quat)
        d = d.replace(qpos=placed(m, d.qpos, "ball_root", torch.cat([ball, ball.new_tensor([2.0])])))
        dof = m.jnt_dofadr[number(m.joint("ball_root"))]
        thrown = 5 * random.normal(e, (2,), dtype=self.dtype)
        return d.replace(qvel=torch.cat([d.qvel[:dof], thrown, d.qvel[dof + 2 :]]))

    def more(self, d: Data) -> tuple[Tensor, ...]:
        """Where the ball is and how it moves, and where the target is."""
        m, torso = self.m, d.body(self.m, "torso")
        ball, root = d.joint(m, "ball_root").qvel, d.joint(m, "root").qvel
        state = torch.stack([d.body(m, "ball").xpos - torso.xpos, ball[:3] - root[:3], ball[3:]])
        return (state @ torso.xmat).flatten(), self.seen(d, d.site(m, "target").xpos)

    def reward(self, d: Data) -> Tensor:
        """Upright, at the ball, and the ball at the target."""
        m, ball = self.m, d.body(self.m, "ball").xpos
        arena = m.geom("floor").size[0] * math.sqrt(2)

        def near(site: str, reach: Tensor) -> Tensor:
            away = torch.linalg.vector_norm((d.site(m, site).xpos - ball)[:2])
            return tolerance(away, 0, reach, sigmoid="linear", margin=arena, value_at_margin=0)

        reached = near("workspace", m.site("workspace").size[0] + m.geom("ball").size[0])
        return self.upright(d) * reached * (0.5 + 0.5 * near("target", m.site("target").size[0]))
