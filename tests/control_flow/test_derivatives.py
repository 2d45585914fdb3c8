"""Derivatives of loops and branches, in every mode that has them; clear errors in the others."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from control_flow.contexts import assert_same, backward, compiled, each, nonstrict, traced
from reference import slow_but
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import mjtorch
from mjtorch import control_flow as cf, jit

Options = dict[str, Any]
OPTIONS: tuple[Options, ...] = (
    {},
    {"unroll": True},
    {"unroll": False, "reverse": True},
    {"checkpoint": 4},
    {"checkpoint": 5, "reverse": True},
)


def recurrent(h: Tensor, xs: Tensor, w: Tensor, **options: Any) -> Tensor:
    """A scalar that depends on the initial carry, the inputs, and a captured matrix; with an integer in the carry."""

    def f(carry: Any, x: Tensor) -> Any:
        h, count = carry
        h = torch.tanh(w @ h + x)
        return (h, count + 1), (h * h).sum() * count

    (last, _), ys = cf.scan(f, (h, torch.zeros((), dtype=torch.int64)), xs, **options)
    return last.sum() + ys.sum()


def plain(h: Tensor, xs: Tensor, w: Tensor, reverse: bool = False) -> Tensor:
    total = torch.zeros(())
    for count, x in enumerate(xs.flip(0) if reverse else xs):
        h = torch.tanh(w @ h + x)
        total = total + (h * h).sum() * count
    return h.sum() + total


def gradients(fn: Callable[..., Tensor]) -> Callable[..., Any]:
    return grad(fn, argnums=(0, 1, 2))


MODES: dict[str, Callable[..., Callable[..., Any]]] = {
    "grad": lambda fn: each(gradients(fn)),
    "backward": lambda fn: each(backward(fn)),
    "vmap of grad": lambda fn: vmap(gradients(fn)),
    "grad of vmap": lambda fn: gradients(lambda *args: vmap(fn)(*args).sum()),
    "backward of vmap": lambda fn: backward(vmap(fn)),
    "make_fx of vmap of grad": lambda fn: traced(vmap(gradients(fn))),
    "make_fx of grad of vmap": lambda fn: traced(gradients(lambda *args: vmap(fn)(*args).sum())),
    "compile of vmap of grad": lambda fn: compiled(vmap(nonstrict(gradients(fn))), "aot_eager"),
    "backward of compile of vmap": lambda fn: backward(compiled(vmap(nonstrict(fn)), "aot_eager")),
}


SCANS = [*itertools.product(OPTIONS, MODES)]


@pytest.fixture(scope="module")
def worlds() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    h, xs, w = (torch.randn(*shape, generator=generator) for shape in ((3, 2), (3, 12, 2), (3, 2, 2)))
    return h, xs, 0.4 * w


@pytest.mark.parametrize(
    ("options", "mode"), slow_but(SCANS, *(x for x in SCANS if "compile" not in x[1] or x[0].get("checkpoint") == 4))
)
def test_scan(options: Options, mode: str, worlds: tuple[Tensor, ...]) -> None:
    want = vmap(gradients(lambda *args: plain(*args, reverse=options.get("reverse", False))))(*worlds)
    assert_same(MODES[mode](lambda *args: recurrent(*args, **options))(*worlds), want)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"checkpoint": 4}], ids=str)
def test_scan_through_inductor(options: Options, worlds: tuple[Tensor, ...]) -> None:
    def fn(*args: Tensor) -> Tensor:
        return recurrent(*args, **options)

    want = vmap(gradients(plain))(*worlds)
    assert_same(compiled(vmap(nonstrict(gradients(fn))), "inductor")(*worlds), want)
    assert_same(backward(compiled(vmap(nonstrict(fn)), "inductor"))(*worlds), want)


def test_long_backward_pass_of_compile() -> None:
    """Inductor overwrites what long loops need, so that they are refused; not so where it may not."""
    x = torch.ones(3)

    def fn(x: Tensor) -> Tensor:
        return cf.fori_loop(0, 40, lambda i, y: torch.sin(y * x), x)

    with pytest.raises(Exception, match="donated_buffer"):
        backward(compiled(nonstrict(fn), "aot_eager"))(x)
    with torch._functorch.config.patch(donated_buffer=False):
        assert_same(backward(compiled(nonstrict(fn), "aot_eager"))(x), backward(fn)(x))


@pytest.mark.parametrize("options", [{"unroll": False}, {"checkpoint": 2}], ids=str)
def test_loops_in_loops_in_loops(options: Options) -> None:
    """Where shapes alone are computed, the innermost body runs once, not a few times for each loop around it."""
    calls = 0

    def nested(x: Tensor, depth: int) -> Tensor:
        nonlocal calls
        calls += not depth
        return cf.fori_loop(0, 9, lambda i, y: nested(y, depth - 1), x, **options) if depth else torch.sin(x)

    with FakeTensorMode():
        out = vmap(grad(lambda x: nested(x, 3).sum()))(torch.ones(4, 2))
    assert out.shape == (4, 2)
    assert calls == 1


def test_views_of_one_tensor() -> None:
    """A compiled loop that captures two parts of what is differentiated."""

    def fn(x: Tensor) -> Tensor:
        (w, b), h = x[:2], x[2]
        return cf.fori_loop(0, 20, lambda i, h: torch.sin(w * h + b), h)

    x = torch.tensor([[0.9, 0.1, 0.3], [1.1, 0.2, 0.1]])
    assert_same(mjtorch.jit(jacrev(fn), strict=True, in_dims=0)(x), vmap(jacrev(fn))(x))


@pytest.mark.parametrize("checkpoint", [None, 3])
def test_second_derivatives(checkpoint: int | None, worlds: tuple[Tensor, ...]) -> None:
    h, xs, w = (x[0].double() for x in worlds)

    def mixed(h: Tensor, xs: Tensor, w: Tensor) -> Tensor:
        return jacrev(grad(lambda h, w: recurrent(h, xs, w, checkpoint=checkpoint)), argnums=1)(h, w)

    want = jacrev(grad(lambda h, w: plain(h, xs, w)), argnums=1)(h, w)
    assert_same(mixed(h, xs, w), want)
    assert_same(traced(mixed)(h, xs, w), want)


def test_forward_mode(worlds: tuple[Tensor, ...]) -> None:
    args = tuple(x[0] for x in worlds)
    want = jvp(plain, args, args)
    assert_same(jvp(recurrent, args, args), want)
    assert_same(jvp(lambda *a: recurrent(*a, checkpoint=3), args, args), want)
    for options in ({"unroll": True}, {"unroll": False}, {"checkpoint": 5}):
        fn = functools.partial(recurrent, **options)
        assert_same(traced(lambda *args, fn=fn: jvp(fn, args, args))(*args), want)
        want_matrices = vmap(jacfwd(plain, argnums=(0, 2)))(*worlds)
        assert_same(traced(vmap(jacfwd(fn, argnums=(0, 2))))(*worlds), want_matrices)
        assert_same(jit(jacfwd(fn, argnums=(0, 2)), in_dims=0)(*worlds), want_matrices)


def test_forward_mode_of_reverse_mode(worlds: tuple[Tensor, ...]) -> None:
    h, xs, w = worlds

    def curvature(fn: Any) -> Any:
        return lambda h, xs, w: jvp(grad(lambda h: fn(h, xs, w).square()), (h,), (h + 1,))[1]

    want = vmap(curvature(plain))(h, xs, w)
    assert_same(jit(curvature(functools.partial(recurrent, unroll=False)), in_dims=0)(h, xs, w), want)


@pytest.mark.parametrize("how", [traced, lambda fn: jit(fn, in_dims=None)], ids=["make_fx", "jit"])
def test_forward_mode_of_branches_and_while_loops(how: Any) -> None:
    """Of numbers beside truth values and counts, some of which do not change."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        table = torch.linspace(0.5, 2.0, 12).view(4, 3)
        which = (x.abs() * 9).long() % 4
        z, n = cf.while_loop(
            lambda c: c[0].sum() < 20, lambda c: (c[0] * 1.5 + table[which, 0] * x + y, c[1] + 1), (x.abs(), 0 * which)
        )
        left, right = (lambda z: (z.sin() * x + table[1], n, z > 0)), (lambda z: (z.cos() * y, n + 1, z < 0))
        a, count, sign = cf.cond(z.sum() > 25, left, right, z)
        b = cf.each(lambda z: z * z, torch.stack([a, z]), where=torch.stack([sign[0], ~sign[0]]), otherwise=torch.sin)
        return torch.where(sign, b.sum(0), a) + count

    for x in torch.tensor([[0.3, 0.2, 0.9], [1.5, 2.5, 0.1], [4.0, -1.0, 3.0]]):
        for tangents in ((x + 1, x - 1), (x, torch.zeros(3))):
            want = jvp(fn, (x, x.cos()), tangents)
            assert_same(how(lambda *args: jvp(fn, args[:2], args[2:]))(x, x.cos(), *tangents), want)
        assert_same(how(jacfwd(fn))(x, x), jacfwd(fn)(x, x))


