"""Memory planning on a CPU: one array per dtype and thread, used again as values die."""

from __future__ import annotations

import dataclasses

from mjtorch.compiler.analysis.lifetimes import lifetimes, pack
from mjtorch.compiler.ir.nodes import DTYPES, INPUT, SCRATCH, UNIFORM, Buffer, Layout, Program, Scalarized
from mjtorch.compiler.ir.walk import touched_by, walk
from mjtorch.compiler.passes.scalarize import MEMORY, fitting


def plan_memory(p: Program) -> Program:
    """Give each input and scratch buffer a place in scratch memory, and each uniform one in what all worlds share.

    What scalarized statements hold in variables of their own has none.
    """
    private = {b for s in walk(p.body) if isinstance(s, Scalarized) for b in held(s)}
    life = {b: t for b, t in lifetimes(p).items() if b.kind in (INPUT, SCRATCH) and b not in private}
    offsets: dict[Buffer, int] = {}
    sizes: dict[tuple[str, str], int] = {}
    for dtype in DTYPES:
        mine = {b: t for b, t in life.items() if b.dtype == dtype}
        if mine:
            places, sizes[SCRATCH, dtype] = pack(mine)
            offsets |= places
    space = dict.fromkeys(offsets, SCRATCH)
    places, common = uniform_places(p)
    return dataclasses.replace(
        p, layout=Layout(space | dict.fromkeys(places, UNIFORM), offsets | places, sizes | common)
    )


def held(s: Scalarized) -> list[Buffer]:
    """The private arrays of scalarized statements that are held in variables: the smallest, beside those kept."""
    return fitting(sorted(s.private, key=lambda b: b.size), MEMORY - sum(b.size for b in s.kept))


def uniform_places(p: Program) -> tuple[dict[Buffer, int], dict[tuple[str, str], int]]:
    """Offsets of what all worlds have in common, each array in a place of its own, since there is little of it."""
    offsets: dict[Buffer, int] = {}
    sizes: dict[tuple[str, str], int] = {}
    for b in touched_by(p.uniform):
        if b.kind == UNIFORM:
            offsets[b] = sizes.get((UNIFORM, b.dtype), 0)
            sizes[UNIFORM, b.dtype] = offsets[b] + b.size
    return offsets, sizes
