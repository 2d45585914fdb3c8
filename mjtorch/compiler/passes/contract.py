"""Array contraction: arrays that live within one iteration of a loop become variables."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from mjtorch.compiler.analysis.dependence import accesses
from mjtorch.compiler.ir.nodes import (
    SCRATCH,
    Assign,
    Body,
    Buffer,
    Declare,
    Expr,
    For,
    Group,
    If,
    Index,
    Load,
    Local,
    Pack,
    Program,
    Statement,
    Store,
    While,
)
from mjtorch.compiler.ir.walk import Rewriter, map_bodies, with_body


def contract_arrays(p: Program) -> Program:
    """Turn scratch arrays that live within one iteration of a loop into variables."""
    return with_body(p, _Contraction(p).body(p.body, inside=False))


class _Contraction:
    """How often each buffer is used, and the names of the variables that buffers would become."""

    def __init__(self, p: Program) -> None:
        self.uses: Counter[Buffer] = Counter(a.buffer for a in accesses(p.body, {}))
        self.names = {b: f"v{k}" for k, b in enumerate(self.uses)}

    def body(self, statements: Body, inside: bool) -> Body:
        """The statements; `inside` an iteration of a loop."""
        out = tuple(self.statement(s) for s in statements)
        if not inside:
            return out
        for b in self.private(out):
            out = _in_a_variable(out, b, Local(self.names[b], b.dtype))
        return out

    def statement(self, s: Statement) -> Statement:
        """A statement; a program of its own, such as the body of a `While`, is not inside of a loop."""
        if isinstance(s, While):
            return map_bodies(s, lambda body: self.body(body, inside=False))
        if isinstance(s, Pack):  # what is copied in and out stays copies
            return dataclasses.replace(s, body=self.body(s.body, inside=False))
        if isinstance(s, (For, Group, If)):
            inside = not (isinstance(s, For) and s.scope)
            return map_bodies(s, lambda body: self.body(body, inside))
        return s

    def private(self, statements: Sequence[Statement]) -> list[Buffer]:
        """Scratch buffers that only these use, always at one index, and write before they read."""
        first: dict[Buffer, tuple[Index, bool]] = {}
        count: Counter[Buffer] = Counter()
        bad: set[Buffer] = set()
        for s in statements:
            top = s.buffer if isinstance(s, Store) else None
            for a in accesses([s], {}):
                b = a.buffer
                if b.kind != SCRATCH:
                    continue
                count[b] += 1
                # Loads of a store's own value come before it.
                known = first.setdefault(b, (a.index, a.writes and b is top))
                if a.moving or known[0] != a.index or (a.writes and b is not top):
                    bad.add(b)
        return [b for b, (_, ok) in first.items() if ok and b not in bad and count[b] == self.uses[b]]


def _in_a_variable(statements: Body, b: Buffer, local: Local) -> Body:
    """The statements with `local` in place of `b`."""
    rewriter, declared = _LoadsOf(b, local), False
    new: list[Statement] = []
    for s in statements:
        if isinstance(s, Store) and s.buffer is b:
            value = rewriter.expr(s.value)
            new.append((Assign if declared else Declare)(local, value, origin=s.origin))
            declared = True
        else:
            new.extend(rewriter.statement(s))
    return tuple(new)


class _LoadsOf(Rewriter):
    """A variable in place of loads from a buffer."""

    def __init__(self, buffer: Buffer, local: Local) -> None:
        self.buffer, self.local = buffer, local

    def expr(self, e: Expr) -> Expr:
        """An expression."""
        return self.local if isinstance(e, Load) and e.buffer is self.buffer else super().expr(e)
