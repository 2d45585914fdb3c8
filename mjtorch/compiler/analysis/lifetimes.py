"""When buffers are in use, and places for them such that memory is used again as values die."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mjtorch.compiler.ir.nodes import INPUT, Buffer, FirstLane, Function, Program, Scalarized, Statement
from mjtorch.compiler.ir.walk import bodies, is_program, touched, touched_by

Life = tuple[int, int]


def lifetimes(p: Program) -> dict[Buffer, Life]:
    """First and last time that each buffer is in use, in the order of the statements.

    A nest of loops counts as one moment. What a `While`, a `Pack`, or a loop with a scope, uses but did not make must
    live until the loop ends, since the next iteration uses it again. What it makes for those after it, a piece in each
    iteration, must live from its beginning.
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
                walk(s.body)
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


def pack(life: Mapping[Buffer, Life]) -> tuple[dict[Buffer, int], int]:
    """Offsets of buffers, of which those that live at the same time do not overlap, and the size of the whole.

    The largest first: then the whole is nearly always as small as what lives at the busiest time.
    """
    offsets: dict[Buffer, int] = {}
    for b in sorted(life, key=lambda b: -b.size):
        offsets[b] = gap(b.size, sorted((at, a.size) for a, at in offsets.items() if meet(life[a], life[b])))
    return offsets, max((at + b.size for b, at in offsets.items()), default=0)


def meet(a: Life, b: Life) -> bool:
    """Whether two live at the same time."""
    return a[0] <= b[1] and b[0] <= a[1]


def gap(size: int, taken: list[tuple[int, int]]) -> int:
    """The smallest gap that `size` fits in; past the end if none does."""
    best, best_room, end = -1, 0, 0
    for offset, n in taken:
        room = offset - end
        if room >= size and (best < 0 or room < best_room):
            best, best_room = end, room
        end = max(end, offset + n)
    return best if best >= 0 else end
