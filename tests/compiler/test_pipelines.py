"""Targets: one that this file adds, and those that there are, without any one of their optimisations."""

import ctypes
import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from compiler.interpreted import interpreted
from reference import case
from torch import Tensor
from torch.fx import GraphModule

import mjtorch
from mjtorch import jit, tree
from mjtorch.compiler.__main__ import main
from mjtorch.compiler.ir.interpret import TYPES, interpret
from mjtorch.compiler.ir.nodes import INPUT, Program
from mjtorch.compiler.ir.parse import parse
from mjtorch.compiler.ir.text import as_text
from mjtorch.compiler.ir.verify import verify
from mjtorch.compiler.lowered import Lowered, lower_graph
from mjtorch.compiler.passes import Pass, run_passes
from mjtorch.compiler.passes.fuse import fuse_loops
from mjtorch.compiler.passes.narrow import narrow_integers
from mjtorch.compiler.ready import Ready, Runnable
from mjtorch.compiler.signature import Signature
from mjtorch.compiler.targets.cpu.pipeline import SIDE_BY_SIDE
from mjtorch.compiler.targets.cpu.target import CpuTarget
from mjtorch.compiler.targets.cuda.pipeline import CUDA
from mjtorch.compiler.targets.emulated.target import EmulatedWarp
from mjtorch.compiler.targets.target import Target
from mjtorch.control_flow import cond, scan, while_loop

# --- a target of one's own --------------------------------------------------------------------------------------------


class Toy(Target):
    """Prints a program as its text, and runs that in the interpreter."""

    name = "toy"
    passes = (Pass("fuse_loops", fuse_loops),)

    def print(self, program: Program) -> str:
        return as_text(program, whole=True)

    def build(self, source: str) -> Program:
        return parse(source)

    def load(self, built: Program, lowered: Lowered) -> "Text":
        return Text(built, lowered)


class Text(Runnable):
    """A program as a callable."""

    def __init__(self, program: Program, lowered: Lowered) -> None:
        self.program, self.outputs = program, lowered.outputs
        self.reads = tuple(b.position for b in program.inputs)

    def run(self, ready: Ready) -> None:
        given = {}
        for b in self.program.inputs:
            worlds = ready.count if b.kind == INPUT else 1
            given[b.position] = array(ready.inputs, b.position, b.size, worlds, TYPES[b.dtype])
        for k, found in interpret(self.program, given, ready.count).items():
            array(ready.outputs, k, len(found), ready.count, found.dtype)[:] = found


def array(table: Sequence[int], row: int, size: int, worlds: int, dtype: np.typing.DTypeLike) -> np.ndarray:
    """The array of a row of a table, as (size, worlds): what stands at an address, with two strides."""
    address, element, world = table[3 * row : 3 * row + 3]
    dtype = np.dtype(dtype)
    count = 1 + (size - 1) * element + (worlds - 1) * world
    numbers = np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)
    strides = (element * dtype.itemsize, world * dtype.itemsize)
    return np.lib.stride_tricks.as_strided(numbers, (size, worlds), strides)


def walk(gain: Tensor, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A scan, a loop of each world's own length, a choice, and a result that is an argument."""
    last, rows = scan(lambda c, row: ((c + gain * row).cos(), c * row), x[0], x, unroll=False)
    count, length = while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 0.9 + 0.1 * last), (torch.zeros_like(n), rows[1])
    )
    return torch.where(x[0] > 0, last.exp(), length.sin()), rows.sum(0), count, x


