"""Rules for views and for ops that put arrays together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from mjtorch.compiler.ir.nodes import BOOL, Call, Expr, FromIndex, Index, Number, lookup
from mjtorch.compiler.lower.elementwise import choose, op_name, result_dtype
from mjtorch.compiler.lower.lowering import RULES, Lowering, rule
from mjtorch.compiler.lower.values import CAST, Array, Axis, Lazy, NoRule, Value, View, flat, numel


def take_axes(low: Lowering, x: Array, axes: Sequence[tuple[int, Sequence[int]] | None]) -> Array:
    """A view whose axis d runs over entries of an axis of `x`: `axes[d] = (axis of x, its entries)`, None for size 1.

    Axes of `x` that are not named must be of size 1 or be fixed by `fixed` beforehand.
    """
    shape = tuple(1 if a is None else len(a[1]) for a in axes)
    if isinstance(x, View):
        named = {a[0] for a in axes if a is not None}
        base = x.base
        for k, axis in enumerate(x.axes):
            if k not in named:
                base = base + axis[0]
        new = tuple((0,) if a is None else _entries(x.axes[a[0]], a[1]) for a in axes)
        return View(x.buffer, base, new)

    def to(index: Sequence[Index]) -> list[Index]:
        own = [Index()] * len(x.shape)
        for a, i in zip(axes, index, strict=True):
            if a is not None:
                own[a[0]] = lookup(a[1], i)
        return own

    taken = low.remap(x, shape, to)
    if x.op == CAST:
        return dataclasses.replace(taken, op=CAST, args=(take_axes(low, x.args[0], axes),))
    return taken


def _entries(axis: Axis, entries: Sequence[int]) -> Axis:
    """Those of an axis. Of a large table's axis nothing is copied in vain."""
    if isinstance(entries, range) and entries == range(len(axis)):
        return axis
    return tuple([axis[e] for e in entries])


def fix(low: Lowering, x: Array, dim: int, entry: int) -> Array:
    """`x` without axis `dim`, at `entry`."""
    if isinstance(x, View):
        return View(x.buffer, x.base + x.axes[dim][entry], x.axes[:dim] + x.axes[dim + 1 :])
    shape = x.shape[:dim] + x.shape[dim + 1 :]
    return low.remap(x, shape, lambda i: [*i[:dim], Index(entry), *i[dim:]])


def whole(x: Array, dim: int) -> tuple[int, range]:
    """All entries of an axis, for `take_axes`."""
    return dim, range(x.shape[dim])


@rule("select")
def _select(low: Lowering, node: Node, x: Value, dim: int, entry: int) -> Array:
    a = low.array(x)
    dim %= len(a.shape)
    return fix(low, a, dim, entry % a.shape[dim])


@rule("slice")
def _slice(
    low: Lowering,
    node: Node,
    x: Value,
    dim: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int = 1,
) -> Array:
    a = low.array(x)
    dim %= len(a.shape)
    axes = [whole(a, d) for d in range(len(a.shape))]
    axes[dim] = (dim, range(a.shape[dim])[slice(start, stop, step)])
    return take_axes(low, a, axes)


@rule("flip")
def _flip(low: Lowering, node: Node, x: Value, dims: Sequence[int]) -> Array:
    a = low.array(x)
    axes = [whole(a, d) for d in range(len(a.shape))]
    for d in dims:
        axes[d % len(a.shape)] = (d % len(a.shape), range(a.shape[d])[::-1])
    return take_axes(low, a, axes)


