"""Outlining: long programs become functions, of which each compiles quickly and holds few values at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from mjtorch.compiler.ir.nodes import Body, Function, Pack, Program, Scalarized, Statement
from mjtorch.compiler.ir.walk import is_program, map_bodies, walk

# Statements per function of a CPU: compilers take more than twice as long for a function of twice the length.
CHUNK = 40
# Of a warp, counting those within: so many that few arrays are passed from one to another.
WARP_CHUNK = 120
# A loop of more is not printed as one: compilers keep in registers what stays the same over all of its iterations.
LONG = 3 * WARP_CHUNK


def outline(p: Program) -> Program:
    """Make functions of `CHUNK` nests each, also of the bodies of loops that are programs of their own."""
    return _outlined(p, _chunks, lambda body: True)


def outline_for_warps(p: Program) -> Program:
    """Make functions of `WARP_CHUNK` statements each, and of the bodies of long loops."""
    return _outlined(p, _warp_chunks, lambda body: _size(body) > LONG)


def _outlined(
    p: Program, divide: Callable[[Sequence[Statement]], Iterator[Body]], divided: Callable[[Body], bool]
) -> Program:
    def level(statements: Body) -> Body:
        return tuple(Function(part) for part in divide([statement(s) for s in statements]))

    def statement(s: Statement) -> Statement:
        if isinstance(s, Scalarized):
            return s
        if isinstance(s, Pack):
            return dataclasses.replace(s, body=level(s.body))
        own = is_program(s)
        return map_bodies(s, lambda body: level(body) if own and divided(body) else [statement(x) for x in body])

    return dataclasses.replace(p, uniform=level(p.uniform), body=level(p.body))


def _chunks(statements: Sequence[Statement]) -> Iterator[Body]:
    for k in range(0, len(statements), CHUNK):
        yield tuple(statements[k : k + CHUNK])


def _warp_chunks(statements: Sequence[Statement]) -> Iterator[Body]:
    """The statements in pieces; a loop stays with what comes before it."""
    part: list[Statement] = []
    size = 0
    for s in statements:
        part.append(s)
        size += _size([s])
        if size >= WARP_CHUNK:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)


def _size(statements: Sequence[Statement]) -> int:
    return sum(not isinstance(s, Function) for s in walk(statements))
