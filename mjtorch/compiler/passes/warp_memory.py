"""Memory planning for warps: which arrays of a world lie in registers, in shared memory, or in global memory."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from mjtorch.compiler.analysis.cost import WARP, trips
from mjtorch.compiler.analysis.dependence import Bounds, within
from mjtorch.compiler.analysis.lifetimes import Life, lifetimes, pack
from mjtorch.compiler.ir.nodes import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT,
    INT32,
    SCRATCH,
    UNIFORM,
    Body,
    Buffer,
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

BYTES = {FLOAT64: 8, INT: 8, FLOAT32: 4, INT32: 4, BOOL: 4}
# Arrays of at most this many elements may be held in registers, and so be in loops of at most this many iterations.
FEW = 8
NEAR, FAR = "near", "far"
WARP_SIZE = 32
# Bytes of shared memory that a world may have.
BUDGETS = tuple(1024 * k for k in (6, 8, 10, 12, 14, 16, 20, 24, 32))
# Of an H100: bytes of shared memory and what a block takes of it besides its own, warps that registers leave room for.
SHARED_MEMORY, RESERVED, WARPS = 228 * 1024, 1024, 22
# Cycles that a warp waits for an access, on average: what it reads ahead it waits for once. By the simulated warp.
FAR_WAIT, NEAR_WAIT = 65, 12
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

    What does not fit goes to global memory: what is used least for its size first. Without a budget it is the one of
    `BUDGETS` with which a multiprocessor is done soonest, by estimate: less of it is room for more worlds at a time.
    """
    registers = {b for s in walk(p.body) if isinstance(s, Function) for b in s.registers}
    life = {b: t for b, t in lifetimes(p).items() if b.kind == SCRATCH and b not in registers}
    use = traffic(p.body, lanes)
    best = sorted(life, key=lambda b: -use[b] / (b.size * BYTES[b.dtype]))
    layouts = [_fitted(life, best, b) for b in (BUDGETS if budget is None else (budget,))]
    layout = min(layouts, key=lambda x: _cycles(x, use, lanes))
    places, common = uniform_places(p)
    space = {**layout.space, **dict.fromkeys(places, UNIFORM)}
    return dataclasses.replace(p, layout=Layout(space, {**layout.offsets, **places}, {**layout.sizes, **common}, lanes))


def _fitted(life: Mapping[Buffer, Life], best: Sequence[Buffer], budget: int) -> Layout:
    """A layout with as many of the `best` in shared memory as have room there."""
    # The most that fit: found by halving, since more of them never take less.
    least, most = 0, len(best)
    while least < most:
        middle = (least + most + 1) // 2
        if space_bytes(_placed(life, set(best[middle:])), NEAR) <= budget:
            least = middle
        else:
            most = middle - 1
    far = set(best[least:])
    layout = _placed(life, far)
    # Behind a large one that does not fit there are smaller ones that do.
    for b in best[least:]:
        if space_bytes(layout, NEAR) + b.size * BYTES[b.dtype] <= budget:
            layout = _placed(life, far := far - {b})
    return layout


def _cycles(layout: Layout, use: Mapping[Buffer, float], lanes: int) -> float:
    """What accesses take of a multiprocessor for each world, by estimate."""
    waits = sum(use[b] * (FAR_WAIT if where == FAR else NEAR_WAIT) for b, where in layout.space.items())
    side_by_side = WARP_SIZE // lanes
    taken = side_by_side * space_bytes(layout, NEAR) + RESERVED
    return waits / (side_by_side * max(1, min(WARPS, SHARED_MEMORY // taken)))


def space_bytes(layout: Layout, space: str) -> int:
    """How much of a memory a world takes."""
    return sum(-(-n * BYTES[dtype] // 16) * 16 for (where, dtype), n in layout.sizes.items() if where == space)


def _placed(life: Mapping[Buffer, Life], far: set[Buffer]) -> Layout:
    space = {b: FAR if b in far else NEAR for b in life}
    offsets: dict[Buffer, int] = {}
    sizes: dict[tuple[str, str], int] = {}
    for key in dict.fromkeys((space[b], b.dtype) for b in life):
        places, sizes[key] = pack({b: t for b, t in life.items() if (space[b], b.dtype) == key})
        offsets |= places
    return Layout(space, offsets, sizes)


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
