"""Few joints: cartpole, pendulum, acrobot, reacher, point_mass, lqr."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.control_flow import while_loop
from mjtorch.envs.dm_control.suite import SuiteTask, random_joints, small_control, tolerance
from mjtorch.model import Data, Model


@tree.dataclass(kw_only=True)
class Cartpole(SuiteTask):
    """Poles on a cart, to be balanced, or swung up first.

    swing_up: poles hang at first; sparse: reward is 1 near upright in the middle, else 0
    """

    swing_up: bool = tree.field(static=True)
    sparse: bool = tree.field(static=True, default=False)
    reads: ClassVar[tuple[str, ...]] = ("xmat",)

    def start(self, key: Tensor) -> Data:
        """Near upright, or hanging."""
        a, b, c = random.split(key, 3).unbind()
        m, dtype = self.m, self.dtype
        if self.swing_up:
            noise = random.normal(a, (m.nq,), dtype=dtype)
            qpos = torch.cat([0.01 * noise[:1], math.pi + 0.01 * noise[1:2], 0.1 * noise[2:]])
        else:
            cart, poles = random.uniform(a, (1,), -0.1, 0.1, dtype=dtype), random.uniform(b, (m.nq - 1,), dtype=dtype)
            qpos = torch.cat([cart, 0.034 * (2 * poles - 1)])
        return self.rest.replace(qpos=qpos, qvel=0.01 * random.normal(c, (m.nv,), dtype=dtype))

    def observe(self, d: Data) -> Tensor:
        """Where the cart is, cosines and sines of poles, velocities."""
        return torch.cat([d.qpos[:1], d.xmat[2:, [2, 0], [2, 2]].flatten(), d.qvel])

    def reward(self, d: Data) -> Tensor:
        """Upright, in the middle, at little cost and slowly."""
        cart, cosine = d.qpos[0], d.xmat[2:, 2, 2]
        if self.sparse:
            return tolerance(cart, -0.25, 0.25) * tolerance(cosine, 0.995, 1).prod()
        upright = (cosine + 1) / 2
        centered = (1 + tolerance(cart, margin=2)) / 2
        slow = (1 + tolerance(d.qvel[1:], margin=5).amin()) / 2
        return upright.mean() * small_control(d.ctrl[:1]) * slow * centered


@tree.dataclass(kw_only=True)
class Pendulum(SuiteTask):
    """A weak motor that is to swing up a pole."""

    reads: ClassVar[tuple[str, ...]] = ("xmat",)

    def start(self, key: Tensor) -> Data:
        """At any angle."""
        return self.rest.replace(qpos=random.uniform(key, (1,), -math.pi, math.pi, dtype=self.dtype))

    def observe(self, d: Data) -> Tensor:
        """Cosine and sine, velocity."""
        return torch.cat([d.body(self.m, "pole").xmat[[2, 0], [2, 2]], d.qvel])

    def reward(self, d: Data) -> Tensor:
        """1 within 8 degrees of upright."""
        return tolerance(d.body(self.m, "pole").xmat[2, 2], math.cos(math.radians(8)), 1)


@tree.dataclass(kw_only=True)
class Acrobot(SuiteTask):
    """Two links, and a motor between them that is to swing them up."""

    margin: float = tree.field(static=True)
    reads: ClassVar[tuple[str, ...]] = ("xmat", "site_xpos")

    def start(self, key: Tensor) -> Data:
        """At any angles."""
        return self.rest.replace(qpos=random.uniform(key, (2,), -math.pi, math.pi, dtype=self.dtype))

    def observe(self, d: Data) -> Tensor:
        """Sines and cosines of the links, velocities."""
        links = d.body(self.m, ["upper_arm", "lower_arm"]).xmat
        return torch.cat([links[:, 0, 2], links[:, 2, 2], d.qvel])

    def reward(self, d: Data) -> Tensor:
        """How near the tip is to the target."""
        tip, target = d.site(self.m, "tip").xpos, d.site(self.m, "target").xpos
        radius = self.m.site("target").size[0]
        return tolerance(torch.linalg.vector_norm(target - tip), 0, radius, margin=self.margin)


@tree.dataclass(kw_only=True)
class Reacher(SuiteTask):
    """An arm in a plane whose finger is to meet a target."""

    reads: ClassVar[tuple[str, ...]] = ("geom_xpos",)

    @staticmethod
    def draw(key: Tensor, m: Model) -> Model:
        """With a target anywhere in reach."""
        share, far = random.uniform(key, (2,), dtype=m.qpos0.dtype).unbind()
        angle, radius = 2 * math.pi * share, 0.05 + 0.15 * far
        place = torch.stack([radius * angle.sin(), radius * angle.cos()])
        return m.geom("target").set("pos", torch.cat([place, m.geom("target").pos[2:]]))

    def start(self, key: Tensor) -> Data:
        """At any angles."""
        return self.rest.replace(qpos=random_joints(self.m, key))

    def to_target(self, d: Data) -> Tensor:
        """From the finger (2,)."""
        return (d.geom(self.m, "target").xpos - d.geom(self.m, "finger").xpos)[:2]

    def observe(self, d: Data) -> Tensor:
        """Angles, where the target is, velocities."""
        return torch.cat([d.qpos, self.to_target(d), d.qvel])

    def reward(self, d: Data) -> Tensor:
        """1 where they meet."""
        radii = self.m.geom("target").size[0] + self.m.geom("finger").size[0]
        return tolerance(torch.linalg.vector_norm(self.to_target(d)), 0, radii)


@tree.dataclass(kw_only=True)
class PointMass(SuiteTask):
    """A mass in a plane that is to come to the middle."""

    reads: ClassVar[tuple[str, ...]] = ("geom_xpos",)

    def start(self, key: Tensor) -> Data:
        """Anywhere."""
        return self.rest.replace(qpos=random_joints(self.m, key))

    def observe(self, d: Data) -> Tensor:
        """Positions and velocities."""
        return torch.cat([d.qpos, d.qvel])

    def reward(self, d: Data) -> Tensor:
        """How near it is, at little cost."""
        away = d.geom(self.m, "target").xpos - d.geom(self.m, "pointmass").xpos
        size = self.m.geom("target").size[0]
        return tolerance(torch.linalg.vector_norm(away), 0, size, margin=size) * small_control(d.ctrl)


@tree.dataclass(kw_only=True)
class PointMassTurned(PointMass):
    """Controls move it in directions that are drawn when the episode begins."""

    @staticmethod
    def draw(key: Tensor, m: Model) -> Model:
        """With two directions that are not too much alike."""

        def direction(key: Tensor) -> Tensor:
            x = random.normal(key, (2,), dtype=m.qpos0.dtype)
            return x / torch.linalg.vector_norm(x)

        def again(carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            own, key = random.split(carry[0]).unbind()
            return key, direction(own)

        own, key = random.split(key).unbind()
        first = direction(own)
        _, second = while_loop(lambda c: (first @ c[1]).abs() > 0.9, again, (key, first))
        return m.replace(wrap_prm=torch.cat([first, second, m.wrap_prm[4:]]))


@tree.dataclass(kw_only=True)
class LQR(SuiteTask):
    """Masses on springs, to be brought to rest at quadratic cost."""

    control_cost: float | Tensor = 0.1
    tolerated: ClassVar[float] = 1e-6

    @staticmethod
    def draw(key: Tensor, m: Model) -> Model:
        """With other springs."""
        return m.replace(jnt_stiffness=random.uniform(key, (m.njnt,), 15.0, 25.0, dtype=m.qpos0.dtype))

    def start(self, key: Tensor) -> Data:
        """Anywhere at a distance of sqrt(2)."""
        unit = random.normal(key, (self.m.nq,), dtype=self.dtype)
        return self.rest.replace(qpos=math.sqrt(2) * unit / torch.linalg.vector_norm(unit))

    def observe(self, d: Data) -> Tensor:
        """Positions and velocities."""
        return torch.cat([d.qpos, d.qvel])

    def reward(self, d: Data) -> Tensor:
        """1 less the cost of state and controls."""
        return 1 - 0.5 * (d.qpos.square().sum() + self.control_cost * d.ctrl.square().sum())

    def outcome(self, before: Data, after: Data, action: Tensor) -> tuple[Any, Any, dict[str, Any]]:
        """It is over at rest."""
        state = torch.cat([after.qpos, after.qvel, after.act])
        return self.reward(after), torch.linalg.vector_norm(state) < self.tolerated, {}
