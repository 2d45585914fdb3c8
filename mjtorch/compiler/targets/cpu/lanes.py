"""Which loops are better run world by world than for a vector of worlds at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from mjtorch.compiler.ir.program import (
    BOOL,
    Assign,
    Buffer,
    Call,
    Collect,
    Declare,
    Expr,
    For,
    Group,
    If,
    Load,
    Local,
    Note,
    Statement,
    Store,
    While,
    blocks,
    mentions,
    uses as uses_of,
    walk,
    walk_expr,
)

# A vector's access at offsets takes as many instructions as it has worlds. A loop that writes so is a walk that each
# world takes in its own way, some much longer than others. It is run world by world, unless less than this share of all
# accesses are such: then it is better to do the others for all worlds at once.
SHARE = 0.05
# A loop around such loops is run so too if at least this share of its accesses is in them.
INNER = 0.3
# Elements that such loops may hold in variables of their own.
MEMORY = 8192
# Before them arrays may be filled with values of so many parts.
PREPARE = 4
# Between two of them there may be so many accesses for them to be run together.
BETWEEN = 1000
# How many turns a loop is taken to have whose number of turns is not known.
TURNS = 4


def lane_by_lane(s: While) -> bool:
    """Whether to run the loop for one world after the other: it writes at offsets, or does little but such loops."""
    if not _wanders([s]):
        return False
    inner = [x for x in _loops([*s.head, *s.body]) if _wanders([x])]
    moving, total = accesses([*s.head, *s.body])
    if not inner:
        return moving >= SHARE * total
    within = sum(TURNS * accesses([*x.head, *x.body])[1] for x in inner)
    return all(map(lane_by_lane, inner)) and within >= INNER * total


def regions(statements: Sequence[Statement], uses: Counter[Buffer]) -> Iterator[list[Statement]]:
    """The statements in order, those together that are to be run world by world together; each other one by itself.

    Together are loops with little between them, and what only prepares arrays for them, given the `uses` of the whole
    program.
    """
    k = 0
    while k < len(statements):
        end = _region_end(statements, k, uses)
        yield list(statements[k : max(end, k + 1)])
        k = max(end, k + 1)


def is_region(statements: Sequence[Statement]) -> bool:
    """Whether these, which `regions` found, are to be run world by world."""
    return any(isinstance(s, While) and lane_by_lane(s) for s in statements)


def _region_end(statements: Sequence[Statement], start: int, uses: Counter[Buffer]) -> int:
    """Where the region that begins at `start` ends; `start` if there is none."""
    end, between = start, 0
    for k in range(start, len(statements)):
        s = statements[k]
        if isinstance(s, While) and lane_by_lane(s):
            end, between = k + 1, 0
        elif _loops([s]) or (end == start and not _prepares(s)):
            break
        else:
            between += accesses([s])[1]
            if end > start and between > BETWEEN:
                break
    if end == start or isinstance(statements[start], Note):
        return start
    inside = uses_of(statements[start:end])
    first = next(k for k in range(start, end) if isinstance(statements[k], While))
    prepared = {x.buffer for x in _stores(statements[start:first])}
    return end if all(b.kind == "scratch" and inside[b] == uses[b] for b in prepared) else start


def _prepares(s: Statement) -> bool:
    """Whether `s` does little more than fill or copy arrays."""
    if isinstance(s, Store):
        return s.offset is None and not any(_offsets(s)) and sum(1 for _ in walk_expr(s.value)) <= PREPARE
    return isinstance(s, Note) or (isinstance(s, For) and not s.scope and all(map(_prepares, s.body)))


def own_memory(statements: Sequence[Statement], uses: Counter[Buffer]) -> tuple[list[Buffer], list[Buffer]]:
    """The arrays that these, run for one world, should hold in variables: a world's elements then lie side by side.

    Returns those that nothing else uses, given the `uses` of the whole program, and those that are written for others.
    """
    inside = uses_of(statements)
    written = {x.buffer: None for x in _stores(statements)}
    private = [b for b in written if b.kind == "scratch" and inside[b] == uses[b]]
    kept = [b for b in written if b.kind == "scratch" and inside[b] != uses[b]]
    room = MEMORY
    fits = []
    for b in [*private, *kept]:
        room -= b.size
        if room >= 0:
            fits.append(b)
    return [b for b in private if b in fits], [b for b in kept if b in fits]


def _stores(statements: Sequence[Statement]) -> list[Store]:
    return [s for s in walk(statements) if isinstance(s, Store)]


def is_move(s: For) -> bool:
    """Whether the loop, and those in it, only copy what lies at offsets that are the same in all turns."""
    loops = [x for x in walk([s]) if isinstance(x, For)]

    def is_fixed(o: Expr) -> bool:
        if isinstance(o, Load):
            return o.offset is None and not any(mentions(a, x.variable) for a, _ in o.index.terms for x in loops)
        return isinstance(o, Local)

    def copies(x: Statement) -> bool:
        if isinstance(x, For):
            return not x.scope and x.guard is None and all(map(copies, x.body))
        if not isinstance(x, Store) or x.offset is not None or x.buffer.kind != "scratch":
            return False
        v = x.value
        return isinstance(v, Load) and v.dtype != BOOL and v.offset is not None and is_fixed(v.offset)

    return copies(s)


def _wanders(statements: Sequence[Statement]) -> bool:
    return any(s.offset is not None for s in _stores(statements))


def _loops(statements: Sequence[Statement]) -> list[While]:
    """The outermost loops of unknown length."""
    return [x for s in statements for x in ([s] if isinstance(s, While) else _loops([y for b in blocks(s) for y in b]))]


def accesses(statements: Sequence[Statement]) -> tuple[int, int]:
    """How often memory is accessed at offsets of each world's own, and at all. Addresses do not count."""
    moving = total = 0
    for s in statements:
        for offset in _offsets(s):
            moving += offset
            total += 1
        if isinstance(s, While):
            inner, times = accesses([*s.head, *s.body]), TURNS
        elif isinstance(s, For):
            known = not s.start.terms and not s.stop.terms
            inner, times = accesses(s.body), s.stop.base - s.start.base if known else TURNS
        elif isinstance(s, (Group, If, Collect)):
            inner, times = accesses(s.body), s.size if isinstance(s, Collect) else 1
        else:
            continue
        moving, total = moving + times * inner[0], total + times * inner[1]
    return moving, total


def _offsets(s: Statement) -> Iterator[bool]:
    """For each access of `s` itself whether it is at an offset."""
    if isinstance(s, Store):
        yield s.offset is not None
        yield from _loads(s.value)
    elif isinstance(s, (Declare, Assign)):
        yield from _loads(s.value)


def _loads(e: Expr) -> Iterator[bool]:
    if isinstance(e, Load):
        yield e.offset is not None
    elif isinstance(e, Call):
        for a in e.args:
            yield from _loads(a)
