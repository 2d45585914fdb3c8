"""Loops that compiled code runs world by world: which they are, and that they compute what eager mode does."""

import math
import pathlib
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mjtorch import jit
from mjtorch.compiler.ir.nodes import Scalarized, Statement, While
from mjtorch.compiler.ir.walk import bodies, walk
from mjtorch.compiler.lower.reduce import APART
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.passes import run_passes
from mjtorch.compiler.passes.scalarize import is_walk
from mjtorch.compiler.targets.cpu import build, target
from mjtorch.compiler.targets.cpu.build import BuildError, compiler, vector_bytes
from mjtorch.compiler.targets.cpu.pipeline import CPU
from mjtorch.compiler.targets.cpu.target import lanes_for
from mjtorch.compiler.targets.emulated.target import EmulatedWarp
from mjtorch.control_flow import fori_loop, while_loop

try:
    compiler()
except BuildError:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

SIZE = 13
BATCHES = (1, 2, 3, 17, 64)
DTYPES = (torch.float32, torch.float64)


def shuffle(x: Tensor, seed: Tensor, turns: Tensor) -> Tensor:
    """Exchange `turns` pairs of elements."""

    def body(k: Tensor, x: Tensor) -> Tensor:
        pair = torch.stack([(seed + 5 * k) % SIZE, (seed * k + 3) % SIZE])
        return x.scatter(0, pair, x.index_select(0, pair).flip(0))

    return fori_loop(0, turns, body, x)


