"""Integrators against C, from the state and accelerations that C's forward dynamics leave."""

from collections.abc import Callable

import mujoco
import numpy as np
import pytest
import torch
from reference import VERSION, assert_fields_close, converged, load, poison, random_state

from mjtorch.integrate import (
    differentiate_pos,
    euler,
    fast_mhat,
    implicit,
    integrate_pos,
    rotation_vector_rate,
    rungekutta4,
)
from mjtorch.math import quaternion as quat
from mjtorch.model import Data, Integrator, Model, put_data, put_model
from mjtorch.smooth.derivative import deriv_smooth_vel, free_mhat
from mjtorch.smooth.inertia import full_m, tree_blocks

STATE = ("qpos", "qvel", "act", "plastic", "history", "time", "qacc_warmstart")
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
    "feature/delays",
    *(["feature/plastic"] if VERSION >= 4 else []),
    "feature/contacts",
    "gym/humanoid",
    "gym/hopper",
)
# A body that floats alone beside an arm, in a medium, with a servo on its orientation; damping that grows with speed; a
# servo on a ball joint whose setpoint goes round and round; an activation in a group of its own.
MIXED = """
<mujoco>
  <option timestep="0.01" density="20" viscosity=".3"/>
  <default>
    <geom contype="0" conaffinity="0"/>
  </default>
  <worldbody>
    <body>
      <joint name="ball" type="ball" damping=".1 .2 .3"/>
      <geom type="box" size=".1 .05 .02" pos=".1 0 0"/>
      <body pos=".3 0 0">
        <joint name="hinge" axis="0 1 0"/>
        <geom size=".05" pos=".1 0 0"/>
      </body>
    </body>
    <body pos="0 0 2">
      <joint name="free" type="free" damping=".05"/>
      <geom type="box" size=".2 .05 .1" pos=".05 .02 .1"/>
    </body>
    <body pos="0 1 2">
      <joint type="free"/>
      <geom type="box" size=".2 .05 .1"/>
      <body pos=".2 0 0"><geom size=".1"/></body>
    </body>
  </worldbody>
  <actuator>
    <intvelocity joint="ball" gear="0 0 1.5" kp="2" kv=".1"/>
    <velocity joint="hinge" kv=".2" group="1"/>
    <general joint="hinge" dyntype="filterexact" dynprm=".02" group="1"/>
    <velocity joint="free" kv=".5" gear="0 0 0 1 2 3"/>
    <position joint="ball" gear="0 1 .5" kp="2" timeconst=".02"/>
  </actuator>
</mujoco>
"""
# Two arms and things that float, which tendons and a servo between sites join: trees that are treated one by one.
APART = """
<mujoco>
  <option timestep="0.01"/>
  <default>
    <geom contype="0" conaffinity="0"/>
  </default>
  <worldbody>
    <body>
      <joint name="shoulder" axis="0 1 0" damping=".3"/>
      <geom size=".1"/>
      <body pos="0 0 .3">
        <joint name="elbow" axis="1 0 0" damping=".1 .2"/>
        <geom size=".1" pos=".1 0 .1"/>
        <site name="hand"/>
        <body pos=".2 0 0">
          <joint name="slide" type="slide" axis="0 0 1"/>
          <geom size=".05"/>
        </body>
      </body>
    </body>
    <body pos="1 0 1">
      <joint name="other shoulder" axis="0 1 0"/>
      <geom size=".1"/>
      <body pos="0 0 .3">
        <joint name="other elbow" axis="1 0 0"/>
        <geom size=".1" pos=".1 0 .1"/>
        <body pos=".2 0 0">
          <joint type="slide" axis="0 0 1"/>
          <geom size=".05"/>
        </body>
      </body>
    </body>
    <body pos="2 0 1">
      <freejoint name="box"/>
      <geom type="box" size=".1 .2 .3" pos=".05 0 0"/>
      <site name="corner" pos=".1 .1 0"/>
    </body>
    <body pos="3 0 1">
      <joint type="free" damping=".1"/>
      <geom type="box" size=".1 .2 .3"/>
    </body>
    <body pos="4 0 1">
      <freejoint/>
      <geom type="box" size=".1 .2 .3"/>
    </body>
  </worldbody>
  <tendon>
    <fixed name="joints" damping=".5">
      <joint joint="shoulder" coef="1"/>
      <joint joint="elbow" coef="-.5"/>
      <joint joint="other shoulder" coef="2"/>
    </fixed>
    <spatial damping=".2">
      <site site="hand"/>
      <site site="corner"/>
    </spatial>
  </tendon>
  <actuator>
    <position joint="elbow" kp="30" kv="3" group="1"/>
    <velocity site="corner" refsite="hand" kv="2" gear="1 1 0 0 .3 0"/>
    <velocity tendon="joints" kv="1.5"/>
    <velocity joint="box" kv="1.5" gear="1 0 2 0 .1 0"/>
    <general joint="other elbow" biastype="affine" biasprm="0 -2 -3" group="1"/>
  </actuator>
</mujoco>
"""
ALL = [*MODELS, MIXED, APART]
IDS = [*MODELS, "mixed", "apart"]

