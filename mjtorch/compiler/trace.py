"""Trace one world: from a Python function to a flat ATen graph."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mjtorch.compiler.garbage import without_collections
from mjtorch.compiler.ir.source import Places
from mjtorch.compiler.layouts import CPU, written
from mjtorch.compiler.record import BRANCH, WRITE, GraphRecorder, RefusedError, Replay, Traced, parts
from mjtorch.compiler.stage import in_own_precision
from mjtorch.compiler.writes import calls, functionalized, memory, mutates, op_name, origin, settle, writes

Flat = Callable[..., Sequence[Tensor]]

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
# What torch says in its own words when a number is made from a traced tensor.
VALUE_ERRORS = (".item()", "value out of a tracing tensor", "data-dependent control flow", ".numpy()", ".tolist()")
# Where a graph has the tensors from around the function whose values have become numbers of it.
READ = "read"
RANDOM = "{} draws random numbers, which a compiled function would draw only once; draw them outside and pass them in"


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
    writing = writes(graph)
    complaint = next((n.target for n in calls(graph) if is_random(n.target)), None)
    if complaint is not None or any(origin(n).op != "call_function" for n in writing):
        _blame(flat, examples, name)
    if complaint is not None:
        raise TraceError(f"jit({name}): {RANDOM.format(complaint)}")
    if writing and recorder.decomposed:  # PyTorch rewrites what writes, but not all that it takes other operations for
        whole = _recorded(flat, examples, name, _recorder(examples, lambda op: True))
        graph = whole if writes(whole) else graph
    while (writing := writes(graph)) or _decomposable(graph, known):
        before, program = recorder.decomposed, functionalized(graph, examples) if writing else graph
        graph = _recorded(Replay(program, recorder).run, examples, name, recorder)
        if recorder.decomposed == before:  # else these may write, too
            break
    graph.meta[READ] = list(recorder.read.values())
    return graph


def _recorded(flat: Flat, examples: Sequence[Tensor], name: str, recorder: GraphRecorder) -> GraphModule:
    """The graph of a function, without writes that nobody else sees."""
    graph = _record(flat, examples, name, recorder)
    graph.graph.eliminate_dead_code()
    settle(graph)
    for n in calls(graph):
        n.meta.setdefault("source", None)
    return graph


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
        self.inputs = {memory(x) for x in inputs}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if mutates(func):
            for x in written(func, args, kwargs):
                if memory(x) in self.inputs or not isinstance(x, Traced):
                    self._fail(WRITE.format(func, "an input" if memory(x) in self.inputs else "a tensor from outside"))
        out = func(*args, **kwargs)
        if is_random(func):
            self._fail(RANDOM.format(func))
        return out

    def _fail(self, complaint: str) -> None:
        raise TraceError(f"jit({self.name}): {_user_line()}: {complaint}")


def _user_line(e: BaseException | None = None) -> str:
    """The user's own line in the traceback of `e`, or on the stack: the deepest that is in no library.

    Failing that, the deepest in mjtorch.
    """
    frames = traceback.extract_stack() if e is None else traceback.extract_tb(e.__traceback__)
    users = [f for f in frames if not f.filename.startswith((OURS, *LIBRARIES, "<frozen"))]
    ours = [f for f in frames if f.filename.startswith(OURS) and not f.filename.startswith(HERE)]
    found = (users or ours)[-1:]
    return f"{found[0].filename}:{found[0].lineno}, in {found[0].name}: `{found[0].line}`" if found else "somewhere"
