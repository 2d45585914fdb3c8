"""What `jit` refuses, and says instead; what it cannot compile, and runs all the same."""

import inspect
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mjtorch import control_flow, jit
from mjtorch.compiler.lower import NoRule
from mjtorch.compiler.trace import TraceError

X = torch.arange(12.0).reshape(3, 4)
OUTSIDE = torch.ones(4)


# --- what cannot be traced --------------------------------------------------------------------------------------------


def branch(a: Tensor) -> Tensor:
    return a if a.sum() > 0 else -a  # here


def loop(a: Tensor) -> Tensor:
    while a.norm() > 1:  # here
        a = a / 2
    return a


def item(a: Tensor) -> Tensor:
    return a * a.sum().item()  # here


def number(a: Tensor) -> Tensor:
    return a * math.sqrt(a.sum())  # here


def truth(a: Tensor) -> tuple[Tensor, bool]:
    return a, (a.sum() > 0).item()  # here


def count(a: Tensor) -> tuple[Tensor, dict[str, int]]:
    return a, {"count": a.sum().long().item(), "sum": a.sum().item()}  # here


def listed(a: Tensor) -> Tensor:
    return a + torch.tensor(a.tolist())  # here


def trips(a: Tensor) -> Tensor:
    for _ in range(a.sum().long()):  # here
        a = a * 2
    return a


def branch_in_a_loop(a: Tensor) -> Tensor:
    return control_flow.fori_loop(0, 20, lambda i, y: y + 1 if y[0] > 0 else y, a)  # here


BRANCH = ("mjtorch.control_flow.cond or while_loop", "torch.where")


def helper(a: Tensor) -> Tensor:
    return a.mul_(2)  # here


def in_place(a: Tensor) -> Tensor:
    return helper(a) + 1


def in_place_part(a: Tensor) -> Tensor:
    a[1:3] = 0  # here
    return a * 2


def in_place_view(a: Tensor) -> Tensor:
    b = a.reshape(2, 2).T
    b += 1  # here
    return b


def in_place_outside(a: Tensor) -> Tensor:
    OUTSIDE.add_(a)  # here
    return OUTSIDE * 2


def in_place_in_a_loop(a: Tensor) -> Tensor:
    b = a * 2

    def trip(i: Tensor, y: Tensor) -> Tensor:
        b.add_(1)  # here
        return y + b

    return control_flow.fori_loop(0, 20, trip, a)


def in_place_in_a_branch(a: Tensor) -> Tensor:
    b = a * 2
    return control_flow.cond(a.sum() > 0, lambda: a, lambda: b.unsqueeze_(0)[0])  # here


def noise(a: Tensor) -> Tensor:
    return a + torch.randn(4)  # here


def noise_in_place(a: Tensor) -> Tensor:
    return a + torch.empty(4).uniform_()  # here


def dropout(a: Tensor) -> Tensor:
    return torch.nn.functional.dropout(a, 0.5)  # here


def order(a: Tensor) -> Tensor:
    return a[torch.randperm(4)]  # here


def mask(a: Tensor) -> Tensor:
    return a[a > 3].sum()  # here


def nonzero(a: Tensor) -> Tensor:
    return a.nonzero().sum()  # here


