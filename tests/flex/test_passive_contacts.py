"""Passive contacts of flexes against C, where the tables do not look: grids, what moves, islands, rest."""

import mujoco
import numpy as np
import pytest
import torch
from reference import SINCE_4, assert_fields_close, converged, load, slow_but

import mjtorch
from mjtorch.forward import fwd_acceleration, fwd_actuation, fwd_velocity
from mjtorch.model import get_data, put_data, put_model
from mjtorch.smooth.passive_contact import STIFFNESS_PER_MASS

pytestmark = SINCE_4

FIELDS = ("qfrc_spring", "qfrc_passive", "qfrc_constraint", "qacc_smooth", "qacc")
FLOOR = '<geom type="plane" size="2 2 .1" margin=".01"/>'
BALL = '<geom size=".1" pos=".02 .01 -.08"/>'
SOFT = '<elasticity young="1e4" poisson=".3" damping=".01"/>'
THIN = '<elasticity young="1e4" poisson=".3" thickness="4e-3" elastic2d="both" damping=".01"/>'
ARM = """<body name="arm" pos=".05 .05 .01"><joint axis="0 1 0"/>
  <geom size=".02" pos=".1 0 0" contype="0" conaffinity="0"/>{}</body>"""
HELD = """<body pos="0 5 0"><joint type="slide" range="1 2" limited="true"/>
  <geom size=".1" contype="0" conaffinity="0"/></body>"""

ROD = """<flexcomp name="rod" type="grid" dim="1" count="4 1 1" spacing=".05 .05 .05" mass=".1" radius=".005"
  pos="0 0 -.004" euler="0 0 30"><contact passive="true" selfcollide="none"/>{}
  <elasticity young="1e6" damping=".01" {}/></flexcomp>"""


def flex(name: str = "flex", place: str = "0 0 .003", more: str = "", **given: str) -> str:
    """A flex of points .05 m apart, which asks for passive contacts if it is not said to do without."""
    asks = given.pop("passive", "true")
    words = {"type": "grid", "count": "3 3 1", "dim": "2", "mass": ".16", "radius": ".005"} | given
    said = " ".join(f'{key}="{value}"' for key, value in words.items())
    return f"""<flexcomp name="{name}" spacing=".05 .05 .05" pos="{place}" {said}>
      <contact passive="{asks}" selfcollide="none"/>{more}</flexcomp>"""


def grid(kind: str, count: str = "4 4 4", place: str = "0 0 .1", more: str = SOFT, **given: str) -> str:
    return flex("grid", place, more, count=count, dim="3", dof=kind, euler="20 15 0", **given)


SCENES = {
    "membrane": FLOOR + BALL + flex(more=THIN),
    "pinned": FLOOR + BALL + flex(more=f'<pin id="0 1 4"/>{THIN}'),
    "loose": FLOOR + BALL + flex(),
    "solid": FLOOR + flex(count="3 3 2", dim="3", more=SOFT, place="0 0 .028"),
    "on an arm": FLOOR + ARM.format(flex(more=f'<pin id="0 1"/>{THIN}', place="0 0 -.01")),
    "mocap": f'<body mocap="true">{BALL}</body>{FLOOR}{flex(more=THIN)}',
    "moving": '<body pos=".02 .01 -.08"><freejoint/><geom size=".1" contype="0"/></body>'
    + FLOOR.replace("size", 'contype="0" size')
    + flex(more=THIN),
    "sticking": FLOOR.replace("margin", 'adhesion="2" gap=".01" margin') + flex(more=THIN),
    "dofs without mass of a point": FLOOR + flex(more=THIN, dof="2d"),
    "grid": FLOOR + BALL + grid("trilinear"),
    "pinned grid": FLOOR + grid("trilinear", more=f'<pin id="0 1 2"/>{SOFT}'),
    "quadratic grid": FLOOR + BALL + grid("quadratic"),
    "grid of cells": FLOOR + BALL + grid("trilinear", count="5 4 4", cellcount="2 1 1"),
    "shell": FLOOR + BALL + flex(count="4 4 1", dof="trilinear", place="0 0 .02", euler="2 5 0"),
}

# Of these C searches for contacts, and small errors in their normals are much to stiff springs.
SEARCHED = {
    "on a line": flex("line", more='<edge equality="true"/>', dim="1", count="4 1 1", place="0 0 -.004")
    + flex(more=THIN),
    "on a rod": ROD.format("", "") + flex(more=THIN),
    "on a box": ROD.format('<pin id="0"/>', 'section="box" sectionsize=".005 .01"') + flex(more=THIN),
    "solid on a rod": ROD.format("", "") + flex(count="3 3 2", dim="3", more=SOFT, place="0 0 .028"),
    "grid on a rod": ROD.format("", "") + grid("trilinear", place="0 0 .06"),
}


def model(world: str, **options: int) -> mujoco.MjModel:
    option = '<option integrator="discrete" timestep="2e-3" ccd_iterations="100" ccd_tolerance="1e-12"/>'
    return converged(load(f"<mujoco>{option}<worldbody>{world}</worldbody></mujoco>", **options))


