"""The collection: every model loads, starts above the floor, stays sane in C, and is fully supported."""

import mujoco
import numpy as np
import pytest

import mjtorch
from mjtorch import models

NAMES = models.names()
SECONDS = 10.0
MAX_SPEED = 100.0  # [m/s, rad/s]


def start(mj_model: mujoco.MjModel) -> mujoco.MjData:
    mj_data = mujoco.MjData(mj_model)
    if mj_model.nkey:
        mujoco.mj_resetDataKeyframe(mj_model, mj_data, 0)
    mujoco.mj_forward(mj_model, mj_data)
    return mj_data


def test_names() -> None:
    assert NAMES == ("cartpole", "cheetah", "hopper", "humanoid", "pile", "quadruped", "walker")


@pytest.mark.parametrize("name", NAMES)
def test_is_called_what_its_file_is(name: str) -> None:
    assert f'<mujoco model="{name}">' in models.path(name).read_text()


@pytest.mark.parametrize("name", NAMES)
def test_starts_without_contact(name: str) -> None:
    mj_data = start(models.load(name))
    assert mj_data.ncon == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hold", [1, 40])
def test_stays_sane_in_c(name: str, hold: int) -> None:
    """Random controls, new every `hold` steps, for ten seconds: no warning, no explosion."""
    mj_model = models.load(name)
    mj_data = start(mj_model)
    rng = np.random.default_rng(0)
    fastest = 0.0
    for i in range(int(SECONDS / mj_model.opt.timestep)):
        if i % hold == 0:
            mj_data.ctrl[:] = rng.uniform(-1, 1, mj_model.nu)
        mujoco.mj_step(mj_model, mj_data)
        fastest = max(fastest, np.abs(mj_data.qvel).max())
    assert [w.number for w in mj_data.warning] == [0] * len(mj_data.warning)
    assert fastest < MAX_SPEED
    assert mj_data.time > 0.99 * SECONDS


@pytest.mark.parametrize("name", NAMES)
def test_is_supported(name: str) -> None:
    m = mjtorch.put_model(models.load(name))
    assert (m.plan.collision.ncon > 0) == (name != "cartpole")


def test_load_takes_paths(tmp_path) -> None:
    file = tmp_path / "model.xml"
    file.write_text('<mujoco><worldbody><geom size="1"/></worldbody></mujoco>')
    assert models.load(file).ngeom == models.load(str(file)).ngeom == 1
    binary = tmp_path / "model.mjb"
    mujoco.mj_saveModel(models.load(file), str(binary), None)
    assert models.load(binary).ngeom == 1


def test_load_says_what_is_wrong(tmp_path) -> None:
    with pytest.raises(ValueError, match="did you mean 'humanoid'"):
        models.load("humanid")
    with pytest.raises(FileNotFoundError, match=r"no file 'nowhere/model\.xml'"):
        models.load("nowhere/model.xml")
    for suffix in ("xml", "mjb"):
        broken = tmp_path / f"broken.{suffix}"
        broken.write_text("<mujoco><worldbody>")
        with pytest.raises(ValueError, match="not a model that MuJoCo can load"):
            models.load(broken)
