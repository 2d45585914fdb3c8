"""Code sinking: which work only one branch needs, so that it can move into it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from mjtorch.compiler.analysis.dependence import accesses, conflicts, window
from mjtorch.compiler.ir.nodes import SCRATCH, Assign, Buffer, Declare, For, Group, Local, Scatter, Statement, Store
from mjtorch.compiler.ir.walk import expressions, walk


@dataclasses.dataclass(frozen=True)
class Uses:
    """How often statements access each buffer, and read each variable."""

    buffers: Counter[Buffer]
    variables: Counter[Local]

    @classmethod
    def of(cls, statements: Sequence[Statement]) -> Uses:
        """Those in `statements`."""
        buffers = Counter(a.buffer for a in accesses(statements, {}))
        variables = Counter(e for s in walk(statements) for e in expressions(s) if isinstance(e, Local))
        return cls(buffers, variables)


def only_for(
    branch: Sequence[Statement], rest: Statement, before: Sequence[Statement], variable: str, uses: Uses
) -> list[int]:
    """Which of the statements `before` compute what nothing but a `branch` needs, so that they can be done in it.

    All are in one iteration of a loop, over `variable`. rest: what is done whether the branch is taken or not, or if it
    is not; uses: of the whole program
    """
    found = [k for k, s in enumerate(before) if only_computes(s, guarded=True)]
    elsewhere = Uses.of([rest])
    while True:
        # Fewer and fewer, until what these write is used by these alone.
        own = private([*(before[k] for k in found), *branch], elsewhere, variable, uses)
        kept = [k for k in found if written([before[k]]) <= own and _can_wait(before, k, found)]
        if kept == found:
            return found
        found = kept


def _can_wait(before: Sequence[Statement], k: int, moved: Sequence[int]) -> bool:
    """Whether a statement can be done after those behind it that are not `moved` as well."""
    return not conflicts([before[k]], [s for i, s in enumerate(before) if i > k and i not in moved])


def only_computes(s: Statement, guarded: bool = False) -> bool:
    """Whether all that `s` does is to write arrays and to declare one variable at most.

    guarded: it may leave out iterations
    """
    within = list(walk([s]))
    own = {x.local for x in within if isinstance(x, Declare)}

    def plain(x: Statement) -> bool:
        if isinstance(x, For):
            return not x.scope and (guarded or x.guard is None)
        return x.local in own if isinstance(x, Assign) else isinstance(x, (Declare, Store, Scatter, Group))

    return all(map(plain, within))


def private(statements: Sequence[Statement], elsewhere: Uses, variable: str, uses: Uses) -> set[Buffer | Local]:
    """Arrays and variables that nothing but these uses, and they only in the iteration in which they wrote it."""
    mine = Uses.of(statements)
    found: set[Buffer | Local] = {
        v for v in written(statements) if isinstance(v, Local) and mine.variables[v] == uses.variables[v]
    }
    places: dict[Buffer, set] = {}
    for a in accesses(statements, {}):
        if a.buffer not in places and not a.writes:
            places[a.buffer] = {None}
        places.setdefault(a.buffer, set()).add(None if a.moving else window(a.index, variable, a.bounds))
    found |= {
        b
        for b, windows in places.items()
        if b.kind == SCRATCH and mine.buffers[b] == uses.buffers[b] and len(windows) == 1 and None not in windows
    }
    return {x for x in found if not (elsewhere.variables[x] if isinstance(x, Local) else elsewhere.buffers[x])}


def written(statements: Sequence[Statement]) -> set[Buffer | Local]:
    """What is stored, declared and assigned."""
    found: set[Buffer | Local] = set()
    for x in walk(statements):
        if isinstance(x, (Store, Scatter)):
            found.add(x.buffer)
        elif isinstance(x, (Declare, Assign)):
            found.add(x.local)
    return found
