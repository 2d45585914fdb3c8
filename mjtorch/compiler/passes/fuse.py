"""Loop fusion: loops over the same range become one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from mjtorch.compiler.analysis.dependence import apart, independent, iterations_apart
from mjtorch.compiler.ir.nodes import (
    Body,
    Declare,
    For,
    Group,
    Pack,
    Program,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.walk import ReplaceAtoms, bodies, is_program, map_bodies, remembered, with_body

# How many statements a loop may be moved up past to meet one that it can merge with.
REACH = 12
# Merged bodies stop growing at this many statements: larger ones run out of registers.
MAX_BODY = 48

Allowed = Callable[[For, For], bool]


def fuse_loops(p: Program, allowed: Allowed = lambda _, __: True) -> Program:
    """`p` with fewer loops, computing the same numbers in the same order.

    allowed: which loops may be merged, if not all
    """
    return with_body(p, _Fusion(allowed).after([], p.body))


class _Fusion:
    """State of one fusion. merged: the loops that came of it, whose bodies have been through it."""

    def __init__(self, allowed: Allowed) -> None:
        self.allowed = allowed
        self.merged: set[For] = set()

    def after(self, out: list[Statement], statements: Sequence[Statement]) -> list[Statement]:
        """`out`, which has been through it, with `statements` after it, as far as they stay apart."""
        for s in statements:
            if is_program(s):
                s = map_bodies(s, lambda body: self.after([], body))
            if not self._merge_upwards(out, s):
                out.append(s)
        return out

    def _merge_upwards(self, out: list[Statement], s: Statement) -> bool:
        """Merge `s` into a statement near the end of `out` if it can be moved there."""
        if _parts(s) is None:
            return False
        for passed, k in enumerate(range(len(out) - 1, -1, -1), start=1):
            other = out[k]
            merged = self._merge(other, s)
            if merged is not None:
                out[k] = merged
                return True
            if passed >= REACH or isinstance(other, (While, Pack)) or not apart(other, s):
                return False
        return False

    def _merge(self, a: Statement, b: Statement) -> Statement | None:
        """`a; b` as one loop, if that is allowed."""
        p, q = _parts(a), _parts(b)
        if p is None or q is None or (p.loop.start, p.loop.stop) != (q.loop.start, q.loop.stop):
            return None
        if _size(p.loop.body) + _size(q.loop.body) > MAX_BODY or not self.allowed(p.loop, q.loop):
            return None
        if not (independent([*p.loop.body, *p.after], q.before) and independent(p.after, q.loop.body)):
            return None
        body = ReplaceAtoms({Variable(q.loop.variable): Variable(p.loop.variable)}).body(q.loop.body)
        if not iterations_apart(p.loop, body):
            return None
        together = p.loop.parallel and q.loop.parallel
        first = list(p.loop.body) if p.loop in self.merged else self.after([], p.loop.body)
        loop = dataclasses.replace(p.loop, body=tuple(self.after(first, body)), parallel=together)
        self.merged.add(loop)
        before, after = p.before + q.before, p.after + q.after
        return Group((*before, loop, *after), origin=loop.origin) if before or after else loop


@dataclasses.dataclass(frozen=True)
class _Parts:
    """A loop with what declares its variables before it, and what stores them after it."""

    before: Body
    loop: For
    after: Body


@remembered
def _parts(s: Statement) -> _Parts | None:
    """`s` as a loop over a constant range, if it is one."""
    body = s.body if isinstance(s, Group) else (s,)
    loops = [x for x in body if not isinstance(x, (Declare, Store, Scatter))]
    if len(loops) != 1 or not isinstance(loops[0], For):
        return None
    loop = loops[0]
    if loop.scope or loop.start.terms or loop.stop.terms:
        return None
    at = next(i for i, x in enumerate(body) if x is loop)
    return _Parts(body[:at], loop, body[at + 1 :])


def _size(statements: Sequence[Statement]) -> int:
    return sum(map(_size_of, statements))


@remembered
def _size_of(s: Statement) -> int:
    return 1 + sum(map(_size, bodies(s)))
