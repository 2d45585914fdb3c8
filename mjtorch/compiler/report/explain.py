"""`jit(f).explain(...)`: where the nodes, the memory and the seconds of a compiled function go."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from mjtorch import tree
from mjtorch.compiler.analysis.cost import CPU, trips
from mjtorch.compiler.analysis.dependence import Bounds, within
from mjtorch.compiler.cache import store as cache
from mjtorch.compiler.ir.nodes import (
    SCRATCH,
    UNIFORM,
    Buffer,
    Call,
    Compact,
    For,
    Pack,
    Program,
    Scatter,
    Statement,
    Store,
)
from mjtorch.compiler.ir.source import OURS, Source
from mjtorch.compiler.ir.walk import bodies, expressions
from mjtorch.compiler.mapped import Mapped
from mjtorch.compiler.passes import run_passes
from mjtorch.compiler.report.accuracy import Accuracy, compare
from mjtorch.compiler.report.measure import Made, make, peak, seconds_of
from mjtorch.compiler.report.text import size, table
from mjtorch.compiler.targets.cpu.native import FEW_WORLDS
from mjtorch.compiler.targets.cpu.pipeline import CPU as CPU_PASSES
from mjtorch.compiler.targets.cuda.pipeline import CUDA
from mjtorch.compiler.writes import op_name

BYTES = {"f32": 4, "f64": 8, "i64": 8, "i32": 4, "bool": 1}


@dataclasses.dataclass
class Stage:
    """What one file of the physics, or of the user's, contributes to a program.

    nodes: operations of the traced graph
    operations: arithmetic per world, loops multiplied out but for `while`, whose body counts once
    arrays, bytes: results that are stored, because they are read more than once or not fused, per world
    """

    name: str
    nodes: int = 0
    operations: float = 0.0
    arrays: int = 0
    bytes: int = 0


@dataclasses.dataclass
class Speed:
    """Median seconds of a call."""

    compiled: float
    eager: float


@dataclasses.dataclass
class Memory:
    """Bytes: read and written per world, scratch of one tile of worlds, and what eager operations write per world.

    peak, eager_peak: measured: by how much memory grew in a call, at most, compiled and eager; None where nobody knows
    """

    read: int
    written: int
    scratch: int
    lanes: int
    eager: int
    peak: int | None
    eager_peak: int | None


@dataclasses.dataclass
class Explanation:
    """What `explain` found; `str()` of it is the report.

    worlds: batch size that was measured, 0 for a single world without a batch
    seconds: by phase, everything made anew
    ops: nodes of the graph by operation
    cached: whether the library lies in the cache, `cache_bytes` and `cache_entries` what else does
    """

    name: str
    worlds: int
    threads: int
    seconds: dict[str, float]
    stages: list[Stage]
    ops: dict[str, int]
    memory: Memory
    speed: Speed
    accuracy: Accuracy
    cached: bool
    cache_directory: str
    cache_entries: int
    cache_bytes: int

    @property
    def changes(self) -> list[tuple[str, str, float]]:
        """What may change between calls, what is then made anew, and the seconds that takes."""
        whole = sum(self.seconds.values())
        again = self.seconds["print"] + self.seconds["build"] + self.seconds["load"]
        return [
            ("values of any tensor", "nothing", 0.0),
            (f"batch size, {FEW_WORLDS + 1} or more", "nothing", 0.0),
            (f"batch size, from more than {FEW_WORLDS} to fewer or back", "the library, once", again),
            ("dtype or shape of one world", "everything, once", whole),
            ("a static field or argument", "everything, once per value", whole),
        ]

    def __str__(self) -> str:
        return "\n".join(_report(self))


def explain(mapped: Mapped, args: tuple, kwargs: dict[str, Any], threads: int | None = None) -> Explanation:
    """Trace, lower, print, build and run a function for such arguments, everything anew, and measure each.

    threads: as for `jit`

    Raises:
        NotImplementedError: an operation has no rule.
        BuildError: there is no compiler.
    """
    made = make(mapped, args, kwargs)
    call, graph, device = made.call, made.graph, made.call.signature.device
    stages = _stages(graph, run_passes(made.lowered.program, CUDA if device.type == "cuda" else CPU_PASSES))
    ready = made.ready(threads)
    compiled_peak = peak(lambda: ready(call.leaves), device)
    with torch.no_grad():
        accuracy = compare(made.result(ready), made.eager())
    eager_peak = peak(made.eager, device)
    entries = cache.entries()
    return Explanation(
        name=mapped.name,
        worlds=call.worlds or 0,
        threads=threads or torch.get_num_threads(),
        seconds=made.seconds,
        stages=stages,
        ops=dict(Counter(op_name(n.target) for n in _nodes(graph)).most_common()),
        memory=_memory(made, compiled_peak, eager_peak),
        speed=Speed(seconds_of(lambda: ready(call.leaves)), seconds_of(made.eager)),
        accuracy=accuracy,
        cached=any(e.path.name == made.name for e in entries),
        cache_directory=str(cache.directory()),
        cache_entries=len(entries),
        cache_bytes=sum(e.size for e in entries),
    )


# --- the graph --------------------------------------------------------------------------------------------------------


def _nodes(graph: GraphModule) -> Iterator[Node]:
    """The operations of a graph and of its loops and branches."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            yield from (n for n in module.graph.nodes if n.op == "call_function" and op_name(n.target) != "getitem")


