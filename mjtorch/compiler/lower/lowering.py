"""From a one-world ATen graph to a loop program: the walk; the rules per op lie beside it."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, GraphModule, Node

from mjtorch.compiler.ir.nodes import (
    BOOL,
    COMMON,
    CONSTANT,
    FLOAT32,
    FLOAT64,
    INPUT,
    INT,
    OUTPUT,
    SCRATCH,
    SHARED,
    UNIFORM,
    Body,
    Buffer,
    Call,
    Compact,
    Declare,
    Expr,
    For,
    FromIndex,
    Gather,
    Group,
    If,
    Index,
    Item,
    Length,
    Load,
    Local,
    Number,
    Origin,
    Program,
    Statement,
    Store,
    Variable,
    lookup,
)
from mjtorch.compiler.ir.walk import touched_by, walk_expr
from mjtorch.compiler.lower.values import (
    DTYPES,
    Array,
    Lazy,
    NoRule,
    Value,
    View,
    broadcast,
    dense,
    flat,
    is_widened,
    leaves,
    mapped,
    number,
    numel,
    to_write,
)

# More operations than this are stored rather than repeated or inlined further.
MAX_INLINE = 32
ORDER = {BOOL: 0, INT: 1, FLOAT32: 2, FLOAT64: 3}


Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a lowering rule: `rule(lowering, node, *args, **kwargs) -> value(s)`."""

    def register(f: Rule) -> Rule:
        for name in names:
            RULES[name] = f
        return f

    return register


