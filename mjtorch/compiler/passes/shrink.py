"""Array shrinking: where each iteration of a loop has a part of an array to itself, one part serves all of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence

from mjtorch.compiler.analysis.dependence import Access, accesses, window
from mjtorch.compiler.ir.nodes import (
    SCRATCH,
    Body,
    Buffer,
    Entry,
    Expr,
    For,
    Group,
    If,
    Index,
    Load,
    Program,
    Statement,
    Store,
    Variable,
)
from mjtorch.compiler.ir.walk import Rewriter, bodies, expressions, map_bodies, with_body

# Parts with more elements are not looked into.
LARGEST = 1024

Ranges = dict[str, range]


def shrink_arrays(p: Program) -> Program:
    """Keep of a scratch array what one iteration needs, if each writes before it reads what is its own alone."""
    uses = Counter(a.buffer for a in accesses(p.body, {}))

    def statement(s: Statement) -> Statement:
        if isinstance(s, For):
            for part in _parts(s, uses):
                uses[part.small] = uses[part.buffer]
                s = dataclasses.replace(s, body=_Smaller(part).body(s.body))
        return map_bodies(s, lambda body: [statement(x) for x in body])

    return with_body(p, [statement(s) for s in p.body])


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """What an iteration of the loop over `variable` has of a buffer: `first` and what follows, `small` instead."""

    buffer: Buffer
    small: Buffer
    variable: str
    outer: frozenset
    first: int

    def inside(self, i: Index) -> Index:
        """An index of the whole array as one of the part."""
        own = tuple(t for t in i.terms if t[0] != Variable(self.variable) and t not in self.outer)
        return Index(i.base - self.first, own)


class _Smaller(Rewriter):
    """The part in place of the whole array."""

    def __init__(self, part: _Part) -> None:
        self.part = part

    def expr(self, e: Expr) -> Expr:
        """An expression."""
        e = super().expr(e)
        if isinstance(e, Load) and e.buffer is self.part.buffer:
            return dataclasses.replace(e, buffer=self.part.small, index=self.part.inside(e.index))
        return e

    def statement(self, s: Statement) -> Body:
        """A statement."""
        found = super().statement(s)
        return tuple(
            dataclasses.replace(x, buffer=self.part.small, index=self.part.inside(x.index))
            if isinstance(x, Store) and x.buffer is self.part.buffer
            else x
            for x in found
        )


def _parts(s: For, uses: Counter[Buffer]) -> list[_Part]:
    """The scratch arrays that can be shrunk in a loop."""
    mine: dict[Buffer, list[Access]] = {}
    for a in accesses(s.body, {}):
        if a.buffer.kind == SCRATCH:
            mine.setdefault(a.buffer, []).append(a)
    found = []
    for b, used in mine.items():
        if len(used) != uses[b] or any(a.moving for a in used):
            continue
        windows = {window(a.index, s.variable, a.bounds) for a in used}
        (own,) = windows if len(windows) == 1 else (None,)
        if own is None or own[0] != "stride" or not 0 < own[1] <= LARGEST or own[1] >= b.size:
            continue
        _, size, outer, number = own
        part = _Part(b, Buffer(size, b.dtype), s.variable, outer, size * number)
        if _Writes(part).come_first(s.body, {}, set(), []):
            found.append(part)
    return found


class _Writes:
    """Whether what an iteration reads of its part it has written before."""

    def __init__(self, part: _Part) -> None:
        self.part = part

    def come_first(self, statements: Sequence[Statement], loops: Ranges, written: set[int], same: list[Index]) -> bool:
        """Whether that is so in these; what they write for certain is added to `written`.

        loops: those around, within the iteration; same: indices that were written in the same iteration of all of these
        """
        same = list(same)
        for s in statements:
            for e in expressions(s):
                if isinstance(e, Load) and e.buffer is self.part.buffer and e.index not in same:
                    places = self.places(e.index, loops)
                    if places is None or not places <= written:
                        return False
            if isinstance(s, Store) and s.buffer is self.part.buffer:
                same.append(s.index)
                # Those of other iterations are there when the loops around have ended.
                if not loops:
                    written |= self.places(s.index, loops) or set()
            elif isinstance(s, Group):
                if not self.come_first(s.body, loops, written, same):
                    return False
                same += [x.index for x in s.body if isinstance(x, Store) and x.buffer is self.part.buffer]
            elif isinstance(s, For) and s.is_counted:
                inner = {**loops, s.variable: range(s.start.base, s.stop.base)}
                if not self.come_first(s.body, inner, set(written), same):
                    return False
                if not loops:
                    written |= self.certain(s.body, inner)
            elif isinstance(s, If):
                # One of both is done, so what both write is written.
                both = [set(written), set(written)]
                if not all(self.come_first(x, loops, w, same) for x, w in zip(bodies(s), both, strict=True)):
                    return False
                written |= both[0] & both[1]
            else:
                for body in bodies(s):
                    if not self.come_first(body, {"": range(0), **loops}, set(written), same):
                        return False
        return True

    def certain(self, statements: Sequence[Statement], loops: Ranges) -> set[int]:
        """What these write, whatever happens."""
        found: set[int] = set()
        for s in statements:
            if isinstance(s, Store) and s.buffer is self.part.buffer:
                found |= self.places(s.index, loops) or set()
            elif isinstance(s, Group):
                found |= self.certain(s.body, loops)
            elif isinstance(s, For) and s.is_counted:
                found |= self.certain(s.body, {**loops, s.variable: range(s.start.base, s.stop.base)})
        return found

    def places(self, i: Index, loops: Ranges) -> set[int] | None:
        """Where in the part an index may be, in all iterations of the loops around; None: not known."""
        i = self.part.inside(i)
        names = sorted({name for atom, _ in i.terms for name in _variables(atom)})
        if any(name not in loops for name in names):
            return None
        ranges = [loops[name] for name in names]
        total = 1
        for r in ranges:
            total *= len(r)
        if total > LARGEST:
            return None
        found = {_value(i, dict(zip(names, values, strict=True))) for values in itertools.product(*ranges)}
        return None if None in found else {at for at in found if at is not None}


def _variables(atom: object) -> set[str]:
    if isinstance(atom, Variable):
        return {atom.name}
    if isinstance(atom, Entry):
        return {name for a, _ in atom.index.terms for name in _variables(a)}
    return {"unknown"}


def _value(i: Index, values: dict[str, int]) -> int | None:
    """What an index is."""
    total = i.base
    for atom, k in i.terms:
        if isinstance(atom, Variable):
            total += k * values[atom.name]
        elif isinstance(atom, Entry):
            at = _value(atom.index, values)
            if at is None:
                return None
            total += k * atom.table[at]
        else:
            return None
    return total
