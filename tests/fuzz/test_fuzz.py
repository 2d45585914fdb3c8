"""Random models against C: what they found once, a few new ones, and that the judge would notice."""

from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

import mjtorch
from tests.fuzz.asked import Asked, prepared
from tests.fuzz.judge import Modes, does_c_agree_from
from tests.fuzz.oracle import least_overlap, overlap
from tests.fuzz.run import CORPUS, cases, compiled, judged, states, table, tally, with_states
from tests.fuzz.shrink import shrink

QUICKLY = Modes(float32=True, eager=False)
FEW, MANY = 3, 150
PENDULUM = """<mujoco><option integrator="implicitfast"/><worldbody><geom type="plane" size="1 1 1"/>
<body pos="0 0 .045"><joint name="hinge" axis="0 1 0" range="-1 1" damping=".3"/>
<geom name="arm" type="capsule" size=".05" fromto="0 0 0 .4 0 0"/>
<site name="tip" pos=".4 0 0"/></body></worldbody><actuator><motor joint="hinge"/></actuator>
<sensor><framepos objtype="site" objname="tip"/></sensor></mujoco>"""


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.xml")), ids=lambda path: path.stem)
def test_what_was_found_once(path: Path) -> None:
    """Each was a difference that nothing explained; the comment at its top says which."""
    found = [v for v in judged(path.read_text(), Modes()) if v.is_finding]
    assert not found, found


def test_new_models() -> None:
    check(cases(1, 0, FEW, QUICKLY))


@pytest.mark.slow
def test_many_models() -> None:
    check(cases(2, 0, MANY, Modes(gradient=True)))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["jit", "warp"])
def test_compiled_models(mode: str) -> None:
    check(cases(3, 0, 8, Modes(**{mode: True})))


def check(found: list) -> None:
    found = list(found)
    said = "\n".join(f"{case.seed}: {v.kind}: {v.detail}" for case in found for v in case.findings)
    assert not said, f"{said}\n{table(tally(found))}"
    assert tally(found)["same"] > len(found), table(tally(found))


@pytest.mark.parametrize("wrong", ["dof_damping", "geom_solref", "site_pos"])
def test_what_is_wrong_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of the model that is off by a ten thousandth."""
    put = mjtorch.put_model

    def off(*args: object, **options: object) -> mjtorch.Model:
        m = put(*args, **options)
        return m.replace(**{wrong: getattr(m, wrong) * 1.0001})

    assert not any(v.is_finding for v in judged(PENDULUM, QUICKLY))
    monkeypatch.setattr(mjtorch, "put_model", off)
    assert any(v.is_finding for v in judged(PENDULUM, QUICKLY))


@pytest.mark.parametrize(("wrong", "by"), [("", 0.0), ("qacc", 1e-3), ("qvel", 1e-3), ("contact.pos", 1e-4)])
def test_c_is_asked_again_from_our_contacts(wrong: str, by: float) -> None:
    """It says the same as we do, but where something else is wrong, or the contacts are others than ours."""
    mj_model = compiled(PENDULUM)
    asked = Asked(mj_model, states(mj_model)[0])
    m = mjtorch.put_model(mj_model)
    ours = mjtorch.get_data(mj_model, mjtorch.step(m, mjtorch.put_data(mj_model, asked.before, model=m)))
    assert ours.ncon
    if wrong:
        at = ours
        for name in wrong.split("."):
            at = getattr(at, name)
        at += by
    assert does_c_agree_from(asked, ours) == (not wrong)


def test_models_shrink_to_what_matters() -> None:
    def fails(xml: str) -> bool:
        mj_model = compiled(xml)
        return mj_model is not None and "motor" in xml

    smaller = shrink(PENDULUM, fails)
    assert fails(smaller)
    assert not any(word in smaller for word in ("plane", "sensor", "site", "damping", "integrator"))


def test_states_are_kept_with_the_model() -> None:
    mj_model = compiled(PENDULUM)
    kept = compiled(with_states(PENDULUM))
    for wanted, found in zip(states(mj_model), states(kept), strict=True):
        d, e = mujoco.MjData(mj_model), mujoco.MjData(kept)
        for model, data, state in ((mj_model, d, wanted), (kept, e, found)):
            mujoco.mj_setState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        np.testing.assert_array_equal(d.qpos, e.qpos)
        np.testing.assert_array_equal(d.qvel, e.qvel)


def test_the_oracle_knows_distances() -> None:
    """Of a box and a sphere, in each other and apart."""
    mj_model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><geom type="box" size=".1 .2 .3"/>
        <body pos=".25 0 0"><freejoint/><geom type="sphere" size=".1"/></body></worldbody></mujoco>"""
    )
    d = mujoco.MjData(prepared(mj_model))
    for x, y, wanted in ((0.25, 0.0, -0.05), (0.15, 0.0, 0.05), (0.4, 0.6, 0.1 - 0.5), (0.05, 0.0, 0.15)):
        d.qpos[:2] = x, y
        mujoco.mj_kinematics(mj_model, d)
        assert least_overlap(mj_model, d, 0, 1) == pytest.approx(wanted, abs=1e-6)
        direction = torch.nn.functional.normalize(torch.randn(100, 3, dtype=torch.float64), dim=-1).numpy()
        assert (overlap(mj_model, d, 0, 1, direction) >= wanted - 1e-9).all()
