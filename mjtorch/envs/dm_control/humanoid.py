"""Two legs and two arms: humanoid, humanoid_CMU."""

from typing import ClassVar

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.envs.dm_control.suite import INF, SuiteTask, random_joints, small_control, tolerance, until_free
from mjtorch.model import Data


@tree.dataclass(kw_only=True)
class Humanoid(SuiteTask):
    """Stand, walk or run.

    speed: [m/s] wanted, 0 for none; pure_state: it sees nothing but positions and velocities
    """

    speed: float = tree.field(static=True)
    pure_state: bool = tree.field(static=True, default=False)
    torso: ClassVar[str] = "torso"
    limbs: ClassVar[tuple[str, ...]] = ("left_hand", "left_foot", "right_hand", "right_foot")
    up: ClassVar[int] = 2
    reads: ClassVar[tuple[str, ...]] = ("xpos", "xmat", "sensordata")

    def start(self, key: Tensor) -> Data:
        """With joints anywhere where nothing touches."""
        return until_free(self, key, lambda key: self.rest.replace(qpos=random_joints(self.m, key)))

    def velocity(self, d: Data) -> Tensor:
        """Of the centre of mass (3,) [m/s]."""
        return d.sensor(self.m, f"{self.torso}_subtreelinvel").data

    def head_height(self, d: Data) -> Tensor:
        """How high the head is () [m]."""
        return d.body(self.m, "head").xpos[2]

    def observe(self, d: Data) -> Tensor:
        """Angles, height, hands and feet as the torso sees them, how it is turned, velocities."""
        if self.pure_state:
            return torch.cat([d.qpos, d.qvel])
        torso = d.body(self.m, self.torso)
        limbs = (d.body(self.m, list(self.limbs)).xpos - torso.xpos) @ torso.xmat
        parts = (d.qpos[7:], self.head_height(d)[None], limbs.flatten(), torso.xmat[2], self.velocity(d), d.qvel)
        return torch.cat(parts)

    def reward(self, d: Data) -> Tensor:
        """Upright, at little cost, and as fast as wanted."""
        standing = tolerance(self.head_height(d), 1.4, INF, margin=1.4 / 4)
        turned = d.body(self.m, self.torso).xmat[2, self.up]
        upright = tolerance(turned, 0.9, INF, sigmoid="linear", margin=1.9, value_at_margin=0)
        horizontal = self.velocity(d)[:2]
        if self.speed:
            fast = torch.linalg.vector_norm(horizontal)
            moving = tolerance(fast, self.speed, INF, margin=self.speed, value_at_margin=0, sigmoid="linear")
            moving = (5 * moving + 1) / 6
        else:
            moving = tolerance(horizontal, margin=2).mean()
        return small_control(d.ctrl) * standing * upright * moving


@tree.dataclass(kw_only=True)
class HumanoidCMU(Humanoid):
    """That of the CMU's motion captures, whose y axis points up."""

    torso: ClassVar[str] = "thorax"
    limbs: ClassVar[tuple[str, ...]] = ("lhand", "lfoot", "rhand", "rfoot")
    up: ClassVar[int] = 1
