"""Items of which only some are active: those of many worlds are computed side by side, each as if it were alone."""

import math
from typing import Any

import optree
import pytest
import torch
from compiler.interpreted import interpreted
from torch import Tensor

from mjtorch import jit
from mjtorch.compiler.ir.nodes import For, Pack, Scalarized, Store, While
from mjtorch.compiler.ir.walk import walk
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.passes import run_passes
from mjtorch.compiler.targets.cpu.build import BuildError, compiler
from mjtorch.compiler.targets.cpu.pipeline import CPU
from mjtorch.compiler.targets.emulated.target import EmulatedWarp
from mjtorch.control_flow import cond, each, fori_loop, scan, while_loop
from mjtorch.control_flow.fold import fold

try:
    compiler()
except BuildError:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

ITEMS = 7
TABLE = torch.linspace(0.2, 2.0, 11)
DTYPES = (torch.float32, torch.float64)


def halved(x: Tensor, active: Tensor, scale: Tensor) -> Any:
    """Trips that differ much, a table, numbers and truth values, what is the same for all items of a world."""
    table = TABLE.to(x.dtype)

    def f(item: tuple[Tensor, Tensor]) -> Any:
        y, which = item

        def body(carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            y, n = carry
            goes_on = y.abs().sum(-1, keepdim=True) > 1
            return torch.where(goes_on, y * 0.7, y), n + goes_on[:, 0]

        y, n = while_loop(lambda c: (c[0].abs().sum(-1) > 1).any(), body, (y * table[which][:, None], 0 * which))
        return {"y": y * scale, "n": n, "odd": n % 2 == 1}

    def otherwise(item: tuple[Tensor, Tensor]) -> Any:
        y, which = item
        return {"y": torch.zeros_like(y), "n": which - 100, "odd": which < 0}

    which = (x[:, 0].abs() * 20).long() % len(table)
    return each(f, (x, which), where=active, otherwise=otherwise)


def sorted_in_place(x: Tensor, active: Tensor, scale: Tensor) -> Any:
    """Writes at places of each item's own, which is done item by item."""

    def f(y: Tensor) -> Tensor:
        turns = (y.abs().sum(-1) * 9).long() % 50 + 9

        def body(carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            k, y = carry
            pair = torch.stack([k % 3, (k * k + 1) % 3]).expand(len(y), 2)
            two = y.gather(1, pair)
            new = y.scatter(1, pair, torch.stack([two.amin(-1), two.amax(-1)], dim=-1))
            return k + 1, torch.where((k < turns)[:, None], new, y)

        return while_loop(lambda c: (c[0] < turns).any(), body, (torch.zeros((), dtype=torch.int64), y))[1]

    return each(f, x, where=active, otherwise=torch.sign)


def in_a_loop(x: Tensor, active: Tensor, scale: Tensor) -> Any:
    """Of each item in each trip of a loop that worlds leave at different times, and of the trips of another."""

    def body(carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        y, n = carry
        return each(lambda z: (z + scale).sin(), y, where=active & (y[:, 0] < 0.5), otherwise=lambda z: 0.9 * z), n + 1

    y, n = while_loop(lambda c: (c[0].sum() > 0) & (c[1] < 9), body, (x, torch.zeros((), dtype=torch.int64)))
    steps = scan(lambda c, s: (each(torch.cos, c, where=active, otherwise=torch.sin), c.sum()), y, x, unroll=False)
    return y, n, steps


def struck_out(x: Tensor, active: Tensor, scale: Tensor) -> Any:
    """Of each item what a loop in a loop writes, to an array that the outer one reads then, and writes to again."""

    def f(y: Tensor) -> tuple[Tensor, Tensor]:
        size, turns = y.shape[1], (y.abs().sum(-1) * 9).long() % 5
        last, none = size + 1, torch.zeros_like(y[:, 0])

        def body(turn: Tensor, carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            rows, number = carry
            on = turn < turns

            def look(now: tuple[Tensor, Tensor], i: Tensor) -> tuple[Tensor, Tensor]:
                total, seen = now
                here = torch.where(i < number[:, None], rows.index_select(1, i), 0.0)
                return total + here.sum(1), seen.scatter(1, i.expand_as(here), here * (i + 1))

            total, seen = fold(look, torch.where(on, number, 0), size, (none, torch.zeros_like(y)))

            def strike(now: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
                rows, at = now
                goes = on & (at >= 0)
                return rows.scatter(1, torch.where(goes, at, last)[:, None], -0.5), torch.where(goes, at - 2, at)

            rows, at = while_loop(lambda now: (on & (now[1] >= 0)).any(), strike, (rows, number - 1 - turn))
            read = rows.gather(1, number.clamp(max=size)[:, None]) + rows[:, :1] + at[:, None]
            rows = rows.scatter(1, torch.where(on, size, last)[:, None], read + total[:, None] + seen.amax(1)[:, None])
            rows = rows.scatter(1, torch.where(on, 1, last)[:, None], rows[:, size, None] * 0.3)
            return rows, torch.where(on, (number + 1).clamp(max=size), number)

        rows = torch.nn.functional.pad(y, (0, 2))
        rows, number = fori_loop(0, turns.amax(), body, (rows, torch.full_like(turns, 2)))
        return rows[:, :-1], number

    def otherwise(y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.nn.functional.pad(y, (0, 1)), (0 * y[:, 0]).long()

    return each(f, x, where=active, otherwise=otherwise)


def kept(item: Any) -> Any:
    return item


def chained(x: Tensor, active: Tensor, scale: Tensor) -> Tensor:
    """What some items become, then others, and others still: the rest is left where it is."""
    one = each(lambda y: (y * scale).sin(), x, where=active, otherwise=kept)
    two = each(lambda y: y.cos(), one, where=active.flip(0), otherwise=kept)
    return each(lambda y: y.exp() + scale, two, where=~active, otherwise=kept)


def read_again(x: Tensor, active: Tensor, scale: Tensor) -> Any:
    """The same where what was is still wanted: later, beside, twice, or in the other's place."""
    one = each(lambda y: (y * scale).sin(), x, where=active, otherwise=kept)
    two = each(lambda y: y.cos(), one, where=active.flip(0), otherwise=kept)
    pair = each(lambda p: (p[0] - p[1], p[0] * p[1]), (two, x), where=active, otherwise=lambda p: (p[1], p[0]))
    three = each(lambda p: (p[0].sin(), p[1].cos()), pair, where=~active, otherwise=lambda p: (p[1], p[0]))
    four, also = each(lambda y: (y.tanh(), y.abs()), three[0], where=active.flip(0), otherwise=lambda y: (y, y))
    five = each(lambda p: p[0] + p[1], (four, four), where=active, otherwise=lambda p: p[1])
    six = each(lambda y: y.exp(), also, where=also[:, 0] > 0, otherwise=kept)
    return one.sum(), three[1], five, six


PROBLEMS = (halved, sorted_in_place, in_a_loop, struck_out, chained, read_again)


def arguments(dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, ITEMS, 3, generator=generator, dtype=dtype) * 10 ** torch.arange(3).to(dtype)
    active = torch.rand(count, ITEMS, generator=generator) < 0.3
    active[count // 2], active[-1] = False, True
    return x, active, torch.rand(count, 1, generator=generator, dtype=dtype)


def packs(lowered: Lowered) -> list[Pack]:
    return [s for s in walk(lowered.program.body) if isinstance(s, Pack)]


def leaves(tree: Any) -> list[Tensor]:
    return optree.tree_leaves(tree)


@pytest.mark.parametrize("count", [1, 3, 16, 37])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("f", PROBLEMS, ids=lambda f: f.__name__)
def test_results_are_those_of_eager_mode(f: Any, dtype: torch.dtype, count: int) -> None:
    args = arguments(dtype, count)
    compiled = jit(f, in_dims=0, strict=True)
    assert packs(compiled.lower(*args))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for got, want in zip(leaves(compiled(*args)), leaves(torch.vmap(f)(*args)), strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("f", PROBLEMS, ids=lambda f: f.__name__)
def test_passes_and_warps_compute_the_same(f: Any) -> None:
    args = arguments(torch.float64, 6)
    lowered = jit(f, in_dims=0).lower(*args)
    wanted = leaves(torch.vmap(f)(*args))
    packed = interpreted(lowered, args, (0, 0, 0), 6, lambda p: run_passes(p, CPU))
    for got, want in zip(packed, wanted, strict=True):
        torch.testing.assert_close(got, want)
    warp = jit(f, in_dims=0, backend=EmulatedWarp(8))
    for got, want in zip(leaves(warp(*args)), wanted, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("f", PROBLEMS, ids=lambda f: f.__name__)
def test_a_world_does_not_depend_on_the_worlds_beside_it(f: Any) -> None:
    args = arguments(torch.float32, 41)
    compiled = jit(f, in_dims=0, strict=True)
    whole = leaves(compiled(*args))
    for part in (slice(0, 3), slice(5, 22)):
        for a, b in zip(whole, leaves(compiled(*(x[part] for x in args))), strict=True):
            assert torch.equal(a[part], b)


def test_nan_stays_in_its_item() -> None:
    x, active, scale = arguments(torch.float32, 20)
    compiled = jit(halved, in_dims=0, strict=True)
    clean = compiled(x, active, scale)["y"]
    active[4] = True
    x[4, 2, 1] = math.nan
    got = compiled(x, active, scale)["y"]
    assert torch.isnan(got[4, 2]).tolist() == [False, True, False]
    others = torch.arange(20) != 4
    assert torch.equal(got[others], clean[others])


def test_loops_that_write_at_own_places_run_item_by_item() -> None:
    lowered = jit(sorted_in_place, in_dims=0).lower(*arguments(torch.float32, 3))
    (pack,) = (s for s in walk(run_passes(lowered.program, CPU).body) if isinstance(s, Pack))
    assert any(isinstance(s, Scalarized) for s in walk(pack.body))


def test_what_loops_in_a_loop_write_is_not_copied() -> None:
    """However often, and by whom: one number is written at a time, and what was written is read in between."""
    size = 40

    def f(x: Tensor, turns: Tensor) -> Tensor:
        def strike(now: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            rows, at = now
            return rows.scatter(0, at.clamp(min=0)[None], -1.0), at - 3

        def body(now: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            trip, rows = now
            rows, _ = while_loop(lambda now: now[1] >= 0, strike, (rows, 9 + trip))
            seen = rows.gather(0, (trip % 7)[None])
            return trip + 1, rows.scatter(0, (trip % 11)[None], seen + rows[-1:])

        return while_loop(lambda now: now[0] < turns, body, (torch.zeros_like(turns), x))[1]

    x, turns = torch.randn(5, size, dtype=torch.float64), torch.tensor([0, 3, 11, 1, 20])
    compiled = jit(f, in_dims=0, strict=True)
    torch.testing.assert_close(compiled(x, turns), torch.vmap(f)(x, turns), rtol=0, atol=0)
    program = run_passes(compiled.lower(x, turns).program, CPU)
    loops = [s for s in walk(program.body) if isinstance(s, While)]
    assert len(loops) > 1
    assert not [s for s in walk(loops) if isinstance(s, For) and s.stop.base >= size]


def test_what_is_not_active_stays_in_its_place() -> None:
    found = packs(jit(chained, in_dims=0).lower(*arguments(torch.float32, 3)))
    assert len(found) == 3
    assert len({s.buffer for pack in found for s in walk(pack.store) if isinstance(s, Store)}) == 1


def test_derivatives_are_packed_too() -> None:
    """That of the items is, if no captured number is differentiated."""

    def f(x: Tensor, active: Tensor) -> Tensor:
        return each(lambda y: (y @ y.new_ones(3, 3)).sin(), x, where=active, otherwise=torch.tanh).sum()

    x, active, _ = arguments(torch.float64, 5)
    compiled = jit(torch.func.grad(f), in_dims=0, strict=True)
    assert packs(compiled.lower(x, active))
    torch.testing.assert_close(compiled(x, active), torch.vmap(torch.func.grad(f))(x, active))


def test_derivatives_do_not_carry_what_is_constant() -> None:
    """A table is read by all items. None is made of gradients of it, and the items are packed."""
    table = torch.linspace(0, 1, 1000, dtype=torch.float64)

    def f(x: Tensor, active: Tensor) -> Tensor:
        return each(lambda y: y * table[y.abs().long()], x, where=active, otherwise=torch.tanh).square().sum()

    x, active, _ = arguments(torch.float64, 5)
    compiled = jit(torch.func.grad(f), in_dims=0, strict=True)
    lowered = compiled.lower(x, active)
    assert packs(lowered)
    assert max(s.buffer.size for s in walk(lowered.program.body) if isinstance(s, Store)) < len(table)
    torch.testing.assert_close(compiled(x, active), torch.vmap(torch.func.grad(f))(x, active))


def test_much_that_a_world_has_for_all_items_is_not_packed() -> None:
    def f(x: Tensor, active: Tensor, scale: Tensor) -> Tensor:
        table = scale + torch.arange(100.0)
        return each(lambda y: table[y.long().clamp(0, 99)], x, where=active, otherwise=lambda y: y)

    args = arguments(torch.float32, 5)
    compiled = jit(f, in_dims=0, strict=True)
    assert not packs(compiled.lower(*args))
    torch.testing.assert_close(compiled(*args), torch.vmap(f)(*args))


def test_a_choice_within_a_loop_is_packed_however_it_is_written() -> None:
    def f(x: Tensor, active: Tensor) -> Tensor:
        step = lambda _, item: ((), cond(item[1], torch.exp, torch.sin, item[0]))  # noqa: E731
        return scan(step, (), (x, active), unroll=False)[1]

    x, active, _ = arguments(torch.float64, 5)
    compiled = jit(f, in_dims=0, strict=True)
    assert packs(compiled.lower(x, active))
    torch.testing.assert_close(compiled(x, active), torch.vmap(f)(x, active))


def test_results_of_a_choice_that_nobody_reads() -> None:
    def f(x: Tensor, active: Tensor) -> Tensor:
        def step(_: Any, item: tuple[Tensor, Tensor]) -> Any:
            of_active, of_others = (lambda y: (y, y.exp(), y + 1)), (lambda y: (y.cos(), y.sin(), y))
            return (), cond(item[1], of_active, of_others, item[0])[2:0:-1]

        return scan(step, (), (x, active), unroll=False)[1]

    x, active, _ = arguments(torch.float64, 5)
    compiled = jit(f, in_dims=0, strict=True)
    assert packs(compiled.lower(x, active))
    torch.testing.assert_close(compiled(x, active), torch.vmap(f)(x, active))


def test_items_may_be_many() -> None:
    """More than there would be room for on the stack of a thread."""

    def f(x: Tensor, on: Tensor) -> Tensor:
        return each(lambda row: row.sin(), x, where=on, otherwise=lambda row: -row)

    x, on = torch.randn(3, 300_000), torch.rand(3, 300_000) > 0.9
    torch.testing.assert_close(jit(f, in_dims=(0, 0), strict=True)(x, on), torch.where(on, x.sin(), -x))
