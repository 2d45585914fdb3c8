"""Writes in place, in a recorded graph, as calls that make new tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
import torch.fx.traceback
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from mjtorch.compiler.layouts import Layout, layout_of, result_layout, shaped

aten = torch.ops.aten

# One of the fields that PyTorch gives to each node it makes, if told to; Dynamo's, which is not at work here.
SOURCE = "source_fn_stack"
# In-place views of temporaries: they change no value.
HARMLESS = {
    aten.squeeze_.dim,
    aten.squeeze_.dims,
    aten.unsqueeze_.default,
    aten.t_.default,
    aten.detach_.default,
}
# For what shows a part of a tensor, what puts another part in its place.
SCATTERS: dict[Any, Any] = {
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.select.int: aten.select_scatter.default,
    aten.diagonal.default: aten.diagonal_scatter.default,
}


def settle(graph: GraphModule) -> None:
    """Writes to new tensors that nobody else sees, as calls that make another one.

    Derivatives are full of them: of a clamp for one, and a Jacobian begins with ones written to a diagonal. For a graph
    without writes there is no second trace, which takes ten times as long as the first.
    """
    made: set[Node] = set()
    for n in list(calls(graph)):
        pure = _pure(n) if mutates(n.target) else None
        if pure is not None and (new := _settled(n, pure, made)) is not None:
            made.add(new)
    for module in {n.graph.owning_module for n in made}:
        assert module is not None
        module.recompile()


def _pure(n: Node) -> Any:
    """The op that returns what `n` writes, if there is one."""
    values = [x.meta.get("val") for x in n.all_input_nodes]
    if not isinstance(n.target, OpOverload) or not all(isinstance(x, Tensor) for x in values):
        return None
    packet = getattr(aten, op_name(n.target).removesuffix("_"), None)
    if packet is None or not isinstance(n.args[0], Node):
        return None
    overloads = [getattr(packet, name) for name in packet.overloads()]
    taken = _arguments(n.target)
    return next((op for op in overloads if not mutates(op) and _arguments(op) == taken), None)


def _arguments(op: OpOverload) -> list[tuple[str, str, Any]]:
    """What an op takes: names, types and what they are if not given."""
    return [(a.name, str(a.type), a.default_value) for a in op._schema.arguments]


def _settled(n: Node, pure: Any, made: set[Node]) -> Node | None:
    """What readers of the tensor that `n` writes to, or to a part of, read from now on; `n` returns what it writes.

    None, and nothing changes, where the tensor, or a part of it, might be read by another name, or where the new one
    has another dtype, shape or strides.

    made: what such readers read after earlier writes: tensors of their own
    """
    views, x, reader = [], n.args[0], n
    while isinstance(x, Node) and x.target in SCATTERS and list(x.users) == [reader]:
        views.append(x)
        reader, x = x, x.args[0]
    if not isinstance(x, Node) or not (x in made or _is_new(x)) or (views and not _is_read_at_once(n)):
        return None
    if any(_hands_on(u) for u in x.users if u is not reader and u < n):
        return None
    value, own = _result(pure, n.args, n.kwargs), views[0] if views else x
    values = [value]
    # In place, the dtype is that of what is written to.
    if value is None or (value.dtype, value.shape) != (own.meta["val"].dtype, own.meta["val"].shape):
        return None
    for view in views:
        whole, *where = view.args
        value = _result(SCATTERS[view.target], (whole, value, *where), view.kwargs)
        values.append(value)
    if value is None or layout_of(value) != layout_of(x.meta["val"]):
        return None
    n.target, n.meta["val"], new = pure, values[0], n
    for view, value in zip(views, values[1:], strict=True):
        whole, *where = view.args
        with n.graph.inserting_after(new):
            new = n.graph.call_function(SCATTERS[view.target], (whole, new, *where), dict(view.kwargs))
        new.meta.update(val=value, source=n.meta.get("source"))
    x.replace_all_uses_with(new, delete_user_cb=lambda u: new < u)
    return new


def _result(op: Any, args: Any, kwargs: Any) -> Tensor | None:
    """What stands for the result of an op on nodes, if that is one new tensor."""
    given: Any = map_arg((args, kwargs), lambda x: x.meta["val"])
    made = result_layout(op, *given)
    return shaped(made) if isinstance(made, Layout) else None


def _is_read_at_once(n: Node) -> bool:
    """Whether what `n` returns is read before anything else is written, as `y[0] += 1` does, and has no other name."""
    write = n.next
    while write.op != "root" and not mutates(write.target):
        write = write.next
    users = [u for u in n.users if u is not write or u.args[0] is n]
    return not any(_hands_on(u) or (write.op != "root" and write < u) for u in users)


def _is_new(x: Node) -> bool:
    """Whether a tensor has memory of its own."""
    if not isinstance(x.target, OpOverload) or _hands_on(x):
        return False
    given = [y.meta.get("val") for y in x.all_input_nodes]
    return memory(x.meta["val"]) not in {memory(y) for y in given if isinstance(y, Tensor)}


def _hands_on(n: Node) -> bool:
    """Whether the result of a call may be another name for what it is given."""
    schema = getattr(n.target, "_schema", None)
    if schema is None or n.target is aten._unsafe_view.default:
        return n.op != "output"
    return any(r.alias_info is not None for r in schema.returns)


def functionalized(graph: GraphModule, examples: Sequence[Tensor]) -> GraphModule:
    """The same program without writes in place, as PyTorch rewrites it."""
    nodes = [n for n in graph.graph.nodes if n.op == "get_attr" and isinstance(getattr(graph, n.target), Tensor)]
    constants = [getattr(graph, n.target) for n in nodes]
    first = next(n for n in graph.graph.nodes if n.op != "placeholder" and n not in nodes)
    for n in nodes:  # become arguments, since they may be written to as well
        with graph.graph.inserting_before(first):
            n.replace_all_uses_with(graph.graph.placeholder(n.name))
        graph.graph.erase_node(n)
    _part(graph)
    graph.recompile()
    for n in calls(graph):  # which an interpreter hands on
        n.meta[SOURCE] = n.meta.get("source")
    pure = torch.func.functionalize(torch.fx.Interpreter(graph).run, remove="mutations")
    with torch.fx.traceback.preserve_node_meta():
        made = make_fx(
            lambda *xs: pure(*xs, *constants),
            tracing_mode="fake",
            _allow_non_fake_inputs=True,
            _disable_torch_fn_metadata_mode=True,
        )(*examples)
    for n in calls(made):
        n.meta["source"] = n.meta.pop(SOURCE, None)
    return made


def _part(graph: GraphModule) -> None:
    """Copy what a loop or branch gets twice: PyTorch's (2.13) refuse operands that share memory."""
    for n in [n for n in calls(graph) if isinstance(n.target, HigherOrderOperator)]:
        seen: set[int] = set()

        def apart(x: Node, n: Node = n, seen: set[int] = seen) -> Node:
            if not isinstance(x.meta.get("val"), Tensor):  # a body
                return x
            place = memory(x.meta["val"])
            if place in seen:
                with n.graph.inserting_before(n):
                    copy = n.graph.call_function(torch.ops.aten.clone.default, (x,))
                copy.meta, x = dict(x.meta), copy
            seen.add(place)
            return x

        n.args = cast(Any, map_arg(n.args, apart))
        assert n.graph.owning_module is not None
        n.graph.owning_module.recompile()


def mutates(target: Any) -> bool:
    """Whether an op writes to one of its arguments."""
    schema = getattr(target, "_schema", None)
    return schema is not None and schema.is_mutable and target not in HARMLESS


def origin(n: Node) -> Node:
    """Where the memory comes from that an op writes to: the node that views, and writes in place, begin with."""
    while n.op == "call_function" and n.args and isinstance(n.args[0], Node):
        schema = getattr(n.target, "_schema", None)
        if schema is None or not any(r.alias_info is not None for r in schema.returns):
            break
        n = n.args[0]
    return n


def op_name(target: Any) -> str:
    """`add` for `aten.add.Tensor`."""
    return getattr(target, "overloadpacket", target).__name__


def calls(graph: GraphModule) -> Iterator[Node]:
    """All calls in a graph and in the bodies of its loops and branches."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            yield from (n for n in module.graph.nodes if n.op == "call_function")


def writes(graph: GraphModule) -> list[Node]:
    """The calls that write to one of their arguments."""
    return [n for n in calls(graph) if mutates(n.target)]


def memory(x: Tensor) -> int:
    """What two tensors have in common that share memory."""
    return x.untyped_storage()._cdata
