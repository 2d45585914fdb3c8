"""Rules for systems of linear equations by elimination with partial pivoting: true loops, never unrolled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from mjtorch.compiler.ir.nodes import BOOL, INT, Assign, Call, Expr, FromIndex, Index, Number, Store
from mjtorch.compiler.lower.elementwise import as_dtype, choose
from mjtorch.compiler.lower.linalg import transposed
from mjtorch.compiler.lower.lowering import Lowering, call, rule
from mjtorch.compiler.lower.reduce import reduce
from mjtorch.compiler.lower.shape import fix, take_axes, whole
from mjtorch.compiler.lower.sums import accumulate
from mjtorch.compiler.lower.values import Array, Value, View, broadcast, load, store


class Matrix:
    """One matrix of a stack."""

    def __init__(self, stack: View, batch: Sequence[Index]) -> None:
        self.stack, self.batch = stack, batch
        rows = stack.axes[-2]
        self.stride = rows[1] - rows[0] if len(rows) > 1 else 0

    def at(self, i: Index, j: Index) -> Expr:
        """The element in row `i` and column `j`."""
        return self.stack.at([*self.batch, i, j])

    def put(self, low: Lowering, i: Index, j: Index, value: Expr) -> None:
        """Write that element."""
        low.emit(Store(self.stack.buffer, self.stack.address([*self.batch, i, j]), value))

    def swap(self, low: Lowering, i: Index, row: Expr, j: Index) -> None:
        """Exchange row `i` and a `row` that each world has for itself, in column `j`."""
        offset = call("mul", row, Number(self.stride, INT), dtype=INT)
        top = self.stack.address([*self.batch, Index(), j])
        mine = low.local(self.stack.dtype, self.at(i, j))
        self.put(low, i, j, load(self.stack.buffer, top, offset))
        low.emit(store(self.stack.buffer, top, mine, offset))


def factorise(low: Lowering, x: Value) -> tuple[View, View, View]:
    """`P A = L U` for a stack `(..., n, n)`: L and U in one matrix, what row each was exchanged with (counted from 1),
    and the first column without a pivot (counted from 1; 0 if there is none)."""
    lu = low.store(x)
    n, lead, dtype = lu.shape[-1], lu.shape[:-2], lu.dtype
    pivots, info = low.alloc((*lead, n), INT), low.alloc(lead, INT)

    def one(batch: list[Index]) -> None:
        a = Matrix(lu, batch)
        first = low.local(INT, Number(0, INT))

        def column(i: Index) -> None:
            best = low.local(dtype, Call("abs", (a.at(i, i),), dtype))
            row = low.local(INT, FromIndex(i))

            def compare(r: Index) -> None:
                size = low.local(dtype, Call("abs", (a.at(r, i),), dtype))
                larger = low.local(BOOL, Call("gt", (size, best), BOOL))
                low.emit(Assign(best, Call("where", (larger, size, best), dtype)))
                low.emit(Assign(row, Call("where", (larger, FromIndex(r), row), INT)))

            low.loop(n, compare, start=i + 1)
            low.emit(Store(pivots.buffer, pivots.address([*batch, i]), call("add", row, Number(1, INT), dtype=INT)))
            none = Call("eq", (best, Number(0.0, dtype)), BOOL)
            fresh = Call("and", (none, Call("eq", (first, Number(0, INT)), BOOL)), BOOL)
            low.emit(Assign(first, Call("where", (fresh, FromIndex(i + 1), first), INT)))
            low.loop(n, lambda j: low.group(lambda: a.swap(low, i, row, j)))

            def below(r: Index) -> None:
                factor = low.local(dtype, Call("div", (a.at(r, i), a.at(i, i)), dtype))
                a.put(low, r, i, factor)

                def update(j: Index) -> None:
                    minus = call("mul", factor, a.at(i, j), dtype=dtype)
                    a.put(low, r, j, call("sub", a.at(r, j), minus, dtype=dtype))

                low.loop(n, update, start=i + 1)

            low.loop(n, below, start=i + 1)

        low.loop(n, column)
        low.emit(Store(info.buffer, info.address(batch), first))

    low.nest(lead, one)
    return lu, pivots, info


def solve_factorised(low: Lowering, lu: View, pivots: View, b: Array, adjoint: bool) -> View:
    """Solve `A X = B`, or `A^T X = B`, for stacks of columns `B (..., n, k)`."""
    n, columns, dtype = lu.shape[-1], b.shape[-1], lu.dtype
    lead = tuple(np.broadcast_shapes(lu.shape[:-2], b.shape[:-2]))
    out = low.alloc((*lead, n, columns), dtype)
    low.store(b, out)

    def one(batch: list[Index]) -> None:
        x = Matrix(out, batch)

        def factor(i: Index, j: Index) -> Expr:
            own = [j, i] if adjoint else [i, j]
            return broadcast(lu, (*lead, n, n), [*batch, *own])

        def exchange(i: Index) -> None:
            row = call("sub", broadcast(pivots, (*lead, n), [*batch, i]), Number(1, INT), dtype=INT)
            low.loop(columns, lambda c: low.group(lambda: x.swap(low, i, row, c)))

        def substitute(i: Index, start: Index, stop: Index, unit: bool) -> None:
            def element(c: Index) -> None:
                rest = accumulate(
                    low,
                    dtype,
                    stop,
                    lambda k: call("mul", factor(i, k), x.at(k, c), dtype=dtype),
                    start=start,
                    first=x.at(i, c),
                    op="sub",
                )
                x.put(low, i, c, rest if unit else Call("div", (rest, factor(i, i)), dtype))

            low.loop(columns, lambda c: low.group(lambda: element(c)))

        def backwards(step: Index) -> Index:
            return Index(n - 1) + step * -1

        if not adjoint:
            low.loop(n, exchange)
        low.loop(n, lambda i: substitute(i, Index(), i, unit=not adjoint))
        low.loop(n, lambda k: substitute(backwards(k), backwards(k) + 1, Index(n), unit=adjoint))
        if adjoint:
            low.loop(n, lambda k: exchange(backwards(k)))

    low.nest(lead, one)
    return out


@rule("_linalg_solve_ex")
def _solve(low: Lowering, node: Node, x: Value, y: Value, *, left: bool = True, **_: Any) -> tuple[Array, ...]:
    a, b = low.array(x), low.array(y)
    vector = len(b.shape) == 1 or b.shape == a.shape[:-1]
    if vector:
        b = take_axes(low, b, [*(whole(b, d) for d in range(len(b.shape))), None])
    lu, pivots, info = factorise(low, a)
    out: Array
    if left or vector:
        out = solve_factorised(low, lu, pivots, b, not left)
    else:
        out = transposed(low, solve_factorised(low, lu, pivots, transposed(low, b), True))
    if vector:
        out = fix(low, out, len(out.shape) - 1, 0)
    return out, lu, pivots, info


@rule("linalg_lu_factor_ex")
def _lu_factor(low: Lowering, node: Node, x: Value, **_: Any) -> tuple[View, ...]:
    return factorise(low, x)


@rule("linalg_lu_solve")
def _lu_solve(
    low: Lowering, node: Node, lu: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False
) -> Array:
    columns = low.array(b)
    factor, rows = low.stored(lu), low.stored(pivots)
    if left:
        return solve_factorised(low, factor, rows, columns, adjoint)
    return transposed(low, solve_factorised(low, factor, rows, transposed(low, columns), not adjoint))


@rule("linalg_inv_ex")
def _inverse(low: Lowering, node: Node, x: Value, **_: Any) -> tuple[View, View]:
    lu, pivots, info = factorise(low, x)
    identity = torch.eye(lu.shape[-1], dtype=node.meta["val"][0].dtype)
    return solve_factorised(low, lu, pivots, low.array(identity), False), info


def _factorised(low: Lowering, node: Node, x: Value) -> tuple[View, View]:
    """The factors that torch's gradients of determinants expect: of the transpose if the matrix is contiguous."""
    a, source = low.array(x), node.args[0]
    flip = isinstance(source, Node) and "val" in source.meta and source.meta["val"].is_contiguous()
    return factorise(low, transposed(low, a) if flip else a)[:2]


