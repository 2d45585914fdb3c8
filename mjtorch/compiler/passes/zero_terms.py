"""Leave out iterations of a sum that add zero in all worlds: so inactive constraints cost nothing."""

from __future__ import annotations

import dataclasses

from mjtorch.compiler.analysis.cost import CPU, price
from mjtorch.compiler.ir.nodes import (
    BOOL,
    FLOAT32,
    FLOAT64,
    SCRATCH,
    Assign,
    Call,
    Declare,
    Expr,
    For,
    Load,
    Number,
    Program,
    Statement,
    Variable,
)
from mjtorch.compiler.ir.walk import map_bodies, mentions, with_body

# A test costs about as much as a few operations.
WORTH_A_TEST = 8
# Sums over at least this many iterations look for those to leave out.
MIN_ITERATIONS = 12


def skip_zero_terms(p: Program) -> Program:
    """Leave out the iterations of a sum in which a factor of every term is zero in all worlds side by side.

    A zero that meets an infinity or NaN in such an iteration gives 0, not NaN.
    """
    return with_body(p, [_guarded(s) for s in p.body])


def _guarded(s: Statement) -> Statement:
    if isinstance(s, For):
        factor = _common_factor(s)
        if factor is not None:
            return dataclasses.replace(s, guard=Call("ne", (factor, Number(0.0, factor.dtype)), BOOL))
    return map_bodies(s, lambda body: [_guarded(x) for x in body])


def _common_factor(s: For) -> Load | None:
    """A load that is a factor of all that `s`, if it only sums, adds."""
    if s.start.terms or s.stop.terms or s.stop.base - s.start.base < MIN_ITERATIONS or s.guard is not None:
        return None
    if not all(isinstance(x, (Assign, Declare)) for x in s.body):
        return None
    declared = {x.local for x in s.body if isinstance(x, Declare)}
    terms = []
    for x in s.body:
        if isinstance(x, Assign):
            sums = isinstance(x.value, Call) and x.value.op == "add" and x.value.args[0] == x.local
            if x.local in declared or not sums:
                return None
            assert isinstance(x.value, Call)
            terms.append(x.value.args[1])
    if not terms or sum(price(t, CPU) for t in terms) < WORTH_A_TEST:
        return None
    candidates = [e for e in _factors(terms[0]) if mentions(e.index, Variable(s.variable))]
    return next((e for e in candidates if all(e in _factors(t) for t in terms[1:])), None)


def _factors(e: Expr) -> list[Load]:
    """Loads of floating-point numbers that make `e` zero where they are zero."""
    if isinstance(e, Load):
        return [e] if e.dtype in (FLOAT32, FLOAT64) and e.buffer.kind == SCRATCH else []
    if isinstance(e, Call) and e.op == "mul":
        return [f for a in e.args for f in _factors(a)]
    if isinstance(e, Call) and e.op == "div":
        return _factors(e.args[0])
    return []
