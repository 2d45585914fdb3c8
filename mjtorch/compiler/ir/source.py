"""Where a node of a program comes from."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Source:
    """A line of Python: of the physics, or of the user's."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, in {self.function}"


@dataclasses.dataclass(frozen=True)
class Origin:
    """The operation of the traced graph that a statement computes a part of.

    op: such as "add"; node: its name in the graph, which is unique; source: the line that called it, if that is known
    """

    op: str
    node: str
    source: Source | None = None

    def __str__(self) -> str:
        where = "" if self.source is None else f" ({self.source})"
        return f"{self.node} = {self.op}{where}"
