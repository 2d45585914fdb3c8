"""Whole steps against C, from five states of every model."""

import mujoco
import numpy as np
import pytest
import torch
from reference import (
    COLLECTION,
    COMPUTED,
    FEATURES,
    FORWARD,
    GYM,
    MODELS,
    STATE,
    VARIED,
    Case,
    assert_fields_close,
    case,
    converged,
    load,
    mj_stepped,
    poison,
    random_state,
    slow_but,
    with_integrators,
)

import mjtorch
from mjtorch import tree

INTEGRATORS = ("Euler", "RK4", "implicit", "implicitfast")
# A PGS that has not converged depends on the order of its rows, which is not that of C where condims are mixed.
OWN_LIMITS = 1e-4
SOLVERS = ("PGS", "CG", "Newton")


def assert_steps_match(this: Case, rtol: float) -> None:
    for seed, (mj_data, d) in enumerate(zip(this.mj_datas, this.datas, strict=True)):
        stepped = mjtorch.step(this.m, poison(d, COMPUTED))
        wanted = mj_stepped(this.mj_model, mj_data)
        assert_fields_close(stepped, wanted, STATE[:6], rtol, m=this.m, context=f"seed {seed}")


@pytest.mark.parametrize("model", MODELS)
def test_forward_matches_c(model: str, device: str) -> None:
    """From state and inputs alone; the solver runs to the minimum on both sides."""
    this = case(model, converge=True, device=device)
    for seed, (mj_data, d) in enumerate(zip(this.mj_datas, this.datas, strict=True)):
        d = mjtorch.forward(this.m, poison(d, COMPUTED))
        assert_fields_close(d, mj_data, FORWARD, 1e-5, m=this.m, context=f"seed {seed}")


@pytest.mark.parametrize("model", slow_but(MODELS, *VARIED, *GYM, *COLLECTION))
def test_step_matches_c(model: str, device: str) -> None:
    assert_steps_match(case(model, converge=True, device=device), 1e-7)


@pytest.mark.parametrize("model", slow_but(MODELS, *VARIED))
def test_step_matches_c_within_the_models_own_limits(model: str, device: str) -> None:
    """With the solver, iterations and tolerances that the model asks for: nearly converged."""
    assert_steps_match(case(model, device=device), OWN_LIMITS)


@pytest.mark.parametrize(
    "model, integrator",
    with_integrators(slow_but(FEATURES + GYM, "feature/ball", "feature/delays", *VARIED), INTEGRATORS),
)
def test_every_integrator_matches_c(model: str, integrator: str) -> None:
    number = int(getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}"))
    assert_steps_match(variant(model, integrator=number), 1e-7)


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "model",
    slow_but(
        [
            *("feature/contacts", "feature/pairs", "feature/joints", "feature/tendon_forces", "feature/weld"),
            *("feature/rope", "feature/grids", "gym/ant"),
        ],
        *("feature/pairs", "feature/tendon_forces", "feature/weld"),
    ),
)
def test_every_solver_and_cone_matches_c(model: str, solver: str, cone: str) -> None:
    """Within the iterations given: CG and PGS need not have converged, but do the same as C."""
    number = int(getattr(mujoco.mjtSolver, f"mjSOL_{solver.upper()}"))
    options = {"solver": number, "cone": int(cone == "elliptic"), "iterations": 100 if solver == "Newton" else 2000}
    assert_steps_match(variant(model, tolerance=1e-14, ls_tolerance=1e-6, **options), 1e-6)


def variant(model: str, **options: object) -> Case:
    """Three states of a model with other options."""
    mj_model = load(model)
    if "solver" not in options:
        options["solver"] = int(mujoco.mjtSolver.mjSOL_NEWTON)
        mj_model = converged(mj_model)
    for name, value in options.items():
        setattr(mj_model.opt, name, value)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    mj_datas = tuple(random_state(mj_model, seed) for seed in range(3))
    return Case(mj_model, m, mj_datas, tuple(mjtorch.put_data(mj_model, d, model=m) for d in mj_datas))


@pytest.mark.parametrize("model", GYM)
def test_float32_step_is_close(model: str, device: str) -> None:
    """Positions to 1e-4 and velocities to 1e-2 of their size: accelerations under stiff contacts are that uncertain."""
    this = case(model, device=device)
    m = mjtorch.put_model(this.mj_model, dtype=torch.float32)
    for seed, mj_data in enumerate(this.mj_datas):
        d = mjtorch.step(m, mjtorch.put_data(this.mj_model, mj_data, model=m))
        wanted = mj_stepped(this.mj_model, mj_data)
        assert d.qpos.dtype == d.efc_J.dtype == d.contact.dist.dtype == torch.float32
        assert_fields_close(d, wanted, ["qpos"], 1e-4, m=m, context=f"seed {seed}")
        assert_fields_close(d, wanted, ["qvel"], 1e-2, m=m, context=f"seed {seed}")


@pytest.mark.parametrize("model", slow_but(MODELS, *VARIED, *COLLECTION))
def test_step_changes_no_input_and_keeps_every_shape(model: str, device: str) -> None:
    this = case(model, device=device)
    d = this.datas[0]
    before = [x.clone() for x in tree.leaves(d) + tree.leaves(this.m)]
    stepped = mjtorch.step(this.m, d)
    for old, new in zip(before, tree.leaves(d) + tree.leaves(this.m), strict=True):
        assert torch.equal(old.nan_to_num(), new.nan_to_num())
    for (name, old), (_, new) in zip(tree.leaves_with_path(d), tree.leaves_with_path(stepped), strict=True):
        assert (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device), name


@pytest.mark.parametrize("model", GYM)
def test_twenty_steps_stay_with_c(model: str, device: str) -> None:
    """From the reference pose; errors grow from step to step."""
    this = case(model, converge=True, device=device)
    mj_data = mujoco.MjData(this.mj_model)
    mujoco.mj_resetData(this.mj_model, mj_data)
    mj_data.ctrl[:] = 0.1 * np.random.default_rng(0).standard_normal(this.mj_model.nu)
    d = mjtorch.put_data(this.mj_model, mj_data, model=this.m)
    for _ in range(20):
        mujoco.mj_step(this.mj_model, mj_data)
        d = mjtorch.step(this.m, d)
    assert_fields_close(d, mj_data, ["time", "qpos", "qvel"], 1e-5, m=this.m)
