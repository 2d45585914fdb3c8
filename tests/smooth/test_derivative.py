"""Velocity derivatives of smooth forces against C."""

import mujoco
import numpy as np
import pytest
import torch
from reference import SINCE_4, assert_fields_close, load, random_state, slow_but

import mjtorch
from mjtorch.model import Data, Integrator, Model, put_data, put_model
from mjtorch.smooth.actuation import fwd_actuation
from mjtorch.smooth.com import com_vel
from mjtorch.smooth.derivative import deriv_smooth_vel, free_bias_vel
from mjtorch.smooth.passive import passive
from mjtorch.smooth.rne import rne

MODELS = (
    "feature/actuators",
    "feature/muscles",
    "feature/transmissions",
    "feature/servos",
    "feature/motors",
    "feature/joints",
    "feature/ball",
    "feature/free",
    "feature/fluid",
    "feature/ellipsoids",
    "feature/gears",
    "gym/humanoid",
    "gym/swimmer",
)
# Damping that grows with speed; actuators whose forces are clamped, by themselves or by the joint.
CLAMPED = """
<mujoco>
  <default>
    <geom contype="0" conaffinity="0"/>
  </default>
  <option density="3" viscosity=".1"/>
  <worldbody>
    <body gravcomp=".5">
      <joint name="a" axis="0 1 0" actuatorfrcrange="-.02 .03" damping="1 2 3" actuatorgravcomp="true"/>
      <geom type="box" size=".1 .05 .02" pos=".1 0 0"/>
      <body pos=".2 0 0">
        <joint name="b" axis="0 0 1" damping=".1"/>
        <joint name="c" type="slide" axis="1 0 0" actuatorfrcrange="-100 100"/>
        <geom size=".05"/>
        <body pos=".2 0 0">
          <joint name="d" type="ball" damping=".1 .2 0"/>
          <geom type="box" size=".1 .05 .02" pos=".1 0 0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <velocity joint="a" kv="1"/>
    <position joint="a" kp="1" kv=".5"/>
    <velocity joint="b" kv="2" forcerange="-.01 .02"/>
    <position joint="b" kp="1" kv="3" group="2"/>
    <damper joint="c" kv="2" ctrlrange="0 .3"/>
    <velocity joint="d" kv=".5" gear="1 2 3"/>
    <velocity jointinparent="d" kv=".5" gear="0 2 1"/>
    <general joint="c" dyntype="integrator" gaintype="affine" gainprm="1 2 3" actearly="true"/>
  </actuator>
</mujoco>
"""
ALL = [*MODELS, CLAMPED]
IDS = [*MODELS, "clamped"]


def oracle(mj_model: mujoco.MjModel, mj_data: mujoco.MjData, integrator: Integrator) -> np.ndarray:
    """C's qDeriv, dense, which its implicit integrators leave behind."""
    mj_model.opt.integrator = int(integrator)
    after = mujoco.MjData(mj_model)
    mujoco.mj_copyData(after, mj_model, mj_data)
    mujoco.mj_implicit(mj_model, after)
    dense = np.zeros((mj_model.nv, mj_model.nv))
    rows = np.repeat(np.arange(mj_model.nv), mj_model.D_rownnz)
    dense[rows, mj_model.D_colind] = after.qDeriv
    return dense


def prepared(mj_model: mujoco.MjModel, seed: int) -> tuple[Model, Data, mujoco.MjData]:
    mj_data = random_state(mj_model, seed)
    mj_data.qvel *= 2
    mujoco.mj_forward(mj_model, mj_data)
    m = put_model(mj_model, dtype=torch.float64)
    return m, put_data(mj_model, mj_data, model=m), mj_data


@pytest.mark.parametrize("integrator", [Integrator.IMPLICIT, Integrator.IMPLICITFAST])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", ALL, ids=IDS)
def test_matches_c(model: str, seed: int, integrator: Integrator) -> None:
    mj_model = load(model)
    m, d, mj_data = prepared(mj_model, seed)
    expected = oracle(mj_model, mj_data, integrator)
    actual = deriv_smooth_vel(m, d, include_bias=integrator == Integrator.IMPLICIT).numpy()
    assert np.abs(actual - expected).max() <= 1e-10 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("flags", ["ACTUATION", "DAMPER", "SPRING", "SPRING DAMPER", "CLAMPCTRL"])
@pytest.mark.parametrize("model", ["feature/fluid", CLAMPED], ids=["fluid", "clamped"])
def test_disabled(model: str, flags: str) -> None:
    mj_model = load(model)
    for flag in flags.split():
        mj_model.opt.disableflags |= getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")
    m, d, mj_data = prepared(mj_model, 0)
    expected = oracle(mj_model, mj_data, Integrator.IMPLICIT)
    assert np.abs(deriv_smooth_vel(m, d, True).numpy() - expected).max() <= 1e-10 * np.abs(expected).max()


def test_disabled_group() -> None:
    mj_model = load(CLAMPED, disableactuator=1 << 2)
    m, d, mj_data = prepared(mj_model, 0)
    expected = oracle(mj_model, mj_data, Integrator.IMPLICIT)
    assert np.abs(deriv_smooth_vel(m, d, True).numpy() - expected).max() <= 1e-10 * np.abs(expected).max()


