"""Transmission, activation dynamics and actuator forces against C."""

import mujoco
import numpy as np
import pytest
import torch
from reference import assert_fields_close, load, poison, random_state

from mjtorch import tree
from mjtorch.model import put_data, put_model
from mjtorch.smooth import muscle
from mjtorch.smooth.actuation import fwd_actuation, next_activation
from mjtorch.smooth.derivative import actuator_vel
from mjtorch.smooth.transmission import transmission

TRANSMISSION = ("actuator_length", "actuator_moment")
ACTUATION = ("act_dot", "actuator_force", "qfrc_actuator")
MODELS = (
    "feature/actuators",
    "feature/muscles",
    "feature/transmissions",
    "feature/servos",
    "feature/motors",
    "feature/joints",
    "gym/humanoid",
    "gym/ant",
    "gym/half_cheetah",
)

# Position servos on ball joints, whose setpoints are angles, with setpoints many turns away; gravity compensation and
# force limits of joints; every kind of activation with limits.
SERVOS = """
<mujoco>
  <default>
    <geom contype="0" conaffinity="0"/>
  </default>
  <option timestep="0.004"/>
  <worldbody>
    <body gravcomp=".6">
      <joint name="ball" type="ball" actuatorgravcomp="true"/>
      <geom type="box" size=".1 .05 .02" pos=".1 0 0"/>
      <body pos=".3 0 0" gravcomp="1">
        <joint name="hinge" axis="0 1 0" actuatorgravcomp="true" actuatorfrcrange="-.5 .4"/>
        <geom size=".05" pos=".1 0 0"/>
        <body pos=".2 0 0">
          <joint name="slide" type="slide" axis="1 0 0" actuatorfrcrange="-1 2"/>
          <geom size=".05" pos=".1 0 0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position joint="ball" gear="1 .5 0" kp="3" kv=".1"/>
    <position jointinparent="ball" gear="0 .5 1" kp="3"/>
    <intvelocity joint="ball" gear="0 0 1.5" kp="2"/>
    <intvelocity joint="ball" gear="0 0 0" kp="2"/>
    <general joint="ball" gear="1 0 0" gainprm="3" biastype="affine" biasprm="0 -2 0"/>
    <intvelocity joint="hinge" kp="2" actrange="-.2 .2" group="3"/>
    <general joint="hinge" dyntype="filter" dynprm=".02" actlimited="true" actrange="0 .1" actearly="true" gainprm="5"/>
    <general joint="slide" dyntype="filterexact" dynprm=".02" actlimited="true" actrange="-.1 .1" forcelimited="true"
      forcerange="-.3 .3" gainprm="5"/>
    <general joint="slide" dyntype="muscle" gaintype="affine" gainprm="1 2 3" biastype="affine" biasprm="1 -2 -1"/>
    <motor joint="slide" ctrllimited="true" ctrlrange="-.5 .5" group="30" gear="40"/>
    <motor joint="slide" group="31"/>
    <position joint="ball" gear="1 .5 0" kp="3" kv=".1" timeconst=".03"/>
    <general joint="ball" gear="0 .5 1" dyntype="filter" dynprm=".05" actearly="true" gainprm="3" biastype="affine"
      biasprm="0 -3 0"/>
    <general joint="ball" gear="0 .5 1" dyntype="filter" dynprm=".05" gainprm="3" biastype="affine" biasprm="0 -2 0"/>
  </actuator>
</mujoco>
"""


def moved(mj_model: mujoco.MjModel, seed: int, turns: float = 1.0) -> mujoco.MjData:
    """A random state whose controls and activations are `turns` times as large."""
    d = random_state(mj_model, seed)
    d.ctrl *= turns
    d.act *= turns
    mujoco.mj_forward(mj_model, d)
    return d


