"""Islands that are searched apart, against C, where solvers do not get to the end."""

import mujoco
import numpy as np
import pytest
import torch
from gradient.transition import differences_of_c, error
from reference import slow_but

import mjtorch
from mjtorch import tree
from mjtorch.constraint.island import FEW, _joined, _joined_densely
from mjtorch.constraint.solver import groups
from mjtorch.constraint.solver.solve import solve
from mjtorch.control_flow import compilable

NEWTON, CG, PGS = mujoco.mjtSolver.mjSOL_NEWTON, mujoco.mjtSolver.mjSOL_CG, mujoco.mjtSolver.mjSOL_PGS
PYRAMIDAL, ELLIPTIC = mujoco.mjtCone.mjCONE_PYRAMIDAL, mujoco.mjtCone.mjCONE_ELLIPTIC
ISLAND = int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
BOX = '<body pos="{}"><freejoint/><geom type="box" size=".1 .1 .05" mass="{}"/></body>'
ARM = """<body pos="{} 1 .3"><joint axis="0 1 0" frictionloss=".2" limited="true" range="-.1 .1"/>
<geom type="capsule" size=".03" fromto="0 0 0 .4 0 0"/><body pos=".4 0 0"><joint axis="0 1 0" damping=".1"/>
<geom type="capsule" size=".03" fromto="0 0 0 .3 0 -.1"/></body></body>"""
# Two arms, one of which lies on a box; two boxes, one on the other; a ball in the air.
TREES = 6
SCENE = f"""<mujoco><worldbody><geom type="plane" size="9 9 1"/>{ARM.format(0)}{ARM.format(2)}
{BOX.format("2.6 1 .05", 0.3)}{BOX.format("0 0 .05", 1)}{BOX.format(".05 .02 .145", 5)}
<body pos="0 0 9"><freejoint/><geom size=".1"/></body></worldbody></mujoco>"""
SETTINGS = [(solver, cone) for solver in (NEWTON, CG, PGS) for cone in (PYRAMIDAL, ELLIPTIC)]


def scene(solver: int, cone: int, iterations: int) -> mujoco.MjModel:
    mj_model = mujoco.MjModel.from_xml_string(SCENE)
    mj_model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    mj_model.opt.solver, mj_model.opt.cone, mj_model.opt.iterations = solver, cone, iterations
    return mj_model


def moving(mj_model: mujoco.MjModel, seed: int, steps: int = 40) -> mujoco.MjData:
    """A state some steps after a push, after `mj_forward`, with a warm start that fits the step before."""
    rng = np.random.default_rng(seed)
    d = mujoco.MjData(mj_model)
    d.qvel[:] = 0.3 * rng.standard_normal(mj_model.nv)
    for _ in range(steps):
        mujoco.mj_step(mj_model, d)
    d.qfrc_applied[:] = 0.3 * rng.standard_normal(mj_model.nv)
    mujoco.mj_forward(mj_model, d)
    return d


def together(mj_model: mujoco.MjModel, d: mujoco.MjData) -> np.ndarray:
    """C's `qacc` from the same state, all islands at once."""
    mj_model.opt.disableflags |= ISLAND
    other = mujoco.MjData(mj_model)
    other.qpos[:], other.qvel[:], other.qacc_warmstart[:] = d.qpos, d.qvel, d.qacc_warmstart
    other.qfrc_applied[:] = d.qfrc_applied
    mujoco.mj_forward(mj_model, other)
    mj_model.opt.disableflags &= ~ISLAND
    return other.qacc.copy()


@pytest.mark.parametrize("iterations", [1, 2, 4])
@pytest.mark.parametrize("solver, cone", SETTINGS)
def test_few_iterations_as_c(solver: int, cone: int, iterations: int) -> None:
    mj_model, apart = scene(solver, cone, iterations), 0.0
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    for seed in range(6):
        d = moving(mj_model, seed, steps=40)
        assert d.nisland >= 2
        x = mjtorch.forward(m, mjtorch.put_data(mj_model, d, model=m))
        scale = np.abs(d.qacc).max()
        np.testing.assert_allclose(x.qacc / scale, d.qacc / scale, atol=1e-10)
        force = np.abs(d.qfrc_constraint).max()
        np.testing.assert_allclose(x.qfrc_constraint / force, d.qfrc_constraint / force, atol=1e-10)
        assert x.solver_niter == d.solver_niter[: d.nisland].max()
        apart = max(apart, np.abs(together(mj_model, d) - d.qacc).max() / scale)
    # Newton's method has found it after four; PGS goes through rows in another order after a while.
    assert apart > 1e-3 or (solver == NEWTON and iterations == 4) or (solver == PGS and iterations == 1)


