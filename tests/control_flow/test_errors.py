"""Errors name the function, the leaf and both types, and are the same eagerly and while tracing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from control_flow.contexts import traced
from torch import Tensor

from mjtorch import control_flow as cf, tree

X = torch.ones(2)
TRUE = torch.tensor(True)


@tree.dataclass
class State(tree.Tree):
    q: Tensor
    n: int = tree.field(static=True, default=3)


def never(carry: Any) -> Tensor:
    return torch.tensor(False)


CASES: tuple[tuple[str, Callable[[Tensor], Any], type[Exception], str], ...] = (
    (
        "dtype",
        lambda x: cf.while_loop(
            lambda c: c["s"].q.sum() < 9, lambda c: {"s": c["s"].replace(q=x.double())}, {"s": State(x)}
        ),
        TypeError,
        r"while_loop: the carry must keep its type, but carry\.s\.q is float32\[2\] on cpu in init_val and "
        r"float64\[2\] on cpu in the result of body_fun",
    ),
    (
        "shape",
        lambda x: cf.while_loop(lambda c: c[0].sum() < 9, lambda c: (c[0][:1] + 1,), (x,)),
        TypeError,
        r"carry\[0\] is float32\[2\] on cpu in init_val and float32\[1\]",
    ),
    (
        "structure",
        lambda x: cf.while_loop(lambda c: c[0].sum() < 9, lambda c: (c[0] + 1, c[0]), (x,)),
        TypeError,
        r"must keep its structure.*Unexpected: carry\[1\]",
    ),
    (
        "missing",
        lambda x: cf.while_loop(lambda c: c["a"].sum() < 9, lambda c: {"a": c["a"] + 1}, {"a": x, "b": x}),
        TypeError,
        r"must keep its structure.*Missing: carry\.b",
    ),
    (
        "static field",
        lambda x: cf.while_loop(lambda s: s.q.sum() < 9, lambda s: s.replace(q=s.q + 1, n=4), State(x)),
        TypeError,
        "must keep its structure",
    ),
    (
        "number in the carry",
        lambda x: cf.while_loop(never, lambda c: c, (x, {"i": 0})),
        TypeError,
        r"the carry in init_val must consist of tensors, but carry\[1\]\.i is a int; use torch\.tensor\(0\)",
    ),
    (
        "text in the carry",
        lambda x: cf.while_loop(never, lambda c: c, (x, "name")),
        TypeError,
        r"carry\[1\] is a str; use a static field or a closure",
    ),
    (
        "number from the body",
        lambda x: cf.while_loop(lambda c: c.sum() < 9, lambda c: 1.0, x),
        TypeError,
        "carry is a float",
    ),
    ("bool predicate", lambda x: cf.while_loop(lambda c: False, lambda c: c, x), TypeError, r"shape \(\), got False"),
    (
        "predicate of many",
        lambda x: cf.while_loop(lambda c: c < 9, lambda c: c + 1, x),
        TypeError,
        r"cond_fun must return a bool tensor of shape \(\), got bool\[2\]; reduce it with \.any\(\)",
    ),
    ("float predicate", lambda x: cf.while_loop(lambda c: c.sum(), lambda c: c + 1, x), TypeError, r"got float32\[\]"),
    ("fori carry", lambda x: cf.fori_loop(0, 9, lambda i, c: c.double(), x), TypeError, "fori_loop: the carry must"),
    ("float bound", lambda x: cf.fori_loop(0, 1.5, lambda i, c: c, x), TypeError, "fori_loop: upper must be an int"),
    ("float tensor bound", lambda x: cf.fori_loop(x[0], 3, lambda i, c: c, x), TypeError, "fori_loop: lower must be"),
    (
        "checkpoint with unknown bounds",
        lambda x: cf.fori_loop(0, x.sum().long(), lambda i, c: c, x, checkpoint=2),
        ValueError,
        "bounds that are Python ints",
    ),
    ("scan result", lambda x: cf.scan(lambda c, u: c + u, x[0], x), TypeError, r"a pair \(carry, y\), got a tensor"),
    ("scan output", lambda x: cf.scan(lambda c, u: (c, 1.0), x[0], x), TypeError, "scan: y in the result of f.*float"),
    (
        "scan carry",
        lambda x: cf.scan(lambda c, u: (u, u), x, x),
        TypeError,
        r"scan: the carry must keep its type.*init",
    ),
    ("scan sizes", lambda x: cf.scan(lambda c, u: (c, u), x, (x, x[:1])), ValueError, "one leading size"),
    ("scan length", lambda x: cf.scan(lambda c, u: (c, u), x, x, length=3), ValueError, "length=3"),
    ("scan without length", lambda x: cf.scan(lambda c, u: (c, u), x), ValueError, "one leading size"),
    ("unroll", lambda x: cf.scan(lambda c, u: (c, u), x[0], x, unroll=2), TypeError, "unroll must be True, False or"),
    ("checkpoint", lambda x: cf.scan(lambda c, u: (c, u), x[0], x, checkpoint=0), ValueError, "a positive int, got 0"),
    (
        "checkpoint and unroll",
        lambda x: cf.scan(lambda c, u: (c, u), x[0], x, unroll=True, checkpoint=1),
        ValueError,
        "leave out one",
    ),
    ("map batch size", lambda x: cf.map(lambda u: u, x, batch_size=0), ValueError, "a positive int, got 0"),
    (
        "each where",
        lambda x: cf.each(torch.sin, x, where=x[:1] > 0, otherwise=torch.cos),
        TypeError,
        r"each: where must be bool\[2\], got torch.bool\[1\]",
    ),
    ("cond predicate", lambda x: cf.cond(x > 0, lambda: x, lambda: x), TypeError, r"cond: pred must be a bool tensor"),
    ("switch index", lambda x: cf.switch(x[0], [lambda: x]), TypeError, "switch: index must be an int"),
    (
        "gap",
        lambda x: cf.by_size(2, {(1, 1): torch.sin, (5, None): torch.cos}, x),
        ValueError,
        "by_size: no range is for 2 to 4",
    ),
    (
        "overlap",
        lambda x: cf.by_size(2, {(3, 9): torch.cos, (1, 3): torch.sin}, x),
        ValueError,
        r"the ranges \(1, 3\) and \(3, 9\) overlap",
    ),
    ("open range", lambda x: cf.by_size(2, {(1, None): torch.cos, (3, 4): torch.sin}, x), ValueError, "overlap"),
    ("empty range", lambda x: cf.by_size(2, {(3, 1): torch.cos}, x), ValueError, "has no size in it"),
    ("no range", lambda x: cf.by_size(2, {}, x), ValueError, "at least one range"),
    ("size outside", lambda x: cf.by_size(9, {(1, 3): torch.cos}, x), ValueError, "n is 9, and .* are for 1 to 3"),
    ("range", lambda x: cf.by_size(9, {4: torch.cos}, x), TypeError, r"must be \(first, last\).* got 4"),
    ("size", lambda x: cf.by_size(1.0, {(1, 3): torch.cos}, x), TypeError, "n must be an int, got 1.0"),
    ("no branches", lambda x: cf.switch(0, []), ValueError, "at least one branch"),
)


@pytest.mark.parametrize("call", [lambda fn: fn, traced, torch.vmap], ids=["eager", "traced", "vmap"])
@pytest.mark.parametrize(("fn", "error", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_message(call: Any, fn: Callable[[Tensor], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(fn)(X[None] if call is torch.vmap else X)


# Only one branch runs where its predicate is known, so these are found under vmap and while tracing.
@pytest.mark.parametrize("call", [traced, torch.vmap], ids=["traced", "vmap"])
@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (
            lambda x: cf.cond(x.sum() > 0, lambda: x, lambda: x[:1]),
            r"cond: the result must keep its type, but result is",
        ),
        (lambda x: cf.cond(x.sum() > 0, lambda: (x,), lambda: x), "cond: the result must keep its structure"),
        (lambda x: cf.cond(x.sum() > 0, lambda: 1.0, lambda: 2.0), r"result is a float; use torch\.tensor\(1\.0\)"),
        (
            lambda x: cf.switch(x[0].long(), [lambda: x, lambda: x.double()]),
            "result is float32.*result is float|float64",
        ),
    ],
    ids=["type", "structure", "number", "switch"],
)
def test_branches_that_differ(call: Any, fn: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(fn)(X[None] if call is torch.vmap else X)


def test_python_values_choose_at_once() -> None:
    """Also while tracing, and then the branches may differ."""
    for call in (lambda fn: fn, traced):
        assert call(lambda x: cf.cond(True, lambda: x + 1, lambda: "other"))(X).tolist() == [2.0, 2.0]
        assert call(lambda x: cf.switch(-3, [lambda: x, lambda: "other"]))(X).tolist() == [1.0, 1.0]


def test_no_trips() -> None:
    total, ys = cf.scan(lambda c, u: (c + u, (c * 2).double()), torch.tensor(2.0), torch.ones(0))
    assert total.item() == 2.0
    assert (ys.shape, ys.dtype) == ((0,), torch.float64)
    assert cf.fori_loop(3, 0, lambda i, x: x + 1, X) is not None
    assert cf.fori_loop(3, 0, lambda i, x: x + 1, X).tolist() == [1.0, 1.0]
