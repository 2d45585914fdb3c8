"""What programs are printed for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from mjtorch.compiler.dump import dumping
from mjtorch.compiler.garbage import without_collections
from mjtorch.compiler.ir.nodes import Program
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.passes import Pass, Watch, run_passes
from mjtorch.compiler.ready import Runnable


class Target(ABC):
    """A target: how programs are scheduled, printed, built, loaded and called there.

    A new one is a subclass, in a file of its own; `jit(f, backend=target)` compiles for it.

    name: for people
    elements: what is computed side by side: the elements of a world, or worlds
    """

    name: str
    elements = False

    @property
    @abstractmethod
    def passes(self) -> tuple[Pass, ...]:
        """What is done with a program before it is printed."""

    @abstractmethod
    def print(self, program: Program) -> Any:
        """The source of a program after all passes."""

    @abstractmethod
    def build(self, source: Any) -> Any:
        """What a compiler makes of a source.

        Raises:
            BuildError: there is no compiler, or it fails.
        """

    @abstractmethod
    def load(self, built: Any, lowered: Lowered) -> Runnable:
        """What has been built, ready to be called on tensors."""

    def schedule(self, lowered: Lowered, watch: Watch | None = None) -> Program:
        """The program after all passes; `watch` sees it after each."""
        return run_passes(lowered.program, self.passes_for(lowered), watch)

    def passes_for(self, lowered: Lowered) -> tuple[Pass, ...]:
        """The passes, without those that leave out products with zeros where these are to be computed."""
        return tuple(p for p in self.passes if not (lowered.exact and p.skips_zeros))

    def compile(self, lowered: Lowered) -> Runnable:
        """All of it: schedule, print, build, load."""
        with without_collections(), dumping(lowered, self.name) as dump:
            source = self.print(self.schedule(lowered, dump.program))
            dump.source(source)
        return self.load(self.build(source), lowered)
