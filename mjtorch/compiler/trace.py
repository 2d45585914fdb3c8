"""Trace one world: from a Python function to a flat ATen graph."""

from __future__ import annotations

import contextlib
import gc
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.fx.traceback
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.node import map_arg
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mjtorch.compiler.ir.source import Places
from mjtorch.control_flow.context import recording_scans

Flat = Callable[..., Sequence[Tensor]]

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
# What torch says in its own words when a number is made from a traced tensor.
VALUE_ERRORS = (".item()", "value out of a tracing tensor", "data-dependent control flow", ".numpy()", ".tolist()")
# One of the fields that PyTorch gives to each node it makes, if told to; Dynamo's, which is not at work here.
SOURCE = "source_fn_stack"
BRANCH = (
    "a Python branch or number made from a tensor's value; use mjtorch.control_flow.cond or while_loop, torch.where, "
    "or keep the number a tensor"
)
RANDOM = "{} draws random numbers, which a compiled function would draw only once; draw them outside and pass them in"
WRITE = "{} changes {} in place; make a new tensor instead, for example with x.clone() or torch.where"
SHAPE = "a result whose shape depends on values; use torch.where or a mask"
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
    table: dict[Any, Callable[..., Any]] = {}
    program, pure = flat, -1
    while True:
        graph = _make_fx(program, examples, name, table, retraced=program is not flat)
        graph.graph.eliminate_dead_code()
        _settle(graph)
        calls = list(_calls(graph))
        writes = [n for n in calls if mutates(n.target)]
        complaints = [c for n in calls if (c := _complaint(n.target, n.meta.get("val")))]
        if complaints or any(_origin(n).op != "call_function" for n in writes):
            _blame(flat, examples, name)
        if complaints:
            raise TraceError(f"jit({name}): {complaints[0]}")
        impure, new = writes and pure < len(table), _decompositions(graph, known, table)
        if not impure and not new:
            return graph
        if impure:  # decompositions may write, too
            program, pure = _functionalized(graph), len(table)
        table |= new


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
    if not isinstance(n.target, torch._ops.OpOverload) or not all(isinstance(x, FakeTensor) for x in inputs):
        return None
    if _memory(first.meta["val"]) in {_memory(x.meta["val"]) for x in first.all_input_nodes}:
        return None
    packet = getattr(torch.ops.aten, op_name(n.target).removesuffix("_"), None)
    pure = getattr(packet, n.target._overloadname, None)
    if pure is None or mutates(pure):
        return None
    # In place, the dtype is that of what is written to.
    made = pure(*map_arg(n.args, lambda x: x.meta["val"]), **map_arg(n.kwargs, lambda x: x.meta["val"]))
    own = first.meta["val"]
    return pure if isinstance(made, Tensor) and (made.dtype, made.shape) == (own.dtype, own.shape) else None


def _functionalized(graph: GraphModule) -> Flat:
    """The same program without writes in place. Constants become arguments, since they may be written to as well."""
    nodes = [n for n in graph.graph.nodes if n.op == "get_attr" and isinstance(getattr(graph, n.target), Tensor)]
    constants = [getattr(graph, n.target) for n in nodes]
    first = next(n for n in graph.graph.nodes if n.op != "placeholder" and n not in nodes)
    for n in nodes:
        with graph.graph.inserting_before(first):
            n.replace_all_uses_with(graph.graph.placeholder(n.name))
        graph.graph.erase_node(n)
    graph.recompile()
    for n in _calls(graph):  # which an interpreter hands on
        n.meta[SOURCE] = n.meta["source"]
    pure = torch.func.functionalize(torch.fx.Interpreter(graph).run, remove="mutations")
    return lambda *xs: pure(*xs, *constants)


def captured(graph: GraphModule) -> list[Tensor]:
    """The tensors from around the function that a graph holds, and not those that it makes by `torch.tensor`."""
    held = ((m, n) for m in graph.modules() if isinstance(m, GraphModule) for n in m.graph.nodes if n.op == "get_attr")
    mine = ((m, n) for m, n in held if any(u.target is not torch.ops.aten.lift_fresh_copy.default for u in n.users))
    return list({id(x): x for m, n in mine if isinstance(x := getattr(m, n.target), Tensor)}.values())


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


def _complaint(target: Any, value: Any) -> str:
    """Why an op with this result cannot be compiled, if so."""
    if is_random(target):
        return RANDOM.format(target)
    if target is torch.ops.aten._local_scalar_dense.default:
        return BRANCH
    values = value if isinstance(value, (list, tuple)) else (value,)
    symbols = any(isinstance(x, Tensor) and any(isinstance(n, torch.SymInt) for n in x.shape) for x in values)
    return SHAPE if symbols else ""


def op_name(target: Any) -> str:
    """`add` for `aten.add.Tensor`."""
    return getattr(target, "overloadpacket", target).__name__


