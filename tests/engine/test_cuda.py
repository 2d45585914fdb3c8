"""Steps as printed for GPUs, on the host: those of the CPU, by one lane and by lanes in random order."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from compiler.emulated import emulate
from reference import MODELS, TRAINED, case, slow_but

import mjtorch
from mjtorch import tree
from mjtorch.cli.diagnose import gradient
from mjtorch.compiler.jit import Jitted
from mjtorch.compiler.passes.warp_memory import RESERVED, WARP_SIZE
from mjtorch.compiler.targets.cuda.build import resources
from mjtorch.compiler.targets.cuda.pipeline import scheduled
from mjtorch.compiler.targets.cuda.printer import print_program
from mjtorch.compiler.targets.cuda.report import REGISTERS, SHARED, for_gpu, worlds_at_once
from mjtorch.compiler.targets.cuda.shape import shape_of
from mjtorch.compiler.targets.cuda.simulated.machine import MACHINES
from mjtorch.compiler.targets.cuda.simulated.run import simulate

WORLDS = 2
# Models of which two worlds share a warp, and one of which four do.
SHARING, CARTPOLE = ("collection/hopper", "gym/hopper", "feature/controllers"), ("collection/cartpole", 8)
# Among them a pile that does not fit into shared memory: by one lane too, where nothing is added in another order.
# `pytest -m slow` takes all models, by 32.
CHOSEN = ("collection/pile", "feature/contacts")
SAME = 1e-12
# Lanes add up in another order, and a solver that stops at a tolerance stops with another last digit.
IN_ANOTHER_ORDER = 1e-9
# One for all models, and for one model all that differ in what they have.
ARCHITECTURES = [(model, "sm_90") for model in sorted({*TRAINED, *CHOSEN})]
ARCHITECTURES += [("collection/humanoid", "sm_80"), ("collection/humanoid", "sm_120")]


def assert_lanes_agree(f: Jitted, counts: Sequence[int], wanted: Any, *args: Any, **kwargs: Any) -> None:
    """By so many lanes, the first worlds of `wanted`."""
    lowered = for_gpu(f.mapped, *args, **kwargs)
    call = f.parameters.call(args, kwargs)
    for lanes in counts:
        tolerance = SAME if lanes == 1 else IN_ANOTHER_ORDER
        results = emulate(lowered, lanes, seed=1)(call.leaves, call.signature.dims, WORLDS)
        for (path, y), x in zip(tree.leaves_with_path(wanted), results, strict=True):
            assert_close(path, x, y[:WORLDS], tolerance)


def assert_close(path: str, x: torch.Tensor, y: torch.Tensor, tolerance: float) -> None:
    """Results relative to the greatest, if that is over 1; not what the last bit decides."""
    scale = max(1.0, float(y.double().abs().nan_to_num().max())) if y.numel() else 1.0
    if not path.endswith("efc_state"):
        torch.testing.assert_close(x.double(), y.double(), rtol=0, atol=tolerance * scale, equal_nan=True)


# Of those that are not slow one has contacts, and one has trees of one joint each.
@pytest.mark.parametrize("model", slow_but(MODELS, "feature/contacts", "feature/controllers"))
def test_lanes_step_as_the_cpu_does(model: str) -> None:
    this = case(model)
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)
    # A build with lanes of worlds: three of them.
    wanted = step(this.m, tree.stack([*this.datas[:WORLDS], this.datas[0]]))
    counts = (1, 16, 32) if model in CHOSEN else (32,)
    assert_lanes_agree(step, counts, wanted, this.m, tree.stack(list(this.datas[:WORLDS])))


@pytest.mark.parametrize(
    ("model", "lanes"),
    slow_but([*((m, 16) for m in SHARING), CARTPOLE], CARTPOLE),
)
def test_worlds_of_a_warp_step_as_the_cpu_does(model: str, lanes: int) -> None:
    """By the instructions of a GPU: each world turns in loops until all of its warp are done."""
    this = case(model)
    d = tree.stack(list(this.datas[: WARP_SIZE // lanes]))
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)
    wanted = list(tree.leaves_with_path(step(this.m, d)))
    program = scheduled(for_gpu(step.mapped, this.m, d).program, lanes)
    call = step.parameters.call((this.m, d), {})
    found = simulate(program, print_program(program), call.leaves, call.signature.dims, "sm_90", MACHINES["sm_90"])
    assert found.worlds == WARP_SIZE // lanes
    for position, x in found.outputs.items():
        path, y = wanted[position]
        y = y.expand(found.worlds, *y.shape[1:]).reshape(x.shape)
        assert_close(path, torch.from_numpy(x), y, IN_ANOTHER_ORDER)


@pytest.mark.slow
def test_lanes_roll_out_as_the_cpu_does() -> None:
    """The loop over steps is in the kernel; its state stays in shared memory."""
    this = case("gym/hopper")
    d = tree.stack(list(this.datas[:WORLDS]))
    ctrl = torch.linspace(-0.1, 0.1, WORLDS * 6 * this.m.nu, dtype=torch.float64).reshape(WORLDS, 6, this.m.nu)
    rollout = mjtorch.jit(mjtorch.rollout, in_dims=(None, 0, 0), strict=True)
    assert_lanes_agree(rollout, (1, 16, 32), rollout(this.m, d, 6, ctrl=ctrl), this.m, d, 6, ctrl=ctrl)


@pytest.mark.parametrize(
    "model", slow_but(("collection/cartpole", "gym/hopper", "feature/landing"), "collection/cartpole")
)
def test_lanes_differentiate_as_the_cpu_does(model: str) -> None:
    """A gradient is a program like others."""
    this = case(model)
    d = tree.stack(list(this.datas[:WORLDS]))
    derivative = mjtorch.jit(gradient, in_dims=(None, 0), strict=True)
    wanted = derivative(this.m, d)
    assert all(x.abs().max() > 0 for x in wanted if x.numel())
    assert_lanes_agree(derivative, (1, 32), wanted, this.m, d)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["collection/cartpole", "gym/hopper"])
def test_lanes_step_with_models_that_differ(model: str) -> None:
    """Each world reads its own masses and gravity, in the launch that computes it."""
    this = case(model)
    d, names = tree.stack(list(this.datas[:WORLDS])), ("body_mass", "opt.gravity")
    scale = torch.tensor([0.9, 1.2], dtype=torch.float64)[:, None]
    m = this.m.replace(body_mass=this.m.body_mass * scale, opt=this.m.opt.replace(gravity=this.m.opt.gravity * scale))
    step = mjtorch.jit(mjtorch.step, in_dims=(mjtorch.model_axes(this.m, *names), 0), strict=True)
    wanted = step(m, d)
    same = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)(this.m, d)
    assert not torch.equal(wanted.qacc, same.qacc)
    assert_lanes_agree(step, (1, 32), wanted, m, d)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "architecture"), ARCHITECTURES)
def test_steps_compile_for_gpus(model: str, architecture: str) -> None:
    this = case(model)
    m = mjtorch.put_model(this.mj_model)
    d = mjtorch.batch(mjtorch.make_data(m), WORLDS)
    lowered = for_gpu(mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True).mapped, m, d)
    source = print_program(scheduled(lowered.program))
    alone = resources(source.text, architecture)
    assert alone.spills == 0 and 32 <= alone.registers <= 255
    shape = shape_of(source, SHARED[architecture] - RESERVED)
    together = resources(source.text, architecture, *shape.options)
    assert together.registers * shape.warps * WARP_SIZE <= REGISTERS and worlds_at_once(shape, together) >= shape.warps
    assert together.guards == 0
