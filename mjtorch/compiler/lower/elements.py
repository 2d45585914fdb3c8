"""Products and factorisations where elements of one world are computed side by side: many short sums at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mjtorch.compiler.ir.nodes import BOOL, INT, Assign, Call, Expr, FromIndex, Index, Load, Number, Store, lookup
from mjtorch.compiler.lower.lowering import Lowering, call
from mjtorch.compiler.lower.sums import MANY_ROWS, accumulate, may_skip, nonzero, nonzero_rows, some, some_nonzero, zero
from mjtorch.compiler.lower.values import Array, View, broadcast, is_partial


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


def gram(low: Lowering, x: Array, weight: Array) -> View:
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

    Column by column, each element of it being a lane's, who finds the pivot by itself beside its own dot product. Rows
    have room for an odd number of elements, so that lanes that read a column do not meet in a bank.
    """
    n, lead, dtype = a.shape[-1], a.shape[:-2], a.dtype
    out, info = _odd_rows(low, a.shape, dtype), low.alloc(lead, INT)
    pivots = low.alloc((*lead, n), dtype)  # which the lanes read while one of them writes the factor's

    def one(batch: list[Index]) -> None:
        def at(i: Index, j: Index) -> Index:
            return out.address([*batch, i, j])

        def begin(index: list[Index]) -> None:
            i, j = index
            lower = Call("ge", (FromIndex(i), FromIndex(j)), BOOL)
            low.emit(Store(out.buffer, at(i, j), Call("where", (lower, a.at([*batch, i, j]), zero(dtype)), dtype)))

        def column(j: Index) -> None:
            def element(i: Index) -> None:
                own = low.local(dtype, Load(out.buffer, at(i, j)))
                pivot = low.local(dtype, pivots.at([*batch, j]))

                def subtract(k: Index) -> None:
                    left, right = Load(out.buffer, at(i, k)), Load(out.buffer, at(j, k))
                    for total, factor in ((own, left), (pivot, right)):
                        term = call("mul", factor, right, dtype=dtype)
                        low.emit(Assign(total, call("sub", total, term, dtype=dtype)))

                low.loop(j, subtract)
                root = low.local(dtype, Call("sqrt", (pivot,), dtype))
                low.emit(Store(out.buffer, at(i, j), _at(i, j, root, Call("div", (own, root), dtype))))

            low.loop(n, element, start=j, parallel=True)

        low.nest((n, n), begin)
        low.loop(n, lambda j: low.emit(Store(pivots.buffer, pivots.address([*batch, j]), a.at([*batch, j, j]))))
        low.loop(n, column)
        first = low.local(INT, Number(n + 1, INT))

        def test(j: Index) -> None:
            holds = Call("gt", (Load(out.buffer, at(j, j)), zero(dtype)), BOOL)
            place = Call("where", (holds, Number(n + 1, INT), FromIndex(j + 1)), INT)
            low.emit(Assign(first, Call("min", (first, place), INT)))

        low.loop(n, test)
        none = Call("eq", (first, Number(n + 1, INT)), BOOL)
        low.emit(Store(info.buffer, info.address(batch), Call("where", (none, Number(0, INT), first), INT)))

    low.nest(lead, lambda batch: low.group(lambda: one(batch)))
    return out, info


def _odd_rows(low: Lowering, shape: Sequence[int], dtype: str) -> View:
    """New matrices whose rows lie an odd number of elements apart."""
    made = low.alloc((*shape[:-1], shape[-1] | 1), dtype)
    return dataclasses.replace(made, axes=(*made.axes[:-1], made.axes[-1][: shape[-1]]))


def _at(i: Index, j: Index, here: Expr, elsewhere: Expr) -> Expr:
    """`here` where `i` is `j`, else `elsewhere`: one loop for a diagonal element and those beside it."""
    return Call("where", (Call("eq", (FromIndex(i), FromIndex(j)), BOOL), here, elsewhere), here.dtype)


def triangular(low: Lowering, a: View, b: Array, upper: bool, unit: bool) -> Array:
    """Solve `A X = B` for stacks of triangular matrices: each unknown, once known, is taken out of the other rows.

    Many columns are spread over the lanes instead, each solved by one of them; those that a mask exchanges for an empty
    array are left out.
    """
    shape: Sequence[int] = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])
    n, columns, dtype = shape[-2], shape[-1], a.dtype
    out, inverse = low.alloc(shape, dtype), low.alloc((*a.shape[:-2], n), dtype)
    few = columns < MANY_ROWS
    if few:
        low.store(b, out)

    def entry(batch: Sequence[Index], i: Index, j: Index) -> Expr:
        return broadcast(a, (*shape[:-2], n, n), [*batch, i, j])

    def given(batch: Sequence[Index], i: Index, c: Index) -> Expr:
        return broadcast(b, shape, [*batch, i, c])

    def place(step: Index) -> Index:
        return Index(n - 1) + step * -1 if upper else step

    def invert(index: list[Index]) -> None:
        value = Call("div", (Number(1.0, dtype), a.at([*index, index[-1]])), dtype)
        low.emit(Store(inverse.buffer, inverse.address(index), value))

    if not unit:
        low.nest(inverse.shape, invert)

    def scaled(batch: Sequence[Index], i: Index, e: Expr) -> Expr:
        return e if unit else call("mul", e, broadcast(inverse, (*shape[:-2], n), [*batch, i]), dtype=dtype)

    def take_out(batch: Sequence[Index], c: Index) -> None:
        """The unknowns, each of which is known up to its factor once those before it are taken out."""

        def unknown(step: Index) -> None:
            i = place(step)
            x = scaled(batch, i, Load(out.buffer, out.address([*batch, i, c])))

            def row(r: Index) -> None:
                at = out.address([*batch, r, c])
                rest = call("sub", Load(out.buffer, at), call("mul", entry(batch, r, i), x, dtype=dtype), dtype=dtype)
                low.emit(Store(out.buffer, at, rest))

            low.loop(i if upper else Index(n), row, start=Index() if upper else i + 1, parallel=True)

        low.loop(n, unknown)

        def finish(i: Index) -> None:
            at = out.address([*batch, i, c])
            low.emit(Store(out.buffer, at, scaled(batch, i, Load(out.buffer, at))))

        if not unit:
            low.loop(n, finish, parallel=True)

    def solve(batch: Sequence[Index], c: Index) -> None:
        """One column, by one lane."""

        def unknown(step: Index) -> None:
            i = place(step)

            def term(k: Index) -> Expr:
                return call("mul", entry(batch, i, k), Load(out.buffer, out.address([*batch, k, c])), dtype=dtype)

            at = out.address([*batch, i, c])
            start, stop = (i + 1, Index(n)) if upper else (Index(), i)
            rest = accumulate(low, dtype, stop, term, start=start, first=given(batch, i, c), op="sub")
            low.emit(Store(out.buffer, at, scaled(batch, i, rest)))

        low.loop(n, lambda step: low.group(lambda: unknown(step)))

    def one(batch: list[Index]) -> None:
        if few:
            low.loop(columns, lambda c: take_out(batch, c))
        elif is_partial(b):
            which, count = low.compact(columns, lambda c: some_nonzero(low, n, lambda i: given(batch, i, c)))
            low.loop(count, lambda q: solve(batch, which(q)), parallel=True)
        else:
            low.loop(columns, lambda c: solve(batch, c), parallel=True)

    low.nest(shape[:-2], one)
    return out
