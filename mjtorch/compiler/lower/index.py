"""Rules for gathers and scatters, by indices that are constant or that each world has for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from mjtorch.compiler.ir.nodes import BOOL, INT, Call, Expr, Index, Load, Number, lookup, step_of
from mjtorch.compiler.lower.elementwise import as_dtype, choose, op_name, result_dtype
from mjtorch.compiler.lower.lowering import MAX_INLINE, Lowering, call, rule
from mjtorch.compiler.lower.reduce import least
from mjtorch.compiler.lower.shape import take_axes, whole
from mjtorch.compiler.lower.sums import accumulate
from mjtorch.compiler.lower.values import Array, Lazy, NoRule, Value, View, broadcast, flat, load, number, numel, store

# Elements of a row from which on it is computed where it is added, if it is.
LONG_ROW = 16


def _is_constant(indices: Sequence[Value | None]) -> bool:
    return not any(isinstance(i, (View, Lazy)) for i in indices)


def _constant_offsets(x: View, indices: Sequence[torch.Tensor | None]) -> np.ndarray:
    """Addresses of `x[indices]`: numpy's own indexing of the array of all addresses."""
    return x.offsets()[_key(indices)]


def _key(indices: Sequence[torch.Tensor | None]) -> tuple:
    """Constant indices as numpy takes them."""
    return tuple(slice(None) if i is None else i.cpu().numpy() for i in indices)


def wrap(e: Expr, n: int, signed: bool) -> Expr:
    """An index into an axis of size `n`. What is out of range, an error in eager mode, is clamped.

    signed: -1 means the last element
    """
    if isinstance(e, Number):
        return Number(e.value % n, INT)
    if signed:
        negative = Call("lt", (e, Number(0, INT)), BOOL)
        e = Call("where", (negative, call("add", e, Number(n, INT), dtype=INT), e), INT)
    return Call("min", (Call("max", (e, Number(0, INT)), INT), Number(n - 1, INT)), INT)


def dynamic_offset(
    low: Lowering, x: View, axes: Sequence[int], entries: Sequence[Expr], *, signed: bool = False
) -> tuple[Index, Expr | None]:
    """Where the elements of `x` at `entries` along `axes` start: a fixed part and, if any, one of each world's own."""
    base, total = Index(), None
    for d, e in zip(axes, entries, strict=True):
        axis = x.axes[d]
        step = step_of(axis)
        if isinstance(e, Load) and e.buffer.constant is not None:
            base = base + lookup([axis[wrapped(int(k), len(axis), signed)] for k in e.buffer.constant], e.index)
            continue
        if step is None:
            table = low.constant(torch.tensor(axis))
            term: Expr = load(table.buffer, Index(), wrap(e, len(axis), signed))
        else:
            base = base + axis[0]
            term = call("mul", wrap(e, len(axis), signed), Number(step, INT), dtype=INT)
        total = term if total is None else call("add", total, term, dtype=INT)
    return base, total


def wrapped(k: int, n: int, signed: bool) -> int:
    """`wrap` of a number that is known."""
    return min(max(k + n if signed and k < 0 else k, 0), n - 1)


@rule("index")
def _index(low: Lowering, node: Node, x: Value, indices: Sequence[Value | None]) -> Array:
    return _indexed(low, x, indices, signed=True)


