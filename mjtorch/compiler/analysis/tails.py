"""What arrays hold past the items that there are.

Contacts, and the rows that they make, have more slots than there are contacts: a flag `k < count` says which slots are
taken. Many arrays have an element, or several, for each slot. In their *tail*, past the last taken slot, most hold what
does not depend on the world: zeros, and what follows from zeros. Which elements belong to which slot is found out from
the loops that go through slots, and what tails hold by running these loops in numpy for slots that are not taken.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mjtorch.compiler.analysis.tail_values import ANYTHING, NOTHING, Axes, Elements, Run, Slots, Tail, through
from mjtorch.compiler.ir.interpret import TYPES
from mjtorch.compiler.ir.nodes import (
    SCRATCH,
    WHOLE,
    Body,
    Buffer,
    Call,
    Compact,
    Expr,
    For,
    FromIndex,
    Index,
    Load,
    Pack,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.walk import bodies, expressions, loads, map_bodies, remembered, walk

# Elements that have not come up, and those of no slot.
NOT_SEEN, NO_SLOT = -2, -1
# A loop through all slots several times is two or more loops, if it has no more statements.
SHORT = 256


def flags(statements: Sequence[Statement], least: int) -> list[Slots]:
    """All slots, at least so many, that flags are about, in the order of the text."""
    found: dict[Load, Slots] = {}
    for s in statements:
        for slots in _flags_in(s):
            if slots.size >= least:
                found.setdefault(slots.count, slots)
    return list(found.values())


@remembered
def _flags_in(s: Statement) -> list[Slots]:
    """The slots that flags in a statement are about."""
    found: list[Slots] = []
    if isinstance(s, For) and s.start == Index() and not s.stop.terms:
        for e in (e for x in walk(s.body) for e in expressions(x)):
            if isinstance(e, Call) and e.op == "lt" and is_place(e.args[0], s):
                count = e.args[1]
                is_one = isinstance(count, Load) and not count.index.terms and count.buffer.kind == SCRATCH
                if is_one and count.dtype in WHOLE:
                    assert isinstance(count, Load)
                    found.append(Slots(count, s.stop.base))
    return found + [slots for body in bodies(s) for x in body for slots in _flags_in(x)]


def is_place(e: Expr, loop: For) -> bool:
    """Whether `e` is the variable of a loop, or out of a table that says so, as a whole number of any width."""
    if isinstance(e, Call) and e.op == "cast" and e.dtype in WHOLE:
        return is_place(e.args[0], loop)
    here = Index(0, ((Variable(loop.variable), 1),))
    if isinstance(e, FromIndex):
        return e.index == here
    if not isinstance(e, Load) or e.buffer.constant is None or e.index != here:
        return False
    return e.buffer.size >= loop.stop.base and bool((e.buffer.constant == np.arange(e.buffer.size)).all())


def using_arrays(statements: Sequence[Statement], axes: Axes) -> list[tuple[Statement, Axes, tuple[For, ...]]]:
    """The statements that use arrays, or select from something; the axes and the loops around them."""
    found: list[tuple[Statement, Axes, tuple[For, ...]]] = []

    def visit(statements: Sequence[Statement], axes: Axes, loops: tuple[For, ...]) -> None:
        for s in statements:
            if isinstance(s, (Store, Scatter, Compact, Pack)) or expressions(s):
                found.append((s, axes, loops))
            inside = bodies(s)
            if inside:
                inner, around = (axes.inside(s), (*loops, s)) if isinstance(s, For) else (axes.inside(s), loops)
                for body in inside:
                    visit(body, inner, around)

    visit(statements, axes, ())
    return found


def long_loops(
    statements: Sequence[Statement], least: int, axes: Axes, loops: tuple[For, ...]
) -> Iterator[tuple[For, Axes, tuple[For, ...]]]:
    """Loops that run at least so often, equally often in all worlds; their axes and the loops around them."""
    for s in statements:
        inside = bodies(s)
        if inside:
            inner, around = axes.inside(s), (*loops, s) if isinstance(s, For) else loops
            if isinstance(s, For) and s.has_fixed_ends and s.since is None and s.stop.base - s.start.base >= least:
                yield s, inner, loops
            for body in inside:
                yield from long_loops(body, least, inner, around)


def runs(slot: np.ndarray, size: int) -> list[tuple[int, int, int]]:
    """Where iterations go through all slots, given the slot of each: from which on, up to which, how many of each.

    Nothing if they go through some in any other way.
    """
    starts = np.flatnonzero((slot == 0) & (np.append(NO_SLOT, slot[:-1]) != 0))
    if not len(starts) or (slot[: starts[0]] >= 0).any():
        return []
    found = []
    for start, stop in itertools.pairwise([*starts.tolist(), len(slot)]):
        mine = slot[start:stop]
        count = int((mine >= 0).sum())
        each = count // size
        if not each or count != each * size or (mine[:count] != np.repeat(np.arange(size), each)).any():
            return []
        found.append((start, start + count, each))
    return found


def is_short(loop: For) -> bool:
    """Whether there may as well be several of a loop."""
    statements = list(walk(loop.body))
    return len(statements) <= SHORT and not any(isinstance(s, (Compact, Pack, Scatter, While)) for s in statements)


def apart(statements: Body, cuts: Mapping[For, Sequence[int]]) -> Body:
    """With loops that are cut in front of some of their iterations."""
    found: list[Statement] = []
    for s in statements:
        if isinstance(s, For) and s in cuts:
            ends = [s.start, *(s.start + k for k in cuts[s]), s.stop]
            for one, two in itertools.pairwise(ends):
                holes = tuple(hole for hole in s.holes if one.base < hole[1] <= two.base)
                found.append(dataclasses.replace(s, start=one, stop=two, holes=holes))
        else:
            found.append(map_bodies(s, lambda body: apart(body, cuts)))
    return tuple(found)


class Tails:
    """The loops of a scope that go through slots, and the arrays that have elements for these.

    cuts: where loops are to be cut, so that each part goes through the slots once; if there are some, nothing else is
        known
    slot: of each element; elements: what these hold if it is not taken
    inside: arrays that nothing but one of the loops uses, and it in each iteration anew
    filters: loops over what statements select from, and over lists, of which all that is selected is taken
    """

    def __init__(self, slots: Slots, scope: Body, first: int, elsewhere: set[Buffer]) -> None:
        """first: the statement from which on it is known how many are taken; elsewhere: arrays touched outside, too."""
        self.slots, self.elsewhere = slots, elsewhere
        self.whole = set(elsewhere)
        lists = [s for s in walk(scope) if isinstance(s, Compact)]
        names = Counter(s.list for s in lists)  # branches may both make a list
        once = {s.list: dataclasses.replace(through(s), variable=s.list) for s in lists if names[s.list] == 1}
        self.axes = Axes((), once)
        self.using = using_arrays(scope, self.axes)
        self.candidates = list(long_loops(scope[first:], slots.size, self.axes, ()))
        self.slot: dict[Buffer, np.ndarray] = {}
        self.loops: dict[For, Tail] = {}
        while self._arrange():
            pass
        self.cuts = {loop: tail.cuts for loop, tail in self.loops.items() if tail.cuts}
        if self.cuts:
            return
        self.inside = self._inside()
        self.slot = {b: x for b, x in self.slot.items() if b not in self.whole}
        seen = [*self.slot, *(b for b in self.inside if b not in self.slot)]
        number: dict[Buffer, np.ndarray] = {b: np.zeros(b.size, TYPES[b.dtype]) for b in seen}
        state = {b: np.full(b.size, NOTHING, np.int8) for b in seen}
        self.elements = Elements(slots, self.slot, number, state)
        self._settle()
        for x in state.values():
            x[x == NOTHING] = ANYTHING
        self._settle()
        self.filters: dict[For, Tail] = {}
        for s, axes, _ in self.statements():
            if isinstance(s, (Compact, Pack)) and (tail := self._filter(s, axes)) is not None:
                self.filters[through(s)] = tail
                if isinstance(s, Compact) and s.list in once:
                    self.filters[once[s.list]] = tail

    def _settle(self) -> None:
        """Run all loops until no more comes of it."""
        self.elements.changed = True
        while self.elements.changed:
            self.elements.changed = False
            for tail in self.loops.values():
                Run(self.elements, tail).all()

    def _filter(self, s: Compact | Pack, axes: Axes) -> Tail | None:
        """What a statement that selects slots goes through, if all that it selects are taken."""
        tail = self._tail(through(s), axes.inside(s))
        if tail is None:
            return None
        run = Run(self.elements, tail)
        if isinstance(s, Compact):
            run.body(s.body, tail.past())
        return tail if run.value(s.flag, tail.past()).is_all(False) else None

    def statements(self) -> Iterator[tuple[Statement, Axes, Tail | None]]:
        """All that use arrays, with the loops around them, and the one of these that goes through slots."""
        around: tuple[For, ...] = ()
        tail: Tail | None = None
        for s, axes, loops in self.using:
            if loops is not around:  # statements that follow one another mostly have the same
                around, tail = loops, next((self.loops[x] for x in loops if x in self.loops), None)
            yield s, axes, tail

    # --- which elements and iterations belong to which slot ---

    def _arrange(self) -> bool:
        """Find loops and slots; whether arrays turn out to have none that were taken to have some."""
        self.slot, self.loops = {}, {}
        while self._find():
            pass
        before = len(self.whole)
        for s, axes, tail in self.statements():
            if isinstance(s, (Store, Scatter)) and s.buffer in self.slot and not self._keeps(s, axes, tail):
                self.whole.add(s.buffer)
        return len(self.whole) > before

    def _find(self) -> bool:
        """Find loops through slots by what they read; whether there are more than before."""
        more = False
        for loop, axes, around in self.candidates:
            if loop in self.loops or any(x in self.loops for x in around):
                continue
            tail = self._tail(loop, axes)
            if tail is not None:
                for inner in [x for x, _, outer in self.candidates if x in self.loops and loop in outer]:
                    del self.loops[inner]
                self.loops[loop] = tail
                self._spread(tail)
                more = True
        return more

    def _tail(self, loop: For, axes: Axes) -> Tail | None:
        count = loop.stop.base - loop.start.base
        slot, depth = np.full(count, NO_SLOT), len(axes.loops) - 1
        for s, inner, _ in using_arrays(loop.body, axes):
            for e in expressions(s):
                if isinstance(e, Load) and e.buffer in self.slot and e.buffer not in self.whole:
                    at = inner.index(e.index)
                    if at is not None and at.shape[depth] > 1:
                        others = tuple(k for k in range(at.ndim) if k != depth)
                        found = self.slot[e.buffer][at]
                        if (found.max(others) == found.min(others)).all():
                            slot = np.maximum(slot, found.max(others))
                elif self.slots.is_flag(e) and count == self.slots.size and is_place(e.args[0], loop):  # type: ignore[union-attr]
                    slot = np.maximum(slot, np.arange(count))
        parts = runs(slot, self.slots.size)
        if not parts or (len(parts) > 1 and not is_short(loop)):
            return None
        (first, last, each), *more = parts
        return Tail(axes, slot, first, last, each, cuts=tuple(start for start, _, _ in more))

    def _spread(self, tail: Tail) -> None:
        """Give what a loop stores the slots of its iterations."""
        for s, axes, _ in using_arrays(tail.loop.body, tail.axes):
            at = axes.index(s.index) if isinstance(s, Store) else None
            if at is not None and at.shape[tail.depth] > 1:
                assert isinstance(s, Store)
                slot = self.slot.setdefault(s.buffer, np.full(s.buffer.size, NOT_SEEN))
                fresh = slot[at] == NOT_SEEN
                slot[at] = np.where(fresh, tail.of(at.ndim), slot[at])

    def _keeps(self, s: Store | Scatter, axes: Axes, tail: Tail | None) -> bool:
        """Whether a store is to elements of the slot that its iteration has, or of none."""
        at, slot = None if isinstance(s, Scatter) else axes.index(s.index), self.slot[s.buffer]
        if at is None:
            return False
        if tail is not None:
            return bool((slot[at] == tail.of(at.ndim)).all())
        fits = bool((slot[at] < 0).all())
        slot[at] = np.where(slot[at] < 0, NO_SLOT, slot[at])
        return fits

    def _inside(self) -> set[Buffer]:
        # Loops that were one have the same variable.
        users: dict[Buffer, set[str | None]] = {b: {None} for b in self.elsewhere}
        for s, _, tail in self.statements():
            touched = [e.buffer for e in loads(s)] + ([s.buffer] if isinstance(s, (Store, Scatter)) else [])
            for b in touched:
                users.setdefault(b, set()).add(None if tail is None or b.kind != SCRATCH else tail.loop.variable)
        return {b for b, loops in users.items() if len(loops) == 1 and None not in loops}
