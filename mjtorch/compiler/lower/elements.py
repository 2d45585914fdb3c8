"""Products and factorisations where elements of one world are computed side by side: many short sums at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mjtorch.compiler.ir.nodes import BOOL, INT, Assign, Call, Expr, FromIndex, Index, Load, Number, Store, lookup
from mjtorch.compiler.lower.lowering import Lowering, call
from mjtorch.compiler.lower.sums import MANY_ROWS, accumulate, may_skip, nonzero, nonzero_rows, some, zero
from mjtorch.compiler.lower.values import Array, View, broadcast


def matrix_product(low: Lowering, a: Array, b: Array) -> View:
    """`a @ b`, leaving out rows of `b`, or columns of a single row `a`, that are zero, where there are many."""
    (m, inner), n, dtype = a.shape, b.shape[1], a.dtype
    out = low.alloc((m, n), dtype)

    def flag(k: Index) -> Expr:
        if m == 1:
            return nonzero(a.at([Index(), k]))
        return some(low, n, lambda j: nonzero(b.at([k, j])))

    def write() -> None:
        rows, count = low.compact(inner, flag) if may_skip(low, inner) and n > 1 else (lambda k: k, Index(inner))

        def element(index: list[Index]) -> None:
            i, j = index

            def term(k: Index) -> Expr:
                return call("mul", a.at([i, rows(k)]), b.at([rows(k), j]), dtype=dtype)

            low.emit(Store(out.buffer, out.address(index), accumulate(low, dtype, count, term)))

        low.nest((m, n), element)

    low.group(write)
    return out


def gram(low: Lowering, x: View, weight: Array) -> View:
    """`J.T @ diag(weight) @ J`, given `x = J.T`: each element of the lower triangle by itself, then the upper."""
    n, inner, dtype = x.shape[0], x.shape[1], x.dtype
    out = low.alloc((n, n), dtype)
    pairs = [(i, j) for i in range(n) for j in range(i + 1)]

    def write() -> None:
        rows, count = nonzero_rows(low, inner, lambda k: nonzero(weight.at([k, Index()])))

        def element(t: Index) -> None:
            i, j = (lookup([p[side] for p in pairs], t) for side in (0, 1))

            def term(k: Index) -> Expr:
                scaled = call("mul", weight.at([rows(k), Index()]), x.at([i, rows(k)]), dtype=dtype)
                return call("mul", scaled, x.at([j, rows(k)]), dtype=dtype)

            total = accumulate(low, dtype, count, term)
            for at in ((i, j), (j, i)):
                low.emit(Store(out.buffer, out.address(at), total))

        low.loop(len(pairs), element, parallel=True)

    low.group(write)
    return out


def cholesky(low: Lowering, a: Array) -> tuple[View, View]:
    """The lower factor of a stack of matrices, and the first minor that is not positive.

    Each column, once known, is taken out of all elements to the right of it, which is the work of many lanes.
    """
    n, lead, dtype = a.shape[-1], a.shape[:-2], a.dtype
    out, info = low.alloc(a.shape, dtype), low.alloc(lead, INT)
    # The lower triangle, column after column: what is to the right of column j starts at `first[j + 1]`.
    rows = [i for j in range(n) for i in range(j, n)]
    columns = [j for j in range(n) for i in range(j, n)]
    first = [columns.index(j) for j in range(n)] + [len(columns)]

    def one(batch: list[Index]) -> None:
        failed = low.local(INT, Number(0, INT))

        def at(i: Index, j: Index) -> Index:
            return out.address([*batch, i, j])

        def begin(index: list[Index]) -> None:
            i, j = index
            lower = Call("ge", (FromIndex(i), FromIndex(j)), BOOL)
            low.emit(Store(out.buffer, at(i, j), Call("where", (lower, a.at([*batch, i, j]), zero(dtype)), dtype)))

        def column(j: Index) -> None:
            pivot = low.local(dtype, Load(out.buffer, at(j, j)))
            fails = Call("not", (Call("gt", (pivot, zero(dtype)), BOOL),), BOOL)
            fresh = Call("and", (fails, Call("eq", (failed, zero(INT)), BOOL)), BOOL)
            low.emit(Assign(failed, Call("where", (fresh, FromIndex(j + 1), failed), INT)))
            root = low.local(dtype, Call("sqrt", (pivot,), dtype))
            inverse = low.local(dtype, Call("div", (Number(1.0, dtype), root), dtype))

            def scale(i: Index) -> None:
                value = call("mul", Load(out.buffer, at(i, j)), inverse, dtype=dtype)
                low.emit(Store(out.buffer, at(i, j), _at(i, j, root, value)))

            def take_out(t: Index) -> None:
                i, k = lookup(rows, t), lookup(columns, t)
                minus = call("mul", Load(out.buffer, at(i, j)), Load(out.buffer, at(k, j)), dtype=dtype)
                low.emit(Store(out.buffer, at(i, k), call("sub", Load(out.buffer, at(i, k)), minus, dtype=dtype)))

            low.loop(n, scale, start=j, parallel=True)
            low.loop(len(rows), take_out, start=lookup(first, j + 1), parallel=True)

        low.nest((n, n), begin)
        low.loop(n, column)
        low.emit(Store(info.buffer, info.address(batch), failed))

    low.nest(lead, lambda batch: low.group(lambda: one(batch)))
    return out, info


def _at(i: Index, j: Index, here: Expr, elsewhere: Expr) -> Expr:
    """`here` where `i` is `j`, else `elsewhere`: one loop for a diagonal element and those beside it."""
    return Call("where", (Call("eq", (FromIndex(i), FromIndex(j)), BOOL), here, elsewhere), here.dtype)


def triangular(low: Lowering, a: View, b: Array, upper: bool, unit: bool) -> Array:
    """Solve `A X = B` for stacks of triangular matrices: each unknown, once known, is taken out of the other rows.

    Many columns are spread over the lanes instead, each solved by one of them.
    """
    shape: Sequence[int] = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])
    n, columns, dtype = shape[-2], shape[-1], a.dtype
    # A column lies in one piece, beside the others where each is a lane's.
    out, inverse = low.alloc(shape, dtype), low.alloc((*a.shape[:-2], n), dtype)
    low.store(b, out)

    def entry(batch: Sequence[Index], i: Index, j: Index) -> Expr:
        return broadcast(a, (*shape[:-2], n, n), [*batch, i, j])

    def place(step: Index) -> Index:
        return Index(n - 1) + step * -1 if upper else step

    def known(batch: Sequence[Index], i: Index, c: Index) -> Expr:
        own = Load(out.buffer, out.address([*batch, i, c]))
        return low.local(dtype, own if unit else call("mul", own, reciprocal(batch, i), dtype=dtype))

    def reciprocal(batch: Sequence[Index], i: Index) -> Expr:
        return broadcast(inverse, (*shape[:-2], n), [*batch, i])

    def invert(index: list[Index]) -> None:
        value = Call("div", (Number(1.0, dtype), a.at([*index, index[-1]])), dtype)
        low.emit(Store(inverse.buffer, inverse.address(index), value))

    if not unit:
        low.nest(inverse.shape, invert)

    def take_out(batch: Sequence[Index], i: Index, c: Index, x: Expr) -> Callable[[Index], None]:
        def row(r: Index) -> None:
            minus = call("mul", entry(batch, r, i), x, dtype=dtype)
            at = out.address([*batch, r, c])
            rest = call("sub", Load(out.buffer, at), minus, dtype=dtype)
            low.emit(Store(out.buffer, at, _at(r, i, x, rest)))

        return row

    def solve(batch: list[Index], c: Index, parallel: bool) -> None:
        def unknown(step: Index) -> None:
            i = place(step)
            x = known(batch, i, c)
            start, stop = (Index(), i + 1) if upper else (i, Index(n))
            low.loop(stop, take_out(batch, i, c, x), start=start, parallel=parallel)

        low.loop(n, lambda step: low.group(lambda: unknown(step)))

    few = columns < MANY_ROWS

    def one(batch: list[Index]) -> None:
        low.loop(columns, lambda c: solve(batch, c, few), parallel=not few)

    low.nest(shape[:-2], one)
    return out
