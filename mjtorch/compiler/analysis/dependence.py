"""What statements read and write, and whether they, or iterations of a loop, depend on each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set

from mjtorch.compiler.ir.nodes import (
    Assign,
    Atom,
    Buffer,
    Compact,
    Declare,
    Entry,
    For,
    Gather,
    Index,
    Item,
    Load,
    Local,
    Pack,
    ParallelFor,
    Scatter,
    Statement,
    Store,
    Variable,
)
from mjtorch.compiler.ir.walk import bodies, expressions, loads, mentions, remembered

Range = tuple[int, int]
Bounds = dict[Atom, Range]
# Expressions that stand for what was stored or assigned.
NAMED = (Load, Gather, Local)


class Access:
    """One access to a buffer.

    index: where; moving: whether at an offset of each world's own; writes: whether it does, or reads
    bounds: the ranges of the loop variables around it
    """

    __slots__ = ("bounds", "buffer", "index", "moving", "writes")

    def __init__(self, buffer: Buffer, index: Index, moving: bool, writes: bool, bounds: Bounds) -> None:
        self.buffer, self.index, self.moving, self.writes, self.bounds = buffer, index, moving, writes, bounds


def accesses(statements: Sequence[Statement], bounds: Bounds) -> list[Access]:
    """All accesses to buffers, in the order of the text; of a store, its loads first."""
    return _accesses(statements, bounds, []) if bounds else [a for s in statements for a in _accesses_of(s)]


@remembered
def _accesses_of(s: Statement) -> list[Access]:
    """The same of one statement, of whose surroundings nothing is known."""
    return _accesses([s], {}, [])


def _accesses(statements: Sequence[Statement], bounds: Bounds, found: list[Access]) -> list[Access]:
    """`found`, and the accesses of `statements`."""
    for s in statements:
        for e in loads(s):
            found.append(Access(e.buffer, e.index, isinstance(e, Gather), False, bounds))
        if isinstance(s, (Store, Scatter)):
            found.append(Access(s.buffer, s.index, isinstance(s, Scatter), True, bounds))
        inside = bodies(s)
        inner = within(s, bounds) if inside else bounds
        for body in inside:
            _accesses(body, inner, found)
    return found


def within(s: Statement, bounds: Bounds) -> Bounds:
    """The ranges of loop variables inside `s`, as far as they are known."""
    if isinstance(s, (Compact, Pack)):
        return {**bounds, Variable(s.variable): (0, s.size - 1)}
    loops = ((s.variable, s.start, s.stop),) if isinstance(s, For) else s.loops if isinstance(s, ParallelFor) else ()
    for variable, start, stop in loops:
        low, high = span(start, bounds), span(stop, bounds)
        if low is not None and high is not None:
            bounds = {**bounds, Variable(variable): (low[0], max(low[0], high[1] - 1))}
    return bounds


def span(i: Index, bounds: Bounds) -> Range | None:
    """Smallest and largest value of an index, if the ranges of its variables are known."""
    low = high = i.base
    for atom, k in i.terms:
        if isinstance(atom, Entry):
            ends = (min(atom.table), max(atom.table))
        elif atom in bounds:
            ends = bounds[atom]
        else:
            return None
        values = (k * ends[0], k * ends[1])
        low, high = low + min(values), high + max(values)
    return low, high


def conflicts(a: Sequence[Statement], b: Sequence[Statement]) -> Set[Buffer | Local]:
    """Buffers and variables that both use and at least one writes."""
    (write_a, read_a), (write_b, read_b) = writes_and_reads(a), writes_and_reads(b)
    return (write_a & write_b) | (write_a & read_b) | (read_a & write_b)


def writes_and_reads(statements: Sequence[Statement]) -> tuple[Set[Buffer | Local], Set[Buffer | Local]]:
    """The buffers and variables that are written, and those that are read."""
    found = [_writes_and_reads_of(s) for s in statements]
    if len(found) == 1:
        return found[0]
    return set().union(*[x[0] for x in found]), set().union(*[x[1] for x in found])


@remembered
def _writes_and_reads_of(s: Statement) -> tuple[Set[Buffer | Local], Set[Buffer | Local]]:
    """The same of one statement."""
    inside = [_writes_and_reads_of(x) for body in bodies(s) for x in body]
    written: set[Buffer | Local] = set().union(*[x[0] for x in inside])
    read: set[Buffer | Local] = set().union(*[x[1] for x in inside])
    read.update([e if isinstance(e, Local) else e.buffer for e in expressions(s) if isinstance(e, NAMED)])
    if isinstance(s, (Store, Scatter)):
        written.add(s.buffer)
    elif isinstance(s, (Declare, Assign)):
        written.add(s.local)
    return written, read


def independent(a: Sequence[Statement], b: Sequence[Statement]) -> bool:
    """Whether it does not matter which of the two is done first."""
    return not conflicts(a, b)


def apart(a: Statement, b: Statement) -> bool:
    """Whether it does not matter which is done first, as they share nothing or use other parts of what they share."""
    one, other = (_parts_of(x) for x in (a, b))
    return all(isinstance(x, Buffer) and _disjoint(one.get(x), other.get(x)) for x in conflicts([a], [b]))


@remembered
def _parts_of(s: Statement) -> dict[Buffer, Range | None]:
    """Of each buffer that a statement uses, the first and last element that it may use; None: it is not known."""
    found: dict[Buffer, Range | None] = {}
    for b, used in by_buffer(_accesses_of(s)).items():
        spans = [None if x.moving else span(x.index, x.bounds) for x in used]
        known = [x for x in spans if x is not None]
        found[b] = (min(x[0] for x in known), max(x[1] for x in known)) if len(known) == len(spans) else None
    return found


def _disjoint(one: Range | None, other: Range | None) -> bool:
    return one is not None and other is not None and (one[1] < other[0] or other[1] < one[0])


def window(i: Index, variable: str, bounds: Bounds) -> tuple | None:
    """What part of memory an iteration stays in: equal for two accesses iff they can meet in one iteration only."""
    own = [(a, k) for a, k in i.terms if a == Variable(variable) or mentions(Index(0, ((a, 1),)), Variable(variable))]
    if len(own) != 1:
        return None
    atom, k = own[0]
    only = isinstance(atom, (Entry, Item)) and atom.index == Index(0, ((Variable(variable), 1),)) and len(i.terms) == 1
    if isinstance(atom, Entry):
        return ("table", i) if only and len(set(atom.table)) == len(atom.table) else None
    if isinstance(atom, Item):  # the entries of a list are all different
        return ("list", i) if only else None
    # Variables of loops further out are the same for all accesses: where they come alike they cancel.
    outer = frozenset(t for t in i.terms if t[0] is not atom and not _known(t[0], bounds))
    rest = span(Index(i.base, tuple(t for t in i.terms if t[0] is not atom and t not in outer)), bounds)
    if rest is None or k <= 0 or rest[0] // k != rest[1] // k:
        return None
    return "stride", k, outer, rest[0] // k


def _known(atom: Atom, bounds: Bounds) -> bool:
    if isinstance(atom, Entry):
        return all(_known(a, bounds) for a, _ in atom.index.terms)
    return atom in bounds


def iterations_apart(loop: For, body: Sequence[Statement]) -> bool:
    """Whether iterations of `loop` meet those of a loop with `body` in the same iteration only, wherever they meet."""
    shared = conflicts(loop.body, body)
    if any(isinstance(x, Local) for x in shared):
        return False
    found = by_buffer((*accesses(loop.body, {}), *accesses(body, {})))
    return all(stay_within(found[b], loop.variable) for b in shared if isinstance(b, Buffer))


def by_buffer(found: Iterable[Access]) -> dict[Buffer, list[Access]]:
    """Accesses to each buffer."""
    sorted_out: dict[Buffer, list[Access]] = {}
    for a in found:
        sorted_out.setdefault(a.buffer, []).append(a)
    return sorted_out


def stay_within(found: Sequence[Access], variable: str) -> bool:
    """Whether each iteration has a part of a buffer to itself, without gaps, in which all these accesses stay."""
    windows = {None if a.moving else window(a.index, variable, a.bounds) for a in found}
    return len(windows) == 1 and None not in windows


def keep_to_classes(found: Sequence[Access], loop: For) -> bool:
    """Whether each iteration has elements to itself whose offsets leave a remainder of its own, such as a column's."""
    variable = Variable(loop.variable)
    own = [dict(a.index.terms).get(variable, 0) for a in found]
    if any(a.moving for a in found) or len(set(own)) != 1 or not own[0] or loop.start.terms or loop.stop.terms:
        return False
    others = [Index(0, tuple(t for t in a.index.terms if t[0] != variable)) for a in found]
    if any(mentions(i, variable) for i in others):
        return False
    modulus = math.gcd(*(k for i in others for _, k in i.terms), *(a.index.base - found[0].index.base for a in found))
    # Without another term, and at one place, an element is one iteration's alone.
    return modulus == 0 or abs(own[0]) * (loop.stop.base - loop.start.base - 1) < modulus
