"""The loop program: what `jit` lowers a graph to, and what the printers print.

A program computes one world. Its values are arrays of known shape, its statements are loops over their elements, and
every address is known when the program is made, up to loop variables and looked-up tables. A printer decides what runs
side by side: worlds in the lanes of a vector, or elements in the lanes of a warp.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

FLOAT32, FLOAT64, INT, BOOL = "f32", "f64", "i64", "bool"


# --- indices: integers that are the same in every world ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Index:
    """`base + sum of coefficient * atom`, where an atom is a loop variable or an entry of a table."""

    base: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.base + other, self.terms)
        terms: dict[Atom, int] = dict(self.terms)
        for atom, k in other.terms:
            terms[atom] = terms.get(atom, 0) + k
        return Index(self.base + other.base, tuple((a, k) for a, k in terms.items() if k))

    def __mul__(self, k: int) -> Index:
        return Index(self.base * k, tuple((a, c * k) for a, c in self.terms) if k else ())

    def __str__(self) -> str:
        parts = [f"{a}" if k == 1 else f"{k}*{a}" for a, k in self.terms]
        if self.base or not parts:
            parts.append(str(self.base))
        return "+".join(parts).replace("+-", "-")


@dataclasses.dataclass(frozen=True)
class Variable:
    """A loop variable."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Entry:
    """`table[index]`: an irregular but constant address."""

    table: tuple[int, ...]
    index: Index

    def __str__(self) -> str:
        shown = ",".join(map(str, self.table[:4])) + (",.." if len(self.table) > 4 else "")
        return f"[{shown}][{self.index}]"


Atom = Variable | Entry


def mentions(atom: Atom, variable: str) -> bool:
    """Whether a loop variable occurs in an atom."""
    if isinstance(atom, Entry):
        return any(mentions(a, variable) for a, _ in atom.index.terms)
    return atom.name == variable


def lookup(table: Sequence[int], index: Index) -> Index:
    """`table[index]`, as arithmetic where the table is an arithmetic sequence."""
    entries = tuple(int(t) for t in table)
    if not index.terms:
        return Index(entries[index.base])
    step = entries[1] - entries[0] if len(entries) > 1 else 0
    if all(e == entries[0] + k * step for k, e in enumerate(entries)):
        return index * step + entries[0]
    return Index(0, ((Entry(entries, index), 1),))


# --- expressions: one value per world ---------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False)
class Buffer:
    """An array of `size` elements of one dtype.

    `kind`: input (one per world), shared (an input that all worlds have in common), output, scratch, constant, or once
    (computed from shared inputs alone, for all worlds).
    """

    size: int
    dtype: str
    kind: str = "scratch"
    constant: np.ndarray | None = None
    position: int = -1
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Number:
    """A literal."""

    value: Any
    dtype: str


@dataclasses.dataclass(frozen=True)
class FromIndex:
    """An index as an integer value."""

    index: Index
    dtype: str = INT


@dataclasses.dataclass(frozen=True)
class Load:
    """`buffer[index]`, or `buffer[index + offset]` with an offset that each world has for itself."""

    buffer: Buffer
    index: Index
    offset: Expr | None = None

    @property
    def dtype(self) -> str:
        """That of the buffer."""
        return self.buffer.dtype


@dataclasses.dataclass(frozen=True)
class Local:
    """A variable declared by `Declare`."""

    name: str
    dtype: str


@dataclasses.dataclass(frozen=True)
class Call:
    """An elementary function; `OPS` of the printer lists them."""

    op: str
    args: tuple[Expr, ...]
    dtype: str


Expr = Number | FromIndex | Load | Local | Call


# --- statements -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class For:
    """`for variable in range(start, stop)`.

    scope: the body is a program of its own, whose buffers live one turn
    guard: turns for which it is false (in every world that runs side by side) are left out
    parallel: the turns may run in any order, or at once, which need not be found out
    """

    variable: str
    start: Index
    stop: Index
    body: list[Statement]
    scope: bool = False
    guard: Expr | None = None
    parallel: bool = False


@dataclasses.dataclass
class Store:
    """`buffer[index (+ offset)] = value`."""

    buffer: Buffer
    index: Index
    value: Expr
    offset: Expr | None = None


@dataclasses.dataclass
class Declare:
    """A variable of this scope."""

    local: Local
    value: Expr


@dataclasses.dataclass
class Assign:
    """A new value for a variable."""

    local: Local
    value: Expr


@dataclasses.dataclass
class While:
    """Run `head`, stop when `flag` is false (in every world that runs side by side), run `body`, again."""

    head: list[Statement]
    flag: Expr
    body: list[Statement]


@dataclasses.dataclass
class Collect:
    """The list `name` of the `variable < size` for which `body` finds `flag` true in some world of those side by side.

    `name[i]` and the length `name_n` may be used as loop variables in the rest of the block.
    """

    name: str
    variable: str
    size: int
    body: list[Statement]
    flag: Expr


@dataclasses.dataclass
class If:
    """Run `body` if `flag` is true in some world of those side by side, else `otherwise`.

    Both are right where the flag is false; the second is quicker.
    """

    flag: Expr
    body: list[Statement]
    otherwise: list[Statement]


@dataclasses.dataclass
class Group:
    """Statements with variables of their own."""

    body: list[Statement]


@dataclasses.dataclass
class Note:
    """A comment: the operation that the statements after it come from."""

    text: str


Statement = For | Group | If | Collect | Store | Declare | Assign | While | Note


