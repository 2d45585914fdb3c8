"""A loop in a `torch.autograd.Function` whose backward pass is an implicit derivative: how the solvers use it."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from control_flow.contexts import assert_same, backward, compiled, each, nonstrict, traced
from torch import Tensor
from torch.func import grad, vmap

from mjtorch import control_flow as cf


def gradient(h: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Of `0.5 x'Hx - b'x + 5 |max(x - 1, 0)|^2`."""
    return h @ x - b + 10 * torch.clamp(x - 1, min=0)


def hessian(h: Tensor, x: Tensor) -> Tensor:
    return h + torch.diag_embed(10.0 * (x > 1).to(x.dtype))


class Solve(torch.autograd.Function):
    """The minimiser, by Newton's method with a line search: a loop in a loop."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        def newton(carry: Any) -> Any:
            x, i = carry
            g = gradient(h, b, x)
            step = torch.linalg.solve_ex(hessian(h, x), g[:, None])[0][:, 0]

            def too_long(t: Tensor) -> Tensor:
                return (gradient(h, b, x - t * step) ** 2).sum() > (g**2).sum()

            return x - cf.while_loop(too_long, lambda t: t / 2, torch.ones_like(g[0])) * step, i + 1

        start = torch.zeros_like(b), torch.zeros((), dtype=torch.int64)
        return cf.while_loop(lambda c: (gradient(h, b, c[0]) ** 2).sum() > 1e-20, newton, start)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output[0])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor, Tensor]:
        h, x = ctx.saved_tensors
        adjoint = torch.linalg.solve_ex(hessian(h, x), g[:, None])[0][:, 0]
        return -adjoint[:, None] * x[None, :], adjoint


def loss(h: Tensor, b: Tensor) -> Tensor:
    return (Solve.apply(h, b)[0] ** 3).sum()


def gradients(fn: Callable[..., Tensor]) -> Callable[..., Any]:
    return grad(fn, argnums=(0, 1))


MODES: dict[str, Callable[[], Callable[..., Any]]] = {
    "grad": lambda: each(gradients(loss)),
    "vmap of grad": lambda: vmap(gradients(loss)),
    "grad of vmap": lambda: gradients(lambda h, b: vmap(loss)(h, b).sum()),
    "backward of vmap": lambda: backward(vmap(loss)),
    "make_fx of vmap of grad": lambda: traced(vmap(gradients(loss))),
    "make_fx of grad of vmap": lambda: traced(gradients(lambda h, b: vmap(loss)(h, b).sum())),
    "compile of vmap of grad": lambda: compiled(vmap(nonstrict(gradients(loss))), "aot_eager"),
    "compile of grad of vmap": lambda: compiled(nonstrict(gradients(lambda h, b: vmap(loss)(h, b).sum())), "aot_eager"),
    "backward of compile of vmap": lambda: backward(compiled(vmap(nonstrict(loss)), "aot_eager")),
}


@pytest.fixture(scope="module")
def problems() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(4, 3, 3, generator=generator, dtype=torch.float64)
    b = 5 * torch.randn(4, 3, generator=generator, dtype=torch.float64)
    return root @ root.mT + torch.eye(3), b


@pytest.mark.parametrize("mode", MODES)
def test_same_in_every_mode(mode: str, problems: tuple[Tensor, Tensor]) -> None:
    assert_same(MODES[mode]()(*problems), each(backward(loss))(*problems))


def test_against_finite_differences(problems: tuple[Tensor, Tensor]) -> None:
    h, b = (x[0] for x in problems)
    eps = 1e-6 * torch.eye(3, dtype=b.dtype)
    want = torch.stack([(loss(h, b + e) - loss(h, b - e)) / 2e-6 for e in eps])
    torch.testing.assert_close(gradients(loss)(h, b)[1], want, rtol=1e-6, atol=1e-6)


def test_trip_counts(problems: tuple[Tensor, Tensor]) -> None:
    want = [Solve.apply(h, b)[1].item() for h, b in zip(*problems, strict=True)]
    assert len(set(want)) > 1
    assert vmap(Solve.apply)(*problems)[1].tolist() == want
    assert compiled(vmap(nonstrict(Solve.apply)), "aot_eager")(*problems)[1].tolist() == want


def test_loop_in_a_rollout(problems: tuple[Tensor, Tensor]) -> None:
    """A differentiable solve in every trip of a scan, as in a rollout."""

    def rollout(h: Tensor, b: Tensor) -> Tensor:
        return cf.scan(lambda x, _: (Solve.apply(h, b + 0.3 * x)[0], None), b, length=10)[0].sum()

    want = each(backward(rollout))(*problems)
    for fn in (vmap(gradients(rollout)), traced(vmap(gradients(rollout))), backward(vmap(rollout))):
        assert_same(fn(*problems), want)


class Root(torch.autograd.Function):
    """`x` with `x + 0.1 x^3 = a`, by a loop in a loop; its derivative, `1 / (1 + 0.3 x^2)`, by a loop as well."""

    generate_vmap_rule = True
    calls: ClassVar[list[str]] = []

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        def halves(t: Tensor) -> Tensor:
            Root.calls.append("innermost")
            return t / 2

        def newton(x: Tensor) -> Tensor:
            step = (x + 0.1 * x**3 - a) / (1 + 0.3 * x**2)
            return x - cf.while_loop(lambda t: ((t * step).abs() > 2).any(), halves, torch.ones_like(a)) * step

        return cf.while_loop(lambda x: ((x + 0.1 * x**3 - a).abs() > 1e-9).any(), newton, torch.zeros_like(a))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cf.fori_loop(0, 80, lambda i, y: (g + (1 - 0.3 * x**2) * y) / 2, torch.zeros_like(g))  # its fixed point


@pytest.mark.slow
def test_loops_around_a_derivative_that_loops() -> None:
    """Under `torch.compile` what is innermost runs in Python a few times more with each loop around it, not fold."""

    def nested(x: Tensor, depth: int) -> Tensor:
        if not depth:
            return Root.apply(x).cos()
        return cf.scan(lambda y, i: (nested(y, depth - 1) * i, None), x, torch.tensor([1.0, 0.9]), unroll=False)[0]

    x, calls = torch.linspace(-1, 2, 8).reshape(4, 2).double(), []
    for depth in (1, 3):
        slope = grad(lambda x, depth=depth: nested(x, depth).sum())
        Root.calls.clear()
        found = compiled(vmap(nonstrict(slope)), "aot_eager")(x)
        calls.append(len(Root.calls))
        assert_same(found, each(backward(lambda x, depth=depth: nested(x, depth)))(x))
    assert calls[1] < 3 * calls[0]


@pytest.mark.slow
def test_inductor(problems: tuple[Tensor, Tensor]) -> None:
    assert_same(backward(compiled(vmap(nonstrict(loss)), "inductor"))(*problems), each(backward(loss))(*problems))
