"""In a liquid: swimmer, fish."""

from typing import ClassVar

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs.dm_control.suite import SuiteTask, number, random_joints, random_quat, tolerance
from mjtorch.model import Data, Model


@tree.dataclass(kw_only=True)
class Swimmer(SuiteTask):
    """A worm whose nose is to meet a target."""

    reads: ClassVar[tuple[str, ...]] = ("geom_xpos", "xmat", "sensordata")

    @staticmethod
    def draw(key: Tensor, m: Model) -> Model:
        """With a target that is near in one episode of five."""
        x, y, near = random.uniform(key, (3,), dtype=m.qpos0.dtype).unbind()
        box = torch.where(near < 0.2, torch.full_like(near, 0.3), 2.0)
        place = torch.stack([box * (2 * x - 1), box * (2 * y - 1)])
        return m.geom("target").set("pos", torch.cat([place, m.geom("target").pos[2:]]))

    def start(self, key: Tensor) -> Data:
        """With joints anywhere."""
        return self.rest.replace(qpos=random_joints(self.m, key))

    def to_target(self, d: Data) -> Tensor:
        """From the nose, as the head sees it (2,)."""
        away = d.geom(self.m, "target").xpos - d.geom(self.m, "nose").xpos
        return (away @ d.body(self.m, "head").xmat)[:2]

    def observe(self, d: Data) -> Tensor:
        """Angles, the target, velocities of bodies in their own plane."""
        velocities = d.sensordata[12:].reshape(-1, 6)[:, [0, 1, 5]].flatten()
        return torch.cat([d.qpos[3:], self.to_target(d), velocities])

    def reward(self, d: Data) -> Tensor:
        """How near they are."""
        size = self.m.geom("target").size[0]
        away = torch.linalg.vector_norm(self.to_target(d))
        return tolerance(away, 0, size, margin=5 * size, sigmoid="long_tail")


# Of a fish, all but the root's.
JOINTS = ["tail1", "tail_twist", "tail2", "finright_roll", "finright_pitch", "finleft_roll", "finleft_pitch"]


@tree.dataclass(kw_only=True)
class FishUpright(SuiteTask):
    """A fish that is to right itself."""

    reads: ClassVar[tuple[str, ...]] = ("xmat", "geom_xpos", "geom_xmat")

    def start(self, key: Tensor) -> Data:
        """Turned anyhow."""
        a, b = random.split(key).unbind()
        m = self.m
        root = m.jnt_qposadr[number(m.joint("root"))]
        address = [m.jnt_qposadr[number(m.joint(name))] for name in JOINTS]
        angles = random.uniform(a, (len(JOINTS),), -0.2, 0.2, dtype=self.dtype)
        at = torch.tensor([*range(root + 3, root + 7), *address], device=key.device)
        return self.rest.replace(qpos=m.qpos0.index_copy(0, at, torch.cat([random_quat(b, self.dtype), angles])))

    def upright(self, d: Data) -> Tensor:
        """How much the torso is: ()."""
        return d.body(self.m, "torso").xmat[2, 2]

    def seen(self, d: Data) -> tuple[Tensor, ...]:
        """What it sees besides velocities."""
        return d.joint(self.m, JOINTS).qpos, self.upright(d)[None]

    def observe(self, d: Data) -> Tensor:
        """Angles, whether it is upright, velocities."""
        return torch.cat([*self.seen(d), d.qvel])

    def reward(self, d: Data) -> Tensor:
        """Upright."""
        return tolerance(self.upright(d), 1, 1, margin=1)


@tree.dataclass(kw_only=True)
class FishSwim(FishUpright):
    """A fish whose mouth is to meet a target."""

    @staticmethod
    def draw(key: Tensor, m: Model) -> Model:
        """With a target anywhere."""
        x, y, z = random.uniform(key, (3,), dtype=m.qpos0.dtype).unbind()
        return m.geom("target").set("pos", torch.stack([0.8 * x - 0.4, 0.8 * y - 0.4, 0.1 + 0.2 * z]))

    def to_target(self, d: Data) -> Tensor:
        """From the mouth, as it sees it (3,)."""
        mouth = d.geom(self.m, "mouth")
        return (d.geom(self.m, "target").xpos - mouth.xpos) @ mouth.xmat

    def seen(self, d: Data) -> tuple[Tensor, ...]:
        """And the target."""
        return *super().seen(d), self.to_target(d)

    def reward(self, d: Data) -> Tensor:
        """How near they are, and upright."""
        radii = self.m.geom("mouth").size[0] + self.m.geom("target").size[0]
        near = tolerance(torch.linalg.vector_norm(self.to_target(d)), 0, radii, margin=2 * radii)
        return (7 * near + 0.5 * (self.upright(d) + 1)) / 8