def _indexed(low: Lowering, x: Value, indices: Sequence[Value | None], *, signed: bool) -> Array:
    if _is_constant(indices):
        if isinstance(x, Lazy) and x.offsets is not None:
            # Elements of elements: where these lie is known as well.
            (source,) = x.args
            assert isinstance(source, View)
            return low.gathered(source, x.offsets[_key(indices)])
        v = low.stored(x) if not _gathers_one_axis(x, indices) else low.array(x)
        if isinstance(v, Lazy):
            d = next(k for k, i in enumerate(indices) if i is not None)
            entries = indices[d]
            assert isinstance(entries, torch.Tensor)
            axes = [whole(v, k) for k in range(len(v.shape))]
            axes[d] = (d, [int(e) % v.shape[d] for e in entries])
            return take_axes(low, v, axes)
        return low.gathered(v, _constant_offsets(v, indices))
    v = low.stored(x)
    where = [d for d, i in enumerate(indices) if i is not None]
    picks = [as_dtype(low, indices[d], INT) for d in where]
    if any(_is_mask(low, indices[d]) for d in where):
        raise NoRule("an index by a mask, whose result has no fixed shape: use torch.where")
    block = tuple(np.broadcast_shapes(*(p.shape for p in picks)))
    adjacent = where == list(range(where[0], where[0] + len(where)))
    front = where[0] if adjacent else 0
    rest = [d for d in range(len(v.shape)) if d not in where]
    shape = tuple(v.shape[d] for d in rest[:front]) + block + tuple(v.shape[d] for d in rest[front:])

    def place(own: Sequence[Index]) -> tuple[Index, Expr | None]:
        return dynamic_offset(low, v, where, [broadcast(p, block, own) for p in picks], signed=signed)

    # Once for all elements of the axes that are not indexed.
    offsets = None
    if 0 not in block and place([Index()] * len(block))[1] is not None:
        offsets = low.store(Lazy(block, INT, lambda own: place(own)[1] or Number(0, INT), MAX_INLINE))

    def at(index: Sequence[Index]) -> Expr:
        own = index[front : front + len(block)]
        address = v.base + place(own)[0]
        for d, i in zip(rest, [*index[:front], *index[front + len(block) :]], strict=True):
            address = address + lookup(v.axes[d], i)
        return load(v.buffer, address, None if offsets is None else offsets.at(own))

    return Lazy(shape, v.dtype, at, 3)


def _is_mask(low: Lowering, x: Any) -> bool:
    return (x.dtype == torch.bool) if isinstance(x, torch.Tensor) else x.dtype == BOOL


def _gathers_one_axis(x: Value, indices: Sequence[Value | None]) -> bool:
    used = [i for i in indices if i is not None]
    if not (isinstance(x, Lazy) and x.cost <= 1 and len(used) == 1 and isinstance(used[0], torch.Tensor)):
        return False
    return used[0].dim() == 1 and used[0].dtype != torch.bool


@rule("index_select")
def _index_select(low: Lowering, node: Node, x: Value, dim: int, index: Value) -> Array:
    rank = len(low.array(x).shape)
    return _indexed(low, x, [index if d == dim % rank else None for d in range(rank)], signed=False)


@rule("gather")
def _gather(low: Lowering, node: Node, x: Value, dim: int, index: Value, **_: Any) -> Array:
    v = low.stored(x)
    dim %= len(v.shape)
    pick = as_dtype(low, index, INT)

    def at(i: Sequence[Index]) -> Expr:
        base, offset = dynamic_offset(low, v, [dim], [pick.at(i)])
        own = View(v.buffer, v.base, v.axes[:dim] + v.axes[dim + 1 :])
        return load(v.buffer, own.address([*i[:dim], *i[dim + 1 :]]) + base, offset)

    return Lazy(pick.shape, v.dtype, at, 3)


