"""Loops through slots of which some are taken: they leave out the others, and nothing that is read comes of that."""

from typing import Any

import mujoco
import pytest
import torch
from compiler.interpreted import interpreted
from torch import Tensor

import mjtorch
from mjtorch import jit
from mjtorch.compiler.ir.nodes import Compact, For, Program
from mjtorch.compiler.ir.walk import walk
from mjtorch.compiler.passes import run_passes
from mjtorch.compiler.targets.cpu.build import BuildError, compiler
from mjtorch.compiler.targets.cpu.pipeline import CPU
from mjtorch.control_flow import fori_loop, while_loop

try:
    compiler()
except BuildError:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

# Of two kinds: loops over as many become one, in which nothing belongs to one kind alone.
SLOTS, OTHERS = 14, 17
DTYPES = (torch.float32, torch.float64)


def nearest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Those of `x (k,)` that are above a half, the largest first, and which slots they take."""
    hit = x > 0.5
    place = torch.where(hit, -x, torch.inf).sort().indices
    there = torch.arange(len(x)) < hit.sum()
    return torch.where(there, x[place], 0.0), there


def solved(x: Tensor, y: Tensor) -> Any:
    """Two kinds of slots with rows of their own behind some that are always there, as contacts have; y: (3,)."""
    one, two = (nearest(part) for part in x.split([SLOTS, OTHERS]))
    depth, there = torch.cat([one[0], two[0]]), torch.cat([one[1], two[1]])
    width = [1] * SLOTS + [3] * OTHERS
    slot = torch.tensor([k for k, n in enumerate(width) for _ in range(n)])
    J = torch.where(there[slot][:, None], depth[slot][:, None] * torch.cat([y, y[:1]]) + 0.1, 0.0)
    J = torch.cat([torch.eye(4, dtype=x.dtype)[:3], J])
    D = torch.cat([y * y, torch.where(there, 1 + depth, 0.0)[slot]])
    aref = torch.cat([y, depth[slot]])

    def body(carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        z, k = carry
        return z - 0.05 * (J.mT @ (D * (J @ z - aref))), k + 1

    z, _ = while_loop(
        lambda c: (c[1] < 6) & (c[0].abs().sum() < 9), body, (torch.zeros(4, dtype=x.dtype), 0 * one[1].sum())
    )
    left = J @ z - aref
    return {"z": z, "worst": (D * left).abs().amax(), "any": (left > 0.3).any(), "left": left, "D": D, "there": there}


def again(x: Tensor, y: Tensor) -> Any:
    """Slots that are counted in each trip anew, fewer and more of them, and what the last trip leaves of its own."""

    def body(k: Tensor, carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        total, kept = carry
        depth, there = nearest(x[:SLOTS] * (1 + 0.4 * torch.where(k % 2 == 0, y[0], y[1])))
        rows = torch.where(there, depth * depth + y[2], 0.0)
        return total + (rows * kept).sum() + rows.amax(), torch.where(there, rows, 1.0)

    return fori_loop(0, 5, body, (torch.zeros_like(y[0]), torch.ones_like(x[:SLOTS])))


def twice(x: Tensor, y: Tensor) -> Any:
    """Two rows of each slot, all first ones before all second ones."""
    return in_two_rows(*nearest(x[:SLOTS]), y)


def twice_of_two_kinds(x: Tensor, y: Tensor) -> Any:
    """The same, of slots of two kinds, each of which has a count of its own."""
    one, two = (nearest(part) for part in x.split([SLOTS, OTHERS]))
    return in_two_rows(torch.cat([one[0], two[0]]), torch.cat([one[1], two[1]]), y)


def in_lists(x: Tensor, y: Tensor) -> Any:
    """What slots of two kinds say of few things: those that say nothing are found out by looking at all of it."""
    one, two = (nearest(part) for part in x.split([SLOTS, OTHERS]))
    depth, there = torch.cat([one[0], two[0]]), torch.cat([one[1], two[1]])
    kind = (depth * 90).to(torch.int64) % 3
    told = torch.where(there[:, None] & (kind[:, None] == torch.arange(3)), 1.0, 0.0).to(x.dtype)
    again = torch.where(there[:, None] & (kind[:, None] != torch.arange(3)), y, 0.0)
    return told.mT @ again, told.mT @ told


def in_two_rows(depth: Tensor, there: Tensor, y: Tensor) -> Any:
    both = torch.cat([y, depth, torch.where(there, y[0] - depth, 0.0)])
    weight = torch.where(torch.cat([y > 0, there, there]), both * both + 1, 0.0)
    return weight.sum(), (weight * both).amax()


def worlds(number: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """From worlds without any to some in which all slots are taken."""
    generator = torch.Generator().manual_seed(number)
    x = torch.rand(number, SLOTS + OTHERS, generator=generator, dtype=dtype)
    full = torch.linspace(0, 1, number, dtype=dtype)[:, None] ** 2
    return x * (1 - full) + full * (0.6 + 0.3 * x), torch.rand(number, 3, generator=generator, dtype=dtype) - 0.5


def flat(tree: Any) -> list[Tensor]:
    return [tree[k] for k in sorted(tree)] if isinstance(tree, dict) else list(tree)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [3, 9, 70])
@pytest.mark.parametrize("f", [solved, again, twice, twice_of_two_kinds, in_lists])
def test_worlds_with_few_and_with_all(f: Any, number: int, dtype: torch.dtype) -> None:
    args = worlds(number, dtype)
    for found, wanted in zip(flat(jit(f)(*args)), flat(torch.vmap(f)(*args)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-5 if dtype == torch.float32 else 1e-12, atol=1e-6)


@pytest.mark.parametrize("f", [solved, again, twice, twice_of_two_kinds, in_lists])
def test_what_is_not_there_is_never_read(f: Any) -> None:
    """The interpreter poisons all memory, and each world runs by itself, so that its own slots are all there are."""
    args = worlds(7, torch.float64)
    assert_never_read(f, *args, 1e-12)


def assert_never_read(f: Any, x: Tensor, y: Tensor, tolerance: float) -> None:
    lowered = jit(f).lower(x, y)

    def passed(p: Program) -> Program:
        return run_passes(p, CPU[: [x.name for x in CPU].index("trim_loops") + 1])

    for k in range(len(x)):
        one = (x[k : k + 1], y[k : k + 1])
        wanted = flat(torch.vmap(f)(*one))
        for found, value in zip(interpreted(lowered, one, (0, 0), 1, passed), wanted, strict=True):
            torch.testing.assert_close(found, value, rtol=tolerance, atol=tolerance)


def test_loops_of_contacts_and_rows_end_early() -> None:
    p = run_passes(jit(solved).lower(*worlds(3, torch.float32)).program, CPU)
    holes = [s.holes for s in walk(p.body) if isinstance(s, (For, Compact)) and s.holes]
    assert len(holes) >= 6
    assert any([stop for _, stop in x] == [3 + SLOTS, 3 + SLOTS + 3 * OTHERS] for x in holes), "rows of both kinds"


def test_loops_of_several_rows_of_slots_are_cut() -> None:
    """All first rows of contacts before all second ones: where the second begin another loop does."""
    p = run_passes(jit(twice).lower(*worlds(3, torch.float32)).program, CPU)
    holes = [s.holes for s in walk(p.body) if isinstance(s, For) and s.holes]
    stops = {stop for x in holes for _, stop in x}
    assert stops >= {SLOTS, 3 + SLOTS, 3 + 2 * SLOTS}, stops


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_steps_cost_the_contacts_that_there_are(cone: str) -> None:
    """All loops of the solver through contacts, and through their rows, end at the last that there is."""
    ball = '<body pos="{} {} .1"><joint type="slide" axis="0 0 1"/><joint axis="1 0 0"/><geom size=".1"/></body>'
    balls = "".join(ball.format(0.19 * (k % 3), 0.19 * (k // 3)) for k in range(6))
    plane = '<geom type="plane" size="1 1 .1"/>'
    xml = f'<mujoco><option cone="{cone}"/><worldbody>{plane}{balls}</worldbody></mujoco>'
    m = mjtorch.put_model(mujoco.MjModel.from_xml_string(xml), contact_capacity=SLOTS)
    d = mjtorch.batch(mjtorch.make_data(m), 2)
    p = run_passes(jit(mjtorch.step, in_dims=(None, 0)).lower(m, d, outputs="state").program, CPU)
    whole = [s for s in walk(p.body) if isinstance(s, For) and s.has_fixed_ends and not s.holes and s.since is None]
    solver = [s for s in whole if s.origin and s.origin.source and "constraint" in s.origin.source.file]
    long = [s for s in solver if s.stop.base - s.start.base >= SLOTS]
    assert not long, {(s.origin.source.file, s.origin.source.line) for s in long}