@pytest.mark.parametrize("backend", ["auto", "native"])
@pytest.mark.parametrize(
    "f, advice",
    [
        *((f, BRANCH) for f in (branch, loop, item, number, truth, count, listed, trips, branch_in_a_loop)),
        *((f, ("in place", "an input", "x.clone()")) for f in (in_place, in_place_part, in_place_view)),
        (in_place_outside, ("in place", "a tensor from outside", "x.clone()")),
        *((f, ("in place", "around a loop or branch")) for f in (in_place_in_a_loop, in_place_in_a_branch)),
        *((f, ("draws random numbers", "outside and pass them in")) for f in (noise, noise_in_place, dropout, order)),
        *((f, ("shape depends on values", "torch.where or a mask")) for f in (mask, nonzero)),
    ],
)
def test_what_cannot_be_traced(f: Callable[..., Any], advice: tuple[str, ...], backend: Any) -> None:
    """The error says what to do instead, and where: on the user's own line."""
    with pytest.raises(TraceError) as e:
        jit(f, backend=backend)(X.clone())
    culprit = helper if f is in_place else f
    lines, first = inspect.getsourcelines(culprit)
    (here,) = (k for k, line in enumerate(lines) if line.rstrip().endswith("# here"))
    assert f"jit({f.__name__}): {__file__}:{first + here}, in " in str(e.value)
    assert "`" + lines[here].rpartition("#")[0].strip() in str(e.value)
    for words in advice:
        assert words in str(e.value)


def test_a_failed_trace_changes_nothing() -> None:
    before, x = OUTSIDE.clone(), X.clone()
    for f in (in_place, in_place_outside):
        with pytest.raises(TraceError):
            jit(f)(x)
    assert torch.equal(OUTSIDE, before) and torch.equal(x, X)


def test_writing_in_place_to_what_the_function_made_is_fine() -> None:
    def f(a: Tensor) -> Tensor:
        b = a.clone()
        b[1:3] = 0
        b += 1
        return b.mul_(2)

    assert torch.equal(jit(f, strict=True)(X), torch.stack([f(x) for x in X]))


def written_alone(a: Tensor) -> Tensor:
    """As derivatives do: a new tensor is written to, and nobody else sees it."""
    return torch.func.grad(lambda a: (a.clamp(1, 5)[[0, 0, 1]] * a[:3]).sum())(a)


def written_and_seen(a: Tensor) -> Tensor:
    new = a.clone()
    part = new[:2]
    new.mul_(2)
    return new + part.sum()


def of_its_own_dtype(a: Tensor) -> Tensor:
    """In place, a comparison gives numbers, and a number of double precision is rounded."""
    return a.clone().logical_and_(a > 2) + (a + 1).add_(a.double() / 3)


@pytest.mark.parametrize("f, times", [(written_alone, 1), (written_and_seen, 2), (of_its_own_dtype, 2)])
def test_traced_again_only_for_writes_that_are_seen(
    f: Callable[[Tensor], Tensor], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["mjtorch.compiler.trace"]  # the package has a function of this name
    traces = []
    original = module._record
    monkeypatch.setattr(module, "_record", lambda *args, **more: traces.append(args) or original(*args, **more))
    found, wanted = jit(f, strict=True)(X), torch.vmap(f)(X)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)
    assert len(traces) == times


def test_errors_of_the_function_are_its_own() -> None:
    def f(a: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        jit(f)(X)
    with pytest.raises(RuntimeError, match="broadcast"):
        jit(lambda a: a + torch.ones(5))(X)


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kwargs, args, message",
    [
        ({"in_dims": (0, 0)}, (X,), r"in_dims=\(0, 0\) does not fit the arguments"),
        ({"in_dims": ("a",)}, (X,), "in_dims must be an int, None, or a tree of them, got 'a'"),
        ({"in_dims": (None,)}, (X,), "no argument has a world axis; for one world use in_dims=None"),
        ({}, (X[0, 0],), r"x has shape \(\) and no axis 0 to count worlds; say None in in_dims"),
        ({"in_dims": 2}, (X,), r"x has shape \(3, 4\) and no axis 2"),
        ({}, ({"u": X, "v": X[:2]},), r"x.v of shape \(2, 4\) is for 2 worlds, along axis 0, but x.u is for 3"),
        ({}, ("text",), "x must be a tensor or a number, got str; name what chooses the program in static_argnames"),
        ({"out_dims": (0, 0)}, (X,), r"out_dims=\(0, 0\) does not fit the result"),
        ({"out_dims": None}, (X,), "out_dims is None for result 0, which differs between worlds"),
    ],
)
def test_arguments_that_do_not_fit(kwargs: dict[str, Any], args: tuple, message: str) -> None:
    def f(x: Any) -> Any:
        return {k: 2 * v for k, v in x.items()} if isinstance(x, dict) else x * 2

    with pytest.raises((TypeError, ValueError), match=message):
        jit(f, **kwargs)(*args)


