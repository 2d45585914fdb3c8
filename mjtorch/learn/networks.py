"""The networks of both methods: RSL-RL's, so that what is learned can be exported as its users do."""

from typing import Any

import torch
from torch import Tensor

from mjtorch.envs import State
from mjtorch.learn.settings import Settings

try:
    from rsl_rl.models import MLPModel
    from rsl_rl.modules import EmpiricalNormalization
    from rsl_rl.modules.distribution import GaussianDistribution
    from tensordict import TensorDict
except ModuleNotFoundError as e:
    raise ModuleNotFoundError('learning needs RSL-RL and TensorBoard: pip install "mjtorch[train]"') from e

GROUPS = {"actor": ["policy"], "critic": ["policy"]}

# Weights of the actor's last layer are this much smaller than usual, so that actions are small at first.
FIRST_ACTIONS = 0.01

# Observations are normalized and cut to it: contact forces, rarely seen, would be far out.
FARTHEST = 5.0


class Normalization(EmpiricalNormalization):
    """Over the deviation of what was seen, within bounds."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalized `x` (worlds, n)."""
        return super().forward(x).clamp(-FARTHEST, FARTHEST)


def seen(obs: Tensor) -> TensorDict:
    """Observations (worlds, n) as RSL-RL's networks take them."""
    return TensorDict({"policy": obs.float()}, batch_size=[len(obs)], device=obs.device)


def make_actor(state: State, actions: int, settings: Settings) -> MLPModel:
    """From observations to a normal distribution of actions, whose deviation depends on nothing."""
    spread = {"class_name": GaussianDistribution, "init_std": settings.spread, "std_type": "log"}
    actor = make_network(state, "actor", actions, settings, distribution_cfg=spread)
    with torch.no_grad():
        actor.mlp[-1].weight.mul_(FIRST_ACTIONS)
        actor.mlp[-1].bias.zero_()
    return actor


def make_critic(state: State, settings: Settings) -> MLPModel:
    """From observations to what may be expected from there."""
    return make_network(state, "critic", 1, settings)


def make_network(state: State, role: str, size: int, settings: Settings, **options: Any) -> MLPModel:
    """Layers that see normalized observations."""
    network = MLPModel(seen(state.obs), GROUPS, role, size, settings.hidden, "elu", True, **options)
    network.obs_normalizer = Normalization(network.obs_dim)
    return network.to(state.obs.device)
