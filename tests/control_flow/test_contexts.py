"""The same values in every context, and in each world exactly the trips that it would make alone."""

from typing import Any

import pytest
import torch
from control_flow.contexts import CONTEXTS, assert_same, compiled, each, nonstrict
from reference import slow_but
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from mjtorch import control_flow as cf, jit, tree


def zero() -> Tensor:
    return torch.zeros((), dtype=torch.int64)


def newton_root(x: Tensor, w: Tensor) -> Any:
    """A loop in a loop, both with captured tensors: the root of 2w, and the number of trips."""
    y = 2 * w

    def body(carry: Any) -> Any:
        x, i = carry
        one, _ = cf.while_loop(lambda c: c[1] < 3, lambda c: (0.5 * c[0] + 0.5 * y / y, c[1] + 1), (0 * x, zero()))
        return x - one / one * (x * x - y) / (2 * x), i + 1

    return cf.while_loop(lambda carry: (carry[0] ** 2 - y).abs().sum() > 1e-5, body, (x.abs() + 0.5, zero()))


def powers(x: Tensor, w: Tensor) -> Any:
    """The body captures the very tensor that the carry begins with."""
    return cf.while_loop(lambda c: c[1] < w.abs().sum(), lambda c: (c[0] * x, c[1] + 1), (x, zero()))