class Lowering:
    """The state of one lowering: statements so far, in the block that is being written.

    uniform: the statements that are the same for all worlds; None if these are not told apart
    is_packed: whether what is being lowered is the body of a `Pack`, in which there is no other
    elements: whether elements of one world will be computed side by side, rather than worlds
    exact: whether a product with a zero is to be computed where it may meet an infinity or NaN
    inline: whether what is read once may be computed where it is read
    origin: the operation that is being lowered; values: what each came to
    """

    def __init__(
        self, *, uniform: bool = False, elements: bool = False, exact: bool = False, inline: bool = True
    ) -> None:
        self.elements, self.exact, self.inline = elements, exact, inline
        self.block: list[Statement] = []
        self.uniform: list[Statement] | None = [] if uniform else None
        self.is_uniform = self.is_packed = False
        self.origin: Origin | None = None
        self.values: dict[Node, Any] = {}
        # Values of the graph that is being lowered.
        self.environment: dict[Node, Any] = {}
        self.constants: dict[bytes, Buffer] = {}
        # Nodes that write into arrays of a loop's state: by operand the array, and the flag of the worlds that run.
        self.in_place: dict[Node, dict[int, tuple[View, View]]] = {}
        # The loops that collect what their graphs return.
        self.scans: dict[Graph, Node] = {}
        self.count = 0

    # --- statements ---

    def emit(self, *statements: Statement) -> None:
        """Append to the block that is being written."""
        self.block.extend(s if s.origin is not None else dataclasses.replace(s, origin=self.origin) for s in statements)

    def variable(self, prefix: str = "i") -> str:
        """A name that is not taken yet."""
        self.count += 1
        return f"{prefix}{self.count}"

    def local(self, dtype: str, value: Expr) -> Local:
        """Declare a variable with a first value."""
        x = Local(self.variable("t"), dtype)
        self.emit(Declare(x, value))
        return x

    def inside(self, write: Callable[[], Any]) -> tuple[Body, Any]:
        """The statements that `write` emits, and what it returns."""
        outer, self.block = self.block, []
        result = write()
        inner, self.block = self.block, outer
        return tuple(inner), result

    def loop(
        self,
        stop: Index | int,
        write: Callable[[Index], Any],
        start: Index | int = 0,
        *,
        scope: bool = False,
        parallel: bool = False,
    ) -> None:
        """A loop around what `write(index)` emits; none where there is one iteration."""
        start, stop = (Index(x) if isinstance(x, int) else x for x in (start, stop))
        if not start.terms and not stop.terms and stop.base - start.base <= 1:
            if stop.base > start.base:
                self.group(lambda: write(start))
            return
        name = self.variable()
        body, _ = self.inside(lambda: write(Index(0, ((Variable(name), 1),))))
        self.emit(For(name, start, stop, body, scope, parallel=parallel))

    def nest(self, shape: Sequence[int], write: Callable[[list[Index]], Any]) -> None:
        """Loops over all elements of `shape`."""

        def level(index: list[Index]) -> None:
            if len(index) == len(shape):
                self.group(lambda: write(index))
            else:
                self.loop(shape[len(index)], lambda i: level([*index, i]))

        level([])

    def compact(
        self, size: int, flag: Callable[[Index], Expr], start: Index | None = None
    ) -> tuple[Callable[[Index], Index], Index]:
        """The k from `start` to `size` for which `flag(k)` holds in some world: how to look up one, and how many."""
        name, variable = self.variable("list"), self.variable()
        body, found = self.inside(lambda: flag(Index(0, ((Variable(variable), 1),))))
        self.emit(Compact(name, variable, size, body, found, start or Index()))
        return (lambda i: Index(0, ((Item(name, i), 1),))), Index(0, ((Length(name), 1),))

    def choose(self, flag: Expr, write: Callable[[], Any], otherwise: Callable[[], Any]) -> None:
        """What `write` emits if `flag` holds in some world, else what `otherwise` does."""
        self.emit(If(flag, self.inside(write)[0], self.inside(otherwise)[0]))

    def group(self, write: Callable[[], Any]) -> None:
        """What `write` emits, as one statement if it declares variables."""
        body, _ = self.inside(write)
        if any(isinstance(s, (Declare, Compact)) for s in body):
            body = (Group(body),)
        self.emit(*body)

    # --- values ---

    def alloc(self, shape: Sequence[int], dtype: str) -> View:
        """A new array, in scratch memory or in what all worlds have in common."""
        return dense(Buffer(numel(shape), dtype, UNIFORM if self.is_uniform else SCRATCH), shape)

    def constant(self, x: torch.Tensor) -> View:
        """A constant array; equal ones share memory."""
        array = x.contiguous().numpy(force=True)
        dtype = DTYPES[x.dtype]
        key = dtype.encode() + array.tobytes()
        if key not in self.constants:
            self.constants[key] = Buffer(max(1, array.size), dtype, CONSTANT, array.reshape(-1))
        return dense(self.constants[key], x.shape)

    def array(self, x: Value) -> Array:
        """`x` as something that has elements."""
        if isinstance(x, (View, Lazy)):
            return x
        if isinstance(x, torch.Tensor):
            if x.numel() and (x == x.reshape(-1)[0]).all():
                dtype, value = DTYPES[x.dtype], x.reshape(-1)[0].item()
                return Lazy(tuple(x.shape), dtype, lambda _: number(value, dtype), 0)
            return self.constant(x)
        dtype = BOOL if isinstance(x, bool) else INT if isinstance(x, int) else FLOAT32
        return Lazy((), dtype, lambda _: number(x, dtype), 0)

    def store(self, x: Value, into: View | None = None, dtype: str | None = None) -> View:
        """Write `x` element by element, broadcast to the shape of `into` if given."""
        a = self.array(x)
        out = into if into is not None else self.alloc(a.shape, dtype or a.dtype)
        self.nest(
            to_write(a, out.shape),
            lambda i: self.emit(Store(out.buffer, out.address(i), cast(broadcast(a, out.shape, i), out.dtype))),
        )
        return out

    def stored(self, x: Value) -> View:
        """`x` as elements of a buffer."""
        return x if isinstance(x, View) else self.constant(x) if isinstance(x, torch.Tensor) else self.store(x)

    def elementwise(self, op: str, *args: Value, dtype: str | None = None, out: str | None = None) -> Lazy:
        """`op` on broadcast arguments, which are first cast to `dtype`; `out` is the result's, if another."""
        arrays = [self.array(a) for a in args]
        dtype = dtype or promote(args, arrays)
        shape = tuple(np.broadcast_shapes(*(a.shape for a in arrays)))

        def at(index: Sequence[Index]) -> Expr:
            return call(op, *(cast(broadcast(a, shape, index), dtype) for a in arrays), dtype=out or dtype)

        cost = 1 + sum(a.cost for a in arrays if isinstance(a, Lazy))
        return Lazy(shape, out or dtype, at, cost, op, tuple(arrays))

    def remap(self, x: Array, shape: Sequence[int], to: Callable[[Sequence[Index]], Sequence[Index]]) -> Lazy:
        """Another order of the same elements: `result[index] = x[to(index)]`."""
        cost = x.cost if isinstance(x, Lazy) else 0
        return Lazy(tuple(shape), x.dtype, lambda i: x.at(to(i)), cost)

    def gathered(self, x: View, offsets: np.ndarray) -> Array:
        """The elements of `x.buffer` at `x.base + offsets`; a view if each axis has offsets of its own."""
        shape = offsets.shape
        if offsets.size == 0:
            return View(x.buffer, x.base, dense_axes_like(shape))
        first = int(offsets.reshape(-1)[0])
        axes, rebuilt = [], np.array(first)
        for d in range(offsets.ndim):
            axis = offsets[tuple(slice(None) if k == d else 0 for k in range(offsets.ndim))] - first
            axes.append(tuple(int(a) for a in axis))
            rebuilt = np.add.outer(rebuilt, axis)
        if (rebuilt == offsets).all():
            return View(x.buffer, x.base + first, tuple(axes))
        table = offsets.reshape(-1)

        def at(i: Sequence[Index]) -> Expr:
            return Load(x.buffer, x.base + lookup(table, flat(shape, i)))

        return Lazy(shape, x.dtype, at, 1, args=(x,), offsets=offsets)

    # --- graphs ---

    def graph(self, module: GraphModule, inputs: Sequence[Value]) -> list[Value]:
        """Lower a graph in the current block; the values of its outputs."""
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        env: dict[Node, Any] = dict(zip(placeholders, inputs, strict=True))
        outer, self.environment = self.environment, env

        def get(a: Any) -> Any:
            return mapped(a, lambda x: env[x] if isinstance(x, Node) else x)

        for node in module.graph.nodes:
            if node.op == "get_attr":
                env[node] = on_cpu(getattr(module, node.target))
            elif node.op == "output":
                self.environment = outer
                return leaves(get(node.args[0]))
            elif node.op == "call_function":
                if node in self.in_place:
                    states = [view for view, _ in self.in_place[node].values()]
                    given = {n for n, x in env.items() if n.op == "placeholder" and x in states}
                    self.rescue(node, {view.buffer for view in states}, given)
                env[node] = self.values[node] = self.call(node, get(node.args), get(node.kwargs))
        raise AssertionError("a graph without output")

    def rescue(self, node: Node, changed: Set[Buffer], spared: Set[Node]) -> None:
        """Store what reads the arrays that `node` will change, and is itself read from then on, `spared` apart."""
        env, place = self.environment, {n: k for k, n in enumerate(node.graph.nodes)}
        for n, x in env.items():
            if n in spared or not any(place[u] >= place[node] for u in n.users):
                continue
            if isinstance(x, (View, Lazy)) and 0 not in x.shape:
                found = walk_expr(x.at([Index()] * len(x.shape)))
                read = {e.buffer for e in found if isinstance(e, (Load, Gather))}
                env[n] = self.store(x) if read & changed else x

    def call(self, node: Node, args: tuple, kwargs: dict) -> Any:
        """One op: folded if all it needs is constant, else by its rule."""
        if node.target is operator.getitem:
            return args[0][args[1]]
        given = leaves((args, kwargs))
        name = getattr(node.target, "overloadpacket", node.target).__name__
        if not any(isinstance(x, (View, Lazy)) for x in given) and not isinstance(
            node.target, torch._ops.HigherOrderOperator
        ):
            kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
            return node.target(*args, **kwargs)
        if name not in RULES:
            raise NoRule(str(node.target))
        if self.uniform is None or isinstance(node.target, torch._ops.HigherOrderOperator) or node in self.in_place:
            uniform = False
        else:
            uniform = all(map(same_for_all, given))
        around, self.origin = self.origin, origin_of(node)
        if uniform:
            result = self.called_once(node, name, args, kwargs)
        else:
            result = RULES[name](self, node, *args, **kwargs)
            result = self.keep(node, with_origin(result, self.origin)) if isinstance(result, Lazy) else result
        self.origin = around
        return result

    def called_once(self, node: Node, name: str, args: tuple, kwargs: dict) -> Any:
        """An op that is the same for all worlds."""
        assert self.uniform is not None
        outer, self.block, self.is_uniform = self.block, self.uniform, True
        result = RULES[name](self, node, *args, **kwargs)
        if isinstance(result, Lazy) and result.cost:
            result = self.store(result)
        self.block, self.is_uniform = outer, False
        return result

    def picks(self, node: Node) -> bool:
        """Whether a node picks elements by indices that are the same whenever the program runs."""
        name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        return name == "index" and all(self.is_fixed(i) for i in node.args[1] if i is not None)

    def is_fixed(self, node: Node) -> bool:
        """Whether what a node gives is known before the program runs."""
        if node.op == "placeholder":
            return isinstance(self.environment.get(node), torch.Tensor)
        return node.op == "get_attr" or (
            node.op == "call_function"
            and not isinstance(node.target, torch._ops.HigherOrderOperator)
            and all(self.is_fixed(n) for n in node.all_input_nodes)
        )

    def keep(self, node: Node, x: Lazy) -> Value:
        """Leave `x` lazy where that does not repeat work, else store it."""
        readers = list(node.users)
        if x.cost == 0 or (x.offsets is not None and all(self.picks(reader) for reader in readers)):
            return x
        if self.inline and is_widened(x):
            return x  # which is half as large where it lies
        if not self.inline or len(readers) != 1 or x.cost > MAX_INLINE:
            return self.store(x)
        value = readers[0].meta.get("val")
        grows = not isinstance(value, torch.Tensor) or value.numel() > numel(x.shape)
        name = getattr(getattr(readers[0].target, "overloadpacket", None), "__name__", "")
        if name in READS_ONCE:
            return x
        return self.store(x) if (grows and x.cost > 1) or name in REREADS else x


