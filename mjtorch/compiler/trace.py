"""Trace one world: from a Python function to a flat ATen graph."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, cast

import torch
import torch.fx.traceback
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mjtorch.compiler.garbage import without_collections
from mjtorch.compiler.ir.source import Places
from mjtorch.compiler.layouts import CPU, Layout, result_layout, written
from mjtorch.compiler.record import BRANCH, WRITE, GraphRecorder, RefusedError, Replay, Traced, parts
from mjtorch.compiler.stage import in_own_precision

Flat = Callable[..., Sequence[Tensor]]

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
# What torch says in its own words when a number is made from a traced tensor.
VALUE_ERRORS = (".item()", "value out of a tracing tensor", "data-dependent control flow", ".numpy()", ".tolist()")
# One of the fields that PyTorch gives to each node it makes, if told to; Dynamo's, which is not at work here.
SOURCE = "source_fn_stack"
# Where a graph has the tensors from around the function whose values have become numbers of it.
READ = "read"
RANDOM = "{} draws random numbers, which a compiled function would draw only once; draw them outside and pass them in"
# In-place views of temporaries: they change no value.
HARMLESS = {
    torch.ops.aten.squeeze_.dim,
    torch.ops.aten.unsqueeze_.default,
    torch.ops.aten.t_.default,
    torch.ops.aten.detach_.default,
}


class TraceError(RuntimeError):
    """The function cannot be traced; the message says where and what to do instead."""


def trace(
    flat: Flat, examples: Sequence[Tensor], name: str, known: Callable[[str], bool] = lambda op: True
) -> GraphModule:
    """The ATen graph of `flat`, which takes and returns sequences of tensors, at the shapes of `examples`.

    Each call in it has the line it comes from as `meta["source"]`, a `Source`.

    known: whether an op, by its name, can be lowered; where not, PyTorch's own decomposition stands in if there is one.

    Raises:
        TraceError: `flat` needs the value of a tensor, changes an input, or draws random numbers.
    """
    recorder = _recorder(examples, known)
    graph = _recorded(flat, examples, name, recorder)
    calls = list(_calls(graph))
    writes = _writes(graph)
    complaint = next((n.target for n in calls if is_random(n.target)), None)
    if complaint is not None or any(_origin(n).op != "call_function" for n in writes):
        _blame(flat, examples, name)
    if complaint is not None:
        raise TraceError(f"jit({name}): {RANDOM.format(complaint)}")
    if writes and recorder.decomposed:  # PyTorch rewrites what writes, but not all that it takes other operations for
        whole = _recorded(flat, examples, name, _recorder(examples, lambda op: True))
        graph = whole if _writes(whole) else graph
    while (writing := _writes(graph)) or _decomposable(graph, known):
        before, program = recorder.decomposed, _functionalized(graph, examples) if writing else graph
        graph = _recorded(Replay(program, recorder).run, examples, name, recorder)
        if recorder.decomposed == before:  # else these may write, too
            break
    graph.meta[READ] = list(recorder.read.values())
    return graph


def _recorded(flat: Flat, examples: Sequence[Tensor], name: str, recorder: GraphRecorder) -> GraphModule:
    """The graph of a function, without writes that nobody else sees."""
    graph = _record(flat, examples, name, recorder)
    graph.graph.eliminate_dead_code()
    _settle(graph)
    for n in _calls(graph):
        n.meta.setdefault("source", None)
    return graph


def _settle(graph: GraphModule) -> None:
    """Writes to new tensors that nobody else reads, as calls that make another one.

    Derivatives are full of them, that of a clamp for one; without writes there is no second trace.
    """
    changed = set()
    for n in _calls(graph):
        pure = _without_write(n) if mutates(n.target) else None
        if pure is not None:
            n.target = pure
            changed.add(n.graph.owning_module)
    for module in changed:
        assert module is not None
        module.recompile()


def _without_write(n: Node) -> Any:
    """The op that returns what `n` writes, if memory that is no one else's is all that changes."""
    first = n.args[0] if n.args else None
    if not isinstance(first, Node) or first.op != "call_function" or list(first.users) != [n]:
        return None
    inputs = [x.meta.get("val") for x in {*first.all_input_nodes, *n.all_input_nodes}]
    if not isinstance(n.target, torch._ops.OpOverload) or not all(isinstance(x, Tensor) for x in inputs):
        return None
    if _memory(first.meta["val"]) in {_memory(x.meta["val"]) for x in first.all_input_nodes}:
        return None
    packet = getattr(torch.ops.aten, op_name(n.target).removesuffix("_"), None)
    pure = getattr(packet, n.target._overloadname, None)
    if pure is None or mutates(pure):
        return None
    # In place, the dtype is that of what is written to.
    given: Any = map_arg((n.args, n.kwargs), lambda x: x.meta["val"])
    made, own = result_layout(pure, *given), first.meta["val"]
    return pure if isinstance(made, Layout) and (made.dtype, made.shape) == (own.dtype, own.shape) else None