# name: the integrator, ours, C's
SINGLE_STEP = {
    "euler": (Integrator.EULER, euler, mujoco.mj_Euler),
    "implicit": (Integrator.IMPLICIT, implicit, mujoco.mj_implicit),
    "implicitfast": (Integrator.IMPLICITFAST, implicit, mujoco.mj_implicit),
}


def prepared(mj_model: mujoco.MjModel, seed: int) -> tuple[Model, Data, mujoco.MjData]:
    mj_data = random_state(mj_model, seed)
    mj_data.qvel *= 2
    mj_data.act *= 5
    mujoco.mj_forward(mj_model, mj_data)
    m = put_model(mj_model, dtype=torch.float64)
    return m, put_data(mj_model, mj_data, model=m), mj_data


def check_single_step(mj_model: mujoco.MjModel, name: str, seed: int) -> None:
    integrator, ours, c = SINGLE_STEP[name]
    mj_model.opt.integrator = int(integrator)
    m, d, mj_data = prepared(mj_model, seed)
    c(mj_model, mj_data)
    expected = put_data(mj_model, mj_data, model=m)
    assert_fields_close(ours(m, poison(d, ["qacc_warmstart"])), expected, STATE, 1e-10)


@pytest.mark.parametrize("name", SINGLE_STEP)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", ALL, ids=IDS)
def test_matches_c(model: str, seed: int, name: str) -> None:
    check_single_step(load(model), name, seed)


@pytest.mark.parametrize("name", SINGLE_STEP)
@pytest.mark.parametrize("flags", ["EULERDAMP", "DAMPER", "ACTUATION", "SPRING DAMPER"])
@pytest.mark.parametrize("model", ["feature/joints", MIXED, APART], ids=["joints", "mixed", "apart"])
def test_disabled_flag(model: str, flags: str, name: str) -> None:
    mj_model = load(model)
    for flag in flags.split():
        mj_model.opt.disableflags |= getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")
    check_single_step(mj_model, name, 0)


@pytest.mark.parametrize("name", SINGLE_STEP)
@pytest.mark.parametrize("model", [MIXED, APART], ids=["mixed", "apart"])
def test_disabled_group(model: str, name: str) -> None:
    check_single_step(load(model, disableactuator=1 << 1), name, 0)