def _eager_bytes(graph: GraphModule) -> int:
    """What the operations of a graph write, if each is done for itself; bodies of loops count once."""
    total = 0
    for n in _nodes(graph):
        returns = getattr(getattr(n.target, "_schema", None), "returns", ())
        if not any(r.alias_info for r in returns):  # a view writes nothing
            values = tree.leaves(n.meta.get("val"))
            total += sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))
    return total


def _memory(made: Made, compiled: int | None, eager: int | None) -> Memory:
    lowered, native, graph = made.lowered, made.native, made.graph

    def size(buffers: Sequence[Buffer]) -> int:
        return sum(b.size * BYTES[b.dtype] for b in buffers)

    read = [b for b in lowered.program.inputs if b.kind == "input"]
    scratch, lanes = getattr(native, "scratch", 0), getattr(native, "lanes", 1)
    written = size(lowered.program.outputs)
    return Memory(size(read), written, scratch, lanes, _eager_bytes(graph), compiled, eager)


# --- stages -----------------------------------------------------------------------------------------------------------


class _Stages:
    """The shares of files in a program; operations of helpers, packages that say `__helper__`, are their callers'."""

    def __init__(self) -> None:
        self.found: dict[str, Stage] = {}
        modules = [m for m in list(sys.modules.values()) if getattr(m, "__helper__", False) is True]
        self.helpers = tuple(os.path.dirname(m.__file__) + os.sep for m in modules if m.__file__)

    def of(self, source: Source | None) -> Stage:
        """The stage that a line is part of."""
        while source is not None and source.caller is not None and source.file.startswith(self.helpers):
            source = source.caller
        name = "other" if source is None else _stage_name(source.file)
        return self.found.setdefault(name, Stage(name))


def _stage_name(filename: str) -> str:
    if filename.startswith(OURS):
        return filename[len(OURS) :].removesuffix(".py")
    return pathlib.Path(filename).stem


def _stages(graph: GraphModule, program: Program) -> list[Stage]:
    """The shares of the files, the one with the most nodes first."""
    stages, stored = _Stages(), set[Buffer]()
    for n in _nodes(graph):
        stages.of(n.meta.get("source")).nodes += 1

    def add(statements: Sequence[Statement], times: float, bounds: Bounds) -> None:
        for s in statements:
            own = s.origin
            for e in expressions(s):
                if isinstance(e, Call):
                    origin = e.origin or own
                    stages.of(origin.source if origin else None).operations += times
            if isinstance(s, (Store, Scatter)) and s.buffer.kind in (SCRATCH, UNIFORM) and s.buffer not in stored:
                stored.add(s.buffer)
                stage = stages.of(own.source if own else None)
                stage.arrays += 1
                stage.bytes += s.buffer.size * BYTES[s.buffer.dtype]
            inner = times
            if isinstance(s, For):
                inner *= trips(s.start, s.stop, bounds, CPU)
            elif isinstance(s, (Compact, Pack)):
                inner *= s.size
            for body in bodies(s):
                add(body, inner, within(s, bounds))

    add([*program.uniform, *program.body], 1.0, {})
    return sorted(stages.found.values(), key=lambda s: -s.nodes)


# --- the report -------------------------------------------------------------------------------------------------------


def _report(e: Explanation) -> Iterator[str]:
    batch = f"{e.worlds} worlds" if e.worlds else "one world"
    yield f"jit({e.name}), {batch}, {e.threads} threads"
    yield ""
    phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in e.seconds.items())
    yield f"compile seconds: {phases}; in all {sum(e.seconds.values()):.2f}"
    state = "is in the cache" if e.cached else "is not in the cache"
    yield f"cache: this library {state}; {e.cache_directory} has {e.cache_entries} entries, {size(e.cache_bytes)}"
    yield ""
    m, worlds = e.memory, max(1, e.worlds)
    yield f"speed: {1e3 * e.speed.compiled:.3g} ms a call, {1e6 * e.speed.compiled / worlds:.3g} us a world"
    yield f"  eager: {1e3 * e.speed.eager:.3g} ms a call, {e.speed.eager / e.speed.compiled:.3g} times as long"
    yield f"memory: a world reads {size(m.read)} and writes {size(m.written)}"
    yield f"  scratch: {size(m.scratch)} a thread, for {m.lanes} worlds side by side"
    yield f"  eager: writes {size(m.eager)} a world, loops counted once"
    if m.peak is not None and m.eager_peak is not None:
        yield f"  measured peak of a call: {size(m.peak)} compiled, {size(m.eager_peak)} eager"
    yield ""
    yield str(e.accuracy)
    yield ""
    yield from table(
        [("stage", "nodes", "operations", "arrays stored", "bytes"), *(_row(s) for s in [*e.stages, _total(e.stages)])]
    )
    yield ""
    top = list(e.ops.items())[:12]
    yield "nodes by operation: " + ", ".join(f"{k} {v}" for k, v in top) + (", ..." if len(e.ops) > len(top) else "")
    yield ""
    yield from table([("what changes", "made anew", "seconds"), *((a, b, f"{c:.1f}") for a, b, c in e.changes)])


def _row(s: Stage) -> tuple[str, ...]:
    return s.name, str(s.nodes), f"{s.operations:.0f}", str(s.arrays), str(s.bytes)


def _total(stages: Sequence[Stage]) -> Stage:
    def total(name: str) -> Any:
        return sum(getattr(s, name) for s in stages)

    return Stage("all", total("nodes"), total("operations"), total("arrays"), total("bytes"))
