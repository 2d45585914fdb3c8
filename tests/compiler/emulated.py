"""Printed CUDA, run on the host: by one lane, or by lanes that take turns in random order."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.ready import Ready
from mjtorch.compiler.targets.cpu.build import library
from mjtorch.compiler.targets.cpu.native import Build, Native
from mjtorch.compiler.targets.cuda.printer import Source, print_program

EMULATOR = Path(__file__).with_name("emulator.h").read_text()


class DivergedError(AssertionError):
    """Lanes of one warp wait for different barriers."""


class Emulated(Native):
    """A printed program as a callable, as `Native` is.

    source: what was printed, or that without one of its barriers
    """

    def __init__(self, lowered: Lowered, source: Source, seed: int = 0) -> None:
        head, _, rest = source.text.partition("#ifndef HOST")
        text = f"{head}{EMULATOR}#ifndef HOST{rest}"
        self.code = library([text], options=("-O1", "-std=c++17", "-w"))[1]
        self.seed, self.scratch = seed, 0
        self.outputs, self.lanes = lowered.outputs, source.lanes
        self.reads = tuple(b.position for b in lowered.program.inputs)
        self.writes = tuple(b.position for b in lowered.program.outputs)
        self.build = Build(self.outputs, self.reads, self.lanes, "")

    def empty(self, shape: Sequence[int], dtype: torch.dtype, worlds: int) -> Tensor:
        """Memory for a result, worlds first, as on a GPU."""
        return torch.empty((worlds, *shape), dtype=dtype)

    def run(self, ready: Ready) -> None:
        """Compute from and to what stands in the tables."""
        tables = [
            (ctypes.c_int64 * (3 * max(1, len(rows))))(*(x for k in rows for x in table[3 * k : 3 * k + 3]))
            for rows, table in ((self.reads, ready.inputs), (self.writes, ready.outputs))
        ]
        if self.code.run(*tables, ctypes.c_int64(ready.count), ctypes.c_int64(self.seed)):
            raise DivergedError


def emulate(lowered: Lowered, lanes: int, seed: int = 0, **options: int) -> Emulated:
    """The program for `lanes` lanes."""
    return Emulated(lowered, print_program(lowered.program, lanes, **options), seed)