def moved(mj_model: mujoco.MjModel, seed: int) -> mujoco.MjData:
    rng, d = np.random.default_rng(seed), mujoco.MjData(mj_model)
    mujoco.mj_integratePos(mj_model, d.qpos, 3e-3 * rng.standard_normal(mj_model.nv), 1.0)
    d.qvel[:] = 0.1 * rng.standard_normal(mj_model.nv)
    mujoco.mj_forward(mj_model, d)
    return d


@pytest.mark.parametrize("scene", slow_but(SCENES, *(SCENES.keys() - {"grid", "quadratic grid", "grid of cells"})))
def test_forces_match_c(scene: str) -> None:
    mj_model = model(SCENES[scene])
    m = put_model(mj_model, dtype=torch.float64)
    for seed in range(3):
        mj_data = moved(mj_model, seed)
        found = mjtorch.forward(m, put_data(mj_model, mj_data, model=m))
        assert_fields_close(found, mj_data, FIELDS, 2e-9, m=m, context=f"seed {seed}")
        back = get_data(mj_model, found)
        for name in ("exclude", "efc_address", "dim", "mu"):
            np.testing.assert_allclose(getattr(back.contact, name), getattr(mj_data.contact, name), rtol=1e-12)
        assert (mj_data.contact.exclude == 4).any()


@pytest.mark.parametrize("scene", slow_but(SEARCHED, "on a line", "on a rod"))
def test_forces_of_contacts_that_c_found(scene: str) -> None:
    mj_model = model(SEARCHED[scene])
    m = put_model(mj_model, dtype=torch.float64)
    for seed in range(3):
        mj_data = moved(mj_model, seed)
        assert (mj_data.contact.exclude == 4).any()
        d = put_data(mj_model, mj_data, model=m)
        found = fwd_acceleration(m, fwd_actuation(m, fwd_velocity(m, d)))
        assert_fields_close(found, mj_data, ["qfrc_spring", "qacc_smooth"], 1e-9, m=m, context=f"seed {seed}")
        assert mjtorch.forward(m, d).ncon == mj_data.ncon


@pytest.mark.parametrize("others", slow_but(["true", "false"], "true"))
@pytest.mark.parametrize("place", ["0 0 .3", "1 0 .003", ".08 .08 .01"], ids=["apart", "beside", "above"])
def test_islands_are_those_of_c(place: str, others: str) -> None:
    """Flexes that ask for passive contacts are whole, and joined with what they touch."""
    mj_model = model(HELD + FLOOR + flex() + flex("other", place, euler="2 3 0", passive=others))
    mj_model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    m, mj_data = put_model(mj_model, dtype=torch.float64), moved(mj_model, 0)
    found = mjtorch.island(m, mjtorch.forward(m, put_data(mj_model, mj_data, model=m)))
    assert found.tree_island.tolist() == mj_data.tree_island.tolist()
    assert found.nisland == mj_data.nisland > 1


@pytest.mark.slow
def test_a_cloth_rests_as_deep_as_its_springs_are_stiff() -> None:
    mj_model = model(FLOOR + flex(more=THIN, place="0 0 .005"))
    m, mj_data = put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model)
    step, worlds = mjtorch.jit(mjtorch.step, in_dims=(None, 0)), mjtorch.batch(mjtorch.make_data(m), 2)
    for _ in range(200):
        worlds = step(m, worlds)
        mujoco.mj_step(mj_model, mj_data)
    np.testing.assert_allclose(worlds.qpos[1].numpy(), mj_data.qpos, atol=1e-11)
    depth = -worlds.contact.dist[0][worlds.contact.detected[0]]
    np.testing.assert_allclose(depth.mean(), 9.81 / STIFFNESS_PER_MASS, rtol=1e-6)


@pytest.mark.parametrize("rigid", [False, True])
def test_lines_and_rigid_flexes_ask_in_vain(rigid: bool) -> None:
    lump = (
        f"""<body name="lump"><freejoint/><geom size=".01" contype="0" conaffinity="0"/>{flex(rigid="true")}</body>"""
    )
    mj_model = model(FLOOR + (lump if rigid else ROD.format("", "")), integrator=0)
    mj_data, m = moved(mj_model, 0), put_model(mj_model, dtype=torch.float64)
    found = mjtorch.forward(m, put_data(mj_model, mj_data, model=m))
    assert mj_data.ncon and not mj_data.contact.exclude.any()
    assert_fields_close(found, mj_data, ["qfrc_spring", "qfrc_constraint", "qacc"], 2e-9, m=m)


def test_grids_have_no_torques() -> None:
    """C ends with an error where contacts of grids are passive and have more than three dimensions."""
    with pytest.raises(NotImplementedError, match="passive contacts of grids with condim 4 or 6"):
        put_model(model(FLOOR.replace("size", 'condim="4" size') + grid("trilinear")))


def test_their_integrator_is_discrete() -> None:
    with pytest.raises(NotImplementedError, match="passive contacts with other integrators than discrete"):
        put_model(load("feature/pile", integrator=0))
