"""Inverse dynamics against C, and against our own forward dynamics."""

import functools

import mujoco
import numpy as np
import pytest
import torch
from reference import (
    FEATURES,
    MODELS,
    VARIED,
    Case,
    assert_fields_close,
    case,
    converged,
    load,
    poison,
    random_state,
    slow_but,
    with_integrators,
)

import mjtorch
from mjtorch import tree
from mjtorch.model import Data, EnableBit

OUTPUTS = "qfrc_inverse qfrc_constraint qfrc_bias qfrc_passive efc_force sensordata qacc".split()
POISONED = "qfrc_inverse qfrc_constraint qfrc_bias efc_force efc_J efc_aref M qLD xpos cvel contact.dist".split()
CLOSE = 1e-8
# C finds where a capsule and a height field are nearest to 1e-8 m, which stiff contacts magnify, and frames of cells of
# flexes to 1e-9.
COARSE = {
    "feature/surfaces": 1e-5,
    **dict.fromkeys(("feature/grids", "feature/clay", "feature/puddings", "feature/custard"), 1e-7),
}
INTEGRATORS = ("Euler", "implicit", "implicitfast")


@functools.cache
def wanted(model: str, *, enable: int = 0, seeds: int = 3, **options: int) -> Case:
    """States in which accelerations are not those of forward dynamics, and C's inverse dynamics of them."""
    mj_model = converged(load(model, **options))
    mj_model.opt.enableflags |= enable
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    mj_datas, datas = [], []
    for seed in range(seeds):
        d = random_state(mj_model, seed)
        d.qacc += np.random.default_rng(seed).standard_normal(mj_model.nv)
        datas.append(mjtorch.put_data(mj_model, d, model=m))
        mujoco.mj_inverse(mj_model, d)
        mj_datas.append(d)
    return Case(mj_model, m, tuple(mj_datas), tuple(datas))


def check(this: Case, tolerance: float = CLOSE) -> None:
    for seed, (mj_data, d) in enumerate(zip(this.mj_datas, this.datas, strict=True)):
        d = mjtorch.inverse(this.m, poison(d, POISONED))
        assert_fields_close(d, mj_data, OUTPUTS, tolerance, m=this.m, context=f"seed {seed}")


@pytest.mark.parametrize("model", slow_but(MODELS, *VARIED, *MODELS[::4]))
def test_matches_c(model: str) -> None:
    check(wanted(model), COARSE.get(model, CLOSE))


@pytest.mark.parametrize(
    "model, integrator",
    with_integrators(slow_but([*FEATURES, "gym/humanoid"], *VARIED, "gym/humanoid"), slow_but(INTEGRATORS, "implicit")),
)
def test_discrete_matches_c(model: str, integrator: str) -> None:
    number = int(getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}"))
    check(wanted(model, enable=int(EnableBit.INVDISCRETE), integrator=number), COARSE.get(model, CLOSE))


# Before 4.0 the inverse of Euler had damping also where the forward dynamics has none.
FLAGS = ["EULERDAMP", "DAMPER"] if mujoco.mj_version() >= 4_000_000 else ["EULERDAMP"]


@pytest.mark.parametrize("flag", FLAGS)
def test_discrete_without_damping_matches_c(flag: str) -> None:
    disable = int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}") | mujoco.mjtDisableBit.mjDSBL_ISLAND)
    options = {"integrator": 0, "disableflags": disable}
    check(wanted("feature/joints", enable=int(EnableBit.INVDISCRETE), **options))


@pytest.mark.parametrize("cone", [0, 1])
@pytest.mark.parametrize("model", ["feature/contacts", "feature/weld", "gym/ant"])
def test_every_cone_matches_c(model: str, cone: int) -> None:
    check(wanted(model, cone=cone))


def test_no_discrete_inverse_of_runge_kutta() -> None:
    this = wanted("feature/joints")
    opt = this.m.opt.replace(integrator=mjtorch.Integrator.RK4, enableflags=int(EnableBit.INVDISCRETE))
    with pytest.raises(ValueError, match="disable the flag invdiscrete"):
        mjtorch.inverse(this.m.replace(opt=opt), this.datas[0])


