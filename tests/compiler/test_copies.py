"""Compiled functions sent elsewhere, and arguments that are unusual: no worlds, numbers whose sign is a mark."""

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import mjtorch
from mjtorch import jit, models, tree

X = torch.arange(12.0).reshape(3, 4)


def power(x: Tensor, y: Tensor, n: int = 2) -> Tensor:
    return x**n + y


@jit(in_dims=(0, None), static_argnames="n", strict=True)
def decorated(x: Tensor, y: Tensor, n: int = 2) -> Tensor:
    return x**n - y


def sent(f: Any) -> Any:
    return pickle.loads(pickle.dumps(f))


@pytest.mark.parametrize("send", [sent, copy.deepcopy])
def test_a_copy_is_the_function_uncompiled(send: Any) -> None:
    f = jit(power, in_dims=(0, None), out_dims=1, static_argnames="n", strict=True, threads=2)
    wanted = f(X, X[0], n=3)
    g = send({"f": f})["f"]
    assert g is not f and (f.traces, g.traces) == (1, 0) and not g.programs and repr(g) == "jit(power)"
    assert g.strict and g.threads == 2
    assert torch.equal(g(X, X[0], n=3), wanted)


def test_a_decorated_function_is_known_by_its_name() -> None:
    assert sent(decorated) is decorated
    other = copy.deepcopy(decorated)
    assert other is not decorated and torch.equal(other(X, X[0]), X**2 - X[0])
    assert decorated.traces == 0


def test_a_copy_in_another_process() -> None:
    f = jit(mjtorch.kinematics, in_dims=None)
    code = f"import pickle; print(pickle.loads({pickle.dumps(f)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "jit(kinematics)"


def test_a_copy_of_a_module_has_its_own_weights() -> None:
    net = torch.nn.Linear(4, 2)
    f = jit(net)
    g = copy.deepcopy(f)
    with torch.no_grad():
        wanted = g(X).clone()
        net.weight.zero_()
        assert torch.equal(g(X), wanted) and g.f is not net


def test_no_worlds() -> None:
    m = mjtorch.put_model(models.load("hopper"))
    d = mjtorch.batch(mjtorch.make_data(m), 3)
    step = jit(mjtorch.step, in_dims=(None, 0), strict=True)
    some = step(m, d, outputs="state")
    none = tree.map(lambda x: x[:0], d)
    for _ in range(4):
        found = step(m, none, outputs="state")
        assert all(x.shape == (0, *y.shape[1:]) for x, y in zip(tree.leaves(found), tree.leaves(some), strict=True))
        none = found
    assert step.traces <= 1


def test_numbers_whose_sign_is_a_mark() -> None:
    """The imaginary part of a conjugate is a view of numbers in memory that have the other sign."""
    z = torch.complex(X, X + 1)
    marked = z.conj().imag
    assert marked.is_neg()
    f = jit(lambda a, b: (a * 2, b, a @ b), in_dims=(0, None), strict=True)
    plain, wanted = marked.resolve_neg(), (-2 * (X + 1), torch.ones(4))
    for k in range(8):
        doubled, one, product = f(plain if k in (2, 3, 4) else marked, torch.ones(4))
        assert torch.equal(doubled, wanted[0]) and torch.equal(product, -(X + 1).sum(1))
        assert torch.equal(one[0], wanted[1])
    shared = marked[0]
    for k in range(6):
        assert torch.equal(f(X, shared if k != 3 else -(X[0] + 1))[2], X @ -(X[0] + 1))
    around = jit(lambda a: a * shared, strict=True)
    assert torch.equal(around(X), X * -(X[0] + 1))