@rule("roll")
def _roll(low: Lowering, node: Node, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    a = low.array(x)
    if not dims:
        flat_one = reshape(low, a, (numel(a.shape),))
        return reshape(low, _roll(low, node, flat_one, shifts, (0,)), a.shape)
    axes = [whole(a, d) for d in range(len(a.shape))]
    for shift, d in zip(shifts, dims, strict=True):
        axis, entries = axes[d % len(a.shape)]
        cut = -shift % max(len(entries), 1)
        axes[axis] = axis, (*entries[cut:], *entries[:cut])
    return take_axes(low, a, axes)


@rule("unsqueeze", "unsqueeze_")
def _unsqueeze(low: Lowering, node: Node, x: Value, dim: int) -> Array:
    a = low.array(x)
    axes: list = [whole(a, d) for d in range(len(a.shape))]
    axes.insert(dim % (len(a.shape) + 1), None)
    return take_axes(low, a, axes)


@rule("squeeze", "squeeze_")
def _squeeze(low: Lowering, node: Node, x: Value, dims: Any = None) -> Array:
    a = low.array(x)
    which = range(len(a.shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {d % len(a.shape) for d in which if a.shape[d] == 1}
    for d in sorted(gone, reverse=True):
        a = fix(low, a, d, 0)
    return a


@rule("expand")
def _expand(low: Lowering, node: Node, x: Value, shape: Sequence[int], **_: Any) -> Array:
    a = low.array(x)
    new = len(shape) - len(a.shape)
    axes: list = []
    for d, n in enumerate(shape):
        if d < new:
            axes.append(None)
        else:
            own = a.shape[d - new]
            axes.append((d - new, range(own) if n in (-1, own) else (0,) * n))
    if any(shape[d] != 1 for d in range(new)):
        a = take_axes(low, a, axes)
        return _repeat_leading(low, a, tuple(shape[:new]))
    return take_axes(low, a, axes)


@rule("broadcast_in_dim")
def _broadcast_in_dim(low: Lowering, node: Node, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Array:
    a = low.array(x)
    spread = reshape(low, a, tuple(a.shape[dims.index(d)] if d in dims else 1 for d in range(len(shape))))
    return _expand(low, node, spread, shape)


def _repeat_leading(low: Lowering, a: Array, sizes: tuple[int, ...]) -> Array:
    if isinstance(a, View):
        return View(a.buffer, a.base, tuple((0,) * n for n in sizes) + a.axes[len(sizes) :])
    return low.remap(a, sizes + a.shape[len(sizes) :], lambda i: [Index()] * len(sizes) + list(i[len(sizes) :]))


@rule("repeat")
def _repeat(low: Lowering, node: Node, x: Value, sizes: Sequence[int]) -> Array:
    a = low.array(x)
    new = len(sizes) - len(a.shape)
    axes: list = [None] * new + [(d, list(range(n)) * sizes[d + new]) for d, n in enumerate(a.shape)]
    return _repeat_leading(low, take_axes(low, a, axes), tuple(sizes[:new]))


@rule("permute")
def _permute(low: Lowering, node: Node, x: Value, order: Sequence[int]) -> Array:
    a = low.array(x)
    return take_axes(low, a, [whole(a, d % len(a.shape)) for d in order])


@rule("transpose", "t", "t_")
def _transpose(low: Lowering, node: Node, x: Value, p: int = 0, q: int = 1) -> Array:
    a = low.array(x)
    order = list(range(len(a.shape)))
    if len(order) > 1:
        order[p], order[q] = order[q], order[p]
    return take_axes(low, a, [whole(a, d) for d in order])


@rule("diagonal")
def _diagonal(low: Lowering, node: Node, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    return _diagonal_of(low.stored(x), offset, dim1, dim2)


@rule("view", "_unsafe_view")
def _reshape(low: Lowering, node: Node, x: Value, *_: Any) -> Array:
    return reshape(low, low.array(x), tuple(node.meta["val"].shape))


def reshape(low: Lowering, a: Array, shape: tuple[int, ...]) -> Array:
    """The same elements, row-major, in another shape; a copy only where no address arithmetic does it."""
    if a.shape == shape:
        return a
    squeezed = [(d, range(n)) for d, n in enumerate(a.shape) if n != 1]
    if [n for n in a.shape if n != 1] == [n for n in shape if n != 1]:
        rest = iter(squeezed)
        return take_axes(low, a, [None if n == 1 else next(rest) for n in shape])
    if isinstance(a, Lazy):
        if a.cost == 0 or all(n == 1 for n in shape):
            return low.remap(a, shape, lambda i: _unflatten(a.shape, flat(shape, i)))
        a = low.store(a)
    return low.gathered(a, a.offsets().reshape(shape))


def _unflatten(shape: Sequence[int], position: Index) -> list[Index]:
    out, stride = [], numel(shape)
    for n in shape:
        stride //= n
        out.append(lookup([(p // stride) % n for p in range(numel(shape))], position))
    return out


@rule("unbind")
def _unbind(low: Lowering, node: Node, x: Value, dim: int = 0) -> list[Array]:
    v = low.stored(x)
    return [fix(low, v, dim % len(v.shape), k) for k in range(v.shape[dim])]


@rule("split_with_sizes", "split")
def _split(low: Lowering, node: Node, x: Value, sizes: Any, dim: int = 0) -> list[Array]:
    v = low.stored(x)
    parts, at = [], 0
    for part in node.meta["val"]:
        n = part.shape[dim]
        axes = [whole(v, d) for d in range(len(v.shape))]
        axes[dim % len(v.shape)] = (dim % len(v.shape), range(at, at + n))
        parts.append(take_axes(low, v, axes))
        at += n
    return parts


@rule("cat")
def _cat(low: Lowering, node: Node, parts: Sequence[Value], dim: int = 0) -> View:
    val = node.meta["val"]
    out = low.alloc(val.shape, result_dtype(node))
    dim %= val.dim()
    at = 0
    for p in parts:
        a = low.array(p)
        if len(a.shape) != val.dim():
            continue  # the legacy empty tensor
        n = a.shape[dim]
        if n:
            axes = list(out.axes)
            axes[dim] = axes[dim][at : at + n]
            low.store(a, View(out.buffer, Index(), tuple(axes)))
        at += n
    return out


@rule("stack")
def _stack(low: Lowering, node: Node, parts: Sequence[Value], dim: int = 0) -> View:
    val = node.meta["val"]
    out = low.alloc(val.shape, result_dtype(node))
    for k, p in enumerate(parts):
        low.store(p, fix(low, out, dim % val.dim(), k))
    return out


@rule("slice_scatter")
def _slice_scatter(low: Lowering, node: Node, x: Value, source: Value, *where: Any, **kw: Any) -> View:
    out = low.store(x)
    low.store(source, _slice(low, node, out, *where, **kw))
    return out


@rule("select_scatter")
def _select_scatter(low: Lowering, node: Node, x: Value, source: Value, dim: int, entry: int) -> View:
    out = low.store(x)
    low.store(source, _select(low, node, out, dim, entry))
    return out


@rule("diagonal_scatter")
def _diagonal_scatter(
    low: Lowering, node: Node, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> View:
    out = low.store(x)
    low.store(source, _diagonal_of(out, offset, dim1, dim2))
    return out


@rule("slice_backward", "select_backward", "diagonal_backward")
def _into_zeros(low: Lowering, node: Node, grad: Value, shape: Sequence[int], *where: Any) -> View:
    """The gradient of a view: zero but for what the view shows."""
    out = low.store(torch.zeros(tuple(shape), dtype=node.meta["val"].dtype))
    view = {"slice_backward": _slice, "select_backward": _select, "diagonal_backward": _diagonal}[op_name(node)]
    low.store(grad, view(low, node, out, *where))
    return out


@rule("as_strided")
def _as_strided(
    low: Lowering, node: Node, x: Value, shape: Sequence[int], strides: Sequence[int], start: int | None = None
) -> Array:
    """Elements by their place in memory, which is only known of tensors that are contiguous."""
    source = node.args[0]
    memory = source.meta.get("val") if isinstance(source, Node) else None
    if memory is None or not memory.is_contiguous() or memory.storage_offset():
        raise NoRule(f"{node.target} of a view")
    v = low.stored(x)
    places = np.full((), start or 0)
    for n, stride in zip(shape, strides, strict=True):
        places = np.add.outer(places, np.arange(n) * stride)
    return low.gathered(v, v.offsets().reshape(-1)[places])


@rule("as_strided_scatter")
def _as_strided_scatter(low: Lowering, node: Node, x: Value, source: Value, *where: Any) -> View:
    out = low.store(x)
    into = _as_strided(low, node, out, *where)
    if not isinstance(into, View):
        raise NoRule(f"{node.target} of a view that is not a box")
    low.store(source, into)
    return out


@rule("unfold")
def _unfold(low: Lowering, node: Node, x: Value, dim: int, size: int, step: int) -> Array:
    """Windows of `size` elements along an axis, as a new last axis."""
    v = low.stored(x)
    if not v.shape:
        return _unsqueeze(low, node, v, 0)
    windows = np.lib.stride_tricks.sliding_window_view(v.offsets(), size, axis=dim)
    return low.gathered(v, windows[(slice(None),) * (dim % len(v.shape)) + (slice(None, None, step),)])


@rule("tril", "triu")
def _tril(low: Lowering, node: Node, x: Value, k: int = 0) -> Lazy:
    a = low.array(x)
    keep = getattr(torch, op_name(node))(torch.ones(a.shape, dtype=torch.bool), k)
    return choose(low, keep, a, 0, a.dtype)


@rule("diag_embed")
def _diag_embed(low: Lowering, node: Node, x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    val = node.meta["val"]
    first, second = dim1 % val.dim(), dim2 % val.dim()
    if not offset:
        diagonal = low.array(x)
        if isinstance(diagonal, Lazy) and diagonal.cost > 0:
            diagonal = low.stored(diagonal)

        def element(index: Sequence[Index]) -> Expr:
            own = [i for d, i in enumerate(index) if d not in (first, second)]
            here = Call("eq", (FromIndex(index[first]), FromIndex(index[second])), BOOL)
            value = diagonal.at([*own, index[first]])
            return Call("where", (here, value, Number(0.0, value.dtype)), value.dtype)

        return Lazy(tuple(val.shape), diagonal.dtype, element, 2)
    out = low.store(torch.zeros(node.meta["val"].shape, dtype=node.meta["val"].dtype))
    low.store(x, _diagonal_of(out, offset, dim1, dim2))
    return out


def _diagonal_of(x: View, offset: int, dim1: int, dim2: int) -> View:
    """The diagonal as a view; its axis comes last."""
    rank = len(x.shape)
    first, second = dim1 % rank, dim2 % rank
    rows, columns = x.axes[first][max(-offset, 0) :], x.axes[second][max(offset, 0) :]
    rest = tuple(axis for d, axis in enumerate(x.axes) if d not in (first, second))
    return View(x.buffer, x.base, (*rest, tuple(i + j for i, j in zip(rows, columns, strict=False))))


@rule("constant_pad_nd")
def _pad(low: Lowering, node: Node, x: Value, pad: Sequence[int], value: float = 0) -> View:
    a, shape = low.array(x), tuple(node.meta["val"].shape)
    out = low.store(torch.full(shape, value, dtype=node.meta["val"].dtype))
    axes, source = list(out.axes), [whole(a, d) for d in range(len(a.shape))]
    for k in range(len(pad) // 2):
        d, before, after = len(shape) - 1 - k, pad[2 * k], pad[2 * k + 1]
        axes[d] = axes[d][max(before, 0) : len(axes[d]) - max(after, 0)]
        source[d] = (d, range(a.shape[d])[max(-before, 0) : a.shape[d] - max(-after, 0)])
    low.store(take_axes(low, a, source), View(out.buffer, out.base, tuple(axes)))
    return out


# Functions with side effects are traced with views that are copies.
for view in (
    "alias as_strided detach diagonal expand permute select slice split split_with_sizes squeeze t transpose unbind "
    "unfold unsqueeze view"
).split():
    rule(f"{view}_copy")(RULES[view])
