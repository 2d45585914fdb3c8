"""Get forward at little cost: HalfCheetah, Swimmer, Hopper, Walker2d, Ant."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs.env import Task
from mjtorch.model import Data
from mjtorch.smooth.kinematics import kinematics

Number = float | Tensor
Range = tuple[Any, Any]


@tree.dataclass(kw_only=True)
class Mover(Task):
    """What they share with whom moves to another end: starts are noisy, and where it is it does not see."""

    ctrl_cost_weight: Number = 0.1
    reset_noise_scale: Number = 0.1
    exclude_current_positions_from_observation: bool = tree.field(static=True, default=True)

    # How many positions say where it is, x first.
    place_size: ClassVar[int] = 1
    # Whether velocities start normally distributed, or uniformly; at most how fast joints seem to be.
    normal_velocities: ClassVar[bool] = False
    seen_velocity: ClassVar[float] = float("inf")

    def start(self, key: Tensor) -> Data:
        """Somewhere near rest."""
        a, b = random.split(key).unbind()
        m, scale = self.m, self.reset_noise_scale
        qpos = m.qpos0 + scale * random.uniform(a, (m.nq,), -1.0, 1.0, dtype=self.dtype)
        if self.normal_velocities:
            qvel = random.normal(b, (m.nv,), dtype=self.dtype)
        else:
            qvel = random.uniform(b, (m.nv,), -1.0, 1.0, dtype=self.dtype)
        return self.rest.replace(qpos=qpos, qvel=scale * qvel)

    def observe(self, d: Data) -> Tensor:
        """Positions, velocities and `more`."""
        hidden = self.place_size if self.exclude_current_positions_from_observation else 0
        velocities = d.qvel.clamp(-self.seen_velocity, self.seen_velocity)
        return torch.cat([d.qpos[hidden:], velocities, *(x.flatten() for x in self.more(d))])

    def more(self, d: Data) -> tuple[Tensor, ...]:
        """What else it sees."""
        return ()

    def report(self, d: Data) -> Mapping[str, Tensor]:
        """What there is to report of where it is."""
        return {}


@tree.dataclass(kw_only=True)
class Runner(Mover):
    """Reward is forward velocity, and staying healthy, less costs."""

    forward_reward_weight: Number = 1.0

    def place(self, d: Data) -> Tensor:
        """Where it is, for its velocity: x first."""
        return d.qpos[: self.place_size]

    def costs(self, d: Data, action: Tensor) -> dict[str, Tensor]:
        """What its motion costs, by name."""
        return {"ctrl": self.ctrl_cost_weight * action.square().sum()}

    def outcome(self, before: Data, after: Data, action: Tensor) -> tuple[Tensor, Any, dict[str, Any]]:
        """Forward velocity, and `healthy_reward`, less costs."""
        velocity = (self.place(after) - self.place(before)) / self.dt
        forward_reward = self.forward_reward_weight * velocity[0]
        costs = self.costs(after, action)
        reward = forward_reward - torch.stack([*costs.values()]).sum()
        info = {"reward_forward": forward_reward, **{f"reward_{name}": -cost for name, cost in costs.items()}}
        info |= {"x_position": after.qpos[0], "x_velocity": velocity[0], **self.report(after)}
        if self.place_size == 2:
            distance = torch.linalg.vector_norm(after.qpos[:2])
            info |= {"y_position": after.qpos[1], "y_velocity": velocity[1], "distance_from_origin": distance}
        return self.survived(reward, after, info)

    def survived(self, reward: Tensor, after: Data, info: dict[str, Any]) -> tuple[Tensor, Any, dict[str, Any]]:
        """With what health is worth, and whether the lack of it is the end."""
        return reward, False, info


@tree.dataclass(kw_only=True)
class HalfCheetah(Runner):
    """A dog in a plane."""

    normal_velocities: ClassVar[bool] = True


@tree.dataclass(kw_only=True)
class Swimmer(Runner):
    """A worm in a liquid, seen from above."""

    ctrl_cost_weight: Number = 1e-4
    place_size: ClassVar[int] = 2


@tree.dataclass(kw_only=True)
class Survivor(Runner):
    """A runner that may fall: healthy it is rewarded, else, if wanted, it is over."""

    healthy_reward: Number = 1.0
    terminate_when_unhealthy: bool = tree.field(static=True, default=True)

    def healthy(self, d: Data) -> Tensor:
        """Whether it is: () bool."""
        raise NotImplementedError

    def survived(self, reward: Tensor, after: Data, info: dict[str, Any]) -> tuple[Tensor, Any, dict[str, Any]]:
        """`healthy_reward` while it is."""
        healthy = self.healthy(after)
        survival = self.healthy_reward * healthy
        over = ~healthy if self.terminate_when_unhealthy else False
        return reward + survival, over, {**info, "reward_survive": survival}


@tree.dataclass(kw_only=True)
class Walker2d(Survivor):
    """Two legs in a plane."""

    ctrl_cost_weight: Number = 1e-3
    reset_noise_scale: Number = 5e-3
    healthy_z_range: Range = (0.8, 2.0)
    healthy_angle_range: Range = (-1.0, 1.0)
    seen_velocity: ClassVar[float] = 10.0

    def healthy(self, d: Data) -> Tensor:
        """Neither too low nor too high, and upright."""
        return inside(d.qpos[1], self.healthy_z_range) & inside(d.qpos[2], self.healthy_angle_range)

    def report(self, d: Data) -> Mapping[str, Tensor]:
        """How much higher than at rest it is."""
        return {"z_distance_from_origin": d.qpos[1] - self.m.qpos0[1]}


@tree.dataclass(kw_only=True)
class Hopper(Walker2d):
    """One leg in a plane."""

    healthy_z_range: Range = (0.7, float("inf"))
    healthy_angle_range: Range = (-0.2, 0.2)
    healthy_state_range: Range = (-100.0, 100.0)

    def healthy(self, d: Data) -> Tensor:
        """Nor out of all bounds."""
        return super().healthy(d) & inside(torch.cat([d.qpos, d.qvel])[2:], self.healthy_state_range).all()


@tree.dataclass(kw_only=True)
class Ant(Survivor):
    """Four legs.

    main_body: the number of the body whose velocity counts
    """

    ctrl_cost_weight: Number = 0.5
    contact_cost_weight: Number = 5e-4
    healthy_z_range: Range = (0.2, 1.0)
    contact_force_range: Range = (-1.0, 1.0)
    main_body: int = tree.field(static=True, default=1)
    include_cfrc_ext_in_observation: bool = tree.field(static=True, default=True)
    place_size: ClassVar[int] = 2
    normal_velocities: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("xpos", "cfrc_ext")

    def complete(self, d: Data) -> Data:
        """Where bodies are; contact forces are zero until there is a step."""
        return kinematics(self.m, d)

    def place(self, d: Data) -> Tensor:
        """The main body's."""
        return d.xpos[self.main_body, :2]

    def healthy(self, d: Data) -> Tensor:
        """Neither too low nor too high, and finite."""
        low, high = self.healthy_z_range
        finite = torch.cat([d.qpos, d.qvel]).isfinite().all()
        return finite & (low <= d.qpos[2]) & (d.qpos[2] <= high)

    def forces(self, d: Data) -> Tensor:
        """On bodies from outside (nbody, 6), within bounds."""
        return torch.clamp(d.cfrc_ext, *self.contact_force_range)

    def costs(self, d: Data, action: Tensor) -> dict[str, Tensor]:
        """Of controls and contacts."""
        contact = self.contact_cost_weight * self.forces(d).square().sum()
        return {**super().costs(d, action), "contact": contact}

    def more(self, d: Data) -> tuple[Tensor, ...]:
        """Forces from outside."""
        return (self.forces(d)[1:],) if self.include_cfrc_ext_in_observation else ()


def inside(x: Tensor, bounds: Range) -> Tensor:
    """Whether `x` is above the lower and below the upper bound."""
    low, high = bounds
    return (low < x) & (x < high)
