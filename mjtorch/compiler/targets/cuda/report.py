"""What a compiled function would be on a GPU, found out without one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from mjtorch.compiler.lowered import Lowered, lower_graph
from mjtorch.compiler.mapped import Mapped
from mjtorch.compiler.targets.cuda.build import Resources, resources
from mjtorch.compiler.targets.cuda.native import Shape, shape_of
from mjtorch.compiler.targets.cuda.pipeline import scheduled
from mjtorch.compiler.targets.cuda.printer import Source, print_program

# Shared memory of a multiprocessor and what each block takes of it besides its own, bytes; the most blocks it holds.
SHARED = {"sm_80": 164 * 1024, "sm_86": 100 * 1024, "sm_89": 100 * 1024, "sm_90": 228 * 1024, "sm_120": 100 * 1024}
RESERVED, BLOCKS, REGISTERS = 1024, {"sm_80": 32, "sm_86": 16, "sm_89": 24, "sm_90": 32, "sm_120": 24}, 65536


@dataclasses.dataclass(frozen=True)
class Target:
    """A function on one architecture.

    worlds: that a multiprocessor holds at a time, by shared memory and registers
    seconds: to compile
    """

    resources: Resources
    worlds: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Report:
    """What was printed, and what each architecture makes of it; `str()` of it is the report."""

    name: str
    source: Source
    targets: list[Target]

    def __str__(self) -> str:
        s = self.source
        lines = [
            f"{self.name} on a GPU: {s.lanes} lanes a world, {s.barriers} barriers in the text, about "
            f"{s.operations:,.0f} operations of each lane a world",
            f"  bytes a world: {s.shared:,} shared, {s.far:,} global; {s.uniform:,} for all worlds",
            "",
            f"  {'':8}{'registers':>11}{'spilled bytes':>15}{'code bytes':>12}{'worlds/SM':>11}{'seconds':>9}",
        ]
        for t in self.targets:
            r = t.resources
            lines.append(f"  {r.architecture:8}{r.registers:11}{r.spills:15,}{r.code:12,}{t.worlds:11}{t.seconds:9.1f}")
        return "\n".join(lines)


def for_gpu(mapped: Mapped, *args: Any, **kwargs: Any) -> Lowered:
    """The loop program of a function for arguments such as these, as it is lowered for a GPU."""
    call = mapped.parameters.call(args, kwargs)
    graph, _ = mapped.trace(call.signature)
    return lower_graph(graph, call.signature.shared, call.signature.constants(call.leaves), elements=True)


def report(mapped: Mapped, architectures: Sequence[str], *args: Any, **kwargs: Any) -> Report:
    """Print a function for GPUs and compile it for each of `architectures`, such as "sm_90".

    Raises:
        ValueError: an architecture that is not known.
        BuildError: there is no compiler, or it fails.
    """
    unknown = [a for a in architectures if a not in SHARED]
    if unknown:
        raise ValueError(f"unknown architecture {unknown[0]!r}; known are {', '.join(SHARED)}")
    source = print_program(scheduled(for_gpu(mapped, *args, **kwargs).program))
    shape = shape_of(source)
    targets = []
    for architecture in architectures:
        start = time.perf_counter()
        found = resources(source.text, architecture)
        targets.append(Target(found, worlds_at_once(shape, found), time.perf_counter() - start))
    return Report(mapped.name, source, targets)


def worlds_at_once(shape: Shape, found: Resources) -> int:
    """How many worlds a multiprocessor holds: as many blocks as its memory and registers allow."""
    by_memory = SHARED[found.architecture] // (shape.shared + RESERVED)
    by_registers = REGISTERS // (max(1, found.registers) * shape.threads)
    return min(BLOCKS[found.architecture], by_memory, by_registers) * shape.side_by_side
