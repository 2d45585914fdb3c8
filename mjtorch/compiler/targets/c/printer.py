"""Expressions and addresses in a language of C's family; what statements become is the targets' own."""

from __future__ import annotations

import math
import pathlib
from abc import ABC, abstractmethod

import numpy as np

from mjtorch.compiler.ir.nodes import (
    BOOL,
    COMMON,
    CONSTANT,
    FLOAT32,
    FLOAT64,
    INT,
    INT32,
    UNIFORM,
    WHOLE,
    Assign,
    Body,
    Buffer,
    Call,
    Compact,
    Declare,
    Entry,
    Expr,
    For,
    FromIndex,
    Gather,
    Group,
    If,
    Index,
    Item,
    Length,
    Load,
    Local,
    Number,
    Origin,
    Program,
    Statement,
    Variable,
)
from mjtorch.compiler.ir.ops import OPS
from mjtorch.compiler.ir.walk import atoms, indices, walk

# Types of values, of single numbers, and the letter that names of functions and of memory end in.
TYPES = {FLOAT32: "vf", FLOAT64: "vd", INT: "vi", INT32: "vs", BOOL: "vb"}
SCALARS = {FLOAT32: "float", FLOAT64: "double", INT: "int64_t", INT32: "int32_t", BOOL: "uint8_t"}
LETTER = {FLOAT32: "F", FLOAT64: "D", INT: "I", INT32: "J", BOOL: "B"}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"}
PREFIX = {"neg": "-", "not": "~"}
# What divides integers, for powers of two.
SHIFTS = {"idiv_floor": "({0}>>{1})", "remainder": "({0}&{2})"}
VECTOR = pathlib.Path(__file__).with_name("vector.h")
INCLUDED = ("blocks.h", "functions.h")


def vector_header() -> str:
    """What printed programs compute with: `vector.h`, what it includes, and what the table of ops calls of C."""
    macros = {1: "BOTH", 2: "BOTH2"}
    called: dict[bool, list[str]] = {False: [], True: []}
    for name, op in OPS.items():
        if op.c is not None:
            called[op.vector].append(f"{macros[op.arity]}({name}, {op.c[0]}, {op.c[1]})")
    text = VECTOR.read_text()
    for name in INCLUDED:
        text = text.replace(f'#include "{name}"', VECTOR.with_name(name).read_text())
    return text.replace("/*FUNCTIONS*/", "\n".join(called[False])).replace("/*ONE BY ONE*/", "\n".join(called[True]))


