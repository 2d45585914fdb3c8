"""What short rollouts show of a model is kept on disk: looked up where nothing has changed, else found anew."""

import functools
import itertools
import json
from pathlib import Path

import mujoco
import pytest
from reference import load

from mjtorch.compiler.cache import store
from mjtorch.model import put_model
from mjtorch.model.plan import contact_capacity

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
    monkeypatch.setattr(mujoco, "mj_forward", None)
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
    forward, steps = mujoco.mj_forward, itertools.count()

    def counted(mj_model: mujoco.MjModel, mj_data: mujoco.MjData) -> None:
        next(steps)
        forward(mj_model, mj_data)

    monkeypatch.setattr(mujoco, "mj_forward", counted)
    early, few = slots(load(model)), next(steps)
    monkeypatch.setattr(contact_capacity.Observed, "is_enough", lambda seen, most: False)
    monkeypatch.setenv(store.DIRECTORY, str(tmp_path / "another"))
    assert slots(load(model)) == early
    assert next(steps) > 10 * few


def test_the_solver_does_not_matter(folder: Path) -> None:
    """Nor what is measured: one rollout serves them all."""
    first = slots(load("collection/humanoid"))
    for options in ({"solver": 0, "iterations": 3}, {"tolerance": 1e-14, "jacobian": 0}, {"noslip_iterations": 2}):
        assert slots(load("collection/humanoid", **options)) == first
    assert len(kept(folder)) == 1
