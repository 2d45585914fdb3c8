"""Leave out what no world needs: turns of a sum that add zero, and the costly one of two values."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from mjtorch.compiler.ir.program import (
    BOOL,
    FLOAT32,
    FLOAT64,
    Assign,
    Call,
    Collect,
    Declare,
    Expr,
    For,
    If,
    Load,
    Local,
    Note,
    Number,
    Program,
    Statement,
    Store,
    While,
    blocks,
    expressions,
    mentions,
    walk,
    walk_expr,
    with_blocks,
)
from mjtorch.compiler.passes.sink import Uses, only_for


def skip(p: Program) -> Program:
    """`p` without what no world of those that are computed side by side needs."""
    return skip_choices(skip_zeros(p))


# --- turns that add nothing -------------------------------------------------------------------------------------------

# A test costs about as much as a few operations.
WORTH_A_TEST = 8
# and so many does a load at an offset that each world has for itself.
GATHER = 8
# Sums over at least this many turns look for turns to leave out.
MIN_TURNS = 12


def skip_zeros(p: Program) -> Program:
    """Leave out the turns of a sum in which a factor of every term is zero in all worlds side by side.

    So inactive constraints cost nothing. (A zero that meets an infinity or NaN in such a turn gives 0, not NaN.)
    """
    return dataclasses.replace(p, body=[_guarded(s) for s in p.body])


def _guarded(s: Statement) -> Statement:
    if isinstance(s, For):
        factor = _common_factor(s)
        if factor is not None:
            return dataclasses.replace(s, guard=Call("ne", (factor, Number(0.0, factor.dtype)), BOOL))
    return with_blocks(s, [[_guarded(x) for x in block] for block in blocks(s)])


def _common_factor(s: For) -> Load | None:
    """A load that is a factor of all that `s`, if it only sums, adds."""
    if s.start.terms or s.stop.terms or s.stop.base - s.start.base < MIN_TURNS or s.guard is not None:
        return None
    if not all(isinstance(x, (Assign, Declare, Note)) for x in s.body):
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
    if not terms or _price(terms) < WORTH_A_TEST:
        return None
    candidates = [e for e in _factors(terms[0]) if any(mentions(a, s.variable) for a, _ in e.index.terms)]
    return next((e for e in candidates if all(e in _factors(t) for t in terms[1:])), None)


# --- choices that no world makes --------------------------------------------------------------------------------------


def skip_choices(p: Program) -> Program:
    """Where a turn of a loop chooses between two values, and no world the first, do not compute that.

    Nor what is computed for it alone. So what is computed of contacts is computed for those there are.
    """
    return dataclasses.replace(p, body=_skipping(p.body, "", frozenset(), Uses.of(p.body)))


def _skipping(statements: Sequence[Statement], turn: str, running: frozenset[Expr], uses: Uses) -> list[Statement]:
    """The statements, in a turn of a loop over `turn` if that is named, with choices left out.

    running: flags of the loops around, each true in some world; uses: of the whole program
    """
    out: list[Statement] = []
    for s in statements:
        found = _choice(s, out, turn, running, uses) if turn else None
        if found is None:
            out.append(s)
        else:
            out = found
    return [s if isinstance(s, If) else _skipping_inside(s, turn, running, uses) for s in out]


def _skipping_inside(s: Statement, turn: str, running: frozenset[Expr], uses: Uses) -> Statement:
    if isinstance(s, While):
        turn, running = "", running | {s.flag}
    elif isinstance(s, For):
        turn = "" if s.scope else s.variable
    return with_blocks(s, [_skipping(block, turn, running, uses) for block in blocks(s)])


def _choice(
    s: Statement, before: list[Statement], turn: str, running: frozenset[Expr], uses: Uses
) -> list[Statement] | None:
    """`before` and `s`, the latter as an `If` with all that only it needs, if what is then left out costs enough."""
    if not isinstance(s, (For, Store)):
        return None
    saved: Counter[Expr] = Counter()
    for value, turns in _values(s):
        for e in walk_expr(value):
            if isinstance(e, Call) and e.op == "where" and isinstance(e.args[0], (Load, Local)):
                saved[e.args[0]] += turns * (_price([e.args[1]]) - _price([e.args[2]]))
    best, most = None, 0
    last = before[-1] if before else None
    for flag, gain in saved.items():
        if flag in running or not _is_fixed(flag, s):
            continue
        otherwise = _second(s, flag)
        read = {e for x in walk(otherwise) for e in expressions(x)}
        branch, earlier, least = If(flag, _first(s, flag), _needed(otherwise, read)), before, WORTH_A_TEST
        if isinstance(last, If) and last.flag == flag and _is_fixed(flag, last):
            # The test is there already.
            branch = If(flag, [*last.body, *branch.body], [*last.otherwise, *branch.otherwise])
            earlier, least = before[:-1], 1
        moved = only_for(branch.body, dataclasses.replace(branch, body=[]), earlier, turn, uses)
        gain += sum(turns * _price([value]) for k in moved for value, turns in _values(earlier[k]))
        if gain > most and gain >= least:
            branch.body = [*(earlier[k] for k in moved), *branch.body]
            best, most = [*(x for k, x in enumerate(earlier) if k not in moved), branch], gain
    return best


def _values(s: Statement, turns: int = 1) -> Iterator[tuple[Expr, int]]:
    """What is computed in `s`, and how often."""
    if isinstance(s, (Store, Declare, Assign)):
        yield s.value, turns
    if isinstance(s, For) and not (s.start.terms or s.stop.terms):
        turns *= s.stop.base - s.start.base
    for block in blocks(s):
        for x in block:
            yield from _values(x, turns)


def _is_fixed(flag: Expr, s: Statement) -> bool:
    """Whether a flag is the same all through `s`."""
    within = list(walk([s]))
    if isinstance(flag, Local):
        return not any(isinstance(x, (Declare, Assign)) and x.local == flag for x in within)
    assert isinstance(flag, Load)
    inner = [x.variable for x in within if isinstance(x, (For, Collect))]
    moves = flag.offset is not None or any(mentions(a, v) for a, _ in flag.index.terms for v in inner)
    return not moves and not any(isinstance(x, Store) and x.buffer is flag.buffer for x in within)


def _price(values: Sequence[Expr]) -> int:
    """What it takes to compute them, in operations."""
    return sum(GATHER if isinstance(e, Load) and e.offset is not None else 1 for v in values for e in walk_expr(v))


def _first(s: Statement, flag: Expr) -> list[Statement]:
    """`s` where the flag is true in some world: branches with the same flag are taken."""
    if isinstance(s, If) and s.flag == flag:
        return [y for x in s.body for y in _first(x, flag)]
    return [with_blocks(s, [[y for x in block for y in _first(x, flag)] for block in blocks(s)])]


def _second(s: Statement, flag: Expr) -> list[Statement]:
    """`s` where the flag is false."""

    def second(e: Expr) -> Expr:
        if isinstance(e, Call) and e.op == "where" and e.args[0] == flag:
            return second(e.args[2])
        if isinstance(e, Call):
            return Call(e.op, tuple(second(a) for a in e.args), e.dtype)
        return e

    if isinstance(s, If) and s.flag == flag:
        return [y for x in s.otherwise for y in _second(x, flag)]
    if isinstance(s, (Store, Declare, Assign)):
        s = dataclasses.replace(s, value=second(s.value))
    inner = [[y for x in block for y in _second(x, flag)] for block in blocks(s)]
    return [with_blocks(s, inner)] if not inner or any(inner) else []


def _needed(statements: list[Statement], read: set[Expr]) -> list[Statement]:
    """The statements without variables that are not `read`."""
    kept = [x for x in statements if not (isinstance(x, (Declare, Assign)) and x.local not in read)]
    return [with_blocks(x, [_needed(block, read) for block in blocks(x)]) for x in kept]


def _factors(e: Expr) -> list[Load]:
    """Loads of floating-point numbers that make `e` zero where they are zero."""
    if isinstance(e, Load):
        return [e] if e.offset is None and e.dtype in (FLOAT32, FLOAT64) and e.buffer.kind == "scratch" else []
    if isinstance(e, Call) and e.op == "mul":
        return [f for a in e.args for f in _factors(a)]
    if isinstance(e, Call) and e.op == "div":
        return _factors(e.args[0])
    return []
