"""Flexes that sleep, and wake, against C: with islands of edges, beside what touches them."""

import mujoco
import numpy as np
import pytest
import torch
from reference import SINCE_4, assert_fields_close, converged, load, slow_but

import mjtorch
from mjtorch import tree
from mjtorch.model import put_data, put_model

pytestmark = SINCE_4

SCENE = """
<mujoco>
  <option timestep="2e-3"><flag sleep="enable"/></option>
  <worldbody>
    <geom type="plane" size="3 3 .1"/>
    <flexcomp name="cloth" type="grid" count="3 3 1" spacing=".1 .1 .1" mass=".3" radius=".02" dim="2" pos="0 0 .1">
      <contact selfcollide="none" solref=".01 1"/>
      {}
    </flexcomp>
    <flexcomp name="rod" type="grid" count="4 1 1" spacing=".1 .1 .1" mass=".1" radius=".01" dim="1" pos="0 1 1">
      <pin id="0 1"/>
      <contact contype="0" conaffinity="0" selfcollide="none"/>
      <edge equality="true"/>
      <elasticity young="1e6" poisson=".2" damping=".01"/>
    </flexcomp>
    <body pos="1 0 .1"><freejoint/><geom type="box" size=".1 .1 .1"/></body>
    <body name="ball" pos=".5 0 .1"><freejoint/><geom size=".1"/></body>
  </worldbody>
</mujoco>
"""
HELD = '<edge equality="true" solref=".02 1"/>'
ELASTIC = '<elasticity young="{}" thickness=".02" damping=".1" elastic2d="{}"/>'
INSIDE = {"held": HELD, "bent": HELD + ELASTIC.format("1e3", "bend"), "elastic": ELASTIC.format("1e3", "both")}
SPRINGY = """
<mujoco>
  <option timestep="2e-3" integrator="discrete"><flag sleep="enable"/></option>
  <worldbody>
    <geom type="plane" size="3 3 .1"/>
    <flexcomp name="cloth" type="grid" count="3 3 1" spacing=".1 .1 .1" mass=".3" radius=".02" dim="2" pos="0 0 .03">
      <contact selfcollide="none" passive="true"/>
      {}
    </flexcomp>
    <body name="ball" pos=".24 0 .1"><freejoint/><geom size=".1"/></body>
  </worldbody>
</mujoco>
"""
SETTLED, KICKED, LEFT, END = 480, 500, 640, 1000
STATE = ("qpos", "qvel", "plastic", "tree_asleep", "tree_awake", "body_awake")


@pytest.mark.parametrize("inside", slow_but(INSIDE))
def test_a_ball_rolls_over_a_cloth_that_sleeps(inside: str) -> None:
    """A held cloth sleeps, wakes and sleeps again; one that is nothing but elastic never does."""
    mj_model = converged(load(SCENE.format(INSIDE[inside])))
    mj_model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    m = put_model(mj_model, dtype=torch.float64)
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0))
    mj_data, sleeps = mujoco.MjData(mj_model), []
    cloth = mj_model.flex_vertbodyid[: mj_model.flex_vertnum[0]]
    for k in range(END):
        if k == KICKED:
            mj_data.qvel[mj_model.body("ball").dofadr[0]] = -2.5
        asked = k < 20 or SETTLED <= k < LEFT
        if asked:
            (after,) = tree.unstack(step(m, mjtorch.batch(put_data(mj_model, mj_data, model=m), 1)))
        mujoco.mj_step(mj_model, mj_data)
        if asked:
            assert_fields_close(after, mj_data, STATE, 1e-9, m=m, context=f"step {k}")
        sleeps.append(not mj_data.body_awake[cloth].any())
    changes = np.diff(np.array(sleeps[SETTLED:], dtype=int))
    assert changes[changes != 0].tolist() == ([] if inside == "elastic" else [-1, 1])


