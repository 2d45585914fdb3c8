"""Leave out the costly one of two values where no world chooses it, and what is computed for it alone."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from mjtorch.compiler.analysis.cost import CPU, price
from mjtorch.compiler.analysis.dependence import NAMED
from mjtorch.compiler.ir.nodes import (
    Assign,
    Body,
    Buffer,
    Call,
    Compact,
    Declare,
    Expr,
    For,
    If,
    Load,
    Local,
    Number,
    Pack,
    Program,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.walk import Rewriter, bodies, expressions, map_bodies, mentions, walk, walk_expr, with_body
from mjtorch.compiler.passes.sink import Uses, only_for, private
from mjtorch.compiler.passes.zero_terms import WORTH_A_TEST

Values = (Store, Scatter, Declare, Assign)
# Flags that are computed when they are asked for, and how much must be saved for that.
COMPARISONS, WORTH_A_COMPARISON = ("ne", "gt"), 5 * WORTH_A_TEST


def branch_on_choices(p: Program) -> Program:
    """Where an iteration of a loop chooses between two values, and no world the first, do not compute that.

    Nor what is computed for it alone. So what is computed of contacts is computed for those there are.
    """
    return with_body(p, _branching(p.body, "", frozenset(), Uses.of(p.body)))


def _branching(statements: Sequence[Statement], variable: str, running: frozenset[Expr], uses: Uses) -> list[Statement]:
    """The statements, in an iteration of a loop over `variable` if that is named, with choices left out.

    running: flags of the loops around, each true in some world; uses: of the whole program
    """
    out: list[Statement] = []
    for s in statements:
        found = _choice((s,), out, variable, running, uses) if variable else None
        if found is None and variable and out and not isinstance(out[-1], If):
            # What is computed for two values may be left out if it is for both.
            found = _choice((out[-1], s), out[:-1], variable, running, uses)
        if found is None:
            out.append(s)
        else:
            out = found
    return [s if isinstance(s, If) else _inside(s, variable, running, uses) for s in out]


def _inside(s: Statement, variable: str, running: frozenset[Expr], uses: Uses) -> Statement:
    if isinstance(s, While):
        variable, running = "", running | {s.flag}
    elif isinstance(s, Pack):
        variable, running = "", frozenset()
    elif isinstance(s, For):
        variable = "" if s.scope else s.variable
    return map_bodies(s, lambda body: _branching(body, variable, running, uses))


def _choice(
    made: Body, before: list[Statement], variable: str, running: frozenset[Expr], uses: Uses
) -> list[Statement] | None:
    """`before` and `made`, the latter as an `If` with all that only it needs, if what is then left out costs enough.

    Each statement of `made` must choose by the flag. A variable gets the second value, and in the `If` the first.
    """
    declared = made[0] if isinstance(made[0], Declare) and len(made) == 1 else None
    if declared is None and not all(isinstance(s, (For, Store, Scatter)) for s in made):
        return None
    saved = _saved(made[0])
    for s in made[1:]:
        more = _saved(s)
        saved = Counter({flag: gain + more[flag] for flag, gain in saved.items() if flag in more})
    best, most = None, 0.0
    own = private(made, Uses.of(()), variable, uses) if saved and declared is None else set()
    ahead: Body
    last = before[-1] if before else None
    for flag, gain in saved.items():
        if flag in running or not all(_is_fixed(flag, s) for s in made):
            continue
        ahead, otherwise = (), _second(made, flag)
        if declared is None:
            branch = If(flag, _first(made, flag), _needed(otherwise, own), origin=made[-1].origin)
        else:
            ahead = otherwise
            branch = If(
                flag, (Assign(declared.local, declared.value, origin=declared.origin),), (), origin=declared.origin
            )
        earlier, least = before, WORTH_A_TEST if isinstance(flag, (Load, Local)) else WORTH_A_COMPARISON
        if isinstance(last, If) and last.flag == flag and _is_fixed(flag, last) and not ahead:
            # The test is there already.
            branch = If(flag, last.body + branch.body, last.otherwise + branch.otherwise, origin=last.origin)
            earlier, least = before[:-1], 1
        rest = dataclasses.replace(branch, body=(), otherwise=(*branch.otherwise, *ahead))
        moved = only_for(branch.body, rest, earlier, variable, uses)
        whole = gain + sum(times * price(value, CPU) for k in moved for value, times in _values(earlier[k]))
        if whole > most and whole >= least:
            body = (*(earlier[k] for k in moved), *branch.body)
            kept = [x for k, x in enumerate(earlier) if k not in moved]
            best, most = [*kept, *ahead, dataclasses.replace(branch, body=body)], whole
    return best


def _saved(s: Statement) -> Counter[Expr]:
    """For each flag that chooses between values in `s`, how much more the first ones cost."""
    saved: Counter[Expr] = Counter()
    for value, times in _values(s):
        for e in walk_expr(value):
            if isinstance(e, Call) and e.op == "where" and _is_flag(e.args[0]):
                saved[e.args[0]] += times * (price(e.args[1], CPU) - price(e.args[2], CPU))  # type: ignore[assignment]
    return saved


def _is_flag(e: Expr) -> bool:
    """Whether all that `e` takes is a look, or two and a comparison at most."""
    if isinstance(e, Call) and e.op in COMPARISONS:
        return all(isinstance(x, (Load, Local, Number)) for x in e.args)
    return isinstance(e, (Load, Local))


def _values(s: Statement, times: int = 1) -> Iterator[tuple[Expr, int]]:
    """What is computed in `s`, and how often."""
    if isinstance(s, Values):
        yield s.value, times
    if isinstance(s, For) and not (s.start.terms or s.stop.terms):
        times *= s.stop.base - s.start.base
    for body in bodies(s):
        for x in body:
            yield from _values(x, times)


def _is_fixed(flag: Expr, s: Statement) -> bool:
    """Whether a flag is the same all through `s`."""
    within = list(walk([s]))
    if isinstance(flag, Call):
        return all(_is_fixed(x, s) for x in flag.args if not isinstance(x, Number))
    if isinstance(flag, Local):
        return not any(isinstance(x, (Declare, Assign)) and x.local == flag for x in within)
    assert isinstance(flag, Load)
    moves = any(isinstance(x, (For, Compact, Pack)) and mentions(flag.index, Variable(x.variable)) for x in within)
    return not moves and not any(isinstance(x, (Store, Scatter)) and x.buffer is flag.buffer for x in within)


def _first(statements: Body, flag: Expr) -> Body:
    """The statements where the flag is true in some world: branches with the same flag are taken."""
    found: list[Statement] = []
    for s in statements:
        if isinstance(s, If) and s.flag == flag:
            found += _first(s.body, flag)
        else:
            found.append(map_bodies(s, lambda body: _first(body, flag)))
    return tuple(found)


def _second(statements: Body, flag: Expr) -> Body:
    """The statements where the flag is false."""
    rewriter = _Second(flag)
    found: list[Statement] = []
    for s in statements:
        if isinstance(s, If) and s.flag == flag:
            found += _second(s.otherwise, flag)
            continue
        if isinstance(s, Values):
            s = dataclasses.replace(s, value=rewriter.expr(s.value))
        new = map_bodies(s, lambda body: _second(body, flag))
        if not bodies(new) or any(bodies(new)):
            found.append(new)
    return tuple(found)


class _Second(Rewriter):
    """The second of two values that a flag chooses between."""

    def __init__(self, flag: Expr) -> None:
        self.flag = flag

    def expr(self, e: Expr) -> Expr:
        """An expression; offsets of gathers stay."""
        if isinstance(e, Call) and e.op == "where" and e.args[0] == self.flag:
            return self.expr(e.args[2])
        return super().expr(e) if isinstance(e, Call) else e


def _needed(statements: Body, own: set[Buffer | Local]) -> Body:
    """The statements without what they compute for nobody: of `own`, which nothing else uses, what they do not read."""
    read: set[Buffer | Local] = set()
    while True:
        kept = _without(statements, own - read)
        more = {
            e if isinstance(e, Local) else e.buffer for x in walk(kept) for e in expressions(x) if isinstance(e, NAMED)
        }
        if more <= read:
            return kept
        read |= more


def _without(statements: Body, unread: set[Buffer | Local]) -> Body:
    """The statements without what writes these alone."""
    found: list[Statement] = []
    for s in statements:
        if not (isinstance(s, Values) and (s.local if isinstance(s, (Declare, Assign)) else s.buffer) in unread):
            new = map_bodies(s, lambda body: _without(body, unread))
            if not bodies(s) or any(bodies(new)):
                found.append(new)
    return tuple(found)
