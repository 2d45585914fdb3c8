"""A graph that is recorded promises shapes, strides and dtypes that come true, and recording it loads little."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mujoco
import pytest
import torch
from torch import Tensor
from torch.fx import Interpreter, Node

import mjtorch
from mjtorch import control_flow, jit, models
from mjtorch.compiler.ir.source import Places
from mjtorch.compiler.layouts import layout_of, tensors
from mjtorch.compiler.record import GraphRecorder, Traced

X = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))


class Checked(Interpreter):
    """Compares each value with what the graph says of it."""

    def run_node(self, n: Node) -> Any:
        found = super().run_node(n)
        if n.op == "call_function":
            for x, promised in zip(tensors(found), tensors(n.meta["val"]), strict=True):
                assert (x.shape, x.stride(), x.dtype) == (promised.shape, promised.stride(), promised.dtype), n
        return found


def views(x: Tensor) -> Any:
    """Also in place, and of memory that overlaps."""
    y = x.clone()
    y.unsqueeze_(0)
    z = y.transpose_(0, 1) + y.expand(2, 4, 1)[0]
    return z.squeeze_(1), torch.unbind(x[None].expand(2, -1))[1], x.flip(0).view(2, 2).mT, torch.split(x, [1, 3])


def writes(x: Tensor) -> Any:
    y = torch.zeros(4, dtype=torch.float64)
    y[1:] = x[:3]
    y.view(2, 2).mul_(2)
    return y.clone().add_(x), torch.arange(4) % 3 // torch.full((4,), 2), x > 0


def numbers(x: Tensor) -> Any:
    """Known where the function itself wrote them."""
    count = int(torch.tensor(2) + 1)
    return x.repeat(count) * torch.tensor(2.0).item(), torch.tensor([1, 2, 3, 4]) * x


def matrices(x: Tensor) -> Any:
    a = torch.outer(x, x) + 4 * torch.eye(4)
    return torch.linalg.cholesky(a), torch.linalg.solve(a, x), a.sort(stable=True), a.topk(2), a.argmax(0), a @ a.mT @ x


def derivatives(x: Tensor) -> Any:
    return torch.func.hessian(lambda x: (x.clamp(0, 0.5) ** 3).sum())(x), torch.func.jacrev(torch.exp)(x)


def loops(x: Tensor) -> Any:
    def trip(y: Tensor) -> Tensor:
        return control_flow.cond(y.sum() > 2, lambda z: z + x, torch.exp, y)

    y = control_flow.while_loop(lambda y: y.sum() < 9, trip, x)
    return (
        y,
        control_flow.scan(lambda c, row: (c @ c * row, c.mT), torch.eye(4), x.repeat(4)),
        torch.vmap(torch.diag)(x[None]),
    )


def shared(x: Tensor) -> Any:
    """Loops and branches that see one tensor twice, beside what writes."""
    y = torch.zeros(4)
    y[1:] = x[:3]
    a, b = x.view(4), x.detach()
    z = control_flow.while_loop(lambda z: z.sum() < 9, lambda z: z + a + b, x.exp())
    return y, control_flow.cond(z.sum() > 0, lambda: a + b, lambda: a * b)


def test_a_graph_can_be_read_and_called() -> None:
    graph = jit(loops).lower(X).graph
    assert "torch.ops.aten.exp.default(arg0)" in str(graph)
    torch.testing.assert_close(graph(X[0]), mjtorch.tree.leaves(loops(X[0])))


@pytest.mark.parametrize("f", [views, writes, numbers, matrices, derivatives, loops, shared])
def test_what_is_recorded_comes_true(f: Callable[[Tensor], Any]) -> None:
    compiled = jit(f, strict=True)
    for world, found in zip(X, zip(*mjtorch.tree.leaves(compiled(X)), strict=True), strict=True):
        wanted = mjtorch.tree.leaves(f(world))
        torch.testing.assert_close(list(found), wanted)
        torch.testing.assert_close(Checked(compiled.lower(X).graph).run(world), wanted)


def test_a_whole_step_comes_true() -> None:
    model = mujoco.MjModel.from_xml_path(str(models.path("hopper")))
    m = mjtorch.put_model(model)
    d = mjtorch.make_data(m)
    step = jit(mjtorch.step, in_dims=(None, 0))
    call = step.parameters.call((m, mjtorch.batch(d, 2)), {})
    Checked(step.mapped.trace(call.signature)[0]).run(*mjtorch.tree.leaves((m, d)))


def test_a_value_that_is_being_traced_can_be_shown() -> None:
    shown = []

    def f(x: Tensor) -> Tensor:
        shown.append((repr(x), x.device.type, x.requires_grad))
        return x + 1

    jit(f).lower(X)
    assert shown == [("traced(float32[4])", "cpu", False)]


def test_what_leaves_its_body_is_refused() -> None:
    kept: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        y = control_flow.while_loop(lambda y: y.sum() < 9, lambda y: kept.append(y + 1) or kept[-1], x)
        return y + kept[-1]

    with pytest.raises(RuntimeError, match="used where it is not known, as in a loop body"):
        jit(f).lower(X)


def test_results_are_where_the_arguments_are() -> None:
    """Whatever stands for them meanwhile, and whether there is such a device."""
    here, cuda = test_results_are_where_the_arguments_are.__code__, torch.device("cuda")
    recorder = GraphRecorder(cuda, lambda name: True, Places(here))
    results = []

    def f(x: Tensor) -> Tensor:
        y = torch.tensor(2.0) * x
        results.extend([y, y.select(0, 1), y.sum() + torch.tensor(1.0), torch.zeros_like(y), y.cpu()])
        return y

    recorder.record(f, [Traced.of(torch.empty(4, device="meta"), layout_of(X[0]), cuda, recorder, True)])
    assert [y.device.type for y in results] == ["cuda"] * 4 + ["cpu"]


def test_neither_dynamo_nor_sympy_is_loaded() -> None:
    """They take longer to load than most functions to trace and lower."""
    code = """
