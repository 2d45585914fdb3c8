"""Every lowering rule against eager PyTorch: in the interpreter on random shapes, and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optree
import pytest
import torch
from compiler import rule_cases as cases
from compiler.interpreted import interpreted
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from torch import Tensor
from torch.fx import GraphModule

from mjtorch import jit
from mjtorch.compiler.ir.nodes import SCRATCH, Store
from mjtorch.compiler.ir.walk import walk
from mjtorch.compiler.lower import RULES, NoRule
from mjtorch.compiler.lower.lowering import Lowering
from mjtorch.compiler.targets.cpu.build import vector_bytes
from mjtorch.control_flow import if_any

FLOAT, DOUBLE, INT, BOOL = torch.float32, torch.float64, torch.int64, torch.bool
TOLERANCE = {FLOAT: {"rtol": 2e-5, "atol": 2e-5}, DOUBLE: {"rtol": 1e-10, "atol": 1e-10}}

few = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
many = settings(few, max_examples=100)
seeds = st.integers(0, 2**31)
sizes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
dtypes = st.sampled_from([FLOAT, DOUBLE, INT, BOOL])

# What holds for all examples that the strategies make.
PROPERTIES: dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy, ...]]] = {}


def holds_for(*strategies: st.SearchStrategy) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter a property into the table."""

    def register(f: Callable[..., None]) -> Callable[..., None]:
        PROPERTIES[f.__name__] = f, strategies
        return f

    return register


