"""Passes: from program to program, nothing changed in place. A target lists those that it wants, in order.

To add one, write a module here with a function of a program, and enter it in the list of a target.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable

from mjtorch.compiler.ir.nodes import Program


@dataclasses.dataclass(frozen=True)
class Pass:
    """A named function of programs.

    required: the target cannot print a program without it; the others may be left out, and results stay the same
    skips_zeros: it leaves out products with zeros, which only matters where the other factor is not finite
    """

    name: str
    run: Callable[[Program], Program]
    required: bool = False
    skips_zeros: bool = False

    @property
    def function(self) -> Callable[..., Program]:
        """The function of the module, without the settings that a target has given it."""
        return self.run.func if isinstance(self.run, functools.partial) else self.run

    @property
    def about(self) -> str:
        """What it does, in a line: the first of its docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]


Watch = Callable[[str, Program], object]


def run_passes(p: Program, passes: Iterable[Pass], watch: Watch | None = None) -> Program:
    """`p` after all passes. `watch(name, program)` sees what each makes of it, and first, as "lower", `p` itself."""
    if watch is not None:
        watch("lower", p)
    for step in passes:
        p = step.run(p)
        if watch is not None:
            watch(step.name, p)
    return p