import sys, torch, mjtorch
from mjtorch.control_flow import while_loop
def f(x):
    y = torch.where(x > 0, x @ x[:, None], torch.linalg.cholesky(torch.outer(x, x) + torch.eye(3)).cumsum(0) % 2)
    return while_loop(lambda y: y.sum() < 9, lambda y: y @ y, y)
mjtorch.jit(f).lower(torch.ones(2, 3))
mjtorch.jit(lambda x: torch.cat([x, -x]) * 2).lower(torch.ones(1, 1 << 21))
print(*(name for name in ("sympy", "torch._dynamo", "torch._inductor") if name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


def test_bodies_run_once() -> None:
    """What they capture is found while they are recorded: loops in loops are not run again for it."""
    runs = []

    def f(x: Tensor) -> Tensor:
        twice = 2 * x

        def chosen() -> Tensor:
            runs.append("branch")
            return twice.sin()

        def unfinished(y: Tensor) -> Tensor:
            runs.append("test")
            return y.sum() < twice.sum()

        def grown(y: Tensor) -> Tensor:
            runs.append("body")
            return y + control_flow.cond(y[0] > x[0], chosen, lambda: x)

        def trip(i: Tensor, y: Tensor) -> Tensor:
            runs.append("trip")
            return control_flow.while_loop(unfinished, grown, y * twice[i])

        return control_flow.fori_loop(0, 9, trip, x)

    jit(f, strict=True).lower(X)
    assert sorted(runs) == ["body", "branch", "test", "trip"]


def test_what_both_branches_hand_on_is_no_choice() -> None:
    """Neither in a loop nor where they hand on nothing else."""

    def f(x: Tensor) -> Any:
        twice = 2 * x

        def trip(i: Tensor, y: Tensor) -> Tensor:
            same, other = control_flow.cond(i > 3, lambda: (twice, y + 1), lambda: (twice, y - 1))
            assert same is twice
            return other + same

        only = control_flow.cond(x.sum() > 0, lambda: twice, lambda: twice)
        assert only is twice
        return control_flow.fori_loop(0, 9, trip, x)

    found = jit(f, strict=True)
    torch.testing.assert_close(found(X), X * 19 + 1)
    branches = [n for m in found.lower(X).graph.modules() for n in getattr(m, "graph", torch.fx.Graph()).nodes]
    assert [len(n.meta["val"]) for n in branches if n.target is torch.ops.higher_order.cond] == [1]
