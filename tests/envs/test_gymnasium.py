"""Gymnasium's tasks, step by step: observation, reward, end and report, from the same states and actions.

Each step begins where theirs does: both solvers stop within a tolerance, which contacts make more of with each step.
"""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from mjtorch import envs, jit, random
from mjtorch.envs.gymnasium.table import TASKS, load

DOUBLE = torch.float64
STEPS, SEEDS = 100, (0, 1, 2)
SHARED = ("qpos", "qvel", "qacc_warmstart")

# Those that take little time to compile; the others do nothing else.
FAST = {"HalfCheetah", "Reacher"}

# Other than usual: each parameter at least once.
OPTIONS: dict[str, dict[str, Any]] = {
    "Ant": {
        "forward_reward_weight": 0.5,
        "ctrl_cost_weight": 0.2,
        "contact_cost_weight": 0.1,
        "healthy_reward": 2.0,
        "main_body": "front_left_leg",
        "healthy_z_range": (0.3, 0.8),
        "contact_force_range": (-0.5, 2.0),
        "exclude_current_positions_from_observation": False,
        "include_cfrc_ext_in_observation": False,
    },
    "HalfCheetah": {
        "forward_reward_weight": 2.0,
        "ctrl_cost_weight": 0.3,
        "exclude_current_positions_from_observation": False,
        "frame_skip": 2,
    },
    "Hopper": {
        "healthy_reward": 3.0,
        "terminate_when_unhealthy": False,
        "healthy_state_range": (-1.0, 2.0),
        "healthy_z_range": (0.9, 1.3),
        "healthy_angle_range": (-0.1, 0.3),
    },
    "Humanoid": {
        "contact_cost_weight": 1e-3,
        "contact_cost_range": (0.5, 3.0),
        "healthy_z_range": (1.1, 1.6),
        "include_cinert_in_observation": False,
        "include_qfrc_actuator_in_observation": False,
    },
    "HumanoidStandup": {
        "uph_cost_weight": 2.0,
        "impact_cost_weight": 1e-4,
        "impact_cost_range": (0.5, 3.0),
        "include_cvel_in_observation": False,
        "include_cfrc_ext_in_observation": False,
        "exclude_current_positions_from_observation": False,
    },
    "InvertedDoublePendulum": {"healthy_reward": 3.0},
    "Pusher": {"reward_near_weight": 0.7, "reward_dist_weight": 2.0, "reward_control_weight": 0.3},
    "Reacher": {"reward_dist_weight": 2.0, "reward_control_weight": 0.3},
    "Swimmer": {"forward_reward_weight": 2.0, "ctrl_cost_weight": 0.1},
    "Walker2d": {"healthy_z_range": (1.0, 1.5), "healthy_angle_range": (-0.5, 0.2)},
}

NAMES = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in TASKS]


def start(name: str, seed: int, **options: Any) -> tuple[Any, np.ndarray, dict[str, float]]:
    """Gymnasium's environment at the beginning of an episode."""
    theirs = gymnasium.make(f"{name}-v5", **options).unwrapped
    obs, info = theirs.reset(seed=seed)
    return theirs, obs, info


def close(found: Any, wanted: Any, what: str) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted, dtype=float), rtol=1e-9, atol=1e-9, err_msg=what)


def compare(name: str, **options: Any) -> None:
    task = load(name, dtype=DOUBLE, **options)
    begun = [start(name, seed, **options) for seed in SEEDS]
    qpos, qvel = (torch.tensor(np.stack([getattr(e.data, x) for e, _, _ in begun])) for x in SHARED[:2])

    def begin(task: envs.Task, qpos: Tensor, qvel: Tensor, key: Tensor) -> envs.State:
        return task.begin(task.rest.replace(qpos=qpos, qvel=qvel), key)

    keys = random.split(random.key(0), len(SEEDS))
    state = torch.vmap(begin, in_dims=(None, 0, 0, 0))(task, qpos, qvel, keys)
    for world, (_, obs, _) in enumerate(begun):
        close(state.obs[world], obs, "first observation")
    step = jit(envs.step, in_dims=(None, 0, 0), strict=True)
    rng = np.random.default_rng(0)
    low, high = (x.numpy() for x in task.action_range)
    ended = 0
    for k in range(STEPS):
        actions = rng.uniform(low, high, (len(SEEDS), len(low)))
        same = {x: torch.tensor(np.stack([getattr(e.data, x) for e, _, _ in begun])) for x in SHARED}
        state = step(task, state.replace(data=state.data.replace(**same)), torch.tensor(actions))
        for world, (theirs, _, _) in enumerate(begun):
            obs, reward, terminated, truncated, info = theirs.step(actions[world])
            close(state.obs[world], obs, f"observation {k}")
            close(state.reward[world], reward, f"reward {k}")
            assert bool(state.terminated[world]) == terminated and not truncated
            for key, value in info.items():
                close(state.info[key][world], value, f"{key} {k}")
            ended += terminated
    if name in OPTIONS and "healthy_z_range" in OPTIONS[name] and options.get("terminate_when_unhealthy", True):
        assert ended, "no world was ever unhealthy"


@pytest.mark.parametrize("name", NAMES)
def test_task_equals_gymnasiums(name: str) -> None:
    compare(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_task_equals_gymnasiums_with_options(name: str) -> None:
    compare(name, **OPTIONS[name])


def test_episodes_start_as_gymnasiums_do() -> None:
    """In law: where targets and objects are, and how far the rest is from rest."""

    def starts(name: str) -> torch.Tensor:
        env = envs.make(f"{name}-v5", dtype=DOUBLE)
        state = torch.vmap(envs.reset, in_dims=(None, 0))(env, random.split(random.key(0), 2000))
        return torch.cat([state.data.qpos - env.task.rest.qpos * (name != "Reacher"), state.data.qvel], dim=1)

    target = starts("Reacher")[:, 2:4].norm(dim=1)
    assert target.max() < 0.2 and abs((target < 0.1).double().mean() - 0.25) < 0.04
    pusher = starts("Pusher")
    thing = pusher[:, 7:9]
    assert thing.norm(dim=1).min() > 0.17 and thing[:, 0].min() < -0.29 and thing[:, 1].abs().max() > 0.19
    assert (pusher[:, 9:11] == 0).all() and (pusher[:, -4:] == 0).all() and (pusher[:, :7] == 0).all()
    assert 0.0049 < pusher[:, 11:18].abs().max() < 0.005
    cheetah = starts("HalfCheetah")
    assert 0.099 < cheetah[:, :9].abs().max() < 0.1 and abs(cheetah[:, 9:].std() - 0.1) < 0.003
    hopper = starts("Hopper")
    assert 0.0049 < hopper[:, 6:].abs().max() < 0.005


def test_make_puts_limits_and_resets_around() -> None:
    assert envs.names()[: len(TASKS)] == tuple(f"{name}-v5" for name in sorted(TASKS))
    for name in ("Reacher", "Pusher", "Swimmer"):
        env = envs.make(f"{name}-v5", mode="same_step", frame_skip=3)
        limit = gymnasium.spec(f"{name}-v5").max_episode_steps
        assert env.mode == "same_step" and env.env.env.limit == limit and env.task.frame_skip == 3
    assert envs.make("Reacher-v5", limit=7).env.env.limit == 7
