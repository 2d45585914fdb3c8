"""Balance: InvertedPendulum, InvertedDoublePendulum."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs.env import Task
from mjtorch.model import Data

Number = float | Tensor

# An angle [rad] at which the pendulum has fallen, and a height [m] at which the double one has.
MAX_ANGLE, MIN_HEIGHT = 0.2, 1.0


@tree.dataclass(kw_only=True)
class InvertedPendulum(Task):
    """A pole on a cart."""

    reset_noise_scale: Number = 0.01

    def start(self, key: Tensor) -> Data:
        """Near rest."""
        m = self.m
        noise = self.reset_noise_scale * random.uniform(key, (m.nq + m.nv,), -1.0, 1.0, dtype=self.dtype)
        return self.rest.replace(qpos=m.qpos0 + noise[: m.nq], qvel=noise[m.nq :])

    def observe(self, d: Data) -> Tensor:
        """Positions and velocities."""
        return torch.cat([d.qpos, d.qvel])

    def outcome(self, before: Data, after: Data, action: Tensor) -> tuple[Tensor, Any, dict[str, Any]]:
        """1 for each step upright."""
        obs = self.observe(after)
        fell = ~obs.isfinite().all() | (obs[1].abs() > MAX_ANGLE)
        reward = (~fell).to(self.dtype)
        return reward, fell, {"reward_survive": reward}


@tree.dataclass(kw_only=True)
class InvertedDoublePendulum(Task):
    """Two poles, one upon the other, on a cart."""

    healthy_reward: Number = 10.0
    reset_noise_scale: Number = 0.1
    reads: ClassVar[tuple[str, ...]] = ("site_xpos", "qfrc_constraint")

    def start(self, key: Tensor) -> Data:
        """Near rest."""
        a, b = random.split(key).unbind()
        m, scale = self.m, self.reset_noise_scale
        qpos = m.qpos0 + scale * random.uniform(a, (m.nq,), -1.0, 1.0, dtype=self.dtype)
        qvel = scale * random.normal(b, (m.nv,), dtype=self.dtype)
        return self.rest.replace(qpos=qpos, qvel=qvel)

    def observe(self, d: Data) -> Tensor:
        """Where the cart is, sines and cosines of angles, velocities, and the force that keeps the cart on its rail."""
        angle, force = d.qpos[1:], d.qfrc_constraint[:1]
        return torch.cat([d.qpos[:1], angle.sin(), angle.cos(), d.qvel.clamp(-10, 10), force.clamp(-10, 10)])

    def outcome(self, before: Data, after: Data, action: Tensor) -> tuple[Tensor, Any, dict[str, Any]]:
        """For each step upright, less what the tip is away from above, and fast."""
        x, _, y = after.site_xpos[0].unbind()
        first, second = after.qvel[1:3].unbind()
        distance = 0.01 * x**2 + (y - 2) ** 2
        velocity = 1e-3 * first**2 + 5e-3 * second**2
        fell = y <= MIN_HEIGHT
        alive = self.healthy_reward * ~fell
        info = {"reward_survive": alive, "distance_penalty": -distance, "velocity_penalty": -velocity}
        return alive - distance - velocity, fell, info
