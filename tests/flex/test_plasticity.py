"""Flexes that yield where the tables of models do not look: integrators, flags, large folds, derivatives."""

import mujoco
import numpy as np
import pytest
import torch
from flex.checks import PASSIVE, derivative_of_differences, forward_as_c, step_as_c
from reference import SINCE_4, assert_fields_close, case, converged, load, mj_stepped, poison, random_state

import mjtorch
from mjtorch.flex.plasticity import of_volume
from mjtorch.model import put_data, put_model

pytestmark = SINCE_4

CLAY = "feature/clay"
EULER, RK4, DISCRETE = 0, 1, 4
# Two triangles that fold about the edge between them; what is `Y` yields, to bending alone.
HINGE = """
<mujoco>
  <option timestep="1e-3" gravity="0 0 0"/>
  <worldbody>
    <flexcomp name="hinge" type="direct" dim="2" mass="1" radius=".01" element="0 1 2 1 0 3"
      point="0 0 0  .2 0 0  .05 .1 0  .13 -.06 0">
      <contact contype="0" conaffinity="0" selfcollide="none"/>
      <elasticity young="1e3" poisson=".3" thickness="1e-2" elastic2d="Y" yield="0 .05"/>
    </flexcomp>
  </worldbody>
</mujoco>
"""


@pytest.mark.parametrize("flags", ["", "SPRING", "DAMPER"])
@pytest.mark.parametrize("integrator", [EULER, RK4, DISCRETE], ids=["Euler", "RK4", "discrete"])
def test_steps_match_c(integrator: int, flags: str) -> None:
    mj_model = converged(load(CLAY, integrator=integrator))
    if integrator == DISCRETE:
        mj_model.flex_edgedamping[:] = 0
    for flag in flags.split():
        mj_model.opt.disableflags |= getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")
    m = put_model(mj_model, dtype=torch.float64)
    for seed in range(3):
        mj_data = random_state(mj_model, seed)
        d = forward_as_c(m, mj_data, PASSIVE, 1e-8, f"seed {seed}")  # C's cells turn by 1e-9
        after = step_as_c(m, d, mj_data, 1e-8, f"seed {seed}")
        assert (after.plastic != mj_data.plastic).any() == (flags != "SPRING")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bend", "both"])
def test_large_folds(kind: str) -> None:
    """Beyond a right angle either way, stretched and squeezed, bent back again, as far as it stays."""
    mj_model = load(HINGE.replace("Y", kind))
    m = put_model(mj_model, dtype=torch.float64)
    rng, most = np.random.default_rng(0), 0.0
    for _ in range(60):
        mj_data = mujoco.MjData(mj_model)
        mj_data.qpos[:] = 0.12 * rng.standard_normal(mj_model.nq)
        mj_data.qvel[:] = rng.standard_normal(mj_model.nv)
        mj_data.plastic[mj_model.flex_edgeflap[:, 1] >= 0] = rng.standard_normal()
        mujoco.mj_forward(mj_model, mj_data)
        d = forward_as_c(m, mj_data, PASSIVE, 1e-9)
        after = step_as_c(m, d, mj_data, 1e-9)
        most = max(most, np.abs(after.plastic).max())
    assert most > 1


def test_derivatives_of_what_is_remembered() -> None:
    """By positions, velocities, memory and yields, against differences."""
    this = case(CLAY, seeds=1)
    d, generator = this.datas[0], torch.Generator().manual_seed(0)
    inputs = (d.qpos, d.qvel, d.plastic, this.m.flex_yield)
    ways = tuple(torch.randn(x.shape, dtype=x.dtype, generator=generator) * x.abs().mean() for x in inputs)
    ways = (*ways[:3], ways[3] * (this.m.flex_yield != 0))

    def memory(*x: torch.Tensor) -> torch.Tensor:
        m = this.m.replace(flex_yield=x[3])
        return mjtorch.step(m, d.replace(qpos=x[0], qvel=x[1], plastic=x[2])).plastic

    derivative_of_differences(memory, inputs, ways, rtol=1e-4)


