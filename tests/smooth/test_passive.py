"""Passive forces against C: springs, dampers, gravity compensation, and the flags that switch them off."""

import mujoco
import pytest
import torch
from reference import assert_fields_close, load, poison, random_state

from mjtorch.model import put_data, put_model
from mjtorch.smooth.passive import passive

FIELDS = ("qfrc_spring", "qfrc_damper", "qfrc_gravcomp", "qfrc_fluid", "qfrc_passive")
MODELS = (
    "feature/joints",
    "feature/ball",
    "feature/fluid",
    "feature/ellipsoids",
    "feature/frames",
    "gym/humanoid",
    "gym/swimmer",
)
SPRINGS = """
<mujoco>
  <option gravity=".3 .2 -9"/>
  <default>
    <geom contype="0" conaffinity="0"/>
  </default>
  <worldbody>
    <body gravcomp=".7">
      <joint type="free" stiffness="5 2 .3" damping=".3 .1"/>
      <geom size=".1"/>
      <body pos=".2 0 0" gravcomp="1.5">
        <joint type="ball" stiffness="2 -.5 .1" damping=".1 .3 .2"/>
        <geom type="box" size=".1 .05 .02" pos=".1 0 0"/>
        <body pos=".2 0 0">
          <joint type="slide" axis="1 1 0" stiffness="10 -3 2" springref=".1" actuatorgravcomp="true"/>
          <joint type="hinge" axis="0 1 1" damping="1"/>
          <geom size=".05" pos="0 0 .1"/>
        </body>
      </body>
    </body>
    <body pos="0 0 2">
      <joint type="free" stiffness="3"/>
      <geom size=".1"/>
    </body>
  </worldbody>
</mujoco>
"""
DISABLED = ("SPRING", "DAMPER", "GRAVITY", "SPRING DAMPER")


def check(mj_model: mujoco.MjModel, seed: int) -> None:
    mj_data = random_state(mj_model, seed)
    m = put_model(mj_model, dtype=torch.float64)
    expected = put_data(mj_model, mj_data, model=m)
    assert_fields_close(passive(m, poison(expected, FIELDS)), expected, FIELDS, 1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", [*MODELS, SPRINGS], ids=[*MODELS, "springs"])
def test_matches_c(model: str, seed: int) -> None:
    check(load(model), seed)


@pytest.mark.parametrize("flags", DISABLED)
@pytest.mark.parametrize("model", ["feature/fluid", "feature/ellipsoids", "feature/joints", SPRINGS], ids=[0, 1, 2, 3])
def test_disabled(model: str, flags: str) -> None:
    mj_model = load(model)
    for flag in flags.split():
        mj_model.opt.disableflags |= getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")
    check(mj_model, 0)


def test_gradient_at_rest_is_finite() -> None:
    mj_model = load(SPRINGS)
    m = put_model(mj_model, dtype=torch.float64)
    d = put_data(mj_model, mujoco.MjData(mj_model), model=m)

    def force(qpos: torch.Tensor, qvel: torch.Tensor) -> torch.Tensor:
        return passive(m, d.replace(qpos=qpos, qvel=qvel)).qfrc_passive

    by_qpos, by_qvel = torch.func.jacrev(force, argnums=(0, 1))(m.qpos_spring, d.qvel)
    assert by_qpos.isfinite().all()
    assert torch.allclose(by_qvel, -torch.diag(m.dof_damping))


def test_batched_stiffness() -> None:
    mj_model = load("feature/joints")
    m = put_model(mj_model, dtype=torch.float64)
    d = put_data(mj_model, random_state(mj_model), model=m)
    scale = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)

    def force(s: torch.Tensor) -> torch.Tensor:
        return passive(m.replace(dof_damping=m.dof_damping * s, jnt_stiffness=m.jnt_stiffness * s), d).qfrc_passive

    assert torch.allclose(torch.vmap(force)(scale), torch.stack([force(s) for s in scale]))