def collatz(x: Tensor, w: Tensor) -> Any:
    n = (x[0].abs() * 20).to(torch.int64) + 1

    def body(carry: dict[str, Tensor]) -> dict[str, Tensor]:
        n, low = carry["n"], carry["low"]
        return {"n": torch.where(n % 2 == 0, n // 2, 3 * n + 1), "low": low | (n < 5), "trips": carry["trips"] + 1}

    start = {"n": n, "low": torch.zeros((), dtype=torch.bool), "trips": torch.zeros((), dtype=torch.int32)}
    return cf.while_loop(lambda c: c["n"] > 1, body, start)


@tree.dataclass
class Particle(tree.Tree):
    x: Tensor
    v: Tensor
    dt: float = tree.field(static=True, default=0.1)


def fall(x: Tensor, w: Tensor) -> Any:
    """A dataclass as the carry; no trip at all in some worlds."""
    particle = Particle(x.double() - 0.5, w.double())
    last = cf.while_loop(
        lambda p: (p.x > 0).all(), lambda p: p.replace(x=p.x + p.dt * p.v, v=p.v - 9.81 * p.dt), particle
    )
    return last.x, last.v


def triangular(x: Tensor, w: Tensor) -> Any:
    n = (w[0].abs() * 10).to(torch.int64)
    return cf.fori_loop(0, n, lambda i, y: y + i * x, torch.zeros_like(x))


def long_fori(x: Tensor, w: Tensor) -> Any:
    return cf.fori_loop(-3, 17, lambda i, c: (torch.sin(c[0]) * w + i, c[1] + i), (x, zero()))


def short_fori(x: Tensor, w: Tensor) -> Any:
    return cf.fori_loop(2, 5, lambda i, y: torch.sin(y) * w + i, x)


def recurrent(x: Tensor, w: Tensor) -> Any:
    xs = x * torch.arange(11.0)[:, None]
    first = cf.scan(lambda h, u: (torch.tanh(h * w + u), {"h": h, "s": (h * u).sum()}), torch.zeros_like(x), xs)
    return first, cf.scan(lambda h, u: (h + u, h), x, first[1]["h"], reverse=True, unroll=False)


def counted(x: Tensor, w: Tensor) -> Any:
    return cf.scan(lambda c, _: (c * w, None), x, length=12)[0]


def handed_on(x: Tensor, w: Tensor) -> Any:
    """What differs between worlds reaches the outer carry after as many trips as the inner loop has."""

    def shift(carry: Any, _: Tensor) -> Any:
        _, second, third = carry
        return (second, third, x), second

    def trip(y: Tensor, _: Tensor) -> Any:
        (first, *_), seen = cf.scan(shift, (torch.ones(2),) * 3, length=3, unroll=False)
        return 0.5 * y + first, seen.sum()

    return cf.scan(trip, torch.ones(2), length=4, unroll=False)


def branch(x: Tensor, w: Tensor) -> Any:
    y = 3 * w
    return cf.cond(x.sum() > 0, lambda x: (x * y, x), lambda x: (x + y, y), x)


def shared_branch(x: Tensor, w: Tensor) -> Any:
    """All worlds choose the same, as `torch.compile` and `make_fx` do not know."""
    return cf.cond(torch.ones(2).sum() > 1, lambda: x * w, lambda: x + w)


def partial_branch(x: Tensor, w: Tensor) -> Any:
    """Some of what both return they only hand on, also within a loop."""
    y = 3 * w

    def body(i: Tensor, z: Tensor) -> Tensor:
        first, second, third = cf.cond(z.sum() > i, lambda: (z * y, x, w), lambda: (z - y, x, w))
        return first + second * third

    row = cf.cond(x[0] > 0, lambda: torch.stack([x, w])[1], lambda: w)
    return cf.fori_loop(0, 9, body, x), cf.cond(x.sum() > 0, lambda: (y, w), lambda: (y, w)), row


def branches(x: Tensor, w: Tensor) -> Any:
    index = (x[0] * 4).to(torch.int64)
    return cf.switch(index, [lambda x: x * w, lambda x: x + w, lambda x: x, lambda x: w], x)


def branch_in_loop(x: Tensor, w: Tensor) -> Any:
    def body(i: Tensor, y: Tensor) -> Tensor:
        return cf.cond(i % 3 == 0, lambda: y * w, lambda: cf.cond(y.sum() > 0, lambda: y - i, lambda: y + x))

    return cf.fori_loop(0, 10, body, x)


def mapped(x: Tensor, w: Tensor) -> Any:
    rows = x[:, None] * torch.arange(10.0)
    every = cf.each(lambda some: (some * w, some.sum(-1)), rows.T)
    return cf.map(lambda row: (row * w, row.sum()), rows.T), cf.map(lambda row: row * w, rows.T, batch_size=4), every


def chosen(x: Tensor, w: Tensor) -> Any:
    """Some slices, none, all, and the only one."""
    rows = {"a": x[0] * torch.arange(1.0, 5.0), "b": torch.outer(torch.arange(4.0), w)}

    def f(some: Any) -> Any:
        shrunk = cf.while_loop(lambda y: (y.abs() > 1).any(), lambda y: torch.where(y.abs() > 1, y / 2, y), some["a"])
        return {"y": shrunk, "z": some["b"] * w + x}

    def otherwise(some: Any) -> Any:
        return {"y": -some["a"], "z": torch.zeros_like(some["b"])}

    masks = rows["a"] > 1, rows["a"] > 1e3, rows["a"] < 1e3
    several = [cf.each(f, rows, where=mask, otherwise=otherwise) for mask in masks]
    first = tree.map(lambda y: y[:1], rows)
    return several, cf.each(f, first, where=masks[0][:1], otherwise=otherwise)


def skipped(x: Tensor, w: Tensor) -> Any:
    large = x > 1
    return cf.if_any(large, lambda: torch.where(large, x * w, -x), x.clone())


def vmap_in_loop(x: Tensor, w: Tensor) -> Any:
    """A transform inside of a body, of captured tensors."""
    m = torch.outer(x, w)
    return cf.fori_loop(0, 9, lambda i, y: y + torch.vmap(lambda row: (row * torch.cos(y)).sum())(m), x)


def gradient_descent(x: Tensor, w: Tensor) -> Any:
    def body(carry: Any) -> Any:
        y, i = carry
        return y - 0.1 * torch.func.grad(lambda y: ((y - w) ** 2).sum())(y), i + 1

    return cf.while_loop(lambda c: ((c[0] - w) ** 2).sum() > 1e-2, body, (x, zero()))


PROBLEMS = (
    newton_root,
    powers,
    collatz,
    fall,
    triangular,
    long_fori,
    short_fori,
    recurrent,
    counted,
    handed_on,
    branch,
    shared_branch,
    partial_branch,
    branches,
    branch_in_loop,
    mapped,
    chosen,
    skipped,
    vmap_in_loop,
    gradient_descent,
)


@pytest.fixture(scope="module")
def worlds() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 2, generator=generator), torch.rand(5, 2, generator=generator) + 0.5


@pytest.mark.parametrize("context", slow_but(CONTEXTS, *(name for name in CONTEXTS if name != "compile of vmap twice")))
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda f: f.__name__)
def test_same_in_every_context(problem: Any, context: str, worlds: tuple[Tensor, Tensor]) -> None:
    assert_same(CONTEXTS[context](problem)(*worlds), each(problem)(*worlds))


