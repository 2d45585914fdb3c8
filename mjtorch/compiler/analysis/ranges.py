"""Between which ends the integers of a program lie, whatever its inputs are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

from mjtorch.compiler.analysis.dependence import span
from mjtorch.compiler.ir.nodes import (
    BOOL,
    FLOAT32,
    FLOAT64,
    WHOLE,
    Assign,
    Atom,
    Body,
    Buffer,
    Call,
    Compact,
    Declare,
    Expr,
    For,
    FromIndex,
    Gather,
    Index,
    Item,
    Length,
    Load,
    Local,
    Number,
    Pack,
    Program,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.walk import bodies, walk_expr

# The smallest and the largest that a value may be, both included.
Range = tuple[float, float]
EVERYTHING = (-math.inf, math.inf)
# After so many times that its range grew, a value is taken for unbounded on that side.
PATIENCE = 8
# Through so many places of floats it is looked what an integer is made of.
STEPS = 3
FLOATS = (FLOAT32, FLOAT64)
# How far floats are off by rounding, relative to one and their size, at most.
ROUNDING = 2.0**-16
# Where a value is kept: an array, or the name of a variable.
Place = Buffer | str


@dataclasses.dataclass(frozen=True)
class _Write:
    """A value that a place gets, so many `times` for each declaration of a variable."""

    value: Expr
    times: float
    declares: bool


class Ranges:
    """The ranges of what a program computes, found by looking at all that is ever written to an array or variable."""

    def __init__(self, p: Program) -> None:
        # As `Bounds` are, but ends may be infinite.
        self.bounds: dict[Atom, Any] = {}
        self.writes: dict[Place, list[_Write]] = {}
        self.loops: list[float] = []
        self.depth: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        for body in (p.uniform, p.body):
            self._collect(body)
        self.known: dict[Place, Range] = {}
        self.wanted = self._wanted()
        self._solve()

    def of(self, e: Expr) -> Range:
        """The range of a value."""
        return self._expr(e) or (0, 0)  # of what nothing is ever written to

    def at(self, place: Place) -> Range:
        """The range of what an array or a variable holds."""
        return self._place(place) or (0, 0)

    # --- what is written where ---

    def _collect(self, body: Body) -> None:
        for s in body:
            self._statement(s)

    def _statement(self, s: Statement) -> None:
        times = 1.0
        if isinstance(s, (Store, Scatter)):
            self.writes.setdefault(s.buffer, []).append(_Write(s.value, math.inf, False))
        elif isinstance(s, (Declare, Assign)):
            declares, name = isinstance(s, Declare), s.local.name
            if declares:
                self.depth[name] = 0 if name in self.depth else len(self.loops)
            again = math.prod(self.loops[self.depth.get(name, 0) :])
            self.writes.setdefault(name, []).append(_Write(s.value, again, declares))
        elif isinstance(s, For):
            self._bound(s.variable, self._index(s.start), self._index(s.stop))
            low, high = self._index(s.start)[0], self._index(s.stop)[1]
            times = max(1.0, high - low)
        elif isinstance(s, Compact):
            self.sizes[s.list] = max(s.size, self.sizes.get(s.list, 0))
            self._bound(s.variable, (0, 0), (s.size, s.size))
        elif isinstance(s, Pack):
            self._bound(s.variable, (0, 0), (s.size, s.size))
        elif isinstance(s, While):
            times = math.inf
        self.loops.append(times)
        for inner in bodies(s):
            self._collect(inner)
        self.loops.pop()

    def _bound(self, variable: str, start: Range, stop: Range) -> None:
        """Names of loop variables may come again: they have the range of all these loops."""
        low, high = self.bounds.get(Variable(variable), (math.inf, -math.inf))
        self.bounds[Variable(variable)] = min(low, start[0]), max(high, start[0], stop[1] - 1)

    def _index(self, i: Index) -> Range:
        """The range of an address."""
        bounds = self.bounds
        for atom, _ in i.terms:
            if isinstance(atom, (Item, Length)):
                bounds = {**bounds, atom: (0, self.sizes[atom.list] - isinstance(atom, Item))}
        return span(i, bounds) or EVERYTHING

    # --- the ranges that follow ---

    def _solve(self) -> None:
        """Ranges grow from nothing until all that is written is in them."""
        users: dict[Place, list[Place]] = {}
        for place in self.wanted:
            for read in self._reads(place):
                users.setdefault(read, []).append(place)
        grown: dict[Place, int] = {}
        waiting = dict.fromkeys(self.wanted)
        while waiting:
            place = next(iter(waiting))
            del waiting[place]
            old, new = self.known.get(place), self._written(place)
            if new is None or new == old:
                continue
            if old is not None:
                grown[place] = grown.get(place, 0) + 1
                low, high = min(old[0], new[0]), max(old[1], new[1])
                if grown[place] > PATIENCE:
                    low, high = (-math.inf if low < old[0] else low), (math.inf if high > old[1] else high)
                new = low, high
            if new != old:
                self.known[place] = new
                waiting |= dict.fromkeys(users.get(place, ()))

    def _wanted(self) -> dict[Place, None]:
        """The places of integers, and of floats that these are made of, a few steps back."""
        found = {p: None for p, writes in self.writes.items() if any(w.value.dtype in WHOLE for w in writes)}
        last = list(found)
        for _ in range(STEPS):
            read = dict.fromkeys(r for place in last for r in self._reads(place))
            last = [p for p in read if p in self.writes and p not in found]
            found |= dict.fromkeys(last)
        return found

    def _reads(self, place: Place) -> list[Place]:
        return [r for w in self.writes.get(place, ()) for r in _read(w.value)]

    def _written(self, place: Place) -> Range | None:
        """The range of all that is written to a place."""
        writes = self.writes[place]
        terms = [] if isinstance(place, Buffer) else [_added(w.value, place) for w in writes if not w.declares]
        if terms and all(t is not None for t in terms):
            return self._sum(writes, [t for t in terms if t is not None])
        return _union(self._expr(w.value) for w in writes)

    def _sum(self, writes: list[_Write], terms: list[Expr]) -> Range | None:
        """The range of a variable that things are added to, as often as the loops around say."""
        found = _union(self._expr(w.value) for w in writes if w.declares)
        times = [w.times for w in writes if not w.declares]
        for term, n in zip(terms, times, strict=True):
            own = self._expr(term)
            if found is None or own is None:
                return None
            low, high = (0.0 if end == 0 else end * n for end in (min(own[0], 0), max(own[1], 0)))
            found = found[0] + low, found[1] + high
        return found

    def _place(self, place: Place) -> Range | None:
        if isinstance(place, Buffer) and place.constant is not None:
            values = place.constant
            if not len(values) or values.dtype.kind == "f":
                return EVERYTHING
            return int(values.min()), int(values.max())
        return self.known.get(place) if place in self.wanted else EVERYTHING

    def _expr(self, e: Expr) -> Range | None:
        """The range of a value; None where it is made of what nothing is known to be written to yet."""
        if e.dtype == BOOL:
            return 0, 1
        if isinstance(e, Number):
            return EVERYTHING if math.isnan(e.value) else (e.value, e.value)
        if isinstance(e, FromIndex):
            return self._index(e.index)
        if isinstance(e, (Load, Gather)):
            return self._place(e.buffer)
        if isinstance(e, Local):
            return self._place(e.name)
        if e.op not in KNOWN:
            return EVERYTHING
        args = [self._expr(a) for a in e.args]
        known = [a for a in args if a is not None]
        return _call(e, known) if len(known) == len(args) else None


def _read(e: Expr) -> Iterator[Place]:
    """The places that the range of a value depends on: of flags none."""
    if e.dtype == BOOL:
        return
    if isinstance(e, (Load, Gather)):
        yield e.buffer
    elif isinstance(e, Local):
        yield e.name
    elif isinstance(e, Call) and e.op in KNOWN:
        for a in e.args:
            yield from _read(a)


def _added(e: Expr, name: str) -> Expr | None:
    """What is added to a variable, if `e` is the variable and something else."""
    match e:
        case Call("add", (Local(own), more)) if own == name:
            again = any(isinstance(x, Local) and x.name == name for x in walk_expr(more))
            return None if again else more
    return None


def _union(ranges: Iterator[Range | None]) -> Range | None:
    found = [r for r in ranges if r is not None]
    return (min(low for low, _ in found), max(high for _, high in found)) if found else None


def _call(e: Call, args: list[Range]) -> Range:
    """The range of an operation, from those of its arguments."""
    if e.op in CORNERS:
        (a, b), values = args, []
        for x in a:
            for y in b:
                value = CORNERS[e.op](x, y)
                if math.isnan(value):
                    return EVERYTHING
                values.append(value)
        return min(values), max(values)
    if e.op in OTHERS:
        return OTHERS[e.op](*args)
    if e.op == "cast":
        (low, high) = args[0]
        # Floats may have been rounded on their way. Of what is no number nothing is said, as in PyTorch.
        slack = ROUNDING if e.args[0].dtype in FLOATS and e.dtype in WHOLE else 0.0
        return (low - (1 + abs(low)) * slack, high + (1 + abs(high)) * slack) if slack else (low, high)
    return EVERYTHING


def _product(x: float, y: float) -> float:
    return 0 if x == 0 or y == 0 else x * y


def _shifted(x: float, y: float) -> float:
    return x * 2.0**y if 0 <= y < 64 else math.nan


def _remainder(a: Range, b: Range) -> Range:
    return (0, b[1] - 1) if b[0] > 0 else EVERYTHING


def _quotient(a: Range, b: Range) -> Range:
    if b[0] <= 0:
        return EVERYTHING
    most = max(abs(a[0]), abs(a[1])) if a != EVERYTHING else math.inf
    return (0 if a[0] >= 0 else -most), (0 if a[1] <= 0 else most)


def _bits(a: Range, b: Range) -> Range:
    """Of all that has no more bits."""
    if math.inf in (a[1], b[1]) or -math.inf in (a[0], b[0]):
        return EVERYTHING
    most = 2 ** max(int(end).bit_length() for end in (*a, *b))
    return (0 if min(a[0], b[0]) >= 0 else -most), most - 1


def _absolute(a: Range) -> Range:
    low, high = sorted((abs(a[0]), abs(a[1])))
    return (0 if a[0] <= 0 <= a[1] else low), high


CORNERS: dict[str, Callable[[float, float], float]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": _product,
    "max": max,
    "min": min,
    "fmax": max,
    "fmin": min,
    "shl": _shifted,
}
OTHERS: dict[str, Callable[..., Range]] = {
    "neg": lambda a: (-a[1], -a[0]),
    "not": lambda a: (-a[1] - 1, -a[0] - 1),
    "abs": _absolute,
    "where": lambda flag, a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "remainder": _remainder,
    "idiv_floor": _quotient,
    "idiv_trunc": _quotient,
    "shr": lambda a, b: (min(a[0], 0), max(a[1], 0)) if b[0] >= 0 else EVERYTHING,
    "and": _bits,
    "or": _bits,
    "xor": _bits,
    "floor": lambda a: (a[0] - 1, a[1]),
    "ceil": lambda a: (a[0], a[1] + 1),
    "round": lambda a: (a[0] - 1, a[1] + 1),
    "trunc": lambda a: (min(a[0], 0), max(a[1], 0)),
}
KNOWN = {*CORNERS, *OTHERS, "cast"}
