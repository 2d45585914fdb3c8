"""Scalarization: loops that are better run for one world after the other than for a vector of worlds at once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from mjtorch.compiler.analysis.cost import CPU, trips
from mjtorch.compiler.analysis.dependence import Bounds, within
from mjtorch.compiler.ir.nodes import (
    BOOL,
    SCRATCH,
    Assign,
    Body,
    Buffer,
    Compact,
    Declare,
    Expr,
    For,
    Gather,
    Length,
    Load,
    Local,
    Number,
    Pack,
    Program,
    Scalarized,
    ScalarizedCopy,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.walk import (
    bodies,
    is_program,
    map_bodies,
    mentions,
    remembered,
    uses,
    walk,
    walk_expr,
    with_body,
)

# A vector's access at offsets takes as many instructions as it has worlds. A loop that writes so is a walk that each
# world takes in its own way, some much longer than others. It is run world by world, unless less than this share of all
# accesses are such: then it is better to do the others for all worlds at once.
SHARE = 0.05
# An iteration with more accesses than this is no step of a walk: all worlds take about as many of them. Of a polytope
# one has some 10,000, of conjugate gradients of a cloth 170,000.
WALK = 30_000
# A loop around such loops is run so too if at least this share of its accesses is in them.
INNER = 0.3
# Elements that such loops may hold in variables of their own.
MEMORY = 49_152
# How much longer an element of many worlds' array takes than one of a variable.
KEPT = 4
# Before them arrays may be filled with values of so many parts.
PREPARE = 4
# Between two of them there may be so many accesses for them to be run together, or such a share of theirs.
BETWEEN, PART = 1000, 0.25
# How many iterations a loop is taken to have whose number of iterations is not known.
TRIPS = 4
COSTS = dataclasses.replace(CPU, trips=TRIPS)


def scalarize(p: Program) -> Program:
    """Mark what is to be run for one world after the other, with the arrays that it then holds in variables."""
    counts = uses(p.body)

    def level(statements: Body) -> Body:
        """Statements that are a program of their own."""
        out: list[Statement] = []
        for part in regions(statements, counts):
            if any(isinstance(s, While) and is_walk(s) for s in part):
                private, kept = own_memory(part, counts)
                out.append(Scalarized(tuple(part), tuple(private), tuple(kept), origin=part[0].origin))
            else:
                out += map(statement, part)
        return tuple(out)

    def statement(s: Statement) -> Statement:
        return map_bodies(s, level if is_program(s) else lambda body: [statement(x) for x in body])

    return with_body(p, level(p.body))


def scalarize_copies(p: Program) -> Program:
    """Mark loops that only copy whole rows from offsets, which are numbers of each world's own."""

    def statement(s: Statement) -> Statement:
        if isinstance(s, Scalarized):
            return s
        if isinstance(s, For) and is_copy(s):
            return ScalarizedCopy((s,), origin=s.origin)
        return map_bodies(s, lambda body: [statement(x) for x in body])

    return with_body(p, [statement(s) for s in p.body])


@remembered
def is_walk(s: While) -> bool:
    """Whether to run the loop for one world after the other: it scatters, or does little but such loops."""
    if not _scatters([s]) or any(isinstance(x, Pack) for x in walk([s])):
        return False
    inner = [x for x in _loops([*s.head, *s.body]) if _scatters([x])]
    moving, total = accesses([*s.head, *s.body])
    if not inner:
        return SHARE * total <= moving and total <= WALK
    within = sum(TRIPS * accesses([*x.head, *x.body])[1] for x in inner)
    return all(map(is_walk, inner)) and within >= INNER * total


def regions(statements: Sequence[Statement], counts: Counter[Buffer]) -> Iterator[list[Statement]]:
    """The statements in order, those together that are to be run world by world together; each other one by itself.

    Together are loops with little between them, and what only prepares arrays for them, given how often the whole
    program uses each buffer.
    """
    k = 0
    while k < len(statements):
        end = _region_end(statements, k, counts)
        yield list(statements[k : max(end, k + 1)])
        k = max(end, k + 1)


def _region_end(statements: Sequence[Statement], start: int, counts: Counter[Buffer]) -> int:
    """Where the region that begins at `start` ends; `start` if there is none."""
    end, between, work = start, 0, 0
    for k in range(start, len(statements)):
        s = statements[k]
        if isinstance(s, While) and is_walk(s):
            end, between, work = k + 1, 0, work + accesses([s])[1]
        elif _loops([s]) or (end == start and not _prepares(s)):
            break
        elif not _fills(s):
            between += accesses([s])[1]
            if end > start and between > max(BETWEEN, PART * work):
                break
    if end == start:
        return start
    inside = uses(statements[start:end])
    first = next(k for k in range(start, end) if isinstance(statements[k], While))
    prepared = {x.buffer for x in _stores(statements[start:first])}
    return end if all(b.kind == SCRATCH and inside[b] == counts[b] for b in prepared) else start


