"""Barriers: lanes wait for each other before one reads or overwrites what another has to write or read first."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from mjtorch.compiler.analysis.dependence import accesses
from mjtorch.compiler.analysis.lifetimes import place
from mjtorch.compiler.ir.nodes import (
    SCRATCH,
    UNIFORM,
    Barrier,
    Body,
    Buffer,
    Compact,
    FirstLane,
    For,
    Function,
    Group,
    If,
    Layout,
    ParallelFor,
    Program,
    Scatter,
    Statement,
    Store,
    While,
)
from mjtorch.compiler.ir.walk import bodies, with_bodies


def insert_barriers(p: Program) -> Program:
    """`p` with barriers, and with stores that all lanes would make alike left to the first lane.

    Raises:
        ValueError: it has no layout yet, which decides what lanes share.
    """
    if p.layout is None:
        raise ValueError("barriers need a layout")
    return dataclasses.replace(p, body=_Insertion(p.layout).body(p.body), uniform=_Insertion(p.layout).body(p.uniform))


# --- what was touched since the last barrier --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Touch:
    """What a statement reads and writes, and whether only the first lane does."""

    reads: frozenset[Buffer]
    writes: frozenset[Buffer]
    first: bool


def first_lane(s: Statement) -> Touch:
    """A store that the first lane executes."""
    return _touch(s, True)


def everyone(s: Statement) -> Touch:
    """A statement that all lanes execute, or share out; of others with bodies only what they test."""
    return _touch(s if isinstance(s, ParallelFor) else with_bodies(s, [() for _ in bodies(s)]), False)


def _touch(s: Statement, first: bool) -> Touch:
    reads: set[Buffer] = set()
    writes: set[Buffer] = set()
    for a in accesses([s], {}):
        (writes if a.writes else reads).add(a.buffer)
    return Touch(frozenset(reads), frozenset(writes), first)


@dataclasses.dataclass(frozen=True)
class State:
    """What was touched since the last barrier, by the first lane alone and by all.

    retyped: what lies, with another dtype, where the first lane touched something: compilers take it for granted that
    such accesses are to different places, and may change their order
    """

    read_first: frozenset[Buffer] = frozenset()
    written_first: frozenset[Buffer] = frozenset()
    read: frozenset[Buffer] = frozenset()
    written: frozenset[Buffer] = frozenset()
    retyped: frozenset[Buffer] = frozenset()

    def __or__(self, other: State) -> State:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self))
        return State(*(a | b for a, b in pairs))


class Hazards:
    """Keeps track of `State` along the text of a program."""

    def __init__(self, layout: Layout) -> None:
        self.state = State()
        groups: dict[tuple[str, str], list[Buffer]] = defaultdict(list)
        ends: dict[Buffer, tuple[int, int]] = {}
        for b in layout.space:
            memory, start, stop = place(layout, b)
            groups[memory].append(b)
            ends[b] = start, stop
        self.over: dict[Buffer, frozenset[Buffer]] = {}
        for group in groups.values():
            for b in group:
                start, stop = ends[b]
                self.over[b] = frozenset(x for x in group if ends[x][0] < stop and start < ends[x][1])
        self.retyped = {b: frozenset(x for x in found if x.dtype != b.dtype) for b, found in self.over.items()}

    def clear(self) -> None:
        """There is a barrier."""
        self.state = State()

    def add(self, touch: Touch) -> bool:
        """Note what is touched; whether there must be a barrier before it."""
        reads, writes = self._shared(touch.reads), self._shared(touch.writes)
        s = self.state
        others_write, others_read = (
            (s.written, s.read) if touch.first else (s.written | s.written_first, s.read | s.read_first)
        )
        needed = bool(reads & others_write or writes & (others_write | others_read))
        needed = needed or (touch.first and bool((reads | writes) & s.retyped))
        if needed:
            s = State()
        others = [self.retyped[b] for b in reads | writes]
        reads, writes = self._neighbours(reads), self._neighbours(writes)
        if touch.first:
            first = {"read_first": s.read_first | reads, "written_first": s.written_first | writes}
            self.state = dataclasses.replace(s, **first, retyped=s.retyped.union(*others))
        else:
            self.state = dataclasses.replace(s, read=s.read | reads, written=s.written | writes)
        return needed

    def _shared(self, buffers: frozenset[Buffer]) -> frozenset[Buffer]:
        """Those that lanes share: not what is in registers, given, or a result."""
        return frozenset(b for b in buffers if b.kind in (SCRATCH, UNIFORM) and b in self.over)

    def _neighbours(self, buffers: frozenset[Buffer]) -> frozenset[Buffer]:
        """All buffers that have memory in common with these."""
        return frozenset().union(*(self.over[b] for b in buffers))


# --- where barriers go ------------------------------------------------------------------------------------------------


class _Insertion:
    """Walks a program in the order in which it runs."""

    def __init__(self, layout: Layout) -> None:
        self.hazards = Hazards(layout)
        self.in_memory = set(layout.space)

    def body(self, statements: Sequence[Statement]) -> Body:
        """Statements that all lanes execute alike; what is stored, but in registers, the first lane stores."""
        out: list[Statement] = []
        waiting: list[Statement] = []

        def flush() -> None:
            if waiting:
                out.append(FirstLane(tuple(waiting), origin=waiting[0].origin))
                waiting.clear()

        for s in statements:
            if isinstance(s, (Store, Scatter)) and (s.buffer in self.in_memory or s.buffer.kind != SCRATCH):
                if self.hazards.add(first_lane(s)):
                    flush()
                    out.append(Barrier(origin=s.origin))
                waiting.append(s)
                continue
            flush()
            out += self.statement(s)
        flush()
        return tuple(out)

    def statement(self, s: Statement) -> list[Statement]:
        """A statement that is no store to memory."""
        if isinstance(s, (Group, Function)):
            return [with_bodies(s, [self.body(s.body)])]
        if isinstance(s, (For, While)):
            return [self.repeated(s)]
        if isinstance(s, Compact):
            self.hazards.clear()  # it begins and ends with a barrier of its own
            return [s]
        before = self.before(everyone(s), s)
        if isinstance(s, If):
            start = self.hazards.state
            body = self.body(s.body)
            self.hazards.state, after = start, self.hazards.state
            otherwise = self.body(s.otherwise)
            self.hazards.state = self.hazards.state | after
            s = dataclasses.replace(s, body=body, otherwise=otherwise)
        return [*before, s]

    def before(self, touch: Touch, s: Statement) -> list[Statement]:
        """A barrier, if what comes needs one."""
        return [Barrier(origin=s.origin)] if self.hazards.add(touch) else []

    def loop(self, s: For) -> Statement:
        """A loop that all lanes run; a guard becomes a branch."""
        before = [] if s.guard is None else self.before(everyone(s), s)
        start = self.hazards.state
        body: Body = self.body(s.body)
        if s.guard is not None or s.start.terms or s.stop.terms:  # iterations may be left out, or there may be none
            self.hazards.state = self.hazards.state | start
        if s.guard is not None:
            body = (*before, If(s.guard, body, (), origin=s.origin))
        return dataclasses.replace(s, body=body, guard=None)

    def while_loop(self, s: While) -> Statement:
        """A loop that all lanes leave at once."""
        head = [*self.body(s.head), *self.before(everyone(s), s)]
        tested = self.hazards.state  # in which lanes leave
        body = self.body(s.body)
        self.hazards.state = self.hazards.state | tested
        return with_bodies(s, [head, body])

    def repeated(self, s: For | While) -> Statement:
        """A loop, of which each iteration follows another."""
        while True:
            before = self.hazards.state
            made = self.loop(s) if isinstance(s, For) else self.while_loop(s)
            after = before | self.hazards.state
            if after == before:
                return made
            self.hazards.state = after
