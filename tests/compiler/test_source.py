"""Every operation of a traced graph knows the line that asked for it."""

import inspect
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import mujoco
import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

import mjtorch
from mjtorch import control_flow, models
from mjtorch.compiler.ir.source import OURS, Source, asks


def graph_of(f: Callable[..., Any], *args: Any, in_dims: Any = None) -> GraphModule:
    return mjtorch.jit(f, in_dims=in_dims).lower(*args).graph


def calls(graph: GraphModule) -> Iterator[Node]:
    for module in graph.modules():
        if isinstance(module, GraphModule):
            yield from (n for n in module.graph.nodes if n.op == "call_function")


def sources(graph: GraphModule, name: str) -> set[str]:
    """The lines of code in this file that calls of the op `name` come from."""
    lines = pathlib.Path(__file__).read_text().splitlines()
    found = [n.meta["source"] for n in calls(graph) if getattr(n.target, "overloadpacket", n.target).__name__ == name]
    assert all(s.file == __file__ for s in found)
    return {lines[s.line - 1].strip() for s in found}


def halved(x: Tensor) -> Tensor:
    return x.sinh()


def looping(x: Tensor) -> Tensor:
    def body(y: Tensor) -> Tensor:
        return halved(y) + control_flow.cond(y.sum() > 1, torch.cosh, torch.tanh, y)

    y = control_flow.while_loop(lambda y: y.sum() < 3, body, x)
    return control_flow.fori_loop(0, 40, lambda i, y: y.sin(), y)


def test_operations_know_their_line() -> None:
    graph = graph_of(looping, torch.ones(3))
    assert sources(graph, "sinh") == {"return x.sinh()"}
    assert sources(graph, "tanh") == {"return halved(y) + control_flow.cond(y.sum() > 1, torch.cosh, torch.tanh, y)"}
    assert sources(graph, "lt") == {"y = control_flow.while_loop(lambda y: y.sum() < 3, body, x)"}
    assert sources(graph, "sin") == {"return control_flow.fori_loop(0, 40, lambda i, y: y.sin(), y)"}
    (sinh,) = (n.meta["source"] for n in calls(graph) if "sinh" in str(n.target))
    first = inspect.getsourcelines(halved)[1]
    assert sinh == Source(__file__, first + 1, "halved")
    assert str(sinh) == f"{__file__}:{first + 1}, in halved"
    assert sinh.caller is not None and sinh.caller.function == "looping.<locals>.body"
    assert sinh.caller.caller is not None and sinh.caller.caller.function == "looping"


def test_a_program_without_writes_keeps_the_lines() -> None:
    def writing(x: Tensor) -> Tensor:
        y = x.sinh()
        y[0] = 1.0
        y[1:].mul_(y[:2])
        return control_flow.while_loop(lambda z: z.sum() < 3, lambda z: z.cosh(), y)

    graph = graph_of(writing, torch.ones(3))
    assert sources(graph, "sinh") == {"y = x.sinh()"}
    assert sources(graph, "mul") == {"y[1:].mul_(y[:2])"}
    assert sources(graph, "cosh") == {"return control_flow.while_loop(lambda z: z.sum() < 3, lambda z: z.cosh(), y)"}


def test_a_decomposed_operation_has_the_line_of_the_whole() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.smooth_l1_loss(x, 2 * x)

    graph = graph_of(f, torch.ones(3))
    assert sources(graph, "where") == {"return torch.nn.functional.smooth_l1_loss(x, 2 * x)"}


@pytest.mark.parametrize("model", ["hopper"])
def test_nearly_all_of_the_physics_knows_its_line(model: str) -> None:
    m = mjtorch.put_model(mujoco.MjModel.from_xml_path(str(models.path(model))))
    d = mjtorch.batch(mjtorch.make_data(m), 2)
    found = [n.meta["source"] for n in calls(graph_of(mjtorch.step, m, d, in_dims=(None, 0)))]
    known = [s for s in found if s is not None and s.file.startswith(OURS) and asks(s.file)]
    assert len(known) > 0.95 * len(found)
    assert any("constraint/solver" in s.file for s in known) and any(s.file.endswith("math/vector.py") for s in known)


@pytest.mark.parametrize(
    "name, whether",
    [
        (__file__, True),
        ("<string>", True),
        ("<ipython-input-1>", True),
        (f"{OURS}math/vector.py", True),
        (f"{OURS}control_flow/cond.py", False),
        (f"{OURS}compiler/jit.py", False),
        (torch.overrides.__file__, False),
        (inspect.__file__, False),
        (pytest.__file__, True),
        ("<eval_with_key>.3", False),
    ],
)
def test_whose_lines_count(name: str, whether: bool) -> None:
    assert asks(name) is whether