def _prepares(s: Statement) -> bool:
    """Whether `s` does little more than fill or copy arrays."""
    if isinstance(s, Store):
        parts = list(walk_expr(s.value))
        return len(parts) <= PREPARE and not any(isinstance(e, Gather) for e in parts)
    return isinstance(s, For) and not s.scope and all(map(_prepares, s.body))


def _fills(s: Statement) -> bool:
    """Whether `s` fills arrays with numbers, which is as quick world by world."""
    if isinstance(s, Store):
        return s.buffer.kind == SCRATCH and isinstance(s.value, Number)
    return isinstance(s, For) and not s.scope and all(map(_fills, s.body))


def own_memory(statements: Sequence[Statement], counts: Counter[Buffer]) -> tuple[list[Buffer], list[Buffer]]:
    """The arrays of which a world's elements should lie side by side while these are run for one world.

    Returns those that nothing else uses, given how often the whole program uses each, and those written for others that
    variables can hold, but for those of which less is read and written than would be to copy them there and back.
    """
    inside = uses(statements)
    written = {x.buffer: None for x in _stores(statements)}
    private = [b for b in written if b.kind == SCRATCH and inside[b] == counts[b]]
    kept = [b for b in written if b.kind == SCRATCH and inside[b] != counts[b]]
    kept = [b for b in kept if KEPT * accesses(statements, of=b)[1] >= 2 * b.size]
    return private, fitting(kept, MEMORY)


def fitting(buffers: Iterable[Buffer], room: int) -> list[Buffer]:
    """Those of the arrays for which there still is room, for so many elements in all, as they come."""
    fits = []
    for b in buffers:
        if b.size <= room:
            room -= b.size
            fits.append(b)
    return fits


def _stores(statements: Sequence[Statement]) -> list[Store | Scatter]:
    return [s for s in walk(statements) if isinstance(s, (Store, Scatter))]


def is_copy(s: For) -> bool:
    """Whether the loop, and those in it, only copy what lies at offsets that are the same in all iterations."""
    loops = [Variable(x.variable) for x in walk([s]) if isinstance(x, For)]

    def is_fixed(o: Expr) -> bool:
        if isinstance(o, Load):
            return not any(mentions(o.index, v) for v in loops)
        return isinstance(o, Local)

    def copies(x: Statement) -> bool:
        if isinstance(x, For):
            return not x.scope and x.guard is None and all(map(copies, x.body))
        if not isinstance(x, Store) or x.buffer.kind != SCRATCH:
            return False
        return isinstance(x.value, Gather) and x.value.dtype != BOOL and is_fixed(x.value.offset)

    return copies(s)


def _scatters(statements: Sequence[Statement]) -> bool:
    return any(isinstance(s, Scatter) for s in walk(statements))


def _loops(statements: Sequence[Statement]) -> list[While]:
    """The outermost loops of unknown length."""
    return [x for s in statements for x in ([s] if isinstance(s, While) else _loops([y for b in bodies(s) for y in b]))]


def accesses(
    statements: Sequence[Statement], bounds: Bounds | None = None, of: Buffer | None = None
) -> tuple[int, int]:
    """How often memory is accessed at offsets of each world's own, and at all. Addresses do not count.

    bounds: the ranges of the loop variables around, and of the lengths of lists
    of: the array that counts, instead of all
    """
    bounds = bounds or {}
    moving = total = 0
    for s in statements:
        for buffer, offset in _accesses(s):
            if of is None or of == buffer:
                moving += offset
                total += 1
        if isinstance(s, While):
            inner, times = accesses([*s.head, *s.body], bounds, of), TRIPS
        elif isinstance(s, For):
            inner, times = accesses(s.body, within(s, bounds), of), round(trips(s.start, s.stop, bounds, COSTS))
        elif isinstance(s, Pack):
            inner, times = accesses(s.body, bounds, of), TRIPS
        elif bodies(s):
            inner, times = accesses(bodies(s)[0], bounds, of), s.size if isinstance(s, Compact) else 1
        else:
            continue
        if isinstance(s, Compact):
            bounds = {**bounds, Length(s.list): (0, s.size)}
        moving, total = moving + times * inner[0], total + times * inner[1]
    return moving, total


def _accesses(s: Statement) -> Iterator[tuple[Buffer, bool]]:
    """For each access of `s` itself to which array it is, and whether it is at an offset."""
    if isinstance(s, (Store, Scatter)):
        yield s.buffer, isinstance(s, Scatter)
    if isinstance(s, (Store, Scatter, Declare, Assign)):
        yield from ((e.buffer, isinstance(e, Gather)) for e in _loads(s.value))


def _loads(e: Expr) -> Iterator[Load | Gather]:
    """The loads in an expression, but for those of offsets."""
    if isinstance(e, (Load, Gather)):
        yield e
    else:
        for a in getattr(e, "args", ()):
            yield from _loads(a)
