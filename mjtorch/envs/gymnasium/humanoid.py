"""Humanoids that run, or get up: Humanoid, HumanoidStandup."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.envs.gymnasium.runner import Mover, Number, Range, Survivor, inside
from mjtorch.model import Data


@tree.dataclass(kw_only=True)
class Anatomy(Mover):
    """What a humanoid sees, whether it runs or gets up."""

    reset_noise_scale: Number = 1e-2
    include_cinert_in_observation: bool = tree.field(static=True, default=True)
    include_cvel_in_observation: bool = tree.field(static=True, default=True)
    include_qfrc_actuator_in_observation: bool = tree.field(static=True, default=True)
    include_cfrc_ext_in_observation: bool = tree.field(static=True, default=True)
    place_size: ClassVar[int] = 2
    reads: ClassVar[tuple[str, ...]] = tuple("xipos cinert cvel qfrc_actuator cfrc_ext ten_length ten_velocity".split())

    def more(self, d: Data) -> tuple[Tensor, ...]:
        """Inertias, velocities of bodies, and forces."""
        parts = (
            (self.include_cinert_in_observation, d.cinert[1:]),
            (self.include_cvel_in_observation, d.cvel[1:]),
            (self.include_qfrc_actuator_in_observation, d.qfrc_actuator[6:]),
            (self.include_cfrc_ext_in_observation, d.cfrc_ext[1:]),
        )
        return tuple(x for wanted, x in parts if wanted)

    def report(self, d: Data) -> Mapping[str, Tensor]:
        """Its tendons."""
        return {"tendon_length": d.ten_length, "tendon_velocity": d.ten_velocity}


@tree.dataclass(kw_only=True)
class Humanoid(Anatomy, Survivor):
    """Two legs and two arms."""

    forward_reward_weight: Number = 1.25
    contact_cost_weight: Number = 5e-7
    contact_cost_range: Range = (float("-inf"), 10.0)
    healthy_reward: Number = 5.0
    healthy_z_range: Range = (1.0, 2.0)

    def place(self, d: Data) -> Tensor:
        """The centre of mass."""
        mass = self.m.body_mass
        return (mass @ d.xipos / mass.sum())[:2]

    def healthy(self, d: Data) -> Tensor:
        """Neither too low nor too high."""
        return inside(d.qpos[2], self.healthy_z_range)

    def costs(self, d: Data, action: Tensor) -> dict[str, Tensor]:
        """Of controls and contacts."""
        contact = torch.clamp(self.contact_cost_weight * d.cfrc_ext.square().sum(), *self.contact_cost_range)
        return {**super().costs(d, action), "contact": contact}


@tree.dataclass(kw_only=True)
class HumanoidStandup(Anatomy):
    """Get up from the ground: reward is how high the head is, over the time step."""

    uph_cost_weight: Number = 1.0
    impact_cost_weight: Number = 5e-7
    impact_cost_range: Range = (float("-inf"), 10.0)

    def outcome(self, before: Data, after: Data, action: Tensor) -> tuple[Tensor, Any, dict[str, Any]]:
        """Height, less costs of controls and impacts, plus 1."""
        up = after.qpos[2] / self.m.opt.timestep
        impact = torch.clamp(self.impact_cost_weight * after.cfrc_ext.square().sum(), *self.impact_cost_range)
        ctrl = self.ctrl_cost_weight * action.square().sum()
        info = {"reward_linup": up, "reward_quadctrl": -ctrl, "reward_impact": -impact, **self.report(after)}
        info |= {"x_position": after.qpos[0], "y_position": after.qpos[1]}
        info["z_distance_from_origin"] = after.qpos[2] - self.m.qpos0[2]
        return up - ctrl - impact + 1, False, info
