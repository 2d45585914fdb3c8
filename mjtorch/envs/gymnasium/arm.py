"""Reach: Reacher, Pusher."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.control_flow import while_loop
from mjtorch.envs.env import Task
from mjtorch.model import Data
from mjtorch.smooth.kinematics import kinematics

Number = float | Tensor

# How fast joints may be at first [rad/s].
START_VELOCITY = 0.005
# Of the reacher: joint angles at first [rad], and how far away the target may be [m].
START_ANGLE, REACH = 0.1, 0.2
# Of the pusher: where the object may be at first [m], and how near to the goal it may not be.
LEAST, MOST, APART = (-0.3, -0.2), (0.0, 0.2), 0.17


@tree.dataclass(kw_only=True)
class Arm(Task):
    """What they share: reward is nearness, less the cost of controls.

    bodies: the numbers of those that matter
    """

    bodies: tuple[int, ...] = tree.field(static=True)
    reward_dist_weight: Number = 1.0
    reward_control_weight: Number = 1.0
    reads: ClassVar[tuple[str, ...]] = ("xpos",)

    def complete(self, d: Data) -> Data:
        """Where bodies are."""
        return kinematics(self.m, d)

    def place(self, d: Data, which: int) -> Tensor:
        """Where a body is (3,) [m]."""
        return d.xpos[self.bodies[which]]

    def nearness(self, d: Data, first: int, second: int, weight: Number) -> Tensor:
        """Minus the distance of two bodies, weighted."""
        return -weight * torch.linalg.vector_norm(self.place(d, first) - self.place(d, second))

    def velocities(self, key: Tensor, still: int) -> Tensor:
        """Of joints at first (nv,), the last `still` of which are."""
        noise = random.uniform(key, (self.m.nv,), -START_VELOCITY, START_VELOCITY, dtype=self.dtype)
        return torch.cat([noise[:-still], torch.zeros_like(noise[-still:])])


@tree.dataclass(kw_only=True)
class Reacher(Arm):
    """An arm in a plane whose tip is to meet a target. Bodies: fingertip, target."""

    def start(self, key: Tensor) -> Data:
        """With a target anywhere in reach."""
        a, b, c = random.split(key, 3).unbind()
        m = self.m
        angles = m.qpos0 + random.uniform(a, (m.nq,), -START_ANGLE, START_ANGLE, dtype=self.dtype)
        share, turn = random.uniform(b, (2,), dtype=self.dtype).unbind()
        radius, angle = REACH * share.sqrt(), 2 * math.pi * turn
        target = torch.stack([radius * angle.cos(), radius * angle.sin()])
        return self.rest.replace(qpos=torch.cat([angles[:-2], target]), qvel=self.velocities(c, 2))

    def observe(self, d: Data) -> Tensor:
        """Angles, the target, angular velocities, and from the target to the tip."""
        angles, between = d.qpos[:2], self.place(d, 0) - self.place(d, 1)
        return torch.cat([angles.cos(), angles.sin(), d.qpos[2:], d.qvel[:2], between[:2]])

    def outcome(self, before: Data, after: Data, action: Tensor) -> tuple[Tensor, Any, dict[str, Any]]:
        """How near the tip is to the target."""
        near = self.nearness(after, 0, 1, self.reward_dist_weight)
        ctrl = -self.reward_control_weight * action.square().sum()
        return near + ctrl, False, {"reward_dist": near, "reward_ctrl": ctrl}


@tree.dataclass(kw_only=True)
class Pusher(Arm):
    """An arm that is to push an object to a goal. Bodies: tips_arm, object, goal."""

    reward_near_weight: Number = 0.5
    reward_control_weight: Number = 0.1

    def start(self, key: Tensor) -> Data:
        """With the object anywhere, but not at the goal."""
        a, b = random.split(key).unbind()
        low, high = (self.m.qpos0.new_tensor(x) for x in (LEAST, MOST))

        def draw(carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            own, key = random.split(carry[0]).unbind()
            return key, random.uniform(own, (2,), low, high)

        _, place = while_loop(lambda c: torch.linalg.vector_norm(c[1]) <= APART, draw, (a, torch.zeros_like(low)))
        qpos = torch.cat([self.m.qpos0[:-4], place, torch.zeros_like(place)])
        return self.rest.replace(qpos=qpos, qvel=self.velocities(b, 4))

    def observe(self, d: Data) -> Tensor:
        """Angles, angular velocities, and where tip, object and goal are."""
        return torch.cat([d.qpos[:7], d.qvel[:7], *(self.place(d, k) for k in range(3))])

    def outcome(self, before: Data, after: Data, action: Tensor) -> tuple[Tensor, Any, dict[str, Any]]:
        """How near the object is to the goal, and the tip to the object."""
        near = self.nearness(after, 1, 0, self.reward_near_weight)
        far = self.nearness(after, 1, 2, self.reward_dist_weight)
        ctrl = -self.reward_control_weight * action.square().sum()
        return near + far + ctrl, False, {"reward_dist": far, "reward_ctrl": ctrl, "reward_near": near}