def test_trip_counts_are_those_of_a_python_loop(worlds: tuple[Tensor, Tensor]) -> None:
    want = []
    for x, w in zip(*worlds, strict=True):
        x, trips = x.abs() + 0.5, 0
        while (x**2 - 2 * w).abs().sum() > 1e-5:
            x, trips = x - (x**2 - 2 * w) / (2 * x), trips + 1
        want.append(trips)
    assert len(set(want)) > 1  # else this shows little
    assert torch.vmap(newton_root)(*worlds)[1].tolist() == want


@pytest.mark.slow
def test_inductor(worlds: tuple[Tensor, Tensor]) -> None:
    """Everything in one graph, with the backend that people use; and no recompilation for other values."""
    problems = (newton_root, recurrent, branch, shared_branch, branch_in_loop)

    def all_of_them(x: Tensor, w: Tensor) -> Any:
        return [problem(x, w) for problem in problems]

    fn = compiled(torch.vmap(nonstrict(all_of_them)), "inductor")
    for args in (worlds, tuple(x.flip(0) for x in worlds)):
        with torch._dynamo.config.patch(error_on_recompile=args is not worlds):
            assert_same(fn(*args), each(all_of_them)(*args))


@pytest.mark.parametrize("problem", [newton_root, triangular, branch, recurrent], ids=lambda f: f.__name__)
def test_no_recompilation(problem: Any, worlds: tuple[Tensor, Tensor]) -> None:
    fn = compiled(torch.vmap(nonstrict(problem)), "aot_eager")
    fn(*worlds)
    with torch._dynamo.config.patch(error_on_recompile=True):
        fn(*(x.flip(0) for x in worlds))


def test_worlds_in_any_axis(worlds: tuple[Tensor, Tensor]) -> None:
    x, w = worlds
    fn = torch.vmap(powers, in_dims=(1, None), out_dims=(1, 0))
    want = torch.vmap(powers, in_dims=(0, None))(x, w[0])
    for call in (fn, lambda *args: make_fx(fn, tracing_mode="fake")(*args)(*args)):
        y, trips = call(x.T, w[0])
        assert_same((y.T, trips), want)


def test_captured_tensors_of_several_levels() -> None:
    x, w, limit = torch.tensor([1.0, 2.0, 3.0]), torch.tensor(0.3), torch.tensor(9.0)

    def trips(a: Tensor, b: Tensor) -> Any:
        def body(c: Any) -> Any:
            return c[0] + a.abs() + 0.5 * b.abs() + w, c[1] + 1

        return cf.while_loop(lambda c: c[0] < limit, body, (a * b, zero()))[1]

    def table(x: Tensor) -> Tensor:
        return torch.vmap(lambda a: torch.vmap(lambda b: trips(a, b))(x))(x + 1)

    want = [[trips(a, b).item() for b in x] for a in x + 1]
    assert table(x).tolist() == want
    assert compiled(nonstrict(table), "aot_eager")(x).tolist() == want


def test_the_loop_is_one_operator() -> None:
    x = torch.ones(2)
    graph = make_fx(torch.vmap(lambda x: long_fori(x, x)), tracing_mode="fake")(x[None])
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert targets.count("while_loop") == 1
    assert len(targets) < 20


def test_nothing_is_baked_in() -> None:
    """A graph traced with one captured value is right for another: no tensor constants in it."""
    graph = make_fx(powers, tracing_mode="fake")(torch.ones(2), torch.ones(2))
    for module in graph.modules():
        assert not list(module.buffers(recurse=False))
        assert not [value for value in vars(module).values() if isinstance(value, Tensor)]


