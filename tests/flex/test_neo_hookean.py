"""Neo-Hookean solids, which no MJCF can name, against C: forces, dampers, steps, ways to run them, derivatives."""

import mujoco
import numpy as np
import pytest
import torch
from flex.checks import PASSIVE, derivative_of_differences, forward_as_c, step_as_c
from reference import (
    SINCE_4,
    STATE,
    Case,
    assert_fields_close,
    case_of,
    converged,
    oracle,
    poison,
    slow_but,
)

import mjtorch
from mjtorch import tree
from mjtorch.compiler.targets.emulated.target import EmulatedWarp
from mjtorch.model import put_data, put_model

# A compiled spec warns of flexes without damping, whatever their elasticity.
pytestmark = [SINCE_4, pytest.mark.filterwarnings("ignore:flex '.*' is not rigid")]

# One on a floor, one that an arm holds at four vertices, one of the usual law.
SOLIDS = """
<mujoco>
  <option timestep="2e-3" integrator="discrete"/>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <flexcomp name="neo lump" type="grid" count="2 2 3" spacing=".1 .12 .1" mass=".5" radius=".01" dim="3" pos="0 0 .04"
      euler="20 30 40">
      <contact selfcollide="none" condim="3"/>
      <elasticity young="2e3" poisson=".3" damping=".02"/>
    </flexcomp>
    <flexcomp name="usual" type="grid" count="2 2 2" spacing=".1 .1 .1" mass=".2" radius=".01" dim="3" pos="0 1 1">
      <contact contype="0" conaffinity="0" selfcollide="none"/>
      <elasticity young="1e3" poisson=".2" damping=".01"/>
    </flexcomp>
    <body name="arm" pos="1 0 1">
      <joint name="swing" axis="0 1 0" damping=".1"/>
      <geom size=".05 .2" type="capsule" mass=".3" contype="0" conaffinity="0"/>
      <flexcomp name="neo pad" type="grid" count="2 2 2" spacing=".1 .1 .1" mass=".1" radius=".01" dim="3" pos=".2 0 0">
        <pin id="0 1 2 3"/>
        <contact contype="0" conaffinity="0" selfcollide="none"/>
        <elasticity young="5e3" poisson=".45" EXTRA/>
      </flexcomp>
    </body>
  </worldbody>
</mujoco>
"""
TETRAHEDRON = """
<mujoco>
  <option timestep="2e-3" integrator="discrete"/>
  <worldbody>
    <flexcomp name="neo" type="direct" dim="3" mass=".1" radius=".01" element="0 1 2 3"
      point="0 0 0  .1 0 0  .02 .12 .03  .01 .03 .15">
      <contact contype="0" conaffinity="0" selfcollide="none"/>
      <elasticity young="1e3" poisson=".3" damping=".02"/>
    </flexcomp>
  </worldbody>
</mujoco>
"""


def solids(extra: str = "", xml: str = SOLIDS, **options: int) -> mujoco.MjModel:
    spec = mujoco.MjSpec.from_string(xml.replace("EXTRA", extra))
    for flex in spec.flexes:
        flex.elastic3d = int(flex.name.startswith("neo"))
    mj_model = converged(oracle(spec.compile()))
    for option, value in options.items():
        setattr(mj_model.opt, option, value)
    return mj_model


def some(seeds: int = 2) -> Case:
    return case_of(solids(xml=TETRAHEDRON), seeds=seeds)


@pytest.mark.parametrize("scale", [1e-3, 0.3])
@pytest.mark.parametrize("damping", ["", 'damping=".05"'], ids=["", "damped"])
def test_forces_match_c(damping: str, scale: float) -> None:
    """Near rest, where forces are small differences, and turned inside out."""
    mj_model = solids(damping)
    m = put_model(mj_model, dtype=torch.float64)
    mj_data, rng = mujoco.MjData(mj_model), np.random.default_rng(0)
    mj_data.qpos[:] = scale * rng.standard_normal(mj_model.nq)
    mj_data.qvel[:] = rng.standard_normal(mj_model.nv)
    mujoco.mj_forward(mj_model, mj_data)
    forward_as_c(m, mj_data, PASSIVE, 1e-12)


