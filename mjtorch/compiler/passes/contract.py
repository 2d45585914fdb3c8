"""Array contraction: arrays that live within one iteration of a loop become variables."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from mjtorch.compiler.analysis.dependence import accesses
from mjtorch.compiler.ir.nodes import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT,
    INT32,
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
    Number,
    Pack,
    Program,
    Statement,
    Store,
    While,
)
from mjtorch.compiler.ir.walk import Rewriter, map_bodies, with_body

# What a variable begins with that a group assigns.
ZERO = {BOOL: False, INT: 0, INT32: 0, FLOAT32: 0.0, FLOAT64: 0.0}


def contract_arrays(p: Program) -> Program:
    """Turn scratch arrays that live within one iteration of a loop into variables."""
    return with_body(p, _Contraction(p).body(p.body, inside=False))


def contract_sums(p: Program) -> Program:
    """The same of sums, and what else groups store; after choices, which leave out arrays more easily."""
    return with_body(p, _Contraction(p, groups=True).body(p.body, inside=False))


class _Contraction:
    """How often each buffer is used, and the names of the variables that buffers would become.

    groups: whether those count that groups store
    """

    def __init__(self, p: Program, groups: bool = False) -> None:
        self.groups = groups
        self.uses: Counter[Buffer] = Counter(a.buffer for a in accesses(p.body, {}))
        self.names = {b: f"{'g' if groups else 'v'}{k}" for k, b in enumerate(self.uses)}

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
            top = _stored(s) if self.groups or not isinstance(s, Group) else set()
            for a in accesses([s], {}):
                b = a.buffer
                if b.kind != SCRATCH:
                    continue
                count[b] += 1
                # Loads of a store's own value come before it.
                known = first.setdefault(b, (a.index, a.writes and b in top))
                if a.moving or known[0] != a.index or (a.writes and b not in top):
                    bad.add(b)
        return [b for b, (_, ok) in first.items() if ok and b not in bad and count[b] == self.uses[b]]


def _stores(s: Statement) -> Sequence[Store]:
    """The stores that a statement is made of, if it is one or a group."""
    return [x for x in (s.body if isinstance(s, Group) else (s,)) if isinstance(x, Store)]


def _stored(s: Statement) -> set[Buffer]:
    """What a statement, or a group of them, stores, if nothing further within stores it, too."""
    within = [x for x in s.body if not isinstance(x, Store)] if isinstance(s, Group) else []
    return {x.buffer for x in _stores(s)} - {a.buffer for a in accesses(within, {}) if a.writes}


def _in_a_variable(statements: Body, b: Buffer, local: Local) -> Body:
    """The statements with `local` in place of `b`."""
    rewriter, declared = _LoadsOf(b, local), False
    new: list[Statement] = []
    for s in statements:
        if isinstance(s, Store) and s.buffer is b:
            value = rewriter.expr(s.value)
            new.append((Assign if declared else Declare)(local, value, origin=s.origin))
            declared = True
        elif isinstance(s, Group) and any(x.buffer is b for x in _stores(s)):
            # What a group declares is its own.
            if not declared:
                new.append(Declare(local, Number(ZERO[b.dtype], b.dtype), origin=s.origin))
            declared = True
            new.append(dataclasses.replace(s, body=_assigned(s.body, b, local, rewriter)))
        else:
            new.extend(rewriter.statement(s))
    return tuple(new)


def _assigned(statements: Body, b: Buffer, local: Local, rewriter: Rewriter) -> Body:
    """The statements of a group with `local` in place of `b`."""
    new: list[Statement] = []
    for s in statements:
        if isinstance(s, Store) and s.buffer is b:
            new.append(Assign(local, rewriter.expr(s.value), origin=s.origin))
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
