"""Jacobians of points and applied forces equal C's."""

from collections.abc import Callable

import mujoco
import numpy as np
import pytest
import torch
from constraint.rows import ARM, moved
from reference import case, oracle

import mjtorch
from mjtorch.model import Data, Model, put_model
from mjtorch.model.put_data import put_data
from mjtorch.smooth.jacobian import (
    apply_ft,
    jac,
    jac_body,
    jac_body_com,
    jac_dot,
    jac_geom,
    jac_site,
    jac_subtree_com,
    xfrc_accumulate,
)


def test_jac() -> None:
    mj_model = oracle(mujoco.MjModel.from_xml_string(ARM.format(equality="")))
    m = put_model(mj_model, dtype=torch.float64)
    rng = np.random.default_rng(0)
    for seed in range(3):
        state = moved(mj_model, seed)
        body = np.arange(mj_model.nbody)
        point = state.xpos + rng.standard_normal((mj_model.nbody, 3))
        expected = np.zeros((2, mj_model.nbody, 3, mj_model.nv))
        for b in body:
            mujoco.mj_jac(mj_model, state, expected[0, b], expected[1, b], point[b], b)
        actual = jac(m, put_data(mj_model, state, model=m), torch.tensor(point), torch.tensor(body))
        np.testing.assert_allclose(torch.stack(actual), expected, rtol=1e-12, atol=1e-12)


def test_xfrc_accumulate() -> None:
    mj_model = oracle(mujoco.MjModel.from_xml_string(ARM.format(equality="")))
    m = put_model(mj_model, dtype=torch.float64)
    for seed in range(3):
        state = moved(mj_model, seed)
        state.xfrc_applied[:] = np.random.default_rng(seed).standard_normal((mj_model.nbody, 6))
        expected = np.zeros(mj_model.nv)
        for b in range(1, mj_model.nbody):
            force, torque = np.split(state.xfrc_applied[b], 2)
            mujoco.mj_applyFT(mj_model, state, force, torque, state.xipos[b], b, expected)
        actual = xfrc_accumulate(m, put_data(mj_model, state, model=m))
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


MOVING = ("feature/weld", "feature/sensors", "feature/ball", "gym/humanoid")
KINDS = ((jac_body, "jacBody", "nbody"), (jac_body_com, "jacBodyCom", "nbody"), (jac_site, "jacSite", "nsite"))
KINDS += ((jac_geom, "jacGeom", "ngeom"),)


@pytest.mark.parametrize(("ours", "theirs", "size"), KINDS)
@pytest.mark.parametrize("model", MOVING)
def test_jac_of_objects(model: str, ours: Callable, theirs: str, size: str) -> None:
    this = case(model)
    n, nv = getattr(this.mj_model, size), this.mj_model.nv
    for mj_data, d in zip(this.mj_datas, this.datas, strict=True):
        expected = np.zeros((2, n, 3, nv))
        for i in range(n):
            getattr(mujoco, f"mj_{theirs}")(this.mj_model, mj_data, expected[0, i], expected[1, i], i)
        actual = torch.stack(ours(this.m, d, torch.arange(n)))
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("model", MOVING)
def test_jac_subtree_com(model: str) -> None:
    this = case(model)
    n, nv = this.mj_model.nbody, this.mj_model.nv
    for mj_data, d in zip(this.mj_datas, this.datas, strict=True):
        expected = np.zeros((n, 3, nv))
        for i in range(n):
            mujoco.mj_jacSubtreeCom(this.mj_model, mj_data, expected[i], i)
        J = jac_subtree_com(this.m, d, torch.arange(n))
        np.testing.assert_allclose(J, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("model", MOVING)
def test_jac_dot(model: str) -> None:
    this = case(model)
    n, nv = this.mj_model.nbody, this.mj_model.nv
    for mj_data, d in zip(this.mj_datas, this.datas, strict=True):
        expected = np.zeros((2, n, 3, nv))
        for i in range(n):
            mujoco.mj_jacDot(this.mj_model, mj_data, expected[0, i], expected[1, i], mj_data.xipos[i], i)
        actual = torch.stack(jac_dot(this.m, d, d.xipos, torch.arange(n)))
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


def test_apply_ft() -> None:
    this = case("feature/weld")
    rng = np.random.default_rng(0)
    for mj_data, d in zip(this.mj_datas, this.datas, strict=True):
        body = rng.integers(0, this.mj_model.nbody, 5)
        force, torque, point = rng.standard_normal((3, 5, 3))
        expected = np.zeros(this.mj_model.nv)
        for i in range(5):
            mujoco.mj_applyFT(this.mj_model, mj_data, force[i], torque[i], point[i], body[i], expected)
        actual = apply_ft(this.m, d, *(torch.tensor(x) for x in (force, torque, point, body)))
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("model", ["feature/weld", "gym/hopper"])
def test_vmap_jit_and_gradient(model: str) -> None:
    this = case(model)
    bodies = torch.arange(this.m.nbody)

    def everything(m: Model, d: Data) -> tuple[torch.Tensor, ...]:
        d = mjtorch.fwd_velocity(m, mjtorch.fwd_position(m, d))
        moving = jac_dot(m, d, d.xpos, bodies)
        return (*jac_body(m, d, bodies), *jac_body_com(m, d, bodies), jac_subtree_com(m, d, bodies), *moving)

    worlds = mjtorch.tree.stack(this.datas)
    eager = mjtorch.tree.stack([everything(this.m, d) for d in this.datas])
    for transform in (torch.vmap(everything, (None, 0)), mjtorch.jit(everything, in_dims=(None, 0), strict=True)):
        for found, wanted in zip(transform(this.m, worlds), eager, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)

    def total(qpos: torch.Tensor, d: Data) -> torch.Tensor:
        return torch.stack([x.square().sum() for x in everything(this.m, d.replace(qpos=qpos))]).sum()

    for d in this.datas:
        assert torch.func.grad(total)(d.qpos, d).isfinite().all()