def test_options_that_do_not_exist() -> None:
    with pytest.raises(TypeError, match="f must be a function, got int"):
        jit(3)
    with pytest.raises(
        ValueError, match=r"backend must be a Target, one of .*, or a backend of torch.compile, got 'c'"
    ):
        jit(torch.sin, backend="c")
    with pytest.raises(TypeError, match=r"unknown options \['mode'\]"):
        jit(torch.sin, mode="max-autotune")


def test_results_that_are_no_tensors() -> None:
    with pytest.raises(TypeError, match="must return tensors, got str"):
        jit(lambda a: (a, "text"))(X)


# --- gradients --------------------------------------------------------------------------------------------------------


def test_gradients_are_refused() -> None:
    """Rather than cut: the caller is told to compile the gradient."""
    w = X.clone().requires_grad_()
    f = jit(lambda a: (a * a).sum(), strict=True)
    with pytest.raises(RuntimeError, match=r"a requires grad.*jit\(torch.func.grad\(f\)\).*torch.no_grad\(\)"):
        f(w)
    with torch.no_grad():
        assert torch.equal(f(w), (X * X).sum(1))
    with pytest.raises(RuntimeError, match=r"p.w requires grad.*jit\(torch.func.grad\(f\)\)"):
        jit(lambda a, p: a + p["w"], in_dims=(0, None))(X, {"w": w[0]})


def test_gradients_of_captured_tensors_are_refused() -> None:
    w = torch.ones(4, requires_grad=True)
    f = jit(lambda a: a * w, strict=True)
    with pytest.raises(RuntimeError, match=r"from around the function requires grad.*jit\(torch.func.grad\(f\)\)"):
        f(X)
    with torch.no_grad():
        assert torch.equal(f(X), X)


# --- what has no rule -------------------------------------------------------------------------------------------------


def test_an_op_without_a_rule_runs_uncompiled_with_one_warning() -> None:
    def f(a: Tensor) -> Tensor:
        return torch.special.i0(a) + 1

    g = jit(f)
    with pytest.warns(RuntimeWarning, match="there is no rule for .*bessel_i0.*torch.vmap instead") as found:
        assert torch.equal(g(X), f(X))
    assert len(found) == 1 and found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(g(X), f(X))
        assert torch.equal(g(X[:2]), f(X[:2]))
    assert g.ran == "eager"


def test_an_op_without_a_rule_is_an_error_if_strict() -> None:
    for backend in ("auto", "native"):
        with pytest.raises(NotImplementedError, match=r"there is no rule for .*bessel_i0") as e:
            jit(torch.special.i0, strict=True, backend=backend)(X)
        assert isinstance(e.value.__cause__, NoRule)


def test_what_ran_is_what_the_last_call_ran_on() -> None:
    f = jit(lambda a: a * 2)
    assert f.ran == "native" and jit(torch.sin, backend="inductor").ran == "inductor"
    with pytest.warns(RuntimeWarning, match="torch.vmap instead"):
        f(X.half())
    assert f.ran == "eager"
    for _ in range(3):
        f(X)
        assert f.ran == "native"
    f(X.half())
    assert f.ran == "eager"
    torch.func.vmap(f)(X[None])
    assert f.ran == "eager"


@pytest.mark.parametrize("x", [X.to(torch.complex64), X.half(), X.to(torch.int16)])
def test_dtypes_that_no_program_has(x: Tensor) -> None:
    with pytest.warns(RuntimeWarning, match="torch.vmap instead"):
        assert torch.equal(jit(lambda a: a + a)(x), x + x)