@pytest.mark.parametrize("solver, cone", SETTINGS)
def test_noslip_as_c(solver: int, cone: int) -> None:
    """Islands end after sweeps of their own."""
    mj_model = sweeping(solver, cone)
    m, apart = mjtorch.put_model(mj_model, dtype=torch.float64), 0.0
    for seed in range(4):
        d = moving(mj_model, seed, steps=40)
        x = mjtorch.forward(m, mjtorch.put_data(mj_model, d, model=m))
        scale = np.abs(d.qacc).max()
        np.testing.assert_allclose(x.qacc / scale, d.qacc / scale, atol=1e-9)
        apart = max(apart, np.abs(together(mj_model, d) - d.qacc).max() / scale)
    assert apart > 1e-5


def sweeping(solver: int, cone: int) -> mujoco.MjModel:
    """Up to 20 sweeps of noslip, of which islands need 3 to 16."""
    mj_model = scene(solver, cone, 50 if solver == CG else 100)
    mj_model.opt.tolerance, mj_model.opt.ls_tolerance = 1e-14, 1e-8
    mj_model.opt.noslip_iterations, mj_model.opt.noslip_tolerance = 20, 1e-5
    return mj_model


@pytest.mark.parametrize("cone", [PYRAMIDAL, ELLIPTIC])
@pytest.mark.parametrize("seed", [1, 2])
def test_derivatives_of_noslip(seed: int, cone: int) -> None:
    mj_model = sweeping(NEWTON, cone)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = moving(mj_model, seed, steps=40)
    found = mjtorch.linearize(m, mjtorch.put_data(mj_model, d, model=m))
    for x, y in zip(found, differences_of_c(mj_model, d), strict=True):
        assert error(x, y) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("solver, cone", slow_but(SETTINGS, (NEWTON, PYRAMIDAL), (CG, ELLIPTIC), (PGS, ELLIPTIC)))
def test_compiled(solver: int, cone: int, dtype: torch.dtype) -> None:
    mj_model = scene(solver, cone, 3)
    mj_model.opt.noslip_iterations = 3 if solver == PGS else 0
    m = mjtorch.put_model(mj_model, dtype=dtype)
    datas = [mjtorch.put_data(mj_model, moving(mj_model, k, 10 * k), model=m) for k in range(20)]
    d = tree.map(lambda *xs: torch.stack(xs), *datas)
    wanted = torch.vmap(mjtorch.forward, in_dims=(None, 0))(m, d).qacc
    found = mjtorch.jit(mjtorch.forward, in_dims=(None, 0))(m, d).qacc
    near = 1e-10 if dtype == torch.float64 else 1e-3
    assert ((found - wanted).abs().amax(1) < near * wanted.abs().amax(1)).all()


@pytest.mark.slow
def test_torch_compiled() -> None:
    """Worlds have other islands each, with other numbers of rows and sweeps."""
    mj_model = scene(PGS, PYRAMIDAL, 5)
    mj_model.opt.noslip_iterations = 3
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    datas = [mjtorch.put_data(mj_model, moving(mj_model, k, 10 * k), model=m) for k in range(3)]
    d = tree.map(lambda *xs: torch.stack(xs), *[mjtorch.forward(m, x) for x in datas])

    @compilable
    def forces(m: mjtorch.Model, d: mjtorch.Data) -> tuple[torch.Tensor, torch.Tensor]:
        x = solve(m, d)
        return x.efc_force, x.solver_niter

    worlds = torch.vmap(forces, in_dims=(None, 0))
    wanted, sweeps = worlds(m, d)
    found, niter = torch.compile(worlds, fullgraph=True)(m, d)
    torch.testing.assert_close(found, wanted)
    assert niter.tolist() == sweeps.tolist() and len(set(sweeps.tolist())) > 1


def test_what_nothing_touches_falls_freely() -> None:
    mj_model = scene(NEWTON, PYRAMIDAL, 1)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.put_data(mj_model, moving(mj_model, 0), model=m)
    x = mjtorch.forward(m, d.replace(qacc_warmstart=torch.randn(m.nv, dtype=torch.float64)))
    assert (x.qacc[-6:] == x.qacc_smooth[-6:]).all() and (x.qacc[:-6] != x.qacc_smooth[:-6]).any()


@pytest.mark.parametrize("setting", ["many", "sure", "disabled", "alone"])
def test_all_at_once(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are many, where they get to the end anyway, if so asked, and if there is one tree."""
    mj_model = scene(NEWTON, PYRAMIDAL, 1)
    assert groups.searched_apart(mjtorch.put_model(mj_model))
    if setting == "many":
        monkeypatch.setattr(groups, "MOST", TREES - 1)
    elif setting == "sure":
        mj_model.opt.iterations = 100
    elif setting == "disabled":
        mj_model.opt.disableflags |= ISLAND
    else:
        mj_model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{ARM.format(0)}</worldbody></mujoco>")
        mj_model.opt.iterations = 1
    assert not groups.searched_apart(mjtorch.put_model(mj_model))


@pytest.mark.parametrize("seed", range(20))
def test_trees_are_joined_by_tables_as_by_walks(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    n = 1 + seed % FEW
    ends, active = torch.randint(n, (2, 9), generator=rng), torch.rand(9, generator=rng) < 0.5
    number = torch.arange(n)
    assert (_joined(ends, active, number) == _joined_densely(ends, active, number)).all()
