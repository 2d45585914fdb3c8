"""Leave out what loops do for slots past the last that is taken in some world: cost follows what is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mjtorch.compiler.analysis.dependence import writes_and_reads
from mjtorch.compiler.analysis.tail_values import Axes, Slots, Tail, Value, adds_nothing, alike, repeats, through
from mjtorch.compiler.analysis.tails import Tails, apart, flags
from mjtorch.compiler.ir.nodes import (
    BOOL,
    OUTPUT,
    Assign,
    Body,
    Buffer,
    Call,
    Compact,
    Declare,
    Expr,
    For,
    Gather,
    Number,
    Program,
    Statement,
)
from mjtorch.compiler.ir.walk import bodies, is_program, loads, map_bodies, walk, with_body

# Fewer slots are not worth the looks at how many are taken.
LEAST = 12


def trim_loops(p: Program) -> Program:
    """End loops through slots, such as those of contacts, at the last that is taken in some world side by side.

    What lies past it is not written, unless something reads it. A zero that meets an infinity or NaN there gives 0.
    """
    for slots in flags(p.body, LEAST):
        p = with_body(p, _trimmed(p.body, slots, p))
    return p


def _trimmed(statements: Body, slots: Slots, p: Program) -> Body:
    """The statements of a program, trimmed from where it is known how many slots are taken."""
    for k, s in enumerate(statements):
        if slots not in flags([s], LEAST):
            continue
        if is_program(s):
            new = map_bodies(s, lambda body: _trimmed(body, slots, p))
            return (*statements[:k], new, *statements[k + 1 :])
        if slots.count.buffer in writes_and_reads(statements[k:])[0]:
            return statements
        trim = _Trim(slots, statements, k, p)
        return trim.body(trim.scope)
    return statements


class _Trim:
    """Which loops of a scope end early, and how."""

    def __init__(self, slots: Slots, scope: Body, first: int, p: Program) -> None:
        mine = set(walk(scope))
        others = [s for s in walk(p.body) if s not in mine and not bodies(s)]
        written, read = writes_and_reads(others)
        elsewhere = {b for b in written | read if isinstance(b, Buffer)}
        self.slots, self.scope = slots, scope
        self.tails = Tails(slots, scope, first, elsewhere)
        while self.tails.cuts:
            self.scope = apart(self.scope, self.tails.cuts)
            self.tails = Tails(slots, self.scope, first, elsewhere)
        self.needed = {b for b in self.tails.slot if b.kind == OUTPUT}
        # What finds out whether something is in a list is done for all that may be.
        self.asked = {through(s) for s in walk(self.scope) if isinstance(s, Compact) and self._shortened(s) is None}
        readers = self._readers()
        self.trimmed = set(self.tails.loops.values())
        while failed := {t for t in self.trimmed if not self._may_end(t)}:
            self.trimmed -= failed
            for t in failed:
                self.needed |= readers.get(t, set())

    def _readers(self) -> dict[Tail, set[Buffer]]:
        """What loops read of tails in iterations of the same slots; what is read in any other way is needed."""
        found: dict[Tail, set[Buffer]] = {}
        for s, axes, tail in self.tails.statements():
            own = axes.inside(s) if self._shortened(s) is not None else axes
            for e in loads(s):
                slot = self.tails.slot.get(e.buffer)
                if slot is None:
                    continue
                at = None if isinstance(e, Gather) else own.index(e.index)
                if tail is not None and at is not None and (slot[at] <= tail.of(at.ndim)).all():
                    found.setdefault(tail, set()).add(e.buffer)
                elif at is None or not self._is_taken(slot[at], own):
                    self.needed.add(e.buffer)
        return found

    def _is_taken(self, slot: np.ndarray, axes: Axes) -> bool:
        """Whether slots (axes) are none, or up to some that a statement around has selected."""
        if (slot < 0).all():
            return True
        for k, loop in enumerate(axes.loops):
            if loop in self.asked:
                continue
            tail = self.tails.filters.get(loop)
            if tail is not None and (slot <= tail.slot.reshape((-1,) + (1,) * (slot.ndim - k - 1))).all():
                return True
        return False

    def _shortened(self, s: Statement) -> Tail | None:
        """The slots that a list is made of, if nothing else happens meanwhile."""
        if not isinstance(s, Compact):
            return None
        within = list(walk(s.body))
        own = {x.local for x in within if isinstance(x, Declare)}
        if not all(isinstance(x, (Declare, For)) or (isinstance(x, Assign) and x.local in own) for x in within):
            return None
        return self.tails.filters.get(through(s))

    def _may_end(self, t: Tail) -> bool:
        """Whether all that the rest of a loop does is to store what nobody reads, or constants, and to add nothing."""
        return (
            t.plain
            and all(adds_nothing(s, v) or (repeats(s) and _constant(v) is not None) for s, v in t.folds)
            and all(self._is_dead(s.buffer) or _constant(value) is not None for s, _, value in t.stores)
            and all(b in self.tails.inside or b in self.tails.slot for b in {s.buffer for s, _, _ in t.stores})
        )

    def _is_dead(self, b: Buffer) -> bool:
        return b in self.tails.inside or b not in self.needed

    def body(self, statements: Body) -> Body:
        """Statements, trimmed."""
        return tuple(x for s in statements for x in self.statement(s))

    def statement(self, s: Statement) -> Sequence[Statement]:
        """A statement, trimmed."""
        if (t := self._shortened(s)) is not None:
            assert isinstance(s, Compact)
            return (dataclasses.replace(s, holes=_with(s.holes, self._limit(t), t)),)
        t = self.tails.loops.get(s) if isinstance(s, For) else None
        if t is None or t not in self.trimmed:
            return (map_bodies(s, self.body),)
        limit = self._limit(t)
        first, last = t.loop.start + t.first, t.loop.start + t.last
        found: list[Statement] = [dataclasses.replace(t.loop, holes=_with(t.loop.holes, limit, t))]
        rest = self._rest(t)
        if rest:
            found.append(For(t.loop.variable, first, last, rest, since=limit, origin=t.loop.origin))
        some_free = Call("lt", (self.slots.count, Number(self.slots.size, limit.dtype)), BOOL)
        for x, value in t.folds:
            if not adds_nothing(x, value):
                assert isinstance(x.value, Call)
                more = Call(x.value.op, (x.local, Number(_constant(value), x.local.dtype)), x.local.dtype)
                chosen = Call("where", (some_free, more, x.local), x.local.dtype)
                found.append(Assign(x.local, chosen, origin=x.origin))
        return found

    def _limit(self, t: Tail) -> Expr:
        """The iteration at which the slots of a world end."""
        dtype = self.slots.count.dtype
        limit: Expr = self.slots.count
        if t.each > 1:
            limit = Call("mul", (limit, Number(t.each, dtype)), dtype)
        first = t.first + t.loop.start.base
        return Call("add", (limit, Number(first, dtype)), dtype) if first else limit

    def _rest(self, t: Tail) -> Body:
        """What past the last slot is stored for others to read."""
        found: list[Statement] = []
        for s, axes, value in t.stores:
            if self._is_dead(s.buffer):
                continue
            new: Statement = dataclasses.replace(s, value=Number(_constant(value), s.buffer.dtype))
            for loop in reversed(axes.loops[len(t.axes.loops) :]):
                new = For(loop.variable, loop.start, loop.stop, (new,), origin=s.origin)
            found.append(new)
        return tuple(found)


def _with(holes: Sequence[tuple[Expr, int]], limit: Expr, t: Tail) -> tuple[tuple[Expr, int], ...]:
    """With another part that is left out."""
    return tuple(sorted([*holes, (limit, t.loop.start.base + t.last)], key=lambda hole: hole[1]))


def _constant(v: Value) -> object | None:
    """The one number that it is everywhere, if it is known."""
    if not v.is_constant:
        return None
    first = v.number.flat[0]
    return first.item() if alike(v.number, first).all() else None
