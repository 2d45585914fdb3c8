"""What `jit` has in common with `torch.compile`: backends, stances, starting afresh."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from mjtorch import jit

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.arange(12.0).reshape(3, 4)


def f(x: Tensor) -> Tensor:
    return x.sin().sum()


def test_a_function_as_backend() -> None:
    graphs = []

    def backend(graph: GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    g = jit(f, backend=backend, fullgraph=True)
    torch.testing.assert_close(g(X), torch.vmap(f)(X))
    assert g.ran is backend and len(graphs) == 1
    g(X + 1)
    assert len(graphs) == 1
    g.reset()
    torch._dynamo.reset()
    g(X)
    assert len(graphs) == 2


def test_a_name_as_backend() -> None:
    g = jit(f, backend="aot_eager", dynamic=False)
    torch.testing.assert_close(g(X), torch.vmap(f)(X))
    assert g.ran == "aot_eager" and g.settings()["dynamic"] is False


def test_stances() -> None:
    g = jit(f)
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="this call is new"):
        g(X)
    with torch.compiler.set_stance("eager_on_recompile"):
        g(X)
    assert g.ran == "eager" and not g.traces
    wanted = torch.vmap(f)(X)
    torch.testing.assert_close(g(X), wanted)
    assert g.ran == "native"
    for stance in ("fail_on_recompile", "eager_on_recompile"):
        with torch.compiler.set_stance(stance):
            torch.testing.assert_close(g(X + 0), wanted)
        assert g.ran == "native"
    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(g(X), wanted)
    assert g.ran == "eager"


@pytest.mark.usefixtures("cold")
def test_reset_traces_anew() -> None:
    g = jit(f)
    for traces in (1, 2):
        g(X)
        g(X)
        assert g.traces == traces
        g.reset()
