"""Parallelization: loops whose iterations the lanes of a warp, which compute one world together, share out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mjtorch.compiler.analysis.cost import WARP, trips, work
from mjtorch.compiler.analysis.dependence import Bounds, accesses, by_buffer, keep_to_classes, stay_within, within
from mjtorch.compiler.ir.nodes import (
    OUTPUT,
    Assign,
    Body,
    Call,
    Compact,
    Declare,
    FirstLane,
    For,
    Function,
    Group,
    If,
    Local,
    Number,
    ParallelFor,
    Program,
    Reduction,
    Scatter,
    Statement,
    Store,
    While,
)
from mjtorch.compiler.ir.walk import expressions, map_bodies, walk

# So many iterations keep the lanes of a warp busy.
ENOUGH = 16
# What lanes can add up, and what each begins with.
IDENTITIES = {"add": 0, "sub": 0, "mul": 1, "max": "-inf", "min": "inf", "or": False, "and": True}


def parallelize(p: Program, width: int) -> Program:
    """Share out the iterations of the loops for which it pays, over `width` lanes; all lanes execute the rest alike."""
    return dataclasses.replace(p, uniform=_body(p.uniform, width, {}), body=_body(p.body, width, {}))


def _body(statements: Body, width: int, bounds: Bounds) -> Body:
    return tuple(_statement(s, width, bounds) for s in statements)


def _statement(s: Statement, width: int, bounds: Bounds) -> Statement:
    if isinstance(s, Compact):
        return s  # its iterations are shared out in any case
    inner = within(s, bounds)
    alike = map_bodies(s, lambda body: _body(body, width, inner))
    found = shared_out(s) if isinstance(s, For) else None
    if found is None:
        return alike
    return found if lane_work([found], bounds, width) < lane_work([alike], bounds, width) else alike


def lane_work(statements: Sequence[Statement], bounds: Bounds, width: int) -> float:
    """An estimate of the instructions that each of `width` lanes executes."""
    total = 0.0
    for s in statements:
        inner = within(s, bounds)
        if isinstance(s, ParallelFor):
            count, each = 1.0, bounds
            for variable, start, stop in s.loops:
                count *= trips(start, stop, each, WARP)
                each = within(For(variable, start, stop, ()), each)
            rounds = max(1, -(-count // width))
            total += WARP.barrier + WARP.reduction * len(s.reductions) + rounds * (2 + work(s.body, each, WARP))
        elif isinstance(s, For):
            total += trips(s.start, s.stop, bounds, WARP) * (WARP.iteration + lane_work(s.body, inner, width))
        elif isinstance(s, While):
            both = lane_work(s.head, bounds, width) + lane_work(s.body, bounds, width)
            total += WARP.while_trips * (both + WARP.barrier)
        elif isinstance(s, Compact):
            total += 2 * WARP.barrier + -(-s.size // width) * (work(s.body, inner, WARP) + WARP.barrier)
        elif isinstance(s, If):
            total += 1 + (lane_work(s.body, bounds, width) + lane_work(s.otherwise, bounds, width)) / 2
        elif isinstance(s, (Group, Function, FirstLane)):
            total += lane_work(s.body, bounds, width)
        else:
            total += work([s], bounds, WARP)
    return total


def shared_out(s: For) -> ParallelFor | None:
    """`s`, and loops that are all there is in it, with their iterations shared out, if they can be."""
    loops = [s]
    if not independent(s):
        return None
    while True:
        inner = loops[-1].body[0] if len(loops[-1].body) == 1 else None
        if not isinstance(inner, For) or inner.scope or loops[-1].guard is not None or inner.guard is not None:
            break
        if inner.start.terms or inner.stop.terms or not independent(inner):
            break
        loops.append(inner)
    found = reductions(s)
    if found is None:
        return None
    ranges = tuple((x.variable, x.start, x.stop) for x in loops)
    return ParallelFor(ranges, found, loops[-1].body, loops[-1].guard, origin=s.origin)


def mergeable(a: For, b: For) -> bool:
    """Whether two loops over a range lose nothing by becoming one: they keep the lanes busy, or are alike.

    What writes matrices to results stays alone, since its lanes write what lies side by side.
    """
    first, second = shared_out(a), shared_out(b)
    if first is None or second is None:
        return False
    shapes = [[(start, stop) for _, start, stop in found.loops] for found in (first, second)]
    if shapes[0] == shapes[1]:
        return True
    return a.stop.base - a.start.base >= ENOUGH and not any(_writes_results(x) for x in (first, second))


def _writes_results(s: ParallelFor) -> bool:
    """Whether all that several loops in one do is to store results."""
    return len(s.loops) > 1 and all(isinstance(x, Store) and x.buffer.kind == OUTPUT for x in s.body)


def independent(s: For) -> bool:
    """Whether no iteration of `s` reads or writes an element that another writes: no loop-carried dependence."""
    inside = list(walk(s.body))
    if s.scope or any(isinstance(x, While) or (isinstance(x, For) and x.scope) for x in inside):
        return False
    if s.parallel:
        return True
    written = {x.buffer for x in inside if isinstance(x, (Store, Scatter))}
    found = by_buffer(a for a in accesses(s.body, {}) if a.buffer in written)
    return all(stay_within(x, s.variable) or keep_to_classes(x, s) for x in found.values())


def reductions(s: For) -> tuple[Reduction, ...] | None:
    """What the iterations of `s` add to variables from around it; None if they do anything else to them."""
    inside = list(walk(s.body))
    declared = {x.local for x in inside if isinstance(x, Declare)}
    folds: dict[Local, str] = {}
    for x in inside:
        if not isinstance(x, Assign) or x.local in declared:
            continue
        v = x.value
        if not isinstance(v, Call) or v.op not in IDENTITIES or v.args[0] != x.local:
            return None
        if folds.setdefault(x.local, v.op) != v.op:
            return None
    reads = sum(isinstance(e, Local) and e in folds for x in inside for e in expressions(x))
    own = sum(isinstance(x, Assign) and x.local in folds for x in inside)
    return tuple(Reduction(*f) for f in folds.items()) if reads == own else None


def identity(r: Reduction) -> Number:
    """What each lane begins with."""
    value = IDENTITIES[r.op]
    if isinstance(value, str):
        sign = -1 if value.startswith("-") else 1
        value = sign * (2**62) if r.local.dtype == "i64" else float(value)
    return Number(value, r.local.dtype)
