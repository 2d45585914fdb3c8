"""Learning: gradients through steps, settings, runs that learn, are saved and go on."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from envs.slider import slider

from mjtorch import envs, tree

pytest.importorskip("rsl_rl")

from mjtorch import learn
from mjtorch.cli import main
from mjtorch.envs.adapters.worlds import Worlds
from mjtorch.learn.experience import Experience, learnable
from mjtorch.learn.through import Through

# rsl_rl's own
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lazy_importer.*")

SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"worlds": 16, "horizon": 8, "minibatches": 2, "hidden": (16,)},
    "shac": {"worlds": 16, "horizon": 8, "hidden": (16,), "actor_rate": 3e-3},
}


def limited(limit: int = 20, **parameters: Any) -> envs.AutoReset:
    task = slider(**parameters)
    return envs.AutoReset(env=envs.EpisodeStatistics(env=envs.TimeLimit(env=task, limit=limit)), mode="same_step")


def small(method: str, seed: int = 0, **parameters: Any) -> learn.Run:
    return learn.Run(limited(**parameters), method, seed=seed, threads=1, settings=SMALL[method])


def numbers(run: learn.Run) -> list[torch.Tensor]:
    """All that a run remembers."""
    state = tree.leaves({"learner": run.learner.state_dict(), "experience": run.experience.state_dict()})
    return [x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in state if not isinstance(x, str)]


def test_steps_are_differentiable_through_resets() -> None:
    """Against differences of what a sum of rewards and last observations is, over steps and ends of episodes."""
    worlds = Worlds(learnable(limited(limit=3)), 4)
    state = worlds.reset(0)
    through = Through(worlds, limit=1e6)
    actions = (0.5 * torch.randn(5, 4, 1, dtype=torch.float64)).requires_grad_()

    def total(actions: torch.Tensor) -> torch.Tensor:
        now, found = state, torch.zeros(4, dtype=torch.float64)
        for action in actions:
            now = through.step(now, action)
            found = found + now.reward + now.info["final_obs"].square().sum(-1) + now.obs.sum(-1)
        return found.sum()

    (gradient,) = torch.autograd.grad(total(actions), actions)
    with torch.no_grad():
        for k in range(5):
            change = torch.zeros_like(actions)
            change[k, :, 0] = 1e-4
            wanted = (total(actions + change) - total(actions - change)) / 2e-4
            torch.testing.assert_close(gradient[k].sum(), wanted, rtol=1e-6, atol=1e-6)


def test_derivatives_are_cut_for_each_world() -> None:
    worlds = Worlds(learnable(limited()), 3)
    state, through = worlds.reset(0), Through(worlds, limit=1.0)
    state = state.replace(data=state.data.replace(qpos=torch.tensor([[0.1], [0.2], [float("nan")]]).double()))
    action = torch.zeros(3, 1, dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1e-6, 1e6, 1.0], dtype=torch.float64)
    # the second world's is cut to the limit, the third has none
    data = state.data.replace(qpos=state.data.qpos.requires_grad_())
    new = through.step(state.replace(data=data), action)
    found = torch.autograd.grad((weights * new.obs.sum(-1)).sum(), (action, data.qpos))
    norm = torch.cat(found, dim=1).norm(dim=1)
    assert 0 < norm[0] < 1e-5 and 0.5 < norm[1] <= 1.0 + 1e-9 and norm[2] == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", SMALL)
def test_learns_to_stay_near_the_middle(method: str) -> None:
    run = small(method, limit=40)
    before = learn.evaluate(run)
    *_, last = learn.train(run, 50 * 128)
    after = learn.evaluate(run)
    assert last.steps == run.steps == 50 * 128 and last.scalars["episode/diverged"] == 0
    assert after.returns.mean() > before.returns.mean() + 1, (before.returns, after.returns)
    assert after.qpos.shape == (40, 1) and (after.time.diff() > 0).all()


@pytest.mark.slow
def test_learns_to_run() -> None:
    """With the task's settings; actions that begin wide, a third of them beyond the range, come to 250 here."""
    run = learn.Run("HalfCheetah-v5", seed=0, threads=1)
    *_, last = learn.train(run, 700_000)
    assert last.scalars["episode/return"] > 1000 and learn.evaluate(run).returns.mean() > 1500


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mjlab") is None, reason="pip install --no-deps mjlab")
def test_learns_to_lift_its_feet() -> None:
    """The beginning of a walk: it turns as it is told, and steps; to stand costs 1.5 a second, and is 0.5 rad/s off."""
    run = learn.Run("go1-flat", seed=0, threads=1)
    *_, last = learn.train(run, 600_000)
    info, task = run.experience.state.info, run.env.task
    assert last.scalars["episode/length"] > 400 and last.scalars["episode/diverged"] == 0
    assert info["error_turn"].mean() < 0.4 and info["reward_gait"].mean() / task.dt > -1.1


