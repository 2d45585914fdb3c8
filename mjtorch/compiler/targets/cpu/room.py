"""Whether what a call needs fits into memory, found out before it runs: a process that takes too much is killed."""

from __future__ import annotations

import os
import pathlib
from collections import Counter

from mjtorch.compiler.ir.nodes import SCRATCH, UNIFORM, Program, Scatter, Store
from mjtorch.compiler.ir.walk import walk

# What is smaller is not looked into: to ask takes some time, and PyTorch allocates as much without asking.
SMALL = 2**28
# Bytes of an element, of one world; a mask takes as many as the widest number beside it at most.
BYTES = {"f32": 4, "f64": 8, "i64": 8, "i32": 4, "bool": 8}
# So many lines are named as those that most memory is for.
LINES = 3
GROUPS, PROCESSES = pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/proc")


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


def available() -> int | None:
    """How many bytes this process may still take; None where the system does not say."""
    return min((x for x in (_of_machine(), *_of_groups()) if x is not None), default=None)


def _of_machine() -> int | None:
    try:
        lines = (PROCESSES / "meminfo").read_text().splitlines()
        kilobytes = {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in lines)}
        return 1024 * (kilobytes["MemAvailable"] + kilobytes.get("SwapFree", 0))
    except (OSError, KeyError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # all there is
    except (AttributeError, OSError, ValueError):
        return None


def _of_groups() -> list[int]:
    """What the control groups of this process leave it, of version 2 or 1."""
    try:
        lines = (PROCESSES / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        if kinds == "":
            root, names = GROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            root = GROUPS / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Inside of a container the path may be one that is seen outside only: the root is its own then.
        folder = root / path.lstrip("/")
        inside = [folder, *folder.parents][: len(folder.relative_to(root).parts) + 1]
        found += [free for f in inside if (free := _left(f, *names)) is not None]
    return found


def _left(folder: pathlib.Path, limit: str, used: str, reclaimable: str) -> int | None:
    """Limit less what is used; cached files are given up for it."""
    try:
        most, now = int((folder / limit).read_text()), int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, most - now + int(stat.get(reclaimable, 0)))
    except (OSError, ValueError):  # no such group, or no limit
        return None