@pytest.mark.parametrize("model", ["feature/weld", "feature/joints", "gym/humanoid", "collection/quadruped"])
def test_inverse_undoes_forward(model: str) -> None:
    this = case(model, converge=True)
    for d in this.datas:
        forward = mjtorch.forward(this.m, d)
        d = mjtorch.inverse(this.m, forward)
        applied = d.qfrc_applied + d.qfrc_actuator + mjtorch.xfrc_accumulate(this.m, d)
        scale = float(1 + forward.qfrc_constraint.abs().max() + applied.abs().max())
        torch.testing.assert_close(d.qfrc_inverse, applied, rtol=0, atol=1e-5 * scale)
        torch.testing.assert_close(d.qfrc_constraint, forward.qfrc_constraint, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("integrator", slow_but([None, "implicit", "implicitfast"], None))
@pytest.mark.parametrize(
    "model", slow_but(["feature/forces", "feature/joints", "feature/actuators", "gym/ant"], "feature/forces", "gym/ant")
)
def test_vmap_jit_and_gradient(model: str, integrator: str | None) -> None:
    this = wanted(model)
    if integrator is not None:
        number = int(getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}"))
        this = wanted(model, enable=int(EnableBit.INVDISCRETE), integrator=number)
    worlds = tree.stack(this.datas)
    eager = tree.stack([mjtorch.inverse(this.m, d) for d in this.datas])
    mapped = torch.vmap(mjtorch.inverse, (None, 0))(this.m, worlds)
    assert_fields_close(mapped, eager, [*OUTPUTS, "efc_state"], 1e-10)
    jitted = mjtorch.jit(mjtorch.inverse, in_dims=(None, 0), strict=True)
    assert_fields_close(jitted(this.m, worlds), eager, OUTPUTS, 1e-10)

    def effort(x: torch.Tensor, name: str, d: Data) -> torch.Tensor:
        return mjtorch.inverse(this.m, d.replace(**{name: x})).qfrc_inverse.square().sum()

    for name in ("qpos", "qvel", "qacc"):
        for d in this.datas:
            assert torch.func.grad(effort)(getattr(d, name), name, d).isfinite().all()


def test_gradient_is_that_of_finite_differences() -> None:
    this = wanted("gym/hopper")
    d = this.datas[0]

    def force(qacc: torch.Tensor) -> torch.Tensor:
        return mjtorch.inverse(this.m, d.replace(qacc=qacc)).qfrc_inverse

    torch.testing.assert_close(
        torch.func.jvp(force, (d.qacc,), (torch.ones_like(d.qacc),))[1],
        (force(d.qacc + 1e-6) - force(d.qacc - 1e-6)) / 2e-6,
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("model", ["feature/joints", "feature/contacts", "feature/free", "gym/ant"])
def test_comparison_matches_c(model: str) -> None:
    """With a solver that stops early, so that there is something to see."""
    mj_model = load(model, solver=1, iterations=2)
    mj_model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_FWDINV
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    for seed in range(3):
        mj_data = random_state(mj_model, seed)
        d = mjtorch.step(m, poison(mjtorch.put_data(mj_model, mj_data, model=m), ["solver_fwdinv"]))
        mujoco.mj_step(mj_model, mj_data)
        np.testing.assert_allclose(d.solver_fwdinv, mj_data.solver_fwdinv, rtol=1e-5, atol=1e-7)


def test_comparison_under_transforms() -> None:
    mj_model = load("feature/joints", solver=1, iterations=2)
    mj_model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_FWDINV
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    datas = [mjtorch.put_data(mj_model, random_state(mj_model, seed), model=m) for seed in range(3)]
    eager = tree.stack([mjtorch.step(m, d) for d in datas])
    assert eager.solver_fwdinv.any()
    for transform in (torch.vmap(mjtorch.step, (None, 0)), mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)):
        found = transform(m, tree.stack(datas))
        assert_fields_close(found, eager, ["solver_fwdinv", "qfrc_inverse"], 1e-9)

    def gap(qvel: torch.Tensor) -> torch.Tensor:
        return mjtorch.step(m, datas[0].replace(qvel=qvel)).solver_fwdinv.sum()

    assert torch.func.grad(gap)(datas[0].qvel).isfinite().all()
