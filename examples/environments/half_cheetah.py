"""HalfCheetah, from nothing: how it starts, what it sees, what it is worth."""

import torch

from mjtorch import envs, random, tree


@tree.dataclass(kw_only=True)
class HalfCheetah(envs.Task):
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1

    def start(self, key):
        a, b = random.split(key)
        qpos = self.m.qpos0 + self.reset_noise_scale * random.uniform(a, (self.m.nq,), -1.0, 1.0, dtype=self.dtype)
        qvel = self.reset_noise_scale * random.normal(b, (self.m.nv,), dtype=self.dtype)
        return self.rest.replace(qpos=qpos, qvel=qvel)

    def observe(self, d):
        return torch.cat([d.qpos[1:], d.qvel])

    def outcome(self, before, after, action):
        velocity = (after.qpos[0] - before.qpos[0]) / self.dt
        reward = self.forward_reward_weight * velocity - self.ctrl_cost_weight * action.square().sum()
        return reward, False, {"x_velocity": velocity}
