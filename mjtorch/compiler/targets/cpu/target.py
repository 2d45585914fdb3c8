"""The CPU as a target: C++ with a world in each lane of a vector, or for one world after the other."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import pathlib

from mjtorch.compiler.ir.nodes import Program
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.passes import Pass, Watch
from mjtorch.compiler.passes.narrow import is_wide
from mjtorch.compiler.targets.cpu import room
from mjtorch.compiler.targets.cpu.build import cache_bytes, computes_halves, flags, library, vector_bytes
from mjtorch.compiler.targets.cpu.native import Build, Native
from mjtorch.compiler.targets.cpu.pipeline import CPU, SIDE_BY_SIDE
from mjtorch.compiler.targets.cpu.printer import print_program
from mjtorch.compiler.targets.target import Target

# Tiles of so many times what a core's second cache holds wait for memory, and so do worlds of so many times.
LARGE, LARGE_WORLD = 2, 2 / 3
# Bytes of the registers of which, on some CPUs, halves are as quick.
WIDE = 64
# Parts of a program for each core, up to so many: how long one takes is known roughly, and more of them even it out.
PARTS, MOST_CORES = 2, 4
FOLDER = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Printed:
    """C++ for a compiler: each of `parts` after `header`, with `options`, for `lanes` worlds side by side."""

    parts: list[str]
    header: str
    options: tuple[str, ...]
    lanes: int

    @property
    def text(self) -> str:
        """Header and parts in one."""
        return self.header + "".join(self.parts)


class CpuTarget(Target):
    """This machine's CPU. few: for so few worlds that they are computed one by one, by code that has no lanes."""

    def __init__(self, few: bool = False) -> None:
        self.few = few
        self.name = "cpu_few" if few else "cpu"

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Those of a CPU."""
        return CPU if self.few else SIDE_BY_SIDE

    def lanes(self, program: Program) -> int:
        """How many worlds are computed side by side."""
        return 1 if self.few else lanes_for(program, 8 if is_wide(program) else 4)

    def schedule(self, lowered: Lowered, watch: Watch | None = None) -> Program:
        """The program after all passes, if there is memory to run it."""
        program = super().schedule(lowered, watch)
        room.check_program(lowered.name, program, self.lanes(program))
        return program

    def print(self, program: Program) -> Printed:
        """The C++ of a program."""
        wide, lanes = is_wide(program), self.lanes(program)
        cores = os.cpu_count() or 1
        source = print_program(program, parts=1 if cores == 1 else PARTS * min(MOST_CORES, cores))
        options = (*flags(), f"-DN={lanes}", *(("-DWIDE",) if wide else ()))
        return Printed(source.parts, runtime() + source.header, options, lanes)

    def build(self, source: Printed) -> tuple[int, str, ctypes.CDLL]:
        """The shared library, from the cache if it is there: its lanes, its name and itself."""
        return source.lanes, *library(source.parts, source.header, source.options)

    def load(self, built: tuple[int, str, ctypes.CDLL], lowered: Lowered) -> Native:
        """The library as a callable."""
        lanes, name, code = built
        return Native(Build(lowered.outputs, tuple(b.position for b in lowered.program.inputs), lanes, name), code)

    def compile(self, lowered: Lowered) -> Native:
        """All of it."""
        made = super().compile(lowered)
        assert isinstance(made, Native)
        return made


def runtime() -> str:
    """What printed programs begin with."""
    return "".join((FOLDER / name).read_text() for name in ("tile.h", "runtime.h", "instructions.h"))


def lanes_for(program: Program, size: int) -> int:
    """How many worlds side by side, in numbers of `size` bytes: as many as registers hold, or as half of a wide one.

    Where memory is what is waited for fewer worlds need less of it, and more of what is zero is so in all of them. If
    half a register is no quicker that pays only if memory is most of it (Sapphire Rapids, times C's speed with whole
    and half registers: dog 1.72 and 1.62, 10 things on a table 1.07 and 0.98, but a chain of 128 1.6 and 2.4).
    """
    lanes, scratch = vector_bytes() // size, room.scratch_bytes(program)
    if vector_bytes() != WIDE:
        return lanes
    large = lanes * scratch > LARGE * cache_bytes() if computes_halves() else scratch > LARGE_WORLD * cache_bytes()
    return lanes // 2 if large else lanes
