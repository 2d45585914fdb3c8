"""Symmetric matrices: lanes that have a row each read the column, whose elements lie side by side."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from mjtorch.compiler.ir.nodes import (
    SCRATCH,
    Buffer,
    Entry,
    Expr,
    For,
    Index,
    Load,
    ParallelFor,
    Program,
    Scatter,
    Statement,
    Store,
    Variable,
)
from mjtorch.compiler.ir.walk import Rewriter, bodies, expressions, mentions, walk
from mjtorch.compiler.passes.transpose import Place, column_by_column, places_of, sectors


def read_columns(p: Program, width: int) -> Program:
    """Read the other half of matrices that are made symmetric, where `width` lanes then move less memory."""
    sizes, early = _symmetric(p.body)
    found: dict[tuple[Buffer, Index], list[Place]] = defaultdict(list)
    for b, moving, place in places_of(p.body, {}, (), 1.0):
        if b in sizes and not moving and Load(b, place.index) not in early:
            found[b, place.index].append(place)
    moved: dict[tuple[Buffer, Index], Index] = {}
    for (b, i), places in found.items():
        (to, *others) = {column_by_column(i, x.bounds, sizes[b], sizes[b]) for x in places}
        if to is not None and not others:
            before, after = (sum(x.times * sectors(b, x, at, width) for x in places) for at in (i, to))
            if after < before:
                moved[b, i] = to
    return dataclasses.replace(p, body=_Moved(moved).body(p.body)) if moved else p


def _symmetric(statements: Sequence[Statement]) -> tuple[dict[Buffer, int], set[Expr]]:
    """Arrays whose elements are all read from another by one table, that of a symmetric matrix of so many rows.

    And what is read in the loops that fill them: there a row is known, but its column is not yet.
    """
    stores = list(_stores(statements, ()))
    count = Counter(s.buffer for s, _ in stores)
    found, early = {}, set()
    for s, nest in stores:
        n = math.isqrt(s.buffer.size)
        if s.buffer.kind != SCRATCH or count[s.buffer] > 1 or n * n != s.buffer.size or isinstance(s, Scatter):
            continue
        if not isinstance(s.value, Load) or not _is_whole(nest, s.value.buffer):
            continue
        terms = s.value.index.terms
        if len(terms) != 1 or not isinstance(terms[0][0], Entry) or not _same(terms[0][0].index, s.index):
            continue
        table = np.array(terms[0][0].table)
        if len(table) == s.buffer.size and (table.reshape(n, n) == table.reshape(n, n).T).all():
            found[s.buffer] = n
            early |= {e for x in walk([nest]) for e in expressions(x)}
    return found, early


def _stores(
    statements: Sequence[Statement], around: tuple[Statement, ...]
) -> Iterator[tuple[Store | Scatter, Statement]]:
    """Each store, and the outermost loop that has a say in where it stores."""
    for s in statements:
        if isinstance(s, (Store, Scatter)):
            yield s, next((x for x in around if any(mentions(s.index, v) for v in _counters(x))), s)
        for body in bodies(s):
            yield from _stores(body, (*around, s))


def _counters(s: Statement) -> tuple[Variable, ...]:
    """The variables of a loop, or of loops that are one."""
    names = (s.variable,) if isinstance(s, For) else [v for v, _, _ in s.loops] if isinstance(s, ParallelFor) else ()
    return tuple(Variable(v) for v in names)


def _is_whole(nest: Statement, source: Buffer) -> bool:
    """Whether loops leave out no iteration, and leave what they read as it is."""
    inside = list(walk([nest]))
    guarded = any(isinstance(x, (For, ParallelFor)) and x.guard is not None for x in inside)
    return not guarded and not any(isinstance(x, (Store, Scatter)) and x.buffer is source for x in inside)


def _same(a: Index, b: Index) -> bool:
    """Whether two indices are the same, whatever the order of their terms."""
    return a.base == b.base and set(a.terms) == set(b.terms)


class _Moved(Rewriter):
    """Loads from other places of an array."""

    def __init__(self, moved: dict[tuple[Buffer, Index], Index]) -> None:
        self.moved = moved

    def expr(self, e: Expr) -> Expr:
        """An expression."""
        e = super().expr(e)
        if isinstance(e, Load) and (e.buffer, e.index) in self.moved:
            return Load(e.buffer, self.moved[e.buffer, e.index])
        return e
