"""Every way to call a function of one world on many: what they all must agree on."""

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

Function = Callable[..., Any]


def nonstrict(fn: Function) -> Function:
    """`fn` as `torch.compile` is meant to see functions that use control flow: as one node."""

    def marked(*args: Any) -> Any:
        return fn(*args)

    return torch._dynamo.nonstrict_trace(marked)


def compiled(fn: Function, backend: str) -> Function:
    torch._dynamo.reset()
    return torch.compile(fn, fullgraph=True, backend=backend)


def traced(fn: Function, mode: str = "fake") -> Function:
    graphs = []

    def run(*args: Tensor) -> Any:
        if not graphs:  # other values than it runs on, so that nothing that depends on them is part of the graph
            graphs.append(make_fx(fn, tracing_mode=mode)(*(torch.zeros_like(x) for x in args)))
        return graphs[0](*args)

    return run


def each(fn: Function) -> Function:
    """`fn` called for one world after the other."""

    def run(*args: Tensor) -> Any:
        worlds = [fn(*(x[i] for x in args)) for i in range(args[0].shape[0])]
        return pytree.tree_map(lambda *xs: torch.stack(xs), *worlds)

    return run


def backward(fn: Function) -> Function:
    """The gradients of the sum of `fn` by PyTorch's own autograd; zeros where there is none."""

    def run(*args: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.clone().requires_grad_() for x in args]
        return torch.autograd.grad(fn(*leaves).sum(), leaves, materialize_grads=True)

    return run


def twice(fn: Function) -> Function:
    """`fn` under two levels of `torch.vmap`: an outer one with one copy of each world."""
    return lambda *args: pytree.tree_map(lambda x: x[0], torch.vmap(torch.vmap(fn))(*(x[None] for x in args)))


CONTEXTS: dict[str, Callable[[Function], Function]] = {
    "vmap": torch.vmap,
    "vmap twice": twice,
    "make_fx": lambda fn: each(traced(fn, "fake")),
    "make_fx of vmap": lambda fn: traced(torch.vmap(fn), "fake"),
    "make_fx of vmap, real": lambda fn: traced(torch.vmap(fn), "real"),
    "compile": lambda fn: each(compiled(nonstrict(fn), "aot_eager")),
    "compile of vmap, eager": lambda fn: compiled(torch.vmap(nonstrict(fn)), "eager"),
    "compile of vmap twice": lambda fn: compiled(twice(nonstrict(fn)), "aot_eager"),
}


def assert_same(got: Any, want: Any) -> None:
    """Same structure, shapes and dtypes; equal numbers, up to rounding for floats."""
    torch.testing.assert_close(pytree.tree_leaves(got), pytree.tree_leaves(want), rtol=1e-5, atol=1e-6)
