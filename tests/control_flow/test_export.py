"""Loops and branches through `torch.export`: as they are, and under `torch.vmap`, by way of a graph."""

from collections.abc import Callable

import pytest
import torch
from control_flow.contexts import assert_same, compiled, each, nonstrict
from torch import Tensor, nn, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from mjtorch import control_flow as cf

# torch.export copies structures of its own in a way that torch says is out of date
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


class Called(nn.Module):
    """A function as the module that `torch.export` wants."""

    def __init__(self, fn: Callable) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x)


def loop_in_a_loop_and_one_after_it(x: Tensor) -> Tensor:
    def halved(c: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        y, i = c
        y, _ = cf.while_loop(lambda t: t[1] < 3, lambda t: (t[0] * 0.5 + x, t[1] + 1), (y, torch.zeros_like(i)))
        return y, i + 1

    y, _ = cf.while_loop(lambda c: c[1] < 4, halved, (x, torch.zeros((), dtype=torch.int64)))
    return cf.while_loop(lambda y: y.abs().sum() > 1, lambda y: y * 0.7, y)


def summed(x: Tensor) -> Tensor:
    return cf.scan(lambda c, r: (c * 0.9 + r, c.sum()), x, torch.arange(12.0))[1]


def chosen(x: Tensor) -> Tensor:
    return cf.cond(x.sum() > 0, lambda y: y.sin() * x, lambda y: y * y, x)


def chosen_of_one_tensor_twice(x: Tensor) -> Tensor:
    """As PyTorch's own operator refuses it."""
    y = cf.cond(x.sum() > 0, lambda a, b: a * b, lambda a, b: a - 2 * b, x, x)
    branches = [lambda a, b: a * b, lambda a, b: a - 2 * b, lambda a, b: a.exp() + b]
    return y + cf.switch((x.sum() > 0).long() + 1, branches, x, x)


def chosen_of_two_views(x: Tensor) -> Tensor:
    y = cf.cond(x.sum() > 0, lambda a, b: a * b, lambda a, b: a - 2 * b, x[1:], x[:-1])
    return y + cf.switch((x[0] > 0).long(), [lambda a, b: a / 2 + b, lambda a, b: a - b], x[1:], x[1:].flip(0))


PROBLEMS = (loop_in_a_loop_and_one_after_it, summed, chosen, chosen_of_one_tensor_twice, chosen_of_two_views)


def slope(x: Tensor) -> Tensor:
    return torch.func.grad(lambda x: summed(x.sin()).sum())(x)


X = torch.tensor([[0.5, -0.2, 1.5], [-2.0, 0.1, 0.4]])


def assert_exports(fn: Callable, module: nn.Module, example: Tensor, *others: Tensor) -> None:
    """Exported, and lowered to core operators, it computes what `fn` does, for other values too."""
    program = torch.export.export(module, (example,), strict=False)
    for run in (program.module(), program.run_decompositions().module()):
        for x in (example, *others):
            assert_same(run(x), fn(x))


@pytest.mark.parametrize("fn", PROBLEMS, ids=lambda f: f.__name__)
def test_for_one_world(fn: Callable) -> None:
    assert_exports(fn, Called(fn), X[0], X[1], -X[1])


@pytest.mark.parametrize("fn", PROBLEMS[3:], ids=lambda f: f.__name__)
def test_compile_of_operands_that_share_memory(fn: Callable) -> None:
    for make in (
        lambda fn: each(compiled(nonstrict(fn), "aot_eager")),
        lambda fn: compiled(vmap(nonstrict(fn)), "eager"),
    ):
        assert_same(make(fn)(X), each(fn)(X))


@pytest.mark.parametrize("fn", [*PROBLEMS, slope], ids=lambda f: f.__name__)
def test_for_many_worlds(fn: Callable) -> None:
    many = vmap(fn)
    assert_exports(many, make_fx(many, tracing_mode="fake")(X), X, X.flip(0))
