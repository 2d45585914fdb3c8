"""How the statements of a program are spread over the lanes of a warp, which compute one world together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mjtorch.compiler.ir.program import (
    Assign,
    Buffer,
    Call,
    Collect,
    Declare,
    Expr,
    For,
    Group,
    If,
    Index,
    Load,
    Local,
    Note,
    Number,
    Statement,
    Store,
    Variable,
    While,
    expressions,
    walk,
    walk_expr,
)
from mjtorch.compiler.passes.fuse import Range, accesses, span, window

# What things cost, in units of one operation: a barrier and the wait for memory behind it, adding up over the lanes,
# a load, a function that is not one instruction.
BARRIER, FOLD, LOAD, FUNCTION = 10, 10, 2, 8
QUICK = {"add", "sub", "mul", "neg", "and", "or", "not", "xor", "where", "cast", "abs", "max", "min"}
QUICK |= {"eq", "ne", "lt", "le", "gt", "ge"}
# So many turns keep the lanes of a warp busy.
ENOUGH = 16
# How many turns a loop is taken to have whose number of turns is not known: over a list, and until something holds.
TURNS = 8
WHILE_TURNS = 3
# What lanes can add up, and what each begins with.
FOLDS = {"add": 0, "sub": 0, "mul": 1, "max": "-inf", "min": "inf", "or": False, "and": True}


@dataclasses.dataclass(frozen=True)
class Fold:
    """A variable from around a loop to which each turn adds something with `op`."""

    local: Local
    op: str


@dataclasses.dataclass(frozen=True)
class Spread:
    """Loops whose turns the lanes share out, from the outermost; each turn is one lane's."""

    loops: tuple[For, ...]
    folds: tuple[Fold, ...]

    @property
    def body(self) -> list[Statement]:
        """What is done in a turn."""
        return self.loops[-1].body


