"""Elastic rods where tables of models do not look: integrators, flags, long motions, ends, rest, what is refused."""

import mujoco
import numpy as np
import pytest
import torch
from flex.checks import PASSIVE, derivative_of_differences, forward_as_c, step_as_c
from reference import (
    SINCE_4,
    STATE,
    assert_fields_close,
    case,
    converged,
    load,
    mj_stepped,
    poison,
    random_state,
    slow_but,
)

import mjtorch
from mjtorch.model import put_data, put_model

pytestmark = SINCE_4

CABLES = "feature/cables"
QUIET = '<contact contype="0" conaffinity="0" selfcollide="none"/>'
EULER, RK4, DISCRETE = 0, 1, 4
BOX = 'section="box" sectionsize="{}"'


def rod(count: int = 5, section: str = "", inside: str = "", around: str = "{}", integrator: str = "Euler") -> str:
    line = f"""
    <flexcomp name="rod" type="grid" dim="1" count="{count} 1 1" spacing=".1 .1 .1" mass=".3" radius=".01" pos="0 0 1">
      {QUIET}{inside}
      <elasticity young="1e3" poisson=".2" damping=".01" {section}/>
    </flexcomp>"""
    return f"""
<mujoco>
  <option timestep="1e-3" integrator="{integrator}"/>
  <worldbody>{around.format(line)}</worldbody>
</mujoco>"""


@pytest.mark.parametrize("flags", ["", "SPRING", "DAMPER", "SPRING DAMPER"])
@pytest.mark.parametrize("integrator", [EULER, RK4, DISCRETE], ids=["Euler", "RK4", "discrete"])
def test_steps_match_c(integrator: int, flags: str) -> None:
    """Frames are remembered whatever the flags are."""
    mj_model = load(CABLES, integrator=integrator)
    if integrator == DISCRETE:
        mj_model.flex_edgestiffness[:] = mj_model.flex_edgedamping[:] = 0
    for flag in flags.split():
        mj_model.opt.disableflags |= getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")
    m = put_model(mj_model, dtype=torch.float64)
    for seed in range(2):
        mj_data = random_state(mj_model, seed)
        d = forward_as_c(m, mj_data, [*PASSIVE, "qacc"], 1e-9, f"seed {seed}")
        step_as_c(m, d, mj_data, 1e-9)


@pytest.mark.parametrize("section", ["", BOX.format(".01 .02"), BOX.format(".02 .01")], ids=["circle", "high", "wide"])
def test_rods_that_writhe_remember_their_twist(section: str) -> None:
    """Wound up by more than a turn while it flies about; C's state is taken up again and again."""
    mj_model = load(rod(section=section, inside='<edge equality="true"/>'))
    m = put_model(mj_model, dtype=torch.float64)
    mj_data = mujoco.MjData(mj_model)
    rng = np.random.default_rng(0)
    mj_data.qvel[:] = 10 * rng.standard_normal(mj_model.nv)
    most = 0.0
    for k in range(800):
        if k % 50 == 0:
            d = put_data(mj_model, mj_data, model=m)
            found = mjtorch.forward(m, poison(d, PASSIVE))
            after = mjtorch.step(m, d)
            mujoco.mj_forward(mj_model, mj_data)
            assert_fields_close(found, mj_data, PASSIVE, 1e-9, m=m, context=f"step {k}")
        mujoco.mj_step(mj_model, mj_data)
        if k % 50 == 0:
            assert_fields_close(after, mj_data, STATE[:5], 1e-9, m=m, context=f"step {k}")
        most = max(most, np.abs(mj_data.plastic[24:]).max())
    assert most > 2 * np.pi


@pytest.mark.parametrize("pinned", ["0 1", "3 4", "0 1 3 4", "0", "2"])
@pytest.mark.parametrize("integrator", ["Euler", "discrete"])
def test_ends_that_a_body_holds(pinned: str, integrator: str) -> None:
    around = """<body name="hand" pos="0 0 1" euler="20 30 0"><freejoint/>
      <geom size=".05 .1" type="capsule" mass=".3" contype="0" conaffinity="0"/>{}</body>"""
    inside = f'<pin id="{pinned}"/>'
    mj_model = load(rod(section=BOX.format(".01 .02"), inside=inside, around=around, integrator=integrator))
    m = put_model(mj_model, dtype=torch.float64)
    mj_data = random_state(mj_model)
    d = forward_as_c(m, mj_data, [*PASSIVE, "qacc"], 1e-8)
    step_as_c(m, d, mj_data, 1e-9)
    # Without memory the frame of an end that is held is that of the body at once, all others follow the first.
    mj_data.plastic[:] = 0
    mujoco.mj_forward(mj_model, mj_data)
    after = mjtorch.step(m, d.replace(plastic=torch.zeros_like(d.plastic)))
    assert_fields_close(after, mj_stepped(mj_model, mj_data), STATE[:5], 1e-9, m=m)


