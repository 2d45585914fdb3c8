"""Leave out iterations of a sum that add zero in all worlds: so inactive constraints cost nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mjtorch.compiler.analysis.cost import CPU, work
from mjtorch.compiler.analysis.dependence import Access, accesses, within
from mjtorch.compiler.ir.nodes import (
    BOOL,
    FLOAT32,
    FLOAT64,
    SCRATCH,
    Assign,
    Body,
    Buffer,
    Call,
    Declare,
    Expr,
    For,
    Index,
    Load,
    Local,
    Number,
    Program,
    Statement,
    Store,
    Variable,
)
from mjtorch.compiler.ir.walk import map_bodies, mentions, with_body
from mjtorch.compiler.passes.sink import Uses, only_computes, private, written

# A test costs about as much as a few operations.
WORTH_A_TEST = 8
# Sums over at least this many iterations look for those to leave out.
MIN_ITERATIONS = 12


def skip_zero_terms(p: Program) -> Program:
    """Leave out the iterations of a sum in which a factor of every term is zero in all worlds side by side.

    And with them what is computed for their terms alone. A zero that meets an infinity or NaN in such an iteration
    gives 0, not NaN.
    """
    uses = Uses.of(p.body)
    return with_body(p, [_guarded(s, uses) for s in p.body])


def _guarded(s: Statement, uses: Uses) -> Statement:
    if isinstance(s, For):
        factor = _common_factor(s, uses)
        if factor is not None:
            return dataclasses.replace(s, guard=Call("ne", (factor, Number(0.0, factor.dtype)), BOOL))
    return map_bodies(s, lambda body: [_guarded(x, uses) for x in body])


def _common_factor(s: For, uses: Uses) -> Load | None:
    """A load that is a factor of all that `s` adds, if it only sums; uses: of the whole program."""
    if not s.is_counted or s.stop.base - s.start.base < MIN_ITERATIONS:
        return None
    declared = {x.local for x in s.body if isinstance(x, Declare)}
    terms, others = [], []
    for x in s.body:
        if isinstance(x, Assign):
            sums = isinstance(x.value, Call) and x.value.op == "add" and x.value.args[0] == x.local
            if x.local in declared or not sums:
                return None
            assert isinstance(x.value, Call)
            terms.append(x.value.args[1])
        elif not isinstance(x, Declare):
            others.append(x)
    if not terms or work(s.body, within(s, {}), CPU) < WORTH_A_TEST or not _is_own(s, others, uses):
        return None
    computed = written(others)  # in the iteration itself: known too late to leave it out
    candidates = [e for e in _factors(terms[0]) if mentions(e.index, Variable(s.variable)) and e.buffer not in computed]
    return next((e for e in candidates if all(e in _factors(t) for t in terms[1:])), None)


def _is_own(s: For, others: Sequence[Statement], uses: Uses) -> bool:
    """Whether all that `others`, out of the body of `s`, write is read in the same iteration, and nowhere else."""
    if not all(map(only_computes, others)):
        return False
    own = private(s.body, Uses.of([]), s.variable, uses) | _filled(s.body, uses)
    return all(x in own or isinstance(x, Local) for x in written(others))


def _filled(body: Body, uses: Uses) -> set[Buffer]:
    """Arrays that nothing but `body` uses, and that a loop in it fills before anything is read."""
    mine = Uses.of(body)
    found: set[Buffer] = set()
    seen: set[Buffer] = set()
    for x in body:
        first: dict[Buffer, Access] = {}
        places: dict[Buffer, set[Index]] = {}
        for a in accesses([x], {}):
            first.setdefault(a.buffer, a)
            places.setdefault(a.buffer, set()).add(a.index)
        for b, a in first.items():
            if b not in seen and a.writes and not a.moving and _fills(x, b) and len(places[b]) == 1:
                found.add(b)
        seen |= first.keys()
    return {b for b in found if b.kind == SCRATCH and mine.buffers[b] == uses.buffers[b]}


def _fills(s: Statement, b: Buffer) -> bool:
    """Whether `s` is a loop over all elements of an array, each of which an iteration stores."""
    if not isinstance(s, For) or (s.start, s.stop) != (Index(), Index(b.size)):
        return False
    here = Index(0, ((Variable(s.variable), 1),))
    return any(isinstance(x, Store) and x.buffer is b and x.index == here for x in s.body)


def _factors(e: Expr) -> list[Load]:
    """Loads of floating-point numbers that make `e` zero where they are zero."""
    if isinstance(e, Load):
        return [e] if e.dtype in (FLOAT32, FLOAT64) and e.buffer.kind == SCRATCH else []
    if isinstance(e, Call) and e.op == "mul":
        return [f for a in e.args for f in _factors(a)]
    if isinstance(e, Call) and e.op == "div":
        return _factors(e.args[0])
    if isinstance(e, Call) and e.op == "where" and e.args[2] == Number(0.0, e.dtype):
        return _factors(e.args[1])
    return []
