"""Transposition: matrices lie column by column where the lanes of a warp then reach for what lies side by side."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mjtorch.compiler.analysis.cost import WARP, trips
from mjtorch.compiler.analysis.dependence import Bounds, span, within
from mjtorch.compiler.ir.nodes import (
    BOOL,
    CONSTANT,
    FLOAT32,
    SCRATCH,
    UNIFORM,
    Atom,
    Buffer,
    Entry,
    Expr,
    For,
    Gather,
    Index,
    Item,
    Load,
    ParallelFor,
    Program,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.walk import Rewriter, bodies, expressions

# Smaller arrays lie in a few pieces of memory in any case. Bytes that memory moves at least.
SMALLEST, SECTOR = 64, 32
# How much less must be moved for it to pay.
LESS = 0.75


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a statement reads or writes an array.

    bounds: of the loop variables around it; lanes: the loops that lanes share out there; times: how often, by estimate
    """

    index: Index
    bounds: Bounds
    lanes: tuple[tuple[str, Index, Index], ...]
    times: float


def transpose(p: Program, width: int) -> Program:
    """Lay each matrix the way in which `width` lanes move less memory, if the program tells rows from columns."""
    places: dict[Buffer, list[Place]] = defaultdict(list)
    barred: set[Buffer] = set()
    for body in (p.uniform, p.body):
        for b, moving, place in places_of(body, {}, (), 1.0):
            if moving or b.kind not in (SCRATCH, UNIFORM, CONSTANT) or b.size < SMALLEST:
                barred.add(b)
            elif b not in barred:
                places[b].append(place)
    new: dict[Buffer, tuple[Buffer, dict[Index, Index]]] = {}
    for b, found in places.items():
        if b not in barred and (made := _transposed(b, found, width)) is not None:
            new[b] = made
    rewriter = _Transposed(new)
    constants = tuple(new[b][0] if b in new else b for b in p.constants)
    return dataclasses.replace(p, constants=constants, uniform=rewriter.body(p.uniform), body=rewriter.body(p.body))


def places_of(
    statements: Sequence[Statement], bounds: Bounds, lanes: tuple[tuple[str, Index, Index], ...], times: float
) -> Iterator[tuple[Buffer, bool, Place]]:
    """Each access to an array, and whether it is at an offset of each world's own."""
    for s in statements:
        inner, shared, each = within(s, bounds), lanes, times
        if isinstance(s, ParallelFor):
            shared = s.loops
        elif isinstance(s, For):
            each *= trips(s.start, s.stop, bounds, WARP)
        elif isinstance(s, While):
            each *= WARP.while_trips
        for e in expressions(s):
            if isinstance(e, (Load, Gather)):
                yield e.buffer, isinstance(e, Gather), Place(e.index, inner, shared, times)
        if isinstance(s, (Store, Scatter)):
            yield s.buffer, isinstance(s, Scatter), Place(s.index, inner, shared, times)
        for body in bodies(s):
            yield from places_of(body, inner, shared, each)


