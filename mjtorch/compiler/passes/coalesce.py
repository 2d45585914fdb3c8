"""Copy coalescing: an array that goes on as a copy, and is not used again itself, is that copy.

Loops have a state of their own, which begins as a copy of what they are given. Most often nobody else needs that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mjtorch.compiler.analysis.lifetimes import Life, lifetimes
from mjtorch.compiler.ir.nodes import (
    SCRATCH,
    Buffer,
    FirstLane,
    Function,
    Load,
    Pack,
    Program,
    Scalarized,
    Scatter,
    Statement,
    Store,
)
from mjtorch.compiler.ir.walk import ReplaceBuffers, before, bodies, is_program, loads, walk, with_body
from mjtorch.compiler.passes.dead_stores import stores_what_is_there, without


def coalesce_copies(p: Program) -> Program:
    """Let arrays that begin as a copy be the arrays that die with it (Chaitin, "Register allocation", 1982)."""
    life = lifetimes(p)
    same: dict[Buffer, Buffer] = {}
    for nest in _nests(p.body):
        for copy in [s for s in walk([nest]) if _is_copy(s)]:
            into, source = copy.buffer, copy.value.buffer  # type: ignore[union-attr]
            first = _first(same, source)
            if life[first][1] == life[into][0] and into not in same and _alone([nest], copy):
                same[into] = first
                life[first] = _union(life[first], life[into])
    if not same:
        return p
    body = ReplaceBuffers({b: _first(same, b) for b in same}).body(p.body)
    return with_body(p, without(body, stores_what_is_there))


def _first(same: dict[Buffer, Buffer], b: Buffer) -> Buffer:
    """What `b` is a copy of, of a copy."""
    while b in same:
        b = same[b]
    return b


def _union(a: Life, b: Life) -> Life:
    return min(a[0], b[0]), max(a[1], b[1])


def _nests(statements: Sequence[Statement]) -> Iterator[Statement]:
    """What counts as one moment in the lives of arrays."""
    for s in statements:
        if isinstance(s, Pack):  # what it loads and stores is of other worlds
            yield from _nests(s.body)
        elif is_program(s) or isinstance(s, (FirstLane, Function, Scalarized)):
            for body in bodies(s):
                yield from _nests(body)
        else:
            yield s


def _is_copy(s: Statement) -> bool:
    """Whether `s` copies an element of a scratch array to the same place of another of its size."""
    if not isinstance(s, Store) or not isinstance(s.value, Load) or s.value.index != s.index:
        return False
    a, b = s.value.buffer, s.buffer
    return a != b and a.kind == b.kind == SCRATCH and a.size == b.size and a.dtype == b.dtype


def _alone(statements: Sequence[Statement], copy: Statement) -> bool:
    """Whether the two arrays have the same elements wherever the copy is read: it is all that writes to its array here.

    The other may be written in the same iteration, before the copy and to the same element, while the copy is not read.
    """
    assert isinstance(copy, Store) and isinstance(copy.value, Load)
    into, source = copy.buffer, copy.value.buffer
    writes = [s for s in walk(statements) if isinstance(s, (Store, Scatter))]
    if any(s.buffer == into and s is not copy for s in writes):
        return False
    stores = [s for s in writes if s.buffer == source]
    if stores and any(e.buffer == into for s in walk(statements) for e in loads(s)):
        return False
    earlier = before(statements, copy)
    return all(isinstance(s, Store) and s.index == copy.index and any(s is x for x in earlier) for s in stores)
