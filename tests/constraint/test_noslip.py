"""Noslip iterations against C, after every solver and under both cones."""

import mujoco
import pytest
import torch
from constraint.solver_reference import error
from reference import assert_fields_close, load, poison, random_state

import mjtorch
from mjtorch import tree
from mjtorch.constraint import solve
from mjtorch.math import linalg
from mjtorch.model import Integrator, Model

SOLVERS = [int(getattr(mujoco.mjtSolver, f"mjSOL_{name}")) for name in ("NEWTON", "CG", "PGS")]
CONES = [int(cone) for cone in (mujoco.mjtCone.mjCONE_PYRAMIDAL, mujoco.mjtCone.mjCONE_ELLIPTIC)]
FIELDS = ("qacc", "qfrc_constraint", "efc_force")
SCENE = """
<mujoco>
  <option timestep="0.004"/>
  <default><geom condim="{condim}" friction=".7 .02 .005"/></default>
  <worldbody>
    <geom type="plane" size="5 5 .1" euler="8 0 0"/>
    <body pos="0 0 .2">
      <freejoint/>
      <geom type="capsule" size=".1" fromto="-.2 -.2 0 .2 -.2 0"/>
      <geom type="capsule" size=".1" fromto="-.2 .2 0 .2 .2 0"/>
      <body pos=".2 0 0">
        <joint axis="0 1 0" frictionloss=".3" range="-20 20"/>
        <geom type="capsule" size=".05" fromto="0 0 0 .3 0 0"/>
      </body>
    </body>
    <body pos=".1 0 .45">
      <freejoint/>
      <geom type="capsule" size=".1" fromto="-.1 -.1 0 .2 .1 0"/>
    </body>
    <body pos="1 0 .2">
      <joint name="a" type="slide" axis="1 0 0" frictionloss="1"/>
      <joint name="b" axis="0 1 0"/>
      <geom size=".2"/>
    </body>
  </worldbody>
  <equality><joint joint1="a" joint2="b" polycoef="0 .2 0 0 0"/></equality>
  <tendon><fixed name="t" frictionloss=".5"><joint joint="a" coef="1"/><joint joint="b" coef=".1"/></fixed></tendon>
</mujoco>
"""


def scene(condim: int, **options: object) -> tuple[mujoco.MjModel, Model, list[mujoco.MjData]]:
    options = {"noslip_tolerance": 1e-12, **options}
    mj_model = load(SCENE.format(condim=condim), **options)
    mj_datas = [random_state(mj_model, seed, warmup=30) for seed in range(2)]
    return mj_model, mjtorch.put_model(mj_model, dtype=torch.float64), mj_datas


@pytest.mark.parametrize(
    "condim, iterations",
    [(1, 2), (3, 1), (6, 4), pytest.param(3, 30, marks=pytest.mark.slow), pytest.param(4, 2, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("cone", CONES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_as_c(solver: int, cone: int, condim: int, iterations: int) -> None:
    mj_model, m, mj_datas = scene(condim, solver=solver, cone=cone, noslip_iterations=iterations)
    for mj_data in mj_datas:
        assert mj_data.ncon
        d = mjtorch.put_data(mj_model, mj_data, model=m)
        found = solve(m, poison(d, [*FIELDS, "efc_state"]))
        assert_fields_close(found, mj_data, FIELDS, 1e-7)
        assert_fields_close(found, d, ["solver_niter"], 0.0)


@pytest.mark.parametrize("cone", CONES)
def test_it_stops_at_the_tolerance_and_changes_something(cone: int) -> None:
    mj_model, m, (mj_data, _) = scene(3, cone=cone, noslip_iterations=200, noslip_tolerance=1e-5)
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    found = solve(m, d)
    assert_fields_close(found, mj_data, FIELDS, 1e-7)
    plain = solve(m.replace(opt=m.opt.replace(noslip_iterations=0)), d)
    assert 1 < int(found.solver_niter - plain.solver_niter) < 200
    assert error(plain.qacc, mj_data.qacc) > 1e-3


@pytest.mark.parametrize("cone", CONES)
def test_transforms(cone: int) -> None:
    """One by one, under vmap and compiled; a world without contacts and one that is not finite beside others."""
    mj_model, m, mj_datas = scene(4, cone=cone, noslip_iterations=5)
    datas = [mjtorch.put_data(mj_model, mj_data, model=m) for mj_data in mj_datas]
    free = datas[0].replace(efc_D=torch.zeros_like(datas[0].efc_D), efc_J=torch.zeros_like(datas[0].efc_J))
    bad = datas[0].replace(qfrc_smooth=datas[0].qfrc_smooth * torch.nan, qacc_smooth=datas[0].qacc_smooth * torch.nan)
    worlds = [*datas, free, bad]
    wanted = tree.stack([solve(m, d) for d in worlds])
    assert wanted.qacc[3].isnan().all() and wanted.qacc[:3].isfinite().all()
    batch = tree.stack(worlds)
    for run in (torch.vmap(solve, (None, 0)), mjtorch.jit(solve, in_dims=(None, 0), strict=True)):
        found = run(m, batch)
        for name in FIELDS:
            x, y = getattr(found, name), getattr(wanted, name)
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9, equal_nan=True)
        assert torch.equal(found.solver_niter[:3], wanted.solver_niter[:3])


def test_gradient() -> None:
    """Derivatives obey `M qacc = qfrc_smooth + J' f`, and are finite."""
    mj_model, m, (mj_data, _) = scene(3, noslip_iterations=5)
    d = mjtorch.put_data(mj_model, mj_data, model=m)

    def total(qfrc: torch.Tensor) -> torch.Tensor:
        free = linalg.ltl_solve(d.qLD, qfrc)
        found = solve(m, d.replace(qfrc_smooth=qfrc, qacc_smooth=free))
        return d.qLD.mT @ (d.qLD @ found.qacc) - qfrc - found.qfrc_constraint

    assert torch.func.jacrev(total)(d.qfrc_smooth).abs().max() < 1e-8
    assert torch.func.grad(lambda v: mjtorch.forward(m, d.replace(qvel=v)).qacc.sum())(d.qvel).isfinite().all()


@pytest.mark.parametrize("cone", CONES)
def test_there_is_room_for_the_dofs_of_two_chains(cone: int) -> None:
    """One body lies on a limb of another: what either has moves their contacts."""
    mj_model, m, (mj_data, _) = scene(4, cone=cone, noslip_iterations=3)
    mujoco.mj_resetData(mj_model, mj_data)
    mj_data.qpos[8:11] = 0.4, 0.0, 0.32
    mujoco.mj_forward(mj_model, mj_data)
    d, plan = mjtorch.put_data(mj_model, mj_data, model=m), m.plan.noslip
    W = linalg.ltl_half_solve(d.qLD, d.efc_J[plan.rows.flatten()].mT).mT.unflatten(0, plan.rows.shape)
    assert int((W != 0).any(1).sum(1).max()) == 13 == plan.dofs < m.nv
    assert_fields_close(solve(m, poison(d, [*FIELDS, "efc_state"])), mj_data, FIELDS, 1e-7)


def test_what_couples_other_dofs_has_room_for_all() -> None:
    text = SCENE.format(condim=3)
    mj_model = load(text.replace("<fixed", "<fixed armature='.1'"), noslip_iterations=1)
    assert mjtorch.put_model(mj_model).plan.noslip.dofs == mj_model.nv
    mj_model = load(text, noslip_iterations=1)
    mj_model.opt.integrator = Integrator.DISCRETE
    assert mjtorch.put_model(mj_model).plan.noslip.dofs == mj_model.nv
