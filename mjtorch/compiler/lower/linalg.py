"""Rules for small dense factorisations and triangular systems: true loops, never unrolled."""

from __future__ import annotations

from typing import Any

import numpy as np
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
from mjtorch.compiler.lower.lowering import Lowering, call, rule
from mjtorch.compiler.lower.products import BLOCK, has_pattern
from mjtorch.compiler.lower.shape import transposed
from mjtorch.compiler.lower.sums import MANY_ROWS, accumulate, may_skip, nonzero, some, zero
from mjtorch.compiler.lower.values import Array, Lazy, Value, View, broadcast


@rule("linalg_cholesky_ex")
def _cholesky(low: Lowering, node: Node, x: Value, *, upper: bool = False, **_: Any) -> tuple[Array, View]:
    """Row by row, in blocks of columns: each element needs a dot product of what is done of two rows."""
    a = low.array(x)
    a = transposed(low, a) if upper else a
    if low.elements:
        out, info = elements.cholesky(low, a)
        return transposed(low, out) if upper else out, info
    if has_pattern(low, a.shape[-1]):
        out, info = patterns.cholesky(low, a)
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


def triangular(low: Lowering, a: View, b: Array, upper: bool, unit: bool = False) -> Array:
    """Solve `A X = B` for stacks of triangular matrices `A (..., n, n)` and columns `B (..., n, k)`.

    Columns that are zero in all worlds side by side stay so, where there are many: so inactive constraints cost
    nothing. (A zero that meets an infinity or NaN of `A` then gives 0, not NaN.) Each column lies in one piece.
    """
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])
    n, columns, dtype = shape[-2], shape[-1], a.dtype
    if isinstance(b, Lazy) and b.cost > 0 and columns >= MANY_ROWS:
        b = low.stored(b)
    if low.elements:
        return elements.triangular(low, a, b, upper, unit)
    out = low.alloc((*shape[:-2], columns, n), dtype)
    if has_pattern(low, n) and may_skip(low, columns):
        patterns.triangular(low, a, b, out, upper, unit)
        return transposed(low, out)

    def one(batch: list[Index]) -> None:
        def entry(i: Index, j: Index) -> Expr:
            return broadcast(a, (*shape[:-2], n, n), [*batch, i, j])

        def given(i: Index, c: Index) -> Expr:
            return broadcast(b, shape, [*batch, i, c])

        def column(c: Index) -> None:
            def row(step: Index) -> None:
                i = step if not upper else Index(n - 1) + step * -1
                start, stop = (Index(), i) if not upper else (i + 1, Index(n))

                def minus(k: Index) -> Expr:
                    return call("mul", entry(i, k), Load(out.buffer, out.address([*batch, c, k])), dtype=dtype)

                rest = accumulate(low, dtype, stop, minus, start=start, first=given(i, c), op="sub")
                value = rest if unit else Call("div", (rest, entry(i, i)), dtype)
                low.emit(Store(out.buffer, out.address([*batch, c, i]), value))

            low.loop(n, row)

        if not may_skip(low, columns):
            low.loop(columns, column)
            return
        low.store(low.array(0.0), View(out.buffer, out.address([*batch, Index(), Index()]), out.axes[-2:]))
        which, count = low.compact(columns, lambda c: some(low, n, lambda i: nonzero(given(i, c))))
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
