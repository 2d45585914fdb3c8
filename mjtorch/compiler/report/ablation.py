"""What each option of the compiler is good for: programs without it, or with another value, beside the usual one."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from mjtorch.compiler.ir.nodes import Program
from mjtorch.compiler.mapped import Mapped
from mjtorch.compiler.passes import Pass
from mjtorch.compiler.report.accuracy import compare, worst
from mjtorch.compiler.report.measure import Clock, Made, build_for, in_turns, is_few, make, seconds_of
from mjtorch.compiler.report.text import ms, size, table
from mjtorch.compiler.targets.cpu.pipeline import CPU
from mjtorch.compiler.targets.cpu.target import CpuTarget


class Changed(CpuTarget):
    """The CPU without one of its passes, or with another number of lanes."""

    def __init__(self, few: bool, without: str = "", side_by_side: int | None = None) -> None:
        super().__init__(few)
        self.without, self.side_by_side = without, side_by_side

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Those that are left."""
        return tuple(p for p in super().passes if p.name != self.without)

    def lanes(self, program: Program) -> int:
        """As many as were asked for."""
        return self.side_by_side or super().lanes(program)


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to compile the function.

    times: how long a call takes, measured in turns with the usual way, whose is 1
    build, scratch: seconds to print, build and load it; bytes for one tile of worlds and thread
    difference: from the usual results, the largest relative one; None where others are computed
    """

    what: str
    times: float
    build: float
    scratch: int
    difference: float | None = None


@dataclasses.dataclass(frozen=True)
class Ablation:
    """All of them, the usual first, of which a call takes `seconds`; `str()` is the table."""

    seconds: float
    variants: tuple[Variant, ...]

    def __str__(self) -> str:
        return "\n".join(self._report())

    def _report(self) -> Iterator[str]:
        rows = [("one change at a time", "ms a call", "times the usual", "build s", "scratch", "difference")]
        for v in self.variants:
            gap = "" if v.difference is None else f"{v.difference:.1e}"
            rows.append((v.what, ms(v.times * self.seconds), f"{v.times:.2f}", f"{v.build:.2f}", size(v.scratch), gap))
        yield from table(rows)


def ablate(
    mapped: Mapped,
    args: tuple,
    kwargs: dict[str, Any],
    threads: int | None = None,
    others: Mapping[str, dict[str, Any]] | None = None,
) -> Ablation:
    """Compile a function again and again, each time with one option changed: passes, lanes, threads.

    others: further variants by name: static arguments of the function to change, such as `{"outputs": "state"}`

    Raises:
        NotImplementedError: an operation has no rule, or the arguments are not on a CPU.
        BuildError: there is no compiler.
    """
    usual = make(mapped, args, kwargs)
    if usual.call.signature.device.type != "cpu":
        raise NotImplementedError("ablation is for programs of CPUs")
    return _Ablation(usual, threads or torch.get_num_threads()).run(kwargs, others or {})


class _Ablation:
    """usual: the program that others are compared with, on so many threads"""

    def __init__(self, usual: Made, threads: int) -> None:
        self.usual, self.threads, self.ready = usual, threads, usual.ready(threads)
        self.wanted = usual.result(self.ready)

    def run(self, kwargs: dict[str, Any], others: Mapping[str, dict[str, Any]]) -> Ablation:
        """All variants."""
        few, lanes = is_few(self.usual.call), getattr(self.usual.native, "lanes", 1)
        found = [self.variant("the usual", self.usual, self.threads)]
        for p in CPU:
            if not p.required:
                found.append(self.variant(f"without {p.name}", self.built(Changed(few, p.name)), self.threads))
        for n in sorted({1, lanes // 2} - {0, lanes}):
            changed = self.built(Changed(few, side_by_side=n))
            found.append(self.variant(f"{n} lanes, not {lanes}", changed, self.threads))
        for n in sorted({1, max(1, self.threads // 2), 2 * self.threads} - {self.threads}):
            found.append(self.variant(f"{n} threads, not {self.threads}", self.usual, n))
        for what, changes in others.items():
            other = make(self.usual.mapped, self.usual.args, {**kwargs, **changes})
            found.append(self.variant(what, other, self.threads))
        return Ablation(seconds_of(lambda: self.ready(self.usual.call.leaves)), tuple(found))

    def built(self, target: CpuTarget) -> Made:
        """The same program for another target."""
        clock = Clock()
        native, name = build_for(target, clock, self.usual.lowered)
        return dataclasses.replace(self.usual, native=native, name=name, seconds=clock.seconds)

    def variant(self, what: str, made: Made, threads: int) -> Variant:
        """Measured, and compared."""
        ready = made.ready(threads)
        times = in_turns((lambda: self.ready(self.usual.call.leaves), lambda: ready(made.call.leaves)))
        ratio = statistics.median(other / usual for usual, other in zip(*times, strict=True))
        found, difference = made.result(ready), None
        if made.call.signature == self.usual.call.signature:
            difference = worst(compare(found, self.wanted).outputs)
        build = sum(made.seconds[phase] for phase in ("print", "build", "load"))
        return Variant(what, ratio, build, getattr(made.native, "scratch", 0), difference)
