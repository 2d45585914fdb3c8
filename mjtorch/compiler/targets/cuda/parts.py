"""How a program is divided into functions, of which each compiles quickly and holds few values at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mjtorch.compiler.ir.program import For, Note, Statement, While, walk

# Statements per function: so many that few arrays are passed from one to another, so few that it compiles quickly.
CHUNK = 120
# A loop of more is not printed as one: compilers keep in registers what stays the same over all of its turns.
LONG = 3 * CHUNK


def parts(statements: Sequence[Statement]) -> Iterator[list[Statement]]:
    """The statements in pieces, each a function; a loop stays with what comes before it."""
    part: list[Statement] = []
    size = 0
    for s in statements:
        part.append(s)
        size += _size([s])
        if size >= CHUNK:
            yield part
            part, size = [], 0
    if part:
        yield part


def is_divided(s: Statement, block: Sequence[Statement]) -> bool:
    """Whether a block of `s` is printed as functions of its own."""
    return (isinstance(s, While) or (isinstance(s, For) and s.scope)) and _size(block) > LONG


def _size(statements: Sequence[Statement]) -> int:
    return sum(not isinstance(x, Note) for x in walk(statements))
