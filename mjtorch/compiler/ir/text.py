"""The text form of programs, the same for equal programs: for people, for tests of passes, read again by `parse`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mjtorch.compiler.ir.nodes import (
    BOOL,
    CONSTANT,
    FLOAT32,
    INPUT,
    INT,
    INT32,
    OUTPUT,
    SCRATCH,
    SHARED,
    UNIFORM,
    Assign,
    Barrier,
    Body,
    Buffer,
    Compact,
    Declare,
    Entry,
    Expr,
    FirstLane,
    For,
    FromIndex,
    Function,
    Gather,
    Group,
    Idiom,
    If,
    Index,
    Item,
    Length,
    Load,
    Local,
    Number,
    Pack,
    ParallelFor,
    Program,
    Rendezvous,
    Scalarized,
    ScalarizedCopy,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.walk import touched_by

PREFIX = {INPUT: "in", SHARED: "all", OUTPUT: "out", CONSTANT: "c", SCRATCH: "s", UNIFORM: "u"}
# Longer tables and constants are shortened, unless the whole text is asked for.
SHOWN = 4


def as_text(p: Program, *, whole: bool = False, origins: bool = False) -> str:
    """The program as indented text.

    whole: with all of its tables and constants, so that `parse` can read it
    origins: with a comment where the statements of another operation of the traced graph begin
    """
    return "\n".join(_Writer(p, whole, origins).program())


def statement_text(p: Program, s: Statement) -> str:
    """The first line of one statement of `p`."""
    return next(_Writer(p, whole=False, origins=False).statement(s, ""))


def index_text(i: Index, *, whole: bool = False) -> str:
    """An index."""
    parts = [_atom(a, whole) if k == 1 else f"{k}*{_atom(a, whole)}" for a, k in i.terms]
    if i.base or not parts:
        parts.append(str(i.base))
    return "+".join(parts).replace("+-", "-")


def _atom(a: Variable | Entry | Item | Length, whole: bool) -> str:
    if isinstance(a, Entry):
        return f"[{_numbers(a.table, whole)}][{index_text(a.index, whole=whole)}]"
    if isinstance(a, Item):
        return f"{a.list}[{index_text(a.index, whole=whole)}]"
    return f"len({a.list})" if isinstance(a, Length) else a.name


def _numbers(values: Sequence, whole: bool) -> str:
    shown = values if whole else values[:SHOWN]
    return ",".join(map(str, shown)) + (",.." if len(shown) < len(values) else "")


def literal(n: Number) -> str:
    """A number; those of single precision end in f."""
    if n.dtype == BOOL:
        return "true" if n.value else "false"
    if n.dtype == INT:
        return str(n.value)
    if n.dtype == INT32:
        return f"i32({n.value})"
    value = float(n.value)
    text = repr(value) if math.isfinite(value) else "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return f"{text}f" if n.dtype == FLOAT32 else text


class _Writer:
    """Names of the buffers of a program, in the order in which they come up."""

    def __init__(self, p: Program, whole: bool, origins: bool) -> None:
        self.p, self.whole, self.origins, self.last = p, whole, origins, ""
        self.names: dict[Buffer, str] = {}
        counts: dict[str, int] = {}
        for b in dict.fromkeys([*p.inputs, *p.outputs, *p.constants, *touched_by([*p.uniform, *p.body])]):
            counts[b.kind] = counts.get(b.kind, -1) + 1
            self.names[b] = f"{PREFIX[b.kind]}{counts[b.kind]}"

    def program(self) -> Iterator[str]:
        for b, name in self.names.items():
            place = "" if b.position < 0 else f" @{b.position}"
            values = "" if b.constant is None else f" = {_numbers(self._literals(b), self.whole)}"
            yield f"{b.kind} {name}: {b.dtype}[{b.size}]{place}{values}{self._where(b)}"
        if self.p.uniform:
            yield "uniform:"
            yield from self.body(self.p.uniform, "  ")
        yield "body:"
        yield from self.body(self.p.body, "  ")

    def _literals(self, b: Buffer) -> list[str]:
        assert b.constant is not None
        shown = b.constant if self.whole else b.constant[: SHOWN + 1]
        return [literal(Number(v.item(), INT if b.dtype == INT32 else b.dtype)) for v in shown]

    def _where(self, b: Buffer) -> str:
        layout = self.p.layout
        return "" if layout is None or b not in layout.offsets else f" in {layout.space[b]} at {layout.offsets[b]}"

    def index(self, i: Index) -> str:
        return index_text(i, whole=self.whole)

    def expr(self, e: Expr) -> str:
        if isinstance(e, Number):
            return literal(e)
        if isinstance(e, FromIndex):
            text = f"index({self.index(e.index)})"
            return text if e.dtype == INT else f"{e.dtype}({text})"
        if isinstance(e, Local):
            return e.name
        if isinstance(e, Load):
            return f"{self.names[e.buffer]}[{self.index(e.index)}]"
        if isinstance(e, Gather):
            return f"{self.names[e.buffer]}[{self.index(e.index)}; {self.expr(e.offset)}]"
        return f"{e.dtype if e.op == 'cast' else e.op}({', '.join(self.expr(a) for a in e.args)})"

    def body(self, statements: Body, indent: str) -> Iterator[str]:
        for s in statements:
            if self.origins and s.origin is not None and str(s.origin) != self.last:
                self.last = str(s.origin)
                yield f"{indent}# {self.last}"
            yield from self.statement(s, indent)

    def statement(self, s: Statement, indent: str) -> Iterator[str]:
        inner = indent + "  "
        if isinstance(s, (Store, Scatter)):
            offset = f"; {self.expr(s.offset)}" if isinstance(s, Scatter) else ""
            yield f"{indent}{self.names[s.buffer]}[{self.index(s.index)}{offset}] = {self.expr(s.value)}"
        elif isinstance(s, Declare):
            yield f"{indent}var {s.local.name} = {self.expr(s.value)}"
        elif isinstance(s, Assign):
            yield f"{indent}{s.local.name} = {self.expr(s.value)}"
        elif isinstance(s, While):
            yield f"{indent}while {self.expr(s.flag)}:"
            yield f"{inner}head:"
            yield from self.body(s.head, inner + "  ")
            yield f"{inner}do:"
            yield from self.body(s.body, inner + "  ")
        elif isinstance(s, If):
            yield f"{indent}if {self.expr(s.flag)}:"
            yield from self.body(s.body, inner)
            yield f"{indent}else:"
            yield from self.body(s.otherwise, inner)
        elif isinstance(s, Pack):
            yield f"{indent}pack {s.variable} < {s.size} where {self.expr(s.flag)}:"
            for name, body in (("load", s.load), ("do", s.body), ("store", s.store)):
                yield f"{inner}{name}:"
                yield from self.body(body, inner + "  ")
        elif isinstance(s, Barrier):
            yield f"{indent}barrier"
        elif isinstance(s, Rendezvous):
            yield f"{indent}rendezvous"
        else:
            yield f"{indent}{self._head(s)}:"
            yield from self.body(s.body, inner)

    def _head(self, s: Statement) -> str:
        """The first line of a statement with one body."""
        if isinstance(s, For):
            marks = [name for name in ("scope", "parallel", "unroll") if getattr(s, name)]
            since = [] if s.since is None else [f"from {self.expr(s.since)}"]
            head = [f"for {self._range(s.variable, s.start, s.stop)}", *marks, *since, *self._holes(s.holes)]
            return " ".join(head) + self._guard(s.guard)
        if isinstance(s, Compact):
            head = [f"compact {s.list} of {self._range(s.variable, s.start, Index(s.size))}", *self._holes(s.holes)]
            return " ".join(head) + self._guard(s.flag)
        if isinstance(s, Function):
            return f"function{self._list('registers', s.registers)}"
        if isinstance(s, Scalarized):
            return f"scalarized{self._list('private', s.private)}{self._list('kept', s.kept)}"
        if isinstance(s, ParallelFor):
            folds = "".join(f" {r.op} {r.local.name}" for r in s.reductions)
            loops = ", ".join(self._range(*x) for x in s.loops)
            return f"parallel for {loops}{' reduce' + folds if folds else ''}{self._guard(s.guard)}"
        if isinstance(s, Idiom):
            arrays = " ".join(f"{self.names[b]}[{self.index(i)}]" for b, i in s.arrays)
            return f"idiom {s.name} {arrays} with {' '.join(map(str, s.numbers))}"
        assert isinstance(s, (Group, ScalarizedCopy, FirstLane))
        return {Group: "group", ScalarizedCopy: "scalarized copy", FirstLane: "first lane"}[type(s)]

    def _range(self, variable: str, start: Index, stop: Index) -> str:
        return f"{variable} in {self.index(start)}..{self.index(stop)}"

    def _holes(self, holes: Sequence[tuple[Expr, int]]) -> list[str]:
        return [f"without {self.expr(limit)}..{stop}" for limit, stop in holes]

    def _guard(self, guard: Expr | None) -> str:
        return "" if guard is None else f" where {self.expr(guard)}"

    def _list(self, what: str, buffers: Sequence[Buffer]) -> str:
        return f" {what} {' '.join(self.names[b] for b in buffers)}" if buffers else ""
