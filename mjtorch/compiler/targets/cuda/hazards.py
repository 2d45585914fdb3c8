"""Where lanes must wait for each other: before one reads or overwrites what another has to write or read first."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from mjtorch.compiler.ir.program import Buffer, For, Statement, Store, blocks, with_blocks
from mjtorch.compiler.passes.fuse import accesses
from mjtorch.compiler.targets.cuda.memory import Layout


@dataclasses.dataclass(frozen=True)
class Access:
    """What a statement reads and writes, and whether only the first lane does."""

    reads: frozenset[Buffer]
    writes: frozenset[Buffer]
    first: bool


def first_lane(s: Store) -> Access:
    """A store that the first lane executes."""
    return _access(s, True)


def everyone(s: Statement) -> Access:
    """A statement that all lanes execute, or share out; of those with blocks but loops only what they test."""
    return _access(s if isinstance(s, For) else with_blocks(s, [[] for _ in blocks(s)]), False)


def _access(s: Statement, first: bool) -> Access:
    reads: set[Buffer] = set()
    writes: set[Buffer] = set()
    for b, _, _, written, _ in accesses([s], {}):
        (writes if written else reads).add(b)
    return Access(frozenset(reads), frozenset(writes), first)


@dataclasses.dataclass(frozen=True)
class State:
    """What was touched since the last barrier, by the first lane alone and by all."""

    read_first: frozenset[Buffer] = frozenset()
    written_first: frozenset[Buffer] = frozenset()
    read: frozenset[Buffer] = frozenset()
    written: frozenset[Buffer] = frozenset()

    def __or__(self, other: State) -> State:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self))
        return State(*(a | b for a, b in pairs))


class Hazards:
    """Keeps track of `State` along the text of a program."""

    def __init__(self, layout: Layout) -> None:
        self.state = State()
        self.layout = layout
        groups: dict[tuple[str, str], list[Buffer]] = defaultdict(list)
        for b, space in layout.space.items():
            groups[space, b.dtype].append(b)
        self.over: dict[Buffer, frozenset[Buffer]] = {}
        for group in groups.values():
            ends = {b: (layout.offsets[b], layout.offsets[b] + b.size) for b in group}
            for b in group:
                start, stop = ends[b]
                self.over[b] = frozenset(x for x in group if ends[x][0] < stop and start < ends[x][1])

    def clear(self) -> None:
        """There is a barrier."""
        self.state = State()

    def add(self, access: Access) -> bool:
        """Note an access; whether there must be a barrier before it."""
        reads, writes = self._in_memory(access.reads), self._in_memory(access.writes)
        s = self.state
        others_write, others_read = (
            (s.written, s.read)
            if access.first
            else (
                s.written | s.written_first,
                s.read | s.read_first,
            )
        )
        needed = bool(reads & others_write or writes & (others_write | others_read))
        if needed:
            s = State()
        reads, writes = self._neighbours(reads), self._neighbours(writes)
        if access.first:
            self.state = dataclasses.replace(s, read_first=s.read_first | reads, written_first=s.written_first | writes)
        else:
            self.state = dataclasses.replace(s, read=s.read | reads, written=s.written | writes)
        return needed

    def _in_memory(self, buffers: frozenset[Buffer]) -> frozenset[Buffer]:
        """Those that lanes share: not what is in registers, given, or a result."""
        unshared = ("input", "shared", "constant", "output")
        return frozenset(b for b in buffers if b not in self.layout.registers and b.kind not in unshared)

    def _neighbours(self, buffers: frozenset[Buffer]) -> frozenset[Buffer]:
        """All buffers that have memory in common with these."""
        return frozenset().union(*(self.over.get(b, {b}) for b in buffers))
