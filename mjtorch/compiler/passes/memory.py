"""Where scratch buffers lie: memory is reused as values die."""

from __future__ import annotations

from collections.abc import Iterable

from mjtorch.compiler.ir.program import Buffer, For, Note, Program, Statement, While, touched, touched_by


def lifetimes(p: Program) -> dict[Buffer, tuple[int, int]]:
    """First and last time that each buffer is in use, in the order of the statements.

    A nest of loops counts as one moment. What a `While`, or a loop with a scope, uses but did not make must live until
    the loop ends, since the next turn uses it again. What it makes for those after it, a piece in each turn, must live
    from its beginning.
    """
    life: dict[Buffer, tuple[int, int]] = {b: (0, 0) for b in p.inputs if b.kind == "input"}
    loops: list[tuple[int, int]] = []
    clock = 0

    def use(buffers: Iterable[Buffer], when: int) -> None:
        for b in buffers:
            first, last = life.get(b, (when, when))
            life[b] = (min(first, when), max(last, when))

    def walk(statements: list[Statement]) -> None:
        nonlocal clock
        for s in statements:
            if isinstance(s, Note):
                continue
            clock += 1
            if isinstance(s, While) or (isinstance(s, For) and s.scope):
                before = set(life)
                start = clock
                inner = (s.head, s.body) if isinstance(s, While) else (s.body,)
                for block in inner:
                    walk(block)
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


def place(p: Program) -> tuple[dict[Buffer, int], dict[str, int]]:
    """The offset of each input and scratch buffer within the scratch memory of its dtype, and the sizes of those."""
    life = lifetimes(p)
    offsets: dict[Buffer, int] = {}
    sizes: dict[str, int] = {}
    for dtype in dict.fromkeys(b.dtype for b in life):
        mine = {b: t for b, t in life.items() if b.dtype == dtype and b.kind in ("input", "scratch")}
        places, sizes[dtype] = pack(mine)
        offsets |= places
    return offsets, sizes


def pack(life: dict[Buffer, tuple[int, int]]) -> tuple[dict[Buffer, int], int]:
    """Offsets of buffers, of which those that live at the same time do not overlap, and the size of the whole."""
    offsets: dict[Buffer, int] = {}
    active: list[Buffer] = []
    top = 0
    for b in sorted(life, key=lambda b: (life[b][0], -b.size)):
        active = [a for a in active if life[a][1] >= life[b][0]]
        offsets[b] = _gap(b.size, sorted((offsets[a], a.size) for a in active))
        top = max(top, offsets[b] + b.size)
        active.append(b)
    return offsets, top


def place_once(p: Program) -> tuple[dict[Buffer, int], dict[str, int]]:
    """The same for what all worlds have in common, each array in a place of its own: there is little of it."""
    offsets: dict[Buffer, int] = {}
    sizes: dict[str, int] = {}
    for b in touched_by(p.once):
        if b.kind == "once":
            offsets[b] = sizes.get(b.dtype, 0)
            sizes[b.dtype] = offsets[b] + b.size
    return offsets, sizes


def _gap(size: int, taken: list[tuple[int, int]]) -> int:
    """The smallest gap that `size` fits in; past the end if none does."""
    best, best_room, end = -1, 0, 0
    for offset, n in taken:
        room = offset - end
        if room >= size and (best < 0 or room < best_room):
            best, best_room = end, room
        end = max(end, offset + n)
    return best if best >= 0 else end
