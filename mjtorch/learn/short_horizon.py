"""Policy gradients through the simulator over short horizons."""

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.learn.experience import Experience
from mjtorch.learn.networks import make_actor, make_critic, seen
from mjtorch.learn.settings import ShortHorizonSettings
from mjtorch.learn.through import Through

# Learning rates fall to this share of what they are at first.
LAST_RATE = 0.1

# Of Adam: gradients change much between two updates, so what they were counts less than usual.
BETAS = (0.7, 0.95)

# What a checkpoint holds.
SAVED = ("actor", "critic", "target", "actor_optimizer", "critic_optimizer")


class ShortHorizonLearner:
    """Short-horizon actor-critic, SHAC (Xu et al., "Accelerated policy learning with parallel differentiable
    simulation", 2022).

    The actor climbs the derivative of discounted rewards over `horizon` steps, and of what the critic expects after
    them, with respect to its weights, through the simulator. The critic learns returns of temporal differences. Actions
    are `tanh` of normally distributed numbers.
    """

    def __init__(self, experience: Experience, settings: ShortHorizonSettings) -> None:
        self.experience, self.settings = experience, settings
        state = experience.state
        # losses are means over worlds and steps, and so are their derivatives
        limit = settings.flow / (experience.worlds.count * settings.horizon)
        self.through = Through(experience.worlds, limit, **experience.options)
        self.actor = make_actor(state, experience.worlds.low.shape[0], settings)
        self.critic = make_critic(state, settings)
        self.target = copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), settings.actor_rate, BETAS)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), settings.critic_rate, BETAS)

    def policy(self, obs: Tensor) -> Tensor:
        """The most likely actions."""
        return torch.tanh(self.actor(seen(obs)))

    def iterate(self) -> dict[str, float]:
        """Climb once, and let the critic learn of what was seen."""
        rate = self._set_rates()
        loss, rollout = self._rollout()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.experience.team.average(list(self.actor.parameters()))
        norm = torch.nn.utils.clip_grad_norm_(self.actor.parameters(), self.settings.norm)
        self.actor_optimizer.step()
        error = self._fit(rollout)
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.critic.parameters(), strict=True):
                old.lerp_(new, self.settings.target_rate)
        for network in (self.actor, self.critic, self.target):
            network.update_normalization(seen(rollout.obs.flatten(0, 1)))
        return {
            "loss/actor": float(loss.detach()),
            "loss/value": error,
            "policy/gradient": float(norm),
            "policy/spread": float(self._spread().detach().mean()),
            "policy/learning_rate": rate,
        }

    def _spread(self) -> Tensor:
        """Deviation of actions (nu,) before they are bent."""
        return self.actor.distribution.log_std_param.exp()

    def _set_rates(self) -> float:
        """Learning rates fall with the steps that are made; returns the actor's."""
        share = min(self.experience.steps / self.settings.steps, 1.0)
        left = 1 - (1 - LAST_RATE) * share
        rates = ((self.actor_optimizer, self.settings.actor_rate), (self.critic_optimizer, self.settings.critic_rate))
        for optimizer, rate in rates:
            for group in optimizer.param_groups:
                group["lr"] = left * rate
        return left * self.settings.actor_rate

    def _rollout(self) -> tuple[Tensor, "Rollout"]:
        """Minus what actions bring, as a function of the actor's weights, and what was seen on the way."""
        experience, discount = self.experience, self.settings.discount
        scale, state = experience.scale.float(), experience.state
        gain = torch.zeros_like(state.reward, dtype=torch.float32)
        weight = torch.ones_like(gain)
        record: dict[str, list[Tensor]] = {name: [] for name in Rollout.__annotations__}
        for k in range(self.settings.horizon):
            mean = self.actor(seen(state.obs))
            action = torch.tanh(mean + self._spread() * torch.randn_like(mean))
            before, state = state, self.through.step(state, action)
            experience.note(state)
            reward = scale * state.reward.float()
            value = self.target(seen(state.info["final_obs"])).squeeze(-1) * ~state.terminated
            gain = gain + weight * reward
            ends = state.done if k < self.settings.horizon - 1 else torch.ones_like(state.done)
            gain = gain + torch.where(ends, weight * discount * value, 0.0)
            weight = torch.where(state.done, 1.0, discount * weight)
            for name, x in (("obs", before.obs.float()), ("reward", reward), ("value", value), ("done", state.done)):
                record[name].append(x.detach())
        experience.state = tree.map(Tensor.detach, state)
        return -gain.mean() / self.settings.horizon, Rollout(**{name: torch.stack(x) for name, x in record.items()})

    def _fit(self, rollout: "Rollout") -> float:
        """Let the critic learn of TD(lambda); returns the mean error squared."""
        settings, target = self.settings, torch.zeros_like(rollout.reward)
        later = rollout.value[-1]
        for k in reversed(range(settings.horizon)):
            # beyond the end of an episode there is only what is expected of its last observation
            mixed = (1 - settings.trace) * rollout.value[k] + settings.trace * later
            target[k] = later = rollout.reward[k] + settings.discount * torch.where(
                rollout.done[k], rollout.value[k], mixed
            )
        obs, target = rollout.obs.flatten(0, 1), target.flatten()
        errors = []
        for _ in range(settings.epochs):
            for part in torch.randperm(len(target), device=target.device).chunk(settings.minibatches):
                error = (self.critic(seen(obs[part])).squeeze(-1) - target[part]).square().mean()
                self.critic_optimizer.zero_grad()
                error.backward()
                self.experience.team.average(list(self.critic.parameters()))
                torch.nn.utils.clip_grad_norm_(self.critic.parameters(), settings.norm)
                self.critic_optimizer.step()
                errors.append(float(error.detach()))
        return sum(errors) / len(errors)

    def state_dict(self) -> dict[str, Any]:
        """Networks and optimizers."""
        return {name: getattr(self, name).state_dict() for name in SAVED}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        for name in SAVED:
            getattr(self, name).load_state_dict(saved[name])


@dataclasses.dataclass(frozen=True)
class Rollout:
    """What was seen, (horizon, worlds) each, observations (horizon, worlds, n).

    obs: before steps
    reward, done: of steps
    value: expected after steps, of the last observation of the episode where it is over, 0 where it was terminated
    """

    obs: Tensor
    reward: Tensor
    value: Tensor
    done: Tensor
