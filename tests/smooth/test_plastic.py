"""Plastic springs against C: where they rest after they have yielded one way and the other."""

import mujoco
import numpy as np
import pytest
import torch
from reference import SINCE_4, assert_fields_close, load, random_state

import mjtorch
from mjtorch.model import put_data, put_model
from mjtorch.smooth.plastic import remembered_shapes

pytestmark = SINCE_4
# Slack tendons, pulled and let go, and one without slack.
SLACK = """
<mujoco>
  <option gravity="0 0 0"/>
  <worldbody>
    <body><joint name="a"/><geom size=".1" pos=".3 0 0"/></body>
  </worldbody>
  <tendon>
    <fixed stiffness="3" springyield=".02" springlength="0 .1"><joint joint="a" coef="1"/></fixed>
    <fixed stiffness="3" springyield=".02" springlength="-.1 .1"><joint joint="a" coef="1"/></fixed>
    <fixed stiffness="3" springyield=".02" springlength="0 0"><joint joint="a" coef="1"/></fixed>
  </tendon>
</mujoco>
"""


def test_slack_tendons_follow_c() -> None:
    mj_model = load(SLACK)
    m, mj_data = put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model)
    for angle in (0.05, 0.3, -0.4, -0.2, 0.2, 0.05, -0.1):
        mj_data.qpos[:], mj_data.qvel[:] = angle, 0
        d = mjtorch.step(m, put_data(mj_model, mj_data, model=m))
        mujoco.mj_step(mj_model, mj_data)
        assert_fields_close(d, put_data(mj_model, mj_data, model=m), ("plastic", "qpos"), 1e-9)


def test_springs_that_are_disabled_do_not_yield() -> None:
    mj_model = load("feature/plastic")
    mj_model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_SPRING
    m, d = put_model(mj_model, dtype=torch.float64), random_state(mj_model)
    expected = d.plastic.copy()
    assert mjtorch.step(m, put_data(mj_model, d, model=m)).plastic.numpy() == pytest.approx(expected, abs=0)


def test_reset_and_state() -> None:
    mj_model = load("feature/plastic")
    m, mj_data = put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model)
    assert mjtorch.make_data(m).plastic.numpy() == pytest.approx(mj_data.plastic, abs=0)
    mj_data = random_state(mj_model, 1)
    assert np.abs(mj_data.plastic - mujoco.MjData(mj_model).plastic).max() > 1e-3
    size = mujoco.mj_stateSize(mj_model, mujoco.mjtState.mjSTATE_PHYSICS)
    state = np.zeros(size)
    mujoco.mj_getState(mj_model, mj_data, state, mujoco.mjtState.mjSTATE_PHYSICS)
    d = put_data(mj_model, mj_data, model=m)
    assert mjtorch.get_state(m, d, int(mujoco.mjtState.mjSTATE_PHYSICS)).numpy() == pytest.approx(state)


def test_vmap_and_gradients() -> None:
    mj_model = load("feature/plastic")
    m = put_model(mj_model, dtype=torch.float64)
    d = put_data(mj_model, random_state(mj_model), model=m)

    def new(qpos: torch.Tensor, qvel: torch.Tensor) -> torch.Tensor:
        return remembered_shapes(m, d, qpos, qvel, d)

    moved = torch.stack([d.qpos, m.qpos0])
    speeds = torch.stack([d.qvel, torch.zeros_like(d.qvel)])
    expected = torch.stack([new(q, v) for q, v in zip(moved, speeds, strict=True)])
    assert torch.allclose(torch.vmap(new)(moved, speeds), expected, rtol=1e-12)
    for q, v in zip(moved, speeds, strict=True):
        assert all(x.isfinite().all() for x in torch.func.jacrev(new, argnums=(0, 1))(q, v))