@pytest.mark.parametrize("method", ["ppo", pytest.param("shac", marks=pytest.mark.slow)])
def test_a_resumed_run_is_the_run(method: str, tmp_path: Path) -> None:
    """To the last bit, weights, optimizers, worlds and random numbers included; nor does it touch torch's own."""
    whole = small(method)
    untouched = torch.get_rng_state()
    list(learn.train(whole, 6 * 128))
    assert torch.equal(torch.get_rng_state(), untouched)
    list(learn.train(small(method), 3 * 128, tmp_path))
    resumed = learn.Run.load(tmp_path / "checkpoint.pt", task=limited(), threads=1)
    assert resumed.steps == 3 * 128
    list(learn.train(resumed, 6 * 128))
    for x, y in zip(numbers(whole), numbers(resumed), strict=True):
        assert torch.equal(x, y)
    other = small(method, seed=1)
    assert not torch.equal(other.experience.state.obs, small(method).experience.state.obs)


def test_episodes_are_counted_whole() -> None:
    """Worlds begin anywhere in an episode; the first one of each is not counted."""
    experience = Experience(learnable(limited(limit=5, edge=1e3)), 8, discount=0.9, seed=0)
    assert len(set(experience.state.memory["elapsed"].tolist())) > 1
    rewards = [experience.step(torch.zeros(8, 1)).reward for _ in range(14)]
    assert set(experience.lengths) == {5.0} and 8 <= len(experience.returns) <= 16
    assert max(experience.returns) <= 5 and experience.steps == 14 * 8
    assert torch.isclose(experience.scale, experience.moments.var.rsqrt()) and torch.stack(rewards).std() > 0


def test_what_a_policy_is_worth_is_of_whole_episodes() -> None:
    """Whatever the task reports is averaged over the steps of its episode, and no more of them."""
    run = small("ppo", limit=7)
    found = learn.evaluate(run, worlds=3)
    assert found.lengths.tolist() == [7, 7, 7] and set(found.means) == {"x"} and found.qpos.shape == (7, 1)
    worlds = Worlds(run.env, 3)
    state, seen, total = worlds.reset(1), [], torch.zeros(3).double()
    for _ in range(7):
        state = worlds.step(run.policy(state.obs))
        seen.append(state.info["x"])
        total += state.reward
    torch.testing.assert_close(found.means["x"], torch.stack(seen).mean(0))
    torch.testing.assert_close(found.returns, total)


def test_writes_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = small("ppo")
    list(learn.train(run, 2 * 128, tmp_path))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("loss/value")] == [128, 256]


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: learn.settings("sac", "Ant-v5"), ValueError, "method must be one of ppo, shac, got 'sac'"),
        (lambda: learn.settings("ppo", "Ant-v5", {"horizons": 3}), TypeError, "no setting 'horizons'; did you mean"),
        (lambda: learn.Run("Aunt-v5"), ValueError, "no environment 'Aunt-v5'; did you mean Ant-v5"),
        (lambda: learn.Run(slider()), ValueError, "begin again in the same step"),
        (lambda: learn.Run(limited(), device="cpu"), TypeError, "parameters are for tasks by name, got device"),
        (lambda: learn.Run(envs.AutoReset(env=slider(), mode="same_step")), ValueError, "put a TimeLimit around"),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    run = small("ppo")
    list(learn.train(run, 128, tmp_path))
    with torch.no_grad():
        run.learner.algorithm.critic.mlp[-1].bias.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="returns are not finite"):
        list(learn.train(run, 256, tmp_path))
    assert learn.Run.load(tmp_path / "checkpoint.pt", task=limited()).steps == 128


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Learn, resume, and what is said when something is wrong."""
    monkeypatch.setenv("MUJOCO_GL", "none")
    few = ["--set", "minibatches=2", "--set", "hidden=8", "--worlds", "8", "--threads", "1"]
    command = ["train", "InvertedPendulum-v5", "--output", str(tmp_path)]
    assert main([*command, *few, "--steps", "128"]) == 0
    out = capsys.readouterr().out
    assert "InvertedPendulum-v5: ppo, 8 worlds" in out and "return: " in out and (tmp_path / "episode.png").is_file()
    assert main([*command, "--resume", "--steps", "256", "--no-picture"]) == 0
    assert "resumed after 128 steps" in capsys.readouterr().out
    for more, message in (
        (["--resume", *few], "leave out --set and --worlds"),
        (["--resume", "--method", "shac"], "is of InvertedPendulum-v5 by ppo"),
        (["--resume", "--output", str(tmp_path / "no")], "there is no"),
        (["--set", "hidden=many"], "--set takes NAME=NUMBER"),
        (["--set", "fast=1"], "ppo has no setting 'fast'"),
        (["--device", "abacus"], "abacus"),
    ):
        assert main([*command, *more]) == 2
        assert message in capsys.readouterr().err
