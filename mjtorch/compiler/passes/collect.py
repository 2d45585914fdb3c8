"""What each iteration of a loop keeps is computed where it is kept, not beside it and copied."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mjtorch.compiler.ir.nodes import (
    SCRATCH,
    Buffer,
    Expr,
    For,
    Gather,
    Index,
    Load,
    Pack,
    Program,
    Scatter,
    Statement,
    Store,
    Variable,
)
from mjtorch.compiler.ir.walk import Rewriter, touched_by, uses, walk, with_body
from mjtorch.compiler.passes.dead_stores import stores_what_is_there, without


def collect_in_place(p: Program) -> Program:
    """Let an array of an iteration, copied to a part that is this iteration's alone, be that part."""
    everywhere = uses(p.body)
    stores = [s.buffer for s in walk(p.body) if isinstance(s, (Store, Scatter))]
    packed = {b for s in walk(p.body) if isinstance(s, Pack) for b in touched_by([s])}
    moved: dict[Buffer, tuple[Buffer, Index]] = {}
    for loop in [s for s in walk(p.body) if isinstance(s, For)]:
        inside = uses(loop.body)
        for s in walk(loop.body):
            place = _place(s, loop)
            if place is None:
                continue
            assert isinstance(s, Store) and isinstance(s.value, Load)
            source, into = s.value.buffer, s.buffer
            alone = inside[source] == everywhere[source] and inside[into] == stores.count(into) == 1
            if alone and not {source, into} & (packed | moved.keys()) and into not in {b for b, _ in moved.values()}:
                moved[source] = into, place
    return with_body(p, without(_Moved(moved).body(p.body), stores_what_is_there)) if moved else p


def _place(s: Statement, loop: For) -> Index | None:
    """Where a part of an array begins, an iteration's own, to which `s` copies an element of an array as large."""
    v = s.value if isinstance(s, Store) and s.buffer.kind == SCRATCH else None
    if not isinstance(s, Store) or not isinstance(v, Load) or v.buffer.kind != SCRATCH or v.dtype != s.buffer.dtype:
        return None
    place, size = s.index + v.index * -1, v.buffer.size
    apart = place.terms == ((Variable(loop.variable), size),)
    fits = not loop.stop.terms and 0 <= place.base <= s.buffer.size - loop.stop.base * size
    return place if apart and fits else None


class _Moved(Rewriter):
    """Arrays that are parts of others."""

    def __init__(self, moved: dict[Buffer, tuple[Buffer, Index]]) -> None:
        self.moved = moved

    def expr(self, e: Expr) -> Expr:
        """An expression."""
        e = super().expr(e)
        if isinstance(e, (Load, Gather)) and e.buffer in self.moved:
            into, place = self.moved[e.buffer]
            return dataclasses.replace(e, buffer=into, index=place + e.index)
        return e

    def statement(self, s: Statement) -> Sequence[Statement]:
        """A statement."""
        (s,) = super().statement(s)
        if isinstance(s, (Store, Scatter)) and s.buffer in self.moved:
            into, place = self.moved[s.buffer]
            s = dataclasses.replace(s, buffer=into, index=place + s.index)
        return (s,)