def _functionalized(graph: GraphModule, examples: Sequence[Tensor]) -> GraphModule:
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
    for n in _calls(graph):  # which an interpreter hands on
        n.meta[SOURCE] = n.meta.get("source")
    pure = torch.func.functionalize(torch.fx.Interpreter(graph).run, remove="mutations")
    with torch.fx.traceback.preserve_node_meta():
        made = make_fx(
            lambda *xs: pure(*xs, *constants),
            tracing_mode="fake",
            _allow_non_fake_inputs=True,
            _disable_torch_fn_metadata_mode=True,
        )(*examples)
    for n in _calls(made):
        n.meta["source"] = n.meta.pop(SOURCE, None)
    return made


def _part(graph: GraphModule) -> None:
    """Copy what a loop or branch gets twice: PyTorch's (2.13) refuse operands that share memory."""
    for n in [n for n in _calls(graph) if isinstance(n.target, HigherOrderOperator)]:
        seen: set[int] = set()

        def apart(x: Node, n: Node = n, seen: set[int] = seen) -> Node:
            if not isinstance(x.meta.get("val"), Tensor):  # a body
                return x
            memory = _memory(x.meta["val"])
            if memory in seen:
                with n.graph.inserting_before(n):
                    copy = n.graph.call_function(torch.ops.aten.clone.default, (x,))
                copy.meta, x = dict(x.meta), copy
            seen.add(memory)
            return x

        n.args = cast(Any, map_arg(n.args, apart))
        assert n.graph.owning_module is not None
        n.graph.owning_module.recompile()


def captured(graph: GraphModule) -> list[Tensor]:
    """The tensors from around the function that a graph holds, or has read, and not those made by `torch.tensor`."""
    held = ((m, n) for m in graph.modules() if isinstance(m, GraphModule) for n in m.graph.nodes if n.op == "get_attr")
    mine = ((m, n) for m, n in held if any(u.target is not torch.ops.aten.lift_fresh_copy.default for u in n.users))
    found = {id(x): x for m, n in mine if isinstance(x := getattr(m, n.target), Tensor)}
    return list((found | {id(x): x for x in graph.meta.get(READ, ())}).values())


def same_in_all_worlds(graph: GraphModule, in_dims: Sequence[int | None]) -> list[bool]:
    """For each result whether it follows from what all worlds share."""
    differs: set[Node] = set()
    dims = iter(in_dims)
    for n in graph.graph.nodes:
        if n.op == "output":
            break
        if (n.op == "placeholder" and next(dims) is not None) or not differs.isdisjoint(n.all_input_nodes):
            differs.add(n)
    return [not isinstance(x, Node) or x not in differs for x in n.args[0]]


def is_random(target: Any) -> bool:
    """Whether an op draws random numbers. (Attention might, for dropout, but has a decomposition that does not.)"""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) and "attention" not in op_name(target)


def mutates(target: Any) -> bool:
    """Whether an op writes to one of its arguments."""
    schema = getattr(target, "_schema", None)
    return schema is not None and schema.is_mutable and target not in HARMLESS


def _origin(n: Node) -> Node:
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


def _calls(graph: GraphModule) -> Iterator[Node]:
    """All calls in a graph and in the bodies of its loops and branches."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            yield from (n for n in module.graph.nodes if n.op == "call_function")


def _writes(graph: GraphModule) -> list[Node]:
    return [n for n in _calls(graph) if mutates(n.target)]


def _varying(graph: GraphModule) -> Iterator[Node]:
    """The calls whose results depend on the inputs; others are constants, for which no rule is needed."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            varying: set[Node] = set()
            for n in module.graph.nodes:
                if n.op == "placeholder" or not varying.isdisjoint(n.all_input_nodes):
                    varying.add(n)
                    yield from (n,) if n.op == "call_function" else ()


def _decomposable(graph: GraphModule, known: Callable[[str], bool]) -> bool:
    """Whether PyTorch can take some op apart that is not known: one that a write has become."""
    targets = {n.target for n in _varying(graph) if isinstance(n.target, torch._ops.OpOverload)}
    return any(parts(target) is not None for target in targets if not known(op_name(target)))


def _recorder(examples: Sequence[Tensor], known: Callable[[str], bool]) -> GraphRecorder:
    return GraphRecorder(examples[0].device if examples else CPU, known, Places(_record.__code__))


def _record(flat: Flat, examples: Sequence[Tensor], name: str, recorder: GraphRecorder) -> GraphModule:
    try:
        with without_collections():
            indices, own = _TensorIndices(recorder), in_own_precision(flat)
            return recorder.record(lambda *xs: indices.within(own, xs), examples)
    except RefusedError as e:
        raise TraceError(f"jit({name}): {_user_line(e)}: {e}") from e
    except RuntimeError as e:
        if isinstance(e, TraceError) or not any(hint in str(e) for hint in VALUE_ERRORS):
            raise
        raise TraceError(f"jit({name}): {_user_line(e)}: {BRANCH}") from e


