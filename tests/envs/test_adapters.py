"""Environments as the libraries that learn in them see them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from envs.slider import XML, slider
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from mjtorch import envs
from mjtorch.envs.adapters.gymnasium import SingleEnv, VectorEnv, make_vec
from mjtorch.envs.adapters.pictures import Pictures
from mjtorch.envs.adapters.worlds import Worlds
from mjtorch.render import picture

MODES = {"next_step": "NextStep", "same_step": "SameStep", "disabled": "Disabled"}


def limited(mode: Any = "next_step", limit: int = 5) -> envs.AutoReset:
    return envs.AutoReset(env=envs.EpisodeStatistics(env=envs.TimeLimit(env=slider(), limit=limit)), mode=mode)


def eager(mode: Any = "next_step", worlds: int = 3, **options: Any) -> VectorEnv:
    return VectorEnv(limited(mode), worlds, backend="eager", **options)


class Alone(SingleEnv):
    """One world that is truncated by itself, as Gymnasium's vector environments take them."""

    def __init__(self) -> None:
        super().__init__(envs.TimeLimit(env=slider(), limit=5), backend="eager")


# of the ranges of the spaces: a motor's, and none
@pytest.mark.filterwarnings("ignore:.*For Box action spaces, we recommend:UserWarning")
@pytest.mark.filterwarnings("ignore:.*Box observation space m.*imum value is:UserWarning")
def test_gymnasium_finds_nothing_wrong_with_one_world() -> None:
    check_env(Alone(), skip_render_check=True)


@pytest.mark.parametrize("mode", MODES)
def test_many_worlds_behave_as_gymnasiums_own(mode: str) -> None:
    """Shapes, dtypes, flags, resets and what is in the info, beside a `SyncVectorEnv` of single ones."""
    ours = eager(mode)
    theirs = gymnasium.vector.SyncVectorEnv([Alone] * 3, autoreset_mode=AutoresetMode(MODES[mode]))
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    ours.reset(seed=3), theirs.reset(seed=3)
    ours.action_space.seed(0)
    for k in range(12):
        # the same end in time, none by itself
        actions = 0.1 * ours.action_space.sample()
        found, wanted = ours.step(actions), theirs.step(actions)
        for x, y in zip(found[:4], wanted[:4], strict=True):
            assert type(x) is type(y) and x.dtype == y.dtype and x.shape == y.shape
        assert (found[2] == wanted[2]).all() and (found[3] == wanted[3]).all()
        done = found[2] | found[3]
        if mode == "same_step" and done.any():
            assert (found[4]["_final_obs"] == wanted[4]["_final_obs"]).all()
            last = np.stack(list(wanted[4]["final_obs"]))
            assert found[4]["final_obs"].shape == last.shape
            assert found[4]["final_info"]["x"].shape == wanted[4]["final_info"]["x"].shape
            assert (found[4]["final_info"]["x"] == found[4]["final_obs"][:, 0]).all()
            assert (found[0] != found[4]["final_obs"]).any()
        if mode == "disabled" and done.any():
            assert k == 4 or k == 9
            for env in (ours, theirs):
                obs, _ = env.reset(options={"reset_mask": done})
                assert obs.shape == (3, 2)
        assert {name for name in wanted[4] if name != "_final_info"} - set(found[4]) == set()


def test_seeds_decide() -> None:
    env = eager()
    first, _ = env.reset(seed=1)
    assert not (env.reset()[0] == first).all(), "no seed goes on"
    assert (env.reset(seed=1)[0] == first).all()
    each, _ = env.reset(seed=[5, 6, 5])
    assert (each[0] == each[2]).all() and not (each[0] == each[1]).all()
    other = eager()
    assert not (other.reset()[0] == eager().reset()[0]).all()


def test_tensors_stay_tensors() -> None:
    env = eager(output="torch")
    obs, _ = env.reset(seed=0)
    out = env.step(torch.zeros(3, 1))
    assert all(isinstance(x, torch.Tensor) for x in (obs, *out[:4], *out[4].values()))
    array, _ = eager().reset(seed=0)
    assert (torch.from_numpy(array) == obs).all()


def test_what_was_returned_stays_as_it_was() -> None:
    env = VectorEnv(limited(), 3)
    obs, _ = env.reset(seed=0)
    kept, copies = [obs], [obs.copy()]
    for _ in range(4):
        obs = env.step(np.ones((3, 1), dtype=np.float32))[0]
        kept, copies = [*kept, obs], [*copies, obs.copy()]
    assert all((x == y).all() for x, y in zip(kept, copies, strict=True)) and (kept[1] != kept[2]).any()