def visits(x: Tensor, seed: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """Sweeps over all elements, each over elements picked by the last: stops when what a sweep found says so."""
    weights = torch.linspace(0.1, 1.0, SIZE, dtype=x.dtype)

    def row(k: Tensor, carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, found = carry
        place = (seed + k * k) % SIZE
        old = x.index_select(0, place[None])
        new = 0.5 * old + 0.1 * (weights @ x.tanh())
        return x.scatter(0, place[None], new), found + (new - old)[0].abs()

    def sweep(carry: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, gain, n = carry
        x = shuffle(x, seed + n, turns % 7)
        x, gain = fori_loop(0, turns % 5 + 1, row, (x, x.new_zeros(())))
        return x, gain, n + 1

    def go_on(carry: tuple[Tensor, ...]) -> Tensor:
        return (carry[1] > 1e-3) & (carry[2] < turns)

    x, _, n = while_loop(go_on, sweep, (x, x.new_ones(()), torch.zeros_like(turns)))
    return x, n


def search(x: Tensor, seed: Tensor, turns: Tensor) -> Tensor:
    """A loop that writes where a loop within it has found something."""

    def body(k: Tensor, x: Tensor) -> Tensor:
        start = (seed + k) % SIZE

        def smaller(at: Tensor) -> Tensor:
            return (x.index_select(0, at[None])[0] < x.index_select(0, start[None])[0]) & (at < SIZE - 1)

        at = while_loop(smaller, lambda at: at + 1, torch.zeros_like(start))
        return x.scatter(0, at[None], (x.index_select(0, start[None]) + 1).sin())

    return fori_loop(0, turns, body, x)


def arguments(dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(count)
    turns = torch.randint(0, 50, (count,)) * (torch.arange(count) % 3 > 0)
    turns[0] = 60
    return torch.randn(count, SIZE, dtype=dtype), torch.randint(0, 100, (count,)), turns


def loops(statements: Sequence[Statement], depth: int = 0) -> list[tuple[int, bool]]:
    """The depth of each loop, and whether it is run world by world."""
    found = []
    for s in statements:
        inner = depth + isinstance(s, While)
        if isinstance(s, While):
            found.append((depth, is_walk(s)))
        for body in bodies(s):
            found += loops(body, inner)
    return found


def has_scalarized(lowered: Lowered) -> bool:
    """Whether a CPU runs some of it for one world after the other."""
    return any(isinstance(s, Scalarized) for s in walk(run_passes(lowered.program, CPU).body))


@pytest.mark.parametrize("count", BATCHES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("f", [shuffle, visits, search])
def test_results_are_those_of_eager_mode(f, dtype, count):
    x, seed, turns = arguments(dtype, count)
    got = jit(f, in_dims=0, strict=True)(x, seed, turns)
    want = torch.vmap(f)(x, seed, turns)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("f", [visits, search])
def test_a_world_does_not_depend_on_the_worlds_beside_it(f):
    x, seed, turns = arguments(torch.float32, 64)
    compiled = jit(f, in_dims=0, strict=True)
    whole = torch.utils._pytree.tree_leaves(compiled(x, seed, turns))
    for count in (3, 17):
        part = torch.utils._pytree.tree_leaves(compiled(x[:count], seed[:count], turns[:count]))
        for a, b in zip(whole, part, strict=True):
            assert torch.equal(a[:count], b)


@pytest.mark.parametrize("f", [visits, search])
def test_nan_stays_in_its_world(f):
    x, seed, turns = arguments(torch.float64, 20)
    compiled = jit(f, in_dims=0, strict=True)
    clean = torch.utils._pytree.tree_leaves(compiled(x, seed, turns))
    x[5, 2] = math.nan
    got = torch.utils._pytree.tree_leaves(compiled(x, seed, turns))
    want = torch.utils._pytree.tree_leaves(torch.vmap(f)(x, seed, turns))
    others = torch.arange(20) != 5
    for a, b, c in zip(got, clean, want, strict=True):
        assert torch.equal(a[others], b[others])
        torch.testing.assert_close(a[5], c[5], equal_nan=True)


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (shuffle, [(0, True)]),
        (visits, [(0, True), (1, True), (1, True)]),  # sweeps that do little but such loops
        (search, [(0, True), (1, False)]),  # what is within a loop that runs world by world does too
    ],
)
def test_loops_that_write_at_own_places_run_world_by_world(f, expected):
    lowered = jit(f, in_dims=0).lower(*arguments(torch.float32, 3))
    assert loops(lowered.program.body) == expected
    assert has_scalarized(lowered)


def test_dense_loops_stay_side_by_side():
    def descend(A: Tensor, b: Tensor, at: Tensor) -> Tensor:
        def body(k: Tensor, x: Tensor) -> Tensor:
            x = x - 0.1 * (A @ x - b)
            return x.scatter(0, at[None], x.new_zeros(1))

        return fori_loop(0, at, body, b)

    args = (torch.randn(3, SIZE, SIZE), torch.randn(3, SIZE), torch.tensor([1, 4, 7]))
    lowered = jit(descend, in_dims=0).lower(*args)
    assert loops(lowered.program.body) == [(0, False)]
    assert not has_scalarized(lowered)


def test_loops_over_triangles_count_as_long_as_they_are():
    """A factor of a matrix, beside which it does not matter that a few elements are written at own places."""

    def factors(A: Tensor, places: Tensor, turns: Tensor) -> Tensor:
        def body(k: Tensor, x: Tensor) -> Tensor:
            y = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(A)[0], x[:, None], upper=False)[:, 0]
            return y.scatter_add(0, places, x[:1].expand(200))

        return fori_loop(0, turns, body, A[0])

    A = torch.eye(60) + 0.01 * torch.ones(3, 60, 60)
    places = torch.arange(600).view(3, 200) % 60
    lowered = jit(factors, in_dims=0).lower(A, places, torch.tensor([1, 2, 3]))
    assert loops(lowered.program.body) == [(0, False)]


@pytest.mark.parametrize("count", [3, 17])
def test_rows_are_copied_from_places_of_each_worlds_own(count):
    table = torch.randn(5, 6)

    def rows(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        return x[at] * 1, table[at] + x[at]

    x, at = torch.randn(count, 5, 6), torch.randint(-5, 5, (count, 4))
    torch.testing.assert_close(jit(rows, in_dims=0, strict=True)(x, at), torch.vmap(rows)(x, at))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64], ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_counts_nan_as_the_greatest(dtype, descending):
    torch.manual_seed(0)
    x = torch.randint(-3, 4, (5, 23)).to(dtype)
    if dtype.is_floating_point:
        for value, share in ((math.nan, 0.2), (math.inf, 0.1), (-math.inf, 0.1)):
            x[torch.rand(5, 23) < share] = value

    def ordered(x: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(x.sort(stable=True, descending=descending))

    got, want = jit(ordered, in_dims=0, strict=True)(x), torch.vmap(ordered)(x)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.9])
@pytest.mark.parametrize("with_nan", [False, True])
@pytest.mark.parametrize("size", [70, APART])
def test_the_first_of_many_that_are_mostly_infinite(descending, share, with_nan, size):
    """What is cut off is not looked for; `share` are not infinite, fewer or more than are asked for."""
    generator = torch.Generator().manual_seed(0)
    end = -math.inf if descending else math.inf
    x = torch.where(torch.rand(19, size, generator=generator) < share, torch.rand(19, size, generator=generator), end)
    x[:, 5] = x[:, 9]
    if with_nan:
        x[::4, :12] = math.nan

    def first(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, places = x.sort(stable=True, descending=descending)
        return values[:4], places[:9], x.sort(descending=descending, stable=True).indices[3:7]

    got, want = jit(first, in_dims=0, strict=True)(x), torch.vmap(first)(x)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=0, atol=0)


def test_triangular_solves_of_columns_that_are_zero_in_some_worlds():
    def solve(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        lower = torch.linalg.solve_triangular(A.tril(), B, upper=False)
        return lower, torch.linalg.solve_triangular(A.triu(), lower, upper=True)

    torch.manual_seed(0)
    A = torch.randn(5, 4, 4, dtype=torch.float64) + 5 * torch.eye(4, dtype=torch.float64)
    B = torch.randn(5, 4, 20, dtype=torch.float64) * (torch.rand(5, 1, 20) < 0.3)
    B[:, :, ::3] = 0
    torch.testing.assert_close(jit(solve, in_dims=0, strict=True)(A, B), torch.vmap(solve)(A, B))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns, lanes", [(50, 0), (300, 0), (3, 8), (50, 8), (50, 32)])
def test_triangular_solves_of_columns_that_a_mask_leaves_out(columns: int, lanes: int, dtype: torch.dtype) -> None:
    """What a mask exchanges for an empty array may be anything; the other columns are right, if there are some."""

    def solve(A: Tensor, B: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        given = torch.where(mask, B, torch.empty_like(B))
        lower = torch.linalg.solve_triangular(A.tril(), given, upper=False)
        upper = torch.linalg.solve_triangular(A.triu(), given, upper=True)
        return torch.where(mask, lower, 0.0), torch.where(mask, upper, 0.0)

    torch.manual_seed(0)
    A = torch.randn(19, 23, 23, dtype=dtype) + 9 * torch.eye(23, dtype=dtype)
    B, mask = torch.randn(19, 23, columns, dtype=dtype), torch.rand(19, columns) < 0.2
    mask[1] = False
    compiled = jit(solve, in_dims=0, strict=True, backend=EmulatedWarp(lanes) if lanes else "auto")
    for worlds in (1, 19):
        args = A[:worlds], B[:worlds], mask[:worlds]
        torch.testing.assert_close(compiled(*args), torch.vmap(solve)(*args))


@pytest.mark.parametrize("halves", [False, True])
def test_large_programs_have_half_the_lanes(monkeypatch: pytest.MonkeyPatch, halves: bool) -> None:
    """Where registers are wide enough; what they compute stays the same."""
    f = lambda x: (x.cumsum(0) @ x).sin()  # noqa: E731
    x = torch.linspace(-1, 1, 19 * SIZE, dtype=torch.float64).reshape(19, SIZE)
    program = run_passes(jit(f, strict=True).lower(x).program, CPU)
    many = lanes_for(program, 8)
    monkeypatch.setattr(target, "computes_halves", lambda: halves)
    monkeypatch.setattr(target, "LARGE_WORLD" if halves else "LARGE", 0)
    assert lanes_for(program, 8) == many
    monkeypatch.setattr(target, "LARGE" if halves else "LARGE_WORLD", 0)
    assert lanes_for(program, 8) == (many // 2 if vector_bytes() == target.WIDE else many)
    torch.testing.assert_close(jit(f, strict=True)(x), torch.vmap(f)(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_worlds_raise_to_powers_of_their_own(dtype: torch.dtype) -> None:
    """Two of which are computed for all worlds together: those of the others stay what they are."""
    torch.manual_seed(0)
    x, power = torch.randn(19, 8, dtype=dtype).abs(), torch.tensor([1.0, 2.0, 3.0, 0.5, 0.0], dtype=dtype)
    which = torch.randint(5, (19, 8))
    which[3], which[4] = 0, 1
    compiled = jit(torch.pow, in_dims=0, strict=True)
    for worlds in (1, 19):
        args = x[:worlds], power[which[:worlds]]
        torch.testing.assert_close(compiled(*args), torch.pow(*args))
    torch.testing.assert_close(compiled(x, torch.ones_like(x)), x, rtol=0, atol=0)


@pytest.mark.parametrize(
    "maker, family, halves",
    [("AuthenticAMD", 25, True), ("AuthenticAMD", 26, False), ("GenuineIntel", 6, False), ("AuthenticAMD", 250, False)],
)
def test_who_computes_halves(monkeypatch: pytest.MonkeyPatch, maker: str, family: int, halves: bool) -> None:
    about = f"processor\t: 0\nvendor_id\t: {maker}\ncpu family\t: {family}\nmodel\t\t: 17\n"
    monkeypatch.setattr(pathlib.Path, "read_text", lambda self: about)
    assert build.computes_halves.__wrapped__() == halves
