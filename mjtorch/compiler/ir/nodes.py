"""The nodes of the intermediate representation: a loop program over arrays of known shape.

A program computes one world. Its values are arrays, its statements are loops over their elements, and every address is
known when the program is made, up to loop variables, tables, and the offsets of gathers and scatters. A target decides
what runs side by side: worlds in the lanes of a vector, or elements in the lanes of a warp.

Nodes are never changed: a pass makes new ones. Expressions are equal if they say the same; buffers and statements are
themselves only. What can be done with all kinds of nodes alike is in `walk.py`; as text they are in `text.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mjtorch.compiler.ir.source import Source

# Integers of 32 bits come up in programs of targets only, which find out where they are enough.
FLOAT32, FLOAT64, INT, INT32, BOOL = "f32", "f64", "i64", "i32", "bool"
DTYPES = (FLOAT32, FLOAT64, INT, INT32, BOOL)
WHOLE = (INT, INT32)
# Of memory that arrays of all dtypes share.
BYTE = "byte"
# Where the values of a buffer come from, or go.
INPUT, SHARED, OUTPUT, SCRATCH, CONSTANT, UNIFORM = "input", "shared", "output", "scratch", "constant", "uniform"
KINDS = (INPUT, SHARED, OUTPUT, SCRATCH, CONSTANT, UNIFORM)
# Those that all worlds have in common.
COMMON = (SHARED, CONSTANT, UNIFORM)


# --- indices: integers that are the same in every world ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Index:
    """`base + sum of coefficient * atom`: affine in its atoms."""

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


@dataclasses.dataclass(frozen=True)
class Variable:
    """A loop variable."""

    name: str


@dataclasses.dataclass(frozen=True)
class Entry:
    """`table[index]`: an irregular but constant address."""

    table: tuple[int, ...]
    index: Index


@dataclasses.dataclass(frozen=True)
class Item:
    """`list[index]`: an entry of a list that `Compact` made."""

    list: str
    index: Index


@dataclasses.dataclass(frozen=True)
class Length:
    """How many entries a list has that `Compact` made."""

    list: str


Atom = Variable | Entry | Item | Length


def lookup(table: Sequence[int], index: Index) -> Index:
    """`table[index]`, as arithmetic where the table is an arithmetic sequence."""
    if not index.terms:
        return Index(int(table[index.base]))
    entries = tuple(map(int, table))
    return picked(entries, step_of(entries), index)


def picked(entries: tuple[int, ...] | range, step: int | None, index: Index) -> Index:
    """`entries[index]`, where it is known by which step each is larger than the one before, if there is one."""
    if not index.terms:
        return Index(entries[index.base])
    return Index(0, ((Entry(tuple(entries), index), 1),)) if step is None else index * step + entries[0]


def step_of(numbers: tuple[int, ...] | range) -> int | None:
    """The difference between each of these numbers and the next, if it is the same for all; zero for one or none."""
    if len(numbers) < 2:
        return 0
    if isinstance(numbers, range):
        return numbers.step
    step = numbers[1] - numbers[0]
    alike = range(numbers[0], numbers[0] + len(numbers) * step, step) if step else numbers[:1] * len(numbers)
    return step if numbers == tuple(alike) else None


# --- where nodes come from -------------------------------------------------------------------------------------------


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


# --- expressions: one value per world ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Buffer:
    """An array of `size` elements of one dtype.

    kind: input (one per world), shared (an input that all worlds have in common), output, scratch, constant, or uniform
        (computed from what all worlds have in common, once for all of them)
    position: of an input or output, among those of the function
    """

    size: int
    dtype: str
    kind: str = SCRATCH
    constant: np.ndarray | None = None
    position: int = -1


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
    """`buffer[index]`."""

    buffer: Buffer
    index: Index

    @property
    def dtype(self) -> str:
        """That of the buffer."""
        return self.buffer.dtype


@dataclasses.dataclass(frozen=True)
class Gather:
    """`buffer[index + offset]`, with an offset that each world has for itself."""

    buffer: Buffer
    index: Index
    offset: Expr

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
    """An elementary function of `ops.py`; `origin` where it is another operation's than the statement's."""

    op: str
    args: tuple[Expr, ...]
    dtype: str
    origin: Origin | None = dataclasses.field(default=None, compare=False, repr=False)


Expr = Number | FromIndex | Load | Gather | Local | Call


# --- statements -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class _Statement:
    """What all statements have: the operation that they are a part of, if that is known."""

    origin: Origin | None = dataclasses.field(default=None, kw_only=True, repr=False)


@dataclasses.dataclass(frozen=True, eq=False)
class Store(_Statement):
    """`buffer[index] = value`."""

    buffer: Buffer
    index: Index
    value: Expr


@dataclasses.dataclass(frozen=True, eq=False)
class Scatter(_Statement):
    """`buffer[index + offset] = value`, with an offset that each world has for itself."""

    buffer: Buffer
    index: Index
    offset: Expr
    value: Expr


@dataclasses.dataclass(frozen=True, eq=False)
class Declare(_Statement):
    """A variable of this scope."""

    local: Local
    value: Expr


@dataclasses.dataclass(frozen=True, eq=False)
class Assign(_Statement):
    """A new value for a variable."""

    local: Local
    value: Expr


@dataclasses.dataclass(frozen=True, eq=False)
class For(_Statement):
    """`for variable in range(start, stop)`.

    scope: the body is a program of its own, whose buffers live for one iteration
    guard: iterations for which it is false (in every world that runs side by side) are left out
    holes: iterations from the first (the highest of worlds side by side) up to the second are left out, in order
    since: iterations before it (the highest) are left out
    parallel: the iterations may run in any order, or at once, which need not be found out
    unroll: it is to be written out, since what it indexes has no addresses
    """

    variable: str
    start: Index
    stop: Index
    body: Body
    scope: bool = False
    guard: Expr | None = None
    holes: tuple[tuple[Expr, int], ...] = ()
    since: Expr | None = None
    parallel: bool = False
    unroll: bool = False

    @property
    def has_fixed_ends(self) -> bool:
        """Whether it is known where it starts and stops, whatever it leaves out between."""
        return not (self.start.terms or self.stop.terms)

    @property
    def is_counted(self) -> bool:
        """Whether it is known how often it runs, equally often in all worlds."""
        return self.has_fixed_ends and not self.holes and self.guard is None and self.since is None


@dataclasses.dataclass(frozen=True, eq=False)
class While(_Statement):
    """Run `head`, stop when `flag` is false (in every world that runs side by side), run `body`, again."""

    head: Body
    flag: Expr
    body: Body


@dataclasses.dataclass(frozen=True, eq=False)
class Compact(_Statement):
    """The list of the `start <= variable < size` for which `body` finds `flag` true in some world side by side.

    Its entries and its length may be used in the rest of the block: `Item`, `Length`. holes: as for `For`
    """

    list: str
    variable: str
    size: int
    body: Body
    flag: Expr
    start: Index = Index()
    holes: tuple[tuple[Expr, int], ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class If(_Statement):
    """Run `body` if `flag` is true in some world of those side by side, else `otherwise`.

    Both are right where the flag is false; the second is quicker.
    """

    flag: Expr
    body: Body
    otherwise: Body


@dataclasses.dataclass(frozen=True, eq=False)
class Pack(_Statement):
    """Run `body` for the `variable < size` and the worlds for which `flag` holds, these and not worlds side by side.

    load, store: what is copied for one of these, element by element, to buffers that nothing but this uses, and from
        these. `body` works on them, and on what all worlds have in common.
    """

    variable: str
    size: int
    flag: Expr
    load: Body
    body: Body
    store: Body


@dataclasses.dataclass(frozen=True, eq=False)
class Group(_Statement):
    """Statements with variables of their own."""

    body: Body


# --- statements that say how a target is to execute others -----------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Function(_Statement):
    """Statements that are printed as a function of their own, which compilers are quick with.

    registers: buffers that it holds in variables, since nothing else uses them
    """

    body: Body
    registers: tuple[Buffer, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Scalarized(_Statement):
    """Statements that are run for one world after the other, not for a vector of worlds.

    private: buffers that nothing else uses, kept: buffers that others use too; meanwhile both are held in variables,
        but for those private ones that have a place in memory, where a world's elements then lie side by side
    """

    body: Body
    private: tuple[Buffer, ...] = ()
    kept: tuple[Buffer, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class ScalarizedCopy(_Statement):
    """Loops that only copy what lies at offsets, done for one world after the other."""

    body: Body


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A variable from around a loop to which each iteration adds something with `op`."""

    local: Local
    op: str