@pytest.mark.parametrize("mode", MODES)
def test_cond_and_switch(mode: str, worlds: tuple[Tensor, ...]) -> None:
    def fn(h: Tensor, xs: Tensor, w: Tensor) -> Tensor:
        first = cf.cond(h.sum() > 0, lambda h: (w @ h).sum(), lambda h: (xs[0] * h).sum(), h)
        shared = cf.cond(torch.ones(()) > 0, lambda: h * xs[1], lambda: h)
        index = (xs[2, 0] * 2).to(torch.int64)
        return first + (shared * cf.switch(index, [lambda: h, lambda: 2 * w[0], lambda: xs[3]])).sum()

    assert_same(MODES[mode](fn)(*worlds), each(backward(fn))(*worlds))


@pytest.mark.parametrize("mode", MODES)
def test_each(mode: str, worlds: tuple[Tensor, ...]) -> None:
    """With respect to what is sliced, and to what is captured."""

    def fn(h: Tensor, xs: Tensor, w: Tensor) -> Tensor:
        where = xs[:, 0] > h[0]
        y = cf.each(lambda x: torch.tanh(x @ w + h), xs, where=where, otherwise=lambda x: 2 * x)
        return (y * xs.flip(0)).sum()

    assert_same(MODES[mode](fn)(*worlds), each(backward(fn))(*worlds))


