"""Stock `torch.compile` around and after a step: what compiles again and what does not, derivatives, axes, outputs."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import case, load, random_state
from torch import Tensor

import mjtorch
from mjtorch import tree
from mjtorch.model import Data, DisableBit, Model

PENDULUM = """<mujoco><option timestep="0.005"/><worldbody>
    <body pos="0 0 1"><joint name="hinge" axis="0 1 0" damping="0.1"/><geom type="capsule" size="0.05 0.2"/></body>
</worldbody><actuator><motor joint="hinge"/></actuator></mujoco>"""
SLIDERS = """<mujoco><worldbody>
    <body><joint type="slide"/><geom size="0.1"/><body pos="1 0 0"><joint type="slide"/><geom size="0.1"/></body></body>
</worldbody></mujoco>"""
BALL = """<mujoco><worldbody><geom type="plane" size="1 1 1"/>
    <body pos="0 0 0.09"><freejoint/><geom size="0.1"/></body>
</worldbody></mujoco>"""

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
# Before 2.13 loops side by side were made one that must not be, with wrong gradients: see docs/performance.md.
OLD_INDUCTOR = {"cpp.max_horizontal_fusion_size": 1}

many = torch.vmap(mjtorch.step, in_dims=(None, 0))

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled(fn: Callable, backend: str = "eager") -> Callable:
    """For what Dynamo makes of a function, the backend "eager" will do, and takes less time."""
    options = OLD_INDUCTOR if backend == "inductor" and TORCH < (2, 13) else None
    return torch.compile(fn, fullgraph=True, backend=backend, options=options)


def single(xml: str) -> tuple[Model, Data]:
    mj_model = load(xml)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    return m, mjtorch.put_data(mj_model, random_state(mj_model, 0), model=m)


def several(xml: str) -> tuple[Model, Data]:
    m, d = single(xml)
    return m, tree.stack([d, d.replace(qvel=d.qvel + 0.1), d.replace(qvel=-d.qvel)])


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def assert_same(found: Any, wanted: Any, tolerance: float = 1e-10) -> None:
    for x, (path, y) in zip(tree.leaves(found), tree.leaves_with_path(wanted), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance, msg=lambda text, path=path: f"{path}: {text}")


@pytest.mark.slow
def test_what_compiles_again() -> None:
    """Another structure, number of worlds or model does, once each; then each is there to stay.

    Numbers of worlds do not share a program, because PyTorch's vmap makes constants of them, in `torch.cat` for one.
    """
    m, d = several(PENDULUM)
    floating = m.replace(opt=m.opt.replace(disableflags=m.opt.disableflags | int(DisableBit.GRAVITY)))
    cases = [(m, d), (floating, d), (m, tree.batch(tree.unstack(d)[1], 5)), several(SLIDERS)]
    run = compiled(many)
    for n, (m, d) in enumerate(cases, start=1):
        assert_same(run(m, d), many(m, d))
        assert graphs() == n
    with torch._dynamo.config.patch(error_on_recompile=True):
        for m, d in cases:
            heavier = dataclasses.replace(m, body_mass=m.body_mass * 2)
            assert_same(run(heavier, run(m, d)), many(heavier, many(m, d)))


@pytest.mark.slow
def test_models_with_a_compiled_function_each() -> None:
    pairs = [(compiled(many, "aot_eager"), *several(xml)) for xml in (PENDULUM, BALL)]
    for run, m, d in pairs:
        assert_same(run(m, d), many(m, d))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for run, m, d in pairs:
            assert_same(run(m, run(m, d)), many(m, many(m, d)))


@pytest.mark.slow
def test_replace_inside() -> None:
    def steps(m: Model, d: Data, u: Tensor) -> Data:
        m = m.replace(body_mass=m.body_mass * 1.1)
        d = mjtorch.step(m, dataclasses.replace(d, ctrl=u))
        m = dataclasses.replace(m, opt=m.opt.replace(disableflags=int(DisableBit.GRAVITY)))
        return mjtorch.step(m, d.replace(ctrl=-u))

    m, d = single(PENDULUM)
    u = torch.ones_like(d.ctrl)
    assert_same(compiled(steps)(m, d, u), steps(m, d, u))
    assert graphs() == 1


@pytest.mark.slow
def test_axes_of_a_model_and_chosen_outputs() -> None:
    def fn(m: Model, d: Data) -> Data:
        return mjtorch.step(m, d, outputs=("sensordata", "contact.dist"))

    m, d = several(PENDULUM)
    fn = torch.vmap(fn, in_dims=(mjtorch.model_axes(m, "body_mass", "opt.gravity"), 0))
    factor = torch.tensor([[1.0], [1.5], [2.0]], dtype=torch.float64)
    m = m.replace(body_mass=m.body_mass * factor, opt=m.opt.replace(gravity=m.opt.gravity * factor))
    run = compiled(fn)
    found = run(m, d)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert_same(run(m, found), fn(m, fn(m, d)))


def loss(qpos: Tensor, m: Model, d: Data) -> Tensor:
    """Of where a step leads."""
    d = mjtorch.step(m, d.replace(qpos=qpos))
    return d.qpos.square().sum() + d.qvel.square().sum()


def loss_of_two(qpos: Tensor, m: Model, d: Data) -> Tensor:
    d = mjtorch.step(m, d.replace(qpos=qpos))
    return loss(d.qpos, m, d)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fn, xml",
    [
        (loss, PENDULUM),
        (loss_of_two, PENDULUM),
        (loss, BALL),
    ],
    ids=["one step", "two steps", "contact"],
)
def test_backward_through_a_compiled_loss(fn: Callable, xml: str) -> None:
    m, d = single(xml)
    wanted = torch.func.grad(fn)(d.qpos, m, d)
    assert wanted.isfinite().all() and wanted.abs().max() > 0
    qpos = d.qpos.clone().requires_grad_()
    compiled(fn, "aot_eager")(qpos, m, d).backward()
    assert_same(qpos.grad, wanted, 1e-8)


@pytest.mark.slow
def test_gradients_of_many_worlds() -> None:
    m, d = several(PENDULUM)
    worlds = torch.vmap(torch.func.grad(loss), in_dims=(0, None, 0))
    wanted = worlds(d.qpos, m, d)
    alone = [torch.func.grad(loss)(one.qpos, m, one) for one in tree.unstack(d)]
    assert_same(wanted, torch.stack(alone), 1e-9)
    assert_same(compiled(worlds)(d.qpos, m, d), wanted, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("model, backend", [("collection/cartpole", "inductor"), ("collection/hopper", "aot_eager")])
def test_gradients_of_many_robots(model: str, backend: str) -> None:
    this = case(model, converge=True)
    worlds = torch.vmap(torch.func.grad(reached, (0, 1, 2)), in_dims=(0, 0, 0, None, 0))
    d = tree.stack(list(this.datas))
    arguments = (d.qpos, d.qvel, d.ctrl, this.m, d)
    wanted = worlds(*arguments)
    assert all(x.any() for x in wanted)
    assert_same(compiled(worlds, backend)(*arguments), wanted, 1e-8)


def reached(qpos: Tensor, qvel: Tensor, ctrl: Tensor, m: Model, d: Data) -> Tensor:
    d = mjtorch.step(m, d.replace(qpos=qpos, qvel=qvel, ctrl=ctrl), outputs=())
    return (d.qpos * d.qpos).sum() + d.qvel.sin().sum()
