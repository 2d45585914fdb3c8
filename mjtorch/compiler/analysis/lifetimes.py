"""When buffers are in use, and places for them such that memory is used again as values die."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mjtorch.compiler.ir.nodes import (
    BOOL,
    BYTE,
    FLOAT32,
    FLOAT64,
    INPUT,
    INT,
    INT32,
    Buffer,
    FirstLane,
    Function,
    Layout,
    Program,
    Scalarized,
    Statement,
)
from mjtorch.compiler.ir.walk import bodies, is_program, touched, touched_by

Life = tuple[int, int]
# Of an element, where arrays of all dtypes share a memory; an array begins where its element's divide.
BYTES = {FLOAT64: 8, INT: 8, FLOAT32: 4, INT32: 4, BOOL: 4}


def lifetimes(p: Program) -> dict[Buffer, Life]:
    """First and last time that each buffer is in use, in the order of the statements.

    A nest of loops counts as one moment. What a `While`, a `Pack`, or a loop with a scope, uses but did not make must
    live until the loop ends, since the next iteration uses it again. What it makes for those after it, a piece in each
    iteration, must live from its beginning. What worlds have in turn, in a `Scalarized`, meets what others still use.
    """
    life: dict[Buffer, Life] = {b: (0, 0) for b in p.inputs if b.kind == INPUT}
    loops: list[Life] = []
    clock = 0

    def use(buffers: Iterable[Buffer], when: int) -> None:
        for b in buffers:
            first, last = life.get(b, (when, when))
            life[b] = (min(first, when), max(last, when))

    def walk(statements: Sequence[Statement]) -> None:
        nonlocal clock
        for s in statements:
            if isinstance(s, (FirstLane, Function, Scalarized)):
                start = clock + 1
                walk(s.body)
                if isinstance(s, Scalarized):
                    use(s.private, start)
                    use(s.private, clock)
                continue
            clock += 1
            if is_program(s):
                before = set(life)
                start = clock
                for body in bodies(s):
                    walk(body)
                use(touched(s), start)
                clock += 1
                used = [b for b in touched_by([s]) if b in before]
                use(used, start)
                use([*used, *touched(s)], clock)
                loops.append((start, clock))
            else:
                use(touched_by([s]), clock)

    walk(p.body)
    for start, end in loops:
        for b, (first, last) in life.items():
            if start < first < end < last:
                life[b] = (start, last)
    return life


def pack(life: Mapping[Buffer, Life], shared: bool = False) -> tuple[dict[Buffer, int], int]:
    """Offsets of buffers, of which those that live at the same time do not overlap, and the size of the whole.

    The largest first: then the whole is nearly always as small as what lives at the busiest time.
    shared: all dtypes share the memory, whose size is in bytes; else there is one dtype
    """
    places, size = Places(), 0
    each = {b: BYTES[b.dtype] if shared else 1 for b in life}
    offsets: dict[Buffer, int] = {}
    for b in sorted(life, key=lambda b: -b.size * each[b]):
        at = places.add(b.size * each[b], life[b], each[b])
        offsets[b], size = at // each[b], max(size, at + b.size * each[b])
    return offsets, size


def size_in_bytes(b: Buffer) -> int:
    """What a buffer takes where all dtypes share a memory."""
    return b.size * BYTES[b.dtype]


def place(layout: Layout, b: Buffer) -> tuple[tuple[str, str], int, int]:
    """The memory that a buffer is in, and where in it it begins and ends: in elements, or bytes if all share it."""
    begin, end = layout.offsets[b], layout.offsets[b] + b.size
    memory = layout.space[b], BYTE
    if memory not in layout.sizes:
        return (layout.space[b], b.dtype), begin, end
    return memory, begin * BYTES[b.dtype], end * BYTES[b.dtype]


def meet(a: Life, b: Life) -> bool:
    """Whether two live at the same time."""
    return a[0] <= b[1] and b[0] <= a[1]


class Places:
    """A memory in which those that live at the same time do not overlap."""

    def __init__(self) -> None:
        self.count = 0
        # Where each begins and ends, and first and last time of its life.
        self.taken = np.empty((4, 64), dtype=np.int64)

    def gap(self, size: int, life: Life, each: int = 1) -> int:
        """The smallest gap that `size` fits in, from a multiple of `each` on; past the end if none does."""
        begin, end, first, last = self.taken[:, : self.count]
        there = np.flatnonzero((first <= life[1]) & (last >= life[0]))
        there = there[np.argsort(begin[there], kind="stable")]
        ends = -(-np.concatenate([[0], np.maximum.accumulate(end[there])]) // each) * each
        room = begin[there] - ends[:-1]
        fits = np.flatnonzero(room >= size)
        return int(ends[fits[np.argmin(room[fits])] if len(fits) else -1])

    def put(self, offset: int, size: int, life: Life) -> None:
        """Take a place."""
        if self.count == self.taken.shape[1]:
            self.taken = np.concatenate([self.taken, np.empty_like(self.taken)], axis=1)
        self.taken[:, self.count] = offset, offset + size, *life
        self.count += 1

    def add(self, size: int, life: Life, each: int = 1) -> int:
        """Take the smallest gap that there is, as in `gap`; where it begins."""
        offset = self.gap(size, life, each)
        self.put(offset, size, life)
        return offset
