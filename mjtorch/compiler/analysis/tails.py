"""What arrays hold past the items that there are.

Contacts, and the rows that they make, have more slots than there are contacts: a flag `k < count` says which slots are
taken. Many arrays have an element, or several, for each slot. In their *tail*, past the last taken slot, most hold what
does not depend on the world: zeros, and what follows from zeros. Which elements belong to which slot is found out from
the loops that go through slots, and what tails hold by running these loops in numpy for slots that are not taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from mjtorch.compiler.ir.interpret import TYPES
from mjtorch.compiler.ir.nodes import (
    BOOL,
    SCRATCH,
    WHOLE,
    Assign,
    Body,
    Buffer,
    Call,
    Compact,
    Declare,
    Entry,
    Expr,
    For,
    FromIndex,
    Gather,
    If,
    Index,
    Load,
    Local,
    Number,
    Pack,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.ops import OPS
from mjtorch.compiler.ir.walk import bodies, expressions, loads, walk

# What is known of a value: nothing yet, its number, that it may be anything.
NOTHING, CONSTANT, ANYTHING = 0, 1, 2
# Elements that have not come up, and those of no slot.
NOT_SEEN, NO_SLOT = -2, -1
# What gives the same if the same is added to it twice.
REPEATABLE = ("max", "min", "and", "or")


@dataclasses.dataclass(frozen=True)
class Slots:
    """So many slots, of which the first `count` are taken: a load that is the same in all iterations."""

    count: Load
    size: int


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """Numbers in the iterations of loops, which are the axes, and what is known of them: NOTHING to ANYTHING."""

    number: np.ndarray
    state: np.ndarray

    @property
    def is_constant(self) -> bool:
        """Whether all of it is known."""
        return bool((self.state == CONSTANT).all())

    def is_all(self, x: object) -> bool:
        """Whether it is known to be this everywhere."""
        return self.is_constant and bool((self.number == x).all())


UNKNOWN = {dtype: Value(np.zeros((), t), np.full((), ANYTHING, np.int8)) for dtype, t in TYPES.items()}


def known(number: object) -> Value:
    """Constants."""
    x = np.asarray(number)
    return Value(x, np.full((1,) * x.ndim, CONSTANT, np.int8))


class Axes:
    """Loops around a statement that run equally often in all worlds, from the outermost: the axes of arrays."""

    def __init__(self, loops: Sequence[For] = ()) -> None:
        self.loops = tuple(loops)
        self.place = {s.variable: k for k, s in enumerate(loops)}

    def inside(self, s: Statement) -> Axes:
        """With another loop, if `s` is one and known."""
        return Axes((*self.loops, s)) if isinstance(s, For) and not (s.start.terms or s.stop.terms) else self

    def wide(self, x: np.ndarray) -> np.ndarray:
        """An array that was made with fewer loops around."""
        return x if x.ndim == len(self.loops) else x.reshape(x.shape + (1,) * (len(self.loops) - x.ndim))

    def index(self, i: Index) -> np.ndarray | None:
        """The values of an index, if all loops that it depends on are known."""
        total = np.full((1,) * len(self.loops), i.base)
        for atom, k in i.terms:
            if isinstance(atom, Variable) and atom.name in self.place:
                s = self.loops[self.place[atom.name]]
                shape = [1] * len(self.loops)
                shape[self.place[atom.name]] = -1
                total = total + k * np.arange(s.start.base, s.stop.base).reshape(shape)
            elif isinstance(atom, Entry) and (inner := self.index(atom.index)) is not None:
                total = total + k * np.asarray(atom.table)[inner]
            else:
                return None
        return total


def flags(statements: Sequence[Statement], least: int) -> Iterator[Slots]:
    """All slots, at least so many, that flags are about, in the order of the text."""
    seen: set[Load] = set()
    for s in walk(statements):
        if isinstance(s, For) and s.start == Index() and not s.stop.terms and s.stop.base >= least:
            for e in (e for x in walk(s.body) for e in expressions(x)):
                if isinstance(e, Call) and e.op == "lt" and is_place(e.args[0], s):
                    count = e.args[1]
                    is_one = isinstance(count, Load) and not count.index.terms and count.buffer.kind == SCRATCH
                    if is_one and count.dtype in WHOLE and count not in seen:
                        assert isinstance(count, Load)
                        seen.add(count)
                        yield Slots(count, s.stop.base)


def is_place(e: Expr, loop: For) -> bool:
    """Whether `e` is the variable of a loop, or out of a table that says so."""
    here = Index(0, ((Variable(loop.variable), 1),))
    if isinstance(e, FromIndex):
        return e.index == here
    if not isinstance(e, Load) or e.buffer.constant is None or e.index != here:
        return False
    return e.buffer.size >= loop.stop.base and bool((e.buffer.constant == np.arange(e.buffer.size)).all())


@dataclasses.dataclass(eq=False)
class Tail:
    """A loop through slots, and what it does in those that are not taken.

    axes: those around it, and itself; slot: of each iteration, or NO_SLOT
    first, last: the iterations from which on, and up to which, there are slots; each: how many of each slot
    stores: what it stores, in which loops inside; folds: variables from around it, and what is added to them
    plain: whether it does nothing else
    """

    axes: Axes
    slot: np.ndarray
    first: int
    last: int
    each: int
    stores: list[tuple[Store, Axes, Value]] = dataclasses.field(default_factory=list)
    folds: list[tuple[Assign, Value]] = dataclasses.field(default_factory=list)
    plain: bool = True

    @property
    def loop(self) -> For:
        """The loop."""
        return self.axes.loops[-1]

    @property
    def depth(self) -> int:
        """Its axis."""
        return len(self.axes.loops) - 1

    def of(self, dims: int, *, past: bool = False) -> np.ndarray:
        """The slots of iterations, as an array with so many axes; past: of those that have one."""
        slot = self.slot[self.first : self.last] if past else self.slot
        return slot.reshape((1,) * self.depth + (-1,) + (1,) * (dims - self.depth - 1))

    def past(self) -> Axes:
        """The axes, of the iterations that have slots."""
        loop = self.loop
        start, stop = loop.start + self.first, loop.start + self.last
        return Axes((*self.axes.loops[:-1], dataclasses.replace(loop, start=start, stop=stop)))


class Tails:
    """The loops of a scope that go through slots, and the arrays that have elements for these.

    slot: of each element; number, state: what it holds if that is not taken
    inside: arrays that nothing but one of the loops uses, and it in each iteration anew
    """

    def __init__(self, slots: Slots, scope: Body, first: int, elsewhere: set[Buffer]) -> None:
        """first: the statement from which on it is known how many are taken; elsewhere: arrays touched outside, too."""
        self.slots, self.scope, self.first, self.elsewhere = slots, scope, first, elsewhere
        self.whole = set(elsewhere)
        self.slot: dict[Buffer, np.ndarray] = {}
        self.loops: dict[For, Tail] = {}
        while self._arrange():
            pass
        self.inside = self._inside()
        self.slot = {b: x for b, x in self.slot.items() if b not in self.whole}
        self.number: dict[Buffer, np.ndarray] = {b: np.zeros(b.size, TYPES[b.dtype]) for b in self.slot}
        self.state: dict[Buffer, np.ndarray] = {b: np.full(b.size, NOTHING, np.int8) for b in self.slot}
        self._settle()
        for state in self.state.values():
            state[state == NOTHING] = ANYTHING
        self._settle()

    def _settle(self) -> None:
        """Run all loops until no more comes of it."""
        self.changed = True
        while self.changed:
            self.changed = False
            for tail in self.loops.values():
                _Run(self, tail).all()

    def statements(self) -> Iterator[tuple[Statement, Axes, Tail | None]]:
        """All statements, with the loops around them, and the one of these that goes through slots."""
        return self._statements(self.scope, Axes(), None)

    def _statements(
        self, statements: Sequence[Statement], axes: Axes, tail: Tail | None
    ) -> Iterator[tuple[Statement, Axes, Tail | None]]:
        for s in statements:
            yield s, axes, tail
            inner = axes.inside(s)
            within = self.loops.get(s, tail) if isinstance(s, For) and tail is None else tail
            for body in bodies(s):
                yield from self._statements(body, inner, within)

    # --- which elements and iterations belong to which slot ---

    def _arrange(self) -> bool:
        """Find loops and slots; whether arrays turn out to have none that were taken to have some."""
        self.slot, self.loops = {}, {}
        while self._find(self.scope[self.first :], Axes()):
            pass
        before = len(self.whole)
        for s, axes, tail in self.statements():
            if isinstance(s, (Store, Scatter)) and s.buffer in self.slot and not self._keeps(s, axes, tail):
                self.whole.add(s.buffer)
        return len(self.whole) > before

    def _find(self, statements: Sequence[Statement], axes: Axes) -> bool:
        """Find loops through slots by what they read; whether there are more than before."""
        more = False
        for s in statements:
            inner = axes.inside(s)
            if isinstance(s, For) and inner is not axes:
                if s in self.loops:
                    continue
                tail = self._tail(s, inner)
                if tail is not None:
                    self.loops[s] = tail
                    self._spread(tail)
                    more = True
                    continue
            for body in bodies(s):
                more = self._find(body, inner) or more
        return more

    def _tail(self, loop: For, axes: Axes) -> Tail | None:
        count = loop.stop.base - loop.start.base
        if count < self.slots.size or loop.since is not None:
            return None
        slot, depth = np.full(count, NO_SLOT), len(axes.loops) - 1
        for s, inner, _ in self._statements(loop.body, axes, None):
            for e in expressions(s):
                if isinstance(e, Load) and e.buffer in self.slot and e.buffer not in self.whole:
                    at = inner.index(e.index)
                    if at is not None and at.shape[depth] > 1:
                        others = tuple(k for k in range(at.ndim) if k != depth)
                        found = self.slot[e.buffer][at]
                        if (found.max(others) == found.min(others)).all():
                            slot = np.maximum(slot, found.max(others))
                elif self.is_flag(e) and count == self.slots.size and is_place(e.args[0], loop):  # type: ignore[union-attr]
                    slot = np.maximum(slot, np.arange(count))
        taken = np.flatnonzero(slot >= 0)
        each = len(taken) // self.slots.size
        if not each:
            return None
        first, last = int(taken[0]), int(taken[0]) + each * self.slots.size
        if len(taken) != last - first or (slot[first:last] != np.repeat(np.arange(self.slots.size), each)).any():
            return None
        return Tail(axes, slot, first, last, each)

    def is_flag(self, e: Expr) -> bool:
        """Whether it says that a slot is taken."""
        return isinstance(e, Call) and e.op == "lt" and e.args[1] == self.slots.count

    def _spread(self, tail: Tail) -> None:
        """Give what a loop stores the slots of its iterations."""
        for s, axes, _ in self._statements(tail.loop.body, tail.axes, None):
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
        users: dict[Buffer, set[For | None]] = {b: {None} for b in self.elsewhere}
        for s, _, tail in self.statements():
            touched = [e.buffer for e in loads(s)] + ([s.buffer] if isinstance(s, (Store, Scatter)) else [])
            for b in touched:
                users.setdefault(b, set()).add(None if tail is None or b.kind != SCRATCH else tail.loop)
        return {b for b, loops in users.items() if len(loops) == 1 and None not in loops}


class _Run:
    """One run of a loop for the slots that are not taken."""

    def __init__(self, tails: Tails, tail: Tail) -> None:
        self.tails, self.tail = tails, tail
        self.locals: dict[Local, Value] = {}
        self.declared: dict[Local, int] = {}

    def all(self) -> None:
        """Run it."""
        self.tail.stores, self.tail.folds = [], []
        with np.errstate(all="ignore"):
            self.body(self.tail.loop.body, self.tail.past())

    def body(self, statements: Body, axes: Axes) -> None:
        """Statements."""
        for s in statements:
            self.statement(s, axes)

    def statement(self, s: Statement, axes: Axes) -> None:
        """A statement, in all iterations at once."""
        if isinstance(s, Declare):
            self.declared[s.local], self.locals[s.local] = len(axes.loops), self.wide(s.value, axes)
        elif isinstance(s, Assign):
            self.assign(s, axes)
        elif isinstance(s, Store):
            self.store(s, axes)
        elif isinstance(s, (Scatter, Compact, Pack)):
            self.tail.plain = False
        elif isinstance(s, If):  # the first is right whether the flag is true or not
            self.body(s.otherwise if self.value(s.flag, axes).is_all(False) else s.body, axes)
        else:
            inner = axes.inside(s)
            if isinstance(s, For) and s.guard is not None and self.value(s.guard, inner).is_all(False):
                return
            if isinstance(s, (For, While)):
                self.forget(s, known=inner is not axes)
            for body in bodies(s):
                self.body(body, inner)

    def forget(self, s: For | While, *, known: bool) -> None:
        """Forget variables that change from one iteration to the next.

        known: whether it is known how often the loop runs; then what only has something added to it is left to `assign`
        """
        within = list(walk([s]))
        own = {x.local for x in within if isinstance(x, Declare)}
        for x in within:
            if isinstance(x, Assign) and x.local not in own:
                reads = sum(e == x.local for y in within for e in expressions(y))
                if not (known and reads == 1 and added(x) is not None):
                    self.locals[x.local] = UNKNOWN[x.local.dtype]

    def assign(self, s: Assign, axes: Axes) -> None:
        """A new value; of a variable from around a loop, what all iterations add."""
        depth, term = self.declared.get(s.local), added(s)
        if depth == len(axes.loops):
            self.locals[s.local] = self.wide(s.value, axes)
            return
        what = UNKNOWN[s.local.dtype] if term is None else self.wide(term, axes)
        if depth is None:
            self.tail.folds.append((s, what))
        elif repeats(s) and what.is_constant:
            op = s.value.op  # type: ignore[union-attr]
            total = np.asarray(OPS[op].meaning.reduce(what.number, axis=tuple(range(depth, what.number.ndim))))  # type: ignore[attr-defined]
            self.locals[s.local] = self.combined(op, [self.locals[s.local], known(total)])
        elif not adds_nothing(s, what):
            self.locals[s.local] = UNKNOWN[s.local.dtype]

    def store(self, s: Store, axes: Axes) -> None:
        """What is stored."""
        value = self.wide(s.value, axes)
        self.tail.stores.append((s, axes, value))
        at = axes.index(s.index)
        if s.buffer not in self.tails.slot or at is None:
            return
        number, state = self.tails.number[s.buffer], self.tails.state[s.buffer]
        at, new, new_state = np.broadcast_arrays(at, value.number, value.state)
        old, old_state = number[at], state[at]
        same = alike(old, new.astype(number.dtype))
        result = np.where(
            new_state == NOTHING,
            old_state,
            np.where(old_state == NOTHING, new_state, np.where(same & (new_state == old_state), old_state, ANYTHING)),
        )
        number[at] = np.where((old_state == NOTHING) & (new_state == CONSTANT), new, old)
        state[at] = result
        self.tails.changed |= bool((result != old_state).any())

    # --- values ---

    def wide(self, e: Expr, axes: Axes) -> Value:
        """What is known of an expression, with all axes."""
        found = self.value(e, axes)
        return Value(axes.wide(found.number), axes.wide(found.state))

    def value(self, e: Expr, axes: Axes) -> Value:
        """What is known of an expression."""
        if isinstance(e, Number):
            return known(np.asarray(e.value, TYPES[e.dtype]))
        if isinstance(e, FromIndex):
            at = axes.index(e.index)
            return UNKNOWN[e.dtype] if at is None else known(at.astype(TYPES[e.dtype]))
        if isinstance(e, Local):
            return self.locals.get(e, UNKNOWN[e.dtype])
        if isinstance(e, Load):
            return self.load(e, axes)
        if isinstance(e, Gather):
            return UNKNOWN[e.dtype]
        args = [self.wide(a, axes) for a in e.args]
        if self.tails.is_flag(e) and args[0].is_constant:
            # Slots that are not taken are past the count of every world.
            if (args[0].number >= self.tail.of(len(axes.loops), past=True)).all():
                return known(np.zeros((1,) * len(axes.loops), TYPES[BOOL]))
            return UNKNOWN[e.dtype]
        if e.op == "cast":
            return Value(args[0].number.astype(TYPES[e.dtype]), args[0].state)
        return self.combined(e.op, args)

    def combined(self, op: str, args: Sequence[Value]) -> Value:
        """The result of an operation."""
        if op == "where":
            flag, one, two = args
            chosen = np.where(flag.number, one.state, two.state)
            unsure = np.where(flag.state == NOTHING, NOTHING, either(one, two))
            state = np.where(flag.state == CONSTANT, chosen, unsure)
            return Value(np.where((flag.state == CONSTANT) & ~flag.number.astype(bool), two.number, one.number), state)
        number = np.asarray(OPS[op].meaning(*[a.number for a in args]))
        lowest, highest = args[0].state, args[0].state
        for a in args[1:]:
            lowest, highest = np.minimum(lowest, a.state), np.maximum(highest, a.state)
        state = np.where(lowest == NOTHING, NOTHING, highest)
        for k, x in enumerate(args):
            absorbs = ABSORBING.get(op)
            if absorbs is not None and not (op == "div" and k):
                settled = (x.state == CONSTANT) & (state != CONSTANT) & (x.number == absorbs)
                number = np.where(settled, np.asarray(absorbs, number.dtype), number)
                state = np.where(settled, CONSTANT, state)
        return Value(number, state)

    def load(self, e: Load, axes: Axes) -> Value:
        """What is known of an element."""
        at = axes.index(e.index)
        if at is None:
            return UNKNOWN[e.dtype]
        if e.buffer.constant is not None:
            return known(e.buffer.constant.reshape(-1)[at].astype(TYPES[e.dtype]))
        if e.buffer not in self.tails.slot:
            return UNKNOWN[e.dtype]
        own = self.tails.slot[e.buffer][at] == self.tail.of(at.ndim, past=True)
        return Value(self.tails.number[e.buffer][at], np.where(own, self.tails.state[e.buffer][at], ANYTHING))


# What a product, a quotient, and so on, is if one of its terms is this.
ABSORBING = {"mul": 0, "div": 0, "and": False, "or": True}


def added(s: Assign) -> Expr | None:
    """What a statement adds to a variable, by whatever operation, if that is all that it does."""
    e = s.value
    return e.args[1] if isinstance(e, Call) and len(e.args) == 2 and e.args[0] == s.local else None


def adds_nothing(s: Assign, v: Value) -> bool:
    """Whether a statement that adds this changes nothing."""
    return isinstance(s.value, Call) and s.value.op == "add" and v.is_all(0)


def repeats(s: Assign) -> bool:
    """Whether it makes no difference how often a statement adds the same."""
    return isinstance(s.value, Call) and s.value.op in REPEATABLE


def alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether numbers are the same."""
    return (a == b) | ((a != a) & (b != b))


def either(a: Value, b: Value) -> np.ndarray:
    """What is known of the first, if it may be the second."""
    both = (a.state == CONSTANT) & (b.state == CONSTANT)
    unclear = np.where((a.state == NOTHING) | (b.state == NOTHING), NOTHING, ANYTHING)
    return np.where(both & alike(a.number, b.number), CONSTANT, np.where(both, ANYTHING, unclear))