def origin_of(node: Node) -> Origin:
    """A node of the graph, as statements refer to it."""
    name = getattr(node.target, "overloadpacket", node.target)
    return Origin(getattr(name, "__name__", str(name)), node.name, node.meta.get("source"))


def with_origin(x: Lazy, origin: Origin) -> Lazy:
    """`x`, of which each element knows which operation it is, wherever it will be computed."""

    def mark(e: Expr) -> Expr:
        if isinstance(e, Call) and e.origin is None:
            return Call(e.op, tuple(mark(a) for a in e.args), e.dtype, origin)
        return e

    return x if x.cost == 0 else dataclasses.replace(x, at=lambda index: mark(x.at(index)))


def on_cpu(x: Any) -> Any:
    """A constant where it can be read."""
    return x.detach().cpu() if isinstance(x, torch.Tensor) else x


def same_for_all(x: Any) -> bool:
    """Whether an argument of an op is the same in all worlds, and in all iterations of the loops around it."""
    if not isinstance(x, (View, Lazy)) or 0 in x.shape:
        return True
    for e in walk_expr(x.at([Index()] * len(x.shape))):
        if isinstance(e, Local) or (isinstance(e, FromIndex) and e.index.terms):
            return False
        if isinstance(e, (Load, Gather)) and (e.buffer.kind not in COMMON or e.index.terms):
            return False
    return True


