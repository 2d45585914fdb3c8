"""A call that looks like one before skips most of the work, and none of what matters."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mjtorch
from mjtorch import jit, models, tree
from mjtorch.compiler.calls import KEPT

X = torch.arange(12.0).reshape(3, 4)


@tree.dataclass
class Inner(tree.Tree):
    """A tree in a tree."""

    gain: Tensor
    bias: Tensor | None = None


@tree.dataclass
class Plant(tree.Tree):
    """Like a model: constants, a tuple of trees, and a leaf that nothing reads."""

    scale: Tensor
    table: Tensor = tree.field(constant=True)
    inner: Inner
    parts: tuple[Inner, ...] = ()
    unread: Tensor = tree.field(default=None)
    name: str = tree.field(static=True, default="")


def plant() -> Plant:
    parts = (Inner(torch.tensor(0.5)),)
    return Plant(torch.ones(4), torch.arange(4), Inner(torch.tensor(2.0)), parts, torch.zeros(2))


def response(m: Plant, x: Tensor) -> dict[str, Tensor]:
    bias = 0 if m.inner.bias is None else m.inner.bias
    return {"y": x[m.table] * m.scale * m.inner.gain + bias + m.parts[0].gain, "x": x, "one": torch.ones(2)}


def equal(found: Any, wanted: Any) -> None:
    for x, y in zip(tree.leaves(found), tree.leaves(wanted), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y)


# What happens to the tensors of a call before the next: a change in place of some kind.
CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "values": lambda x: x.add_(1),
    "memory": lambda x: setattr(x, "data", x.data + 3),
    "layout": lambda x: setattr(x, "data", x.data.mT.contiguous().mT + 1) if x.dim() > 1 else None,
    "set": lambda x: x.set_(x + 5),
    "size": lambda x: x.set_(torch.cat([x, x])) if x.dim() else None,
    "dtype": lambda x: setattr(x, "data", x.data.double()),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("which", ["scale", "inner.gain", "parts.0.gain", "x"])
@pytest.mark.parametrize("in_dims", [(None, 0), None])
def test_changes_in_place_are_seen(change: str, which: str, in_dims: Any) -> None:
    m, x = plant(), X.clone() if in_dims else X[0].clone()
    f = jit(response, in_dims=in_dims, strict=True)
    for _ in range(3):
        f(m, x)
    target = x if which == "x" else dict(tree.leaves_with_path(m))[which]
    CHANGES[change](target)
    if change == "size" and which == "scale":
        with pytest.raises(RuntimeError):
            f(m, x)
        return
    for _ in range(3):
        equal(f(m, x), torch.vmap(response, in_dims)(m, x) if in_dims else response(m, x))


def test_a_call_made_twice_is_known() -> None:
    m, f = plant(), jit(response, in_dims=(None, 0), strict=True)
    wanted = f(m, X)
    assert not f.calls.kept
    equal(f(m, X), wanted)
    (prepared,) = f.calls.kept
    for again in (m, m.replace(), m.replace(scale=torch.ones(4))):
        equal(f(again, X.clone()), wanted)
        assert list(f.calls.kept) == [prepared] and prepared.arguments[0].kept is again
    f(m.replace(table=torch.arange(4)), X)  # equal, but another tensor
    assert f.traces == 1
    equal(f(m.replace(table=torch.tensor([1, 1, 1, 1])), X)["y"], 2 * X[:, 1:2].expand(3, 4) + 0.5)
    equal(f(m, X), wanted)
    assert f.traces == 2


def test_another_structure_is_not_taken_for_the_same() -> None:
    m, f = plant(), jit(response, in_dims=(None, 0), strict=True)
    variants = [
        m,
        m.replace(inner=m.inner.replace(bias=torch.tensor(1.0))),
        m.replace(name="other"),
        m.replace(parts=(m.inner, m.inner)),
        m.replace(unread=None),
    ]
    for _ in range(3):
        for v in variants:
            equal(f(v, X), torch.vmap(response, (None, 0))(v, X))
    assert f.traces == len(variants)


def test_gradients_are_refused_as_in_the_first_call() -> None:
    m, x = plant(), X.clone()
    f = jit(response, in_dims=(None, 0), strict=True)
    for target in (x, m.scale, m.parts[0].gain):
        for _ in range(3):
            f(m, x)
        target.requires_grad_()
        with pytest.raises(RuntimeError, match="requires grad, and gradients do not pass"):
            f(m, x)
        with torch.no_grad():
            for _ in range(3):
                f(m, x)
        with pytest.raises(RuntimeError, match="requires grad, and gradients do not pass"):
            f(m, x)
        target.requires_grad_(False)
    weight = torch.ones(4)
    g = jit(lambda x: x * weight, strict=True)
    for _ in range(3):
        g(X)
    weight.requires_grad_()
    with pytest.raises(RuntimeError, match="around the function requires grad"):
        g(X)


def test_values_around_the_function_are_watched() -> None:
    weight = torch.ones(4)
    f = jit(lambda x: x * weight, strict=True)
    for _ in range(3):
        equal(f(X), X)
    weight.add_(1)
    with pytest.warns(RuntimeWarning, match="compiling again"):
        equal(f(X), 2 * X)
    equal(f(X), 2 * X)


def test_static_values_and_ways_to_write_a_call() -> None:
    f = jit(lambda a, b, n=1, *more, scale=1: a * n - b * scale + sum(more), in_dims=None, static_argnames="n")
    a, b = X[0].long(), X[1].long()
    for _ in range(3):
        for n in (1, True, 1.0, 2):
            equal(f(a, b, n), a * n - b)
            equal(f(b=b, a=a, n=n), a * n - b)
        equal(f(a, b, scale=b, n=2), 2 * a - b * b)
        equal(f(a, scale=b, b=a), a - a * b)
        equal(f(a, b, 2, b, b), 2 * a + b)
        equal(f(a, 2.5), a - 2.5)
        equal(f(a, b.numpy()), a - b)
        equal(f(a, np.int64(2)), a - 2)


def test_one_tensor_twice() -> None:
    f = jit(lambda a, b: (a - b, a, b), in_dims=None, strict=True)
    x, y = X[0], X[1]
    for _ in range(3):
        for pair in ((x, y), (x, x), (y, x), (y, y)):
            equal(f(*pair), (pair[0] - pair[1], *pair))


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad, torch.func.jvp])
def test_inside_of_other_transforms(transform: Any) -> None:
    f = jit(lambda x: (x * x).sum(), in_dims=None, strict=True)
    for _ in range(3):
        f(X)
        if transform is torch.func.jvp:
            equal(transform(f, (X,), (X,)), ((X * X).sum(), 2 * (X * X).sum()))
        else:
            equal(transform(f)(X), (X * X).sum(1) if transform is torch.func.vmap else 2 * X)


def test_out_dims() -> None:
    f = jit(lambda x: (x * 2, x.sum()), out_dims=(1, 0), strict=True)
    for _ in range(3):
        equal(f(X), (2 * X.T, X.sum(1)))


@pytest.mark.parametrize("worlds", [None, 1, 5])
def test_results_have_memory_of_their_own(worlds: int | None) -> None:
    m = mjtorch.put_model(models.load("hopper"), dtype=torch.float64)
    d = mjtorch.make_data(m) if worlds is None else mjtorch.batch(mjtorch.make_data(m), worlds)
    f = jit(mjtorch.step, in_dims=None if worlds is None else (None, 0), strict=True)
    first = [f(m, d) for _ in range(3)]
    given = {x.data_ptr() for x in tree.leaves((m, d))}
    addresses = [x.data_ptr() for r in first for x in tree.leaves(r) if x.data_ptr() not in given and x.numel()]
    assert len(addresses) == len(set(addresses))
    wanted = tree.map(torch.clone, first[1])
    for x in tree.leaves(first[0]):
        if x.data_ptr() not in given and 0 not in x.stride():
            x.zero_()
    equal(first[1], wanted)
    equal(f(m, d), wanted)


@pytest.mark.parametrize("outputs", [None, "state", ("sensordata", "contact.dist")])
def test_steps_are_those_of_calls_that_are_not_known(outputs: Any) -> None:
    m = mjtorch.put_model(models.load("hopper"), dtype=torch.float64)
    f = jit(mjtorch.step, in_dims=None, strict=True)
    d = e = mjtorch.make_data(m)
    for k in range(20):
        ctrl = torch.full((m.nu,), 0.01 * k, dtype=torch.float64)
        d = f(m, d.replace(ctrl=ctrl), outputs=outputs)
        known = list(f.calls.kept)
        f.calls.clear()
        e = f(m, e.replace(ctrl=ctrl), outputs=outputs)
        equal(d, e)
        assert bool(known) == (k > 0)
    with pytest.raises(ValueError, match="qvel"):
        f(m, d.replace(qvel=d.qvel[:-1]), outputs=outputs)


def test_threads_do_not_disturb_each_other() -> None:
    m = mjtorch.put_model(models.load("hopper"), dtype=torch.float64)
    f = jit(mjtorch.step, in_dims=None, strict=True)

    def simulate(speed: float, found: dict[float, Tensor]) -> None:
        d = mjtorch.make_data(m)
        d = d.replace(qvel=d.qvel + speed)
        for _ in range(60):
            d = f(m, d, outputs="state")
        found[speed] = d.qpos

    alone: dict[float, Tensor] = {}
    together: dict[float, Tensor] = {}
    speeds = [0.1 * k for k in range(KEPT + 2)]
    for s in speeds:
        simulate(s, alone)
    workers = [threading.Thread(target=simulate, args=(s, together)) for s in speeds]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert all(torch.equal(alone[s], together[s]) for s in speeds)
    assert len(f.calls.kept) <= KEPT


def test_nothing_is_held_but_models() -> None:
    m, f = plant(), jit(response, in_dims=(None, 0), strict=True)
    held = []
    for worlds in range(1, 3 * KEPT):
        x = torch.rand(worlds, 4)
        held += [weakref.ref(y) for _ in range(3) for y in (x, *tree.leaves(f(m, x)))]
    del x
    gc.collect()
    assert not any(r() is not None for r in held)
    assert len(f.calls.kept) == KEPT