@pytest.mark.parametrize("model", ["feature/joints", "feature/ball", "feature/free", "feature/fluid"])
def test_is_the_derivative(model: str) -> None:
    mj_model = load(model)
    m, d, _ = prepared(mj_model, 0)

    def force(qvel: torch.Tensor) -> torch.Tensor:
        after = d.replace(qvel=qvel, actuator_velocity=d.actuator_moment @ qvel)
        after = rne(m, passive(m, com_vel(m, fwd_actuation(m, after))))
        return after.qfrc_actuator + after.qfrc_passive - after.qfrc_bias

    assert torch.allclose(deriv_smooth_vel(m, d, True), torch.func.jacfwd(force)(d.qvel), rtol=1e-10, atol=1e-10)


def test_bodies_that_float_alone() -> None:
    m, d, _ = prepared(load("feature/free"), 0)
    blocks = torch.func.jacfwd(lambda qvel: rne(m, com_vel(m, d.replace(qvel=qvel))).qfrc_bias)(d.qvel)
    dof = m.plan.integration.free_dof
    assert dof.shape == (2, 6)
    assert torch.allclose(free_bias_vel(m, d), blocks[dof[:, :, None], dof[:, None, :]], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("model", ["feature/fluid", CLAMPED], ids=["fluid", "clamped"])
def test_vmap_and_gradients(model: str) -> None:
    m, d, _ = prepared(load(model), 0)
    speeds = torch.stack([d.qvel, torch.zeros_like(d.qvel)])

    def derivative(qvel: torch.Tensor) -> torch.Tensor:
        return deriv_smooth_vel(m, com_vel(m, d.replace(qvel=qvel)), True)

    expected = torch.stack([derivative(v) for v in speeds])
    assert torch.allclose(torch.vmap(derivative)(speeds), expected, rtol=1e-12, atol=1e-12)
    assert torch.func.jacrev(derivative)(speeds[1]).isfinite().all()


BRAKE = """
<mujoco>
  <option integrator="{}" timestep="4e-3"/>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <body>
      <joint name="a" axis="0 1 0" armature=".1"/>
      <geom type="capsule" fromto="0 0 0 .3 0 0" size=".04"/>
      <body pos=".3 0 0">
        <joint name="b" axis="1 1 0" armature=".1"/>
        <geom type="capsule" fromto="0 0 0 .3 0 0" size=".04"/>
      </body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="free"><joint joint="a" coef="1"/><joint joint="b" coef=".7"/></fixed>
    <fixed name="held" actuatorfrcrange="-.2 .2"><joint joint="a" coef="1"/><joint joint="b" coef=".7"/></fixed>
  </tendon>
  <actuator><general {} biastype="dcmotor" forcerange="-{force} {force}" {}/></actuator>
</mujoco>
"""
MUSCLE = 'gainprm=".75 1.05 30 200 .5 1.6 1.5 1.3 1.2"'
COGS = 'biasprm=".1 6 .3"'
GAINS = {
    "fixed": 'gainprm="2 .3" dynprm="0"',
    "cogs": f'gaintype="affine" gainprm="2 .3 .1" {COGS} dyntype="integrator" dynprm="0"',
    "smooth": 'gaintype="affine" gainprm="2 .3 .1" dynprm="0"',
    "muscle": f'gaintype="muscle" {MUSCLE} {COGS} dynprm="0" lengthrange="-3 3" ctrlrange="0 1"',
}


@SINCE_4
@pytest.mark.parametrize("integrator", ["implicitfast", "discrete"])
@pytest.mark.parametrize("on", ['joint="a"', 'tendon="free"', 'tendon="held"'])
@pytest.mark.parametrize("gain", slow_but(GAINS, "cogs"))
def test_limits_of_brakes_match_c(gain: str, on: str, integrator: str) -> None:
    """The bias of a DC motor beside another gain, within and at the limits of its force."""
    for force in (0.3, 3):
        mj_model = load(BRAKE.format(integrator, on, GAINS[gain], force=force))
        m = put_model(mj_model, dtype=torch.float64)
        for seed in range(3):
            mj_data = random_state(mj_model, seed)
            mujoco.mj_forward(mj_model, mj_data)
            after = mjtorch.step(m, put_data(mj_model, mj_data, model=m))
            mujoco.mj_step(mj_model, mj_data)
            assert_fields_close(
                after, mj_data, ("actuator_force", "qacc", "qvel"), 1e-9, m=m, context=f"{force} {seed}"
            )


@pytest.mark.slow
@SINCE_4
def test_brakes_in_many_worlds_and_differentiated() -> None:
    """Compiled as under vmap, within and at the limits; the derivative by velocities is that of differences."""
    mj_model, datas = load(BRAKE.format("discrete", 'tendon="held"', GAINS["cogs"], force=0.3)), []
    m = put_model(mj_model, dtype=torch.float64)
    for seed in range(3):
        mj_data = random_state(mj_model, seed)
        mujoco.mj_forward(mj_model, mj_data)
        datas.append(put_data(mj_model, mj_data, model=m))
    d = mjtorch.tree.stack(datas)
    wanted = torch.vmap(mjtorch.step, in_dims=(None, 0))(m, d)
    found = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)(m, d)
    assert (wanted.actuator_force.abs() < 0.19).any() and (wanted.actuator_force.abs() > 0.19).any()
    for name in ("actuator_force", "qvel", "act"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-10, atol=1e-12)

    def speed(qvel: torch.Tensor) -> torch.Tensor:
        return torch.vmap(mjtorch.step, in_dims=(None, 0))(m, d.replace(qvel=qvel)).qvel

    way = torch.linspace(-1, 1, d.qvel.numel(), dtype=torch.float64).view_as(d.qvel)
    ends = [speed(d.qvel + 1e-6 * sign * way) for sign in (1, -1)]
    slope = torch.func.jvp(speed, (d.qvel,), (way,))[1]
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6)