@pytest.mark.parametrize(
    ("solver", "flags"), slow_but([(k, flags) for k in (1, 2) for flags in ("", "SPRING", "DAMPER")], (2, ""))
)
def test_steps_match_c(solver: int, flags: str) -> None:
    disabled = sum(int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")) for flag in flags.split())
    mj_model = solids(solver=solver, iterations=400)
    mj_model.opt.disableflags |= disabled
    this = case_of(mj_model, seeds=3)
    for seed, (mj_data, d) in enumerate(zip(this.mj_datas, this.datas, strict=True)):
        assert mj_data.ncon
        found = mjtorch.forward(this.m, poison(d, [*PASSIVE, "qacc", "qfrc_constraint"]))
        assert_fields_close(found, mj_data, [*PASSIVE, "qacc_smooth"], 1e-10, m=this.m, context=f"seed {seed}")
        assert_fields_close(found, mj_data, ["qacc", "qfrc_constraint"], 1e-6, m=this.m, context=f"seed {seed}")
        step_as_c(this.m, d, mj_data, 1e-7, f"seed {seed}")


def test_derivatives_match_differences() -> None:
    """Of a step, by positions, velocities and the numbers of the material; some eigenvalues are negative here."""
    this = some(1)
    d, generator = this.datas[0], torch.Generator().manual_seed(0)
    inputs = (d.qpos, d.qvel, this.m.flex_stiffness, this.m.flex_damping)
    ways = [torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in inputs]
    ways = (0.1 * ways[0], ways[1], *(way * x for way, x in zip(ways[2:], inputs[2:], strict=True)))

    def smooth(*x: torch.Tensor) -> torch.Tensor:
        m = this.m.replace(flex_stiffness=x[2], flex_damping=x[3])
        return mjtorch.forward(m, d.replace(qpos=x[0], qvel=x[1])).qacc_smooth

    found = derivative_of_differences(smooth, inputs, ways)
    pull = torch.randn(found.shape, dtype=found.dtype, generator=generator)
    pulled = torch.func.vjp(smooth, *inputs)[1](pull)
    total = sum((x * way).sum() for x, way in zip(pulled, ways, strict=True))
    torch.testing.assert_close(total, (pull * found).sum(), rtol=1e-9, atol=0)


def test_derivatives_at_rest_are_finite() -> None:
    """Where singular values are equal, and eigenvalues zero."""
    m = some(1).m
    d = mjtorch.make_data(m)
    grad = torch.func.grad(lambda x: mjtorch.forward(m, d.replace(qpos=x)).qacc_smooth.square().sum())(d.qpos)
    assert grad.isfinite().all()


def test_ways_to_run() -> None:
    this = some()
    worlds = tree.stack(list(this.datas))
    wanted = torch.vmap(mjtorch.step, in_dims=(None, 0))(this.m, worlds)
    found = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)(this.m, worlds)
    for name in STATE[:5]:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=0, atol=1e-9)
    for k, d in enumerate(this.datas):
        torch.testing.assert_close(mjtorch.step(this.m, d).qvel, wanted.qvel[k], rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("how", ["warp", "stock", "float32"])
def test_other_ways_to_run(how: str) -> None:
    this = some()
    worlds = tree.stack(list(this.datas))
    wanted = torch.vmap(mjtorch.step, in_dims=(None, 0))(this.m, worlds)
    m, given, close = this.m, worlds, 1e-9
    if how == "float32":
        m, close = put_model(this.mj_model, dtype=torch.float32), 1e-3
        given = tree.stack([put_data(this.mj_model, mj_data, model=m) for mj_data in this.mj_datas])
    if how == "stock":
        run = torch.compile(torch.vmap(mjtorch.step, in_dims=(None, 0)), fullgraph=True, backend="eager")
    else:
        run = mjtorch.jit(
            mjtorch.step, in_dims=(None, 0), backend=EmulatedWarp(32, seed=1) if how == "warp" else "auto"
        )
    found = run(m, given)
    for name in STATE[:4]:
        torch.testing.assert_close(getattr(found, name).double(), getattr(wanted, name), rtol=0, atol=close)


@pytest.mark.parametrize("scale", [1e-3, 0.03])
def test_those_that_yield_match_c(scale: float) -> None:
    """Forces, and the stiffness that dampers resist by, with any memory; what they remember after a step."""
    mj_model = solids('yield=".01" damping=".05"')
    m = put_model(mj_model, dtype=torch.float64)
    mj_data, rng = mujoco.MjData(mj_model), np.random.default_rng(0)
    mj_data.qpos[:] = scale * rng.standard_normal(mj_model.nq)
    mj_data.qvel[:] = rng.standard_normal(mj_model.nv)
    mj_data.plastic[:] = 1e-3 * rng.standard_normal(mj_model.nplastic)
    mujoco.mj_forward(mj_model, mj_data)
    d = forward_as_c(m, mj_data, [*PASSIVE, "qacc_smooth"], 1e-10)
    after = step_as_c(m, d, mj_data, 1e-7)
    assert (after.plastic != mj_data.plastic).any()


def test_derivatives_of_those_that_yield_match_differences() -> None:
    """Of accelerations, which inertia from stiffness is in, and of what is remembered, by state and memory."""
    mj_model = solids(xml=TETRAHEDRON.replace("damping", 'yield=".01" damping'))
    m = put_model(mj_model, dtype=torch.float64)
    d, generator = mjtorch.make_data(m), torch.Generator().manual_seed(0)
    inputs = [x * torch.randn(n, dtype=d.qpos.dtype, generator=generator) for x, n in ((0.02, 12), (1, 12), (1e-3, 6))]
    ways = [x * torch.randn(n, dtype=d.qpos.dtype, generator=generator) for x, n in ((0.1, 12), (1, 12), (1e-3, 6))]

    def stepped(*x: torch.Tensor) -> torch.Tensor:
        after = mjtorch.step(m, d.replace(qpos=x[0], qvel=x[1], plastic=x[2]))
        return torch.cat([after.qacc_smooth / 1e3, after.plastic])

    derivative_of_differences(stepped, inputs, ways)