@dataclasses.dataclass(frozen=True, eq=False)
class ParallelFor(_Statement):
    """Loops, from the outermost, whose iterations the lanes of a warp share out; each is one lane's.

    guard: of the one loop there then is, as for `For`
    """

    loops: tuple[tuple[str, Index, Index], ...]
    reductions: tuple[Reduction, ...]
    body: Body
    guard: Expr | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Barrier(_Statement):
    """The lanes of a warp wait for each other."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rendezvous(_Statement):
    """The warps of a block, each with worlds of its own, wait for each other."""


@dataclasses.dataclass(frozen=True, eq=False)
class FirstLane(_Statement):
    """Stores that the first lane of a warp executes alone."""

    body: Body


@dataclasses.dataclass(frozen=True, eq=False)
class Idiom(_Statement):
    """`body`, which a target may have a way of its own to compute.

    name: what it is
    arrays: where those that it is about begin
    numbers: sizes and strides
    """

    name: str
    arrays: tuple[tuple[Buffer, Index], ...]
    numbers: tuple[int, ...]
    body: Body


Statement = (
    Store
    | Scatter
    | Declare
    | Assign
    | For
    | While
    | Compact
    | If
    | Pack
    | Group
    | Function
    | Scalarized
    | ScalarizedCopy
    | ParallelFor
    | Barrier
    | Rendezvous
    | FirstLane
    | Idiom
)
Body = tuple[Statement, ...]


# --- programs ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Where the buffers of a program lie.

    space: the memory that each buffer is in, offsets: where in it, in elements of its dtype
    sizes: elements of each memory and dtype, or bytes of what all dtypes share
    lanes: of a warp that compute a world together; 0 where worlds are computed side by side
    """

    space: Mapping[Buffer, str]
    offsets: Mapping[Buffer, int]
    sizes: Mapping[tuple[str, str], int]
    lanes: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A whole function: `inputs` and `outputs` in order, with the shapes of one world.

    uniform: comes before `body`, and is the same for all worlds
    layout: where its buffers lie, once that is decided
    work: one of `outputs`, for the target alone: what a world took, in operations of the cost model
    """

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    constants: tuple[Buffer, ...]
    uniform: Body
    body: Body
    layout: Layout | None = None
    work: Buffer | None = None
