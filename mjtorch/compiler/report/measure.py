"""Programs made anew and measured: seconds of each phase and of a call, and the memory that one takes."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import optree
import torch
from torch.fx import GraphModule

from mjtorch.compiler.lowered import Lowered, lower_graph
from mjtorch.compiler.mapped import Mapped
from mjtorch.compiler.ready import Ready, Runnable
from mjtorch.compiler.signature import Call
from mjtorch.compiler.targets.cpu.build import build, library_name, open_library
from mjtorch.compiler.targets.cpu.native import FEW_WORLDS, Build, Native
from mjtorch.compiler.targets.cpu.target import CpuTarget
from mjtorch.compiler.targets.cuda.build import compile_text
from mjtorch.compiler.targets.cuda.native import CudaNative, architecture
from mjtorch.compiler.targets.cuda.pipeline import scheduled
from mjtorch.compiler.targets.cuda.printer import print_program
from mjtorch.compiler.trace import same_in_all_worlds

# Calls that are timed, and seconds after which fewer are enough.
CALLS, PATIENCE = 15, 2.0
PROCESS = pathlib.Path("/proc/self")


class Clock:
    """Calls functions and writes down how long each took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, phase: str, f: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = f()
        self.seconds[phase] = time.perf_counter() - start
        return result


@dataclasses.dataclass(frozen=True)
class Made:
    """A program made outside of the cache, for one call.

    out_spec: the structure of the result
    native, name: the program, and what the cache calls it
    seconds: by phase
    """

    mapped: Mapped
    args: tuple
    call: Call
    graph: GraphModule
    out_spec: Any
    lowered: Lowered
    native: Runnable
    name: str
    seconds: dict[str, float]

    def ready(self, threads: int | None) -> Ready:
        """The program made ready for the call."""
        return Ready(self.native, self.call.leaves, self.call.signature.dims, self.call.worlds, threads=threads)

    def result(self, ready: Ready) -> Any:
        """What the function returns, by the program."""
        found = optree.tree_unflatten(self.out_spec, ready(self.call.leaves))
        if self.mapped.out_dims == 0 or self.call.worlds is None:
            return found
        return self.mapped.with_worlds_moved(found, lambda: same_in_all_worlds(self.graph, ready.dims))

    def eager(self) -> Any:
        """What it returns by PyTorch alone."""
        return self.mapped.vmapped(self.call.signature.static)(*self.call.args)


def make(mapped: Mapped, args: tuple, kwargs: dict[str, Any]) -> Made:
    """Trace, lower, print, build and load a function for such arguments, everything anew.

    Raises:
        NotImplementedError: an operation has no rule.
        BuildError: there is no compiler.
    """
    call = mapped.parameters.call(args, kwargs)
    signature, clock = call.signature, Clock()
    on_gpu = signature.device.type == "cuda"
    graph, out_spec = clock("trace", lambda: mapped.trace(signature))
    constants = signature.constants(call.leaves)
    lowered = clock("lower", lambda: lower_graph(graph, signature.shared, constants, on_gpu, name=mapped.name))
    if on_gpu:
        native, name = _build_on(signature.device, clock, lowered)
    else:
        native, name = build_for(CpuTarget(is_few(call)), clock, lowered)
    return Made(mapped, args, call, graph, out_spec, lowered, native, name, clock.seconds)


def is_few(call: Call) -> bool:
    """Whether the worlds of a call are computed one by one."""
    return call.worlds is None or call.worlds <= FEW_WORLDS


def build_for(target: CpuTarget, clock: Clock, lowered: Lowered) -> tuple[Native, str]:
    """The program, compiled outside of the cache, and the name it has in the cache."""
    p = clock("print", lambda: target.print(target.schedule(lowered)))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = pathlib.Path(folder, "explained.so")
        clock("build", lambda: build(p.parts, p.header, path, p.options))
        code = clock("load", lambda: open_library(path))
    reads = tuple(b.position for b in lowered.program.inputs)
    name = library_name(p.parts, p.header, p.options)
    return Native(Build(lowered.outputs, reads, p.lanes, name), code), name


def _build_on(device: torch.device, clock: Clock, lowered: Lowered) -> tuple[Runnable, str]:
    """The same for a GPU."""
    source = clock("print", lambda: print_program(scheduled(lowered.program)))
    target = architecture(device)
    clock("build", lambda: compile_text(source.text, target))
    native = clock("load", lambda: CudaNative(device, lowered, source))
    return native, native.build.name


@torch.no_grad()
def seconds_of(call: Callable[[], Any]) -> float:
    """Median seconds of a call, after one."""
    call()
    _finish()
    times: list[float] = []
    while len(times) < CALLS and sum(times) < PATIENCE:
        start = time.perf_counter()
        call()
        _finish()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@torch.no_grad()
def in_turns(calls: Sequence[Callable[[], Any]]) -> list[list[float]]:
    """Seconds of calls, measured in turns: a busy machine is not equally busy all the time."""
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    start = time.perf_counter()
    while len(times[0]) < CALLS and time.perf_counter() - start < PATIENCE * len(calls):
        for call, found in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call()
            _finish()
            found.append(time.perf_counter() - begin)
    return times


def _finish() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@torch.no_grad()
def peak(call: Callable[[], Any], device: torch.device) -> int | None:
    """Bytes by which memory grows in a call, at most; None where that cannot be measured.

    On a GPU what PyTorch allocates; else resident memory of this process, as Linux counts it. What the process holds
    already and uses again is not seen: pages of small blocks, and the results and scratch memory of earlier calls.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    with contextlib.suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    try:
        (PROCESS / "clear_refs").write_text("5")  # the peak is what there is now
        before = _resident("VmRSS")
        call()
        return max(0, _resident("VmHWM") - before)
    except OSError:  # another system, or one that does not allow it
        return None


def _resident(field: str) -> int:
    lines = (PROCESS / "status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])