def walks(worlds: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(3, dtype=torch.float64), torch.randn(worlds, 5, 3, dtype=torch.float64), torch.arange(worlds) % 4


@pytest.mark.parametrize("worlds", [1, 5])
def test_a_target_of_ones_own(worlds: int) -> None:
    gain, x, n = walks(worlds)
    f = jit(walk, in_dims=(None, 0, 0), backend=Toy())
    for given in (x, x.movedim(0, -1).contiguous().movedim(-1, 0)):
        for found, wanted in zip(f(gain, given, n), torch.vmap(walk, in_dims=(None, 0, 0))(gain, x, n), strict=True):
            torch.testing.assert_close(found, wanted)
    assert f.ran == "native"
    assert f.debug(gain, x, n).is_well


# --- one pass less ----------------------------------------------------------------------------------------------------

PASSES = {"cpu": SIDE_BY_SIDE, "cuda": CUDA}
OPTIONAL = [(target, p.name) for target, passes in PASSES.items() for p in passes if not p.required]
QUICK = ("collection/cartpole",)
SLOW = ("collection/hopper", "collection/walker", "collection/humanoid", "feature/hulls", "feature/cylinders")


def test_passes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    listed = capsys.readouterr().out.splitlines()
    for name, passes in PASSES.items():
        at = listed.index(name)
        for k, p in enumerate(passes, start=1):
            required = " (required)" if p.required else ""
            assert p.about and listed[at + k] == f"  {k:2}. {p.name}{required}: {p.about}"


class CpuWithout(CpuTarget):
    """A CPU without the pass of that name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.without = name

    @property
    def passes(self) -> tuple[Pass, ...]:
        return without(super().passes, self.without)


class WarpWithout(EmulatedWarp):
    """A warp without the pass of that name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.without = name

    @property
    def passes(self) -> tuple[Pass, ...]:
        return without(super().passes, self.without)


def without(passes: Sequence[Pass], name: str) -> tuple[Pass, ...]:
    left = tuple(p for p in passes if p.name != name)
    assert len(left) == len(passes) - 1
    return left


def solve(gain: Tensor, x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    """Products, a factorization, a choice that costs something, and stores at places of each world's own."""
    matrix = x.T @ x + 3 * torch.eye(3, dtype=x.dtype)
    force = torch.linalg.solve(matrix, (x @ gain) @ x)
    bent = cond(n > 1, lambda: (force.exp() + matrix @ force).cos(), lambda: force)
    return torch.index_put(x, (n,), bent), torch.where(x > 1, x.exp().sin().exp(), 0.0), x[n].cumsum(0)


def both(gain: Tensor, x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    return *walk(gain, x, n), *solve(gain, x, n)


@pytest.mark.parametrize("target, name", OPTIONAL)
def test_printed_code_can_do_without_a_pass(target: str, name: str) -> None:
    backend = CpuWithout(name) if target == "cpu" else WarpWithout(name)
    given = walks(9)
    found = jit(both, in_dims=(None, 0, 0), backend=backend)(*given)
    for x, y in zip(found, torch.vmap(both, in_dims=(None, 0, 0))(*given), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


# --- in the interpreter, on steps of robots ---------------------------------------------------------------------------


class Traced(NamedTuple):
    """A step of a model: its graph, and two worlds, of which one has more contacts or limits than the other."""

    graph: GraphModule
    signature: Signature
    leaves: Sequence[Tensor]

    def lowered(self, target: str) -> Lowered:
        """The program as the target wants it."""
        constants = self.signature.constants(self.leaves)
        return lower_graph(self.graph, self.signature.shared, constants, elements=target == "cuda")


@functools.cache
def traced(name: str) -> Traced:
    """The step of the model of that name."""
    known = case(name)
    rows = [mj_data.nefc for mj_data in known.mj_datas]
    assert min(rows) < max(rows)
    d = tree.stack([known.datas[rows.index(count)] for count in (min(rows), max(rows))])
    step = jit(mjtorch.step, in_dims=(None, 0))
    call = step.parameters.call((known.m, d), {})
    return Traced(step.mapped.trace(call.signature)[0], call.signature, call.leaves)


@functools.cache
def computed(name: str, target: str, omitted: str = "") -> list[Tensor]:
    """What the program computes after the passes of a target, but one."""
    return after(name, target, without(PASSES[target], omitted) if omitted else PASSES[target])


def after(name: str, target: str, passes: Sequence[Pass]) -> list[Tensor]:
    """What the program computes after these passes."""
    step = traced(name)

    def scheduled(p: Program) -> Program:
        p = run_passes(p, passes)
        verify(p)
        return p

    return interpreted(step.lowered(target), step.leaves, step.signature.dims, 2, scheduled)


MODELS = pytest.mark.parametrize(
    "model",
    [pytest.param(m, marks=() if m in QUICK else pytest.mark.slow, id=m.rpartition("/")[2]) for m in (*QUICK, *SLOW)],
)


@pytest.mark.slow
@MODELS
@pytest.mark.parametrize("target, name", OPTIONAL)
def test_a_step_is_the_same_without_a_pass(model: str, target: str, name: str) -> None:
    for k, (found, wanted) in enumerate(zip(computed(model, target, name), computed(model, target), strict=True)):
        scale = float(wanted.double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if wanted.numel() else 0.0
        what = functools.partial("result {}: {}".format, k)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10 * scale, equal_nan=True, msg=what)


@MODELS
def test_a_step_is_the_same_with_integers_of_32_bits(model: str) -> None:
    passes = [
        dataclasses.replace(p, run=functools.partial(narrow_integers, doubles=True)) if p.run is narrow_integers else p
        for p in SIDE_BY_SIDE
    ]
    assert passes != list(SIDE_BY_SIDE)
    for found, wanted in zip(after(model, "cpu", passes), computed(model, "cpu"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