class Printer(ABC):
    """State of one printing.

    tables: constant tables of addresses that have got a name
    functions: heads and bodies of those printed so far, and what namespace they are in
    loops: variables of the loops around the statement that is printed
    running: flags of the `While` loops around it
    names: of constant arrays
    space: the namespace of what is printed: "uniform" for what all worlds have in common, a target may have others
    takes: what functions take, before the variables of the loops that they are in
    """

    takes: tuple[str, ...] = ("ARGS",)

    def __init__(self, program: Program) -> None:
        assert program.layout is not None, "a program is printed once its memory is planned"
        self.program, self.layout = program, program.layout
        self.tables: dict[tuple[int, ...], str] = {}
        self.functions: list[tuple[str, str, str]] = []
        self.loops: list[str] = []
        self.running: list[Expr] = []
        self.names = {b: f"K{k}" for k, b in enumerate(program.constants)}
        self.space = ""

    # --- indices ---

    def index(self, i: Index) -> str:
        """An index."""
        parts = []
        for atom, k in i.terms:
            if isinstance(atom, Entry):
                name = self.tables.setdefault(atom.table, f"T{len(self.tables)}")
                text = f"{name}[{self.index(atom.index)}]"
            elif isinstance(atom, Item):
                text = f"{atom.list}[{self.index(atom.index)}]"
            else:
                text = f"{atom.list}_n" if isinstance(atom, Length) else atom.name
            parts.append(text if k == 1 else f"{k}*{text}")
        if i.base or not parts:
            parts.append(str(i.base))
        return "+".join(parts).replace("+-", "-")

    def head(self, s: For | Compact) -> str:
        """What comes before the body of a loop over elements."""
        k, start = s.variable, self.index(s.start)
        stop = self.index(s.stop) if isinstance(s, For) else str(s.size)
        first = start if isinstance(s, Compact) or s.since is None else self.highest(s, s.since, stop)
        limits = [self.highest(s, limit, str(end)) for limit, end in s.holes]
        if [str(end) for _, end in s.holes] == [stop]:
            return f"for(int {k}={first},{k}_n={limits[0]};{k}<{k}_n;++{k})"
        declared = "".join(f",{k}_{n}={limit}" for n, limit in enumerate(limits))
        skip = "".join(f"{k}={k}=={k}_{n}?{end}:{k}," for n, (_, end) in enumerate(s.holes))
        return f"for(int {k}={first}{declared};{skip}{k}<{stop};++{k})"

    def highest(self, s: For | Compact, limit: Expr, stop: str) -> str:
        """The highest of the limits of all worlds side by side, not below the start of a loop nor above `stop`."""
        return f"highest({self.expr(limit)},{self.index(s.start)},{stop})"

    # --- expressions ---

    def expr(self, e: Expr) -> str:
        """An expression."""
        if isinstance(e, Number):
            return f"S{LETTER[e.dtype]}({literal(e)})"
        if isinstance(e, FromIndex):
            return f"S{LETTER[e.dtype]}({self.index(e.index)})"
        if isinstance(e, Local):
            return self.local(e)
        if isinstance(e, Load):
            return self.load(e)
        if isinstance(e, Gather):
            return self.gather(e)
        args = [self.expr(a) for a in e.args]
        if e.op in INFIX:
            return f"({args[0]}{INFIX[e.op]}{args[1]})"
        if e.op in PREFIX:
            return f"({PREFIX[e.op]}{args[0]})"
        own = LETTER[e.args[0].dtype]
        if e.op in SHIFTS and (bits := power_of_two(e.args[1])) is not None:
            return SHIFTS[e.op].format(args[0], bits, 2**bits - 1)
        if e.op == "cast":
            return f"{own}2{LETTER[e.dtype]}({args[0]})"
        if e.op == "where":
            if self.is_true(e.args[0]):
                return args[1]
            match e.args[0]:
                case Call("eq", (FromIndex(one), FromIndex(two))):  # the same for all worlds
                    return f"({self.index(one)}=={self.index(two)}?{args[1]}:{args[2]})"
            return f"sel{LETTER[e.dtype]}({','.join(args)})"
        return f"{e.op}{own}({','.join(args)})"

    def local(self, e: Local) -> str:
        """A variable."""
        return e.name

    def is_true(self, flag: Expr) -> bool:
        """Whether a flag is known to hold, as that of a loop does for a world that computes by itself."""
        return False

    @abstractmethod
    def load(self, e: Load) -> str:
        """An element at the same place in every world."""

    @abstractmethod
    def gather(self, e: Gather) -> str:
        """An element at a place of each world's own."""

    # --- what all worlds have in common ---

    def is_elsewhere(self, b: Buffer) -> bool:
        """Whether a buffer is not in the memory of what is printed, but all worlds have it in common."""
        return b.kind in COMMON and not (b.kind == UNIFORM and self.space == "uniform")

    def common(self, b: Buffer) -> str:
        """An array that all worlds have in common."""
        if b.kind == UNIFORM:
            return f"(u.{LETTER[b.dtype]}+{self.layout.offsets[b]})"
        return self.names[b] if b.kind == CONSTANT else f"(({SCALARS[b.dtype]} const*)in[{self.row(b)}].data)"

    def row(self, b: Buffer) -> int:
        """Which of the arrays that are given a shared input is."""
        return b.position

    # --- statements ---

    @abstractmethod
    def statement(self, s: Statement) -> str:
        """A statement."""

    def plain(self, s: Statement) -> str:
        """A statement that is the same in all of these languages."""
        if isinstance(s, Declare):
            return f"{TYPES[s.local.dtype]} {s.local.name}={self.expr(s.value)};"
        if isinstance(s, Assign):
            return f"{self.expr(s.local)}={self.expr(s.value)};"
        if isinstance(s, If):
            return f"if({self.whether(s.flag)}){{{self.body(s.body)}}}else{{{self.body(s.otherwise)}}}\n"
        assert isinstance(s, Group), f"{type(self).__name__} cannot print {type(s).__name__}"
        return f"{{{self.body(s.body)}}}\n"

    def body(self, statements: Body) -> str:
        """Statements; a comment says where those of another operation begin."""
        text, last = "", None
        for s in statements:
            if s.origin is not None and s.origin != last:
                last = s.origin
                text += self.mark(s.origin)
            text += self.statement(s)
        return text

    def whether(self, flag: Expr) -> str:
        """Whether a flag is up in some of the worlds side by side."""
        return f"any({self.expr(flag)})"

    def mark(self, origin: Origin) -> str:
        """A comment that says which operation comes."""
        return f"\n// {origin.node} = {origin.op}\n"

    def loop_body(self, s: For) -> str:
        """The body of a loop, which its variable is known in."""
        self.loops.append(s.variable)
        text = self.body(s.body)
        self.loops.pop()
        return text

    def function(self, body: Body, text: str, space: str = "") -> tuple[str, str]:
        """Make a function of `text`, which is what `body` becomes: its name, and what else is passed to it."""
        used = {a.name for s in walk(body) for i in indices(s) for a in atoms(i) if isinstance(a, Variable)}
        variables = [v for v in self.loops if v in used]
        name = f"f{len(self.functions)}"
        given = ",".join([*self.takes, *(f"int {v}" for v in variables)])
        self.functions.append((f"void {name}({given})", f"{{{text}}}\n", space))
        return name, "".join(f",{v}" for v in variables)


def literal(n: Number) -> str:
    """A literal."""
    if n.dtype == BOOL:
        return "-1" if n.value else "0"
    if n.dtype == INT:
        return f"{n.value}ll"
    if n.dtype == INT32:
        return str(n.value)
    if math.isinf(n.value):
        return "-INFINITY" if n.value < 0 else "INFINITY"
    if math.isnan(n.value):
        return "NAN"
    return f"{float(n.value)!r}f" if n.dtype == FLOAT32 else repr(float(n.value))


def power_of_two(e: Expr) -> int | None:
    """Of which power of two `e` is the integer, if it is one."""
    if not isinstance(e, Number) or e.dtype not in WHOLE or e.value < 1 or e.value & (e.value - 1):
        return None
    return int(e.value).bit_length() - 1


def array(x: np.ndarray, dtype: str) -> str:
    """The entries of a constant array."""
    return ",".join(literal(Number(v.item(), dtype)) if dtype != BOOL else str(int(v)) for v in x)
