"""PPO: RSL-RL's algorithm on our worlds."""

from typing import Any

import torch
from torch import Tensor

from mjtorch.learn.experience import Experience
from mjtorch.learn.networks import make_actor, make_critic, seen
from mjtorch.learn.settings import PPOSettings

try:
    from rsl_rl.algorithms import PPO
    from rsl_rl.storage import RolloutStorage
except ModuleNotFoundError as e:
    raise ModuleNotFoundError('learning needs RSL-RL and TensorBoard: pip install "mjtorch[train]"') from e


# Added to the deviation of advantages.
EPSILON = 1e-8


class PPOLearner:
    """Proximal policy optimisation (Schulman et al., 2017).

    An episode that is cut short counts as if it went on: what the critic expects of its last observation is added.
    """

    def __init__(self, experience: Experience, settings: PPOSettings) -> None:
        self.experience, self.settings = experience, settings
        state, actions = experience.state, experience.worlds.low.shape[0]
        storage = RolloutStorage(
            "rl", experience.worlds.count, settings.horizon, seen(state.obs), [actions], str(state.obs.device)
        )
        self.algorithm = PPO(
            make_actor(state, actions, settings),
            make_critic(state, settings),
            storage,
            num_learning_epochs=settings.epochs,
            num_mini_batches=settings.minibatches,
            gamma=settings.discount,
            lam=settings.trace,
            entropy_coef=settings.entropy,
            learning_rate=settings.learning_rate,
            desired_kl=settings.divergence,
            use_clipped_value_loss=False,
            device=str(state.obs.device),
            multi_gpu_cfg=experience.team.config(),
        )

    @property
    def actor(self) -> Any:
        """The network that acts."""
        return self.algorithm.actor

    def policy(self, obs: Tensor) -> Tensor:
        """The most likely actions."""
        return self.actor(seen(obs))

    def iterate(self) -> dict[str, float]:
        """Collect `horizon` steps of all worlds, and learn of them."""
        self._collect()
        losses = self.algorithm.update()
        found = {f"loss/{name}": float(value) for name, value in losses.items()}
        spread = float(self.actor.output_std.detach().mean())
        return {**found, "policy/spread": spread, "policy/learning_rate": self.algorithm.learning_rate}

    @torch.no_grad()
    def _collect(self) -> None:
        experience, algorithm = self.experience, self.algorithm
        scale = experience.scale.float()
        for _ in range(self.settings.horizon):
            actions = algorithm.act(seen(experience.state.obs))
            state = experience.step(actions)
            rewards = scale * state.reward.float()
            if state.truncated.any():
                values = algorithm.critic(seen(state.info["final_obs"])).squeeze(-1)
                rewards = rewards + self.settings.discount * values * state.truncated
            algorithm.process_env_step(seen(state.obs), rewards, state.done, {})
        algorithm.compute_returns(seen(experience.state.obs))
        storage = algorithm.storage
        if not storage.returns.isfinite().all():
            raise FloatingPointError(f"PPO: returns are not finite after {experience.steps} steps")
        # of all processes, where RSL-RL knows those of this one
        advantage = storage.returns - storage.values
        known = experience.team.all(advantage.flatten())
        storage.advantages = (advantage - known.mean()) / (known.std() + EPSILON)

    def state_dict(self) -> dict[str, Any]:
        """Networks and optimizer."""
        return self.algorithm.save()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        self.algorithm.load(saved, None, True)