@dataclasses.dataclass
class Program:
    """A whole function: `inputs` and `outputs` in order, with the shapes of one world.

    once: comes before `body`, and is the same for all worlds
    """

    inputs: list[Buffer]
    outputs: list[Buffer]
    constants: list[Buffer]
    once: list[Statement]
    body: list[Statement]

    def as_text(self) -> str:
        """The program as indented text, constants abbreviated."""
        return "\n".join(_text(self))


def walk_expr(e: Expr | None) -> Iterator[Expr]:
    """`e` and all expressions in it."""
    if e is None:
        return
    yield e
    if isinstance(e, Call):
        for a in e.args:
            yield from walk_expr(a)
    elif isinstance(e, Load):
        yield from walk_expr(e.offset)


def expressions(s: Statement) -> Iterator[Expr]:
    """The expressions that `s` itself holds, not those of its body."""
    if isinstance(s, Store):
        yield from walk_expr(s.value)
        yield from walk_expr(s.offset)
    elif isinstance(s, (Declare, Assign)):
        yield from walk_expr(s.value)
    elif isinstance(s, (While, Collect, If)):
        yield from walk_expr(s.flag)
    elif isinstance(s, For):
        yield from walk_expr(s.guard)


def blocks(s: Statement) -> tuple[list[Statement], ...]:
    """The statements within `s`."""
    if isinstance(s, While):
        return s.head, s.body
    if isinstance(s, If):
        return s.body, s.otherwise
    return (s.body,) if isinstance(s, (For, Group, Collect)) else ()


def with_blocks(s: Statement, new: Sequence[list[Statement]]) -> Statement:
    """`s` with other statements within."""
    if isinstance(s, While):
        return While(new[0], s.flag, new[1])
    if isinstance(s, If):
        return If(s.flag, new[0], new[1])
    return dataclasses.replace(s, body=new[0]) if isinstance(s, (For, Group, Collect)) else s


def walk(statements: Sequence[Statement]) -> Iterator[Statement]:
    """The statements and all within them, in the order of the text."""
    for s in statements:
        yield s
        for block in blocks(s):
            yield from walk(block)


def touched(s: Statement) -> dict[Buffer, None]:
    """The buffers that `s` itself reads or writes, not those of its body: a set, in the order of the text.

    The order decides where buffers lie, and a program must be printed alike by all processes.
    """
    found = dict.fromkeys(e.buffer for e in expressions(s) if isinstance(e, Load))
    if isinstance(s, Store):
        found[s.buffer] = None
    return found


def touched_by(statements: Sequence[Statement]) -> dict[Buffer, None]:
    """All buffers that `statements` read or write, in order."""
    found: dict[Buffer, None] = {}
    for s in walk(statements):
        found |= touched(s)
    return found


def uses(statements: Sequence[Statement]) -> Counter[Buffer]:
    """How many statements read or write each buffer."""
    return Counter(b for s in walk(statements) for b in touched(s))


def _text(p: Program) -> Iterator[str]:
    names: dict[int, str] = {}

    def name(b: Buffer) -> str:
        prefix = {"input": "in", "shared": "all", "output": "out", "constant": "c", "scratch": "s", "once": "o"}[b.kind]
        return names.setdefault(id(b), f"{prefix}{len(names)}")

    def expr(e: Expr) -> str:
        if isinstance(e, Number):
            return repr(e.value)
        if isinstance(e, FromIndex):
            return f"({e.index})"
        if isinstance(e, Local):
            return e.name
        if isinstance(e, Load):
            offset = f" + {expr(e.offset)}" if e.offset is not None else ""
            return f"{name(e.buffer)}[{e.index}{offset}]"
        return f"{e.op}({', '.join(expr(a) for a in e.args)})"

    def block(statements: Sequence[Statement], indent: str) -> Iterator[str]:
        for s in statements:
            if isinstance(s, Note):
                yield f"{indent}# {s.text}"
            elif isinstance(s, For):
                where = f" where {expr(s.guard)}" if s.guard is not None else ""
                yield f"{indent}for {s.variable} in {s.start}..{s.stop}{where}:"
                yield from block(s.body, indent + "  ")
            elif isinstance(s, Group):
                yield from block(s.body, indent)
            elif isinstance(s, If):
                yield f"{indent}if {expr(s.flag)}:"
                yield from block(s.body, indent + "  ")
                yield f"{indent}else:"
                yield from block(s.otherwise, indent + "  ")
            elif isinstance(s, Collect):
                yield f"{indent}{s.name} = all {s.variable} in 0..{s.size} where:"
                yield from block(s.body, indent + "  ")
                yield f"{indent}  {expr(s.flag)}"
            elif isinstance(s, Store):
                offset = f" + {expr(s.offset)}" if s.offset is not None else ""
                yield f"{indent}{name(s.buffer)}[{s.index}{offset}] = {expr(s.value)}"
            elif isinstance(s, Declare):
                yield f"{indent}var {s.local.name}: {s.local.dtype} = {expr(s.value)}"
            elif isinstance(s, Assign):
                yield f"{indent}{s.local.name} = {expr(s.value)}"
            else:
                yield f"{indent}while:"
                yield from block(s.head, indent + "  ")
                yield f"{indent}  until not {expr(s.flag)}"
                yield from block(s.body, indent + "  ")

    for kind, buffers in (("input", p.inputs), ("output", p.outputs), ("constant", p.constants)):
        for b in buffers:
            yield f"{kind} {name(b)}: {b.dtype}[{b.size}]"
    if p.once:
        yield "once:"
        yield from block(p.once, "  ")
    yield from block(p.body, "")
