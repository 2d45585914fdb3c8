"""Whether what a call needs fits into memory, found out before it runs: a process that takes too much is killed."""

from __future__ import annotations

from collections import Counter

from mjtorch.compiler.ir.nodes import SCRATCH, UNIFORM, Program, Scatter, Store
from mjtorch.compiler.ir.walk import walk
from mjtorch.memory import SMALL, available

# Bytes of an element, of one world; a mask takes as many as the widest number beside it at most.
BYTES = {"f32": 4, "f64": 8, "i64": 8, "i32": 4, "bool": 8}
# So many lines are named as those that most memory is for.
LINES = 3


def check(worlds: int, results: int, scratch: int, threads: int) -> None:
    """Refuse a call of `worlds` that needs so many bytes for its results, and for its scratch memory in all threads.

    Raises:
        MemoryError: the machine, or the process's share of it, has less.
    """
    if results + scratch < SMALL:
        return
    free = available()
    if free is not None and results + scratch > free:
        fewer = "fewer worlds" if results > scratch else "fewer threads, jit(..., threads=1)"
        raise MemoryError(
            f"{worlds} worlds need {results + scratch:,} bytes, {results:,} for results and {scratch:,} of scratch for "
            f"{threads} threads, but {free:,} are available; take {fewer}, fewer outputs or a smaller contact_capacity"
        )


def scratch_bytes(program: Program, kind: str = SCRATCH) -> int:
    """Bytes of scratch memory of one world; of `kind` UNIFORM, of what all worlds have in common."""
    assert program.layout is not None, "memory is planned before a program is built"
    return sum(size * BYTES[dtype] for (space, dtype), size in program.layout.sizes.items() if space == kind)


def check_program(name: str, program: Program, lanes: int) -> None:
    """Refuse a function's program, before it is built, whose scratch memory for one thread does not fit.

    Raises:
        MemoryError: the machine, or the process's share of it, has less.
    """
    scratch = lanes * scratch_bytes(program) + scratch_bytes(program, UNIFORM)
    if scratch < SMALL:
        return
    free = available()
    if free is not None and scratch > free:
        raise MemoryError(
            f"jit({name}): {lanes} worlds side by side need {scratch:,} bytes of scratch memory, but {free:,} are "
            f"available; the largest arrays are for {_largest(program, lanes)}; a smaller contact_capacity, or fewer "
            "geoms that may meet, take less"
        )


def _largest(program: Program, lanes: int) -> str:
    """The lines that most memory is for."""
    lines: Counter[str] = Counter()
    seen = set()
    for s in walk(program.body):
        if isinstance(s, (Store, Scatter)) and s.buffer.kind == SCRATCH and s.buffer not in seen:
            seen.add(s.buffer)
            source = s.origin.source if s.origin else None
            lines[str(source or "lines unknown")] += s.buffer.size * BYTES[s.buffer.dtype] * lanes
    return ", ".join(f"{line} ({size:,} bytes)" for line, size in lines.most_common(LINES))
