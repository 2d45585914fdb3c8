"""Merge loops of a program that run over the same range, and keep in variables what only one turn needs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from mjtorch.compiler.ir.program import (
    Assign,
    Buffer,
    Call,
    Collect,
    Declare,
    Entry,
    Expr,
    For,
    FromIndex,
    Group,
    If,
    Index,
    Load,
    Local,
    Note,
    Program,
    Statement,
    Store,
    Variable,
    While,
    blocks,
    expressions,
    mentions,
    with_blocks,
)

# How many statements a loop may be moved up past to meet one that it can merge with.
REACH = 12
# Merged bodies stop growing at this many statements: larger ones run out of registers.
MAX_BODY = 48

Range = tuple[int, int]


Allowed = Callable[[For, For], bool]


def fuse(p: Program, allowed: Allowed | None = None) -> Program:
    """`p` with fewer loops and fewer arrays, computing the same numbers.

    allowed: which loops may be merged, if not all
    """
    may_merge = allowed if allowed is not None else lambda _, __: True
    return contract(dataclasses.replace(p, body=_block(_without_unread(p.body), may_merge)))


# --- leaving out what nobody reads ------------------------------------------------------------------------------------


def _without_unread(body: list[Statement]) -> list[Statement]:
    """The statements without stores to scratch arrays that are never read."""
    while True:
        read: set[Buffer] = set()
        written: set[Buffer] = set()
        for b, _, _, writes, _ in accesses(body, {}):
            (written if writes else read).add(b)
        unread = {b for b in written - read if b.kind == "scratch"}
        if not unread:
            return body
        body = _without(body, unread)


def _without(statements: Sequence[Statement], unread: set[Buffer]) -> list[Statement]:
    kept: list[Statement] = []
    for s in statements:
        if isinstance(s, Store) and s.buffer in unread:
            continue
        inner = [_without(block, unread) for block in blocks(s)]
        if isinstance(s, (For, Group, If)) and not any(inner):
            continue
        kept.append(with_blocks(s, inner))
    return kept


# --- merging loops ----------------------------------------------------------------------------------------------------


def _block(statements: Sequence[Statement], allowed: Allowed) -> list[Statement]:
    out: list[Statement] = []
    for s in statements:
        if isinstance(s, While):
            s = While(_block(s.head, allowed), s.flag, _block(s.body, allowed))
        elif isinstance(s, For) and s.scope:
            s = dataclasses.replace(s, body=_block(s.body, allowed))
        if not _merge_upwards(out, s, allowed):
            out.append(s)
    return out


def _merge_upwards(out: list[Statement], s: Statement, allowed: Allowed) -> bool:
    """Merge `s` into a statement near the end of `out` if it can be moved there."""
    parts = _parts(s)
    if parts is None:
        return False
    passed = 0
    for k in range(len(out) - 1, -1, -1):
        other = out[k]
        if isinstance(other, Note):
            continue
        merged = _merged(other, s, allowed)
        if merged is not None:
            out[k] = merged
            return True
        passed += 1
        if passed >= REACH or isinstance(other, While) or not _commute(other, s):
            return False
    return False


@dataclasses.dataclass
class _Parts:
    """A loop with what declares its variables before it, and what stores them after it."""

    before: list[Statement]
    loop: For
    after: list[Statement]


def _parts(s: Statement) -> _Parts | None:
    """`s` as a loop over a constant range, if it is one."""
    body = s.body if isinstance(s, Group) else [s]
    loops = [x for x in body if not isinstance(x, (Declare, Store))]
    if len(loops) != 1 or not isinstance(loops[0], For):
        return None
    loop = loops[0]
    if loop.scope or loop.start.terms or loop.stop.terms:
        return None
    at = next(i for i, x in enumerate(body) if x is loop)
    return _Parts(list(body[:at]), loop, list(body[at + 1 :]))


def _merged(a: Statement, b: Statement, allowed: Allowed) -> Statement | None:
    """`a; b` as one loop, if that is allowed."""
    p, q = _parts(a), _parts(b)
    if p is None or q is None or (p.loop.start, p.loop.stop) != (q.loop.start, q.loop.stop):
        return None
    if _size(p.loop.body) + _size(q.loop.body) > MAX_BODY or not allowed(p.loop, q.loop):
        return None
    if not (_independent(p.loop.body + p.after, q.before) and _independent(p.after, q.loop.body)):
        return None
    body = _renamed(q.loop.body, q.loop.variable, p.loop.variable)
    if not _turns_apart(p.loop, body):
        return None
    together = p.loop.parallel and q.loop.parallel
    loop = dataclasses.replace(p.loop, body=_block(p.loop.body + body, allowed), parallel=together)
    before, after = p.before + q.before, p.after + q.after
    return Group([*before, loop, *after]) if before or after else loop


def _size(statements: Sequence[Statement]) -> int:
    return sum(1 + sum(map(_size, blocks(s))) for s in statements)


def accesses(
    statements: Sequence[Statement], bounds: dict[str, Range]
) -> Iterator[tuple[Buffer, Index, bool, bool, dict[str, Range]]]:
    """Buffer, index, whether it has an offset, whether it is written, and the ranges of the loop variables."""
    for s in statements:
        for e in expressions(s):
            if isinstance(e, Load):
                yield e.buffer, e.index, e.offset is not None, False, bounds
        if isinstance(s, Store):
            yield s.buffer, s.index, s.offset is not None, True, bounds
        if isinstance(s, (For, Collect)):
            start = s.start if isinstance(s, For) else Index()
            stop = s.stop if isinstance(s, For) else Index(s.size)
            low, high = span(start, bounds), span(stop, bounds)
            inner = bounds if low is None or high is None else {**bounds, s.variable: (low[0], high[1] - 1)}
            yield from accesses(s.body, inner)
        else:
            for block in blocks(s):
                yield from accesses(block, bounds)


def span(i: Index, bounds: dict[str, Range]) -> Range | None:
    """Smallest and largest value of an index, if the ranges of its variables are known."""
    low = high = i.base
    for atom, k in i.terms:
        if isinstance(atom, Entry):
            ends = (min(atom.table), max(atom.table))
        elif atom.name in bounds:
            ends = bounds[atom.name]
        else:
            return None
        values = (k * ends[0], k * ends[1])
        low, high = low + min(values), high + max(values)
    return low, high


def conflicts(a: Sequence[Statement], b: Sequence[Statement]) -> set[Buffer | Local]:
    """Buffers and variables that both use and at least one writes."""
    (write_a, use_a), (write_b, use_b) = _uses(a), _uses(b)
    return (write_a & use_b) | (use_a & write_b)


def _uses(statements: Sequence[Statement]) -> tuple[set[Buffer | Local], set[Buffer | Local]]:
    """What is written, and what is read or written."""
    written: set[Buffer | Local] = set()
    used: set[Buffer | Local] = set()
    for s in statements:
        for e in expressions(s):
            if isinstance(e, Load):
                used.add(e.buffer)
            elif isinstance(e, Local):
                used.add(e)
        if isinstance(s, Store):
            written.add(s.buffer)
        elif isinstance(s, (Declare, Assign)):
            written.add(s.local)
        for inner in blocks(s):
            w, u = _uses(inner)
            written |= w
            used |= u
    return written, used | written


def _independent(a: Sequence[Statement], b: Sequence[Statement]) -> bool:
    return not conflicts(a, b)


def _commute(a: Statement, b: Statement) -> bool:
    return not conflicts([a], [b])


def _turns_apart(loop: For, body: list[Statement]) -> bool:
    """Whether turns of `loop` meet those of a loop with `body` in the same turn only, in all buffers they share."""
    shared = conflicts(loop.body, body)
    if not shared:
        return True
    if any(isinstance(x, Local) for x in shared):
        return False
    windows: dict[Buffer, set] = {}
    for b, index, offset, _, bounds in (*accesses(loop.body, {}), *accesses(body, {})):
        if b not in shared:
            continue
        own = None if offset else window(index, loop.variable, bounds)
        if own is None:
            return False
        windows.setdefault(b, set()).add(own)
    return all(len(w) == 1 for w in windows.values())


def window(i: Index, variable: str, bounds: dict[str, Range]) -> tuple | None:
    """What part of memory a turn stays in: equal for two accesses if and only if they can meet in one turn only."""
    own = [(a, k) for a, k in i.terms if mentions(a, variable)]
    if len(own) != 1:
        return None
    atom, k = own[0]
    if isinstance(atom, Entry):
        single = atom.index == Index(0, ((Variable(variable), 1),)) and len(set(atom.table)) == len(atom.table)
        return ("table", i) if single and len(i.terms) == 1 else None
    # Variables of loops further out are the same for all accesses: where they come alike they cancel.
    outer = frozenset(t for t in i.terms if t[0] is not atom and not _known(t[0], bounds))
    rest = span(Index(i.base, tuple(t for t in i.terms if t[0] is not atom and t not in outer)), bounds)
    if rest is None or k <= 0 or rest[0] // k != rest[1] // k:
        return None
    return "stride", k, outer, rest[0] // k


def _known(atom: object, bounds: dict[str, Range]) -> bool:
    if isinstance(atom, Entry):
        return all(_known(a, bounds) for a, _ in atom.index.terms)
    assert isinstance(atom, Variable)
    return atom.name in bounds


# --- rewriting --------------------------------------------------------------------------------------------------------


def _renamed(statements: Sequence[Statement], old: str, new: str) -> list[Statement]:
    """The same statements with another loop variable."""

    def index(i: Index) -> Index:
        if not any(mentions(a, old) for a, _ in i.terms):
            return i
        total = Index(i.base)
        for a, k in i.terms:
            total = total + Index(0, ((atom(a), k),))
        return total

    def atom(a: object) -> Variable | Entry:
        if isinstance(a, Entry):
            return Entry(a.table, index(a.index))
        assert isinstance(a, Variable)
        return Variable(new) if a.name == old else a

    return [_map(s, index, lambda e: e) for s in statements]


def _map(s: Statement, index: object, leaf: object) -> Statement:
    """`s` with every index and every load rewritten."""

    def expr(e: Expr) -> Expr:
        if isinstance(e, Call):
            return Call(e.op, tuple(expr(a) for a in e.args), e.dtype)
        if isinstance(e, Load):
            offset = None if e.offset is None else expr(e.offset)
            return leaf(Load(e.buffer, index(e.index), offset))  # type: ignore[operator]
        if isinstance(e, FromIndex):
            return FromIndex(index(e.index), e.dtype)  # type: ignore[operator]
        return e

    def block(statements: Sequence[Statement]) -> list[Statement]:
        return [_map(x, index, leaf) for x in statements]

    if isinstance(s, For):
        return dataclasses.replace(s, start=index(s.start), stop=index(s.stop), body=block(s.body))  # type: ignore[operator]
    if isinstance(s, Group):
        return Group(block(s.body))
    if isinstance(s, If):
        return If(expr(s.flag), block(s.body), block(s.otherwise))
    if isinstance(s, Collect):
        return Collect(s.name, s.variable, s.size, block(s.body), expr(s.flag))
    if isinstance(s, Store):
        offset = None if s.offset is None else expr(s.offset)
        return Store(s.buffer, index(s.index), expr(s.value), offset)  # type: ignore[operator]
    if isinstance(s, (Declare, Assign)):
        return type(s)(s.local, expr(s.value))
    if isinstance(s, While):
        return While(block(s.head), expr(s.flag), block(s.body))
    return s


# --- arrays that become variables -------------------------------------------------------------------------------------


def contract(p: Program) -> Program:
    """Turn scratch arrays that live within one turn of a loop into variables."""
    uses: Counter[Buffer] = Counter()
    for b, *_ in accesses(p.body, {}):
        uses[b] += 1
    for k, b in enumerate(uses):
        b.name = f"v{k}"
    return dataclasses.replace(p, body=_contract_block(p.body, uses, inside=False))


def _contract_block(statements: Sequence[Statement], uses: Counter[Buffer], inside: bool) -> list[Statement]:
    out = [_contract_inner(s, uses) for s in statements]
    if not inside:
        return out
    for b, _ in _private(out, uses):
        local = Local(b.name, b.dtype)
        declared = False
        new: list[Statement] = []
        for s in out:
            if isinstance(s, Store) and s.buffer is b:
                value = _replace(s.value, b, local)
                new.append(Assign(local, value) if declared else Declare(local, value))
                declared = True
            else:
                new.append(_map(s, lambda i: i, lambda e, b=b, local=local: local if e.buffer is b else e))
        out = new
    return out


def _contract_inner(s: Statement, uses: Counter[Buffer]) -> Statement:
    if isinstance(s, For):
        return dataclasses.replace(s, body=_contract_block(s.body, uses, inside=not s.scope))
    if isinstance(s, Group):
        return Group(_contract_block(s.body, uses, inside=True))
    if isinstance(s, If):
        return If(s.flag, _contract_block(s.body, uses, inside=True), _contract_block(s.otherwise, uses, inside=True))
    if isinstance(s, While):
        return While(_contract_block(s.head, uses, False), s.flag, _contract_block(s.body, uses, False))
    return s


def _private(statements: Sequence[Statement], uses: Counter[Buffer]) -> list[tuple[Buffer, Index]]:
    """Scratch buffers that only these statements use, always at one index, and write before they read."""
    first: dict[Buffer, tuple[Index, bool]] = {}
    count: Counter[Buffer] = Counter()
    bad: set[Buffer] = set()
    for s in statements:
        top = s.buffer if isinstance(s, Store) else None
        for b, index, offset, written, _ in accesses([s], {}):
            if b.kind != "scratch":
                continue
            count[b] += 1
            # Loads of a store's own value come before it.
            known = first.setdefault(b, (index, written and b is top))
            if offset or known[0] != index or (written and b is not top):
                bad.add(b)
    return [(b, i) for b, (i, ok) in first.items() if ok and b not in bad and count[b] == uses[b]]


def _replace(e: Expr, b: Buffer, local: Local) -> Expr:
    if isinstance(e, Call):
        return Call(e.op, tuple(_replace(a, b, local) for a in e.args), e.dtype)
    if isinstance(e, Load):
        return (
            local
            if e.buffer is b
            else dataclasses.replace(e, offset=None if e.offset is None else _replace(e.offset, b, local))
        )
    return e
