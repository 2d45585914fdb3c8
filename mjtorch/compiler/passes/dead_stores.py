"""Leave out stores to arrays that nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mjtorch.compiler.analysis.dependence import writes_and_reads
from mjtorch.compiler.ir.nodes import (
    SCRATCH,
    Body,
    Buffer,
    For,
    Group,
    If,
    Load,
    Pack,
    Program,
    Scatter,
    Statement,
    Store,
)
from mjtorch.compiler.ir.walk import bodies, with_bodies, with_body


def eliminate_dead_stores(p: Program) -> Program:
    """`p` without stores to scratch arrays that are never read, and without loops that are empty then."""
    body = p.body
    while True:
        written, read = writes_and_reads(body)
        unread = {b for b in written - read if isinstance(b, Buffer) and b.kind == SCRATCH}
        if not unread:
            return with_body(p, body)
        body = without_stores(body, unread)


def without_stores(statements: Sequence[Statement], unread: set[Buffer]) -> Body:
    """The statements but those that store to `unread`, and but loops, groups and branches that have none left."""
    return without(statements, lambda s: s.buffer in unread)


def without(statements: Sequence[Statement], idle: Callable[[Store | Scatter], bool]) -> Body:
    """The statements but stores that are `idle`, and but loops, groups and branches that have none left."""
    kept: list[Statement] = []
    for s in statements:
        if isinstance(s, (Store, Scatter)) and idle(s):
            continue
        inner = [without(body, idle) for body in bodies(s)]
        if isinstance(s, (For, Group, If)) and not any(inner):
            continue
        if isinstance(s, Pack) and not inner[-1]:
            continue
        kept.append(with_bodies(s, inner))
    return tuple(kept)


def stores_what_is_there(s: Store | Scatter) -> bool:
    """Whether it writes to an element what that has."""
    return isinstance(s, Store) and s.value == Load(s.buffer, s.index)
