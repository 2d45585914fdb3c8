"""Record what PyTorch computes as a graph: a dispatch mode, on values that have shapes but no data.

It sees what `make_fx` sees, below derivatives and `torch.vmap`, and makes the same graphs, in a fraction of the time.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

import torch
import torch._decomp
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._mode_utils import no_dispatch

from mjtorch.compiler.frames import Frame
from mjtorch.compiler.ir.source import Places, Source
from mjtorch.compiler.layouts import (
    CPU,
    Layout,
    Layouts,
    Written,
    layout_of,
    row_major,
    shaped,
    substituted,
    takes_device,
    tensors,
    written,
)
from mjtorch.compiler.lower.values import NoRule
from mjtorch.control_flow.carry import fresh
from mjtorch.control_flow.context import Recorder, Shaped, recorder

BRANCH = (
    "a Python branch or number made from a tensor's value; use mjtorch.control_flow.cond or while_loop, torch.where, "
    "or keep the number a tensor"
)
WRITE = "{} changes {} in place; make a new tensor instead, for example with x.clone() or torch.where"
SHAPE = "a result whose shape depends on values; use torch.where or a mask"
DEVICE = torch.ops.prim.device.default
LIFT = torch.ops.aten.lift_fresh_copy.default
# Where the bodies are among the arguments of a loop or branch, and what a graph calls them.
BODIES = {
    "cond": (1, ("true_graph", "false_graph")),
    "while_loop": (0, ("while_loop_cond_graph", "while_loop_body_graph")),
    "scan": (0, ("scan_combine_graph",)),
}
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# Questions rather than operations, though PyTorch could take them apart.
QUESTIONS = {torch.ops.aten.size.default, torch.ops.aten.stride.default, torch.ops.aten.storage_offset.default}


class RefusedError(Exception):
    """An operation cannot be recorded; the message says what to do instead."""


class Traced(Shaped):
    """A value of the function that is being recorded.

    form: shape, strides and dtype
    memory: a tensor without data, of this form; it shares memory with others as the value does
    place: the device
    node: the operation that it comes from, if that was recorded
    varying: whether it depends on the inputs
    known: its value, where that is one number written in the function
    """

    form: Layout
    memory: Tensor
    place: torch.device
    recorder: GraphRecorder
    node: Node | None
    varying: bool
    known: Tensor | None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def of(memory: Tensor, form: Layout, place: torch.device, recorder: GraphRecorder, varying: bool) -> Traced:
        """A value at a place in memory, not computed by any node yet."""
        x: Traced = Tensor._make_subclass(Traced, memory, False, dispatch_device=True, device_for_backend_keys=place)
        x.form, x.memory, x.place, x.recorder = form, memory, place, recorder
        x.node, x.varying, x.known = None, varying, None
        return x

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where the value will be, unlike what stands for it."""
        return self.place

    def __repr__(self, **_: Any) -> Any:  # type: ignore[override]
        return f"traced({str(self.form.dtype).removeprefix('torch.')}{list(self.form.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Outside of the recording, an operation has a result of the right shape."""
        recorder = next(x.recorder for x in tensors((args, kwargs or {})) if isinstance(x, Traced))
        with recorder.paused():
            return recorder.__torch_dispatch__(func, types, args, kwargs)


class Kind:
    """What the schema of an operation says of it."""

    def __init__(self, func: OpOverload, device: torch.device, has_rule: Callable[[str], bool]) -> None:
        tags = func.tags
        self.name = func.overloadpacket.__name__
        if self.name.startswith("__") and self.name.endswith("__"):
            self.name = self.name[2:-2]
        # PyTorch takes it apart itself, if not as late as in a loop's body.
        own = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), device.type.upper())
        self.composite = not own and func not in QUESTIONS and func.has_kernel_for_dispatch_key(COMPOSITE)
        self.needs_values = torch.Tag.data_dependent_output in tags
        self.shape_of_values = torch.Tag.dynamic_output_shape in tags
        self.changes_view = torch.Tag.inplace_view in tags
        self.random = torch.Tag.nondeterministic_seeded in tags
        self.writes = func._schema.is_mutable
        self.is_view = not self.writes and any(r.alias_info is not None for r in func._schema.returns)
        self.takes_device = takes_device(func)
        self.lowered = self.writes or has_rule(func.overloadpacket.__name__)


