"""Which kinematic trees are asleep, as all stages ask it."""

import torch
from torch import Tensor

from mjtorch.model.data import Data
from mjtorch.model.model import Model


def awake(m: Model, d: Data, sleeper: Tensor) -> Tensor:
    """Whether those of `sleeper`, of any shape, are awake, numbers as in `SleepPlan`. What never moves is not.

    Only of models that sleeping is enabled for.
    """
    return torch.cat([d.tree_asleep < 0, m.plan.sleep[0].stirs])[sleeper]


def any_awake(m: Model, d: Data, sleepers: Tensor) -> Tensor:
    """Whether any of the sleepers (k, n) of n objects is awake (n,)."""
    return awake(m, d, sleepers).any(0)


def with_sleep(m: Model, d: Data, tree_asleep: Tensor) -> Data:
    """`d` with this `tree_asleep` (ntree,), and what follows from it: tree_awake, body_awake (mj_updateSleep)."""
    p, is_awake = m.plan.sleep[0], (tree_asleep < 0).to(tree_asleep.dtype)
    return d.replace(tree_asleep=tree_asleep, tree_awake=is_awake, body_awake=torch.cat([is_awake, p.state])[p.body])
