"""Memory planning for warps: which arrays of a world lie in registers, in shared memory, or in global memory."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from mjtorch.compiler.analysis.cost import WARP, trips
from mjtorch.compiler.analysis.dependence import Bounds, within
from mjtorch.compiler.analysis.lifetimes import BYTES, Life, Places, lifetimes, pack, size_in_bytes
from mjtorch.compiler.ir.nodes import (
    BYTE,
    SCRATCH,
    UNIFORM,
    Body,
    Buffer,
    Compact,
    For,
    Function,
    Gather,
    Index,
    Layout,
    Load,
    ParallelFor,
    Program,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.walk import Rewriter, bodies, expressions, mentions, walk, with_body
from mjtorch.compiler.passes.memory import uniform_places

# Arrays of at most this many elements may be held in registers, and so be in loops of at most this many iterations.
FEW = 8
NEAR, FAR = "near", "far"
WARP_SIZE = 32
# Of an H100: bytes of shared memory that a block may have, and warps of a multiprocessor. On an H200, 32 with few
# registers and little memory are ahead of 16 with twice of both in all models but one. L1, whose memory it is, keeps a
# seventh: with an eighth, steps took up to a sixth longer, since L1 is given out in large pieces.
SHARED_MEMORY, WARPS = 227 * 1024, 32
# Blocks that these warps are, what each of them takes besides, and what it takes to find an array, or a world's memory.
BLOCKS, RESERVED, ROW = 2, 1024, 16
# Bytes between places where a memory may begin.
LINE = 16
# Bytes of a bank of shared memory, and of all of them.
BANK, BANKS = 4, 128
# How often a branch is taken to be chosen: they are there for what is rare.
CHOSEN = 0.03


def hold_in_registers(p: Program) -> Program:
    """Small buffers that one function uses alone, in all lanes alike, at places known when it is compiled."""
    owner: dict[Buffer, Function | None] = {}
    barred: set[Buffer] = set()

    def note(b: Buffer, function: Function | None, moves: bool) -> None:
        if moves or b.kind != SCRATCH or b.size > FEW or owner.setdefault(b, function) is not function:
            barred.add(b)

    def use(s: Statement, function: Function | None, unrolled: frozenset[str], shared_out: bool) -> None:
        for e in expressions(s):
            if isinstance(e, (Load, Gather)):
                note(e.buffer, function, isinstance(e, Gather) or not _is_known(e.index, unrolled))
        if isinstance(s, (Store, Scatter)):
            note(s.buffer, function, shared_out or isinstance(s, Scatter) or not _is_known(s.index, unrolled))
        shared_out = shared_out or isinstance(s, ParallelFor)
        if isinstance(s, For) and not shared_out and _may_unroll(s):
            unrolled = unrolled | {s.variable}
        for body in bodies(s):
            for x in body:
                use(x, s if isinstance(s, Function) else function, unrolled, shared_out)

    for s in p.body:
        use(s, None, frozenset(), False)
    held = {b: f for b, f in owner.items() if b not in barred and f is not None}
    return with_body(p, _Held(held).body(p.body))


class _Held(Rewriter):
    """Functions with what they hold in registers, and loops over that written out."""

    def __init__(self, held: Mapping[Buffer, Function]) -> None:
        self.held = held

    def statement(self, s: Statement) -> Sequence[Statement]:
        """A statement."""
        (new,) = super().statement(s)
        if isinstance(s, Function) and isinstance(new, Function):
            own = tuple(b for b, f in self.held.items() if f is s)
            return (dataclasses.replace(new, registers=own) if own else new,)
        if isinstance(s, For) and isinstance(new, For) and _moves_over(s, self.held):
            return (dataclasses.replace(new, unroll=True),)
        return (new,)


def _moves_over(s: For, held: Mapping[Buffer, Function]) -> bool:
    """Whether a loop moves over what is held in registers, which have no addresses."""
    v = Variable(s.variable)
    for x in walk(s.body):
        found: list[tuple[Buffer, Index]] = [(e.buffer, e.index) for e in expressions(x) if isinstance(e, Load)]
        found += [(x.buffer, x.index)] if isinstance(x, Store) else []
        if any(b in held and mentions(i, v) for b, i in found):
            return True
    return False


def _is_known(i: Index, unrolled: frozenset[str]) -> bool:
    return all(isinstance(a, Variable) and a.name in unrolled for a, _ in i.terms)


def _may_unroll(s: For) -> bool:
    return not s.scope and not s.start.terms and not s.stop.terms and s.stop.base - s.start.base <= FEW


def plan_warp_memory(p: Program, budget: int | None, lanes: int) -> Program:
    """Give each scratch buffer not in registers a place in `budget` bytes of shared memory, or in global memory.

    What does not fit goes to global memory: what is used least for its size first. Without a budget, it is a world's
    share of what lets `WARPS` warps be there at a time.
    """
    if budget is None:
        most = share(p) * lanes // WARP_SIZE
        budget = most - (most - world_bytes(0, lanes)) % (16 if lanes == WARP_SIZE else BANKS) - ROW
    registers = {b for s in walk(p.body) if isinstance(s, Function) for b in s.registers}
    life = {b: t for b, t in lifetimes(p).items() if b.kind == SCRATCH and b not in registers}
    use = traffic(p.body, lanes)
    best = sorted(life, key=lambda b: -use[b] / size_in_bytes(b))
    layout = _fitted(life, best, budget - list_bytes(p.body))
    places, common = uniform_places(p)
    space = {**layout.space, **dict.fromkeys(places, UNIFORM)}
    return dataclasses.replace(p, layout=Layout(space, {**layout.offsets, **places}, {**layout.sizes, **common}, lanes))


def row_bytes(p: Program) -> int:
    """What a block takes of shared memory to find the arrays that it is given and makes, and what all worlds share."""
    return ROW * (max(1, len(p.inputs)) + max(1, len(p.outputs)) + 1)


def share(p: Program) -> int:
    """A warp's share of shared memory where `WARPS` are there at a time, in bytes."""
    return (SHARED_MEMORY * 6 // 7 - BLOCKS * (RESERVED + row_bytes(p))) // WARPS // 16 * 16


def world_bytes(size: int, lanes: int) -> int:
    """From one world's shared memory to the next, of so many bytes: the worlds of a warp reach for different banks."""
    if lanes == WARP_SIZE:
        return -(-size // 16) * 16
    return size + (max(16, BANK * lanes) - size) % BANKS


def list_bytes(statements: Body) -> int:
    """What lists take of shared memory: each lives as long as the body that it is in."""
    now = most = 0
    for s in statements:
        now += 2 * list_room(s) if isinstance(s, Compact) else 0
        most = max(most, now, *(now + list_bytes(body) for body in bodies(s)))
    return most


def list_room(s: Compact) -> int:
    """Entries that there is room for in a list."""
    return -(-s.size // 8) * 8


def _fitted(life: Mapping[Buffer, Life], best: Sequence[Buffer], budget: int) -> Layout:
    """A layout with as many of the `best` in shared memory as have room there while they live, the first first."""
    if space_bytes(layout := _placed(life, NEAR), NEAR) <= budget:
        return layout
    near, top = Places(), 0
    places: dict[Buffer, int] = {}
    for b in best:
        size = size_in_bytes(b)
        offset = near.gap(size, life[b], BYTES[b.dtype])
        if offset + size <= budget // LINE * LINE:
            near.put(offset, size, life[b])
            places[b] = offset // BYTES[b.dtype]
            top = max(top, offset + size)
    far = _placed({b: t for b, t in life.items() if b not in places}, FAR)
    space = {**far.space, **dict.fromkeys(places, NEAR)}
    return Layout(space, {**far.offsets, **places}, {**far.sizes, (NEAR, BYTE): top})


def space_bytes(layout: Layout, space: str) -> int:
    """How much of a memory a world takes; of what all worlds share each dtype begins where `LINE` divides."""
    found = ((n, 1 if dtype == BYTE else BYTES[dtype]) for (where, dtype), n in layout.sizes.items() if where == space)
    return sum(-(-n * each // LINE) * LINE for n, each in found)


def _placed(life: Mapping[Buffer, Life], space: str) -> Layout:
    """A layout of all of these in one memory."""
    offsets, size = pack(life, shared=True)
    return Layout(dict.fromkeys(life, space), offsets, {(space, BYTE): size})


def is_branch(s: While) -> bool:
    """Whether a loop is what became of a choice: whether it runs is looked up, not computed anew."""
    return all(isinstance(x, Store) and isinstance(x.value, Load) for x in s.head)


def traffic(statements: Body, lanes: int) -> Counter[Buffer]:
    """How often a warp accesses each buffer, by estimate: an access of all lanes is one."""
    found: Counter[Buffer] = Counter()

    def count(body: Body, times: float, bounds: Bounds) -> None:
        for s in body:
            if not bodies(s) or isinstance(s, For):
                for e in expressions(s):
                    if isinstance(e, (Load, Gather)):
                        found[e.buffer] += times  # type: ignore[assignment]
            if isinstance(s, (Store, Scatter)):
                found[s.buffer] += times  # type: ignore[assignment]
            inner, each = within(s, bounds), times
            if isinstance(s, For):
                each *= trips(s.start, s.stop, bounds, WARP)
            elif isinstance(s, While):
                each *= CHOSEN if is_branch(s) else WARP.while_trips
            elif isinstance(s, ParallelFor):
                around, iterations = bounds, 1.0
                for variable, start, stop in s.loops:
                    iterations *= trips(start, stop, around, WARP)
                    around = within(For(variable, start, stop, ()), around)
                each *= max(1.0, iterations / lanes)
            for x in bodies(s):
                count(x, each, inner)

    count(statements, 1, {})
    return found
