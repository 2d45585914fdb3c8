"""Writes in place: most become calls that make new tensors without a second trace, all mean what they mean eagerly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mjtorch import control_flow, jit
from mjtorch.compiler import trace


def elements(x: Tensor) -> Tensor:
    y = x.sinh()
    y[0, 1] = 2.0
    y[1] = x[0]
    y[:, 2:] *= 3.0
    y[1:, 1:][0, 0] = -1.0
    return y


def diagonal(x: Tensor) -> Tensor:
    y = x.new_zeros(4, 4)
    y.diagonal(1).copy_(x[0, :3])
    y.diagonal().fill_(1.0)
    return y


def read_before_and_after(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    before = y.sum()
    y[0] = 5.0
    between = y.sum(0)
    y.mul_(2.0)
    return before, between, y.amax(), y


def one_after_another(x: Tensor) -> Tensor:
    y = x.exp()
    y.add_(1.0).mul_(x).sub_(3.0).pow_(2)
    y[2:].pow_(3)
    y[0].neg_()
    return y


def jacobian(x: Tensor) -> Any:
    def f(x: Tensor) -> Tensor:
        return torch.cat([x.sin() @ x.mT, x.new_ones(3, 1)], dim=1)

    return torch.func.jacrev(f)(x), torch.func.jacfwd(f)(x)


def of_other_strides(x: Tensor) -> Tensor:
    y = torch.outer(x[0], x[1]).T.clone()
    y[:, 1:3][1] = x[1, :2]
    y.mT[0] += 1.0
    return y.sin_()


def in_loops(x: Tensor) -> Tensor:
    def body(y: Tensor) -> Tensor:
        z = y.cos()
        z[0] = y[1]
        return z

    y = control_flow.while_loop(lambda y: y.sum() < 9, lambda y: body(y) + 1, x)
    return control_flow.fori_loop(0, 20, lambda i, y: body(y), y)


def seen_by_another_name(x: Tensor) -> tuple[Tensor, ...]:
    y = x.cosh()
    part, whole = y[1:], y.view(-1)
    y[1] = 7.0
    part[0, 0] = -4.0
    y[0].add_(whole[-4:])
    return y, part.sum(), whole


def of_itself(x: Tensor) -> Tensor:
    y = x.sinh()
    y[1:].mul_(y[:2])
    row = y[2]
    row.copy_(y[0])
    row[0] = 3.0
    y[1:].exp_().neg_()
    return y


def results_of_writes(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()
    doubled = y[0].mul_(2.0)
    part = y[1, 1:].neg_()[1]
    y[0] = 1.0
    y[1] += 2.0
    return doubled, part, y


def sizes_and_types(x: Tensor) -> Tensor:
    y = torch.zeros_like(x, dtype=torch.int64)
    y[0] = (x[0] * 9).long()
    y[:, 1] = 3
    y[1].add_(y[2])
    return y.expand(2, 3, 4)


QUICK = (elements, diagonal, read_before_and_after, one_after_another, jacobian, in_loops)
OTHERS = (of_other_strides, seen_by_another_name, of_itself, results_of_writes, sizes_and_types)


def compared(f: Callable[[Tensor], Any]) -> None:
    x = torch.randn(5, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(jit(f, in_dims=0)(x), torch.vmap(f)(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("f", QUICK, ids=lambda f: f.__name__)
def test_new_tensors_are_written_without_a_second_trace(f: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("a second trace")

    monkeypatch.setattr(trace, "functionalized", refused)
    compared(f)


@pytest.mark.parametrize("f", OTHERS, ids=lambda f: f.__name__)
def test_what_is_seen_by_another_name(f: Callable[..., Any]) -> None:
    compared(f)
