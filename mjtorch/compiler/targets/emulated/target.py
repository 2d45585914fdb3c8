"""An emulated warp as a target: printed CUDA, run on the host by lanes that take turns in random order."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from torch import Tensor

from mjtorch.compiler.ir.nodes import Program
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.passes import Pass
from mjtorch.compiler.passes.warp_memory import WARP_SIZE
from mjtorch.compiler.ready import Ready, Runnable, readable_world_by_world
from mjtorch.compiler.targets.cpu.build import library
from mjtorch.compiler.targets.cpu.native import Build, Native
from mjtorch.compiler.targets.cuda.pipeline import cuda
from mjtorch.compiler.targets.cuda.printer import print_program
from mjtorch.compiler.targets.cuda.source import Source
from mjtorch.compiler.targets.target import Target

EMULATOR = Path(__file__).with_name("emulator.h")
# Where an operation begins in a text: a comment with its number.
MARK = re.compile(r"^// (\d+) .* = .*\n(\{?)", re.MULTILINE)
# What `run` returns where there is no memory.
REFUSED = 2


class DivergedError(AssertionError):
    """Lanes of one warp wait for different barriers, or differ where all are to go the same way."""


class RaceError(AssertionError):
    """A lane reads or overwrites what another has written or read, and no barrier lies between."""


class EmulatedWarp(Target):
    """A warp of `lanes` lanes a world, with `budget` bytes of shared memory; `seed` chooses the order of the lanes.

    races: each access to a world's memory is watched, and `RaceError` names the operations between which a barrier is
        missing, whatever the order of the lanes; what is written by hand for warps is then computed by loops, too
    """

    name = "emulated warp"
    elements = True

    def __init__(
        self, lanes: int = WARP_SIZE, budget: int | None = None, seed: int = 0, *, races: bool = False
    ) -> None:
        self.lanes, self.budget, self.seed, self.races = lanes, budget, seed, races

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Those of a GPU."""
        return tuple(p for p in cuda(self.lanes, self.budget) if not (self.races and p.name == "recognize_idioms"))

    def print(self, program: Program) -> Source:
        """The CUDA of a program."""
        return print_program(program)

    def build(self, source: Source) -> tuple[Source, ctypes.CDLL]:
        """A library for the host."""
        head, _, rest = source.text.partition("#ifndef HOST")
        emulator = EMULATOR.read_text()
        if self.races:
            emulator, rest = f"#define WATCHED\n{emulator}", MARK.sub(r"\2operation=\1;\n", rest)
        text = f'{head}{emulator}#ifndef HOST{rest}\nextern "C" int barriers;\nint barriers = __COUNTER__;\n'
        return source, library([text], options=("-Og", "-std=c++17", "-w"))[1]

    def load(self, built: tuple[Source, ctypes.CDLL], lowered: Lowered) -> Emulated:
        """The library as a callable."""
        source, code = built
        return Watched(lowered, source, code, self.seed) if self.races else Emulated(lowered, source, code, self.seed)


class Emulated(Native):
    """A printed program as a callable, as `Native` is."""

    def __init__(self, lowered: Lowered, source: Source, code: ctypes.CDLL, seed: int) -> None:
        self.code, self.seed, self.scratch, self.common = code, seed, 0, 0
        self.outputs, self.lanes = lowered.outputs, source.lanes
        self.reads = tuple(b.position for b in lowered.program.inputs)
        self.writes = tuple(b.position for b in lowered.program.outputs)
        self.build = Build(self.outputs, self.reads, self.lanes, "")

    empty = Runnable.empty  # worlds first, as on a GPU

    def strides(self, x: Tensor, dim: int | None) -> tuple[int, int] | None:
        """Those of an argument whose elements lie beside each other in each world; others are copied."""
        return readable_world_by_world(x, dim)

    def run(self, ready: Ready) -> None:
        """Compute from and to what stands in the tables.

        Raises:
            DivergedError: lanes of one warp wait for different barriers, or differ where all are to go the same way.
            MemoryError: there is none for the warp.
        """
        tables = [
            (ctypes.c_int64 * (3 * max(1, len(rows))))(*(x for k in rows for x in table[3 * k : 3 * k + 3]))
            for rows, table in ((self.reads, ready.inputs), (self.writes, ready.outputs))
        ]
        failed = self.code.run(*tables, ctypes.c_int64(ready.count), ctypes.c_int64(self.seed))
        if failed == REFUSED:
            raise MemoryError("emulated warp: memory for its lanes was refused; take a smaller contact_capacity")
        if failed:
            raise DivergedError


class Race(ctypes.Structure):
    """Which lane came later, whether it wrote, in which operation; the other lane, and the same of it."""

    _fields_ = tuple(
        (x, ctypes.c_int) for x in ("lane", "writes", "operation", "other", "other_wrote", "other_operation")
    )


class Watched(Emulated):
    """One whose accesses are watched. `barriers`: how many its text has."""

    def __init__(self, lowered: Lowered, source: Source, code: ctypes.CDLL, seed: int) -> None:
        super().__init__(lowered, source, code, seed)
        self.origins = source.origins
        self.barriers = ctypes.c_int.in_dll(code, "barriers").value

    def take_away(self, barrier: int | None, *, waits: bool = False) -> None:
        """From here on this one of `barriers`, in the order of the text, is as if it were not there; None: all are.

        waits: lanes do wait there, so that what is told of is not read too early: it may be where to read.
        """
        for name, is_so in (("taken_away", True), ("skipped", not waits)):
            ctypes.c_int.in_dll(self.code, name).value = barrier if barrier is not None and is_so else -1

    def run(self, ready: Ready) -> None:
        """Compute from and to what stands in the tables.

        Raises:
            RaceError: lanes did not wait for each other.
            DivergedError: lanes of one warp wait for different barriers, or differ where all are to go the same way.
            MemoryError: there is none for the warp.
        """
        count = ctypes.c_int.in_dll(self.code, "count_of_races")
        count.value = 0
        super().run(ready)
        if count.value:
            found = (Race * count.value).in_dll(self.code, "races")
            raise RaceError("no barrier between: " + "; ".join(map(self.told, found)))

    def told(self, r: Race) -> str:
        """Of one race."""
        later, before = (f"{o.node} ({o.op})" for o in (self.origins[r.operation], self.origins[r.other_operation]))
        verbs = ("reads", "overwrites")[r.writes], ("read", "wrote")[r.other_wrote]
        return f"in {later} lane {r.lane} {verbs[0]} what lane {r.other} {verbs[1]} in {before}"
