"""Passes: from program to program, nothing changed in place. A target lists those that it wants, in order.

To add one, write a module here with a function of a program, and enter it in the list of a target.
"""

from __future__ import annotations

import dataclasses
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
