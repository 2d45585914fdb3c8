"""Environments to learn in: physics with a few tensors more, as pure functions of one world.

An environment is a tree with two methods, `reset(key)` and `step(state, action)`, both of which return a `State`.
Wrappers are environments around environments. All of it compiles into one program with the physics:

    env = envs.make("HalfCheetah-v5")
    reset = mjtorch.jit(envs.reset, in_dims=(None, 0))
    step = mjtorch.jit(envs.step, in_dims=(None, 0, 0))
    state = reset(env, random.split(random.key(0), 4096))
    state = step(env, state, actions)                           # actions: (4096, nu)
"""

from mjtorch.envs.env import Env, State, Task, Wrapper, reset, step, with_tensors
from mjtorch.envs.make import make, mj_model, names
from mjtorch.envs.wrappers.action import ActionDelay, ActionNoise, ClipAction, RescaleAction
from mjtorch.envs.wrappers.episode import AutoReset, EpisodeStatistics, TimeLimit, reset_where
from mjtorch.envs.wrappers.normalize import Moments, NormalizeObservation, NormalizeReward
from mjtorch.envs.wrappers.observation import ObservationNoise
from mjtorch.envs.wrappers.randomize import RandomizeModel, Scaled

__all__ = [
    "ActionDelay",
    "ActionNoise",
    "AutoReset",
    "ClipAction",
    "Env",
    "EpisodeStatistics",
    "Moments",
    "NormalizeObservation",
    "NormalizeReward",
    "ObservationNoise",
    "RandomizeModel",
    "RescaleAction",
    "Scaled",
    "State",
    "Task",
    "TimeLimit",
    "Wrapper",
    "make",
    "mj_model",
    "names",
    "reset",
    "reset_where",
    "step",
    "with_tensors",
]
