"""Loop fusion: loops over the same range become one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from mjtorch.compiler.analysis.dependence import independent, iterations_apart
from mjtorch.compiler.ir.nodes import Declare, For, Group, Pack, Program, Scatter, Statement, Store, Variable, While
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
    return with_body(p, _fused(p.body, allowed))


def _fused(statements: Sequence[Statement], allowed: Allowed) -> list[Statement]:
    out: list[Statement] = []
    for s in statements:
        if is_program(s):
            s = map_bodies(s, lambda body: _fused(body, allowed))
        if not _merge_upwards(out, s, allowed):
            out.append(s)
    return out


def _merge_upwards(out: list[Statement], s: Statement, allowed: Allowed) -> bool:
    """Merge `s` into a statement near the end of `out` if it can be moved there."""
    if _parts(s) is None:
        return False
    for passed, k in enumerate(range(len(out) - 1, -1, -1), start=1):
        other = out[k]
        merged = _merged(other, s, allowed)
        if merged is not None:
            out[k] = merged
            return True
        if passed >= REACH or isinstance(other, (While, Pack)) or not independent([other], [s]):
            return False
    return False


@dataclasses.dataclass
class _Parts:
    """A loop with what declares its variables before it, and what stores them after it."""

    before: list[Statement]
    loop: For
    after: list[Statement]


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
    return _Parts(list(body[:at]), loop, list(body[at + 1 :]))


def _merged(a: Statement, b: Statement, allowed: Allowed) -> Statement | None:
    """`a; b` as one loop, if that is allowed."""
    p, q = _parts(a), _parts(b)
    if p is None or q is None or (p.loop.start, p.loop.stop) != (q.loop.start, q.loop.stop):
        return None
    if _size(p.loop.body) + _size(q.loop.body) > MAX_BODY or not allowed(p.loop, q.loop):
        return None
    if not (independent([*p.loop.body, *p.after], q.before) and independent(p.after, q.loop.body)):
        return None
    body = ReplaceAtoms({Variable(q.loop.variable): Variable(p.loop.variable)}).body(q.loop.body)
    if not iterations_apart(p.loop, body):
        return None
    together = p.loop.parallel and q.loop.parallel
    merged = tuple(_fused([*p.loop.body, *body], allowed))
    loop = dataclasses.replace(p.loop, body=merged, parallel=together)
    before, after = p.before + q.before, p.after + q.after
    return Group((*before, loop, *after), origin=loop.origin) if before or after else loop


def _size(statements: Sequence[Statement]) -> int:
    return sum(map(_size_of, statements))


@remembered
def _size_of(s: Statement) -> int:
    return 1 + sum(map(_size, bodies(s)))