def test_a_straight_rod_is_damped_about_all_axes() -> None:
    mj_model = load(rod(section=BOX.format(".01 .02")))
    m = put_model(mj_model, dtype=torch.float64)
    mj_data = mujoco.MjData(mj_model)
    mj_data.qvel[:] = np.random.default_rng(0).standard_normal(mj_model.nv)
    mujoco.mj_forward(mj_model, mj_data)
    d = mjtorch.forward(m, poison(put_data(mj_model, mj_data, model=m), PASSIVE))
    assert not d.qfrc_spring.any() and d.qfrc_damper.any()
    assert_fields_close(d, mj_data, PASSIVE, 1e-9, m=m)


def test_without_memory_frames_start_without_twist() -> None:
    """As after a reset, of a rod that is bent by now."""
    mj_model = load(CABLES)
    m = put_model(mj_model, dtype=torch.float64)
    mj_data = random_state(mj_model)
    mj_data.plastic[:] = 0
    mujoco.mj_forward(mj_model, mj_data)
    d = forward_as_c(m, mj_data, PASSIVE, 1e-9)
    step_as_c(m, d, mj_data, 1e-9)
    assert not mjtorch.make_data(m).plastic.any()


def test_forces_differentiate() -> None:
    """With respect to positions, velocities, memory and stiffness, against differences."""
    this = case(CABLES, seeds=1)
    d, generator = this.datas[0], torch.Generator().manual_seed(0)
    inputs = (d.qpos, d.qvel, d.plastic, this.m.flex_bending)
    ways = [0.01 * torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in inputs]
    ways[3] = ways[3] * this.m.flex_bending * (this.m.flex_bending.abs() < 0.1)

    def force(*x: torch.Tensor) -> torch.Tensor:
        m = this.m.replace(flex_bending=x[3])
        return mjtorch.forward(m, d.replace(qpos=x[0], qvel=x[1], plastic=x[2])).qfrc_passive

    derivative_of_differences(force, inputs, ways, step=1e-5)


GROUND = '<geom type="plane" size="1 1 1" pos="0 0 .993"/>'
HELD = """
  <body name="hand">
    <freejoint/><geom size=".01" contype="0" conaffinity="0"/>{}
  </body>
  <body pos="-.15 .005 .96"><freejoint/><geom type="box" size=".03 .04 .03" contype="2" conaffinity="2"/></body>"""
ACROSS = """
  <flexcomp name="across" type="grid" dim="{}" count="3 {} 1" spacing=".1 .1 .1" mass=".3" radius=".01"
    pos=".05 0 1.015" euler="0 0 70"><contact contype="2" conaffinity="2" selfcollide="none"/>{}</flexcomp>"""