@rule("index_put", "_unsafe_index_put")
def _index_put(
    low: Lowering, node: Node, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> View:
    running = None
    if node in low.in_place:
        out, running = low.in_place[node][0]
    elif _is_passed_on(low, node, x):
        out = x
    else:
        out = low.store(x, low.alloc(low.array(x).shape, result_dtype(node)))
    source = as_dtype(low, values, out.dtype)
    if running is not None:
        source = _masked(low, running, source)
    op = ("or" if out.dtype == BOOL else "add") if accumulate else None
    adds = _added(low, source) if op == "add" and not low.elements else None
    if _is_constant(indices):
        _write_table(low, out, _constant_offsets(out, indices), source, op, adds)
        return out
    where = [d for d, i in enumerate(indices) if i is not None]
    picks = [as_dtype(low, indices[d], INT) for d in where]
    block = tuple(np.broadcast_shapes(*(p.shape for p in picks)))
    rest = [d for d in range(len(out.shape)) if d not in where]
    front = where[0] if where == list(range(where[0], where[0] + len(where))) else 0
    shape = tuple(out.shape[d] for d in rest[:front]) + block + tuple(out.shape[d] for d in rest[front:])
    chosen = _chosen(shape, adds)
    by_row = adds is not None and chosen >= front + len(block) and numel(shape[chosen:]) >= LONG_ROW
    if not by_row:
        source, *picks = (low.stored(x) if isinstance(x, Lazy) and x.cost else x for x in (source, *picks))

    def offset_of(index: list[Index]) -> tuple[Index, Expr | None]:
        entries = [broadcast(p, block, index[front : front + len(block)]) for p in picks]
        return dynamic_offset(low, out, where, entries, signed=True)

    def put(index: list[Index], base: Index, offset: Expr | None, value: Expr) -> None:
        keep = View(out.buffer, out.base, tuple(out.axes[d] for d in rest))
        address = keep.address([*index[:front], *index[front + len(block) :]]) + base
        _put(low, out, address, offset, value, op)

    def put_one(index: list[Index]) -> None:
        put(index, *offset_of(index), broadcast(source, shape, index))

    def put_row(index: list[Index]) -> None:
        """All elements at one offset, which are computed before any of them is added."""
        inner = shape[len(index) :]
        base, offset = offset_of(index)
        at = None if offset is None else low.local(INT, offset)
        row = low.store(Lazy(inner, out.dtype, lambda i: broadcast(source, shape, [*index, *i]), MAX_INLINE))
        low.nest(inner, lambda i: put([*index, *i], base, at, row.at(i)))

    _put_all(low, shape, put_one, adds, put_row if by_row else None)
    return out


def _chosen(shape: tuple[int, ...], adds: View | None) -> int:
    """How many axes of `shape` tell whether something is added; all, where that is not said."""
    if adds is None:
        return len(shape)
    sizes = (1,) * (len(shape) - len(adds.shape)) + adds.shape
    return max((d + 1 for d, n in enumerate(sizes) if n > 1), default=0)


def _put_all(
    low: Lowering,
    shape: tuple[int, ...],
    put: Callable[[list[Index]], None],
    adds: View | None,
    put_row: Callable[[list[Index]], None] | None = None,
) -> None:
    """`put` all elements of `shape`, or rows of it; those alone that some world adds, where `adds` says which."""
    chosen = _chosen(shape, adds)

    def put_if_any(index: list[Index]) -> None:
        assert adds is not None
        inner = shape[chosen:]
        flag = broadcast(adds, shape, [*index, *[Index()] * len(inner)])
        if put_row is not None:
            low.choose(flag, lambda: low.group(lambda: put_row(index)), lambda: None)
        else:
            low.choose(flag, lambda: low.nest(inner, lambda i: put([*index, *i])), lambda: None)

    low.nest(shape[:chosen], put if adds is None else put_if_any)


def _is_passed_on(low: Lowering, node: Node, x: Value) -> bool:
    """Whether `x` is what an op of the same kind made for this one alone, so that it can be changed in place."""
    before = node.args[0]
    if not low.inline or not isinstance(x, View) or not isinstance(before, Node) or before.op != "call_function":
        return False
    return op_name(before) == op_name(node) == "index_add" and len(before.users) == 1 and x.dtype == result_dtype(node)


def _added(low: Lowering, source: Array) -> View | None:
    """Where what is added may not be zero, if it says so: what no world adds need not be added."""
    return low.stored(source.args[0]) if isinstance(source, Lazy) and _is_zero_elsewhere(source) else None


def _is_zero_elsewhere(source: Lazy) -> bool:
    """Whether this is some array where a flag says so, and else zero."""
    if source.op != "where" or source.args[0].dtype != BOOL:
        return False
    rest = source.args[2]
    return isinstance(rest, Lazy) and not rest.cost and rest.at([Index()] * len(rest.shape)) == number(0, rest.dtype)


def _masked(low: Lowering, running: View, source: Array) -> Lazy:
    """What is added, of the worlds that run alone."""
    if isinstance(source, Lazy) and _is_zero_elsewhere(source):
        flag, added, _ = source.args
        return choose(low, low.elementwise("and", running, flag, dtype=BOOL), added, 0, source.dtype)
    return choose(low, running, source, 0, source.dtype)


def _put(low: Lowering, out: View, address: Index, offset: Expr | None, value: Expr, op: str | None) -> None:
    """`out = value` at an address, or `out = op(out, value)`."""
    if op is not None:
        value = call(op, load(out.buffer, address, offset), value, dtype=out.dtype)
    low.emit(store(out.buffer, address, value, offset))


def _write_table(
    low: Lowering, out: View, table: np.ndarray, source: Array, op: str | None, adds: View | None = None
) -> None:
    entries = table.reshape(-1)
    if low.elements and op == "add" and np.bincount(entries, minlength=1).max() > 1:
        _add_up(low, out, entries, lambda k: broadcast(source, table.shape, k), table.shape)
        return

    def write(index: list[Index]) -> None:
        address = out.base + lookup(entries, flat(table.shape, index))
        _put(low, out, address, None, broadcast(source, table.shape, index), op)

    if table.size:
        _put_all(low, table.shape, write, adds)


def _add_up(
    low: Lowering, out: View, entries: np.ndarray, source: Callable[[list[Index]], Expr], shape: tuple[int, ...]
) -> None:
    """What `_write_table` adds, address by address: so lanes that share out the addresses do not wait for each other.

    In the same order at each address.
    """
    address, place = np.unique(entries, return_inverse=True)
    order = np.argsort(place, kind="stable")
    count = np.bincount(place)
    end = np.cumsum(count)
    where = np.unravel_index(order, shape)

    def add(index: list[Index]) -> None:
        to = out.base + lookup(address.tolist(), index[0])
        first, last = (lookup(x.tolist(), index[0]) for x in (end - count, end))
        total = accumulate(
            low,
            out.dtype,
            last,
            lambda p: source([lookup(axis.tolist(), p) for axis in where]),
            start=first,
            first=load(out.buffer, to, None),
        )
        low.emit(store(out.buffer, to, total, None))

    low.nest((len(address),), add)


@rule("index_add")
def _index_add(low: Lowering, node: Node, x: Value, dim: int, index: Value, source: Value, *, alpha: float = 1) -> View:
    if alpha != 1:
        source = low.elementwise("mul", source, alpha)
    rank = len(low.array(x).shape)
    return _index_put(low, node, x, [index if d == dim % rank else None for d in range(rank)], source, True)


@rule("index_copy")
def _index_copy(low: Lowering, node: Node, x: Value, dim: int, index: Value, source: Value) -> View:
    rank = len(low.array(x).shape)
    return _index_put(low, node, x, [index if d == dim % rank else None for d in range(rank)], source)


@rule("scatter", "scatter_add")
def _scatter(low: Lowering, node: Node, x: Value, dim: int, index: Value, source: Value, *, reduce: str = "") -> View:
    add = {"": op_name(node) == "scatter_add", "add": True, "multiply": False}[reduce]
    return _scattered(low, node, x, dim, index, source, "sum" if add else "prod" if reduce else None)


@rule("scatter_reduce")
def _scatter_reduce(
    low: Lowering,
    node: Node,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> View:
    if reduce == "mean":
        raise NoRule(f"{node.target} by the mean")
    if not include_self:
        dtype = result_dtype(node)
        none = {"sum": 0, "prod": 1}.get(reduce, least(dtype, reduce[1:]).value)
        x = _scattered(low, node, x, dim, index, low.array(none), None)
    return _scattered(low, node, x, dim, index, source, reduce)


def _scattered(low: Lowering, node: Node, x: Value, dim: int, index: Value, source: Value, reduce: str | None) -> View:
    """`x` with elements of `source` written to, or reduced with, where `index` says along `dim`."""
    running = None
    if node in low.in_place:
        out, running = low.in_place[node][0]
    else:
        out = low.store(x, low.alloc(low.array(x).shape, result_dtype(node)))
    pick, values = as_dtype(low, index, INT), as_dtype(low, source, out.dtype)
    if out.dtype == BOOL:
        op = {None: None, "sum": "or", "amax": "or", "prod": "and", "amin": "and"}[reduce]
    else:
        op = {None: None, "sum": "add", "amax": "max", "prod": "mul", "amin": "min"}[reduce]
    if not out.shape:
        return low.store(values, out) if op is None else low.store(low.elementwise(op, out, values))
    dim %= len(out.shape)
    keep = View(out.buffer, out.base, out.axes[:dim] + out.axes[dim + 1 :])

    def write(i: list[Index]) -> None:
        base, offset = dynamic_offset(low, out, [dim], [pick.at(i)])
        address = keep.address([*i[:dim], *i[dim + 1 :]]) + base
        value = values.at(i if values.shape else [])
        if running is not None:
            old = load(out.buffer, address, offset)
            new = value if op is None else call(op, old, value, dtype=out.dtype)
            _put(low, out, address, offset, Call("where", (running.at([]), new, old), out.dtype), None)
        elif op == "add" and isinstance(value, Call) and value.op == "where" and value.args[2] == number(0, out.dtype):
            # Most of what is masked adds nothing.
            low.choose(value.args[0], lambda: _put(low, out, address, offset, value, op), lambda: None)
        else:
            _put(low, out, address, offset, value, op)

    if numel(pick.shape):
        low.nest(pick.shape, write)
    return out
