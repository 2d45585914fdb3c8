"""Tendons against C: springs, dampers, armature, limits, friction, equalities, forces of actuators."""

import mujoco
import numpy as np
import pytest
import torch
from reference import assert_fields_close, case, converged, load, poison, random_state

import mjtorch
from mjtorch import tree
from mjtorch.model import put_data, put_model

FORCES, ACTUATORS = "feature/tendon_forces", "feature/tendon_actuators"
DISABLED = ("SPRING", "DAMPER", "SPRING DAMPER", "FRICTIONLOSS", "LIMIT", "EQUALITY", "ACTUATION")
FIELDS = "qfrc_spring qfrc_damper qfrc_passive actuator_force qfrc_smooth qacc efc_force sensordata energy".split()
# What a force along a tendon depends on.
NUMBERS = ("stiffness", "damping", "armature", "frictionloss", "lengthspring", "range", "margin")


@pytest.mark.parametrize("flags", DISABLED)
@pytest.mark.parametrize("model", [FORCES, ACTUATORS])
def test_disabled(model: str, flags: str) -> None:
    mj_model = converged(load(model))
    for flag in flags.split():
        mj_model.opt.disableflags |= getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")
    mj_data = random_state(mj_model)
    m = put_model(mj_model, dtype=torch.float64)
    d = mjtorch.forward(m, poison(put_data(mj_model, mj_data, model=m), FIELDS))
    assert_fields_close(d, mj_data, FIELDS, 1e-5, m=m)


def test_everything_is_at_work() -> None:
    """In the states that the tables of tests use: springs on both sides and at rest, limits, friction, saturation."""
    this = case(FORCES, converge=True)
    length = np.array([d.ten_length[0] for d in this.mj_datas])
    low, high = this.mj_model.tendon_lengthspring[0]
    assert (length < low).any()
    assert (length > high).any()
    types = np.concatenate([d.efc_type for d in this.mj_datas])
    states = np.concatenate([d.efc_state for d in this.mj_datas])
    friction, limit = (int(getattr(mujoco.mjtConstraint, f"mjCNSTR_{x}_TENDON")) for x in ("FRICTION", "LIMIT"))
    assert len(set(states[types == friction].tolist())) > 1
    assert (states[types == limit] == int(mujoco.mjtConstraintState.mjCNSTRSTATE_QUADRATIC)).any()
    pull = np.array([d.actuator_force[[1, 2]].sum() for d in case(ACTUATORS).mj_datas])
    limit = case(ACTUATORS).mj_model.tendon_actfrcrange[1, 1]
    assert (pull > limit - 1e-9).any()
    assert (pull < limit - 1e-3).any()


@pytest.mark.parametrize("model", [FORCES, ACTUATORS])
def test_gradient_is_finite(model: str) -> None:
    """Also where the springs are at the edge of their rest, no tendon moves, and no actuator pulls."""
    mj_model = load(model)
    m = put_model(mj_model, dtype=torch.float64)
    start = put_data(mj_model, mujoco.MjData(mj_model), model=m)
    edge = mjtorch.forward(m, start).ten_length[:, None].expand(-1, 2)
    for d in (start, *case(model).datas[:2]):
        numbers = {f"tendon_{name}": getattr(m, f"tendon_{name}") for name in NUMBERS} | {"tendon_lengthspring": edge}
        numbers = {name: x.clone().requires_grad_() for name, x in numbers.items()}
        state = {name: getattr(d, name).clone().requires_grad_() for name in ("qpos", "qvel", "ctrl")}
        stepped = mjtorch.step(m.replace(**numbers), d.replace(**state))
        (stepped.qvel.sum() + stepped.qpos.sum()).backward()
        for name, x in {**numbers, **state}.items():
            assert x.grad is None or x.grad.isfinite().all(), name


@pytest.mark.parametrize("model", [FORCES, ACTUATORS])
def test_gradient_is_that_of_finite_differences(model: str) -> None:
    this = case(model)
    d = this.datas[0]

    def smooth(qpos: torch.Tensor, qvel: torch.Tensor, coefficients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = mjtorch.fwd_position(this.m.replace(wrap_prm=coefficients), d.replace(qpos=qpos, qvel=qvel))
        x = mjtorch.fwd_velocity(this.m, x)
        found = (x.ten_length, x.ten_velocity, x.M, x.qfrc_passive, x.actuator_moment, x.efc_J, x.efc_pos)
        return tuple(y for y in found if y.numel())

    inputs = (d.qpos.clone(), d.qvel.clone(), this.m.wrap_prm.clone())
    torch.autograd.gradcheck(smooth, [x.requires_grad_() for x in inputs], fast_mode=True, rtol=1e-4)


STILL = """
<mujoco>
  <worldbody>
    <site name="post" pos="0 0 .5"/> <site name="wall" pos="0 .3 .5"/>
    <body>
      <joint/> <geom size=".1"/>
      <site name="one"/> <site name="two" pos=".1 0 0"/> <site name="same"/>
    </body>
  </worldbody>
  <tendon>
    <spatial name="fixed" limited="true" range="0 .2" frictionloss="1" stiffness="1" springlength=".1">
      <site site="post"/> <site site="wall"/>
    </spatial>
    <spatial name="carried" limited="true" range="0 .05"> <site site="one"/> <site site="two"/> </spatial>
    <spatial name="short" damping="1"> <site site="one"/> <site site="same"/> </spatial>
  </tendon>
  <equality> <tendon tendon1="fixed" polycoef=".1 0 0 0 0"/> </equality>
</mujoco>
"""


def test_tendons_that_nothing_moves() -> None:
    """They have lengths, but no rows."""
    mj_model = load(STILL)
    mj_data = random_state(mj_model)
    m = put_model(mj_model, dtype=torch.float64)
    d = mjtorch.forward(m, put_data(mj_model, mj_data, model=m))
    assert_fields_close(d, mj_data, ["ten_length", "ten_J", "nefc", "qacc", "qfrc_passive"], 1e-9, m=m)


def test_stiffness_may_differ_between_worlds() -> None:
    this = case(FORCES)
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    models = [this.m.replace(tendon_stiffness=this.m.tendon_stiffness * s) for s in scale]
    batch = this.m.replace(tendon_stiffness=torch.stack([m.tendon_stiffness for m in models]))
    axes = mjtorch.model_axes(this.m, "tendon_stiffness")
    d = this.datas[0]
    found = torch.vmap(mjtorch.step, in_dims=(axes, None))(batch, d)
    wanted = tree.stack([mjtorch.step(m, d) for m in models])
    torch.testing.assert_close(found.qvel, wanted.qvel, rtol=1e-9, atol=1e-9)


def test_a_tendon_that_nothing_moves():
    mj_model = load(
        """<mujoco><worldbody>
          <site name="a" pos="0 0 1"/><site name="b" pos="1 0 1"/><geom name="ball" size=".1" pos=".5 0 1"/>
          <body pos="0 0 2"><joint axis="0 1 0"/><geom size=".1"/></body>
        </worldbody><tendon>
          <spatial stiffness="10" springlength=".5"><site site="a"/><geom geom="ball"/><site site="b"/></spatial>
        </tendon></mujoco>"""
    )
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, mj_data)
    m = put_model(mj_model, dtype=torch.float64)
    d = mjtorch.forward(m, poison(put_data(mj_model, mj_data, model=m), ["ten_J", "ten_length", "qacc"]))
    assert mj_data.ten_length[0] > 1 and not d.ten_J.any()
    assert_fields_close(d, mj_data, ["ten_length", "qacc"], 1e-12, m=m)
