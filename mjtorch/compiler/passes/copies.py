"""Copy elimination: results are written where they belong at once, not computed in scratch memory and copied."""

from __future__ import annotations

import dataclasses
from collections import Counter

from mjtorch.compiler.ir.nodes import OUTPUT, SCRATCH, Buffer, Gather, Load, Program, Scatter, Statement, Store
from mjtorch.compiler.ir.walk import ReplaceBuffers, expressions, walk
from mjtorch.compiler.passes.dead_stores import without_stores


def eliminate_copies(p: Program) -> Program:
    """Let scratch buffers that are only written, and then copied to an output, be that output.

    This matters most for what a loop collects: a row in each iteration.
    """
    loads: Counter[Buffer] = Counter()
    stores: Counter[Buffer] = Counter()
    scattered: set[Buffer] = set()
    copies: dict[Buffer, Buffer] = {}
    for s in walk(p.body):
        loads.update(e.buffer for e in expressions(s) if isinstance(e, (Load, Gather)))
        if isinstance(s, Scatter):
            scattered.add(s.buffer)
        elif isinstance(s, Store):
            stores[s.buffer] += 1
            if (source := _copied(s)) is not None:
                copies[source] = s.buffer
    # The copy must be all that is read of the one, and all that is written to the other.
    found = {a: b for a, b in copies.items() if loads[a] == stores[b] == 1 and a not in scattered}
    if not found:
        return p
    body = without_stores(p.body, set(found.values()))
    return dataclasses.replace(p, body=ReplaceBuffers(found).body(body))


def _copied(s: Statement) -> Buffer | None:
    """The scratch buffer whose element `s` copies to the same place of an output of the same size, if it does."""
    v = s.value if isinstance(s, Store) and s.buffer.kind == OUTPUT else None
    if not isinstance(s, Store) or not isinstance(v, Load) or v.index != s.index:
        return None
    same = v.buffer.kind == SCRATCH and v.buffer.size == s.buffer.size and v.dtype == s.buffer.dtype
    return v.buffer if same else None
