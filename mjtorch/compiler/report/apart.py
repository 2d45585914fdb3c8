"""A function compiled as a whole, against its parts compiled one by one."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from mjtorch.compiler.mapped import Mapped
from mjtorch.compiler.report.accuracy import Accuracy, compare
from mjtorch.compiler.report.measure import Made, in_turns, make
from mjtorch.compiler.report.text import ms, table


@dataclasses.dataclass(frozen=True)
class Part:
    """One program: seconds until the first call can be made, everything anew, and of a call."""

    name: str
    first: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Apart:
    """The whole and its parts; `str()` is the table.

    accuracy: of what the parts come to, against the whole
    """

    whole: Part
    parts: tuple[Part, ...]
    accuracy: Accuracy

    def __str__(self) -> str:
        together = Part("all parts", sum(p.first for p in self.parts), sum(p.seconds for p in self.parts))
        rows = [("program", "first call s", "ms a call")]
        rows += [(p.name, f"{p.first:.2f}", ms(p.seconds)) for p in (*self.parts, together, self.whole)]
        verdict = "the same" if self.accuracy.agrees else f"NOT the same:\n{self.accuracy}"
        return "\n".join([*table(rows), f"the parts come to {verdict}"])


def apart(mapped: Mapped, parts: Sequence[Callable[..., Any]], args: tuple, threads: int | None = None) -> Apart:
    """Compile and measure `f(*args)`, and `parts`: functions like `f`, each given what the one before has returned.

    Their arguments are those of `f`, the last replaced: so are stages `(m, d) -> d` of a step `(m, d) -> d`. They are
    mapped as `f` is.

    Raises:
        NotImplementedError: an operation has no rule.
        BuildError: there is no compiler.
    """
    whole = make(mapped, args, {})
    made: list[Made] = []
    last = args[-1]
    for f in parts:
        part = Mapped(f, mapped.in_dims, mapped.out_dims, ())
        made.append(make(part, (*args[:-1], last), {}))
        last = made[-1].result(made[-1].ready(threads))
    wanted = whole.result(whole.ready(threads))
    ready = [x.ready(threads) for x in (*made, whole)]
    calls = [functools.partial(r, x.call.leaves) for r, x in zip(ready, (*made, whole), strict=True)]
    times = map(statistics.median, in_turns(calls))
    found = [Part(x.mapped.name, sum(x.seconds.values()), t) for x, t in zip((*made, whole), times, strict=True)]
    return Apart(found[-1], tuple(found[:-1]), compare(last, wanted))
