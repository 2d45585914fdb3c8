"""What `jit` has in common with `torch.compile`: backends, stances, starting afresh."""

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from mjtorch import control_flow, jit, tree

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.arange(12.0).reshape(3, 4)


def f(x: Tensor) -> Tensor:
    return x.sin().sum()


@tree.dataclass
class Pair(tree.Tree):
    a: Tensor
    order: int = tree.field(static=True, default=1)


@tree.dataclass
class Table(tree.Tree):
    index: Tensor = tree.field(constant=True)


def test_a_function_as_backend() -> None:
    graphs = []

    def backend(graph: GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    g = jit(f, backend=backend, fullgraph=True)
    torch.testing.assert_close(g(X), torch.vmap(f)(X))
    assert g.ran is backend and len(graphs) == 1
    g(X + 1)
    assert len(graphs) == 1
    g.reset()
    torch._dynamo.reset()
    g(X)
    assert len(graphs) == 2


def test_a_name_as_backend() -> None:
    g = jit(f, backend="aot_eager", dynamic=False)
    torch.testing.assert_close(g(X), torch.vmap(f)(X))
    assert g.ran == "aot_eager" and g.settings()["dynamic"] is False


def test_stances() -> None:
    g = jit(f)
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="this call is new"):
        g(X)
    with torch.compiler.set_stance("eager_on_recompile"):
        g(X)
    assert g.ran == "eager" and not g.traces
    wanted = torch.vmap(f)(X)
    torch.testing.assert_close(g(X), wanted)
    assert g.ran == "native"
    for stance in ("fail_on_recompile", "eager_on_recompile"):
        with torch.compiler.set_stance(stance):
            torch.testing.assert_close(g(X + 0), wanted)
        assert g.ran == "native"
    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(g(X), wanted)
    assert g.ran == "eager"


@pytest.mark.usefixtures("cold")
def test_reset_traces_anew() -> None:
    g = jit(f)
    for traces in (1, 2):
        g(X)
        g(X)
        assert g.traces == traces
        g.reset()


@pytest.mark.usefixtures("cold")
def test_resetting_the_compiler_resets_all_functions() -> None:
    """Those that ran since Dynamo was imported, which `fresh_dynamo` did."""
    g, h = jit(f), jit(lambda x: x.cos())
    for traces in (1, 2):
        for one in (g, h):
            one(X)
            one(X)
            assert one.traces == traces
        torch.compiler.reset()


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_disabled(backend: str) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    g = jit(f, backend=backend, disable=True)
    torch.testing.assert_close(g(X), torch.vmap(f)(X))
    assert g.ran == "eager" and not g.traces
    assert jit(f, backend=never, disable=True)(X).shape == (3,)
    assert copy.deepcopy(g).disable


def test_too_many_programs_and_why() -> None:
    def scaled(p: Pair, x: Tensor, factor: float) -> Tensor:
        return p.a * p.order * x.sum() * factor

    g = jit(scaled, in_dims=(None, 0), static_argnames="factor", trace_limit=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor in (1.0, 2.0, 3.0):
            g.lower(Pair(torch.ones(2)), X, factor)
        g.lower(Pair(torch.ones(3)), X, 1.0)
        g.lower(Pair(torch.zeros(3)), X + 1, 1.0)
    with pytest.warns(RuntimeWarning) as caught:
        g.lower(Pair(torch.ones(2), order=2), X, 1.0)
    (text,) = (str(w.message) for w in caught)
    assert "more than 4 programs" in text and "trace_limit" in text
    assert "factor changed 2 times (last: 3.0, was " in text
    assert "p.a changed 1 times (last: float32[3], was float32[2])" in text
    assert "p.order changed 1 times (last: 2, was 1)" in text
    g.reset()
    assert not g.causes.programs
    with pytest.raises(ValueError, match="trace_limit must be a positive int, got 0"):
        jit(f, trace_limit=0)


def test_values_that_are_compiled_in_are_a_cause() -> None:
    g = jit(lambda t, x: x.index_select(0, t.index), in_dims=(None, 0))
    for index in ([0, 1], [1, 2]):
        g.lower(Table(torch.tensor(index)), X)
    assert str(g.causes) == "t.index changed 1 times (last: other values, which are compiled in)"


def test_ranges_of_the_batch_and_of_a_length() -> None:
    """A program for each range, chosen at each call; what was traced once is not again."""
    few, many = jit(f), jit(lambda x: 2 * f(x))

    def by_worlds(x: Tensor) -> Tensor:
        return control_flow.by_size(len(x), {(1, 4): few, (5, None): many}, x)

    for _ in range(2):
        for n in (1, 4, 5, 9):
            x = torch.rand(n, 3)
            torch.testing.assert_close(by_worlds(x), torch.vmap(f)(x) * (1 if n < 5 else 2))
    assert few.causes.programs == many.causes.programs == 1

    ranges = {(1, 4): f, (5, None): torch.prod}
    g = jit(lambda x: control_flow.by_size(x.shape[0], ranges, x))
    for _ in range(2):
        for n in (3, 5):
            x = torch.rand(2, n)
            torch.testing.assert_close(g(x), torch.vmap(ranges[(1, 4) if n < 5 else (5, None)])(x))
    assert g.causes.programs == 2
    for bad, words in (({(1, 4): f, (6, None): f}, "no range is for 5 to 5"), ({(1, 4): f, (4, 9): f}, "overlap")):
        with pytest.raises(ValueError, match=words):
            jit(functools.partial(lambda x, ranges: control_flow.by_size(x.shape[0], ranges, x), ranges=bad))(X)


@pytest.mark.slow
def test_no_input_is_written_to() -> None:
    """Else `mode="reduce-overhead"` leaves out CUDA graphs "due to mutated inputs"."""
    from torch._inductor.utils import run_and_get_graph_lowering

    def root(x: Tensor) -> Any:
        y = control_flow.while_loop(lambda y: (y * y - x).abs().sum() > 1e-4, lambda y: (y + x / y) / 2, x)
        return control_flow.cond(y.sum() > 3, lambda y: y + x, lambda y: y - x, y), x

    x = torch.rand(3, 2) + 1
    g = jit(control_flow.compilable(root), backend="inductor", mode="reduce-overhead")
    found, lowered = run_and_get_graph_lowering(g, x)
    torch.testing.assert_close(found, torch.vmap(root)(x))
    assert lowered and not any(graph.mutated_inputs for graph in lowered)
