"""Flexes that sleep, and wake, against C: with islands of edges, beside what touches them."""

import mujoco
import numpy as np
import pytest
import torch
from reference import SINCE_4, assert_fields_close, converged, load

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
SETTLED, KICKED, LEFT, END = 480, 500, 640, 1000
STATE = ("qpos", "qvel", "plastic", "tree_asleep", "tree_awake", "body_awake")


@pytest.mark.parametrize("inside", ["bent", *(pytest.param(x, marks=pytest.mark.slow) for x in ("held", "elastic"))])
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
