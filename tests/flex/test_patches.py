"""Elements of flexes of which not all pairs are listed: what patches find is what is found in the list of all pairs."""

import sys

import mujoco
import numpy as np
import pytest
import torch
from reference import SINCE_4

import mjtorch
from mjtorch import tree
from mjtorch.collision import collision
from mjtorch.constraint.order import c_order
from mjtorch.model import Data, Model, get_data, put_data, put_model

pytestmark = SINCE_4

FLEX = """<flexcomp name="{name}" type="grid" count="{count}" spacing=".05 .05 .05" mass=".2" radius=".01" dim="{dim}"
  pos="{pos}"><contact {contact}/><edge damping="1"/></flexcomp>"""
SCENE = """<mujoco><option {option}><flag override="{override}"/></option><worldbody>
  <body pos=".1 .05 -.06"><freejoint/><geom size=".05" condim="{condim}"/></body>{flexes}</worldbody></mujoco>"""
BY_DIM = {1: "8 1 1", 2: "5 4 1", 3: "3 3 2"}
SCENES = {
    "ropes": (1, 1, 'selfcollide="narrow"', 'selfcollide="none"', 3),
    "sheets": (2, 2, 'selfcollide="narrow" margin=".01" gap=".004"', 'selfcollide="narrow" margin=".003"', 3),
    "several condims": (2, 2, 'selfcollide="narrow" condim="1"', 'selfcollide="narrow" condim="4" priority="1"', 6),
    "solid and sheet": (3, 2, 'selfcollide="narrow"', 'selfcollide="none" margin=".01"', 4),
}


def scene(name: str, override: str = "disable") -> mujoco.MjModel:
    """Two flexes, the first of which may touch itself, and a ball that touches both."""
    first, second, own, others, condim = SCENES[name]
    flexes = FLEX.format(name="one", count=BY_DIM[first], dim=first, pos="0 0 0", contact=own)
    flexes += FLEX.format(name="two", count=BY_DIM[second], dim=second, pos=".02 .03 .02", contact=others)
    option = 'o_margin=".03"' if override == "enable" else ""
    return mujoco.MjModel.from_xml_string(SCENE.format(option=option, override=override, condim=condim, flexes=flexes))


def reference(mj_model: mujoco.MjModel, seed: int, scale: float = 0.03) -> mujoco.MjData:
    """C's contacts, the vertices somewhere near where they begin."""
    mj_data = mujoco.MjData(mj_model)
    mj_data.qpos[:] += scale * np.random.default_rng(seed).standard_normal(mj_model.nq)
    mujoco.mj_forward(mj_model, mj_data)
    return mj_data


def made(mj_model: mujoco.MjModel, monkeypatch: pytest.MonkeyPatch, listed: int, **how) -> Model:
    """The model, its pairs of elements being listed if they are no more than that."""
    monkeypatch.setattr("mjtorch.model.plan.colliders.LISTED", listed)
    m = put_model(mj_model, **{"dtype": torch.float64, "contact_capacity": 600} | how)
    assert bool(m.plan.collision.patches) == (listed == 0)
    return m


def found(m: Model, d: Data) -> dict[str, torch.Tensor]:
    """The contacts that there are, in C's order."""
    order = c_order(m, d)
    order = order[d.contact.detected[order]]
    names = [name for name in tree.tensor_fields(type(d.contact)) if name not in ("detected", "speculative")]
    return {name: getattr(d.contact, name)[order] for name in names}


