"""`jit(f).explain(...)`: where the nodes, the memory and the seconds of a compiled function go."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx.traceback
from torch import Tensor
from torch.fx import GraphModule, Node

from mjtorch import tree
from mjtorch.compiler.cache import store as cache
from mjtorch.compiler.ir.program import (
    Buffer,
    Call,
    Collect,
    Entry,
    For,
    Group,
    If,
    Index,
    Note,
    Program,
    Statement,
    Store,
    Variable,
    While,
    expressions,
)
from mjtorch.compiler.lowered import Lowered, lower_graph
from mjtorch.compiler.mapped import Mapped
from mjtorch.compiler.ready import Ready
from mjtorch.compiler.targets.cpu.build import build, library_name, open_library
from mjtorch.compiler.targets.cpu.native import FEW_WORLDS, Build, Native, printed
from mjtorch.compiler.targets.cuda.build import compile_text
from mjtorch.compiler.targets.cuda.native import CudaNative, architecture
from mjtorch.compiler.targets.cuda.printer import print_program
from mjtorch.compiler.trace import LIBRARIES, OURS, op_name

# Rooms whose operations count for whoever calls them.
HELPERS = ("compiler", "control_flow", "math", "model", "tree")
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

    with _noting_stages():
        noted, _ = mapped.trace(signature)
    stages = _stages(noted, lambda g: lower_graph(g, shared, constants, on_gpu).program)
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
    p = clock("print", lambda: printed(lowered, few))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = pathlib.Path(folder, "explained.so")
        clock("build", lambda: build(p.parts, p.header, path, p.options))
        code = clock("load", lambda: open_library(path))
    reads = tuple(b.position for b in lowered.program.inputs)
    name = library_name(p.parts, p.header, p.options)
    return Native(Build(lowered.outputs, reads, p.lanes, name), code), name


def _build_on(device: torch.device, clock: _Clock, lowered: Lowered) -> tuple[Native, str]:
    """The same for a GPU."""
    source = clock("print", lambda: print_program(lowered.program))
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


@contextlib.contextmanager
def _noting_stages() -> Iterator[None]:
    """Graphs traced inside know of each node which file it comes from: the innermost that is not a helper's."""
    around: list[tuple[Any, Any]] = []
    meta = torch.fx.traceback.get_current_meta

    def follow(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            stage = _stage_of(frame.f_code.co_filename)
            if stage:
                around.append((frame, meta().get("custom")))
                meta()["custom"] = {"stage": stage}
        elif event == "return" and around and around[-1][0] is frame:
            meta()["custom"] = around.pop()[1] or {}

    before = sys.getprofile()
    with torch.fx.traceback.preserve_node_meta():
        sys.setprofile(follow)
        try:
            yield
        finally:
            sys.setprofile(before)


def _stage_of(filename: str) -> str:
    if filename.startswith(OURS):
        name = filename[len(OURS) :].removesuffix(".py")
        return "" if name.split("/")[0] in HELPERS else name
    return "" if filename.startswith(("<", *LIBRARIES)) else pathlib.Path(filename).stem


def _stages(graph: GraphModule, lower: Callable[[GraphModule], Program]) -> list[Stage]:
    """The shares of the files, the one with the most nodes first."""
    stages: dict[str, Stage] = {}
    numbers: list[str] = []
    for n in _nodes(graph):
        name = (n.meta.get("custom") or {}).get("stage", "other")
        stages.setdefault(name, Stage(name)).nodes += 1
        if name not in numbers:
            numbers.append(name)
        # The program's notes are made of the names of nodes: so they tell of the stage.
        n._rename(f"stage{numbers.index(name)}_{n.name}")
    program = lower(graph)
    _walk([*program.once, *program.body], stages, numbers)
    return sorted(stages.values(), key=lambda s: -s.nodes)


def _walk(statements: Sequence[Statement], stages: dict[str, Stage], numbers: Sequence[str]) -> None:
    stored: set[Buffer] = set()

    def block(statements: Sequence[Statement], stage: Stage, turns: float, middle: dict[str, float]) -> None:
        for s in statements:
            if isinstance(s, Note):
                head = s.text.split("_")[0].removeprefix("stage")
                stage = stages[numbers[int(head)]] if s.text.startswith("stage") and head.isdigit() else stage
                continue
            stage.operations += turns * sum(isinstance(e, Call) for e in expressions(s))
            if isinstance(s, Store) and s.buffer.kind in ("scratch", "once") and s.buffer not in stored:
                stored.add(s.buffer)
                stage.arrays += 1
                stage.bytes += s.buffer.size * BYTES[s.buffer.dtype]
            if isinstance(s, For):
                first, last = _value(s.start, middle), _value(s.stop, middle)
                block(s.body, stage, turns * max(0.0, last - first), {**middle, s.variable: (first + last - 1) / 2})
            elif isinstance(s, (Group, If)):
                block(s.body, stage, turns, middle)
            elif isinstance(s, Collect):
                block(s.body, stage, turns * s.size, {**middle, s.variable: (s.size - 1) / 2, f"{s.name}_n": s.size})
            elif isinstance(s, While):
                block([*s.head, *s.body], stage, turns, middle)

    block(statements, stages.setdefault("other", Stage("other")), 1.0, {})
    if not (stages["other"].nodes or stages["other"].operations):
        del stages["other"]


def _value(i: Index, middle: dict[str, float]) -> float:
    """An index where the loop variables are in the middle of their ranges."""

    def atom(a: Variable | Entry) -> float:
        if isinstance(a, Variable):
            return middle.get(a.name, 0.0)
        return statistics.fmean(a.table) if a.table else 0.0

    return i.base + sum(k * atom(a) for a, k in i.terms)


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