@pytest.mark.parametrize("geom", [None, "<geom ", '<geom fluidshape="ellipsoid" '])
def test_trees_are_taken_one_by_one(geom: str | None) -> None:
    """With what the dense matrix has of them; in nothing, or in a medium."""
    mj_model = load(APART) if geom is None else load(APART.replace("<geom ", geom), density=900.0, viscosity=0.3)
    m, d, _ = prepared(mj_model, 0)
    p, h = m.plan.integration, mj_model.opt.timestep
    inertia, derivative = full_m(m, d), h * deriv_smooth_vel(m, d)
    assert len(m.plan.kinematics.trees) == 2 and m.opt.fluid == (geom is not None)
    blocks, (floating,) = fast_mhat(m, d)
    for found, wanted in zip(blocks, tree_blocks(m, inertia - p.bound * derivative), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(floating, free_mhat(m, d, inertia - derivative), rtol=1e-13, atol=1e-13)


def c_forward(mj_model: mujoco.MjModel, start: mujoco.MjData) -> Callable[[Model, Data], Data]:
    """Forward dynamics by C, for stages of Runge-Kutta."""
    work = mujoco.MjData(mj_model)

    def forward(m: Model, d: Data) -> Data:
        mujoco.mj_copyState(mj_model, start, work, mujoco.mjtState.mjSTATE_INTEGRATION)
        for name in ("qpos", "qvel", "act", "qacc_warmstart"):
            getattr(work, name)[:] = getattr(d, name).numpy()
        work.time = float(d.time)
        mujoco.mj_forward(mj_model, work)
        return put_data(mj_model, work, model=m)

    return forward


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("model", ALL, ids=IDS)
def test_runge_kutta_matches_c(model: str, seed: int) -> None:
    mj_model = converged(load(model, integrator=int(Integrator.RK4)))
    m, d, mj_data = prepared(mj_model, seed)
    after = rungekutta4(m, d, c_forward(mj_model, mj_data))
    sensordata = mj_data.sensordata.copy()
    mujoco.mj_RungeKutta(mj_model, mj_data, 4)
    expected = put_data(mj_model, mj_data, model=m)
    assert_fields_close(after, expected, STATE, 1e-9)
    assert after.sensordata.tolist() == sensordata.tolist()


def test_runge_kutta_is_of_fourth_order() -> None:
    """A free body that tumbles: halving the step divides the error by about 16 (by 4 before MuJoCo 4.0)."""
    mj_model = load("feature/free", integrator=int(Integrator.RK4), gravity=(0, 0, 0))
    mj_model.dof_damping[:] = 0
    start = mujoco.MjData(mj_model)
    start.qvel[:] = np.random.default_rng(0).normal(size=mj_model.nv)
    m = put_model(mj_model, dtype=torch.float64)
    forward = c_forward(mj_model, start)

    def after(steps: int) -> torch.Tensor:
        mine = m.replace(opt=m.opt.replace(timestep=m.opt.timestep.new_tensor(0.2 / steps)))
        d = forward(m, put_data(mj_model, start, model=m))
        for _ in range(steps):
            d = forward(m, rungekutta4(mine, d, forward))
        return d.qpos

    exact = after(64)
    ratio = (after(2) - exact).norm() / (after(4) - exact).norm()
    assert ratio > (12 if m.plan.integration.rk_correction else 3)


@pytest.mark.parametrize("model", ["feature/ball", "feature/free", "feature/joints", MIXED], ids=[0, 1, 2, 3])
def test_positions(model: str) -> None:
    mj_model = load(model)
    m, d, mj_data = prepared(mj_model, 0)
    dt = m.opt.timestep * 10
    rng = np.random.default_rng(0)
    for scale in (0.0, 1.0, 40.0):
        velocity, expected = scale * rng.normal(size=mj_model.nv), mj_data.qpos * 1.0
        mujoco.mj_integratePos(mj_model, expected, velocity, float(dt))
        qpos = integrate_pos(m, d.qpos, torch.tensor(velocity), dt)
        assert qpos.numpy() == pytest.approx(expected, abs=1e-12)
        back = np.zeros(mj_model.nv)
        mujoco.mj_differentiatePos(mj_model, back, float(dt), mj_data.qpos, expected)
        assert differentiate_pos(m, d.qpos, qpos, dt).numpy() == pytest.approx(back, abs=1e-9)


def test_integrate_pos_normalizes() -> None:
    mj_model = load("feature/ball")
    m = put_model(mj_model, dtype=torch.float64)
    qpos, qvel = np.random.default_rng(0).normal(size=(2, mj_model.nq))
    expected = qpos.copy()
    mujoco.mj_integratePos(mj_model, expected, qvel[: mj_model.nv], 0.1)
    dt = torch.tensor(0.1, dtype=torch.float64)
    actual = integrate_pos(m, torch.tensor(qpos), torch.tensor(qvel[: mj_model.nv]), dt)
    assert actual.numpy() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-3, 0.0999, 0.1001, 1.0, 3.0])
def test_rotation_vector_rate_is_the_derivative(size: float) -> None:
    v, w = size * torch.tensor([2.0, -1.0, 2.0]).double() / 3, torch.tensor([0.3, -2.0, 1.1]).double()
    rate = rotation_vector_rate(v, w)
    start = quat.from_rotation_vector(v)
    turned = torch.func.jvp(quat.from_rotation_vector, (v,), (rate,))[1]
    # q' = q (0, w) / 2
    spin = torch.cat([w.new_zeros(1), w])
    assert torch.allclose(turned, 0.5 * quat.mul(start, spin), atol=1e-12)
    assert torch.func.jacrev(rotation_vector_rate, argnums=(0, 1))(v, w)[0].isfinite().all()


@pytest.mark.parametrize("name", SINGLE_STEP)
@pytest.mark.parametrize("model", ["feature/joints", MIXED, APART], ids=["joints", "mixed", "apart"])
def test_vmap_and_gradients(model: str, name: str) -> None:
    integrator, ours, _ = SINGLE_STEP[name]
    m, d, _ = prepared(load(model, integrator=int(integrator)), 0)

    def next_state(qvel: torch.Tensor, qfrc_smooth: torch.Tensor) -> torch.Tensor:
        after = ours(m, d.replace(qvel=qvel, qfrc_smooth=qfrc_smooth))
        return torch.cat([after.qpos, after.qvel])

    inputs = (d.qvel, d.qfrc_smooth)
    batched = tuple(torch.stack([x, 0 * x]) for x in inputs)
    expected = torch.stack([next_state(*(x[i] for x in batched)) for i in range(2)])
    assert torch.allclose(torch.vmap(next_state)(*batched), expected, rtol=1e-10, atol=1e-12)
    for i in range(2):
        jacobians = torch.func.jacrev(next_state, argnums=(0, 1))(*(x[i] for x in batched))
        assert all(x.isfinite().all() for x in jacobians)
    assert torch.autograd.gradcheck(next_state, tuple(x.clone().requires_grad_() for x in inputs), atol=1e-6)