def test_captured_by_an_attribute_only() -> None:
    def turned(x: Tensor, w: Tensor) -> Tensor:
        return cf.fori_loop(0, 20, lambda i, y: y @ w.mT, x)

    x, w = torch.rand(3, 2, 2), torch.rand(3, 2, 2)
    want = torch.stack([x @ torch.linalg.matrix_power(w.mT, 20) for x, w in zip(x, w, strict=True)])
    for context in ("vmap", "make_fx of vmap"):
        assert_same(CONTEXTS[context](turned)(x, w), want)


@pytest.mark.parametrize("backend", slow_but(["aot_eager", "inductor"], "aot_eager"))
def test_constants_from_outside(backend: str) -> None:
    constant, x = torch.tensor([2.0, 3.0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    fn = compiled(torch.vmap(nonstrict(lambda x: cf.fori_loop(0, 10, lambda i, y: y * constant, x))), backend)
    assert_same(fn(x), x * constant**10)


def test_random_numbers_differ_between_worlds() -> None:
    def walk(x: Tensor) -> Tensor:
        return cf.while_loop(lambda x: x < 10, lambda x: x + torch.rand_like(x), x)

    last = torch.vmap(walk, randomness="different")(torch.zeros(5))
    assert last.unique().numel() == 5
    assert (last >= 10).all()


def test_export() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Any:
            return newton_root(x, w)

    x, w = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 2.0])
    program = torch.export.export(Model(), (x, w), strict=False)
    assert_same(program.module()(x + 2, w + 1), newton_root(x + 2, w + 1))


def test_marked_function_under_compile() -> None:
    """Between operations that Dynamo sees, and called for many worlds."""
    root = cf.compilable(newton_root)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.vmap(root)(x + 1, w)[0] * 2

    x, w = torch.rand(3, 2), torch.rand(3, 2) + 0.5
    assert_same(compiled(fn, "aot_eager")(x, w), fn(x, w))


def test_unmarked_function_under_compile() -> None:
    """Without fullgraph, Dynamo leaves the loop to eager; with it, the error says what to do."""
    x, w = torch.ones(2) * 3, torch.ones(2)
    torch._dynamo.reset()
    assert_same(torch.compile(lambda x, w: newton_root(x, w)[0] + 1, backend="eager")(x, w), newton_root(x, w)[0] + 1)
    with pytest.raises(Exception, match=r"@mjtorch\.control_flow\.compilable"):
        compiled(lambda x, w: newton_root(x, w)[0] + 1, "eager")(x, w)


def test_what_both_branches_hand_on_is_no_choice() -> None:
    """It costs nothing, and is the very tensor."""

    def f(x: Tensor, w: Tensor) -> Any:
        return cf.cond(x.sum() > 0, lambda: (x, w, x + 1), lambda: (x, w, x - 1))

    x, w = torch.randn(3, 2), torch.randn(3, 2)
    program = jit(f, strict=True).lower(x, w)
    assert [o.source for o in program.outputs] == [0, 1, -1]
    graph = make_fx(f)(x[0], w[0])
    assert len(graph.true_graph_0.graph.find_nodes(op="output")[0].args[0]) == 1


@pytest.mark.parametrize("how", ["cond, one tensor twice", "cond, two views", "loop, two views"])
def test_compile_of_operands_that_share_memory(how):
    """PyTorch's operators refuse such operands, so they get copies."""

    def f(x: torch.Tensor) -> torch.Tensor:
        tail = x[1:]
        if how.startswith("loop"):
            return cf.while_loop(lambda y: (x.sum() < 9) & (y < tail.sum()), lambda y: y + x[0] + tail[0], x[0] * 0)
        other = x if how.endswith("twice") else tail
        return cf.cond(x[0] > 0, lambda y: y.sin().sum() * x.sum() + other.sum(), lambda y: (y * y).sum(), x)

    x = torch.tensor([0.5, 1.0, 2.0])
    torch.testing.assert_close(compiled(nonstrict(f), "aot_eager")(x), f(x))