def _transposed(b: Buffer, places: Sequence[Place], width: int) -> tuple[Buffer, dict[Index, Index]] | None:
    """Another array for `b` and where in it each index of it is found, if that is possible, and pays."""
    sizes = Counter(abs(k) for x in places for _, k in x.index.terms if 1 < abs(k) < b.size)
    for columns, _ in sizes.most_common():
        rows = -(-b.size // columns)
        apart = rows | 1  # an odd number: lanes that reach for a row do not meet in a bank
        moved: dict[Index, Index] = {}
        for x in places:
            to = column_by_column(x.index, x.bounds, columns, apart)
            if to is None or moved.setdefault(x.index, to) != to:
                break
        else:
            before = sum(x.times * sectors(b, x, x.index, width) for x in places)
            after = sum(x.times * sectors(b, x, moved[x.index], width) for x in places)
            if after > LESS * before:
                return None
            return dataclasses.replace(b, size=apart * columns, constant=_columns(b, columns, apart)), moved
    return None


def _columns(b: Buffer, columns: int, apart: int) -> np.ndarray | None:
    """The elements of a constant, column by column."""
    if b.constant is None:
        return None
    made = np.zeros((columns, apart), dtype=b.constant.dtype)
    place = np.arange(b.size)
    made[place % columns, place // columns] = b.constant
    return made.ravel()


def column_by_column(i: Index, bounds: Bounds, columns: int, apart: int) -> Index | None:
    """An index of a matrix of rows of so many `columns`, in one of columns that lie so far `apart`.

    None if it is not known which row and which column it speaks of.
    """
    if len(i.terms) == 1 and isinstance(i.terms[0][0], Entry):
        entry, k = i.terms[0]
        assert isinstance(entry, Entry)
        table = tuple((i.base + k * x) % columns * apart + (i.base + k * x) // columns for x in entry.table)
        return Index(0, ((Entry(table, entry.index), 1),))
    row, column = Index(), Index()
    for atom, k in i.terms:
        q = abs(k) // columns * (1 if k > 0 else -1)
        row, column = row + Index(0, ((atom, q),) if q else ()), column + Index(0, ((atom, k - q * columns),))
    column = Index(0, tuple((a, k) for a, k in column.terms if k))
    ends = span(column, bounds)
    if ends is None:
        return None
    first = (i.base + ends[0]) // columns
    column = column + (i.base - first * columns)
    if ends[1] + column.base >= columns:
        return None
    return row + first + column * apart


def sectors(b: Buffer, x: Place, i: Index, width: int) -> float:
    """How many pieces of memory one access of all lanes touches, for all rounds of a shared out loop."""
    if not x.lanes:
        return 1
    counts = [1.0]
    for _, start, stop in x.lanes[1:]:
        counts.append(trips(start, stop, x.bounds, WARP))
    total = trips(*x.lanes[0][1:], x.bounds, WARP)
    for n in counts:
        total *= n
    used = max(1, min(width, round(total)))
    size = 4 if b.dtype in (FLOAT32, BOOL) else 8
    touched = {_at(i, _lane(x, t)) * size // SECTOR for t in range(used)}
    return len(touched) * max(1.0, total / width)


def _lane(x: Place, t: int) -> dict[Atom, int]:
    """The values of loop variables in a lane of the first round; where a loop begins, for those around and within."""
    values = {a: ends[0] for a, ends in x.bounds.items()}
    for variable, start, stop in reversed(x.lanes):
        count = max(1, round(trips(start, stop, x.bounds, WARP)))
        values[Variable(variable)] = values.get(Variable(variable), 0) + t % count
        t //= count
    return values


def _at(i: Index, values: Mapping[Atom, int]) -> int:
    total = i.base
    for atom, k in i.terms:
        if isinstance(atom, Entry):
            total += k * atom.table[min(max(_at(atom.index, values), 0), len(atom.table) - 1)]
        elif isinstance(atom, Item):
            total += k * _at(atom.index, values)
        else:
            total += k * values.get(atom, 0)
    return total


class _Transposed(Rewriter):
    """Other arrays, and other places in them."""

    def __init__(self, new: Mapping[Buffer, tuple[Buffer, dict[Index, Index]]]) -> None:
        self.new = new

    def expr(self, e: Expr) -> Expr:
        """An expression."""
        e = super().expr(e)
        if isinstance(e, Load) and e.buffer in self.new:
            buffer, moved = self.new[e.buffer]
            return Load(buffer, moved[e.index])
        return e

    def statement(self, s: Statement) -> Sequence[Statement]:
        """A statement."""
        (s,) = super().statement(s)
        if isinstance(s, Store) and s.buffer in self.new:
            buffer, moved = self.new[s.buffer]
            s = dataclasses.replace(s, buffer=buffer, index=moved[s.index])
        return (s,)
