"""Symmetric matrices: lanes that have a row each read the column, whose elements lie side by side."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from mjtorch.compiler.ir.nodes import SCRATCH, Buffer, Entry, Expr, Index, Load, Program, Scatter, Statement, Store
from mjtorch.compiler.ir.walk import Rewriter, walk
from mjtorch.compiler.passes.transpose import Place, column_by_column, places_of, sectors


def read_columns(p: Program, width: int) -> Program:
    """Read the other half of matrices that are made symmetric, where `width` lanes then move less memory."""
    sizes = _symmetric(p.body)
    found: dict[tuple[Buffer, Index], list[Place]] = defaultdict(list)
    for b, moving, place in places_of(p.body, {}, (), 1.0):
        if b in sizes and not moving:
            found[b, place.index].append(place)
    moved: dict[tuple[Buffer, Index], Index] = {}
    for (b, i), places in found.items():
        (to, *others) = {column_by_column(i, x.bounds, sizes[b], sizes[b]) for x in places}
        if to is not None and not others:
            before, after = (sum(x.times * sectors(b, x, at, width) for x in places) for at in (i, to))
            if after < before:
                moved[b, i] = to
    return dataclasses.replace(p, body=_Moved(moved).body(p.body)) if moved else p


def _symmetric(statements: Sequence[Statement]) -> dict[Buffer, int]:
    """Arrays whose elements are all read from another by one table, that of a symmetric matrix of so many rows."""
    stores = [s for s in walk(statements) if isinstance(s, (Store, Scatter))]
    count = Counter(s.buffer for s in stores)
    found = {}
    for s in stores:
        n = math.isqrt(s.buffer.size)
        if s.buffer.kind != SCRATCH or count[s.buffer] > 1 or n * n != s.buffer.size or isinstance(s, Scatter):
            continue
        terms = s.value.index.terms if isinstance(s.value, Load) else ()
        if len(terms) != 1 or not isinstance(terms[0][0], Entry) or not _same(terms[0][0].index, s.index):
            continue
        table = np.array(terms[0][0].table)
        if len(table) == s.buffer.size and (table.reshape(n, n) == table.reshape(n, n).T).all():
            found[s.buffer] = n
    return found


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
