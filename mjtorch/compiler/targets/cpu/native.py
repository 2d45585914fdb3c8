"""A lowered function as machine code for this CPU: build it, and call it on tensors."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import pathlib
import threading
from array import array
from collections.abc import Callable

import torch

from mjtorch.compiler.lowered import Output
from mjtorch.compiler.ready import Ready, Runnable
from mjtorch.compiler.targets.cpu import room
from mjtorch.compiler.targets.cpu.build import library
from mjtorch.compiler.targets.cpu.order import Order

# Up to this many worlds are computed one by one, by code that has no lanes.
FEW_WORLDS = 2
# Of the environment: how many threads run compiled programs.
THREADS = "MJTORCH_NUM_THREADS"


# What is called with Python's lock and looks at signals.
INTERPRETER = ("PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_CheckSignals")


@functools.cache
def _driver() -> Callable[..., int]:
    """The library that spreads tiles over threads."""
    folder = pathlib.Path(__file__).parent
    text = "".join((folder / name).read_text() for name in ("order.cpp", "workers.cpp", "threads.cpp"))
    code = library([text], (folder / "tile.h").read_text(), ("-O2",))[1]
    pointers = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 5
    kind = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, *pointers)
    run = kind(ctypes.cast(code.run_batch, ctypes.c_void_p).value or 0)
    python = (ctypes.c_void_p * 3)(*(ctypes.cast(getattr(ctypes.pythonapi, x), ctypes.c_void_p) for x in INTERPRETER))

    def run_batch(*args: int) -> int:
        # The code and the table must live as long as the function.
        assert code and python
        return run(python, threading.get_ident() == threading.main_thread().ident, *args)

    return run_batch


def thread_count(given: int | None) -> int | None:
    """How many threads to use: as given, else as the environment says; None for as many as PyTorch uses.

    Raises:
        ValueError: that is not a positive int.
    """
    text = os.environ.get(THREADS) if given is None else None
    if given is None and not text:
        return None
    count = int(text) if text is not None and text.strip().isdigit() else given
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        source, value = (THREADS, text) if text is not None else ("jit: threads", given)
        raise ValueError(f"{source} must be a positive int, got {value!r}")
    return count


@dataclasses.dataclass(frozen=True)
class Build:
    """What must be known of a library to call it.

    reads: the inputs that it reads
    name: of the library in the cache
    """

    outputs: tuple[Output, ...]
    reads: tuple[int, ...]
    lanes: int
    name: str


class Native(Runnable):
    """One compiled program."""

    def __init__(self, build: Build, code: ctypes.CDLL) -> None:
        self.build, self.code = build, code
        code.scratch_bytes.restype = code.common_bytes.restype = ctypes.c_int64
        self.functions = tuple(ctypes.cast(f, ctypes.c_void_p) for f in (code.run_common, code.run_tile))
        self.scratch, self.common = int(code.scratch_bytes()), int(code.common_bytes())
        self.work = int(code.work_output())  # the number of the output that says what worlds take, or -1
        self.outputs, self.reads, self.lanes = build.outputs, build.reads, build.lanes

    def check_room(self, worlds: int, results: int, threads: int | None) -> None:
        """Refuse, with a MemoryError, what would not fit into memory: results of so many bytes, and scratch memory."""
        used = self._threads(worlds, threads)
        room.check(worlds, results, self.scratch * used + self.common, used)

    def run(self, ready: Ready) -> None:
        """Compute from and to what stands in the tables."""
        threads = self._threads(ready.count, ready.threads)
        sizes = ready.count, self.lanes, self.scratch, self.common, threads
        if not _driver()(*self.functions, *ready.tables, self._order(ready), *sizes):
            raise MemoryError(
                f"{self.scratch:,} bytes of scratch memory, which each of {threads} threads needs for {self.lanes} "
                "worlds side by side, were refused; a smaller contact_capacity takes less"
            )

    def _order(self, ready: Ready) -> int:
        """The address of the order of the worlds of such calls; zero where there is none, or all are side by side."""
        if self.work < 0:
            return 0
        if ready.order is None:
            ready.order = Order(ready.count)
            ready.outputs[3 * self.work : 3 * self.work + 3] = array("q", (ready.order.work.ctypes.data, 1, 1))
        return int(ready.order.address) if ready.count > self.lanes else 0

    def _threads(self, worlds: int, threads: int | None) -> int:
        tiles = -(-worlds // self.lanes)
        return min(threads or torch.get_num_threads(), tiles) if tiles > 1 else 1