class Plan:
    """For each loop that is spread, how; all other statements are executed by all lanes alike.

    width: the number of lanes
    cost: an estimate of the instructions that each lane executes
    """

    def __init__(self, statements: Sequence[Statement], width: int) -> None:
        self.width = width
        self.spread: dict[int, Spread] = {}
        self.cost = self._alike(statements, {})

    def of(self, s: Statement) -> Spread | None:
        """How `s` is spread, if it is."""
        return self.spread.get(id(s))

    def _alike(self, statements: Sequence[Statement], bounds: dict[str, Range]) -> float:
        return sum(self._statement(s, bounds) for s in statements)

    def _statement(self, s: Statement, bounds: dict[str, Range]) -> float:
        if isinstance(s, For):
            return self._for(s, bounds)
        if isinstance(s, While):
            return WHILE_TURNS * (self._alike(s.head, bounds) + self._alike(s.body, bounds) + BARRIER)
        if isinstance(s, Collect):
            return 2 * BARRIER + -(-s.size // self.width) * (work(s.body, bounds) + BARRIER)
        if isinstance(s, If):
            return 1 + (self._alike(s.body, bounds) + self._alike(s.otherwise, bounds)) / 2
        if isinstance(s, Group):
            return self._alike(s.body, bounds)
        return work([s], bounds)

    def _for(self, s: For, bounds: dict[str, Range]) -> float:
        turns = trips(s, bounds)
        alike = turns * (1 + self._alike(s.body, within(s, bounds)))
        found = spreadable(s)
        if found is None:
            return alike
        count, inner = 1.0, bounds
        for loop in found.loops:
            count *= trips(loop, inner)
            inner = within(loop, inner)
        rounds = max(1, -(-count // self.width))
        spread = BARRIER + FOLD * len(found.folds) + rounds * (2 + work(found.body, inner))
        if spread >= alike:
            return alike
        for x in walk(s.body):
            self.spread.pop(id(x), None)
        self.spread[id(s)] = found
        return spread


def spreadable(s: For) -> Spread | None:
    """How the turns of `s`, and of loops that are all there is in it, can be shared out, if they can."""
    loops = [s]
    if not independent(s):
        return None
    while True:
        body = [x for x in loops[-1].body if not isinstance(x, Note)]
        inner = body[0] if len(body) == 1 else None
        if not isinstance(inner, For) or inner.scope or loops[-1].guard is not None or inner.guard is not None:
            break
        if inner.start.terms or inner.stop.terms or not independent(inner):
            break
        loops.append(inner)
    folds = folded(s)
    return None if folds is None else Spread(tuple(loops), folds)


def mergeable(a: For, b: For) -> bool:
    """Whether two loops over a range lose nothing by becoming one: their turns keep the lanes busy, or are alike."""
    first, second = spreadable(a), spreadable(b)
    if first is None or second is None:
        return False
    shapes = [[(x.start, x.stop) for x in found.loops] for found in (first, second)]
    return a.stop.base - a.start.base >= ENOUGH or shapes[0] == shapes[1]


def independent(s: For) -> bool:
    """Whether no turn of `s` reads or writes an element that another writes."""
    inside = list(walk(s.body))
    if s.scope or any(isinstance(x, While) or (isinstance(x, For) and x.scope) for x in inside):
        return False
    if s.parallel:
        return True
    written = {x.buffer for x in inside if isinstance(x, Store)}
    windows: dict[Buffer, set] = {}
    for b, index, offset, _, bounds in accesses(s.body, {}):
        if b in written:
            own = None if offset else _window(index, s.variable, bounds)
            if own is None:
                return False
            windows.setdefault(b, set()).add(own)
    return all(len(w) == 1 for w in windows.values())


def _window(i: Index, variable: str, bounds: dict[str, Range]) -> tuple | None:
    """As `window`, also for entries of lists, which are all different."""
    if any(isinstance(a, Variable) and "[" in a.name for a, _ in i.terms):
        alone = len(i.terms) == 1 and isinstance(a := i.terms[0][0], Variable) and a.name.endswith(f"[{variable}]")
        return ("list", i) if alone else None
    return window(i, variable, bounds)


def folded(s: For) -> tuple[Fold, ...] | None:
    """What the turns of `s` add to variables from around it; None if they do anything else to them."""
    inside = list(walk(s.body))
    declared = {x.local for x in inside if isinstance(x, Declare)}
    folds: dict[Local, str] = {}
    for x in inside:
        if not isinstance(x, Assign) or x.local in declared:
            continue
        v = x.value
        if not isinstance(v, Call) or v.op not in FOLDS or v.args[0] != x.local or folds.get(x.local, v.op) != v.op:
            return None
        folds[x.local] = v.op
    reads = sum(isinstance(e, Local) and e in folds for x in inside for e in expressions(x))
    own = sum(isinstance(x, Assign) and x.local in folds for x in inside)
    return tuple(Fold(*f) for f in folds.items()) if reads == own else None


def identity(f: Fold) -> Number:
    """What each lane begins with."""
    value = FOLDS[f.op]
    if isinstance(value, str):
        sign = -1 if value.startswith("-") else 1
        value = sign * (2**62) if f.local.dtype == "i64" else float(value)
    return Number(value, f.local.dtype)


def within(s: For, bounds: dict[str, Range]) -> dict[str, Range]:
    """The ranges of loop variables inside `s`."""
    low, high = span(s.start, bounds), span(s.stop, bounds)
    return bounds if low is None or high is None else {**bounds, s.variable: (low[0], max(low[0], high[1] - 1))}


def trips(s: For, bounds: dict[str, Range]) -> float:
    """How many turns `s` has, on average over the loops around it."""
    low, high = span(s.start, bounds), span(s.stop, bounds)
    return TURNS if low is None or high is None else max(0.0, (sum(high) - sum(low)) / 2)


def work(statements: Sequence[Statement], bounds: dict[str, Range]) -> float:
    """What the statements cost one lane that executes all of them."""
    total = 0.0
    for s in statements:
        if isinstance(s, For):
            total += trips(s, bounds) * (1 + work(s.body, within(s, bounds)))
        elif isinstance(s, While):
            total += WHILE_TURNS * work([*s.head, *s.body], bounds)
        elif isinstance(s, Collect):
            total += s.size * (2 + work(s.body, bounds))
        elif isinstance(s, If):
            total += 1 + (work(s.body, bounds) + work(s.otherwise, bounds)) / 2
        elif isinstance(s, Group):
            total += work(s.body, bounds)
        elif not isinstance(s, Note):
            total += 1 + price(s.value)
    return total


def price(e: Expr) -> float:
    """What an expression costs."""

    def one(x: Expr) -> int:
        if isinstance(x, Load):
            return LOAD
        if isinstance(x, Call):
            return 1 if x.op in QUICK else FUNCTION
        return 0

    return sum(map(one, walk_expr(e)))