def check(mj_model: mujoco.MjModel, mj_data: mujoco.MjData) -> None:
    m = put_model(mj_model, dtype=torch.float64)
    expected = put_data(mj_model, mj_data, model=m)
    assert_fields_close(transmission(m, poison(expected, TRANSMISSION)), expected, TRANSMISSION, 1e-9)
    assert_fields_close(fwd_actuation(m, poison(expected, ACTUATION)), expected, ACTUATION, 1e-9)


@pytest.mark.parametrize("turns", [1.0, 20.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", [*MODELS, SERVOS], ids=[*MODELS, "servos"])
def test_matches_c(model: str, seed: int, turns: float) -> None:
    mj_model = load(model)
    check(mj_model, moved(mj_model, seed, turns))


@pytest.mark.parametrize("flag", ["CLAMPCTRL", "ACTUATION", "GRAVITY"])
@pytest.mark.parametrize("model", ["feature/actuators", SERVOS], ids=["actuators", "servos"])
def test_disabled_flag(model: str, flag: str) -> None:
    mj_model = load(model)
    mj_model.opt.disableflags |= getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")
    check(mj_model, moved(mj_model, 0, 10.0))


@pytest.mark.parametrize("groups", [1 << 3, 1 << 30, (1 << 3) | 1, (1 << 31) - 1])
def test_disabled_group(groups: int) -> None:
    mj_model = load(SERVOS, disableactuator=groups)
    check(mj_model, moved(mj_model, 0))


def test_no_actuators_no_gravity_compensation_by_them() -> None:
    mj_model = load(
        "<mujoco><worldbody><body gravcomp='1'><joint actuatorgravcomp='true'/><geom size='.1' pos='1 0 0'/></body>"
        "</worldbody></mujoco>"
    )
    check(mj_model, random_state(mj_model))


@pytest.mark.parametrize("value", [float("nan"), 1e11, -float("inf")])
@pytest.mark.parametrize("actuator", [0, 9])  # without and with a range
def test_bad_control(value: float, actuator: int) -> None:
    mj_model = load(SERVOS)
    mj_data = random_state(mj_model)
    m = put_model(mj_model, dtype=torch.float64)
    mj_data.ctrl[actuator] = value
    before = put_data(mj_model, mj_data, model=m)
    mujoco.mj_forward(mj_model, mj_data)
    expected = put_data(mj_model, mj_data, model=m)
    assert_fields_close(fwd_actuation(m, poison(before, ACTUATION)), expected, (*ACTUATION, "warning"), 1e-9)


@pytest.mark.parametrize("length", np.linspace(-0.2, 2.2, 25))
def test_muscle_functions(length: float) -> None:
    velocities = np.concatenate([np.linspace(-3, 3, 25), [0.0]])
    prm = [0.7, 1.1, -1.0, 200.0, 0.5, 1.7, 1.5, 1.3, 1.2, 0.0]
    lengthrange, acc0 = np.array([0.1, 0.7]), 3.0

    def rows(x: list[float] | np.ndarray) -> torch.Tensor:
        return torch.tensor(np.array(x), dtype=torch.float64).expand(len(velocities), -1)

    lengths, v = torch.full((len(velocities),), length, dtype=torch.float64), torch.tensor(velocities)
    acc0s = torch.full_like(v, acc0)
    gain = muscle.gain(lengths, v, rows(lengthrange), acc0s, rows(prm))
    bias = muscle.bias(lengths, rows(lengthrange), acc0s, rows(prm))
    first = np.array(prm[:9])
    expected = [mujoco.mju_muscleGain(length, u, lengthrange, acc0, first) for u in velocities]
    assert gain.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    expected = [mujoco.mju_muscleBias(length, lengthrange, acc0, first)] * len(v)
    assert bias.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    for width in (0.0, 0.4):
        dynprm = np.array([0.01, 0.04, width])
        rate = muscle.activation_rate(v, lengths, rows(np.concatenate([dynprm, np.zeros(7)])))
        expected = [mujoco.mju_muscleDynamics(u, length, dynprm) for u in velocities]
        assert rate.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_muscle_gain_velocity_is_the_derivative() -> None:
    v = torch.linspace(-1.4, 1.4, 29, dtype=torch.float64) + 0.01
    prm = v.new_tensor([0.7, 1.1, 5.0, 200.0, 0.5, 1.7, 1.5, 1.3, 1.2, 0.0]).expand(29, 10)
    length, acc0, lengthrange = torch.full_like(v, 0.4), torch.ones_like(v), v.new_tensor([0.1, 0.7]).expand(29, 2)
    args = (length, v, lengthrange, acc0, prm)
    slope = torch.func.grad(lambda v: muscle.gain(length, v, lengthrange, acc0, prm).sum())(v)
    assert torch.allclose(muscle.gain_velocity(*args), slope, rtol=1e-12)


@pytest.mark.parametrize("model", [*MODELS[:5], SERVOS], ids=[*MODELS[:5], "servos"])
def test_next_activation(model: str) -> None:
    mj_model = load(model)
    mj_data = moved(mj_model, 1, 3.0)
    m = put_model(mj_model, dtype=torch.float64)
    d = put_data(mj_model, mj_data, model=m)
    act = next_activation(m, d, d.act_dot).tolist()
    step = mujoco.MjData(mj_model)
    mujoco.mj_copyState(mj_model, mj_data, step, mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_step(mj_model, step)
    wraps = m.plan.actuation.act_wraps.mask.index_fill(0, m.plan.servo.turner_act.flatten(), True)
    assert [a for a, w in zip(act, wraps, strict=True) if not w] == pytest.approx(step.act[~wraps.numpy()], rel=1e-9)


@pytest.mark.parametrize("model", [*MODELS[:5], SERVOS], ids=[*MODELS[:5], "servos"])
def test_vmap_and_gradients(model: str) -> None:
    mj_model = load(model)
    m = put_model(mj_model, dtype=torch.float64)
    d = put_data(mj_model, random_state(mj_model, 2), model=m)

    def force(qpos: torch.Tensor, ctrl: torch.Tensor, act: torch.Tensor) -> torch.Tensor:
        return fwd_actuation(m, transmission(m, d.replace(qpos=qpos, ctrl=ctrl, act=act))).qfrc_actuator

    inputs = (d.qpos, d.ctrl, d.act)
    batched = tuple(torch.stack([x, 0.5 * x]) for x in inputs)
    expected = torch.stack([force(*(x[i] for x in batched)) for i in range(2)])
    assert torch.allclose(torch.vmap(force)(*batched), expected, rtol=1e-12)
    for at in (inputs, tuple(torch.zeros_like(x) for x in inputs)):
        jacobians = torch.func.jacrev(force, argnums=(0, 1, 2))(*at)
        assert all(x.isfinite().all() for x in tree.leaves(jacobians))
    assert torch.autograd.gradcheck(force, tuple(x.clone().requires_grad_() for x in inputs), atol=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_adhesion_under_elliptic_cones(seed: int) -> None:
    mj_model = load("feature/transmissions", cone=int(mujoco.mjtCone.mjCONE_ELLIPTIC))
    check(mj_model, random_state(mj_model, seed))


@pytest.mark.parametrize("seed", range(3))
def test_limit_on_the_torque_of_orientation_servos(seed: int) -> None:
    mj_model = load("feature/servos")
    limited = [mj_model.actuator(name).id for name in ("site", "tight")]
    mj_model.actuator_forcerange[limited, 1] = 0.9, 0.3
    mj_data = random_state(mj_model, seed)
    check(mj_model, mj_data)
    m = put_model(mj_model, dtype=torch.float64)
    d = put_data(mj_model, mj_data, model=m)
    slope, torque = actuator_vel(m, d), d.actuator_force[m.plan.servo.turner_out].norm(dim=-1)
    saturated = (torque - m.actuator_forcerange[m.plan.servo.turner, 1]).abs() < 1e-12
    assert saturated.any()
    assert ((slope[m.plan.servo.turner_out] == 0).all(-1) == saturated).all()
