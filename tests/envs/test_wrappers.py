"""What each wrapper does."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from envs.slider import DOUBLE, slider
from torch import Tensor

import mjtorch
from mjtorch import envs, random, tree

reset = torch.vmap(envs.reset, in_dims=(None, 0))
step = torch.vmap(envs.step, in_dims=(None, 0, 0))


def begin(env: envs.Env, worlds: int = 3, seed: int = 0) -> envs.State:
    return reset(env, random.split(random.key(seed), worlds))


def push(*forces: float) -> Tensor:
    return torch.tensor(forces, dtype=DOUBLE)[:, None]


def test_a_task_is_its_physics() -> None:
    task = slider()
    state = begin(task, 1)
    assert state.reward == 0 and not state.done and state.info == {"x": 0, "diverged": False}
    new = step(task, state, push(3.0))
    m, d = task.m, tree.map(lambda x: x[0], state.data)
    for _ in range(2):
        d = mjtorch.step(m, d.replace(ctrl=push(3.0)[0]))
    assert torch.equal(new.obs[0], torch.cat([d.qpos, d.qvel])) and new.data.time == 0.1
    assert new.reward == 1 - d.qpos[0] ** 2
    assert torch.equal(begin(task, 1).obs, state.obs) and not torch.equal(begin(task, 1, 1).obs, state.obs)


def test_parameters_are_tensors_that_may_change() -> None:
    task = slider(edge=0.7)
    assert isinstance(task.edge, Tensor) and task.edge.dtype == DOUBLE
    near = task.replace(edge=torch.tensor(0.0, dtype=DOUBLE))
    assert step(near, begin(near), push(0, 0, 0)).terminated.all()


def test_numbers_become_tensors() -> None:
    env = envs.with_tensors(envs.TimeLimit(env=envs.RescaleAction(env=slider(), low=0.0), limit=3))
    assert all(isinstance(x, Tensor) for x in tree.leaves(env))
    assert env.limit.dtype == torch.int64 and env.env.low.dtype == DOUBLE


def test_observations_are_off_by_so_much() -> None:
    """Velocities anew each step, positions by the same in all of an episode."""
    off, offset = torch.tensor([0.0, 0.5], dtype=DOUBLE), torch.tensor([0.25, 0.0], dtype=DOUBLE)
    env = envs.AutoReset(env=envs.TimeLimit(env=envs.ObservationNoise(env=slider(), scale=off, offset=offset), limit=3))
    state, found = begin(env, 50), []
    for _ in range(5):
        found.append(state.obs - torch.vmap(env.task.observe)(state.data))
        state = step(env, state, torch.zeros(50, 1))
    error = torch.stack(found)
    position, speed = error.unbind(-1)
    assert torch.allclose(position[:4], position[0]) and (position[4] - position[0]).abs().mean() > 0.05
    assert 0.2 < position[0].abs().max() <= 0.25 and position[0].min() < -0.15
    assert 0.45 < speed.abs().max() <= 0.5 and (speed[1:] != speed[:-1]).all() and speed.mean().abs() < 0.1
    with pytest.raises(ValueError, match=r"ObservationNoise: scale must have shape \(\) or \(2,\), got \(3,\)"):
        envs.ObservationNoise(env=slider(), scale=torch.zeros(3)).reset(random.key(0))


def test_what_is_not_finite_ends_and_is_counted() -> None:
    env = envs.AutoReset(env=envs.EpisodeStatistics(env=slider()))
    state = step(env, begin(env), push(1, 1, 1))
    wild = state.data.qvel.clone()
    wild[1] = math.nan
    wild[2] = 1e30
    before = state
    state = step(env, state.replace(data=state.data.replace(qvel=wild)), push(1, 1, 1))
    assert state.truncated.tolist() == [False, True, True] and not state.terminated.any()
    assert state.info["diverged"].tolist() == [False, True, True]
    assert torch.equal(state.obs[1:], before.obs[1:]) and not torch.equal(state.obs[0], before.obs[0])
    assert (state.reward[1:] == 0).all() and all(x.isfinite().all() for x in tree.leaves(state.info))
    for _ in range(2):
        state = step(env, state, push(1, 1, 1))
        assert state.obs.isfinite().all() and state.data.qpos.isfinite().all() and not state.done.any()
    assert state.memory["diverged"].tolist() == [0, 1, 1]
    assert state.info["episode_length"].tolist() == [4, 1, 1]


def limited(mode: Any) -> envs.Env:
    return envs.AutoReset(env=envs.EpisodeStatistics(env=envs.TimeLimit(env=slider(edge=9.0), limit=3)), mode=mode)


def test_episodes_end_by_time_and_by_themselves() -> None:
    env = envs.TimeLimit(env=slider(), limit=4)
    state = begin(env)
    state = state.replace(data=state.data.replace(qpos=push(0.0, 0.99, 0.0), qvel=push(0.0, 1.0, 0.0)))
    ends = []
    for _ in range(4):
        state = step(env, state, push(0, 0, 0))
        ends.append((state.terminated.tolist(), state.truncated.tolist()))
    assert ends[0] == ([False, True, False], [False] * 3)
    assert ends[3][1] == [True] * 3


def test_next_step_resets_ignore_the_action() -> None:
    env = limited("next_step")
    state = begin(env, 1)
    seen = []
    for _ in range(8):
        before, state = state, step(env, state, push(1.0))
        seen.append((int(state.info["episode_length"]), bool(state.done), float(state.data.time)))
        if before.done:
            assert state.reward == 0 and state.info["x"] == 0 and abs(state.obs[0, 1]) == 0
    assert [s[:2] for s in seen] == [(1, 0), (2, 0), (3, 1), (0, 0), (1, 0), (2, 0), (3, 1), (0, 0)]
    assert seen[3][2] == 0


def test_same_step_resets_show_the_last_observation_in_the_info() -> None:
    env, plain = limited("same_step"), limited("disabled")
    state, other = begin(env, 2), begin(plain, 2)
    for k in range(3):
        state, other = (step(e, s, push(1.0, -2.0)) for e, s in ((env, state), (plain, other)))
        assert torch.equal(state.info["final_obs"], other.obs)
        assert torch.equal(state.reward, other.reward) and torch.equal(state.done, other.done)
        assert torch.equal(state.info["episode_return"], other.info["episode_return"])
        assert torch.equal(state.obs, other.obs) == (k < 2)
    assert state.done.all() and (state.data.time == 0).all() and not torch.equal(state.obs[0], begin(env, 2).obs[0])
    state = step(env, state, push(0, 0))
    assert (state.info["episode_length"] == 1).all() and not state.done.any()


def test_worlds_that_are_told_to_begin_again_do() -> None:
    env = limited("disabled")
    state = begin(env)
    for _ in range(4):
        state = step(env, state, push(1, 1, 1))
    assert state.truncated.all() and (state.info["episode_length"] == 4).all()
    state = state.replace(memory={**state.memory, "diverged": torch.tensor([2, 3, 4])})
    mask = torch.tensor([True, False, True])
    new = torch.vmap(envs.reset_where, in_dims=(None, 0, 0))(env, state, mask)
    assert new.data.time.tolist() == [0, state.data.time[1], 0] and torch.equal(new.obs[1], state.obs[1])
    assert new.memory["elapsed"].tolist() == [0, 4, 0] and new.done.tolist() == [False, True, False]
    assert new.memory["diverged"].tolist() == [2, 3, 4]


def test_actions_are_scaled_and_clipped() -> None:
    task = slider()
    state = begin(task)
    wanted = step(task, state, push(-4.0, 2.0, 4.0)).obs
    assert torch.equal(step(envs.RescaleAction(env=task), state, push(-1.0, 0.5, 1.0)).obs, wanted)
    other = envs.RescaleAction(env=task, low=0.0, high=2.0)
    assert torch.equal(step(other, state, push(0.0, 1.5, 2.0)).obs, wanted)
    assert other.action_range[1].tolist() == [2.0] and other.action_range[0].tolist() == [0.0]
    clipped = envs.ClipAction(env=envs.RescaleAction(env=task))
    assert torch.equal(step(clipped, state, push(-7.0, 0.5, 3.0)).obs, wanted)
    assert torch.equal(step(task, state, push(-4.0, 2.0, 4.0).float()).obs, wanted)


def test_actions_are_noisy() -> None:
    env = envs.ActionNoise(env=slider(), scale=0.5)
    state = begin(env, 2000)
    ctrl = step(env, state, torch.zeros(2000, 1)).data.ctrl
    assert abs(ctrl.std() - 0.5) < 0.03 and abs(ctrl.mean()) < 0.04
    again = step(env, step(env, state, torch.zeros(2000, 1)), torch.zeros(2000, 1)).data.ctrl
    assert abs(torch.corrcoef(torch.cat([ctrl, again], 1).T)[0, 1]) < 0.1


def test_actions_arrive_late() -> None:
    env = envs.ActionDelay(env=slider(), least=1, most=3)
    state = begin(env, 30)
    late = state.memory["delay"][0]
    assert set(late.tolist()) == {1, 2, 3}
    for k in range(6):
        state = step(env, state, torch.full((30, 1), 1.0 + k))
        assert torch.equal(state.data.ctrl[:, 0], (k + 1.0 - late).clamp(min=0).to(DOUBLE))
    still = envs.ActionDelay(env=slider(), least=0, most=0)
    assert (step(still, begin(still), push(1, 2, 3)).data.ctrl == push(1, 2, 3)).all()


def test_observations_and_rewards_are_normalized() -> None:
    inner = envs.TimeLimit(env=slider(), limit=50)
    moments = envs.Moments.like(torch.zeros(2, dtype=DOUBLE))
    env = envs.NormalizeObservation(env=inner, moments=moments)
    env = envs.NormalizeReward(env=env, moments=envs.Moments.like(torch.zeros((), dtype=DOUBLE)), discount=0.9)
    state = begin(env, 20)
    raw, sums, total = [], [], torch.zeros(20, dtype=DOUBLE)
    for k in range(5):
        bare = step(inner, state, torch.zeros(20, 1))
        state = step(env, state, torch.zeros(20, 1))
        total = 0.9 * total + bare.reward
        raw, sums = [*raw, bare.obs], [*sums, total]
        assert torch.equal(state.memory["raw_obs"], bare.obs)
        torch.testing.assert_close(state.memory["discounted"], total)
        torch.testing.assert_close(state.reward, bare.reward / (env.moments.var + 1e-8).sqrt())
        seen = env.env.moments.seen(state.memory["raw_obs"])
        env = env.replace(env=env.env.replace(moments=seen), moments=env.moments.seen(total))
        for m, values in ((seen, raw), (env.moments, sums)):
            torch.testing.assert_close(m.mean, torch.cat(values).mean(0))
            torch.testing.assert_close(m.var, torch.cat(values).var(0, correction=0))
            assert m.count == 20 * (k + 1)
    cut = env.env.replace(limit=0.1)
    assert step(cut, state, torch.zeros(20, 1)).obs.abs().max() == 0.1


def test_models_are_randomized() -> None:
    """Episodes have masses of their own, what follows from them, and move accordingly."""
    env = envs.RandomizeModel(env=slider(), draw=envs.Scaled({"body_mass": (0.5, 2.0), "opt.gravity": (1.0, 1.0)}))
    auto = envs.AutoReset(env=envs.TimeLimit(env=env, limit=2))
    state = begin(auto, 40)
    mass = state.memory["model"]["body_mass"][:, 1]
    assert (mass >= 1).all() and (mass <= 4).all() and mass.unique().numel() == 40
    torch.testing.assert_close(state.memory["model"]["body_subtreemass"][:, 1], mass)
    new = step(auto, state, torch.ones(40, 1))
    torch.testing.assert_close(new.obs[:, 1], 0.1 / mass)
    for _ in range(3):
        new = step(auto, new, torch.ones(40, 1))
    assert not torch.equal(new.memory["model"]["body_mass"], state.memory["model"]["body_mass"])


def heavier(key: Tensor, m: mjtorch.Model) -> mjtorch.Model:
    return m.replace(body_mass=m.body_mass + random.bernoulli(key).to(m.body_mass.dtype))


def test_models_are_randomized_by_any_function() -> None:
    env = envs.RandomizeModel(env=slider(), draw=heavier, derive=False)
    state = begin(env, 40)
    assert [*state.memory["model"]] == ["body_mass"]
    assert set(state.memory["model"]["body_mass"][:, 1].tolist()) == {2.0, 3.0}


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: envs.make("Aunt-v5"), "did you mean Ant-v5"),
        (lambda: envs.make("Ant-v5", healthy_rewards=1.0), "Ant has no parameter 'healthy_rewards'; it has contact"),
        (lambda: begin(limited("sometimes")), "mode must be one of next_step, same_step, disabled"),
        (lambda: step(slider(), begin(slider()), torch.zeros(3, 2)), r"an action has shape \(1,\), got \(2,\)"),
        (
            lambda: step(slider(), begin(slider()), torch.zeros(3, 1, dtype=torch.int64)),
            "tensor of floats, got torch.i",
        ),
        (lambda: begin(envs.ActionDelay(env=slider(), least=2, most=1)), "least must not be above most, got 2 and 1"),
        (
            lambda: begin(envs.RandomizeModel(env=slider(), draw=envs.Scaled({"mass": (1, 2)}))),
            "the model has no numbers 'mass'",
        ),
    ],
)
def test_errors_say_what_to_do(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()
