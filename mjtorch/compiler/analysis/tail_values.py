"""What is known of values in loops, all iterations at once, in those that go through slots which are not taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from mjtorch.compiler.ir.interpret import TYPES
from mjtorch.compiler.ir.nodes import (
    BOOL,
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
    Item,
    Length,
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
from mjtorch.compiler.ir.walk import bodies, expressions, remembered, walk

# What is known of a value: nothing yet, its number, that it may be anything.
NOTHING, CONSTANT, ANYTHING = 0, 1, 2
# What gives the same if the same is added to it twice.
REPEATABLE = ("max", "min", "and", "or")


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
    """Loops around a statement that run equally often in all worlds, from the outermost: the axes of arrays.

    lists: for each list that `Compact` makes, a loop over all that may be in it; around what goes through a list that
        loop is an axis
    """

    def __init__(self, loops: Sequence[For] = (), lists: Mapping[str, For] | None = None) -> None:
        self.loops, self.lists = tuple(loops), lists or {}
        names = [s.variable for s in loops]
        # What goes through one list twice has two entries of it.
        self.place = {name: k for k, name in enumerate(names) if names.count(name) == 1}

    def inside(self, s: Statement) -> Axes:
        """With another loop, if `s` is one and known."""
        if isinstance(s, (Compact, Pack)):
            return Axes((*self.loops, through(s)), self.lists)
        if not isinstance(s, For):
            return self
        if s.has_fixed_ends:
            return Axes((*self.loops, s), self.lists)
        listed = [self.lists[a.list] for a, _ in s.stop.terms if isinstance(a, Length) and a.list in self.lists]
        return Axes((*self.loops, *listed), self.lists)

    def wide(self, x: np.ndarray) -> np.ndarray:
        """An array that was made with fewer loops around."""
        return x if x.ndim == len(self.loops) else x.reshape(x.shape + (1,) * (len(self.loops) - x.ndim))

    def index(self, i: Index) -> np.ndarray | None:
        """The values of an index, if all loops that it depends on are known."""
        total = np.full((1,) * len(self.loops), i.base)
        for atom, k in i.terms:
            name = atom.name if isinstance(atom, Variable) else atom.list if isinstance(atom, Item) else ""
            if name in self.place:
                s = self.loops[self.place[name]]
                shape = [1] * len(self.loops)
                shape[self.place[name]] = -1
                total = total + k * np.arange(s.start.base, s.stop.base).reshape(shape)
            elif isinstance(atom, Entry) and (inner := self.index(atom.index)) is not None:
                total = total + k * np.asarray(atom.table)[inner]
            else:
                return None
        return total


@remembered
def through(s: Compact | Pack) -> For:
    """A loop over all that a statement may select from, which asks whether it does."""
    start, body = (s.start, s.body) if isinstance(s, Compact) else (Index(), ())
    return For(s.variable, Index() if start.terms else start, Index(s.size), (*body, If(s.flag, (), ())))


@dataclasses.dataclass(frozen=True)
class Slots:
    """So many slots, of which the first `count` are taken: a load that is the same in all iterations."""

    count: Load
    size: int

    def is_flag(self, e: Expr) -> bool:
        """Whether an expression says that a slot is taken."""
        return isinstance(e, Call) and e.op == "lt" and e.args[1] == self.count


@dataclasses.dataclass(eq=False)
class Tail:
    """A loop through slots, and what it does in those that are not taken.

    axes: those around it, and itself; slot: of each iteration, or NO_SLOT
    first, last: the iterations from which on, and up to which, there are slots; each: how many of each slot
    stores: what it stores, in which loops inside; folds: variables from around it, and what is added to them
    plain: whether it does nothing else
    cuts: iterations at which it begins anew with the first slot, if it goes through them several times; then nothing
        but `slot` is known
    """

    axes: Axes
    slot: np.ndarray
    first: int
    last: int
    each: int
    stores: list[tuple[Store, Axes, Value]] = dataclasses.field(default_factory=list)
    folds: list[tuple[Assign, Value]] = dataclasses.field(default_factory=list)
    plain: bool = True
    cuts: tuple[int, ...] = ()

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
        return Axes((*self.axes.loops[:-1], dataclasses.replace(loop, start=start, stop=stop)), self.axes.lists)


@dataclasses.dataclass(eq=False)
class Elements:
    """What is known of arrays that have elements for slots, and of those that a loop fills in each iteration anew.

    slot: of each element of the former
    number, state: what each holds if its slot, or that of the iteration, is not taken
    changed: since this was last false
    """

    slots: Slots
    slot: dict[Buffer, np.ndarray]
    number: dict[Buffer, np.ndarray]
    state: dict[Buffer, np.ndarray]
    changed: bool = False


class Run:
    """One run of a loop for the slots that are not taken."""

    def __init__(self, elements: Elements, tail: Tail) -> None:
        self.elements, self.tail = elements, tail
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
            if isinstance(s, Scatter) and s.buffer in self.elements.state:
                self.elements.state[s.buffer][:] = ANYTHING
        elif isinstance(s, If):  # the first is right whether the flag is true or not
            self.body(s.otherwise if self.value(s.flag, axes).is_all(False) else s.body, axes)
        else:
            inner = axes.inside(s)
            if isinstance(s, For) and s.guard is not None and self.value(s.guard, inner).is_all(False):
                return
            if isinstance(s, (For, While)):
                self.forget(s, known=isinstance(s, For) and s.has_fixed_ends)
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
        if s.buffer not in self.elements.state:
            return
        number, state = self.elements.number[s.buffer], self.elements.state[s.buffer]
        before = state.copy()
        if at is None:
            state[:] = ANYTHING
        else:
            at, new, new_state = np.broadcast_arrays(at, value.number.astype(number.dtype), value.state)
            fresh = (before[at] == NOTHING) & (new_state == CONSTANT)
            number[at[fresh]] = new[fresh]
            # Several iterations may store to one element.
            other = (new_state == CONSTANT) & ~alike(number[at], new)
            np.maximum.at(state, at, np.where(other, ANYTHING, new_state).astype(state.dtype))
        self.elements.changed |= bool((state != before).any())

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
        if self.elements.slots.is_flag(e) and args[0].is_constant:
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
                settled &= op != "or" or number.dtype == np.bool_
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
        if e.buffer not in self.elements.state:
            return UNKNOWN[e.dtype]
        number, state = self.elements.number[e.buffer][at], self.elements.state[e.buffer][at]
        slot = self.elements.slot.get(e.buffer)
        if slot is not None:
            state = np.where(slot[at] == self.tail.of(at.ndim, past=True), state, ANYTHING)
        return Value(number, state)


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
