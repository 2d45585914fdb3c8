"""Find out what each world takes, so that in the next call worlds that take about the same are side by side.

Loops go on for all worlds side by side as long as one of them needs it: through as many slots as the world with most
contacts has taken, and for as many iterations as the slowest solver. What worlds take changes little from step to step.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from mjtorch.compiler.analysis.cost import CPU, trips, work
from mjtorch.compiler.analysis.dependence import Bounds, within, writes_and_reads
from mjtorch.compiler.ir.nodes import (
    BOOL,
    FLOAT32,
    OUTPUT,
    Body,
    Buffer,
    Call,
    Compact,
    Expr,
    For,
    Index,
    Load,
    Local,
    Number,
    Pack,
    Program,
    Scalarized,
    ScalarizedCopy,
    Statement,
    Store,
    While,
)
from mjtorch.compiler.ir.walk import bodies, map_bodies, walk, walk_expr

# What hangs on the world is to be at least this part of the work.
WORTH = 0.02
HERE = Index()


def measure_work(p: Program) -> Program:
    """Add up what loops took in each world that end when no world goes on: another output, if that is much."""
    m = _Measure()
    body = m.body(p.body, {})
    if m.most < WORTH * work(p.body, {}, CPU):
        return p
    out = Buffer(1, FLOAT32, OUTPUT, position=1 + max((b.position for b in p.outputs), default=-1))
    body = (Store(m.sum, HERE, Number(0.0, FLOAT32)), *body, Store(out, HERE, Load(m.sum, HERE)))
    return dataclasses.replace(p, outputs=(*p.outputs, out), body=body, work=out)


class _Measure:
    """Puts sums beside loops. most: what all that is measured takes at most; sum: where it is added up."""

    def __init__(self) -> None:
        self.sum, self.most = Buffer(1, FLOAT32), 0.0

    def body(self, statements: Body, bounds: Bounds, running: Expr | None = None) -> Body:
        """Statements, with the sums; `running`: in which worlds the loops around go on."""
        found: list[Statement] = []
        for s in statements:
            if isinstance(s, While):
                found.append(self._loop(s, bounds, running))
            elif isinstance(s, (Pack, Scalarized, ScalarizedCopy)) or not bodies(s):
                found.append(s)
            elif _is_constant(ends := _ends(s, bounds), s):
                found += [*self._ended(ends, running), s]
            else:
                around, inside = self.most, functools.partial(self.body, bounds=within(s, bounds), running=running)
                found.append(map_bodies(s, inside))
                if isinstance(s, For):
                    self._repeat(around, trips(s.start, s.stop, bounds, CPU))
        return tuple(found)

    def _repeat(self, around: float, times: float) -> None:
        """What has come since it was `around` comes so many times."""
        self.most = around + times * (self.most - around)

    def _loop(self, s: While, bounds: Bounds, running: Expr | None) -> While:
        """A loop that adds what an iteration takes."""
        around, goes_on = self.most, s.flag if running is None else Call("and", (running, s.flag), BOOL)
        body = self.body(s.body, bounds, goes_on)
        rest = max(0.0, work([*s.head, *s.body], bounds, CPU) - (self.most - around))
        self.most += rest
        self._repeat(around, CPU.while_trips)
        return dataclasses.replace(s, body=(self._added(Number(rest, FLOAT32), goes_on), *body))

    def _ended(self, ends: Sequence[End], running: Expr | None) -> Sequence[Store]:
        """What loops take that end early."""
        weights: dict[Expr, float] = {}
        for end in ends:
            weights[end.limit] = weights.get(end.limit, 0.0) + end.each
            self.most += end.each * end.most
        return [
            self._added(Call("mul", (Call("cast", (limit,), FLOAT32), Number(each, FLOAT32)), FLOAT32), running)
            for limit, each in weights.items()
        ]

    def _added(self, value: Expr, running: Expr | None) -> Store:
        if running is not None:
            value = Call("where", (running, value, Number(0.0, FLOAT32)), FLOAT32)
        return Store(self.sum, HERE, Call("add", (Load(self.sum, HERE), value), FLOAT32))


@dataclasses.dataclass(frozen=True)
class End:
    """A loop that ends at `limit`: what an iteration takes, all together, and how many there are at most."""

    limit: Expr
    each: float
    most: int


def _ends(s: Statement, bounds: Bounds, times: float = 1.0) -> list[End]:
    """Those within a statement, which is run so many times."""
    found = []
    inner = within(s, bounds)
    if isinstance(s, (For, Compact)):
        size = trips(s.start, s.stop, bounds, CPU) if isinstance(s, For) else s.size
        each = times * work(s.body, inner, CPU)
        found += [End(_limited(limit, stop), each, min(stop, round(size))) for limit, stop in s.holes]
        times *= size
    elif isinstance(s, (While, Pack)):
        return []
    return found + [end for body in bodies(s) for x in body for end in _ends(x, inner, times)]


def _limited(limit: Expr, stop: int) -> Expr:
    """A limit, which there may be more of than slots."""
    return Call("min", (limit, Number(stop, limit.dtype)), limit.dtype)


def _is_constant(ends: Sequence[End], s: Statement) -> bool:
    """Whether there are some, with limits that are known before `s`, and no other loop in it hangs on the world."""
    written, _ = writes_and_reads([s])
    loads = {e for end in ends for e in walk_expr(end.limit)}
    known = not any(isinstance(e, Local) or (isinstance(e, Load) and e.buffer in written) for e in loads)
    return bool(ends) and known and not any(isinstance(x, While) for x in walk([s]))
