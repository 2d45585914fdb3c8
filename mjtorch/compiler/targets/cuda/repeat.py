"""Iterations that two lanes may compute at the same time, so that lanes without one of their own need not stand aside.

Lanes that take another way than their neighbours cost more than the same result computed, and stored, twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mjtorch.compiler.analysis.dependence import Access, Bounds, accesses, span, within
from mjtorch.compiler.ir.nodes import Body, Buffer, For, Index, Statement, Variable
from mjtorch.compiler.ir.walk import bodies, mentions, with_bodies


def repeatable(body: Body) -> bool:
    """Whether each element that an iteration writes gets one value, into which nothing goes that it overwrites."""
    found = list(_accesses(body, {}, ()))
    writes = [(a, inside) for a, inside in found if a.writes]
    for k, (a, inside) in enumerate(writes):
        others = [b for b, _ in writes[:k] if b.buffer is a.buffer]
        if a.moving and (others or inside):
            return False
        if not all(mentions(a.index, Variable(v)) for v in inside) or not all(_apart(a, b) for b in others):
            return False
    written = {a.buffer for a, _ in writes}
    so_far: set[Buffer] = set()
    for a, _ in found:
        if a.writes:
            so_far.add(a.buffer)
        elif a.buffer in written - so_far:
            return False
    return True


def _accesses(
    statements: Sequence[Statement], bounds: Bounds, inside: tuple[str, ...]
) -> Iterator[tuple[Access, tuple[str, ...]]]:
    """Accesses in the order of the text, a statement's reads first, and the variables of the loops around each."""
    for s in statements:
        yield from ((a, inside) for a in accesses([with_bodies(s, [() for _ in bodies(s)])], bounds))
        more = (*inside, s.variable) if isinstance(s, For) else inside
        for body in bodies(s):
            yield from _accesses(body, within(s, bounds), more)


def _apart(a: Access, b: Access) -> bool:
    """Whether two accesses of one iteration never meet: beyond what they have in common, one lies behind the other."""
    common = {t for t in a.index.terms if t in b.index.terms and span(Index(0, (t,)), {**a.bounds, **b.bounds}) is None}
    ranges = []
    for x in (a, b):
        found = span(Index(x.index.base, tuple(t for t in x.index.terms if t not in common)), x.bounds)
        if found is None:
            return False
        ranges.append(found)
    (low, high), (other_low, other_high) = ranges
    return high < other_low or other_high < low
