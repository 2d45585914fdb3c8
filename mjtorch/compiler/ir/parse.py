"""Reads the text form of programs: so passes are tested by what they make of some lines."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from mjtorch.compiler.ir.nodes import (
    BOOL,
    DTYPES,
    FLOAT32,
    FLOAT64,
    INT,
    INT32,
    KINDS,
    WHOLE,
    Assign,
    Barrier,
    Body,
    Buffer,
    Call,
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
    Reduction,
    Rendezvous,
    Scalarized,
    ScalarizedCopy,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.ops import result_dtype

BUFFER = re.compile(r"(\w+) (\w+): (\w+)\[(\d+)\](?: @(\d+))?(?: = (.*))?")
TOKEN = re.compile(
    r"\s*(-?inff?\b|nanf?\b|\d+\.(?!\.)\d*(?:e[-+]?\d+)?f?|\d+e[-+]?\d+f?|\d+|[A-Za-z_]\w*|\.\.|[-+*()\[\],;:=<])"
)
# What may be said of a loop.
MARKS = ("scope", "parallel", "unroll")
NUMPY = {FLOAT32: np.float32, FLOAT64: np.float64, INT: np.int64, INT32: np.int32, BOOL: np.bool_}


class ParseError(ValueError):
    """The text is not that of a program; the message names the line."""


def parse(text: str) -> Program:
    """The program whose whole text (`as_text(whole=True)`) this is, but for its layout and origins.

    Raises:
        ParseError: it is not the text of a program.
    """
    return _Parser(text).program()


class _Parser:
    def __init__(self, text: str) -> None:
        lines = (line.split("#")[0].rstrip() for line in text.splitlines())
        self.lines = [(len(x) - len(x.lstrip()), x.strip()) for x in lines if x.strip()]
        self.at = 0
        self.buffers: dict[str, Buffer] = {}
        self.locals: dict[str, Local] = {}
        self.tokens: list[str] = []

    # --- lines ---

    def program(self) -> Program:
        try:
            return self._program()
        except (IndexError, KeyError, ValueError) as e:
            line = self.lines[min(self.at, len(self.lines) - 1)][1] if self.lines else ""
            raise ParseError(f"in {line!r}: {e}") from e

    def _program(self) -> Program:
        indent = self.lines[0][0]
        while self.lines[self.at][1] not in ("uniform:", "body:"):
            self._buffer(self.lines[self.at][1])
            self.at += 1
        sections: dict[str, Body] = {"uniform:": (), "body:": ()}
        while self.at < len(self.lines):
            name = self.lines[self.at][1]
            self.at += 1
            sections[name] = self._body(indent)
        kinds = {k: tuple(b for b in self.buffers.values() if b.kind == k) for k in KINDS}
        inputs = tuple(b for b in self.buffers.values() if b.kind in ("input", "shared"))
        return Program(inputs, kinds["output"], kinds["constant"], sections["uniform:"], sections["body:"])

    def _buffer(self, line: str) -> None:
        line = line.split(" in ")[0]
        m = BUFFER.fullmatch(line)
        if m is None or m[1] not in KINDS or m[3] not in DTYPES:
            raise ParseError(f"{line!r} is no buffer")
        constant: np.ndarray | None = None
        if m[6] is not None:
            constant = np.array([self._constant(x.strip(), m[3]) for x in m[6].split(",")], dtype=NUMPY[m[3]])
        self.buffers[m[2]] = Buffer(int(m[4]), m[3], m[1], constant, int(m[5]) if m[5] else -1)

    def _constant(self, text: str, dtype: str) -> float | int | bool:
        if dtype == BOOL:
            return text == "true"
        return int(text) if dtype in WHOLE else float(text[:-1] if dtype == FLOAT32 else text)

    def _body(self, outer: int) -> Body:
        found: list[Statement] = []
        while self.at < len(self.lines) and self.lines[self.at][0] > outer:
            indent, line = self.lines[self.at]
            self.at += 1
            found.append(self._statement(indent, line))
        return tuple(found)

    def _section(self, name: str, outer: int) -> Body:
        """The body behind a line of its own."""
        indent, line = self.lines[self.at]
        if line != name:
            raise ParseError(f"expected {name!r}, got {line!r}")
        self.at += 1
        return self._body(indent)

    def _statement(self, indent: int, line: str) -> Statement:
        self.tokens = _tokens(line)
        word = self.tokens[0]
        if line == "barrier":
            return Barrier()
        if line == "rendezvous":
            return Rendezvous()
        if word == "var":
            self.tokens = self.tokens[1:]
            name = self._next()
            self._expect("=")
            value = self._expr()
            self.locals[name] = Local(name, value.dtype)
            return Declare(self.locals[name], value)
        if word in self.locals and self.tokens[1] == "=":
            self.tokens = self.tokens[2:]
            return Assign(self.locals[word], self._expr())
        if word in self.buffers:
            return self._store()
        if not line.endswith(":"):
            raise ParseError("not a statement")
        return self._block(indent, line)

    def _store(self) -> Statement:
        buffer = self.buffers[self._next()]
        self._expect("[")
        index, offset = self._index(), None
        if self.tokens[0] == ";":
            self._next()
            offset = self._expr()
        self._expect("]")
        self._expect("=")
        value = self._expr()
        return Store(buffer, index, value) if offset is None else Scatter(buffer, index, offset, value)

    def _block(self, indent: int, line: str) -> Statement:
        """A statement with a body."""
        word = self._next()
        if word == "for":
            variable, start, stop = self._range()
            marks: dict[str, Any] = {self._next(): True for _ in MARKS if self.tokens[0] in MARKS}
            since = self._expr() if self.tokens[0] == "from" and self._next() else None
            holes, guard = self._holes(), self._guard()
            return For(variable, start, stop, self._body(indent), guard=guard, holes=holes, since=since, **marks)
        if word == "while":
            flag = self._expr()
            return While(self._section("head:", indent), flag, self._section("do:", indent))
        if word == "if":
            flag = self._expr()
            body = self._body(indent)
            return If(flag, body, self._section("else:", indent))
        if word == "compact":
            return self._compact(indent)
        if word == "pack":
            return self._pack(indent)
        if word == "parallel":
            return self._parallel(indent)
        if word == "function":
            return Function(registers=self._list("registers"), body=self._body(indent))
        if word == "scalarized" and self.tokens[0] == "copy":
            return ScalarizedCopy(self._body(indent))
        if word == "scalarized":
            return Scalarized(private=self._list("private"), kept=self._list("kept"), body=self._body(indent))
        if word == "group":
            return Group(self._body(indent))
        if line == "first lane:":
            return FirstLane(self._body(indent))
        if word == "idiom":
            return self._idiom(indent)
        raise ParseError("not a statement")

    def _idiom(self, indent: int) -> Idiom:
        name = self._next()
        arrays: list[tuple[Buffer, Index]] = []
        while (word := self._next()) != "with":
            self._expect("[")
            arrays.append((self.buffers[word], self._index()))
            self._expect("]")
        numbers: list[int] = []
        while self.tokens[0] != ":":
            sign = -1 if self.tokens[0] == "-" and self._next() else 1
            numbers.append(sign * int(self._next()))
        return Idiom(name, tuple(arrays), tuple(numbers), self._body(indent))

    def _compact(self, indent: int) -> Compact:
        name = self._next()
        self._expect("of")
        variable, start, size = self._range()
        holes = self._holes()
        self._expect("where")
        flag, self.tokens = self.tokens, []
        body = self._body(indent)  # the flag may use what this declares
        self.tokens = flag
        return Compact(name, variable, size.base, body, self._expr(), start, holes)

    def _pack(self, indent: int) -> Pack:
        variable = self._next()
        self._expect("<")
        size = int(self._next())
        self._expect("where")
        flag = self._expr()
        load, body, store = (self._section(name, indent) for name in ("load:", "do:", "store:"))
        return Pack(variable, size, flag, load, body, store)

    def _parallel(self, indent: int) -> ParallelFor:
        self._expect("for")
        loops = [self._range()]
        while self.tokens[0] == ",":
            self._next()
            loops.append(self._range())
        reductions: list[Reduction] = []
        if self.tokens[0] == "reduce":
            self._next()
            while self.tokens[0] not in (":", "where"):
                op = self._next()
                reductions.append(Reduction(self.locals[self._next()], op))
        return ParallelFor(tuple(loops), tuple(reductions), guard=self._guard(), body=self._body(indent))

    def _range(self) -> tuple[str, Index, Index]:
        variable = self._next()
        self._expect("in")
        start = self._index()
        self._expect("..")
        return variable, start, self._index()

    def _holes(self) -> tuple[tuple[Expr, int], ...]:
        found: list[tuple[Expr, int]] = []
        while self.tokens[0] == "without":
            self._next()
            limit = self._expr()
            self._expect("..")
            found.append((limit, int(self._next())))
        return tuple(found)

    def _guard(self) -> Expr | None:
        if self.tokens[0] != "where":
            return None
        self._next()
        return self._expr()

    def _list(self, what: str) -> tuple[Buffer, ...]:
        if self.tokens[0] != what:
            return ()
        self._next()
        found = []
        while self.tokens[0] in self.buffers:
            found.append(self.buffers[self._next()])
        return tuple(found)

    # --- tokens ---

    def _next(self) -> str:
        return self.tokens.pop(0)

    def _expect(self, token: str) -> None:
        got = self._next()
        if got != token:
            raise ParseError(f"expected {token!r}, got {got!r}")

    def _index(self) -> Index:
        total, sign = Index(), 1
        if self.tokens[0] == "-":
            self._next()
            sign = -1
        while True:
            total = total + self._term() * sign
            if not self.tokens or self.tokens[0] not in ("+", "-"):
                return total
            sign = 1 if self._next() == "+" else -1

    def _term(self) -> Index:
        factor = 1
        if self.tokens[0].isdigit():
            factor = int(self._next())
            if not self.tokens or self.tokens[0] != "*":
                return Index(factor)
            self._next()
        return Index(0, ((self._atom(), 1),)) * factor

    def _atom(self) -> Variable | Entry | Item | Length:
        word = self._next()
        if word == "[":
            table: list[int] = []
            while True:
                sign = -1 if self.tokens[0] == "-" else 1
                if sign < 0:
                    self._next()
                table.append(sign * int(self._next()))
                if self._next() == "]":
                    break
            self._expect("[")
            index = self._index()
            self._expect("]")
            return Entry(tuple(table), index)
        if word == "len":
            self._expect("(")
            name = self._next()
            self._expect(")")
            return Length(name)
        if self.tokens and self.tokens[0] == "[":
            self._next()
            index = self._index()
            self._expect("]")
            return Item(word, index)
        return Variable(word)

    def _expr(self) -> Expr:
        word = self._next()
        sign = ""
        if word == "-":
            sign, word = "-", self._next()
        if word in ("true", "false"):
            return Number(word == "true", BOOL)
        if word[0].isdigit() or word.lstrip("-").startswith(("inf", "nan")):
            return _number(sign + word)
        if word == "index":
            self._expect("(")
            index = self._index()
            self._expect(")")
            return FromIndex(index)
        if word in self.locals and self.tokens[:1] != ["("]:
            return self.locals[word]
        if word in self.buffers:
            self._expect("[")
            index = self._index()
            if self._next() == "]":
                return Load(self.buffers[word], index)
            offset = self._expr()
            self._expect("]")
            return Gather(self.buffers[word], index, offset)
        args = self._arguments()
        if word == INT32 and isinstance(args[0], (Number, FromIndex)) and args[0].dtype == INT:
            return dataclasses.replace(args[0], dtype=INT32)
        if word in DTYPES:
            return Call("cast", tuple(args), word)
        return Call(word, tuple(args), result_dtype(word, [a.dtype for a in args]))

    def _arguments(self) -> Sequence[Expr]:
        self._expect("(")
        args = [self._expr()]
        while self.tokens[0] == ",":
            self._next()
            args.append(self._expr())
        self._expect(")")
        return args


def _number(text: str) -> Number:
    if text.lstrip("-").isdigit():
        return Number(int(text), INT)
    if text.endswith("f") and text not in ("inf", "-inf"):
        return Number(float(text[:-1]), FLOAT32)
    return Number(float(text), FLOAT64)


def _tokens(line: str) -> list[str]:
    found, at = [], 0
    while at < len(line):
        m = TOKEN.match(line, at)
        if m is None:
            raise ParseError(f"cannot read {line[at:]!r}")
        found.append(m[1])
        at = m.end()
    return found
