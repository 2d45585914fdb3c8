"""Rules for products and for small dense factorisations: true loops, never unrolled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from mjtorch.compiler.ir.nodes import (
    BOOL,
    INT,
    Assign,
    Call,
    Expr,
    FromIndex,
    Index,
    Load,
    Local,
    Number,
    Store,
    lookup,
)
from mjtorch.compiler.lower import elements, patterns
from mjtorch.compiler.lower.elementwise import op_name
from mjtorch.compiler.lower.lowering import Lowering, call, rule
from mjtorch.compiler.lower.shape import fix, take_axes, whole
from mjtorch.compiler.lower.sparse import sparse_rows, sums_of
from mjtorch.compiler.lower.sums import (
    MANY_ROWS,
    accumulate,
    chains_of,
    few_sums,
    inner_product,
    may_skip,
    nonzero,
    nonzero_rows,
    some_nonzero,
    zero,
)
from mjtorch.compiler.lower.values import CAST, Array, Lazy, Value, View, broadcast, is_partial

# Products of so many terms, a spatial vector's, may be computed where they are asked for.
SHORT = 6


def product(
    low: Lowering, x: Value, y: Value, shape: Sequence[int], inner: int, left: Callable, right: Callable
) -> View:
    """`out[i] = sum over k of x[left(i, k)] * y[right(i, k)]`, where few elements are read more than once."""
    a, b = low.array(x), low.array(y)
    out = low.alloc(shape, a.dtype)

    def element(index: list[Index]) -> None:
        def term(k: Index) -> Expr:
            return call("mul", a.at(left(index, k)), b.at(right(index, k)), dtype=a.dtype)

        low.emit(Store(out.buffer, out.address(index), accumulate(low, a.dtype, inner, term)))

    low.nest(shape, element)
    return out


def matrix_product(low: Lowering, a: Array, b: Array) -> View:
    """`a @ b`, in blocks of columns.

    Rows of `b`, or of `a`, that are zero in all worlds side by side are left out, where there are many: so inactive
    constraints cost nothing. (A zero that meets an infinity or NaN in such a row then gives 0, not NaN.)
    """
    (m, inner), n, dtype = a.shape, b.shape[1], a.dtype
    if m == 1 and n <= BLOCK and isinstance(b, Lazy) and b.cost > 0 and may_skip(low, inner) and not low.elements:
        return few_sums(low, low.stored(a) if n > 1 and isinstance(a, Lazy) and a.cost > 0 else a, b)
    a, b = (low.stored(x) if isinstance(x, Lazy) and x.cost > 0 and n > 1 else x for x in (a, b))
    if isinstance(b, Lazy) and b.cost > 0 and m > 1:
        b = low.stored(b)
    if low.elements:
        return elements.matrix_product(low, a, b)
    out = low.alloc((m, n), dtype)

    def write() -> None:
        rows, count = _nonzero_rows(low, a, b) if may_skip(low, inner) and n > 1 else (lambda k: k, Index(inner))

        def row(i: Index) -> None:
            _columns(low, out, i, Index(n), count, lambda k: a.at([i, rows(k)]), lambda k, j: b.at([rows(k), j]))

        def row_if_any(i: Index) -> None:
            empty = View(out.buffer, out.address([i, Index()]), out.axes[1:])
            flag = some_nonzero(low, inner, lambda k: a.at([i, k]))
            low.choose(flag, lambda: row(i), lambda: low.store(0.0, empty))

        low.loop(m, row_if_any if may_skip(low, m) and n >= WIDE and inner < MANY_ROWS else row)

    low.group(write)
    return out


# Columns that are computed at a time: each element of the left matrix is loaded once for all of them.
BLOCK = 4
# What takes no more operations an element, such as a choice by a mask, is computed twice rather than stored.
CHEAP = 3
# A row of so many sums of few terms is left out if they are zero.
WIDE = 8


def _nonzero_rows(low: Lowering, a: Array, b: Array) -> tuple[Callable[[Index], Index], Index]:
    if a.shape[0] == 1:
        return low.compact(a.shape[1], lambda k: nonzero(a.at([Index(), k])))

    return low.compact(b.shape[0], lambda k: some_nonzero(low, b.shape[1], lambda j: b.at([k, j])))


def _columns(
    low: Lowering,
    out: View,
    i: Index,
    n: Index,
    inner: Index,
    left: Callable[[Index], Expr],
    right: Callable[[Index, Index], Expr],
) -> None:
    """`out[i, j] = sum over k < inner of left(k) * right(k, j)` for `j < n`, a constant."""
    dtype, size = out.dtype, n.base

    def block(j: Index, width: int) -> None:
        totals = [low.local(dtype, zero(dtype)) for _ in range(width)]

        def add(k: Index) -> None:
            x = low.local(dtype, left(k)) if width > 1 else left(k)
            for t, total in enumerate(totals):
                low.emit(Assign(total, call("add", total, call("mul", x, right(k, j + t), dtype=dtype), dtype=dtype)))

        low.loop(inner, add)
        for t, total in enumerate(totals):
            low.emit(Store(out.buffer, out.address([i, j + t]), total))

    low.loop(size // BLOCK, lambda q: block(q * BLOCK, BLOCK))
    for j in range(size - size % BLOCK, size):
        low.group(lambda j=j: block(Index(j), 1))


def gram_weight(x: Value, y: Value) -> Array | None:
    """The `w` for which `x @ y` is `J.T @ (w[:, None] * J)`, if there is one."""
    if not (isinstance(y, Lazy) and y.op == "mul"):
        return None
    for matrix, weight in (y.args, y.args[::-1]):
        if is_transpose(matrix, x) and weight.shape == (matrix.shape[0], 1):
            return weight
    return None


def is_transpose(x: Value, y: Value) -> bool:
    """Whether both are the same matrix in memory, one of them transposed, or casts of such to the same type."""
    if isinstance(x, Lazy) and isinstance(y, Lazy) and x.op == y.op == CAST and x.dtype == y.dtype:
        return is_transpose(*x.args, *y.args)
    both = isinstance(x, View) and isinstance(y, View)
    return both and x.buffer is y.buffer and x.base == y.base and x.axes == y.axes[::-1]


def gram(low: Lowering, x: Array, weight: Array) -> View:
    """`J.T @ diag(weight) @ J`, given `x = J.T`: the lower triangle is computed, the upper copied.

    Rows whose weight is zero in all worlds side by side are left out.
    """
    n, inner, dtype = x.shape[0], x.shape[1], x.dtype
    if isinstance(weight, Lazy) and weight.cost > 0:
        weight = low.stored(weight)
    if low.elements:
        return elements.gram(low, x, weight)
    out, scaled = low.alloc((n, n), dtype), low.alloc((inner,), dtype)

    def write() -> None:
        rows, count = nonzero_rows(low, inner, lambda k: nonzero(weight.at([k, Index()])))

        def row(i: Index) -> None:
            def scale(k: Index) -> None:
                value = call("mul", weight.at([rows(k), Index()]), x.at([i, rows(k)]), dtype=dtype)
                low.emit(Store(scaled.buffer, scaled.address([k]), value))

            low.loop(count, scale)

            def block(q: Index) -> None:
                totals = [low.local(dtype, zero(dtype)) for _ in range(BLOCK)]

                def add(k: Index) -> None:
                    e = low.local(dtype, scaled.at([k]))
                    for t, total in enumerate(totals):
                        term = call("mul", e, x.at([lookup(clipped[t], q), rows(k)]), dtype=dtype)
                        low.emit(Assign(total, call("add", total, term, dtype=dtype)))

                low.loop(count, add)
                for t, total in enumerate(totals):
                    j = lookup(clipped[t], q)
                    low.emit(Store(out.buffer, out.address([i, j]), total))
                    low.emit(Store(out.buffer, out.address([j, i]), total))

            # Blocks that overlap the diagonal, or the last column, compute a few elements twice.
            low.loop(lookup([k // BLOCK + 1 for k in range(n)], i), block)

        clipped = [[min(q * BLOCK + t, n - 1) for q in range(-(-n // BLOCK))] for t in range(BLOCK)]
        low.loop(n, row)

    low.group(write)
    return out


@rule("mm")
def _mm(low: Lowering, node: Node, x: Value, y: Value) -> Array:
    shape = tuple(node.meta["val"].shape)
    a, b = low.array(x), low.array(y)
    if (sums := sums_of(low, x)) is not None:
        return sparse_rows(low, x, sums, b, low.alloc(shape, b.dtype), False)
    turned = y.T.contiguous() if isinstance(y, torch.Tensor) else y
    if (sums := sums_of(low, turned)) is not None:
        return sparse_rows(low, turned, sums, a, low.alloc(shape, a.dtype), True)
    weight = gram_weight(x, y) if a.shape[1] else None
    if weight is not None:
        if patterns.has_pattern(low, a.shape[0]):
            return patterns.gram(low, x, weight, None, patterns.half_read(low, node))
        return gram(low, x, weight)
    if a.shape[1] == 1:
        return low.elementwise("mul", x, y)
    if is_factor(low, node) and 0 < a.shape[1] <= SHORT:
        return short_products(low, a, b)
    return matrix_product(low, a, b)


def is_factor(low: Lowering, node: Node) -> bool:
    """Whether all that is done with a product is to multiply its elements by something."""
    return low.inline and not low.elements and [op_name(user) for user in node.users] == ["mul"]


def short_products(low: Lowering, a: Array, b: Array) -> Lazy:
    """`a @ b`, whose elements are computed where they are asked for, and not where a choice leaves them out."""
    a, b = (low.stored(x) if isinstance(x, Lazy) and x.cost > 0 else x for x in (a, b))
    (m, inner), n, dtype = a.shape, b.shape[1], a.dtype

    def at(index: Sequence[Index]) -> Expr:
        i, j = index
        terms = [call("mul", a.at([i, Index(k)]), b.at([Index(k), j]), dtype=dtype) for k in range(inner)]
        return functools.reduce(lambda x, y: call("add", x, y, dtype=dtype), terms)

    return Lazy((m, n), dtype, at, 2 * inner - 1)


@rule("mv")
def _mv(low: Lowering, node: Node, x: Value, y: Value) -> Array:
    shape = tuple(node.meta["val"].shape)
    if (sums := sums_of(low, x)) is not None:
        b = low.array(y)
        return sparse_rows(low, x, sums, b, low.alloc(shape, b.dtype), False)
    a, b = low.array(x), low.array(y)
    if a.shape[0] == 1:
        chains = chains_of(low, a.shape[1], a, b)
        return inner_product(
            low, a.shape[1], lambda k: a.at([Index(), k]), lambda k: b.at([k]), low.alloc(shape, b.dtype), chains
        )
    b = low.stored(b) if isinstance(b, Lazy) and b.cost > 0 else b
    if a.shape[1] > a.shape[0] and may_skip(low, a.shape[1]) and not low.elements:
        row = take_axes(low, b, [None, whole(b, 0)])
        return fix(low, matrix_product(low, row, transposed(low, a)), 0, 0)
    return product(low, a, b, shape, a.shape[1], lambda i, k: [i[0], k], lambda i, k: [k])


@rule("dot", "vdot")
def _dot(low: Lowering, node: Node, x: Value, y: Value) -> View:
    a, b = low.array(x), low.array(y)
    chains = chains_of(low, a.shape[0], a, b)
    return inner_product(low, a.shape[0], lambda k: a.at([k]), lambda k: b.at([k]), low.alloc((), a.dtype), chains)


@rule("bmm")
def _bmm(low: Lowering, node: Node, x: Value, y: Value) -> View:
    a, b = (low.stored(v) if isinstance(v := low.array(z), Lazy) and v.cost > 0 else v for z in (x, y))
    shape = tuple(node.meta["val"].shape)
    return product(low, a, b, shape, a.shape[2], lambda i, k: [i[0], i[1], k], lambda i, k: [i[0], k, i[2]])


@rule("addmm")
def _addmm(low: Lowering, node: Node, c: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Array:
    weight, first = gram_weight(x, y), low.array(c)
    shape = tuple(node.meta["val"].shape)
    # Lists of rows and columns pay sooner here than elsewhere: four rows at a time are added to what there is.
    if weight is not None and beta == alpha == 1 and shape[0] >= patterns.GROUP and patterns.may_look(low):
        half = patterns.half_read(low, node)
        if half != patterns.BOTH:  # which need not be the same in what is added
            whole = Lazy(shape, first.dtype, lambda i: broadcast(first, shape, i), 0)
            return patterns.gram(low, x, weight, whole, half)
    out = low.elementwise("mul", _mm(low, node, x, y), alpha)
    return low.elementwise("add", low.elementwise("mul", c, beta), out)


@rule("linalg_cross")
def _cross(low: Lowering, node: Node, x: Value, y: Value, *, dim: int = -1) -> Lazy:
    shape = tuple(node.meta["val"].shape)
    dim %= len(shape)
    a, b = (low.store(v) if isinstance(v := low.array(z), Lazy) and v.cost > 1 else v for z in (x, y))

    def at(index: Sequence[Index]) -> Expr:
        def element(v: Array, shift: int) -> Expr:
            own = list(index)
            own[dim] = lookup([(k + shift) % 3 for k in range(3)], index[dim])
            return broadcast(v, shape, own)

        dtype = a.dtype
        first = call("mul", element(a, 1), element(b, 2), dtype=dtype)
        return call("sub", first, call("mul", element(a, 2), element(b, 1), dtype=dtype), dtype=dtype)

    return Lazy(shape, a.dtype, at, 3)


@rule("linalg_cholesky_ex")
def _cholesky(low: Lowering, node: Node, x: Value, *, upper: bool = False, **_: Any) -> tuple[Array, View]:
    """Row by row, in blocks of columns: each element needs a dot product of what is done of two rows."""
    a = low.array(x)
    a = transposed(low, a) if upper else a
    if low.elements:
        out, info = elements.cholesky(low, a)
        return transposed(low, out) if upper else out, info
    if patterns.has_pattern(low, a.shape[-1]):
        out, info = patterns.cholesky(low, node, a, upper)
        return transposed(low, out) if upper else out, info
    n, lead, dtype = a.shape[-1], a.shape[:-2], a.dtype
    out, info = low.alloc(a.shape, dtype), low.alloc(lead, INT)
    inverse = low.alloc((n,), dtype)
    blocks = [i // BLOCK for i in range(n)]  # which lie left of the diagonal

    def one(batch: list[Index]) -> None:
        # The first minor that is not positive, counted from 1.
        failed = low.local(INT, Number(0, INT))

        def done(i: Index, j: Index) -> Expr:
            return Load(out.buffer, out.address([*batch, i, j]))

        def column(i: Index, j: Index) -> Local:
            def minus(k: Index) -> Expr:
                return call("mul", done(i, k), done(j, k), dtype=dtype)

            return accumulate(low, dtype, j, minus, first=a.at([*batch, i, j]), op="sub")

        def put(i: Index, j: Index, value: Expr) -> Local:
            scaled = low.local(dtype, call("mul", value, inverse.at([j]), dtype=dtype))
            low.emit(Store(out.buffer, out.address([*batch, i, j]), scaled))
            return scaled

        def block(i: Index, j: Index) -> None:
            totals = [low.local(dtype, a.at([*batch, i, j + c])) for c in range(BLOCK)]

            def subtract(x: Expr, k: Index, start: int) -> None:
                for c, total in list(enumerate(totals))[start:]:
                    term = call("mul", x, done(j + c, k), dtype=dtype)
                    low.emit(Assign(total, call("sub", total, term, dtype=dtype)))

            low.loop(j, lambda k: subtract(low.local(dtype, done(i, k)), k, 0))
            for c, total in enumerate(totals):
                subtract(put(i, j + c, total), j + c, c + 1)

        def row(i: Index) -> None:
            low.loop(lookup(blocks, i), lambda q: block(i, q * BLOCK))
            low.loop(i, lambda j: put(i, j, column(i, j)), start=lookup(blocks, i) * BLOCK)
            pivot = column(i, i)
            fails = Call("not", (Call("gt", (pivot, zero(dtype)), BOOL),), BOOL)
            fresh = Call("and", (fails, Call("eq", (failed, zero(INT)), BOOL)), BOOL)
            low.emit(Assign(failed, Call("where", (fresh, FromIndex(i + 1), failed), INT)))
            root = low.local(dtype, Call("sqrt", (pivot,), dtype))
            low.emit(Store(out.buffer, out.address([*batch, i, i]), root))
            low.emit(Store(inverse.buffer, inverse.address([i]), Call("div", (Number(1.0, dtype), root), dtype)))
            low.loop(n, lambda j: low.emit(Store(out.buffer, out.address([*batch, i, j]), zero(dtype))), start=i + 1)

        low.loop(n, row)
        low.emit(Store(info.buffer, info.address(batch), failed))

    low.nest(lead, one)
    return transposed(low, out) if upper else out, info


@rule("linalg_solve_triangular")
def _solve_triangular(
    low: Lowering,
    node: Node,
    x: Value,
    y: Value,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Array:
    if left:
        return triangular(low, low.stored(x), low.array(y), upper, unitriangular)
    a, b = (transposed(low, low.array(v)) for v in (x, y))
    return transposed(low, triangular(low, low.stored(a), b, not upper, unitriangular))


def transposed(low: Lowering, x: Array) -> Array:
    """The matrices of a stack, transposed."""
    order = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    return take_axes(low, x, [whole(x, d) for d in order])


def triangular(low: Lowering, a: View, b: Array, upper: bool, unit: bool = False) -> Array:
    """Solve `A X = B` for stacks of triangular matrices `A (..., n, n)` and columns `B (..., n, k)`.

    Columns that are zero in all worlds side by side stay so, where there are many: so inactive constraints cost
    nothing. (A zero that meets an infinity or NaN of `A` then gives 0, not NaN.) Those that a mask exchanges for an
    empty array are not even written. Each column lies in one piece.
    """
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])
    n, columns, dtype = shape[-2], shape[-1], a.dtype
    if isinstance(b, Lazy) and b.cost > (0 if low.elements else CHEAP) and columns >= MANY_ROWS and not is_partial(b):
        b = low.stored(b)
    if low.elements:
        return elements.triangular(low, a, b, upper, unit)
    out = low.alloc((*shape[:-2], columns, n), dtype)
    if patterns.has_pattern(low, n) and may_skip(low, columns):
        patterns.triangular(low, a, b, out, upper, unit)
        return transposed(low, out)

    def one(batch: list[Index]) -> None:
        def entry(i: Index, j: Index) -> Expr:
            return broadcast(a, (*shape[:-2], n, n), [*batch, i, j])

        def given(i: Index, c: Index) -> Expr:
            return broadcast(b, shape, [*batch, i, c])

        def row(step: Index) -> Index:
            return Index(n - 1) + step * -1 if upper else step

        def column(c: Index) -> None:
            def unknowns(step: Index, width: int) -> None:
                """The unknowns of so many steps, from those of the steps before."""
                rows = [row(step + t) for t in range(width)]
                totals = [low.local(dtype, given(i, c)) for i in rows]

                def take_out(x: Expr, k: Index, start: int = 0) -> None:
                    for i, total in list(zip(rows, totals, strict=True))[start:]:
                        term = call("mul", entry(i, k), x, dtype=dtype)
                        low.emit(Assign(total, call("sub", total, term, dtype=dtype)))

                def known(k: Index) -> None:
                    x: Expr = Load(out.buffer, out.address([*batch, c, row(k)]))
                    take_out(low.local(dtype, x) if width > 1 else x, row(k))

                low.loop(step, known)
                for t, (i, total) in enumerate(zip(rows, totals, strict=True)):
                    x = total if unit else low.local(dtype, Call("div", (total, entry(i, i)), dtype))
                    low.emit(Store(out.buffer, out.address([*batch, c, i]), x))
                    take_out(x, i, t + 1)

            blocks = n // BLOCK if n >= 2 * BLOCK else 0
            low.loop(blocks, lambda q: low.group(lambda: unknowns(q * BLOCK, BLOCK)))
            low.loop(n, lambda step: low.group(lambda: unknowns(step, 1)), start=blocks * BLOCK)

        if not may_skip(low, columns):
            low.loop(columns, column)
            return
        if not is_partial(b):
            low.store(low.array(0.0), View(out.buffer, out.address([*batch, Index(), Index()]), out.axes[-2:]))
        which, count = low.compact(columns, lambda c: some_nonzero(low, n, lambda i: given(i, c)))
        low.loop(count, lambda q: column(which(q)))

    def grouped(batch: list[Index]) -> None:
        low.group(lambda: one(batch))

    low.nest(shape[:-2], grouped)
    return transposed(low, out)


@rule("cholesky_solve")
def _cholesky_solve(low: Lowering, node: Node, b: Value, factor: Value, upper: bool = False) -> View:
    a = low.stored(factor)
    lower, transpose = (transposed(low, a), a) if upper else (a, transposed(low, a))
    half = triangular(low, low.stored(lower), low.array(b), False)
    return triangular(low, low.stored(transpose), half, True)


@rule("_linalg_check_errors")
def _check_errors(low: Lowering, node: Node, info: Value, *_: Any, **__: Any) -> None:
    """Compiled code cannot raise: what has no solution is NaN or infinite, in its own world."""