@pytest.mark.parametrize("scale", [1e-6, 0.1, 1.0, 30.0])
def test_of_volume(scale: float) -> None:
    a = scale * torch.randn(100, 3, 3, dtype=torch.float64)
    found = of_volume(a + a.mT)
    assert torch.allclose(torch.linalg.det(found), torch.ones(100, dtype=torch.float64), rtol=1e-9 * (1 + scale**3))
    change = found - a - a.mT
    assert torch.allclose(change, change[:, :1, :1] * torch.eye(3, dtype=torch.float64), atol=1e-12 * (1 + scale))


# Quadratic shapes and shells of several cells, some of whose nodes a body holds.
GRIDS = """
<mujoco>
  <option timestep="1e-3" gravity="0 0 0" integrator="I"/>
  <worldbody>
    <body name="arm">
      <joint axis="0 1 0"/>
      <geom size=".02" pos="0 0 .3" mass=".2" contype="0" conaffinity="0"/>
      <flexcomp name="grid" type="grid" dim="3" count="5 3 3" spacing=".05 .1 .1" mass=".5" radius="0" dof="quadratic"
        euler="20 30 40"><pin id="0 1 2 3"/>
        <contact contype="0" conaffinity="0" selfcollide="none"/>
        <elasticity young="1e3" poisson=".3" damping=".01" yield=".02"/>
      </flexcomp>
    </body>
    <flexcomp name="elastic" type="grid" dim="3" count="3 3 3" spacing=".1 .1 .1" mass=".5" radius="0" dof="quadratic">
      <contact contype="0" conaffinity="0" selfcollide="none"/>
      <elasticity young="1e3"/>
    </flexcomp>
    <flexcomp name="shell" type="grid" dim="3" count="3 3 3" spacing=".1 .1 .1" mass=".5" radius="0" dof="quadratic"
      euler="20 30 40">
      <contact contype="0" conaffinity="0" selfcollide="none"/>
      <elasticity young="1e3" poisson=".3" thickness="2e-2" elastic2d="stretch" yield=".02"/>
    </flexcomp>
    <flexcomp name="box" type="grid" dim="3" count="3 3 3" spacing=".1 .1 .1" mass=".5" radius="0" dof="trilinear"
      cellcount="2 1 1">
      <contact contype="0" conaffinity="0" selfcollide="none"/>
      <elasticity young="1e3" poisson=".3" thickness="2e-2" elastic2d="both" yield=".02"/>
    </flexcomp>
  </worldbody>
</mujoco>
"""


@pytest.mark.parametrize("integrator", ["Euler", pytest.param("discrete", marks=pytest.mark.slow)])
def test_grids(integrator: str) -> None:
    """Stretched and pushed together, with strains from before."""
    mj_model = converged(load(GRIDS.replace('"I"', f'"{integrator}"')))
    m = put_model(mj_model, dtype=torch.float64)
    for seed, size in enumerate((0.002, 0.01)):
        mj_data, rng = mujoco.MjData(mj_model), np.random.default_rng(seed)
        mj_data.qpos[:] = size * rng.standard_normal(mj_model.nq)
        mj_data.qvel[:] = rng.standard_normal(mj_model.nv)
        mj_data.plastic[:] = 0.01 * rng.standard_normal(mj_model.nplastic)
        mujoco.mj_forward(mj_model, mj_data)
        d = put_data(mj_model, mj_data, model=m)
        slides = slice(1, None)  # C leaves out what nodes that slide in a frame do to the body of that
        found = mjtorch.forward(m, poison(d, PASSIVE))
        for name in PASSIVE[:2]:
            ours, theirs = getattr(found, name).numpy()[slides], getattr(mj_data, name)[slides]
            assert np.abs(ours - theirs).max() < 1e-8 * max(np.abs(theirs).max(), 1), name
        after = mj_stepped(mj_model, mj_data)
        changed = (after.plastic != mj_data.plastic).mean()
        assert changed > 0.3
        assert_fields_close(mjtorch.step(m, d), after, ["plastic"], 1e-6, m=m, context=f"seed {seed}")