@rule("_linalg_det")
def _determinant(low: Lowering, node: Node, x: Value) -> tuple[Array, View, View]:
    lu, pivots = _factorised(low, node, x)
    signed = low.store(low.elementwise("mul", _diagonal(lu), _swap_signs(low, lu, pivots)))
    return reduce(low, signed, -1, False, "mul", Number(1.0, lu.dtype)), lu, pivots


@rule("_linalg_slogdet")
def _log_determinant(low: Lowering, node: Node, x: Value) -> tuple[Array, Array, View, View]:
    lu, pivots = _factorised(low, node, x)
    diagonal = _diagonal(lu)
    signs = [as_dtype(low, low.elementwise(op, diagonal, 0.0, out=BOOL), lu.dtype) for op in ("gt", "lt")]
    sign = low.store(low.elementwise("mul", low.elementwise("sub", *signs), _swap_signs(low, lu, pivots)))
    logs = low.store(low.elementwise("log", low.elementwise("abs", diagonal)))
    total = reduce(low, logs, -1, False, "add", Number(0.0, lu.dtype))
    return reduce(low, sign, -1, False, "mul", Number(1.0, lu.dtype)), total, lu, pivots


def _diagonal(lu: View) -> View:
    return View(lu.buffer, lu.base, (*lu.axes[:-2], tuple(i + j for i, j in zip(*lu.axes[-2:], strict=True))))


def _swap_signs(low: Lowering, lu: View, pivots: View) -> Array:
    """-1 where a row was exchanged with another, else 1."""
    moved = low.elementwise("ne", pivots, torch.arange(1, lu.shape[-1] + 1), out=BOOL)
    return choose(low, moved, -1.0, 1.0, lu.dtype)
