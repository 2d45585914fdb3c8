"""One way to visit all nodes of a program, and one to rewrite them: what knows what nodes are made of."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from mjtorch.compiler.ir.nodes import (
    OUTPUT,
    SCRATCH,
    Assign,
    Atom,
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
    Load,
    Number,
    Pack,
    ParallelFor,
    Program,
    Scalarized,
    ScalarizedCopy,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)

Nested = (For, Compact, Group, Function, Scalarized, ScalarizedCopy, ParallelFor, FirstLane, Idiom)
# What holds statements, and where.
BODIES = {
    While: lambda s: (s.head, s.body),
    If: lambda s: (s.body, s.otherwise),
    Pack: lambda s: (s.load, s.body, s.store),
    **dict.fromkeys(Nested, lambda s: (s.body,)),
}

Found = TypeVar("Found")


def remembered(f: Callable[[Any], Found]) -> Callable[[Any], Found]:
    """A function of a node that is called again and again: what it finds is kept with the node, which never changes."""
    name = f"{f.__module__}.{f.__qualname__}"

    @functools.wraps(f)
    def again(node: Any) -> Found:
        known = node.__dict__
        if name not in known:
            known[name] = f(node)
        return known[name]

    return again


# --- visiting ---------------------------------------------------------------------------------------------------------


def bodies(s: Statement) -> tuple[Body, ...]:
    """The statements within `s`."""
    within = BODIES.get(type(s))
    return () if within is None else within(s)


def is_program(s: Statement) -> bool:
    """Whether what is within `s` is a program of its own, whose buffers live for one iteration."""
    return isinstance(s, (While, Pack)) or (isinstance(s, For) and s.scope)


def walk(statements: Sequence[Statement]) -> Iterator[Statement]:
    """The statements and all within them, in the order of the text."""
    return iter(_with_inner_statements(statements))


def _with_inner_statements(statements: Sequence[Statement]) -> list[Statement]:
    found: list[Statement] = []
    for s in statements:
        found.append(s)
        if type(s) in BODIES:
            found += _inner_statements(s)
    return found


@remembered
def _inner_statements(s: Statement) -> list[Statement]:
    return [x for body in bodies(s) for x in _with_inner_statements(body)]


def before(statements: Sequence[Statement], wanted: Statement) -> Sequence[Statement]:
    """What is before a statement among those that it is one of, within `statements`."""
    for k, s in enumerate(statements):
        if s is wanted:
            return statements[:k]
        for body in bodies(s):
            found = before(body, wanted)
            if found or any(x is wanted for x in body):
                return found
    return ()


def own_expressions(s: Statement) -> tuple[Expr, ...]:
    """The expressions that `s` itself holds, whole, not those of its body."""
    if isinstance(s, Scatter):
        return s.value, s.offset
    if isinstance(s, (Store, Declare, Assign)):
        return (s.value,)
    if isinstance(s, Compact):
        return (s.flag, *(limit for limit, _ in s.holes))
    if isinstance(s, (While, If, Pack)):
        return (s.flag,)
    if isinstance(s, For):
        return tuple([e for e in (s.guard, s.since, *(limit for limit, _ in s.holes)) if e is not None])
    return (s.guard,) if isinstance(s, ParallelFor) and s.guard is not None else ()


def walk_expr(e: Expr) -> Iterator[Expr]:
    """`e` and all expressions in it."""
    return iter(_with_inner(e, []))


def _with_inner(e: Expr, found: list[Expr]) -> list[Expr]:
    """`found`, and `e` and all expressions in it: generators within generators take thrice the time."""
    found.append(e)
    if isinstance(e, Call):
        for a in e.args:
            _with_inner(a, found)
    elif isinstance(e, Gather):
        _with_inner(e.offset, found)
    return found


@remembered
def expressions(s: Statement) -> tuple[Expr, ...]:
    """The expressions that `s` itself holds and all in them, not those of its body."""
    found: list[Expr] = []
    for e in own_expressions(s):
        _with_inner(e, found)
    return tuple(found)


@remembered
def loads(s: Statement) -> tuple[Load | Gather, ...]:
    """What `s` itself reads from memory, in the order of the text, not what its body does."""
    return tuple([e for e in expressions(s) if isinstance(e, (Load, Gather))])


def indices(s: Statement) -> Iterator[Index]:
    """The indices that `s` itself holds, not those of its body."""
    if isinstance(s, (Store, Scatter)):
        yield s.index
    elif isinstance(s, Compact):
        yield s.start
    elif isinstance(s, For):
        yield from (s.start, s.stop)
    elif isinstance(s, ParallelFor):
        for _, start, stop in s.loops:
            yield from (start, stop)
    yield from (e.index for e in expressions(s) if isinstance(e, (Load, Gather, FromIndex)))


def atoms(i: Index) -> Iterator[Atom]:
    """The atoms of an index and all in them."""
    for atom, _ in i.terms:
        yield atom
        if isinstance(atom, (Entry, Item)):
            yield from atoms(atom.index)


def mentions(i: Index, atom: Atom) -> bool:
    """Whether an atom, such as a loop variable, occurs in an index."""
    return any(a == atom for a in atoms(i))


def is_block(s: For) -> bool:
    """Whether a loop does nothing but copy a row of a scratch array to a result, or fill a row of it with a number."""
    if s.guard is not None or len(s.body) != 1 or not isinstance(x := s.body[0], Store) or x.buffer.kind != OUTPUT:
        return False
    here, v = Variable(s.variable), x.value
    if isinstance(v, Load) and v.buffer.kind == SCRATCH:
        return _goes_along(x.index, here) and _goes_along(v.index, here)
    return isinstance(v, Number) and _goes_along(x.index, here)


def _goes_along(i: Index, here: Variable) -> bool:
    """Whether an index goes up by one where a variable does."""
    return (here, 1) in i.terms and sum(a == here for a in atoms(i)) == 1


def touched(s: Statement) -> dict[Buffer, None]:
    """The buffers that `s` itself reads or writes, not those of its body: a set, in the order of the text.

    The order decides where buffers lie, and a program must be printed alike by all processes.
    """
    found = dict.fromkeys([e.buffer for e in loads(s)])
    if isinstance(s, (Store, Scatter)):
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


# --- rewriting --------------------------------------------------------------------------------------------------------


def with_bodies(s: Statement, new: Sequence[Sequence[Statement]]) -> Statement:
    """`s` with other statements within; itself where they are the same."""
    made = tuple(map(tuple, new))
    if made == bodies(s):  # statements are equal if they are the same
        return s
    if isinstance(s, While):
        return dataclasses.replace(s, head=made[0], body=made[1])
    if isinstance(s, If):
        return dataclasses.replace(s, body=made[0], otherwise=made[1])
    if isinstance(s, Pack):
        return dataclasses.replace(s, load=made[0], body=made[1], store=made[2])
    assert isinstance(s, Nested)
    return dataclasses.replace(s, body=made[0])


def map_bodies(s: Statement, f: Callable[[Body], Sequence[Statement]]) -> Statement:
    """`s` with `f` of what is within."""
    within = bodies(s)
    return with_bodies(s, [f(body) for body in within]) if within else s


class Rewriter:
    """Makes new nodes of old ones, from the leaves up; a pass overrides the methods for what it changes.

    What stays the same is the same object, so that a rewriting that changes nothing costs no memory.
    """

    def index(self, i: Index) -> Index:
        """An index."""
        return i

    def expr(self, e: Expr) -> Expr:
        """An expression; what is in it first."""
        if isinstance(e, Call):
            args = tuple([self.expr(a) for a in e.args])
            return e if all(a is b for a, b in zip(args, e.args, strict=True)) else Call(e.op, args, e.dtype, e.origin)
        if isinstance(e, Gather):
            offset, index = self.expr(e.offset), self.index(e.index)
            return e if offset is e.offset and index is e.index else Gather(e.buffer, index, offset)
        if isinstance(e, Load):
            index = self.index(e.index)
            return e if index is e.index else Load(e.buffer, index)
        if isinstance(e, FromIndex):
            index = self.index(e.index)
            return e if index is e.index else FromIndex(index, e.dtype)
        return e

    def body(self, statements: Body) -> Body:
        """Statements."""
        return tuple([x for s in statements for x in self.statement(s)])

    def statement(self, s: Statement) -> Sequence[Statement]:
        """What a statement becomes; what is in it first."""
        s = map_bodies(s, self.body)
        if isinstance(s, Scatter):
            return (self._replaced(s, index=self.index(s.index), offset=self.expr(s.offset), value=self.expr(s.value)),)
        if isinstance(s, Store):
            return (self._replaced(s, index=self.index(s.index), value=self.expr(s.value)),)
        if isinstance(s, (Declare, Assign)):
            return (self._replaced(s, value=self.expr(s.value)),)
        if isinstance(s, Compact):
            return (self._replaced(s, start=self.index(s.start), flag=self.expr(s.flag), holes=self.holes(s.holes)),)
        if isinstance(s, (While, If, Pack)):
            return (self._replaced(s, flag=self.expr(s.flag)),)
        if isinstance(s, For):
            guard, since = (None if e is None else self.expr(e) for e in (s.guard, s.since))
            start, stop = self.index(s.start), self.index(s.stop)
            return (self._replaced(s, start=start, stop=stop, guard=guard, since=since, holes=self.holes(s.holes)),)
        if isinstance(s, ParallelFor):
            guard = None if s.guard is None else self.expr(s.guard)
            loops = tuple((v, self.index(a), self.index(b)) for v, a, b in s.loops)
            return (self._replaced(s, loops=s.loops if loops == s.loops else loops, guard=guard),)
        return (s,)

    def holes(self, old: tuple[tuple[Expr, int], ...]) -> tuple[tuple[Expr, int], ...]:
        """What a loop leaves out."""
        new = tuple([(self.expr(limit), stop) for limit, stop in old])
        return old if all(a is b for (a, _), (b, _) in zip(new, old, strict=True)) else new

    def _replaced(self, s: Statement, **new: object) -> Statement:
        if all(getattr(s, name) is value for name, value in new.items()):
            return s
        return dataclasses.replace(s, **new)  # type: ignore[arg-type]


class ReplaceAtoms(Rewriter):
    """Other atoms of indices, also within atoms."""

    def __init__(self, new: dict[Atom, Atom]) -> None:
        self.new = new

    def index(self, i: Index) -> Index:
        """An index."""
        if not any(a in self.new for a in atoms(i)):
            return i
        total = Index(i.base)
        for a, k in i.terms:
            total = total + Index(0, ((self._atom(a), k),))
        return total

    def _atom(self, a: Atom) -> Atom:
        if isinstance(a, (Entry, Item)):
            a = dataclasses.replace(a, index=self.index(a.index))
        return self.new.get(a, a)


class ReplaceBuffers(Rewriter):
    """Other buffers of the same sizes and dtypes."""

    def __init__(self, new: dict[Buffer, Buffer]) -> None:
        self.new = new

    def expr(self, e: Expr) -> Expr:
        """An expression."""
        e = super().expr(e)
        if isinstance(e, (Load, Gather)) and e.buffer in self.new:
            return dataclasses.replace(e, buffer=self.new[e.buffer])
        return e

    def statement(self, s: Statement) -> Sequence[Statement]:
        """A statement."""
        (s,) = super().statement(s)
        if isinstance(s, (Store, Scatter)) and s.buffer in self.new:
            s = dataclasses.replace(s, buffer=self.new[s.buffer])
        return (s,)


def with_body(p: Program, body: Sequence[Statement]) -> Program:
    """`p` with another body."""
    return dataclasses.replace(p, body=tuple(body))