SCENES = {
    "free": ("", "{}"),
    "end": ("0 1", HELD),
    "last": ("3 4", HELD),
    "middle": ("1 2", HELD),
    "tip": ("0", HELD),
    "world": ("1 2", "{}"),
    "rod": ("", "{}" + ACROSS.format(1, 1, '<elasticity young="1e3"/>')),
    "behind": ("", ACROSS.format(1, 1, '<elasticity young="1e3"/>') + "{}"),
    "thread": ("", ACROSS.format(1, 1, '<edge equality="true"/>') + "{}"),
    "membrane": ("", "{}" + ACROSS.format(2, 3, '<edge equality="true"/>')),
}


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
@pytest.mark.parametrize("section", ["", BOX.format(".01 .02")], ids=["circle", "box"])
@pytest.mark.parametrize("scene", SCENES)
def test_what_touches_turns_edges(scene: str, section: str, cone: str) -> None:
    """Torsional and rolling friction, ends that bodies hold, what else is soft."""
    pinned, around = SCENES[scene]
    inside = f'<pin id="{pinned}"/>' if pinned else ""
    text = rod(section=section, inside=inside, around=GROUND + around)
    text = text.replace(QUIET, '<contact contype="3" conaffinity="3" selfcollide="none" condim="6"/>', 1)
    mj_model = converged(load(text.replace("<option", f'<option cone="{cone}"')))
    mj_model.opt.ccd_tolerance, mj_model.opt.ccd_iterations = 1e-14, 300
    m = put_model(mj_model, dtype=torch.float64)
    mj_data = mujoco.MjData(mj_model)
    rng = np.random.default_rng(0)
    mj_data.qvel[:] = 0.3 * rng.standard_normal(mj_model.nv)
    for _ in range(3):  # which leave a memory
        mujoco.mj_step(mj_model, mj_data)
    mujoco.mj_integratePos(mj_model, mj_data.qpos, 0.01 * rng.standard_normal(mj_model.nv), 1.0)
    mujoco.mj_forward(mj_model, mj_data)
    assert mj_data.ncon > 1
    found = mjtorch.forward(m, poison(put_data(mj_model, mj_data, model=m), ["efc_J", "efc_D", "qacc"]))
    accurate = scene != "membrane"  # contacts with triangles are searched for
    assert_fields_close(found, mj_data, ["efc_J", "efc_D", "efc_vel"], 1e-9 if accurate else 1e-5, m=m)
    if scene != "world":  # vertices of the world make rows of 1e15 times the weight, beside which no solver sees others
        assert_fields_close(found, mj_data, ["qacc"], 1e-7 if accurate else 1e-5, m=m)


# What has no formula with boxes, at the height of the rod; meshes and height fields are given with them.
LUMPS = {
    "ellipsoid": '<geom type="ellipsoid" size=".15 .2 .1" pos=".02 0 .895" euler="10 20 0"/>',
    "cylinder": '<geom type="cylinder" size=".15 .1" pos=".02 0 .88" euler="10 20 0"/>',
    "mesh": '<geom type="mesh" mesh="wedge" pos=".02 0 .9" euler="10 20 0"/>',
    "field": '<geom type="hfield" hfield="hills" pos="0 0 .895"/>',
    "membrane": ACROSS.format(2, 3, '<edge equality="true"/>'),
    "solid": ACROSS.format(3, 2, '<elasticity young="1e3"/>').replace("2 1", "2 2").replace("1.015", ".96"),
}
ASSETS = """
  <asset>
    <mesh name="wedge" vertex=".2 0 .1  -.2 .1 .1  -.1 -.2 .1  .2 0 -.1  -.2 .1 -.1  0 -.2 -.1"/>
    <hfield name="hills" nrow="3" ncol="4" size=".4 .4 .1 .1" elevation="0 1 0 1  1 0 1 0  0 1 0 1"/>
  </asset>"""


@pytest.mark.parametrize("lump", slow_but(LUMPS, "ellipsoid", "membrane"))
def test_boxes_are_capsules_where_they_have_no_formula(lump: str) -> None:
    text = rod(section=BOX.format(".01 .02"), around=LUMPS[lump] + "{}").replace("<worldbody>", ASSETS + "<worldbody>")
    text = text.replace(QUIET, '<contact contype="3" conaffinity="3" selfcollide="none" condim="6"/>', 1)
    mj_model = converged(load(text))
    mj_model.opt.ccd_tolerance, mj_model.opt.ccd_iterations = 1e-14, 300
    m = put_model(mj_model, dtype=torch.float64)
    mj_data, rng = mujoco.MjData(mj_model), np.random.default_rng(0)
    mj_data.qvel[:] = 0.3 * rng.standard_normal(mj_model.nv)
    for _ in range(5):
        mujoco.mj_step(mj_model, mj_data)
    mujoco.mj_forward(mj_model, mj_data)
    assert mj_data.ncon
    found = mjtorch.forward(m, poison(put_data(mj_model, mj_data, model=m), ["efc_J", "efc_pos", "efc_D", "qacc"]))
    assert_fields_close(found, mj_data, ["efc_pos"], 1e-9, m=m)
    assert_fields_close(found, mj_data, ["efc_J", "efc_D", "qacc"], 1e-5, m=m)