def test_registered() -> None:
    env = gymnasium.make_vec("mjtorch/Reacher-v5", num_envs=2, reward_dist_weight=2.0, backend="eager")
    assert env.num_envs == 2 and env.worlds.env.task.reward_dist_weight == 2
    assert env.worlds.env.env.env.limit == 50
    obs, _ = env.reset(seed=0)
    assert obs.shape == (2, 10) and obs.dtype == np.float32
    reward = env.step(env.action_space.sample())[1]
    assert reward.shape == (2,) and (reward < 0).all()
    alone = gymnasium.make("mjtorch/InvertedPendulum-v5", backend="eager")
    obs, _ = alone.reset(seed=0)
    assert alone.observation_space.contains(obs) and alone.step(alone.action_space.sample())[1] == 1.0


# Draws frames whose every number is ten times the position.
GREY = """
import struct, sys
print("ready", flush=True)
while sys.stdin.buffer.readline():
    (x,) = struct.unpack("d", sys.stdin.buffer.read(8))
    sys.stdout.buffer.write(bytes([int(100 + 10 * x)]) * 3 * int(sys.argv[2]) * int(sys.argv[3]))
    sys.stdout.buffer.flush()
"""


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pictures:
    """Of sliders, by a process that needs no OpenGL."""
    (tmp_path / "grey.py").write_text(GREY)
    monkeypatch.setattr(picture, "WORKER", tmp_path / "grey.py")
    return Pictures(mujoco.MjModel.from_xml_string(XML), size=(4, 6))


def grey(worlds: Worlds) -> list[int]:
    assert worlds.state is not None
    return (100 + 10 * worlds.state.data.qpos[:, 0]).int().tolist()


def test_gymnasium_renders(pictures: Pictures) -> None:
    env = eager(pictures=pictures)
    assert env.render_mode == "rgb_array" in env.metadata["render_modes"] and env.metadata["render_fps"] == 10
    with pytest.raises(ValueError, match="call reset before"):
        env.render()
    env.reset(seed=0)
    env.step(env.action_space.sample())
    frames = env.render()
    assert isinstance(frames, tuple) and [f.shape for f in frames] == [(4, 6, 3)] * 3
    assert [f[0, 0, 0] for f in frames] == grey(env.worlds)
    env.close()
    assert pictures.renderer is None
    alone = SingleEnv(slider(), backend="eager", pictures=pictures)
    alone.reset(seed=0)
    assert alone.render().shape == (4, 6, 3) and (alone.render() == grey(alone.worlds)[0]).all()
    alone.close()


def test_gymnasium_makes_what_renders() -> None:
    options: dict[str, Any] = {"render_mode": "rgb_array", "width": 6, "height": 4, "backend": "eager"}
    env = gymnasium.make_vec("mjtorch/InvertedPendulum-v5", num_envs=2, **options)
    assert env.render_mode == "rgb_array" and env.pictures.size == (4, 6)
    assert env.pictures.mj_model.nq == 2
    assert gymnasium.make("mjtorch/InvertedPendulum-v5", **options).render_mode == "rgb_array"
    assert eager().render_mode is None


def test_stable_baselines3(pictures: Pictures) -> None:
    """Its checker of vector environments, ends and their infos, and an algorithm that learns a little."""
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from mjtorch.envs.adapters.stable_baselines3 import VecEnv

    env = VecEnv(limited("same_step"), 3, backend="eager", pictures=pictures)
    env.seed(4)
    obs = env.reset()
    assert [f[0, 0, 0] for f in env.get_images()] == grey(env.worlds) and env.render().shape == (8, 12, 3)
    env.close()
    assert obs.shape == (3, 2)
    for k in range(11):
        obs, reward, done, infos = env.step(np.zeros((3, 1), dtype=np.float32))
        assert obs.shape == (3, 2) and reward.shape == done.shape == (3,) and done.all() == (k % 5 == 4)
        assert all(bool(info) == done.all() for info in infos)
        if done.all():
            assert infos[0]["TimeLimit.truncated"] and infos[0]["episode"]["l"] == 5
            assert not (infos[0]["terminal_observation"] == obs[0]).all()
    stable_baselines3.PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1).learn(24)
    with pytest.raises(ValueError, match="to begin again in the same step"):
        VecEnv(limited("disabled"), 3)