@pytest.mark.parametrize("mode", slow_but(MODES, *(x for x in MODES if x != "backward of compile of vmap")))
def test_nested(mode: str, worlds: tuple[Tensor, ...]) -> None:
    """Derivatives through a branch in a loop in a loop, all with captured tensors."""

    def fn(h: Tensor, xs: Tensor, w: Tensor) -> Tensor:
        def outer(y: Tensor, x: Tensor) -> Any:
            def inner(i: Tensor, z: Tensor) -> Tensor:
                return torch.tanh(cf.cond(i % 2 == 0, lambda: w @ z, lambda: z * x) + 0.1 * y)

            return cf.fori_loop(0, 3, inner, y, unroll=False), (y * x).sum()

        y, ys = cf.scan(outer, h, xs, unroll=False)
        return y.sum() + ys.sum()

    assert_same(MODES[mode](fn)(*worlds), each(backward(fn))(*worlds))


def square(x: Tensor) -> Tensor:
    return cf.while_loop(lambda c: c[1] < 1, lambda c: (c[0] * x, c[1] + 1), (x, torch.zeros(())))[0]


def test_eager_while_loop_has_derivatives() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    want = 2 * x
    assert_same(backward(square)(x)[0], want)
    assert_same(vmap(grad(square))(x), want)
    assert_same(grad(lambda x: vmap(square)(x).sum())(x), want)
    assert_same(jvp(square, (x,), (torch.ones(3),))[1], want)