def _calls(graph: GraphModule) -> Iterator[Node]:
    """All calls in a graph and in the bodies of its loops and branches."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            yield from (n for n in module.graph.nodes if n.op == "call_function")


def _varying(graph: GraphModule) -> Iterator[Node]:
    """The calls whose results depend on the inputs; others are constants, for which no rule is needed."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            varying: set[Node] = set()
            for n in module.graph.nodes:
                if n.op == "placeholder" or not varying.isdisjoint(n.all_input_nodes):
                    varying.add(n)
                    yield from (n,) if n.op == "call_function" else ()


def _decompositions(
    graph: GraphModule, known: Callable[[str], bool], done: dict[Any, Any]
) -> dict[Any, Callable[..., Any]]:
    """Those of PyTorch's decompositions that replace ops that are not known."""
    missing = {n.target for n in _varying(graph) if isinstance(n.target, torch._ops.OpOverload)} - done.keys()
    missing = {target for target in missing if not known(op_name(target))}
    if not missing:
        return {}
    from torch._decomp import decomposition_table  # here, because it takes long and is seldom needed

    return {target: decomposition_table[target] for target in missing if target in decomposition_table}


def _make_fx(
    flat: Flat,
    examples: Sequence[Tensor],
    name: str,
    table: dict[Any, Callable[..., Any]],
    retraced: bool = False,
) -> GraphModule:
    try:
        keeping = torch.fx.traceback.preserve_node_meta() if retraced else contextlib.nullcontext()
        with recording_scans(), keeping, _without_collections():
            record = make_fx(
                _with_tensor_indices(
                    flat, Places(_make_fx.__code__)
                ),  # and not around it: PyTorch's own code asks tensors for much
                tracing_mode="fake",
                _allow_non_fake_inputs=True,
                decomposition_table=table,
                _disable_torch_fn_metadata_mode=True,
            )
            graph = record(*examples)
        for n in _calls(graph):
            n.meta["source"] = n.meta.pop(SOURCE, n.meta.get("source"))
        return graph
    except DynamicOutputShapeException as e:
        raise TraceError(f"jit({name}): {_user_line(e)}: {SHAPE}") from e
    except DataDependentOutputException as e:
        raise TraceError(f"jit({name}): {_user_line(e)}: {BRANCH}") from e
    except RuntimeError as e:
        from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # here, because it takes long

        if not isinstance(e, GuardOnDataDependentSymNode) and not any(hint in str(e) for hint in VALUE_ERRORS):
            raise
        raise TraceError(f"jit({name}): {_user_line(e)}: {BRANCH}") from e


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """A trace makes millions of objects, nearly all of which live until its end: to look for others takes long."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _TensorIndices(TorchFunctionMode):
    """Lets `x[i]` and `x[i] = y` take a tensor `i` of shape (), which torch would turn into a Python number.

    Since it sees all calls, it also notes which lines the nodes come from.
    """

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        proxies = get_proxy_mode()
        if proxies is None:
            return self._call(func, args, kwargs or {})
        root = proxies.tracer.graph._root
        last = root._prev
        out = self._call(func, args, kwargs or {})
        if root._prev is not last:
            self._note(root._prev, last)
        return out

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is Tensor.__getitem__:
            return _get_item(*args)
        if func is Tensor.__setitem__:
            return _set_item(*args)
        if isinstance(func, torch._ops.HigherOrderOperator):  # its bodies are traced while this mode is off
            args = [_with_tensor_indices(a, self.places) if isinstance(a, FunctionType) else a for a in args]
        return func(*args, **kwargs)

    def _note(self, node: Node, last: Node) -> None:
        """Tell the nodes after `last` where they come from, as far as no call inside of this one did."""
        source = self.places.here()
        while node is not last:
            node.meta.setdefault("source", source)
            node = node._prev


def _with_tensor_indices(body: Callable[..., Any], places: Places) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with _TensorIndices(places):
            return body(*args)

    return run


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

    _make_fx(watched, examples, name, {})


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
            for x in _written(func, args, kwargs):
                if _memory(x) in self.inputs or not isinstance(x, FakeTensor):
                    self._fail(WRITE.format(func, "an input" if _memory(x) in self.inputs else "a tensor from outside"))
        out = func(*args, **kwargs)
        if complaint := _complaint(func, out):
            self._fail(complaint)
        return out

    def _fail(self, complaint: str) -> None:
        raise TraceError(f"jit({self.name}): {_user_line()}: {complaint}")


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors among its arguments that an op writes to."""
    for k, a in enumerate(func._schema.arguments):
        if a.alias_info is not None and a.alias_info.is_write:
            x = kwargs[a.name] if a.name in kwargs else args[k] if k < len(args) else None
            yield from (t for t in (x if isinstance(x, (list, tuple)) else (x,)) if isinstance(t, Tensor))


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
