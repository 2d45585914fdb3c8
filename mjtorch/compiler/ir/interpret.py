"""Runs programs in numpy, slowly and strictly: what they mean, without a compiler.

Every value has one entry per world. Scratch memory starts as poison, and an address out of bounds is an error. Where a
program has a layout, its buffers share memory as that says; iterations that lanes share out run in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mjtorch.compiler.analysis.lifetimes import BYTES, place
from mjtorch.compiler.ir.nodes import (
    BOOL,
    BYTE,
    COMMON,
    FLOAT32,
    FLOAT64,
    INPUT,
    INT,
    INT32,
    SHARED,
    Assign,
    Atom,
    Barrier,
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
    Length,
    Load,
    Local,
    Number,
    Pack,
    ParallelFor,
    Program,
    Rendezvous,
    Scalarized,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.ops import OPS
from mjtorch.compiler.ir.walk import bodies

TYPES = {FLOAT32: np.float32, FLOAT64: np.float64, INT: np.int64, INT32: np.int32, BOOL: np.bool_, BYTE: np.uint8}
POISON = {FLOAT32: np.nan, FLOAT64: np.nan, INT: 2**40, INT32: 2**30, BOOL: True, BYTE: 255}

Watch = Callable[[Store | Scatter, np.ndarray, np.ndarray, np.ndarray], object]


class InterpretError(RuntimeError):
    """A program does what it must not; the message says which statement."""


def interpret(
    p: Program, inputs: Mapping[int, np.ndarray], worlds: int, watch: Watch | None = None
) -> dict[int, np.ndarray]:
    """The outputs of `p` by position, as (size, worlds).

    inputs: by position; (size, worlds), or (size, 1) where all worlds share it
    watch: is told of each store, with the rows and the worlds that are written, and the values

    Raises:
        InterpretError: an address is out of bounds, or an operation has another dtype than it says.
    """
    run = Run(p, inputs, worlds, watch)
    run.all()
    return {b.position: run.memory(b) for b in p.outputs}


class Run:
    """One run of a program, of which the memory can be looked at.

    lanes: those that compute at the moment; world: of each lane, the world that it computes for
    """

    def __init__(self, p: Program, inputs: Mapping[int, np.ndarray], worlds: int, watch: Watch | None = None) -> None:
        self.p, self.worlds, self.watch = p, worlds, watch
        self.lanes = self.world = np.arange(worlds)
        self.buffers: dict[Buffer, np.ndarray] = {}
        self.spaces: dict[tuple[str, str], np.ndarray] = {}
        self.variables: dict[str, int] = {}
        self.lists: dict[str, list[int]] = {}
        self.locals: dict[str, np.ndarray] = {}
        self.random = np.random.default_rng(0)
        for b in p.inputs:
            given: np.ndarray = inputs[b.position].astype(TYPES[b.dtype])
            if b.kind == INPUT:
                self.memory(b)[:] = given
            else:
                assert b.kind == SHARED
                self.buffers[b] = given
        for b in p.constants:
            assert b.constant is not None
            self.buffers[b] = b.constant.reshape(-1, 1).astype(TYPES[b.dtype])

    def all(self) -> None:
        """Run all of it."""
        with np.errstate(all="ignore"):
            self.lanes = np.zeros(1, dtype=np.int64)
            self._body(self.p.uniform)
            self.lanes = np.arange(self.worlds)
            self._body(self.p.body)

    def memory(self, b: Buffer) -> np.ndarray:
        """The elements of a buffer, (size, worlds); (size, 1) where all worlds have them in common."""
        if b not in self.buffers:
            width = 1 if b.kind in COMMON else self.worlds
            layout = self.p.layout
            if layout is None or b not in layout.offsets:
                self.buffers[b] = np.full((b.size, width), POISON[b.dtype], dtype=TYPES[b.dtype])
            else:
                key, begin, end = place(layout, b)
                if key not in self.spaces:
                    self.spaces[key] = np.full((width, layout.sizes[key]), POISON[key[1]], dtype=TYPES[key[1]])
                self.buffers[b] = _elements(self.spaces[key][:, begin:end], b.dtype).T
        return self.buffers[b]

    # --- addresses ---

    def _index(self, i: Index) -> int:
        total = i.base
        for atom, k in i.terms:
            total += k * self._atom(atom)
        return total

    def _atom(self, a: Atom) -> int:
        if isinstance(a, Variable):
            return self.variables[a.name]
        if isinstance(a, Length):
            return len(self.lists[a.list])
        entries = a.table if isinstance(a, Entry) else self.lists[a.list]
        k = self._index(a.index)
        if not 0 <= k < len(entries):
            raise InterpretError(f"entry {k} of {len(entries)}")
        return entries[k]

    def _rows(self, b: Buffer, i: Index, offset: Expr | None) -> np.ndarray:
        """The row of the buffer that each world addresses."""
        rows = np.full(len(self.lanes), self._index(i)) + (0 if offset is None else self._value(offset))
        if not ((rows >= 0) & (rows < b.size)).all():
            raise InterpretError(f"address {rows} in an array of {b.size} that is {b.kind}")
        return rows

    # --- values ---

    def _value(self, e: Expr) -> np.ndarray:
        if isinstance(e, Number):
            return np.full(len(self.lanes), e.value, dtype=TYPES[e.dtype])
        if isinstance(e, FromIndex):
            return np.full(len(self.lanes), self._index(e.index), dtype=TYPES[e.dtype])
        if isinstance(e, Local):
            return self.locals[e.name]
        if isinstance(e, (Load, Gather)):
            rows = self._rows(e.buffer, e.index, e.offset if isinstance(e, Gather) else None)
            found: np.ndarray = self.memory(e.buffer)[rows, 0 if e.buffer.kind in COMMON else self.lanes]
            return found
        assert isinstance(e, Call)
        args = [self._value(a) for a in e.args]
        if e.op == "cast":
            return args[0].astype(TYPES[e.dtype])
        out: np.ndarray = OPS[e.op].meaning(*args)
        if out.dtype != TYPES[e.dtype]:
            raise InterpretError(f"{e.op} of {[a.dtype for a in args]} is {out.dtype}, not {e.dtype}")
        return out

    def _holds(self, flag: Expr) -> bool:
        return bool(self._value(flag).any())

    # --- statements ---

    def _body(self, statements: Body) -> None:
        for s in statements:
            self._statement(s)

    def _statement(self, s: Statement) -> None:
        if isinstance(s, (Declare, Assign)):
            self.locals[s.local.name] = self._value(s.value)
        elif isinstance(s, (Store, Scatter)):
            self._store(s, self._value(s.value))
        elif isinstance(s, For):
            start, stop = self._index(s.start), self._index(s.stop)
            if s.since is not None:
                start = max(start, int(self._value(s.since).max()))
            for k in self._without(range(start, stop), s.holes):
                self.variables[s.variable] = k
                if s.guard is None or self._holds(s.guard):
                    self._body(s.body)
        elif isinstance(s, While):
            self._body(s.head)
            while self._holds(s.flag):
                self._body(s.body)
                self._body(s.head)
        elif isinstance(s, If):
            self._body(s.body if self._holds(s.flag) else s.otherwise)
        elif isinstance(s, Compact):
            places = self._without(range(self._index(s.start), s.size), s.holes)
            self.lists[s.list] = [k for k in places if self._counts(s, k)]
        elif isinstance(s, Pack):
            self._packed(s)
        elif isinstance(s, Scalarized):
            self._scalarized(s)
        elif isinstance(s, ParallelFor):
            self._shared_out(s)
        elif not isinstance(s, (Barrier, Rendezvous)):
            for body in bodies(s):
                self._body(body)

    def _store(self, s: Store | Scatter, value: np.ndarray) -> None:
        if value.dtype != TYPES[s.buffer.dtype]:
            raise InterpretError(f"an array of {s.buffer.dtype} is given {value.dtype}")
        rows = self._rows(s.buffer, s.index, s.offset if isinstance(s, Scatter) else None)
        self.memory(s.buffer)[rows, self.lanes] = value
        if self.watch is not None:
            self.watch(s, rows, self.world[self.lanes], value)

    def _without(self, places: range, holes: Sequence[tuple[Expr, int]]) -> list[int]:
        """The iterations that are not left out."""
        left_out = [range(int(self._value(limit).max()), stop) for limit, stop in holes]
        return [k for k in places if not any(k in hole for hole in left_out)]

    def _counts(self, s: Compact, k: int) -> bool:
        self.variables[s.variable] = k
        self._body(s.body)
        return self._holds(s.flag)

    def _packed(self, s: Pack) -> None:
        """As many active pairs of world and item at once as there are lanes, in random order: none knows of another."""
        entries = []
        for k in range(s.size):
            self.variables[s.variable] = k
            entries += [(k, world) for world in self.lanes[self._value(s.flag)]]
        entries = [entries[k] for k in self.random.permutation(len(entries))]
        lanes, world = self.lanes, self.world
        for first in range(0, len(entries), self.worlds):
            some = entries[first : first + self.worlds]
            for lane, (k, of) in enumerate(some):
                self.variables[s.variable] = k
                self._copy(s.load, of, lane)
            self.lanes = np.arange(len(some))
            self.world = world.copy()
            self.world[self.lanes] = world[[of for _, of in some]]
            self._body(s.body)
            self.lanes, self.world = lanes, world
            for lane, (k, of) in enumerate(some):
                self.variables[s.variable] = k
                self._copy(s.store, lane, of)

    def _copy(self, statements: Body, here: int, there: int) -> None:
        """Copies from what one lane has to what another has."""
        for s in statements:
            if isinstance(s, For):
                for k in range(self._index(s.start), self._index(s.stop)):
                    self.variables[s.variable] = k
                    self._copy(s.body, here, there)
                continue
            assert isinstance(s, Store)
            around, self.lanes = self.lanes, np.array([here])
            value = self._value(s.value)
            self.lanes = np.array([there])
            self._store(s, value)
            self.lanes = around

    def _scalarized(self, s: Scalarized) -> None:
        """One world after the other, each with variables of its own in place of some arrays."""
        whole = self.lanes
        for b in s.private:
            self.buffers[b] = np.full((b.size, self.worlds), POISON[b.dtype], dtype=TYPES[b.dtype])
        for k in whole:
            self.lanes = np.array([k])
            self._body(s.body)
        self.lanes = whole

    def _shared_out(self, s: ParallelFor) -> None:
        """The iterations in random order: no result may depend on it, but for rounding."""
        self.variables[s.loops[0][0]] = 0
        for values in self.random.permutation(np.array(self._iterations(s.loops), dtype=np.int64)):
            for (variable, _, _), k in zip(s.loops, values, strict=True):
                self.variables[variable] = int(k)
            if s.guard is None or self._holds(s.guard):
                self._body(s.body)

    def _iterations(self, loops: Sequence[tuple[str, Index, Index]]) -> list[tuple[int, ...]]:
        """The values of the loop variables."""
        if not loops:
            return [()]
        variable, start, stop = loops[0]
        found = []
        for k in range(self._index(start), self._index(stop)):
            self.variables[variable] = k
            found += [(k, *rest) for rest in self._iterations(loops[1:])]
        return found


def _elements(memory: np.ndarray, dtype: str) -> np.ndarray:
    """A piece of each world's memory (worlds, n) as an array of elements, which it may be, or bytes of them."""
    if memory.dtype == TYPES[dtype]:
        return memory
    return memory[:, :: BYTES[BOOL]].view(np.bool_) if dtype == BOOL else memory.view(TYPES[dtype])