class _Handler:
    """Apart from `TorchDispatchMode`, which shields what its subclasses define by importing Dynamo: a second."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0].place if func is DEVICE else self.operation(func, args, kwargs or {})  # type: ignore[attr-defined]


class GraphRecorder(_Handler, Recorder):
    """Records one function. Operations for which there is no rule are taken apart, as PyTorch has it.

    device: where all inputs are
    has_rule: whether an operation, by its name, can be lowered
    places: which line is at work
    decomposed: how many operations were taken apart
    read: tensors from around the function whose values it has asked for, by `id`
    """

    supports_higher_order_operators = True

    def __init__(self, device: torch.device, has_rule: Callable[[str], bool], places: Places) -> None:
        super().__init__()
        self.device, self.has_rule, self.places = device, has_rule, places
        self.kinds: dict[Any, Kind] = {}
        self.layouts = Layouts()
        self.held: dict[int, Traced] = {}  # what stands for tensors that have values
        self.frame = Frame()
        self.decomposed = 0
        self.read: dict[int, Tensor] = {}

    def record(self, f: Callable[..., Any], examples: Sequence[Tensor]) -> GraphModule:
        """The graph of `f` at the shapes of `examples`."""
        frame = Frame()
        with self._within(frame):
            frame.graph.output(substituted(f(*self._inputs(examples)), self._node))
        return frame.closed()

    @contextlib.contextmanager
    def _within(self, frame: Frame) -> Iterator[None]:
        """What is computed inside goes to a graph of its own."""
        around, was = self.frame, self.recording
        self.frame, self.recording = frame, True
        try:
            with contextlib.nullcontext() if recorder() is self else self:
                yield
        finally:
            self.frame, self.recording = around, was

    def last(self) -> Node:
        """The newest node of the graph that is being recorded."""
        return self.frame.graph._root._prev

    def note(self, last: Node, source: Source | None) -> None:
        """Let the nodes after `last` know where they come from, unless they do."""
        node = self.last()
        while source is not None and node is not last:
            node.meta.setdefault("source", source)
            node = node._prev

    def _inputs(self, examples: Sequence[Tensor]) -> list[Traced]:
        with no_dispatch(), torch._C.DisableTorchFunction():
            made = [self._made(_layout(x), x.device, True) for x in examples]
            for x in made:
                x.node = self.frame.input(x.memory)
            return made

    def _made(self, layout: Layout, device: torch.device, varying: bool) -> Traced:
        return Traced.of(shaped(layout), layout, device, self, varying)

    # --- operations ---

    def operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of an operation that is met."""
        if isinstance(func, HigherOrderOperator):
            if kwargs or func.__name__ not in BODIES:
                raise NoRule(str(func))
            return self._loop_or_branch(func, args)
        if func is torch.ops.aten.lift_fresh.default:
            func = LIFT  # what `torch.tensor` made, which nobody else has seen yet
        kind = self.kinds.get(func)
        if kind is None:
            kind = self.kinds[func] = Kind(func, self.device, self.has_rule)
        if kind.composite and (out := self._apart(func.decompose, args, kwargs)) is not NotImplemented:
            return out
        given: list[Tensor] = []
        spelled = self._spelled(args, given), *[(k, self._spelled(x, given)) for k, x in kwargs.items()]
        varying = any(self._varies(x) for x in given if func is not LIFT or isinstance(x, Traced))
        if varying and self.recording and not kind.lowered and (how := parts(func)) is not None:
            self.decomposed += 1
            if (out := self._apart(how, args, kwargs)) is not NotImplemented:
                return out
        if kind.needs_values:
            return self._value(func, args, kwargs)
        if kind.shape_of_values and _follows_values(func, given, kwargs):
            raise RefusedError(SHAPE)
        if not self.recording:
            return self._result(func, kind, spelled, args, kwargs, given, varying)
        if (kind.writes or kind.changes_view) and any(self._is_captured(x) for x in written(func, args, kwargs)):
            raise RefusedError(WRITE.format(func, "a tensor from around a loop or branch"))
        node = self._node if func is not LIFT else self._node_of_numbers
        node_args, node_kwargs = substituted(args, node), substituted(kwargs, node)
        out = self._result(func, kind, spelled, args, kwargs, given, varying)
        self._attach(out, self.frame.graph.create_node("call_function", func, node_args, node_kwargs, kind.name))
        return out

    def _apart(self, parts: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of an operation, of which the parts are recorded."""
        with self:
            return parts(*args, **kwargs)

    def _result(
        self,
        func: OpOverload,
        kind: Kind,
        spelled: Any,
        args: Any,
        kwargs: dict[str, Any],
        given: Sequence[Tensor],
        varying: bool,
    ) -> Any:
        with torch._C.DisableTorchFunction():
            if kind.changes_view:
                return self._changed(func, args, kwargs)
            if kind.is_view:
                out = self._viewed(func, args, kwargs)
            else:
                device = kwargs.get("device") if kind.takes_device else None
                found = self.layouts.of(func, spelled, args, kwargs)
                out = self._made_of(found, given, _place(given) if device is None else torch.device(device), varying)
            if func is LIFT or any(isinstance(x, Traced) and x.known is not None for x in given):
                self._keep_known(func, kind, args, kwargs, given, out)
            return out

    def _spelled(self, x: Any, given: list[Tensor]) -> Any:
        """An argument as something that has a hash; its tensors are added to those given."""
        if isinstance(x, Tensor):
            given.append(x)
            return x.form if isinstance(x, Traced) else self._held(x).form
        if isinstance(x, (list, tuple)):
            return tuple([self._spelled(y, given) for y in x])
        return x.__class__, x

    def _held(self, x: Tensor) -> Traced:
        """What stands for a tensor that has a value."""
        found = self.held.get(id(x))
        if found is None:
            with torch._C.DisableTorchFunction():
                found = self._made(layout_of(x), x.device, False)
            found.known = x  # which also keeps it alive
            self.held[id(x)] = found
        return found

    def _node(self, x: Tensor) -> Node | None:
        if not self.recording:
            return None
        if self._is_here(x):
            return x.node
        if self._is_captured(x):
            return self.frame.lift(x)
        if isinstance(x, Traced):
            raise RuntimeError("a value of the function being traced was used where it is not known, as in a loop body")
        return self.frame.constant(x)

    def _node_of_numbers(self, x: Tensor) -> Node | None:
        """As `_node`, for what `torch.tensor` may have made of numbers that the function has written."""
        return self._node(x) if isinstance(x, Traced) else self.frame.constant(x)

    def _is_here(self, x: Tensor) -> TypeGuard[Traced]:
        """Whether a value is an input of, or was computed in, what is being recorded, and not around it."""
        return isinstance(x, Traced) and x.node is not None and x.node.graph is self.frame.graph

    def _is_captured(self, x: Tensor) -> bool:
        """Whether a value comes from around the body that is being recorded."""
        return self.frame.captured is not None and not self._is_here(x)

    def _varies(self, x: Tensor) -> bool:
        """Whether a value may depend on the inputs: what a body captures is an input of it."""
        return self._is_captured(x) or (isinstance(x, Traced) and x.varying)

    def _made_of(self, found: Any, given: Sequence[Tensor], device: torch.device, varying: bool) -> Any:
        if isinstance(found, Layout):
            return self._made(found, device, varying)
        if isinstance(found, Written):
            x = given[found.position]
            if isinstance(x, Traced):
                x.varying = x.varying or varying
            return x
        if isinstance(found, (list, tuple)):
            parts = [self._made_of(x, given, device, varying) for x in found]
            return parts if isinstance(found, list) else tuple(parts)
        return found

    def _viewed(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of an operation that hands on memory."""
        base = args[0] if isinstance(args[0], Traced) else self._held(args[0])

        def wrapped(memory: Tensor) -> Traced:
            return Traced.of(memory, layout_of(memory), base.place, self, base.varying)

        return substituted(func(base.memory, *args[1:], **kwargs), wrapped)

    def _changed(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """A tensor that is made another view of its memory. The node that it came from keeps what it was."""
        x, *rest = args
        if not isinstance(x, Traced) or tensors(rest):
            raise NoRule(str(func))
        if x.node is not None:
            x.node.meta["val"] = x.memory.view_as(x.memory)
        func(x.memory, *rest, **kwargs)
        with no_dispatch():
            func(x, *rest, **kwargs)
        x.form = layout_of(x.memory)
        return x

    def _attach(self, out: Any, node: Node) -> None:
        """Let results know their node, and nodes the layout of their results.

        Not the results themselves: of a tensor that someone else has, too, PyTorch's factories return a copy.
        """
        node.meta["val"] = substituted(out, lambda x: x.memory if isinstance(x, Traced) else x)
        if isinstance(out, Traced):
            out.node = node
        elif isinstance(out, (list, tuple)):
            for k, x in enumerate(out):
                part = self.frame.graph.create_node("call_function", operator.getitem, (node, k), {}, "getitem")
                self._attach(x, part)

    # --- values ---

    def _value(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """A Python number: known where it does not depend on the inputs."""
        given = tensors((args, kwargs))
        if any(_known(x) is None for x in given):
            raise RefusedError(BRANCH)
        self._note_read(given)
        return func(*substituted(args, _known), **substituted(kwargs, _known))

    def _keep_known(
        self, func: OpOverload, kind: Kind, args: Any, kwargs: dict[str, Any], given: Sequence[Tensor], out: Any
    ) -> None:
        """The values of numbers that the function makes of numbers, by `torch.tensor` first of all."""
        made = [x for x in tensors(out) if isinstance(x, Traced)]
        if kind.random or any(_known(x) is None for x in given) or any(x.numel() > 1 for x in made):
            values: list[Any] = [None] * len(made)
        else:
            values = tensors(func(*substituted(args, _known), **substituted(kwargs, _known)))
            if func is not LIFT:
                self._note_read(given)
        for x, value in zip(made, values, strict=True):
            x.known = value

    def _note_read(self, given: Sequence[Tensor]) -> None:
        self.read.update((id(x), x) for x in given if not isinstance(x, Traced))

    # --- loops and branches ---

    def while_loop(self, *args: Any) -> Sequence[Tensor]:
        """As `torch.ops.higher_order.while_loop`."""
        return self._loop_or_branch(torch.ops.higher_order.while_loop, args)

    def scan(self, *args: Any) -> Sequence[Tensor]:
        """As `torch.ops.higher_order.scan`."""
        return self._loop_or_branch(torch.ops.higher_order.scan, args)

    def cond(self, *args: Any) -> Sequence[Tensor]:
        """As `torch.ops.higher_order.cond`."""
        return self._loop_or_branch(torch.ops.higher_order.cond, args)

    def _loop_or_branch(self, op: HigherOrderOperator, args: Any) -> Sequence[Tensor]:
        """Its bodies become graphs, whose inputs are values of their own, also for what they capture.

        What both functions of a branch hand on from around them is no result of theirs.
        """
        place, prefixes = BODIES[op.__name__]
        operands = [*args[:place], *args[place + len(prefixes) :]]
        fixed = operands.pop()
        examples = tensors((operands[place:], fixed))
        if op is torch.ops.higher_order.scan:
            init, xs = operands
            with no_dispatch(), torch._C.DisableTorchFunction():
                rows = [self._made(row_major(x.shape[1:], x.dtype), x.device, True) for x in xs]
            examples = [*init, *rows, *fixed]
        captured: dict[int, Tensor] = {}
        frames, results = [Frame(captured) for _ in prefixes], []
        for frame, f in zip(frames, args[place:], strict=False):
            with self._within(frame):
                inputs = self._inputs(examples)
                results.append((inputs, _replayed(f, self)(*inputs)))
        handed: dict[int, Tensor] = {}
        if op is torch.ops.higher_order.cond:
            pairs = zip(*(out for _, out in results), strict=True)
            handed = {k: x for k, (x, y) in enumerate(pairs) if x is y}
            results = [(inputs, [x for k, x in enumerate(out) if k not in handed]) for inputs, out in results]
        made = [self._finish(frame, *result) for frame, result in zip(frames, results, strict=True)]
        operands = [*operands, (*fixed, *captured.values())]
        layouts = [_layout(x) for x in (operands[0] if op is torch.ops.higher_order.while_loop else made[0])]
        if op is torch.ops.higher_order.scan:
            n, length = len(init), xs[0].shape[0]
            layouts[n:] = [row_major(torch.Size((length, *y.shape)), y.dtype) for y in layouts[n:]]
        with no_dispatch(), torch._C.DisableTorchFunction():
            out = tuple([self._made(layout, _place(tensors(operands)), True) for layout in layouts])
        if self.recording and out:
            nodes = substituted(operands, self._node)
            held = self.frame.bodies(prefixes, [frame.closed() for frame in frames])
            node_args = *nodes[:place], *held, *nodes[place:]
            last = self.last()
            self._attach(out, self.frame.graph.create_node("call_function", op, node_args, {}, op.__name__))
            self.note(last, self.places.here())
        rest = iter(out)
        return tuple([handed[k] if k in handed else next(rest) for k in range(len(out) + len(handed))])

    def _finish(self, frame: Frame, inputs: Sequence[Tensor], out: Any) -> Any:
        """End a body: its results, which share memory neither with what it is given or captures nor with each other."""
        with self._within(frame):
            around = [x for x in tensors(out) if not self._is_here(x)]
            own = iter(fresh(tensors(out), (*inputs, *(frame.captured or {}).values(), *around)))
            out = substituted(out, lambda _: next(own))
            frame.graph.output(substituted(out, self._node))
        return out


class Replay(Interpreter):
    """Runs a graph such that what it records has the lines of the nodes it comes from."""

    def __init__(self, graph: GraphModule, recorder: GraphRecorder) -> None:
        super().__init__(graph)
        self.recorder = recorder

    def run_node(self, n: Node) -> Any:
        """The value of a node."""
        last = self.recorder.last()
        out = super().run_node(n)
        self.recorder.note(last, n.meta.get("source"))
        return out


def _replayed(f: Callable[..., Any], recorder: GraphRecorder) -> Callable[..., Any]:
    return Replay(f, recorder).run if isinstance(f, GraphModule) else f


def _known(x: Tensor) -> Tensor | None:
    return x.known if isinstance(x, Traced) else x


def _layout(x: Tensor) -> Layout:
    return x.form if isinstance(x, Traced) else layout_of(x)


def _place(given: Sequence[Tensor]) -> torch.device:
    """Where a result is: with the first tensor that is more than a number."""
    wide = [x for x in given if x.dim()] or [x for x in given if x.device.type != "cpu"] or given
    return wide[0].device if wide else CPU


def _follows_values(func: OpOverload, given: Sequence[Tensor], kwargs: dict[str, Any]) -> bool:
    """Whether an operation whose shape may follow values has one that does here."""
    if func is torch.ops.aten.index.Tensor:
        return any(x.dtype in (torch.bool, torch.uint8) for x in given[1:])
    return kwargs.get("output_size") is None


def parts(func: OpOverload) -> Callable[..., Any] | None:
    """How PyTorch takes an operation apart, if it does."""
    return torch._decomp.decomposition_table.get(func)
