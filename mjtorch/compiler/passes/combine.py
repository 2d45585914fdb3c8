"""Write combining: results are collected near the processor, and leave it in blocks.

Worlds are computed side by side, but what each returns lies apart from what the others do. An element of all of them
is a store to as many places; a block of elements, transposed, is a store of some elements to each place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mjtorch.compiler.analysis.tail_values import Axes
from mjtorch.compiler.ir.nodes import (
    OUTPUT,
    SCRATCH,
    Assign,
    Body,
    Buffer,
    Call,
    Declare,
    Expr,
    For,
    Group,
    If,
    Index,
    Load,
    Local,
    Number,
    Pack,
    Program,
    Scalarized,
    ScalarizedCopy,
    Scatter,
    Statement,
    Store,
    Variable,
)
from mjtorch.compiler.ir.walk import atoms, before, bodies, is_block, is_program, map_bodies, walk, with_body

# Fewer elements are stored as they come.
LEAST = 4
Uses = list[tuple[Store, Axes]]


class Piece(NamedTuple):
    """What a nest writes of a result: elements `first` to `first + width * iterations`, `width` in each of its own."""

    first: Index
    width: int


def combine_writes(p: Program) -> Program:
    """Let nests of loops write results to scratch memory, and copy it from there as it is complete."""
    return with_body(p, _combined(p.body))


def _combined(statements: Body) -> Body:
    found: list[Statement] = []
    for s in statements:
        if isinstance(s, For) and _is_nest(s) and not is_block(s):
            found += _of_nest(s)
        elif isinstance(s, (Pack, Scalarized, ScalarizedCopy)):  # of other worlds, or of one
            found.append(s)
        else:
            found.append(map_bodies(s, _combined))
    return tuple(found)


def _is_nest(s: For) -> bool:
    """Whether `s` is loops that run in all worlds alike, but for what the outermost leaves out."""
    if s.guard is not None or not s.has_fixed_ends or is_program(s):
        return False
    inner = [x for x in walk(s.body) if bodies(x)]
    return all(
        isinstance(x, Group)
        or (isinstance(x, For) and x.is_counted and not is_program(x))
        or (isinstance(x, If) and _written(x.body) == _written(x.otherwise))
        for x in inner
    )


def _written(statements: Body) -> set[tuple[Buffer, Index]]:
    """The elements of results that are stored."""
    return {(x.buffer, x.index) for x in walk(statements) if isinstance(x, Store) and x.buffer.kind == OUTPUT}


def _of_nest(nest: For) -> list[Statement]:
    """The nest, and the copies that it leaves to blocks."""
    stores: dict[Buffer, Uses] = {}
    _collect((nest,), Axes(), stores)
    moved: dict[Store, Store | None] = {}
    copies: list[Statement] = []
    for b, uses in stores.items():
        piece = _piece(nest, uses)
        if piece is None:
            continue
        if (number := _number(uses)) is not None:
            moved |= {s: None for s, _ in uses}
            copies.append(_block(nest, piece, b, number))
            continue
        source, shift = _copied(nest, uses)
        if source is None:
            size = piece.width * (nest.stop.base - nest.start.base)
            source, shift = Buffer(size, b.dtype), piece.first * -1
            moved |= {s: dataclasses.replace(s, buffer=source, index=s.index + shift) for s, _ in uses}
        else:
            moved |= {s: None for s, _ in uses}
        copies.append(_block(nest, piece, b, (source, piece.first + shift)))
    return [*_moved((nest,), moved), *copies] if copies else [nest]


def _collect(statements: Sequence[Statement], axes: Axes, found: dict[Buffer, Uses]) -> None:
    """The stores to results, by result, with the loops around them."""
    for s in statements:
        if isinstance(s, Store) and s.buffer.kind == OUTPUT:
            found.setdefault(s.buffer, []).append((s, axes))
        for body in bodies(s):
            _collect(body, axes.inside(s), found)


def _piece(nest: For, uses: Uses) -> Piece | None:
    """What the stores write, if that is all elements of a piece, as many in each iteration of the outermost loop."""
    outer: Index | None = None
    parts: list[np.ndarray] = []
    for s, axes in uses:
        own = Index(s.index.base, tuple(t for t in s.index.terms if _depends(Index(0, (t,)), axes)))
        around = Index(0, tuple(t for t in s.index.terms if t not in own.terms))
        at = axes.index(own)
        if at is None or (outer is not None and outer != around):
            return None
        outer = around
        shape = [x.stop.base - x.start.base for x in axes.loops]
        parts.append(np.broadcast_to(at, shape).reshape(shape[0], -1))
    at = np.concatenate(parts, axis=1)
    count, first = len(at), int(at.min(initial=2**62))
    if not at.size or (int(at.max()) + 1 - first) % count:
        return None
    width = (int(at.max()) + 1 - first) // count
    if not LEAST <= width * count <= at.size:
        return None
    regular = nest.is_counted or ((at - first) // width == np.arange(count)[:, None]).all()
    complete = np.bincount(at.reshape(-1) - first).all()
    return Piece(Index(first) + (outer or Index()), width) if regular and complete else None


def _number(uses: Uses) -> Number | None:
    """The one number that is written, if it is one."""
    values = {s.value for s, _ in uses}
    value = next(iter(values))
    return value if len(values) == 1 and isinstance(value, Number) else None


def _copied(nest: For, uses: Uses) -> tuple[Buffer | None, Index]:
    """The scratch array that what is written lies in, too, and what lies between the places in both."""
    found: tuple[Buffer | None, Index] = None, Index()
    for s, axes in uses:
        twin = _twin(nest, s)
        shift = Index() if twin is None else twin.index + s.index * -1
        if twin is None or _depends(shift, axes) or (found[0] is not None and found != (twin.buffer, shift)):
            return None, Index()
        found = twin.buffer, shift
    return found


def _depends(i: Index, axes: Axes) -> bool:
    """Whether an index is another in other iterations."""
    return any(isinstance(a, Variable) and a.name in axes.place for a in atoms(i))


def _twin(nest: For, s: Store) -> Load | None:
    """The element of a scratch array that has what `s` stores, once the nest is done."""
    earlier, v = before((nest,), s), s.value
    found = v if isinstance(v, Load) and v.buffer.kind == SCRATCH else None
    if isinstance(v, Local) and not any(isinstance(x, Assign) and x.local == v for x in walk((nest,))):
        same = [x for x in earlier if isinstance(x, Store) and x.buffer.kind == SCRATCH and x.value == v]
        found = Load(same[-1].buffer, same[-1].index) if same else None
    if found is None:
        return None
    writes = [x for x in walk((nest,)) if isinstance(x, (Store, Scatter)) and x.buffer is found.buffer]
    first = all(isinstance(x, Store) and x.index == found.index and any(x is y for y in earlier) for x in writes)
    return found if first else None


def _block(nest: For, piece: Piece, b: Buffer, what: Number | tuple[Buffer, Index]) -> For:
    """A loop that copies a piece to a result, or fills it; it leaves out what the nest leaves out."""
    width = piece.width

    def wide(limit: Expr) -> Expr:
        return limit if width == 1 else Call("mul", (limit, Number(width, limit.dtype)), limit.dtype)

    start, k = width * nest.start.base, Index(0, ((Variable(nest.variable), 1),))
    value: Expr = what if isinstance(what, Number) else Load(what[0], what[1] + k + Index(-start))
    return For(
        nest.variable,
        Index(start),
        Index(width * nest.stop.base),
        (Store(b, piece.first + k + Index(-start), value, origin=nest.origin),),
        holes=tuple((wide(limit), width * stop) for limit, stop in nest.holes),
        since=None if nest.since is None else wide(nest.since),
        origin=nest.origin,
    )


def _moved(statements: Body, moved: dict[Store, Store | None]) -> Body:
    """The statements with other stores, or without them; loops in which nothing is left are left out."""
    found: list[Statement] = []
    for s in statements:
        if isinstance(s, Store) and s in moved:
            new = moved[s]
            found += [] if new is None else [new]
            continue
        within = bodies(s)
        s = map_bodies(s, lambda body: _moved(body, moved))
        if not within or any(not isinstance(x, Declare) for body in bodies(s) for x in body):
            found.append(s)
    return tuple(found)
