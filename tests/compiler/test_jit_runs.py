"""Compiled once, the same ever after: no work is repeated, nothing leaks, and a world depends on nothing but itself."""

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mujoco
import pytest
import torch
from torch import Tensor

import mjtorch
from mjtorch import jit
from mjtorch.compiler.cache import store as cache
from mjtorch.compiler.ir.nodes import Call, While
from mjtorch.compiler.ir.text import as_text
from mjtorch.compiler.ir.walk import expressions, walk, walk_expr
from mjtorch.compiler.jit import Jitted
from mjtorch.compiler.passes import run_passes
from mjtorch.compiler.targets.cpu.pipeline import CPU
from mjtorch.compiler.targets.cpu.target import CpuTarget
from mjtorch.control_flow import cond, fori_loop, scan, while_loop

PENDULUM = """
<mujoco><option timestep="0.01"/><worldbody>
  <body><joint name="h" type="hinge" axis="0 1 0" damping="0.1"/><geom type="capsule" size=".05" fromto="0 0 0 0 0 -1"/>
  </body></worldbody><actuator><motor joint="h"/></actuator></mujoco>
"""


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each time that a program is printed: whether for a few worlds."""
    found: list[bool] = []
    printed = CpuTarget.print

    def noted(target: CpuTarget, program: Any) -> Any:
        found.append(target.few)
        return printed(target, program)

    monkeypatch.setattr(CpuTarget, "print", noted)
    return found


def programs(f: Jitted) -> int:
    """How many programs a function holds."""
    return sum(map(len, f.programs.values()))


# --- what is compiled when --------------------------------------------------------------------------------------------


def test_one_program_for_all_values_and_batch_sizes(builds: list[bool]) -> None:
    f = jit(lambda a, b, k: (a * b + k, a.cumsum(0)), in_dims=(0, None, None), strict=True)
    for n in range(2000):
        a, b = torch.rand(n % 70 + 1, 4), torch.rand(4)
        found, _ = f(a, b, float(n))
        assert torch.allclose(found, a * b + n)
    assert f.traces == 1 and programs(f) == 1 and sorted(builds) == [False, True]


def test_layouts_and_places_of_worlds_are_no_new_programs(builds: list[bool]) -> None:
    f = jit(lambda a: a.sin(), strict=True)
    base = torch.rand(8, 4, 5)
    for x in (base, base[::2], base.flip(0), base.permute(1, 2, 0)[:, :, :3].permute(2, 0, 1)):
        assert torch.allclose(f(x), x.sin())
    assert f.traces == 1 and builds == [False]


def test_changed_masses_are_no_new_program(builds: list[bool]) -> None:
    """What a model says is a value like any other."""
    m = mjtorch.put_model(mujoco.MjModel.from_xml_string(PENDULUM), dtype=torch.float64)
    d = mjtorch.batch(mjtorch.make_data(m), 3)
    d = d.replace(qpos=torch.tensor([[0.1], [1.0], [2.0]], dtype=torch.float64), ctrl=d.ctrl + 0.5)
    f = jit(mjtorch.step, in_dims=(None, 0), strict=True)
    for scale in (1.0, 2.0, 0.5):
        heavier = m.replace(body_mass=scale * m.body_mass, body_inertia=scale * m.body_inertia)
        found, wanted = f(heavier, d), torch.vmap(mjtorch.step, in_dims=(None, 0))(heavier, d)
        torch.testing.assert_close(found.qvel, wanted.qvel, rtol=1e-12, atol=1e-12)
    assert not torch.equal(f(m, d).qvel, found.qvel)
    assert f.traces == 1 and builds == [False]


KEEPS_NOTHING = """
import gc
from pathlib import Path

import torch
from mjtorch import jit

f = jit(lambda t, k: {"u": t["u"] * k, "v": t["u"].sum()}, in_dims=(0, None), strict=True)


def calls(n):
    for k in range(n):
        f({"u": torch.full((k % 5 + 1, 1000), 2.0)}, float(k))


def held():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return 4096 * pages, sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects())


