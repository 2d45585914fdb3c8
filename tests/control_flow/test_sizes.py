"""Sizes that a graph has for variables: one graph for all of them, the same values as eagerly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from control_flow.contexts import assert_same, nonstrict
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from mjtorch import control_flow as cf

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def summed(x: Tensor) -> Any:
    return cf.scan(lambda c, u: (c + u, c * u), torch.zeros(()), x)


def backwards(x: Tensor) -> Any:
    return cf.scan(lambda c, _: (c * 0.5 + 1, c), x[0], length=x.shape[0], reverse=True)


def mapped(x: Tensor) -> Tensor:
    return cf.map(torch.sin, x)


def counted(x: Tensor) -> Tensor:
    return cf.fori_loop(0, x.shape[0], lambda i, c: c * 1.01 + i, x)


def chosen(x: Tensor) -> Tensor:
    return cf.cond(x.shape[0] <= 20, lambda y: y.sin(), lambda y: y.cos(), x)


def one_of_three(x: Tensor) -> Tensor:
    return cf.switch(x.shape[0] // 16, [torch.sin, torch.cos, torch.exp], x)


def in_ranges(x: Tensor) -> Tensor:
    ranges = {(13, 20): torch.cos, (1, 12): torch.sin, (21, None): torch.exp}
    return cf.by_size(x.shape[0], ranges, x)


def repeated(x: Tensor) -> Tensor:
    return cf.while_loop(lambda c: c.sum() < 100, lambda c: c * 1.5 + x.shape[0], x)


def slope(x: Tensor) -> Tensor:
    return torch.func.grad(lambda x: summed(x)[1].sum())(x)


def in_chunks(x: Tensor) -> Any:
    """Sizes that leave all remainders by 3, and a chunk that depends on the size."""
    add = lambda c, u: (c + u, c * u)  # noqa: E731
    return cf.scan(add, x[0], x, checkpoint=3), cf.scan(add, x[0], x, checkpoint=x.shape[0] // 4)


def unrolled_if_short(x: Tensor) -> Any:
    """Which nobody knows: a loop."""
    return cf.scan(lambda c, u: (c + u, c), x[0], x, unroll=x.shape[0] < 15)


def between_sizes(x: Tensor) -> Tensor:
    """A size as one bound, a tensor as the other."""
    last = torch.full((), 50, dtype=torch.int64)
    return cf.fori_loop(x.shape[0], last, lambda i, c: c * 1.01 + i, x)


PROBLEMS = (
    summed,
    backwards,
    mapped,
    counted,
    between_sizes,
    in_chunks,
    unrolled_if_short,
    chosen,
    one_of_three,
    in_ranges,
    repeated,
    slope,
)
# Below and above the sizes at which `chosen` and `one_of_three` choose otherwise.
SIZES = (12, 17, 40)


def graphs_of(fn: Callable, inputs: list[Tensor], **options: Any) -> int:
    """Call `fn`, compiled, with all of them; how many graphs that took."""
    compiled = torch.compile(fn, fullgraph=True, backend="aot_eager", **options)
    for x in inputs:
        assert_same(compiled(x), fn(x))
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda f: f.__name__)
def test_one_graph_for_all_sizes(problem: Callable) -> None:
    assert graphs_of(nonstrict(problem), [torch.rand(n) for n in SIZES], dynamic=True) == 1


@pytest.mark.parametrize("problem", [summed, chosen], ids=lambda f: f.__name__)
def test_in_worlds(problem: Callable) -> None:
    assert graphs_of(torch.vmap(nonstrict(problem)), [torch.rand(3, n) for n in SIZES], dynamic=True) == 1


@pytest.mark.parametrize("problem", [summed, mapped, counted, chosen], ids=lambda f: f.__name__)
def test_the_second_size_makes_it_a_variable(problem: Callable) -> None:
    """As PyTorch does by itself, when it has seen a size change."""
    assert graphs_of(nonstrict(problem), [torch.rand(n) for n in SIZES]) == 2


def test_batches_of_a_map() -> None:
    """Sizes that leave all remainders."""
    fn = nonstrict(lambda x: cf.map(torch.sin, x, batch_size=4))
    assert graphs_of(fn, [torch.rand(n) for n in (12, 13, 14, 15)], dynamic=True) == 1


def branches_in(fn: Callable, **options: Any) -> int:
    graph = make_fx(fn, tracing_mode="symbolic", **options)(torch.rand(12))
    return [str(n.target) for n in graph.graph.nodes].count("cond")


def test_a_choice_that_sizes_make_is_in_the_graph_unless_all_make_the_same() -> None:
    assert branches_in(chosen) == 1
    assert branches_in(lambda x: cf.cond(x.shape[0] >= 1, torch.sin, torch.cos, x)) == 0
    assert branches_in(lambda x: cf.cond(x.shape[0] < 0, torch.sin, torch.cos, x)) == 0


def test_numbers_of_a_traced_function_that_are_known() -> None:
    """A size that is no variable folds, in cond and in switch."""
    graph = make_fx(lambda x: (chosen(x), one_of_three(x)), tracing_mode="fake")(torch.rand(12))
    assert "cond" not in [str(n.target) for n in graph.graph.nodes]


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="one leading size"):
        make_fx(lambda x: cf.scan(lambda c, u: (c, u), x[0], (x, x[1:])), tracing_mode="symbolic")(torch.rand(12))


def test_a_range_that_all_sizes_are_in_is_the_only_one_in_the_graph() -> None:
    def fn(x: Tensor) -> Tensor:
        return cf.by_size(x.shape[0], {(0, 0): torch.cos, (1, None): torch.sin}, x)

    assert branches_in(in_ranges) == 1
    assert branches_in(fn) == 0


@pytest.mark.slow
def test_inductor() -> None:
    for problem in (summed, chosen):
        torch._dynamo.reset()
        compiled = torch.compile(nonstrict(problem), fullgraph=True, dynamic=True)
        for n in SIZES:
            x = torch.rand(n)
            assert_same(compiled(x), problem(x))