def test_rsl_rl(pictures: Pictures) -> None:
    pytest.importorskip("rsl_rl")
    from mjtorch.envs.adapters.rsl_rl import VecEnv

    env = VecEnv(limited("same_step"), 3, backend="eager", pictures=pictures)
    assert env.render()[:, 0, 0, 0].tolist() == grey(env.worlds)
    assert (env.num_envs, env.num_actions, env.max_episode_length) == (3, 1, 5)
    assert env.get_observations()["policy"].shape == (3, 2)
    env.episode_length_buf = torch.tensor([0, 2, 4])
    over = []
    for _ in range(5):
        obs, reward, done, extras = env.step(torch.zeros(3, 1))
        assert obs["policy"].dtype == reward.dtype == torch.float32
        assert torch.equal(extras["time_outs"], done.bool())
        over.append(done.tolist())
    assert over == [[0, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match="to begin again in the same step"):
        VecEnv(limited(), 3)
    with pytest.raises(ValueError, match="put a TimeLimit next to"):
        VecEnv(envs.AutoReset(env=slider(), mode="same_step"), 3)


@pytest.mark.filterwarnings("ignore")
def test_torchrl(pictures: Pictures) -> None:
    """Its checker, and a rollout through ends of episodes."""
    pytest.importorskip("torchrl")
    from torchrl.envs.utils import check_env_specs

    from mjtorch.envs.adapters.torchrl import WorldsEnv

    env = WorldsEnv(limited("disabled"), 3, backend="eager", pictures=pictures)
    check_env_specs(env)
    assert env.render()[:, 0, 0, 0].tolist() == grey(env.worlds)
    env.set_seed(1)
    data = env.rollout(12, break_when_any_done=False)
    assert data.shape == (3, 12) and data["next", "done"][..., 0].sum(1).tolist() == [2, 2, 2]
    begun = data["observation"][:, 5]
    assert (begun[:, 1] == 0).all() and not torch.equal(begun, data["next", "observation"][:, 4])
    env.set_seed(1)
    assert torch.equal(env.reset()["observation"], data["observation"][:, 0])
    with pytest.raises(ValueError, match="TorchRL says itself"):
        WorldsEnv(limited(), 3)


def started() -> VectorEnv:
    env = eager()
    env.reset(seed=0)
    return env


def test_seeds_are_integers_of_any_kind() -> None:
    env = eager()
    for plain, numpy in ((7, np.int64(7)), ([3, 1, 2], np.array([3, 1, 2]))):
        first, second = (env.reset(seed=seed)[0] for seed in (plain, numpy))
        assert np.array_equal(first, second)


def over() -> Any:
    env = eager("disabled")
    env.reset(seed=0)
    for _ in range(6):
        env.step(np.zeros((3, 1)))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: eager().step(np.zeros((3, 1))), "call reset before"),
        (
            lambda: started().step(np.zeros((3, 2))),
            r"actions must have shape \(3, 1\), \(worlds, actuators\), got \(3, 2",
        ),
        (lambda: started().step(np.zeros((3, 1), dtype=int)), "actions must be floats"),
        (lambda: started().reset(seed=[1, 2]), "3 worlds need as many seeds, got 2"),
        (lambda: started().reset(seed=0.5), "seed must be an int, or one for each world, got 0.5"),
        (lambda: started().reset(options={"reset_mask": np.ones(2, dtype=bool)}), "a mask of worlds is bool of shape"),
        (lambda: Worlds(limited(), 0), "must be a positive int"),
        (lambda: VectorEnv(slider(), 3), "the outermost environment must be an AutoReset"),
        (lambda: eager(output="jax"), "output must be 'numpy' or 'torch'"),
        (lambda: make_vec("Ant-v5", 3, autoreset_mode="never"), "autoreset_mode must be one of next_step"),
        (lambda: make_vec("Hoper-v5", 3), "did you mean Hopper-v5"),
        (lambda: started().render(), 'made without render_mode="rgb_array"'),
        (lambda: make_vec("Hopper-v5", 3, render_mode="human"), 'render_mode must be None or "rgb_array"'),
        (over, "an episode is over; call reset"),
    ],
)
def test_errors_say_what_to_do(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_what_adapters_import_leaves_programs_warm() -> None:
    env = VectorEnv(limited(), 3)
    env.reset(seed=0)
    assert env.worlds._reset.why_cold == []
