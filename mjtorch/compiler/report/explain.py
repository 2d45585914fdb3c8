"""`jit(f).explain(...)`: where the nodes, the memory and the seconds of a compiled function go."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from mjtorch.compiler.lowered import Lowered, lower_graph
from mjtorch.compiler.mapped import Mapped
from mjtorch.compiler.passes import run_passes
from mjtorch.compiler.ready import Ready
from mjtorch.compiler.targets.cpu.build import build, library_name, open_library
from mjtorch.compiler.targets.cpu.native import FEW_WORLDS, Build, Native
from mjtorch.compiler.targets.cpu.pipeline import CPU as CPU_PASSES
from mjtorch.compiler.targets.cpu.target import CpuTarget
from mjtorch.compiler.targets.cuda.build import compile_text
from mjtorch.compiler.targets.cuda.native import CudaNative, architecture
from mjtorch.compiler.targets.cuda.pipeline import CUDA, scheduled
from mjtorch.compiler.targets.cuda.printer import print_program
from mjtorch.compiler.trace import op_name

BYTES = {"f32": 4, "f64": 8, "i64": 8, "bool": 1}
# Calls that are timed, and seconds after which fewer are enough.
CALLS, PATIENCE = 15, 2.0


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
    """Bytes: read and written per world, scratch of one tile of worlds, and what eager operations write per world."""

    read: int
    written: int
    scratch: int
    lanes: int
    eager: int


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
    call = mapped.parameters.call(args, kwargs)
    signature, leaves, worlds = call.signature, call.leaves, call.worlds
    shared, constants, device = signature.shared, signature.constants(leaves), signature.device
    few = worlds is None or worlds <= FEW_WORLDS

    clock = _Clock()
    on_gpu = device.type == "cuda"
    graph, _ = clock("trace", lambda: mapped.trace(signature))
    lowered = clock("lower", lambda: lower_graph(graph, shared, constants, on_gpu))
    native, name = _build_on(device, clock, lowered) if on_gpu else _build(clock, lowered, few)

    stages = _stages(graph, run_passes(lowered.program, CUDA if on_gpu else CPU_PASSES))
    ready = Ready(native, leaves, signature.dims, worlds, threads=threads)
    speed = Speed(
        _median(lambda: ready(leaves)),
        _median(lambda: mapped.vmapped(signature.static)(*call.args)),
    )
    entries = cache.entries()
    return Explanation(
        name=mapped.name,
        worlds=worlds or 0,
        threads=threads or torch.get_num_threads(),
        seconds=clock.seconds,
        stages=stages,
        ops=dict(Counter(op_name(n.target) for n in _nodes(graph)).most_common()),
        memory=_memory(lowered, native, graph),
        speed=speed,
        cached=any(e.path.name == name for e in entries),
        cache_directory=str(cache.directory()),
        cache_entries=len(entries),
        cache_bytes=sum(e.size for e in entries),
    )


class _Clock:
    """Calls functions and writes down how long each took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, phase: str, f: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = f()
        self.seconds[phase] = time.perf_counter() - start
        return result


def _build(clock: _Clock, lowered: Lowered, few: bool) -> tuple[Native, str]:
    """The program, compiled outside of the cache, and the name it has in the cache."""
    p = clock("print", lambda: CpuTarget(few).print(CpuTarget(few).schedule(lowered)))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = pathlib.Path(folder, "explained.so")
        clock("build", lambda: build(p.parts, p.header, path, p.options))
        code = clock("load", lambda: open_library(path))
    reads = tuple(b.position for b in lowered.program.inputs)
    name = library_name(p.parts, p.header, p.options)
    return Native(Build(lowered.outputs, reads, p.lanes, name), code), name


def _build_on(device: torch.device, clock: _Clock, lowered: Lowered) -> tuple[Native, str]:
    """The same for a GPU."""
    source = clock("print", lambda: print_program(scheduled(lowered.program)))
    target = architecture(device)
    clock("build", lambda: compile_text(source.text, target))
    native = clock("load", lambda: CudaNative(device, lowered, source))
    return native, native.build.name


@torch.no_grad()
def _median(call: Callable[[], Any]) -> float:
    def finished() -> None:
        call()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    finished()
    times: list[float] = []
    while len(times) < CALLS and sum(times) < PATIENCE:
        start = time.perf_counter()
        finished()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


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


def _memory(lowered: Lowered, native: Native, graph: GraphModule) -> Memory:
    def size(buffers: Sequence[Buffer]) -> int:
        return sum(b.size * BYTES[b.dtype] for b in buffers)

    read = [b for b in lowered.program.inputs if b.kind == "input"]
    return Memory(size(read), size(lowered.program.outputs), native.scratch, native.lanes, _eager_bytes(graph))


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
    yield ""
    yield from _table(
        [("stage", "nodes", "operations", "arrays stored", "bytes"), *(_row(s) for s in [*e.stages, _total(e.stages)])]
    )
    yield ""
    top = list(e.ops.items())[:12]
    yield "nodes by operation: " + ", ".join(f"{k} {v}" for k, v in top) + (", ..." if len(e.ops) > len(top) else "")
    yield ""
    yield from _table([("what changes", "made anew", "seconds"), *((a, b, f"{c:.1f}") for a, b, c in e.changes)])


def _row(s: Stage) -> tuple[str, ...]:
    return s.name, str(s.nodes), f"{s.operations:.0f}", str(s.arrays), str(s.bytes)


def _total(stages: Sequence[Stage]) -> Stage:
    def total(name: str) -> Any:
        return sum(getattr(s, name) for s in stages)

    return Stage("all", total("nodes"), total("operations"), total("arrays"), total("bytes"))


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Rows of text as aligned lines: the first column to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    numeric = [all(row[k].replace(".", "").isdigit() for row in rows[1:]) for k in range(len(widths))]
    for row in rows:
        cells = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True))
        yield "  ".join(cells).rstrip()


def size(n: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.4g} {unit}"
        n /= 1024
    return f"{n:.4g} GiB"
