"""In a plane: hopper, cheetah, walker, finger, ball_in_cup."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs.dm_control.suite import INF, SuiteTask, number, random_joints, small_control, tolerance, until_free
from mjtorch.model import Data, Model

# Time steps in which a cheetah comes to rest.
SETTLE = 200


@tree.dataclass(kw_only=True)
class Mover(SuiteTask):
    """Who stands and moves forward.

    speed: [m/s] wanted, 0 for none
    """

    speed: float = tree.field(static=True)

    def start(self, key: Tensor) -> Data:
        """With joints anywhere."""
        return self.rest.replace(qpos=random_joints(self.m, key))

    def forward_speed(self, d: Data) -> Tensor:
        """Of the centre of mass () [m/s]."""
        return d.sensor(self.m, "torso_subtreelinvel").data[0]

    def fast(self, d: Data, margin: float, value_at_margin: float) -> Tensor:
        """Whether it is as fast as wanted, the less the slower."""
        kind: Any = {"sigmoid": "linear", "margin": margin, "value_at_margin": value_at_margin}
        return tolerance(self.forward_speed(d), self.speed, INF, **kind)


@tree.dataclass(kw_only=True)
class Hopper(Mover):
    """One leg."""

    reads: ClassVar[tuple[str, ...]] = ("xipos", "sensordata")

    def observe(self, d: Data) -> Tensor:
        """Positions but the first, velocities, touch of the foot."""
        touch = d.sensor(self.m, ["touch_toe", "touch_heel"]).data
        return torch.cat([d.qpos[1:], d.qvel, touch.log1p()])

    def reward(self, d: Data) -> Tensor:
        """Upright, and fast, or at little cost."""
        height = d.body(self.m, "torso").xipos[2] - d.body(self.m, "foot").xipos[2]
        standing = tolerance(height, 0.6, 2)
        return standing * (self.fast(d, self.speed / 2, 0.5) if self.speed else small_control(d.ctrl))


@tree.dataclass(kw_only=True)
class Cheetah(Mover):
    """A dog in a plane."""

    reads: ClassVar[tuple[str, ...]] = ("sensordata",)

    def start(self, key: Tensor) -> Data:
        """At rest after falling, on its feet."""
        begun = self.rest.replace(qpos=random_joints(self.m, key, turned=False))
        settled = self.replace(frame_skip=SETTLE).simulate(begun, torch.zeros_like(begun.ctrl))
        return settled.replace(time=torch.zeros_like(settled.time))

    def observe(self, d: Data) -> Tensor:
        """Positions but the first, velocities."""
        return torch.cat([d.qpos[1:], d.qvel])

    def reward(self, d: Data) -> Tensor:
        """How fast it is."""
        return self.fast(d, self.speed, 0.0)


@tree.dataclass(kw_only=True)
class Walker(Mover):
    """Two legs."""

    height: ClassVar[float] = 1.2
    reads: ClassVar[tuple[str, ...]] = ("xpos", "xmat", "sensordata")

    def observe(self, d: Data) -> Tensor:
        """How bodies are turned, how high the torso is, velocities."""
        turned = d.xmat[1:, [0, 0], [0, 2]].flatten()
        return torch.cat([turned, d.body(self.m, "torso").xpos[2:], d.qvel])

    def reward(self, d: Data) -> Tensor:
        """Upright, and fast."""
        torso = d.body(self.m, "torso")
        standing = tolerance(torso.xpos[2], self.height, INF, margin=self.height / 2)
        stand = (3 * standing + (1 + torso.xmat[2, 2]) / 2) / 4
        return stand * (5 * self.fast(d, self.speed / 2, 0.5) + 1) / 6 if self.speed else stand


@tree.dataclass(kw_only=True)
class Spin(SuiteTask):
    """A finger that is to spin a body."""

    reads: ClassVar[tuple[str, ...]] = ("sensordata",)

    def start(self, key: Tensor) -> Data:
        """At any angles that let nothing touch."""
        return until_free(self, key, lambda key: self.rest.replace(qpos=random_joints(self.m, key)))

    def sensed(self, d: Data, *names: str) -> Tensor:
        """What sensors show, one after the other."""
        return d.sensor(self.m, list(names)).data

    def from_hinge(self, d: Data, name: str) -> Tensor:
        """Where something is, seen from the hinge (2,)."""
        return (self.sensed(d, name) - self.sensed(d, "spinner"))[[0, 2]]

    def observe(self, d: Data) -> Tensor:
        """Angles of the finger, the tip of the body, velocities, touch."""
        velocity = self.sensed(d, "proximal_velocity", "distal_velocity", "hinge_velocity")
        touch = self.sensed(d, "touchtop", "touchbottom").log1p()
        return torch.cat([self.sensed(d, "proximal", "distal"), self.from_hinge(d, "tip"), velocity, touch])

    def reward(self, d: Data) -> Tensor:
        """1 where it is fast enough."""
        return (self.sensed(d, "hinge_velocity")[0] <= -15.0).to(self.dtype)


@tree.dataclass(kw_only=True)
class Turn(Spin):
    """A finger that is to turn a body until its tip meets a target."""

    @staticmethod
    def draw(key: Tensor, m: Model) -> Model:
        """With a target anywhere around."""
        angle = random.uniform(key, (), -math.pi, math.pi, dtype=m.qpos0.dtype)
        # the hinge is where the body of the cap is anchored
        spinner = m.body("spinner").pos + m.joint("hinge").pos[0]
        radius = m.geom("cap1").size.sum()
        place = torch.stack([spinner[0] + radius * angle.sin(), spinner[2] + radius * angle.cos()])
        pos = m.site("target").pos
        return m.site("target").set("pos", torch.stack([place[0], pos[1], place[1]]))

    def away(self, d: Data) -> Tensor:
        """From the tip to the edge of the target () [m]."""
        between = self.from_hinge(d, "target") - self.from_hinge(d, "tip")
        return torch.linalg.vector_norm(between) - self.m.site("target").size[0]

    def observe(self, d: Data) -> Tensor:
        """And where the target is."""
        return torch.cat([super().observe(d), self.from_hinge(d, "target"), self.away(d)[None]])

    def reward(self, d: Data) -> Tensor:
        """1 where they meet."""
        return (self.away(d) <= 0).to(self.dtype)


@tree.dataclass(kw_only=True)
class BallInCup(SuiteTask):
    """A ball on a string, to be caught."""

    reads: ClassVar[tuple[str, ...]] = ("xpos", "site_xpos")

    def start(self, key: Tensor) -> Data:
        """With the ball anywhere where it touches nothing."""

        def place(key: Tensor) -> Data:
            x, z = random.uniform(key, (2,), dtype=self.dtype).unbind()
            first, second = (self.m.jnt_qposadr[number(self.m.joint(name))] for name in ("ball_x", "ball_z"))
            at = torch.tensor([first, second], device=key.device)
            qpos = self.m.qpos0.index_copy(0, at, torch.stack([0.4 * x - 0.2, 0.2 + 0.3 * z]))
            return self.rest.replace(qpos=qpos)

        return until_free(self, key, place)

    def observe(self, d: Data) -> Tensor:
        """Positions and velocities."""
        return torch.cat([d.qpos, d.qvel])

    def reward(self, d: Data) -> Tensor:
        """1 where the ball is in the cup."""
        away = (d.site(self.m, "target").xpos - d.body(self.m, "ball").xpos)[[0, 2]].abs()
        room = self.m.site("target").size[[0, 2]] - self.m.geom("ball").size[0]
        return (away < room).all().to(self.dtype)
