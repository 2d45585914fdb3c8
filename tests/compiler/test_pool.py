"""Memory of results is used again once nobody can see it, and never before."""

import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mjtorch import jit, tree
from mjtorch.compiler.pool import HELD, LARGE, Block

WORLDS = LARGE // 8


def made(start: float) -> Tensor:
    return torch.full((WORLDS, 4), float(start))


def jitted() -> Any:
    """A function whose results are large, and which is prepared for more calls."""
    f = jit(lambda x: {"y": x + 1, "z": (x * 2, x.sum())}, strict=True)
    for _ in range(3):
        f(made(0))
    return f


def addresses(result: Any) -> set[int]:
    return {x.data_ptr() for x in tree.leaves(result)}


def test_memory_is_used_again() -> None:
    f, seen = jitted(), set()
    for k in range(20):
        result = f(made(k))
        assert torch.equal(result["y"], made(k + 1)) and torch.equal(result["z"][0], made(2 * k))
        seen.add(result["y"].data_ptr())
    assert len(seen) <= HELD
    g = jit(lambda x: x + 1, strict=True)
    x = made(0)
    for _ in range(9):
        x = g(x)
    assert torch.equal(x, made(9))


# What may be left of a tensor when the tensor itself is gone, and how its numbers are read.
HOLDERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "itself": (lambda x: x, lambda x: x),
    "slice": (lambda x: x[5:9, 1:], lambda x: x),
    "view of a view": (lambda x: x.T[1:][:, 3:].unsqueeze(0).movedim(0, -1), lambda x: x),
    "detached": (lambda x: x.detach(), lambda x: x),
    "data": (lambda x: x.data, lambda x: x),
    "tree": (lambda x: tree.map(lambda y: y[1:], {"a": (x, x)}), lambda t: t["a"][1]),
    "array": (lambda x: x.numpy(), torch.from_numpy),
    "part of an array": (lambda x: x.numpy()[3:, 1], torch.from_numpy),
    "buffer": (lambda x: memoryview(x.numpy()), lambda b: torch.from_numpy(np.asarray(b))),
    "capsule": (torch.utils.dlpack.to_dlpack, torch.utils.dlpack.from_dlpack),
    "storage": (lambda x: x.untyped_storage(), lambda s: torch.empty(0).set_(s)),
    "typed storage": (lambda x: x.storage(), lambda s: torch.empty(0).set_(s.untyped())),
    "parameter": (lambda x: torch.nn.Parameter(x), lambda x: x.detach()),
    "as strided": (lambda x: torch.as_strided(x, (3,), (2,), 1), lambda x: x),
    "set": (lambda x: torch.empty(0, dtype=x.dtype).set_(x), lambda x: x),
    "shared": (lambda x: x.share_memory_(), lambda x: x),
    "resized": (lambda x: x.resize_(2 * WORLDS, 4)[:WORLDS], lambda x: x),
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_what_somebody_holds_is_not_touched(holder: str) -> None:
    hold, read = HOLDERS[holder]
    f = jitted()
    for round_ in range(2):
        held = hold(f(made(round_))["y"])
        gc.collect(1)  # of what is old there is much in a process of many tests
        later = [f(made(100 + k)) for k in range(3)]
        del later
        for k in range(6):
            f(made(50 + k))
        assert (read(held) == round_ + 1).all()
        del held


def test_what_a_gradient_needs_is_not_touched() -> None:
    f, weight = jitted(), torch.ones(4, requires_grad=True)
    for _ in range(3):
        loss = (f(made(2))["y"] * weight).sum()
        for k in range(6):
            f(made(k))
        (gradient,) = torch.autograd.grad(loss, weight)
        assert torch.equal(gradient, torch.full((4,), 3.0 * WORLDS))


def test_results_are_as_free_as_others() -> None:
    """Also those in memory that was first lent while PyTorch recorded nothing."""
    f = jit(lambda x: x + 1, strict=True)
    x = made(0)
    with torch.inference_mode():
        for _ in range(5):
            f(x)
    for _ in range(5):
        y = f(x)
        assert not y._is_view() and y._base is None and not y.requires_grad and not y.is_inference()
        assert y.untyped_storage().nbytes() == x.nbytes and y.untyped_storage().resizable()
        y.requires_grad_().mul(2).sum().backward()
        assert (y.grad == 2).all()
        pickle.loads(pickle.dumps(y.detach()[:3]))


def test_results_of_threads_are_their_own() -> None:
    f, wrong = jitted(), []

    def work(start: int) -> None:
        x = made(start)
        for _ in range(20):
            x = f(x)["y"]
        wrong.append(not torch.equal(x, made(start + 20)))

    workers = [threading.Thread(target=work, args=(100 * k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert wrong == [False] * 4


def test_what_is_held_is_bounded_and_goes_with_the_function() -> None:
    f = jitted()
    kept = [f(made(k)) for k in range(10)]
    assert len(set.union(*map(addresses, kept))) == sum(len(addresses(r)) for r in kept), "each has its own"
    blocks = [weakref.ref(x) for x in gc.get_objects() if type(x) is Block]
    (prepared,) = f.calls.kept
    assert len(blocks) >= HELD
    del kept, prepared, f
    gc.collect()
    assert not any(b() is not None for b in blocks)