@pytest.mark.parametrize(
    "name, override",
    [("ropes", "disable")]
    + [
        pytest.param(name, override, marks=pytest.mark.slow)
        for override in ("disable", "enable")
        for name in SCENES
        if (name, override) != ("ropes", "disable")
    ],
)
def test_patches_find_what_is_listed(name: str, override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mj_model = scene(name, override)
    room = 400 if name == "ropes" else 2500
    all_pairs, patched = (made(mj_model, monkeypatch, listed, contact_capacity=room) for listed in (10**6, 0))
    between = 0
    for seed in range(3):
        mj_data = reference(mj_model, seed)
        monkeypatch.setattr("mjtorch.model.plan.colliders.LISTED", 10**6)
        wanted = collision(all_pairs, put_data(mj_model, mj_data, model=all_pairs))
        there = get_data(mj_model, wanted)
        monkeypatch.setattr("mjtorch.model.plan.colliders.LISTED", 0)
        ours = collision(patched, put_data(mj_model, mj_data, model=patched))
        assert not ours.warning.any() and ours.ncon == wanted.ncon
        for field, x in found(all_pairs, wanted).items():
            assert torch.allclose(found(patched, ours)[field].double(), x.double(), rtol=0, atol=1e-12), field
        assert np.array_equal(get_data(mj_model, ours).contact.elem, there.contact.elem)
        between += int((wanted.contact.elem >= 0).all(1).sum())
    assert between > 3


def test_a_sheet_touches_itself_as_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    mj_model = scene("sheets")
    m = made(mj_model, monkeypatch, 0)
    for seed in range(2):
        mj_data = reference(mj_model, seed)
        d = collision(m, put_data(mj_model, mj_data, model=m))
        order = c_order(m, d)[: int(d.ncon)]
        assert np.array_equal(d.contact.elem[order].numpy(), mj_data.contact.elem)
        assert np.abs(d.contact.dist[order].numpy() - mj_data.contact.dist).max() < 1e-5


def test_what_finds_no_place_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    mj_model = scene("sheets")
    m = made(mj_model, monkeypatch, 0)
    d = put_data(mj_model, reference(mj_model, 0), model=m)
    (patches,), whole = m.plan.collision.patches, collision(m, d)
    for few in ({"patches": 2}, {"halves": 5}):
        families = tuple(family.replace(**few) for family in patches.families)
        plan = m.plan.collision.replace(patches=(patches.replace(families=families),))
        fewer = collision(m.replace(plan=m.plan.replace(collision=plan)), d)
        assert fewer.ncon < whole.ncon and fewer.warning[1] > 0 and whole.warning[1] == 0


def test_many_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    mj_model = scene("sheets")
    m = made(mj_model, monkeypatch, 0)
    worlds = [put_data(mj_model, reference(mj_model, seed), model=m) for seed in range(3)]
    together = torch.vmap(collision, in_dims=(None, 0))(m, tree.map(lambda *x: torch.stack(x), *worlds))
    for k, d in enumerate(worlds):
        alone = collision(m, d)
        assert torch.equal(together.contact.elem[k], alone.contact.elem)
        assert torch.allclose(together.contact.dist[k], alone.contact.dist, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sheets", "several condims"])
def test_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mj_model = scene(name)
    m = made(mj_model, monkeypatch, 0)
    worlds = [put_data(mj_model, reference(mj_model, seed), model=m) for seed in range(3)]
    d = tree.map(lambda *x: torch.stack(x), *worlds)
    compiled = mjtorch.jit(mjtorch.forward, in_dims=(None, 0))(m, d)
    for k, one in enumerate(worlds):
        alone = mjtorch.forward(m, one)
        assert torch.equal(compiled.contact.elem[k], alone.contact.elem)
        assert torch.allclose(compiled.qacc[k], alone.qacc, rtol=1e-6, atol=1e-6)


def test_numbers_that_single_precision_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many pairs contacts are in the same order."""
    mj_model = scene("sheets")
    m = made(mj_model, monkeypatch, 0, dtype=torch.float32)
    d = put_data(mj_model, reference(mj_model, 0), model=m)
    few = collision(m, d)
    monkeypatch.setattr(sys.modules["mjtorch.collision.driver"], "EXACT", 1)
    assert torch.equal(collision(m, d).contact.elem, few.contact.elem)