# Ops that read each element once, or decide for themselves; and ops that read elements more than once, or anywhere.
READS_ONCE = {*"cat stack mm addmm mv bmm dot index_add linalg_cholesky_ex linalg_solve_triangular".split()}
REREADS = {"gather", "linalg_cross", "sort", "topk"}


def dense_axes_like(shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Axes for an array without elements."""
    return tuple(tuple(range(n)) for n in shape)


def promote(args: Sequence[Value], arrays: Sequence[Array]) -> str:
    """The dtype of an arithmetic result: tensors count before Python numbers of the same kind."""
    tensors = [a.dtype for x, a in zip(args, arrays, strict=True) if isinstance(x, (View, Lazy, torch.Tensor))]
    best = max(tensors, key=ORDER.__getitem__) if tensors else FLOAT32
    if best in (BOOL, INT) and any(isinstance(x, float) for x in args):
        return FLOAT32
    if best == BOOL and any(isinstance(x, int) and not isinstance(x, bool) for x in args):
        return INT
    return best


def cast(e: Expr, dtype: str) -> Expr:
    """`e` as `dtype`."""
    if e.dtype == dtype:
        return e
    if isinstance(e, Number):
        return number(e.value, dtype)
    return Call("cast", (e,), dtype)


def call(op: str, *args: Expr, dtype: str) -> Expr:
    """`op(args)`, simplified where the arguments say so."""
    zero = [isinstance(a, Number) and a.value == 0 for a in args]
    one = [isinstance(a, Number) and a.value == 1 and a.dtype != BOOL for a in args]
    if op == "mul" and any(one):
        return args[1] if one[0] else args[0]
    if op == "add" and any(zero):
        return args[1] if zero[0] else args[0]
    if op == "sub" and zero[1]:
        return args[0]
    if op == "div" and one[1]:
        return args[0]
    return Call(op, tuple(args), dtype)


def lower(
    module: GraphModule,
    vals: Sequence[torch.Tensor],
    shared: Sequence[bool],
    constants: dict[int, torch.Tensor],
    elements: bool = False,
    exact: bool = False,
    inline: bool = True,
) -> tuple[Program, list[int | torch.Tensor | None], dict[Node, Any]]:
    """The loop program of a one-world graph, and where its outputs come from.

    That is the position of an input that is passed through, a constant, or None where the program writes it.

    Inputs that nothing reads are left out of the program.

    vals: shapes and dtypes of the inputs; shared: which inputs all worlds have in common; constants: values of the
    inputs that are baked in; elements: what will be computed side by side, elements of a world or worlds; exact,
    inline: see `Lowering`. The last result is what each operation came to.
    """
    tells_apart = any(shared) and not all(shared)
    low = Lowering(uniform=tells_apart, elements=elements, exact=exact, inline=inline)
    inputs: list[Value] = []
    buffers = []
    for k, (val, common) in enumerate(zip(vals, shared, strict=True)):
        if k in constants:
            inputs.append(on_cpu(constants[k]))
            continue
        buffer = Buffer(val.numel(), DTYPES[val.dtype], SHARED if common else INPUT, position=k)
        buffers.append(buffer)
        inputs.append(dense(buffer, val.shape))
    outputs: list[Buffer] = []
    sources: list[int | torch.Tensor | None] = []
    results = next(n for n in module.graph.nodes if n.op == "output").args[0]
    for k, (x, node) in enumerate(zip(low.graph(module, inputs), results, strict=True)):
        same = next((i for i, given in enumerate(inputs) if given is x and i not in constants), None)
        sources.append(x if isinstance(x, torch.Tensor) else same)
        if sources[-1] is not None:
            continue
        low.origin = origin_of(node) if isinstance(node, Node) else None
        a = low.array(x)
        buffer = Buffer(numel(a.shape), a.dtype, OUTPUT, position=k)
        low.store(a, dense(buffer, a.shape))
        outputs.append(buffer)
    uniform = tuple(low.uniform or ())
    read = touched_by([*uniform, *low.block])
    constants_read = tuple(b for b in low.constants.values() if b in read)
    program = Program(tuple(b for b in buffers if b in read), tuple(outputs), constants_read, uniform, tuple(low.block))
    return program, sources, low.values
