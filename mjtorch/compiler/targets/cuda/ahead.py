"""Reading ahead: what some statements, or iterations of a loop, read is read before any of them computes.

A warp waits for memory where it first uses what was read. Accesses that are all begun before that take as long as one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from mjtorch.compiler.ir.nodes import (
    Assign,
    Body,
    Buffer,
    Declare,
    Expr,
    Gather,
    Group,
    Load,
    Local,
    Origin,
    Scatter,
    Statement,
    Store,
)
from mjtorch.compiler.ir.walk import Rewriter, expressions, walk, walk_expr

# So many numbers are read ahead at most: each takes a register.
READS = 16
Plain = (Store, Scatter, Declare, Assign)


@dataclasses.dataclass(frozen=True)
class Read:
    """A variable for what is read, and whose operation reads it."""

    local: Local
    value: Load | Gather
    origin: Origin | None


@dataclasses.dataclass(frozen=True)
class Part:
    """Statements of which all that `reads` lists is read first."""

    reads: tuple[Read, ...]
    body: Body


def parts(statements: Sequence[Statement], names: Iterator[str], held: frozenset[Buffer]) -> Iterator[Part]:
    """The statements in pieces that read at most `READS` numbers ahead each; a statement with a body is one alone.

    names: new ones for variables; held: what is in registers, and need not be read
    """
    piece: list[Statement] = []
    found: dict[Load | Gather, Origin | None] = {}
    for s in statements:
        more = reads([*piece, s], held) if isinstance(s, Plain) else {}
        if not isinstance(s, Plain) or (piece and len(more) > READS):
            if piece:
                yield _part(piece, found, names)
            piece = []
            more = reads([s], held) if isinstance(s, Plain) else {}
        if isinstance(s, Plain):
            piece.append(s)
            found = more
        else:
            yield Part((), (s,))
    if piece:
        yield _part(piece, found, names)


def _part(piece: Sequence[Statement], found: dict[Load | Gather, Origin | None], names: Iterator[str]) -> Part:
    if len(found) < 2:  # one that is used at once
        return Part((), tuple(piece))
    rewriter = _Reads(found, names)
    body = tuple(x for s in piece for x in rewriter.statement(s))
    return Part(tuple(rewriter.made), body)


def together(
    copies: Sequence[Sequence[Statement]], names: Iterator[str], found: dict[Load | Gather, Origin | None]
) -> Part:
    """A group for each of `copies`, none of which reads what another writes, that read `found` first, each once."""
    rewriter = _Reads(found, names)
    body: list[Statement] = []
    for statements in copies:
        rewriter.written.clear()
        made = tuple(x for s in statements for x in rewriter.statement(s))
        body.append(Group(made, origin=statements[0].origin))
    return Part(tuple(rewriter.made), tuple(body))


def reads(statements: Sequence[Statement], held: frozenset[Buffer]) -> dict[Load | Gather, Origin | None]:
    """What `statements`, all plain, read that none of them before has written, nor the place where it is."""
    found: dict[Load | Gather, Origin | None] = {}
    written: set[Buffer] = set()
    changed: set[Expr] = set()
    for s in statements:
        for e in expressions(s):
            if not isinstance(e, (Load, Gather)) or e.buffer in written or e.buffer in held:
                continue
            if isinstance(e, Gather) and any(x in changed or _is_from(x, written) for x in walk_expr(e.offset)):
                continue
            found.setdefault(e, s.origin)
        if isinstance(s, (Store, Scatter)):
            written.add(s.buffer)
        elif isinstance(s, (Declare, Assign)):
            changed.add(s.local)
    return found


def _is_from(e: Expr, written: set[Buffer]) -> bool:
    return isinstance(e, (Load, Gather)) and e.buffer in written


def carries(body: Body) -> bool:
    """Whether an iteration may read what one before it has written."""
    written = {s.buffer for s in walk(body) if isinstance(s, (Store, Scatter))}
    return any(e.buffer in written for s in walk(body) for e in expressions(s) if isinstance(e, (Load, Gather)))


class _Reads(Rewriter):
    """Variables in place of what is read."""

    def __init__(self, found: dict[Load | Gather, Origin | None], names: Iterator[str]) -> None:
        self.found, self.names = found, names
        self.locals: dict[Load | Gather, Local] = {}
        self.made: list[Read] = []
        self.written: set[Buffer] = set()

    def expr(self, e: Expr) -> Expr:
        """An expression."""
        if not isinstance(e, (Load, Gather)) or e not in self.found or e.buffer in self.written:
            return super().expr(e)
        if e not in self.locals:
            value = super().expr(e)
            assert isinstance(value, (Load, Gather))
            self.locals[e] = Local(next(self.names), e.dtype)
            self.made.append(Read(self.locals[e], value, self.found[e]))
        return self.locals[e]

    def statement(self, s: Statement) -> Sequence[Statement]:
        """A statement; what it writes is read anew from then on."""
        new = super().statement(s)
        if isinstance(s, (Store, Scatter)):
            self.written.add(s.buffer)
        return new