class _TensorIndices(TorchFunctionMode):
    """Lets `x[i]` and `x[i] = y` take a tensor `i` of shape (), which torch would turn into a Python number.

    Since it sees all calls, it also notes which lines the nodes come from.
    """

    def __init__(self, recorder: GraphRecorder) -> None:
        super().__init__()
        self.recorder, self.on = recorder, False

    def within(self, body: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call `body` such that this mode is on, once."""
        if self.on:
            return body(*args)
        self.on = True
        try:
            with self:
                return body(*args)
        finally:
            self.on = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.on = False  # as every mode is while it is asked
        last = self.recorder.last()
        try:
            out = self._call(func, args, kwargs or {})
        finally:
            self.on = True
        if self.recorder.last() is not last:
            self.recorder.note(last, self.recorder.places.here())
        return out

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is Tensor.__getitem__:
            return _get_item(*args)
        if func is Tensor.__setitem__:
            return _set_item(*args)
        if isinstance(func, torch._ops.HigherOrderOperator):  # its bodies are traced while this mode is off
            args = [self._within(a) if isinstance(a, FunctionType) else a for a in args]
        return func(*args, **kwargs)

    def _within(self, body: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: self.within(body, args)


def _get_item(x: Tensor, key: Any) -> Tensor:
    found = _scalar_index(x, key)
    if found is None:
        return x[key]
    dim, index, rest = found
    return _get_item(x.index_select(dim, index), rest)


def _set_item(x: Tensor, key: Any, value: Any) -> None:
    found = _scalar_index(x, key)
    if found is None:
        x[key] = value
        return
    dim, index, rest = found
    part = x.index_select(dim, index)
    _set_item(part, rest, value)
    x.index_copy_(dim, index, part)


def _scalar_index(x: Tensor, key: Any) -> tuple[int, Tensor, tuple[Any, ...]] | None:
    """The first integer tensor of shape () in `key`: the axis it is for, itself as shape (1,), and `key` with a 0."""
    key = key if isinstance(key, tuple) else (key,)
    axes = [k.dim() if isinstance(k, Tensor) and k.dtype == torch.bool else int(k is not None) for k in key]
    if Ellipsis in (entries := [k if k is Ellipsis else None for k in key]):
        axes[entries.index(Ellipsis)] = 0
        axes[entries.index(Ellipsis)] = x.dim() - sum(axes)
    for n, k in enumerate(key):
        if isinstance(k, Tensor) and k.dim() == 0 and not k.is_floating_point() and k.dtype != torch.bool:
            dim = sum(axes[:n])
            index = torch.where(k < 0, k + x.shape[dim], k).reshape(1)
            return dim, index, (*key[:n], 0, *key[n + 1 :])
    return None


# --- whose fault it is ------------------------------------------------------------------------------------------------


def _blame(flat: Flat, examples: Sequence[Tensor], name: str) -> None:
    """Run once more to find the line that does what cannot be compiled, or changes an input, if one does."""

    def watched(*xs: Tensor) -> Sequence[Tensor]:
        with _Watch(xs, name):
            return flat(*xs)

    _record(watched, examples, name, _recorder(examples, lambda op: True))


class _Watch(TorchDispatchMode):
    """Raises where an op cannot be compiled, or writes to memory that the function did not allocate."""

    supports_higher_order_operators = True

    def __init__(self, inputs: Sequence[Tensor], name: str) -> None:
        super().__init__()
        self.name = name
        self.inputs = {_memory(x) for x in inputs}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if mutates(func):
            for x in written(func, args, kwargs):
                if _memory(x) in self.inputs or not isinstance(x, Traced):
                    self._fail(WRITE.format(func, "an input" if _memory(x) in self.inputs else "a tensor from outside"))
        out = func(*args, **kwargs)
        if is_random(func):
            self._fail(RANDOM.format(func))
        return out

    def _fail(self, complaint: str) -> None:
        raise TraceError(f"jit({self.name}): {_user_line()}: {complaint}")


def _memory(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _user_line(e: BaseException | None = None) -> str:
    """The user's own line in the traceback of `e`, or on the stack: the deepest that is in no library.

    Failing that, the deepest in mjtorch.
    """
    frames = traceback.extract_stack() if e is None else traceback.extract_tb(e.__traceback__)
    users = [f for f in frames if not f.filename.startswith((OURS, *LIBRARIES, "<frozen"))]
    ours = [f for f in frames if f.filename.startswith(OURS) and not f.filename.startswith(HERE)]
    found = (users or ours)[-1:]
    return f"{found[0].filename}:{found[0].lineno}, in {found[0].name}: `{found[0].line}`" if found else "somewhere"
