"""Learning in environments: PPO, and policy gradients through the simulator, on the same tasks in the same way.

    run = learn.Run("HalfCheetah-v5", method="ppo", seed=0)
    for progress in learn.train(run, steps=5_000_000, folder="runs/cheetah"):
        print(progress.steps, progress.scalars["episode/return"])
    episodes = learn.evaluate(run)

The networks, PPO itself and its storage are RSL-RL's; loop, checkpoints and TensorBoard are the same for both methods.
`pip install "mjtorch[train]"` brings what is needed.
"""

from mjtorch.learn.evaluate import Episodes, evaluate
from mjtorch.learn.run import Progress, Run, train
from mjtorch.learn.settings import METHODS, PPOSettings, ShortHorizonSettings, settings

__all__ = [
    "Episodes",
    "METHODS",
    "PPOSettings",
    "Progress",
    "Run",
    "ShortHorizonSettings",
    "evaluate",
    "settings",
    "train",
]