calls(500)
before = held()
calls(10_000)
after = held()
print(after[0] - before[0], after[1] - before[1], f.traces, sum(map(len, f.programs.values())))
"""


def test_ten_thousand_calls_keep_nothing(tmp_path: Path) -> None:
    """In a process of its own, whose memory nothing else moves."""
    new = {**os.environ, cache.DIRECTORY: str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", KEEPS_NOTHING], capture_output=True, text=True, check=False, env=new)
    assert found.returncode == 0, found.stderr
    grown, more_tensors, traces, held = map(int, found.stdout.split())
    # A call returns 4 to 20 kB: kept, that would be more than 100 MB.
    assert grown < 50e6
    assert more_tensors <= 0
    assert traces == held == 1


# --- determinism ------------------------------------------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[None]:
    """Leaves the number of threads as it was."""
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


def busy(a: Tensor) -> Any:
    """A bit of everything, with loops of as many trips as the world wants."""
    y = while_loop(lambda y: y.abs().sum() > 1, lambda y: y * 0.7, a)
    m = a.outer(y) + 9 * torch.eye(6, dtype=a.dtype)
    elementary = torch.cat([a.sin(), (1e5 * a).cos(), a.abs() ** a, torch.atan2(a, y), a.exp(), a.abs().sqrt()])
    rows = scan(lambda c, x: (c + x * y, c.sin()), y, m)[1]
    return y, elementary, torch.linalg.solve_ex(m, a)[0], m @ m, m.cumsum(0), a.sort()[0], a.softmax(0), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("threads")
def test_a_world_depends_on_nothing_but_itself(dtype: torch.dtype) -> None:
    """Bitwise the same from run to run, for any number of threads, any place in the batch, any size of it.

    One or two worlds have code of their own, which may round otherwise: it is held to the same among themselves.
    """
    f = jit(busy, strict=True)
    x = torch.randn(1000, 6, dtype=dtype, generator=torch.Generator().manual_seed(0))
    x[::5] *= 1e3
    many, few = f(x), f(x[:2])
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for order in (torch.arange(1000), torch.arange(1000).flip(0), torch.randperm(1000)):
            for worlds in (3, 64, 257, 1000):
                part = order[:worlds]
                for k, (found, want) in enumerate(zip(f(x[part]), many, strict=True)):
                    assert torch.equal(found, want[part]), f"result {k} of {worlds} worlds, {count} threads"
        for part in ([0], [1], [0, 1], [1, 0], [1, 1]):
            for k, (found, want) in enumerate(zip(f(x[part]), few, strict=True)):
                assert torch.equal(found, want[part]), f"result {k} of worlds {part}, {count} threads"
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for found, want in zip(few, many, strict=True):
        torch.testing.assert_close(found, want[:2], rtol=tolerance, atol=tolerance)


def test_neighbours_that_are_no_numbers_change_nothing() -> None:
    f = jit(busy, strict=True)
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    wanted = f(x)
    x[::3] = torch.tensor([0, -0.0, 1e-40, 1e30, -1, 0.5])
    x[1::3, 2] = 0.0
    for found, want in zip(f(x), wanted, strict=True):
        assert torch.equal(found[2::3], want[2::3])


# --- loops ------------------------------------------------------------------------------------------------------------


def nested(a: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """A while loop in a loop of known length in a scan; trips differ from world to world and from turn to turn."""

    def row(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def turn(k: Tensor, y: Tensor) -> Tensor:
            def halve(z: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
                return z[0] / 2, z[1] + 1

            y, trips = while_loop(lambda z: z[0].abs().sum() > k + n, halve, (y + x, torch.zeros_like(n)))
            return y * 3 + trips

        c = fori_loop(0, 3, turn, c)
        return c, c.sum()

    return scan(row, a[0], a)


def test_nested_loops_make_the_trips_of_each_world() -> None:
    a = 5 * torch.randn(37, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    n = torch.arange(37) % 6 + 1
    f = jit(nested, strict=True)
    alone = [nested(x, k) for x, k in zip(a, n, strict=True)]
    last, sums = f(a, n)
    torch.testing.assert_close(last, torch.stack([x for x, _ in alone]), rtol=1e-12, atol=0)
    torch.testing.assert_close(sums, torch.stack([x for _, x in alone]), rtol=1e-12, atol=0)
    for x, k, (want, _) in zip(a[:2, None], n[:2, None], alone, strict=False):
        torch.testing.assert_close(f(x, k)[0][0], want, rtol=1e-12, atol=0)


def test_a_world_without_trips_beside_one_with_many() -> None:
    f = jit(lambda n: while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2 + 1), (n * 0, n * 0)), strict=True)
    n = torch.tensor([0, 60, -3, 1, 0, 7, 2, 33, 0])
    count, value = f(n)
    assert torch.equal(count, n.clamp(min=0)) and torch.equal(value, 2 ** n.clamp(min=0) - 1)


def test_the_text_of_a_nested_loop() -> None:
    """Loops stay loops, at their depth, in the order of the function."""

    def row(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        c = fori_loop(0, 20, lambda k, y: while_loop(lambda z: z.sum() > 1, lambda z: z / 2, y + x), c)
        return c, c.sum()

    lowered = jit(lambda a: scan(row, a[0], a), strict=True).lower(torch.ones(3, 9, 4))
    lines = as_text(run_passes(lowered.program, CPU[:7])).splitlines()
    assert lines[:3] == ["input in0: f32[36] @0", "output out0: f32[4] @0", "output out1: f32[9] @1"]
    steps = (
        r"for \w+ in 0\.\.9 scope:",
        r"for \w+ in 0\.\.20 scope:",
        r"while \w+\[0\]:",
        "do:",
        r".*div\(.*, 2\.0f\)",
        r"out1\[\w+\] = ",
    )
    places = [next((k, line) for k, line in enumerate(lines) if re.match(rf" *{step}", line)) for step in steps]
    assert [k for k, _ in places] == sorted(k for k, _ in places)
    depths = [(len(line) - len(line.lstrip())) // 2 for _, line in places]
    assert depths[:4] == [1, 2, 3, 4] and depths[4] >= 4 and depths[5] == 2
    assert sum(line.startswith("  for ") for line in lines) <= 3  # apart from the scan, in and out


def test_the_text_has_one_line_per_thing_done() -> None:
    text = (
        jit(lambda a, b: (a * 2 + b).sum(), in_dims=(0, None), strict=True)
        .lower(torch.ones(5, 3), torch.ones(3))
        .as_text()
    )
    code = [line.strip() for line in text.splitlines() if "#" not in line]
    assert code[:3] == ["input in0: f32[3] @0", "shared all0: f32[3] @1", "output out0: f32[1] @0"]
    assert sum("mul(" in line for line in code) and sum("out0[0] = " in line for line in code) == 1
    assert jit(lambda a: a, strict=True).lower(torch.ones(5, 3)).as_text() == "body:"


def test_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jit(busy, strict=True)(torch.rand(3, 6))


def test_a_branch_is_a_loop_of_one_trip_that_is_skipped_where_no_world_takes_it() -> None:
    def run(x: Tensor) -> Tensor:
        return cond(x.sum() > 0, torch.sin, torch.cos, x)

    def called(statements: list[Any]) -> set[str]:
        found = (e for s in walk(statements) for value in expressions(s) for e in walk_expr(value))
        return {e.op for e in found if isinstance(e, Call)}

    body = jit(run).lower(torch.zeros(4, 3)).program.body
    branches = [s for s in body if isinstance(s, While)]
    assert [called([s]) & {"sin", "cos"} for s in branches] == [{"sin"}, {"cos"}]
    assert not called([s for s in body if not isinstance(s, While)]) & {"sin", "cos"}
    x = torch.tensor([[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], [4.0, 5.0, 6.0], [torch.nan, 0.0, 0.0]])
    torch.testing.assert_close(jit(run)(x), torch.vmap(run)(x), equal_nan=True)
