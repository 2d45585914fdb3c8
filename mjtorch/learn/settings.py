"""Numbers that learning depends on: usual ones, and those of tasks that want others."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What both methods have.

    worlds: how many at once, in all processes together
    horizon: steps of each world between two updates
    steps: of all worlds together, that the task usually takes
    discount: of rewards, each step
    trace: lambda of the targets of the critic, and of PPO's advantages
    hidden: widths of the layers of the actor and of the critic
    spread: standard deviation of actions at first, whose range is [-1, 1]; with 1, a third of them is beyond, and
        what is learned is to go from end to end
    """

    worlds: int
    horizon: int
    steps: int = 5_000_000
    discount: float = 0.99
    trace: float = 0.95
    hidden: tuple[int, ...] = (64, 64)
    spread: float = 0.4


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOSettings(Settings):
    """Of PPO (Schulman et al., 2017).

    epochs, minibatches: how often and in how many parts an update goes over what was seen
    learning_rate: at first; it is adapted so that policies change by about `divergence` in an update
    entropy: what the entropy of actions is worth
    """

    worlds: int = 512
    horizon: int = 16
    epochs: int = 4
    minibatches: int = 8
    learning_rate: float = 3e-4
    divergence: float = 0.01
    entropy: float = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShortHorizonSettings(Settings):
    """Of policy gradients through the simulator (SHAC; Xu et al., 2022).

    actor_rate, critic_rate: learning rates at first; they fall to a tenth until `steps`
    epochs, minibatches: how often and in how many parts the critic goes over what was seen
    target_rate: how much of the critic the target network takes in each update
    norm: the gradient of the actor is cut to it
    flow: so is the derivative of a world's rewards by what a step begins with, each time it goes through one
    """

    worlds: int = 64
    horizon: int = 32
    actor_rate: float = 2e-3
    critic_rate: float = 1e-3
    epochs: int = 8
    minibatches: int = 4
    target_rate: float = 0.3
    norm: float = 1.0
    flow: float = 100.0


METHODS: dict[str, type[Settings]] = {"ppo": PPOSettings, "shac": ShortHorizonSettings}

# Of robots that follow commands.
WALKING = {
    "steps": 3_500_000,
    "worlds": 256,
    "horizon": 24,
    "minibatches": 4,
    "discount": 0.97,
    "hidden": (128, 128),
    "learning_rate": 1e-3,
    "divergence": 0.015,
    "entropy": 5e-3,
}

# By method and task: what differs from what is usual.
TUNED: dict[tuple[str, str], dict[str, Any]] = {
    **{("ppo", f"{robot}-{ground}"): WALKING for robot in ("go1", "g1") for ground in ("flat", "rough")},
    ("ppo", "Ant-v5"): {"hidden": (128, 128), "epochs": 5, "steps": 4_000_000},
    ("ppo", "HalfCheetah-v5"): {"discount": 0.97},
    ("ppo", "Humanoid-v5"): {"hidden": (128, 128), "epochs": 5, "steps": 20_000_000},
}


def settings(method: str, task: str, changes: Mapping[str, Any] | None = None) -> Settings:
    """The numbers for a task, with `changes`.

    Raises:
        ValueError: there is no such method.
        TypeError: it has no such setting.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    kind, changes = METHODS[method], dict(changes or {})
    known = [f.name for f in dataclasses.fields(kind)]
    for name in changes:
        if name not in known:
            close = difflib.get_close_matches(name, known) or known
            raise TypeError(f"{method} has no setting {name!r}; did you mean {' or '.join(close)}?")
    if "hidden" in changes:
        hidden = changes["hidden"]
        changes["hidden"] = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    return kind(**{**TUNED.get((method, task), {}), **changes})
