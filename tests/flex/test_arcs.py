"""Elastic lines whose edges no joints turn where tables of models do not look: integrators, flags, what is straight."""

import mujoco
import numpy as np
import pytest
import torch
from flex.checks import PASSIVE, derivative_of_differences, forward_as_c
from reference import SINCE_4, STATE, assert_fields_close, case, converged, load, mj_stepped, random_state

import mjtorch
from mjtorch.model import put_model

pytestmark = SINCE_4

HOOPS = "feature/hoops"
EULER, RK4, DISCRETE = 0, 1, 4
FREE = '<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/><joint type="slide" axis="0 0 1"/>'
# Four points, both corners between which are bent at rest, in planes that differ.
HOOK = ((0, 0, 0), (0.1, 0, 0), (0.2, 0.05, 0), (0.27, 0.1, 0.06))


def hook(points: tuple[tuple[float, ...], ...] = HOOK, integrator: str = "discrete") -> mujoco.MjModel:
    bodies = "".join(
        f'<body name="b{k}" pos="{x} {y} {z}">{FREE}<inertial mass=".1" pos="0 0 0" diaginertia="1 1 1"/></body>'
        for k, (x, y, z) in enumerate(points)
    )
    names = " ".join(f"b{k}" for k in range(len(points)))
    elements = " ".join(f"{k} {k + 1}" for k in range(len(points) - 1))
    return load(f"""
<mujoco>
  <option timestep="1e-3" integrator="{integrator}"/>
  <worldbody>{bodies}</worldbody>
  <deformable>
    <flex name="hook" dim="1" radius=".01" body="{names}" element="{elements}">
      <elasticity young="1e5" poisson=".2" damping=".01"/>
    </flex>
  </deformable>
</mujoco>""")


@pytest.mark.parametrize("flags", ["", "SPRING", "DAMPER", "SPRING DAMPER"])
@pytest.mark.parametrize("integrator", [EULER, RK4, DISCRETE], ids=["Euler", "RK4", "discrete"])
def test_steps_match_c(integrator: int, flags: str) -> None:
    mj_model = converged(load(HOOPS, integrator=integrator))
    if integrator == DISCRETE:
        mj_model.flex_edgestiffness[:] = mj_model.flex_edgedamping[:] = 0
    for flag in flags.split():
        mj_model.opt.disableflags |= getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")
    m = put_model(mj_model, dtype=torch.float64)
    mj_data = random_state(mj_model)
    assert mj_data.ncon
    d = forward_as_c(m, mj_data, [*PASSIVE, "qacc"], 1e-9)
    assert_fields_close(mjtorch.step(m, d), mj_stepped(mj_model, mj_data), STATE[:4], 1e-9, m=m)


@pytest.mark.parametrize("straight", [0.3, 1e-2, 1e-4, 1e-5, 0.0])
@pytest.mark.parametrize("corners", ["one", "both"])
def test_what_is_bent_at_rest_and_straight_now(corners: str, straight: float) -> None:
    """Planes of corners vanish smoothly, in forces, dampers and what of stiffness is inertia."""
    mj_model = hook()
    m = put_model(mj_model, dtype=torch.float64)
    mj_data, x = mujoco.MjData(mj_model), np.array(HOOK)
    along = x[2] - x[1]
    x[0] = x[1] - along + straight * np.array([0.02, 0.01, 0.1])
    if corners == "both":
        x[3] = x[2] + along + straight * np.array([0.03, -0.1, 0.04])
    mj_data.qpos[:] = (x - HOOK).ravel()
    mj_data.qvel[:] = 1e-3 * np.random.default_rng(0).standard_normal(mj_model.nv)
    mujoco.mj_forward(mj_model, mj_data)
    # Of the size of what bends by nothing but rounding.
    fields = [x for x in (*PASSIVE, "qacc_smooth") if straight or x == "qfrc_spring"]
    forward_as_c(m, mj_data, fields, 1e-5)  # C solves in steps


@pytest.mark.parametrize("points", [HOOK[:3], ((0, 0, 0), (0.1, 0, 0), (0.22, 0, 0), (0.3, 0, 0))])
def test_a_corner_alone_has_no_plane(points: tuple[tuple[float, ...], ...]) -> None:
    mj_model = hook(points)
    m = put_model(mj_model, dtype=torch.float64)
    for seed in range(2):
        mj_data = random_state(mj_model, seed)
        forward_as_c(m, mj_data, [*PASSIVE, "qacc"], 1e-9, f"seed {seed}")


def test_forces_differentiate() -> None:
    """With respect to positions, velocities and stiffness, against differences."""
    this = case(HOOPS, seeds=1)
    d, generator = this.datas[0], torch.Generator().manual_seed(0)
    inputs = (d.qpos, d.qvel, this.m.flex_bending)
    ways = [0.01 * torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in inputs]
    ways[2] = ways[2] * this.m.flex_bending * (this.m.flex_bending.abs() % 1 != 0)

    def force(*x: torch.Tensor) -> torch.Tensor:
        m = this.m.replace(flex_bending=x[2])
        return mjtorch.forward(m, d.replace(qpos=x[0], qvel=x[1])).qfrc_passive

    derivative_of_differences(force, inputs, ways, step=1e-5)
