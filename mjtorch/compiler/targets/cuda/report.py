"""What a compiled function would be on a GPU, found out without one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from mjtorch.compiler.ir.nodes import Program
from mjtorch.compiler.lowered import Lowered, lower_graph
from mjtorch.compiler.mapped import Mapped
from mjtorch.compiler.passes.warp_memory import RESERVED, WARP_SIZE
from mjtorch.compiler.signature import Call
from mjtorch.compiler.targets.cuda.build import Resources, resources
from mjtorch.compiler.targets.cuda.pipeline import scheduled
from mjtorch.compiler.targets.cuda.printer import print_program
from mjtorch.compiler.targets.cuda.shape import Shape, shape_of
from mjtorch.compiler.targets.cuda.simulated.machine import MACHINES
from mjtorch.compiler.targets.cuda.simulated.predict import Prediction, predict
from mjtorch.compiler.targets.cuda.simulated.run import simulate
from mjtorch.compiler.targets.cuda.source import Source

# Bytes of shared memory of a multiprocessor; the most blocks it holds; its registers.
SHARED = {"sm_80": 164 * 1024, "sm_86": 100 * 1024, "sm_89": 100 * 1024, "sm_90": 228 * 1024, "sm_120": 100 * 1024}
BLOCKS, REGISTERS = {"sm_80": 32, "sm_86": 16, "sm_89": 24, "sm_90": 32, "sm_120": 24}, 65536


@dataclasses.dataclass(frozen=True)
class Target:
    """A function on one architecture.

    worlds: that a multiprocessor holds at a time, by shared memory and registers
    seconds: to compile
    predicted: what a call takes there
    """

    resources: Resources
    worlds: int
    seconds: float
    predicted: Prediction


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
            f"  launches a call: {s.launches}" + (", the first for what all worlds share" if s.uniform else ""),
            "",
            f"  {'':8}{'registers':>11}{'spilled bytes':>15}{'code bytes':>12}{'guards':>8}{'worlds/SM':>11}"
            f"{'seconds':>9}",
        ]
        for t in self.targets:
            r = t.resources
            taken = f"{r.registers:11}{r.spills:15,}{r.code:12,}{r.guards:8}"
            lines.append(f"  {r.architecture:8}{taken}{t.worlds:11}{t.seconds:9.1f}")
        for t in self.targets:
            lines += ["", f"{t.resources.architecture}, predicted from one simulated warp:", str(t.predicted)]
        return "\n".join(lines)


def for_gpu(mapped: Mapped, *args: Any, **kwargs: Any) -> Lowered:
    """The loop program of a function for arguments such as these, as it is lowered for a GPU."""
    return _lowered(mapped, mapped.parameters.call(args, kwargs))


def _lowered(mapped: Mapped, call: Call) -> Lowered:
    graph, _ = mapped.trace(call.signature)
    return lower_graph(graph, call.signature.shared, call.signature.constants(call.leaves), elements=True)


def report(mapped: Mapped, architectures: Sequence[str], *args: Any, **kwargs: Any) -> Report:
    """Print a function for GPUs, compile it for each of `architectures`, such as "sm_90", and simulate it on `args`.

    Raises:
        ValueError: an architecture that is not known.
        BuildError: there is no compiler, or it fails.
    """
    unknown = [a for a in architectures if a not in SHARED]
    if unknown:
        raise ValueError(f"unknown architecture {unknown[0]!r}; known are {', '.join(SHARED)}")
    call = mapped.parameters.call(args, kwargs)
    program = scheduled(_lowered(mapped, call).program)
    source = print_program(program)
    targets = []
    for architecture in architectures:
        start, shape = time.perf_counter(), shape_of(source, SHARED[architecture] - RESERVED)
        found = resources(source.text, architecture, *shape.options)
        seconds = time.perf_counter() - start
        worlds = worlds_at_once(shape, found)
        predicted = predicted_on(architecture, program, source, worlds, shape.warps, call)
        targets.append(Target(found, worlds, seconds, predicted))
    return Report(mapped.name, source, targets)


def predicted_on(
    architecture: str, program: Program, source: Source, worlds: int, together: int, call: Call
) -> Prediction:
    """What a program takes where a multiprocessor holds `worlds` worlds, by a warp that computes some of a call's.

    together: warps of a block
    """
    machine = MACHINES[architecture]
    warps = max(1, worlds * source.lanes // WARP_SIZE)
    taken = worlds * source.shared + -(-warps // together) * (source.rows + RESERVED)
    l1, l2 = max(0, machine.memory - taken) // warps, machine.cache // (warps * machine.processors)
    found = simulate(program, source, call.leaves, call.signature.dims, architecture, machine, l1, l2)
    return predict(found, source, machine, warps, together)


def worlds_at_once(shape: Shape, found: Resources) -> int:
    """How many worlds a multiprocessor holds: as many blocks as its memory and registers allow."""
    by_memory = SHARED[found.architecture] // (shape.memory(shape.warps) + RESERVED)
    by_registers = REGISTERS // (max(1, found.registers) * shape.warps * WARP_SIZE)
    return max(1, min(BLOCKS[found.architecture], by_memory, by_registers)) * shape.warps * shape.worlds
