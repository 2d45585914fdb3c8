"""Results are written once they are known, not at the end: so the memory that holds them is used again."""

from __future__ import annotations

from mjtorch.compiler.analysis.dependence import writes_and_reads
from mjtorch.compiler.ir.nodes import OUTPUT, SCRATCH, Buffer, Local, Pack, Program, Statement, While
from mjtorch.compiler.ir.walk import with_body

# Elements of results that are worth it: a loop of its own, and a barrier before it, cost more than small ones take.
WORTH_A_LOOP = 72


def early_results(p: Program) -> Program:
    """Move loops that only write results to where nothing else any more uses what they read."""
    last: dict[Buffer | Local, int] = {}
    for k, s in enumerate(p.body):
        if not _is_result(s):
            written, read = writes_and_reads([s])
            last |= dict.fromkeys((*written, *read), k)
    body: list[list[Statement]] = [[] for _ in p.body]
    for k, s in enumerate(p.body):
        place = k
        if _is_result(s):
            place = _place(s, k, last)
            # What writes to the same results comes behind it.
            last |= {b: max(place, last.get(b, 0)) for b in writes_and_reads([s])[0]}
        body[place].append(s)
    return with_body(p, [s for found in body for s in found])


def _is_result(s: Statement) -> bool:
    written, _ = writes_and_reads([s])
    return not isinstance(s, (While, Pack)) and all(isinstance(b, Buffer) and b.kind == OUTPUT for b in written)


def _place(s: Statement, now: int, last: dict[Buffer | Local, int]) -> int:
    """Behind which statement a result can be written, if that is of use; last: that uses each buffer."""
    written, read = writes_and_reads([s])
    size = sum(b.size for b in written if isinstance(b, Buffer))
    if size < WORTH_A_LOOP or not any(isinstance(b, Buffer) and b.kind == SCRATCH for b in read):
        return now
    return min(now, max(last.get(b, 0) for b in (*written, *read)))