def one_by_one(f: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The leaves of what `f` makes of each world alone, stacked."""
    results = [optree.tree_leaves(f(*world)) for world in zip(*inputs, strict=True)]
    return [torch.stack([torch.as_tensor(x) for x in leaf]) for leaf in zip(*results, strict=True)]


def agree(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, equal_nan=True, **TOLERANCE.get(wanted.dtype, {"rtol": 0, "atol": 0}))


def check(functions: cases.Functions, *inputs: Tensor) -> set[str]:
    """Compare the lowered functions, all in one program, with eager ones; returns the ops that they use."""

    def together(*world: Tensor) -> dict[str, Any]:
        return {name: f(*world) for name, f in functions.items()}

    lowered = jit(together, strict=True).lower(*inputs)
    found = interpreted(lowered, inputs, [0] * len(inputs), len(inputs[0]))
    at = 0
    for name in sorted(functions):  # as trees order their keys
        wanted = one_by_one(functions[name], inputs)
        for k, (x, y) in enumerate(zip(found[at : at + len(wanted)], wanted, strict=True)):
            try:
                agree(x, y)
            except AssertionError as e:
                raise AssertionError(f"{name}, result {k}: {e}") from None
        at += len(wanted)
    assert at == len(found)
    return ops(lowered.graph)


def ops(graph: GraphModule) -> set[str]:
    """The names of all ops of a graph, also of those in loops and branches."""
    nodes = (n for m in graph.modules() if isinstance(m, GraphModule) for n in m.graph.nodes if n.op == "call_function")
    return {getattr(n.target, "overloadpacket", n.target).__name__ for n in nodes}


# --- families ---------------------------------------------------------------------------------------------------------


@holds_for(seeds, sizes, dtypes)
def unary(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = cases.Source(seed).tensor(shape, dtype, special=True)
    check(cases.unary(x), x)


@holds_for(seeds, sizes, st.data(), dtypes, dtypes)
def binary(seed: int, shape: tuple[int, ...], data: st.DataObject, first: torch.dtype, second: torch.dtype) -> None:
    other = tuple(n if data.draw(st.booleans()) else 1 for n in shape)[data.draw(st.integers(0, len(shape))) :]
    shapes = (shape, other) if data.draw(st.booleans()) else (other, shape)
    x, y = (
        cases.Source(seed + k).tensor(s, t, special=True)
        for k, (s, t) in enumerate(zip(shapes, (first, second), strict=True))
    )
    check(cases.binary(x, y), x, y)


@holds_for(seeds, sizes, dtypes)
def shape(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = cases.Source(seed).tensor(shape, dtype)
    check(cases.shape(x), x)


@holds_for(seeds, sizes, dtypes)
def reduce(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = cases.Source(seed).tensor(shape, dtype)
    check(cases.reduce(x), x)


@holds_for(seeds, st.lists(st.integers(1, 4), min_size=1, max_size=2).map(tuple))
def extrema_of_nan(seed: int, shape: tuple[int, ...]) -> None:
    x = cases.Source(seed).tensor(shape, FLOAT, special=True)
    check({k: f for k, f in cases.reduce(x).items() if k.startswith(("extrema", "places", "any", "all"))}, x)


@holds_for(seeds, st.lists(st.integers(0, 5), max_size=2).map(tuple), dtypes, st.booleans())
def order(seed: int, shape: tuple[int, ...], dtype: torch.dtype, special: bool) -> None:
    x = cases.Source(seed).tensor(shape, dtype, special)
    check(cases.order(x), x)


@holds_for(seeds, st.lists(st.integers(0, 5), min_size=1, max_size=2).map(tuple), st.sampled_from([FLOAT, DOUBLE, INT]))
def topk(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = cases.Source(seed).distinct(shape, dtype)
    check(cases.best(x), x)


def index_inputs(seed: int, dtype: torch.dtype, worlds: int = 3) -> list[Tensor]:
    s = cases.Source(seed, worlds)
    x, v = s.tensor((4, 3, 2), dtype), s.tensor((5, 3, 2), dtype)
    # A row that is stored to twice may take either value.
    i = torch.stack([torch.randperm(8, generator=s.generator)[:5] - 4 for _ in range(worlds)])
    i = torch.where((i % 4).unsqueeze(1).eq((i % 4).unsqueeze(2)).triu(1).any(2), i % 4, i)
    return [x, v, i, s.index((5,), 3, -3), s.index((2, 3), 3)]


@holds_for(seeds, dtypes)
def index(seed: int, dtype: torch.dtype) -> None:
    inputs = index_inputs(seed, dtype)
    check(cases.index(*inputs), *inputs)


@holds_for(seeds, st.sampled_from([FLOAT, DOUBLE, INT]))
def products(seed: int, dtype: torch.dtype) -> None:
    s = cases.Source(seed)
    a, b = s.tensor((4, 4), dtype), s.tensor((4, 3), dtype)
    check(cases.products(a, b), a, b)


@holds_for(seeds, st.integers(0, 5), st.sampled_from([FLOAT, DOUBLE]))
def solves(seed: int, n: int, dtype: torch.dtype) -> None:
    s = cases.Source(seed)
    a, b = s.tensor((n, n), dtype), s.tensor((n, 2), dtype)
    if dtype == FLOAT:  # which has no digits to lose
        a = a / 3 + 2 * n * torch.eye(n)
    found = cases.solves(a, b)
    if n == 0:
        del found["slogdet"], found["lu"], found["inverse"]
    check(found, a, b)


@holds_for(seeds, st.sampled_from([FLOAT, DOUBLE]))
def loops(seed: int, dtype: torch.dtype) -> None:
    s = cases.Source(seed)
    x, i = s.tensor((4, 3), dtype), s.index((5,), 4, -4)
    check(cases.loops(x, i), x, i)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", PROPERTIES)
def test_rules(name: str) -> None:
    f, strategies = PROPERTIES[name]
    few(given(*strategies)(f))()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", PROPERTIES)
def test_rules_thoroughly(name: str) -> None:
    f, strategies = PROPERTIES[name]
    many(given(*strategies)(f))()


@pytest.mark.parametrize("name", sorted(cases.scalars()))
def test_derivatives(name: str) -> None:
    f = cases.scalars()[name]
    x = cases.Source(1).tensor((4, 4))
    check(
        {
            "grad": torch.func.grad(f),
            "vjp": lambda x: torch.func.vjp(f, x)[1](torch.full((), 2.0, dtype=x.dtype)),
            "jvp": lambda x: torch.func.jvp(f, (x,), (x.T.clone(),)),
        },
        x,
    )


def test_second_derivatives_and_jacobians() -> None:
    f = cases.scalars()["unary"]
    functions = {
        "hessian": torch.func.hessian(lambda x: (x @ x).sin().sum()),
        "forward over reverse": lambda x: torch.func.jvp(torch.func.grad(f), (x,), (x.T.clone(),)),
        "jacrev": torch.func.jacrev(lambda x: torch.cat([x.sin(), x @ x])),
        "jacfwd": torch.func.jacfwd(lambda x: torch.cat([x.sin(), x @ x])),
    }
    check(functions, cases.Source(2).tensor((3, 3)).repeat_interleave(1, 0))


# --- corners ----------------------------------------------------------------------------------------------------------


def test_float_division_rounds_as_torch_does() -> None:
    """`floor(x / y)` where the rounded quotient is an integer and the exact one is not."""
    x = torch.arange(1, 400, dtype=DOUBLE).repeat(2, 1) * torch.tensor([[0.1], [-0.3]], dtype=DOUBLE)
    y = torch.full_like(x, 0.1)
    check({"floor": lambda x, y: x // y, "rest": lambda x, y: x % y, "infinite": lambda x, y: x % (y / 0)}, x, y)


def test_integer_division_by_zero_is_no_crash() -> None:
    x, y = torch.arange(-3, 3).repeat(4, 1), torch.tensor([0, 1, -2, 0, 2, 0]).repeat(4, 1)
    f = jit(lambda x, y: (x // y, x % y, torch.fmod(x, y)), strict=True)
    for found, wanted in zip(
        f(x, y), (x // (y + (y == 0)), x % (y + (y == 0)), torch.fmod(x, y + (y == 0))), strict=True
    ):
        assert torch.equal(found[y != 0], wanted[y != 0])


@pytest.mark.parametrize("worlds", [1, 3])
def test_index_out_of_range_is_clamped(worlds: int) -> None:
    """An error in eager mode; compiled code must at least stay within its memory."""
    x = torch.arange(4.0).repeat(worlds, 1)
    i = torch.tensor([7, -9]).repeat(worlds, 1)
    f = jit(lambda x, i: (x[i], x.gather(0, i), torch.index_put(x, (i,), x[:2] * 0 - 1)), strict=True)
    taken, gathered, put = f(x, i)
    assert torch.equal(taken, torch.tensor([3.0, 0.0]).repeat(worlds, 1)) and torch.equal(gathered, taken)
    assert torch.equal(put, torch.tensor([-1.0, 1.0, 2.0, -1.0]).repeat(worlds, 1))


def test_matrices_whose_zeros_are_found() -> None:
    """Products and factors of as many columns as have lists of what is not zero; the first world has no factor."""
    source, rows, n = cases.Source(3), 10, 21
    J, w = source.tensor((rows, n)), source.tensor((rows,)).square()
    J[:, :, ::3], J[1:, :, 5:9], w[:, 4:8], w[2, :3] = 0, 0, 0, 0
    M = 5 * torch.eye(n, dtype=J.dtype).repeat(len(J), 1, 1)
    M[0, 6, 6] = -1e3

    def gram(J: Tensor, w: Tensor, M: Tensor) -> Tensor:
        return torch.addmm(M, J.mT, w[:, None] * J)

    def wide(J: Tensor) -> Tensor:
        return torch.cat([J * (J > 0.5), J[::2]]).mT

    factor, solve_triangular = torch.linalg.cholesky_ex, torch.linalg.solve_triangular
    # What has no factor is not to be looked at.
    known = lambda L, info: (torch.where(info == 0, L, 0.0), info)  # noqa: E731
    check(
        {
            "gram": lambda J, w, M: J.mT @ (w[:, None] * J),
            "sum": gram,
            "row": lambda J, w, M: torch.addmm(M[0], J.mT, w[:, None] * J),
            "lower": lambda J, w, M: known(*factor(gram(J, w, M))),
            "upper": lambda J, w, M: known(*factor(gram(J, w, M), upper=True)),
            "turned": lambda J, w, M: known(*factor(gram(J, w, M).flip(0, 1))),
            "turned twice": lambda J, w, M: known(*factor(gram(J, w, M).flip(0, 1).flip(0, 1))),
            "both": lambda J, w, M: (lambda H: (known(*factor(H)), known(*factor(H.flip(0, 1)))))(gram(J, w, M)),
            "triangular": lambda J, w, M: (
                solve_triangular(M + J[0] * J[1][:, None], wide(J), upper=False),
                solve_triangular(M + J[0] * J[1][:, None], wide(J)[:, 1:].flip(1), upper=True),
                solve_triangular(
                    M + J[0] * J[1][:, None], torch.stack([wide(J), J.mT.repeat(1, 2)[:, :15]]), upper=True
                ),
                solve_triangular(M + J[2] * J[1][:, None], wide(J), upper=False, unitriangular=True),
            ),
            "stack": lambda J, w, M: factor(torch.stack([M, 2 * M]).square() + 1)[0],
        },
        J,
        w,
        M,
    )


def solved(H: Tensor, x: Tensor, again: bool = False) -> Any:
    """`H^-1 x`, and how much less pivots are than the diagonal; with another solve if it is much."""
    diagonal = H.diagonal()
    L, info = torch.linalg.cholesky_ex(H)

    def solve(x: Tensor) -> Tensor:
        half = torch.linalg.solve_triangular(L, x[:, None], upper=False)
        return torch.where(info == 0, torch.linalg.solve_triangular(L.mT, half, upper=True)[:, 0], 0.0)

    found, lost = solve(x), torch.where(info == 0, diagonal - L.diagonal().square(), 0.0)
    return (if_any(lost.sum() > 20, lambda: solve(found + x), found) if again else found), lost


@pytest.mark.parametrize(
    ("f", "matrices"),
    [
        (solved, 1),
        (lambda H, x: solved(H.flip(0, 1), x), 1),
        (lambda H, x: solved(H, x, again=True), 1),
        (lambda H, x: (solved(H, x), H @ x), 3),
        (lambda H, x: (solved(H.flip(0, 1), x), solved(H, x)), 4),
        (lambda H, x: torch.linalg.cholesky_ex(H)[0] @ x, 2),
    ],
    ids=["solved", "turned", "twice", "matrix read", "two factors", "factor read"],
)
def test_factors_take_the_place_of_matrices_that_nobody_reads(f: Callable[..., Any], matrices: int) -> None:
    source, rows, n = cases.Source(4), 10, 21
    J, w, x = source.tensor((rows, n)), source.tensor((rows,)).square(), source.tensor((n,))

    def function(J: Tensor, w: Tensor, x: Tensor) -> Any:
        return f(torch.addmm(5 * torch.eye(n, dtype=J.dtype), J.mT, w[:, None] * J), x)

    check({"f": function}, J, w, x)
    lowered = jit(function, strict=True).lower(J, w, x)
    arrays = {s.buffer for s in walk(lowered.program.body) if isinstance(s, Store) and s.buffer.kind == SCRATCH}
    # Of what is read whole, the product and the sum are arrays of their own.
    assert sum(b.size == n * n for b in arrays) == matrices


@pytest.mark.parametrize(
    "f, op",
    [
        (lambda x: torch.special.i0(x), "bessel_i0"),
        (lambda x: x.half(), "float16"),
        (lambda x: torch.linalg.eigvalsh(x), "eigh"),
        (lambda x: x.long() ** x.long().abs(), "pow"),
        (lambda x: x.round(decimals=2), "round"),
        (lambda x: x.T.contiguous().T.as_strided((2,), (1,)), "as_strided"),
        (lambda x: x.scatter_reduce(0, x.argsort(0), x, "mean"), "scatter_reduce"),
    ],
)
def test_what_has_no_rule_is_named(f: Callable[[Tensor], Tensor], op: str) -> None:
    with pytest.raises(NoRule, match=op):
        jit(f).lower(torch.ones(2, 3, 3))


# --- compiled ---------------------------------------------------------------------------------------------------------


Families = list[tuple[Callable[..., cases.Functions], list[Tensor]]]


def typed(dtype: torch.dtype, s: cases.Source) -> Families:
    """Families whose code differs between types, for `dtype` and with it."""
    return [
        (cases.unary, [s.tensor((7,), dtype, special=True)]),
        (cases.binary, [s.tensor((9,), dtype, special=True), s.tensor((9,), dtype, special=True)]),
        (cases.binary, [s.tensor((4,), BOOL), s.tensor((4,), dtype)]),
        (cases.reduce, [s.tensor((5,), dtype)]),
        (cases.order, [s.tensor((6,), dtype, special=True)]),
        (cases.best, [s.distinct((6,), dtype)]),
    ]


def untyped(s: cases.Source) -> Families:
    """The same families for integers and masks."""
    return [
        (cases.unary, [s.tensor((4,), INT)]),
        (cases.unary, [s.tensor((4,), BOOL)]),
        (cases.binary, [s.tensor((2, 5), INT), s.tensor((5,), INT)]),
        (cases.binary, [s.tensor((4,), BOOL), s.tensor((4,), BOOL)]),
        (cases.reduce, [s.tensor((6,), INT)]),
        (cases.reduce, [s.tensor((6,), BOOL)]),
        (cases.order, [s.tensor((5,), BOOL)]),
    ]


def addressed(dtype: torch.dtype, s: cases.Source) -> Families:
    """Families that differ in the addresses of what they read and write."""
    return [
        (cases.shape, [s.tensor((2, 3), dtype)]),
        (cases.reduce, [s.tensor((2, 5), dtype)]),
        (cases.index, index_inputs(4, dtype, s.worlds)),
        (cases.index, index_inputs(5, BOOL, s.worlds)),
        (cases.products, [s.tensor((4, 4), dtype), s.tensor((4, 3), dtype)]),
        (cases.solves, [s.tensor((4, 4), dtype) + 9 * torch.eye(4, dtype=dtype), s.tensor((4, 2), dtype)]),
        (cases.loops, [s.tensor((4, 3), dtype), s.index((5,), 4, -4)]),
    ]


def all_at_once(families: Families) -> tuple[cases.Functions, list[Tensor]]:
    """The functions of all families as functions of one list of inputs."""
    functions: cases.Functions = {}
    inputs: list[Tensor] = []
    for n, (family, own) in enumerate(families):
        here = slice(len(inputs), len(inputs) + len(own))
        for name, f in family(*own).items():
            functions[f"{n} {name}"] = lambda *world, f=f, here=here: f(*world[here])
        inputs += own
    return functions, inputs


def compare(families: Families, counts: Sequence[int]) -> None:
    """Compiled for every number of worlds in `counts`, all functions in one program, against eager."""
    functions, inputs = all_at_once(families)
    f = jit(lambda *world: {name: g(*world) for name, g in functions.items()}, strict=True)
    wanted = {name: one_by_one(g, inputs) for name, g in functions.items()}
    for worlds in counts:
        found = f(*(x[:worlds] for x in inputs))
        for name, wants in wanted.items():
            for k, (x, y) in enumerate(zip(optree.tree_leaves(found[name]), wants, strict=True)):
                try:
                    agree(x, y[:worlds])
                except AssertionError as e:
                    raise AssertionError(f"{name}, result {k}, {worlds} worlds: {e}") from None
    assert f.traces == 1


def lanes(dtype: torch.dtype) -> int:
    """How many worlds run side by side in a program of such numbers."""
    return vector_bytes() // (4 if dtype == FLOAT else 8)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE])
def test_compiled(dtype: torch.dtype) -> None:
    """The printed code does what the program says, with and without lanes, whatever the number of worlds."""
    s = cases.Source(3, lanes(dtype) + 1)
    compare([*typed(dtype, s), *(untyped(s) if dtype == DOUBLE else ())], (s.worlds, 3, 1))


@pytest.mark.slow
def test_compiled_addresses() -> None:
    """Where each axis counts from the front only, which is half of the code."""
    s = cases.Source(3, lanes(DOUBLE) + 1)
    families = addressed(DOUBLE, s)
    front = [(lambda *xs, f=f: {k: g for k, g in f(*xs).items() if " -" not in k}, inputs) for f, inputs in families]
    compare(front, (s.worlds, 3))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE])
def test_compiled_addresses_thoroughly(dtype: torch.dtype) -> None:
    s = cases.Source(3, lanes(dtype) + 1)
    compare([*addressed(dtype, s), *untyped(s)], (s.worlds, 3, 1))


@pytest.mark.parametrize("dtype, tolerance", [(FLOAT, 2e-7), (DOUBLE, 1e-15)])
def test_sine_and_cosine_over_a_large_range(dtype: torch.dtype, tolerance: float) -> None:
    x = torch.logspace(-4, 6, 2001, dtype=dtype)
    x = torch.cat([x, -x, torch.tensor([0.0, -0.0, torch.inf, torch.nan], dtype=dtype)])
    sine, cosine = jit(lambda x: (x.sin(), x.cos()), strict=True)(x)
    for found, wanted in ((sine, x.sin()), (cosine, x.cos())):
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance, equal_nan=True)


# --- all of them ------------------------------------------------------------------------------------------------------


NOT_ALWAYS_TRACED = {"_linalg_check_errors"}  # PyTorch 2.11 factorises without


def test_every_rule_is_exercised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each family once, in the interpreter. A rule that no test lowers with is dead, or untested."""
    used: set[str] = set()
    for name, rule in list(RULES.items()):

        def noted(low: Lowering, *args: Any, name: str = name, rule: Callable[..., Any] = rule, **kwargs: Any) -> Any:
            used.add(name)
            return rule(low, *args, **kwargs)

        monkeypatch.setitem(RULES, name, noted)
    scalar = torch.ones(1, dtype=DOUBLE)
    s = cases.Source(3, 1)
    for family, inputs in [*typed(DOUBLE, s), *untyped(s), *addressed(DOUBLE, s), (cases.shape, [scalar])]:
        check(family(*inputs), *inputs)
    for f in cases.scalars().values():
        derivatives = {"grad": torch.func.grad(f), "jvp": lambda x, f=f: torch.func.jvp(f, (x,), (x.T.clone(),))}
        check(derivatives, s.tensor((4, 4)))
    assert set(RULES) - used <= NOT_ALWAYS_TRACED
