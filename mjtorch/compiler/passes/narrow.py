"""Narrowing: integers that are known to be small take half the memory and half the registers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mjtorch.compiler.analysis.ranges import Ranges
from mjtorch.compiler.ir.nodes import (
    BOOL,
    CONSTANT,
    FLOAT64,
    INT,
    INT32,
    SCRATCH,
    UNIFORM,
    WHOLE,
    Assign,
    Buffer,
    Call,
    Declare,
    Expr,
    FromIndex,
    Gather,
    Load,
    Local,
    Number,
    Pack,
    Program,
    Scalarized,
    Scatter,
    Statement,
    Store,
)
from mjtorch.compiler.ir.walk import Rewriter, touched_by, walk

LEAST, MOST = -(2**31), 2**31 - 1
# Elements of an array whose addresses, times the worlds side by side, are still numbers of 32 bits.
LARGE = 2**24
# What is by so many bits at most.
BITS = 31


def narrow_integers(p: Program, doubles: bool = False) -> Program:
    """Make integers of 32 bits of those that fit, whatever the inputs are.

    doubles: also in programs of double precision, where masks are as wide as those, and nothing is gained
    """
    buffers = touched_by([*p.uniform, *p.body])
    every = (*buffers, *p.inputs, *p.outputs, *p.constants)
    if (is_wide(p) and not doubles) or any(b.size > LARGE for b in every):
        return p
    rewriter = _Narrower(p, list(buffers))
    constants = tuple(rewriter.buffers.get(b, b) for b in p.constants)
    return dataclasses.replace(p, constants=constants, uniform=rewriter.body(p.uniform), body=rewriter.body(p.body))


def is_wide(p: Program) -> bool:
    """Whether what is given or returned is in double precision, not only something in between."""
    return any(b.dtype == FLOAT64 for b in (*p.inputs, *p.outputs, *p.constants))


class _Narrower(Rewriter):
    """The program with other arrays and variables.

    buffers: those of 32 bits, by what they stand for
    """

    def __init__(self, p: Program, buffers: Sequence[Buffer]) -> None:
        self.ranges = Ranges(p)
        self.names: dict[str, bool] = {}
        kinds = (SCRATCH, UNIFORM, CONSTANT)
        small = {b for b in (*buffers, *p.constants) if b.dtype == INT and b.kind in kinds and self._fits(b)}
        small -= _copied_from_others(p, small)
        # In the order of the text: a program must be printed alike by all processes.
        self.buffers = {b: _narrow(b) for b in (*buffers, *p.constants) if b in small}

    def expr(self, e: Expr) -> Expr:
        """The value, of 32 bits where it and all that it is made of fit."""
        if isinstance(e, (Number, FromIndex)):
            return dataclasses.replace(e, dtype=INT32) if e.dtype == INT and self._is_small(e) else e
        if isinstance(e, Local):
            return Local(e.name, INT32) if e.dtype == INT and self._is_named(e.name) else e
        if isinstance(e, Load):
            return Load(self.buffers[e.buffer], e.index) if e.buffer in self.buffers else e
        if isinstance(e, Gather):
            buffer, offset = self.buffers.get(e.buffer, e.buffer), self.expr(e.offset)
            return e if buffer is e.buffer and offset is e.offset else Gather(buffer, e.index, offset)
        args = tuple(self.expr(a) for a in e.args)
        if all(a is b for a, b in zip(args, e.args, strict=True)) and e.dtype != INT:
            return e
        if e.op == "cast":
            return self._cast(e, args[0])
        whole = [a for a in args if a.dtype in WHOLE]
        small = all(a.dtype == INT32 for a in whole) and (e.dtype == BOOL or self._is_small(e))
        if e.op in ("shl", "shr"):
            low, high = self.ranges.of(e.args[1])
            small = small and low >= 0 and high <= BITS
        if not small:
            args = tuple(_wide(a) if a.dtype in WHOLE else a for a in args)
        return Call(e.op, args, INT32 if small and e.dtype == INT else e.dtype, e.origin)

    def statement(self, s: Statement) -> Sequence[Statement]:
        """A statement; what it writes is as wide as what it writes to."""
        (s,) = super().statement(s)
        if isinstance(s, (Store, Scatter)):
            buffer = self.buffers.get(s.buffer, s.buffer)
            return (self._replaced(s, buffer=buffer, value=_as_wide(s.value, buffer.dtype)),)
        if isinstance(s, (Declare, Assign)) and s.local.dtype == INT:
            local = self.expr(s.local)
            return (self._replaced(s, local=local, value=_as_wide(s.value, local.dtype)),)
        if isinstance(s, Scalarized):
            private, kept = (tuple(self.buffers.get(b, b) for b in x) for x in (s.private, s.kept))
            return (dataclasses.replace(s, private=private, kept=kept),)
        return (s,)

    def _cast(self, e: Call, value: Expr) -> Expr:
        if e.dtype == INT and value.dtype in WHOLE:
            return value
        return Call("cast", (value,), INT32 if e.dtype == INT and self._is_small(e) else e.dtype, e.origin)

    def _fits(self, place: Buffer | str) -> bool:
        low, high = self.ranges.at(place)
        return low >= LEAST and high <= MOST

    def _is_small(self, e: Expr) -> bool:
        low, high = self.ranges.of(e)
        return low >= LEAST and high <= MOST

    def _is_named(self, name: str) -> bool:
        if name not in self.names:
            self.names[name] = self._fits(name)
        return self.names[name]


def _narrow(b: Buffer) -> Buffer:
    constant = None if b.constant is None else b.constant.astype("int32")
    return dataclasses.replace(b, dtype=INT32, constant=constant)


def _wide(e: Expr) -> Expr:
    """A whole number of 64 bits."""
    if e.dtype == INT:
        return e
    return dataclasses.replace(e, dtype=INT) if isinstance(e, (Number, FromIndex)) else Call("cast", (e,), INT)


def _as_wide(e: Expr, dtype: str) -> Expr:
    """A value as an array or variable of some dtype takes it."""
    if e.dtype == dtype or dtype not in WHOLE:
        return e
    return _wide(e) if dtype == INT else Call("cast", (e,), INT32)


def _copied_from_others(p: Program, small: set[Buffer]) -> set[Buffer]:
    """Those of `small` that what is packed copies from or to others: copies stay copies."""
    pairs = [
        (x.buffer, x.value.buffer)
        for s in walk(p.body)
        if isinstance(s, Pack)
        for x in walk((*s.load, *s.store))
        if isinstance(x, Store) and isinstance(x.value, Load) and x.buffer.dtype == INT
    ]
    found: set[Buffer] = set()
    while True:
        more = {b for pair in pairs for b in pair if b in small - found and any(c not in small - found for c in pair)}
        if not more:
            return found
        found |= more