@pytest.mark.parametrize("inside", ["elastic", pytest.param("held", marks=pytest.mark.slow)])
def test_a_ball_rolls_into_a_cloth_on_springs(inside: str) -> None:
    """Of which contacts are passive: it falls asleep as a whole."""
    given = INSIDE[inside].replace("1e3", "1e4")
    mj_model = converged(load(SPRINGY.format(given)))
    mj_model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    m = put_model(mj_model, dtype=torch.float64)
    mj_data, sleeps = mujoco.MjData(mj_model), []
    cloth = mj_model.flex_vertbodyid[: mj_model.flex_vertnum[0]]
    for k in range(110):
        if k == 70:
            mj_data.qvel[mj_model.body("ball").dofadr[0]] = -2
        asked = k in (5, 36, 37, 38, 69, 70, 109)
        before = put_data(mj_model, mj_data, model=m) if asked else None
        mujoco.mj_step(mj_model, mj_data)
        if before is not None:
            assert_fields_close(mjtorch.step(m, before), mj_data, STATE, 1e-9, m=m, context=f"step {k}")
        sleeps.append(not mj_data.body_awake[cloth].any())
    assert sleeps[69] and not sleeps[109] and (mj_data.contact.exclude == 4).any()


@pytest.mark.slow
def test_a_cloth_on_springs_in_many_worlds_and_differentiated() -> None:
    """Compiled as under vmap, asleep, woken and awake; the derivative by velocities is that of differences."""
    mj_model = converged(load(SPRINGY.format(INSIDE["elastic"].replace("1e3", "1e4"))))
    mj_model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    m, mj_data, datas = put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model), []
    for k in range(110):
        if k == 70:
            mj_data.qvel[mj_model.body("ball").dofadr[0]] = -2
        mujoco.mj_step(mj_model, mj_data)
        if k in (5, 69, 109):
            datas.append(put_data(mj_model, mj_data, model=m))
    d = mjtorch.tree.stack(datas)
    wanted = torch.vmap(mjtorch.step, in_dims=(None, 0))(m, d)
    found = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)(m, d)
    assert_fields_close(found, wanted, STATE, 1e-9, m=m)

    def speed(qvel: torch.Tensor) -> torch.Tensor:
        return mjtorch.step(m, datas[2].replace(qvel=qvel)).qvel

    qvel = datas[2].qvel
    way = torch.linspace(-1, 1, len(qvel), dtype=torch.float64)
    ends = [speed(qvel + 1e-6 * sign * way) for sign in (1, -1)]
    slope = torch.func.jvp(speed, (qvel,), (way,))[1]
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-4, atol=1e-5 * float(slope.abs().max()))


def sheet(name: str, place: str, passive: str) -> str:
    return f"""<flexcomp name="{name}" type="grid" count="3 3 1" spacing=".1 .1 .1" mass=".3" radius=".02" dim="2"
      pos="{place}"><contact selfcollide="none" passive="{passive}"/>{ELASTIC.format("1e4", "both")}</flexcomp>"""


@pytest.mark.parametrize("place", ["1 0 1", ".03 .01 1.03"])
@pytest.mark.parametrize("passive", ["true", "false"])
@pytest.mark.parametrize("sleep", ["enable", "disable"])
def test_flexes_that_may_sleep_are_islands(place: str, passive: str, sleep: str) -> None:
    """Under `discrete`, even if nothing is constrained."""
    world = sheet("one", "0 0 1", "true") + sheet("two", place, passive) + '<geom type="plane" size="3 3 .1"/>'
    option = f'<option integrator="discrete"><flag sleep="{sleep}"/></option>'
    mj_model = load(f"<mujoco>{option}<worldbody>{world}</worldbody></mujoco>")
    mj_model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    m, mj_data = put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model)
    mujoco.mj_step(mj_model, mj_data, nstep=2)
    mujoco.mj_forward(mj_model, mj_data)
    islands = mjtorch.island(m, mjtorch.forward(m, put_data(mj_model, mj_data, model=m)))
    assert int(islands.nisland) == mj_data.nisland == (0 if sleep == "disable" else 1 + (place == "1 0 1"))
    if mj_data.nisland:
        assert islands.tree_island.tolist() == mj_data.tree_island.tolist()
