"""What short rollouts show of a model is kept on disk: looked up where nothing has changed, else found anew."""

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from reference import load

from mjtorch.compiler.cache import store
from mjtorch.model import put_model
from mjtorch.model.plan import contact_capacity
from mjtorch.model.plan.contact_capacity import SOLVING

MODEL = "feature/contacts"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    path = tmp_path / "cache"
    monkeypatch.setenv(store.DIRECTORY, str(path))
    return path


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.contacts"))


def slots(mj_model: mujoco.MjModel) -> tuple[int, ...]:
    return put_model(mj_model).plan.collision.contact_dim


def test_the_second_model_is_not_simulated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = slots(load(MODEL))
    assert len(kept(folder)) == 1
    monkeypatch.setattr(mujoco, "mj_forwardSkip", None)
    assert slots(load(MODEL)) == first
    with pytest.raises(TypeError):
        slots(load("collection/humanoid"))


@pytest.mark.parametrize("what", ["the model", "a constant", "a function", "the pairs"])
def test_what_changes_the_rollouts_changes_the_address(
    what: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mj_model = load(MODEL)
    slots(mj_model)
    if what == "the model":
        mj_model.geom_size[1] *= 1.5
    elif what == "a constant":
        monkeypatch.setattr(contact_capacity, "EPISODES", 2)
    elif what == "a function":
        same = functools.partial(contact_capacity._place_anywhere)
        monkeypatch.setattr(contact_capacity, "_place_anywhere", same)
    else:
        monkeypatch.setattr(contact_capacity, "FEW", 11)
        mj_model.geom_contype[1] = mj_model.geom_conaffinity[1] = 0
    slots(mj_model)
    assert len(kept(folder)) == 2


@pytest.mark.parametrize("text", ["", "[]", "[[1], [1]]", "[[-1, -1, -1], [0, 0, 0]]", '["a", {}]'])
def test_what_makes_no_sense_is_found_anew(text: str, folder: Path) -> None:
    first = slots(load(MODEL))
    (path,) = kept(folder)
    right = json.loads(path.read_text())
    path.write_text(text)
    seal = path.with_name(path.name + ".json")
    seal.write_text(json.dumps({**json.loads(seal.read_text()), "size": len(text), "sha256": store.digest(path)}))
    assert slots(load(MODEL)) == first
    assert json.loads(path.read_text()) == right


@pytest.mark.parametrize("place", ["/dev/null/cache", "~nobody-of-that-name/cache"])
def test_it_goes_without_a_cache(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = slots(load(MODEL))
    monkeypatch.setenv(store.DIRECTORY, place)
    assert slots(load(MODEL)) == first


@pytest.mark.parametrize("model", ["feature/contacts", "gym/walker2d_v5", "feature/puddings"])
def test_rollouts_end_when_more_would_change_nothing(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, steps = mujoco.mj_forwardSkip, itertools.count()

    def counted(*args: Any) -> None:
        next(steps)
        forward(*args)

    monkeypatch.setattr(mujoco, "mj_forwardSkip", counted)
    early, few = slots(load(model)), next(steps)
    monkeypatch.setattr(contact_capacity.Observed, "is_enough", lambda seen, most: False)
    monkeypatch.setenv(store.DIRECTORY, str(tmp_path / "another"))
    assert slots(load(model)) == early
    assert next(steps) > 10 * few


def test_rollouts_end_when_the_solver_has_worked_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> list[int]:
        moving = (moment.step for moment in contact_capacity.states(load("collection/humanoid")) if not moment.is_pose)
        ends = [step for step, after in itertools.pairwise((*moving, 0)) if not after]
        return ends[: contact_capacity.EPISODES]

    all_of_them = steps()
    monkeypatch.setattr(contact_capacity, "SOLVED_BY_OTHERS", 1.0)
    first, *others = steps()
    assert first == all_of_them[0]
    assert max(others) < min(all_of_them)


def test_what_is_put_into_each_other_by_noise_is_seen() -> None:
    """A gripper that is closed at the start, as environments reset it: in some starts a finger is on the other side."""
    finger = '<body pos="0 {0} 0"><joint type="slide" axis="0 {1} 0" range=".02 .05"/>{2}</body>'
    pads = "".join(f'<geom type="box" size=".004 .004 .004" pos="{0.008 * k} {{0}} 0"/>' for k in range(6))
    left, right = (finger.format(0.0, sign, pads.format(0.0101 * sign)) for sign in (1, -1))
    arm = f'<body><joint axis="0 0 1"/><geom size=".001" mass="1" contype="0" conaffinity="0"/>{left}{right}</body>'
    mj_model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{arm}</worldbody></mujoco>")
    starts = [m for m in contact_capacity.states(mj_model) if not m.step and m.at_start and not m.is_pose]
    away = [abs(m.data.qpos[1:]).max() for m in starts]
    assert sum(0 < x < 5 * contact_capacity.NOISE for x in away) >= contact_capacity.NEAR
    data, most = mujoco.MjData(mj_model), 0
    for x in np.random.default_rng(0).normal(0.0, contact_capacity.NOISE, (100, 3)):
        data.qpos[:] = x
        mujoco.mj_forward(mj_model, data)
        most = max(most, data.ncon)
    assert 12 < most <= sum(dim > 0 for dim in slots(mj_model)) < 6 * 6 * 8


def test_a_model_that_is_solved_as_by_default_is_not_copied() -> None:
    """A copy of meshes takes much memory."""
    mj_model = load("collection/humanoid", **{name: getattr(mujoco.MjOption(), name) for name in SOLVING})
    assert contact_capacity._plain(mj_model) is mj_model
    mj_model.opt.iterations = 3
    assert contact_capacity._plain(mj_model) is not mj_model
    assert mj_model.opt.iterations == 3


def test_the_solver_does_not_matter(folder: Path) -> None:
    """Nor what is measured: one rollout serves them all."""
    first = slots(load("collection/humanoid"))
    for options in ({"solver": 0, "iterations": 3}, {"tolerance": 1e-14, "jacobian": 0}, {"noslip_iterations": 2}):
        assert slots(load("collection/humanoid", **options)) == first
    assert len(kept(folder)) == 1


# Boxes on slides, whose limits let them all be in each other.
HEAP = "".join(
    f"""<body pos="0 0 {0.1 + 0.3 * k}"><geom type="box" size=".1 .1 .1"/>
      <joint type="slide" axis="0 0 1" limited="true" range="{-0.3 * k - 0.01} 0"/></body>"""
    for k in range(12)
)


@pytest.mark.parametrize("kilobytes", [40, 100])
def test_states_that_need_more_memory_than_there_is_are_left_out(kilobytes: int) -> None:
    """MuJoCo steps such a model, until so many boxes are in each other."""
    mj_model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><size memory="{kilobytes}K"/><worldbody><geom type="plane" size="1 1 1"/>{HEAP}</worldbody>
        </mujoco>"""
    )
    mujoco.mj_step(mj_model, mujoco.MjData(mj_model))
    assert sum(slots(mj_model)) > 0


def test_flexes_go_where_joints_are_put() -> None:
    mj_model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><geom size=".1" pos="0 0 9"/><body name="hand" pos="1 2 3">
          <joint type="slide" limited="true" range="0 1"/><geom size=".1" pos="2 0 0"/>
          <flexcomp name="cloth" type="grid" dim="2" count="4 4 1" spacing=".1 .1 .1" radius=".01" mass="1">
            <pin id="0 1"/></flexcomp></body></worldbody></mujoco>"""
    )
    poses = 0
    for data, *_, is_pose in contact_capacity.states(mj_model):
        if is_pose:
            poses += 1
            center = data.flexvert_xpos.mean(axis=0) - data.xpos[1]
            assert abs(center).max() < 1e-9
    assert poses