def test_traced_while_loop_says_that_it_has_no_derivative_in_reverse_mode() -> None:
    x = torch.tensor(2.0)
    with pytest.raises(RuntimeError, match=r"while_loop has no derivative in reverse mode.*fori_loop"):
        make_fx(grad(square))(x)
    assert_same(traced(lambda x: jvp(square, (x,), (x,)))(x), (x**2, 2 * x**2))
    # It is no error to have a gradient around, only to want that of the loop.
    assert_same(traced(grad(lambda x: x * square(x.detach())))(x), x**2)
    assert_same(traced(grad(lambda x: x * (square(x) > 0)))(x), torch.ones(()))


def test_tensors_that_a_body_cannot_differentiate() -> None:
    w = torch.ones(2)

    def fn(x: Tensor, wanted: Callable[[Tensor], Tensor]) -> Tensor:
        return cf.fori_loop(0, 9, lambda i, y: y + grad(lambda w: (w * y).sum())(wanted(w)), x)

    with pytest.raises(NotImplementedError, match="captured"):
        make_fx(lambda x: fn(x, lambda w: w))(torch.ones(2))
    assert_same(make_fx(lambda x: fn(x, torch.clone))(torch.ones(2))(w), fn(w, torch.clone))


def test_module_parameters() -> None:
    layer, x = torch.nn.Linear(3, 3), torch.ones(3)

    def fn(layer: torch.nn.Module, x: Tensor) -> Tensor:
        return cf.fori_loop(0, 12, lambda i, y: torch.tanh(layer(y)), x)

    def parameter_gradients(fn: Callable[..., Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad(fn(layer, x).sum(), list(layer.parameters())))

    run = compiled(nonstrict(fn), "aot_eager")
    if torch.__version__ < "2.12":  # where PyTorch does not hand modules to such functions
        with pytest.raises(torch._dynamo.exc.Unsupported, match="Invalid input type"):
            run(layer, x)
    else:
        assert_same(parameter_gradients(run), parameter_gradients(fn))


def test_checkpoint_saves_memory() -> None:
    """What is kept for the backward pass: all carries, or those of the chunks."""
    x, saved = torch.ones(1000, requires_grad=True), []

    def pack(x: Tensor) -> Tensor:
        saved.append(x.untyped_storage().nbytes())
        return x

    def kept(checkpoint: int | None) -> int:
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            cf.fori_loop(0, 64, lambda i, y: torch.sin(torch.sin(y)), x, checkpoint=checkpoint)
        return sum(saved)

    assert kept(8) < kept(None) / 8


@pytest.mark.parametrize("how", ["cond", "scan", "helper"])
def test_names_keep_their_meaning_in_the_backward_pass(how: str) -> None:
    """Functions that a backward pass calls again see what names meant when they were called first."""

    def fn(x: Tensor) -> Tensor:
        if how == "scan":
            x = cf.fori_loop(0, 9, lambda i, y: y + torch.sin(x * y), x)
        elif how == "cond":
            x = cf.cond(x.sum() > 0, lambda: x * x, lambda: x)
        else:

            def square() -> Tensor:
                return x * x

            x = cf.cond(x.sum() > 0, lambda: square() + x, lambda: x)
        return (x * x).sum()

    x = torch.tensor([0.7, 0.4])
    assert_same(mjtorch.jit(grad(fn), strict=True, in_dims=None)(x), backward(fn)(x))


def test_what_a_body_assigns_is_seen_outside(cold: None) -> None:
    calls = 0

    def body(i: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return y + 1

    assert mjtorch.jit(lambda x: cf.fori_loop(0, 9, body, x), strict=True, in_dims=None)(torch.zeros(())) == 9
    assert calls > 0
