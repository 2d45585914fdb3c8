"""Where a world's arrays lie on a GPU: in registers, in shared memory, or in global memory."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from mjtorch.compiler.ir.program import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT,
    Buffer,
    For,
    Load,
    Program,
    Statement,
    Store,
    While,
    blocks,
    expressions,
)
from mjtorch.compiler.passes.fuse import Range, accesses
from mjtorch.compiler.passes.memory import lifetimes, pack
from mjtorch.compiler.targets.cuda.parts import is_divided, parts
from mjtorch.compiler.targets.cuda.spread import WHILE_TURNS, Plan, trips, within

BYTES = {FLOAT64: 8, INT: 8, FLOAT32: 4, BOOL: 4}
# Arrays of at most this many elements may be held in registers, and so be in loops of at most this many turns.
FEW = 8
NEAR, FAR = "near", "far"


@dataclasses.dataclass
class Layout:
    """The place of each buffer of a program.

    registers: buffers that every lane holds for itself, and the first statement (its id) of the part that does
    space: NEAR (shared memory) or FAR (global memory) for each of the others
    offsets: in elements, within the memory of that space and dtype
    sizes: elements of each space and dtype
    """

    registers: dict[Buffer, int]
    space: dict[Buffer, str]
    offsets: dict[Buffer, int]
    sizes: dict[tuple[str, str], int]

    def bytes(self, space: str) -> int:
        """How much of a space a world takes."""
        return sum(-(-n * BYTES[dtype] // 16) * 16 for (where, dtype), n in self.sizes.items() if where == space)


def lay_out(p: Program, plan: Plan, budget: int) -> Layout:
    """Places for the scratch buffers of `p`.

    What does not fit into `budget` bytes of shared memory goes to global memory: what is used least for its size first.
    """
    registers = held_in_registers(p.body, plan)
    life = {b: t for b, t in lifetimes(p).items() if b.kind == "scratch" and b not in registers}
    use = traffic(p.body)
    best = sorted(life, key=lambda b: -use[b] / b.size)
    # The most that fit: found by halving, since more of them never take less.
    least, most = 0, len(best)
    while least < most:
        middle = (least + most + 1) // 2
        if _placed(life, registers, set(best[middle:])).bytes(NEAR) <= budget:
            least = middle
        else:
            most = middle - 1
    far = set(best[least:])
    layout = _placed(life, registers, far)
    # Behind a large one that does not fit there are smaller ones that do.
    for b in best[least:]:
        if layout.bytes(NEAR) + b.size * BYTES[b.dtype] <= budget:
            layout = _placed(life, registers, far := far - {b})
    return layout


def _placed(life: dict[Buffer, tuple[int, int]], registers: dict[Buffer, int], far: set[Buffer]) -> Layout:
    space = {b: FAR if b in far else NEAR for b in life}
    offsets: dict[Buffer, int] = {}
    sizes: dict[tuple[str, str], int] = {}
    for key in dict.fromkeys((space[b], b.dtype) for b in life):
        places, sizes[key] = pack({b: t for b, t in life.items() if (space[b], b.dtype) == key})
        offsets |= places
    return Layout(registers, space, offsets, sizes)


def held_in_registers(body: Sequence[Statement], plan: Plan) -> dict[Buffer, int]:
    """Small buffers that one part uses alone, in all lanes alike, at places known when it is compiled: `registers`."""
    owner: dict[Buffer, int] = {}
    barred: set[Buffer] = set()

    def use(s: Statement, part: int, unrolled: frozenset[str], spread: bool) -> None:
        for e in expressions(s):
            if isinstance(e, Load):
                moves = e.offset is not None or not _known(e.index.terms, unrolled)
                note(e.buffer, part, moves)
        if isinstance(s, Store):
            note(s.buffer, part, spread or s.offset is not None or not _known(s.index.terms, unrolled))
        spread = spread or plan.of(s) is not None
        if isinstance(s, For) and not spread and is_unrolled(s):
            unrolled = unrolled | {s.variable}
        for block in blocks(s):
            if is_divided(s, block):
                each(block)
            else:
                for x in block:
                    use(x, part, unrolled, spread)

    def note(b: Buffer, part: int, moves: bool) -> None:
        if moves or b.kind != "scratch" or b.size > FEW or owner.setdefault(b, part) != part:
            barred.add(b)

    def each(statements: Sequence[Statement]) -> None:
        for part in parts(statements):
            for s in part:
                use(s, id(part[0]), frozenset(), False)

    each(body)
    return {b: part for b, part in owner.items() if b not in barred}


def _known(terms: Sequence, unrolled: frozenset[str]) -> bool:
    return all(str(atom) in unrolled for atom, _ in terms)


def is_unrolled(s: For) -> bool:
    """Whether a loop that all lanes run is written out."""
    return not s.scope and not s.start.terms and not s.stop.terms and s.stop.base - s.start.base <= FEW


def traffic(statements: Sequence[Statement]) -> Counter[Buffer]:
    """How often each buffer is accessed, by estimate."""
    found: Counter[Buffer] = Counter()

    def count(block: Sequence[Statement], times: float, bounds: dict[str, Range]) -> None:
        for s in block:
            for b, *_ in accesses([dataclasses.replace(s, body=[])] if isinstance(s, For) else _alone(s), {}):
                found[b] += times  # type: ignore[assignment]
            turns, inner = times, bounds
            if isinstance(s, For):
                turns, inner = times * trips(s, bounds), within(s, bounds)
            elif isinstance(s, While):
                turns = times * WHILE_TURNS
            for x in blocks(s):
                count(x, turns, inner)

    count(statements, 1, {})
    return found


def _alone(s: Statement) -> list[Statement]:
    """`s` without what is within it."""
    return [] if blocks(s) else [s]
