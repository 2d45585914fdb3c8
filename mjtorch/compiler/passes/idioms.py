"""Idioms: loops in which each step needs the one before, for which a warp has a quicker way than barriers.

Recognized are the column by column factor of a matrix, and the solution of a triangular system, as `lower/elements.py`
writes them: a warp that holds a row in each lane passes on what a step has found from register to register.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

from mjtorch.compiler.ir.nodes import (
    SCRATCH,
    Assign,
    Barrier,
    Body,
    Buffer,
    Call,
    Declare,
    Expr,
    For,
    Idiom,
    Index,
    Load,
    ParallelFor,
    Program,
    Statement,
    Store,
    Variable,
)
from mjtorch.compiler.ir.walk import map_bodies

CHOLESKY, SUBSTITUTE = "cholesky", "substitute"


def recognize_idioms(p: Program) -> Program:
    """Mark the loops of a warp for which it has a quicker way."""
    return dataclasses.replace(p, body=_body(p.body))


def _body(statements: Sequence[Statement]) -> Body:
    return tuple(_statement(s) for s in statements)


def _statement(s: Statement) -> Statement:
    if isinstance(s, For):
        for recognized in (_factor, _substitution):
            with contextlib.suppress(_OtherError):
                return recognized(s)
    return map_bodies(s, _body)


class _OtherError(Exception):
    """A loop is something else."""


def _need(holds: bool) -> None:
    if not holds:
        raise _OtherError


def _rows(s: For) -> tuple[ParallelFor, Body]:
    """The one loop in `s` over rows, and what it does with each."""
    rest = [x for x in s.body if not isinstance(x, Barrier)]
    _need(len(rest) == 1 and isinstance(rest[0], ParallelFor) and s.guard is None and not s.start.terms)
    (rows,) = rest
    assert isinstance(rows, ParallelFor)
    _need(len(rows.loops) == 1 and not rows.reductions and rows.guard is None)
    _need(s.start == Index() and not s.stop.terms and s.stop.base > 1)
    return rows, rows.body


def _coefficient(i: Index, name: str) -> int:
    return sum(k for a, k in i.terms if a == Variable(name))


def _at(e: Expr, buffer: Buffer | None = None) -> tuple[Buffer, Index]:
    """Which element is loaded."""
    _need(isinstance(e, Load) and e.buffer.kind == SCRATCH and (buffer is None or e.buffer is buffer))
    assert isinstance(e, Load)
    _need(all(isinstance(a, Variable) for a, _ in e.index.terms))
    return e.buffer, e.index


def _factor(s: For) -> Idiom:
    """`s` as the factor of a matrix."""
    rows, body = _rows(s)
    (i, start, stop), j, n = rows.loops[0], s.variable, s.stop.base
    _need(start == Index(0, ((Variable(j), 1),)) and stop == Index(n) and len(body) == 5)
    own, pivot, sums, root, store = body
    _need(
        isinstance(own, Declare) and isinstance(pivot, Declare) and isinstance(sums, For) and isinstance(root, Declare)
    )
    assert (
        isinstance(own, Declare) and isinstance(pivot, Declare) and isinstance(sums, For) and isinstance(root, Declare)
    )
    _need(isinstance(store, Store))
    assert isinstance(store, Store)
    buffer, at = _at(own.value)
    row, column = _coefficient(at, i), _coefficient(at, j)
    origin = at + Index(0, ((Variable(i), -row), (Variable(j), -column)))

    def element(r: str, c: str) -> Load:
        return Load(buffer, origin + Index(0, ((Variable(r), 1),)) * row + Index(0, ((Variable(c), 1),)) * column)

    k, dtype = sums.variable, own.local.dtype
    _need(
        sums.start == Index() and sums.stop == Index(0, ((Variable(j), 1),)) and not sums.scope and sums.guard is None
    )
    _need(row != 0 and column != 0 and store.buffer is buffer and store.index == at and len(sums.body) == 2)
    for x, left in zip(sums.body, (element(i, k), element(j, k)), strict=True):
        local = own.local if left == element(i, k) else pivot.local
        product = Call("mul", (left, element(j, k)), dtype)
        _need(isinstance(x, Assign) and x.local == local and x.value == Call("sub", (local, product), dtype))
    _need(root.value == Call("sqrt", (pivot.local,), dtype))
    match store.value:
        case Call("where", (Call("eq"), here, elsewhere)):
            _need(here == root.local and elsewhere == Call("div", (own.local, root.local), dtype))
        case _:
            raise _OtherError
    return Idiom(CHOLESKY, ((buffer, origin),), (n, row, column), (s,), origin=s.origin)


def _substitution(s: For) -> Idiom:
    """`s` as the solution of a triangular system.

    Rows and unknowns are counted alike: the unknown of a step is the row that it is.
    """
    rows, body = _rows(s)
    (r, start, stop), i, n = rows.loops[0], s.variable, s.stop.base
    _need(len(body) == 1 and isinstance(body[0], Store))
    (store,) = body
    assert isinstance(store, Store)
    x, at = store.buffer, store.index
    match store.value:
        case Call("sub", (own, Call("mul", (matrix, Call("mul", (unknown, scale)))))):
            scaled = True
        case Call("sub", (own, Call("mul", (matrix, unknown)))):
            scaled, scale = False, unknown
        case _:
            raise _OtherError
    _need(_at(own, x) == (x, at) and _coefficient(at, i) == 0)
    step, (m, entry), (s_buffer, s_at), (_, known) = _coefficient(at, r), _at(matrix), _at(scale), _at(unknown, x)
    _need(step != 0 and m is not x and _coefficient(known, r) == 0 and _coefficient(s_at, r) == 0)
    forward = _coefficient(known, i) == step
    if forward:
        _need(start == Index(1, ((Variable(i), 1),)) and stop == Index(n))
    else:
        _need(start == Index() and stop == Index(n - 1, ((Variable(i), -1),)))

    def by_unknown(index: Index) -> tuple[Index, int]:
        """Where an index begins, and its step, as a function of the unknown instead of the loop's variable."""
        k = _coefficient(index, i)
        base = index + Index(0, ((Variable(i), -k),))
        return (base, k) if forward else (base + k * (n - 1), -k)

    origin = at + Index(0, ((Variable(r), -step),))
    _need(by_unknown(known) == (origin, step))
    per_row = _coefficient(entry, r)
    m_origin, per_unknown = by_unknown(entry + Index(0, ((Variable(r), -per_row),)))
    s_origin, s_step = by_unknown(s_at)
    arrays = ((x, origin), (m, m_origin), (s_buffer, s_origin))
    numbers = (n, step, per_row, per_unknown, s_step if scaled else 0, int(forward), int(scaled))
    return Idiom(SUBSTITUTE, arrays, numbers, (s,), origin=s.origin)
