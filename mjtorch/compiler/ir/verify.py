"""What every program must fulfil, checked between passes in tests and on request."""

from __future__ import annotations

from collections.abc import Sequence

from mjtorch.compiler.analysis.dependence import Bounds, span, within
from mjtorch.compiler.analysis.lifetimes import lifetimes, place
from mjtorch.compiler.ir.nodes import (
    BOOL,
    COMMON,
    CONSTANT,
    DTYPES,
    INPUT,
    OUTPUT,
    SCRATCH,
    SHARED,
    UNIFORM,
    WHOLE,
    Assign,
    Buffer,
    Call,
    Compact,
    Declare,
    Entry,
    Expr,
    FirstLane,
    For,
    Function,
    Gather,
    Group,
    If,
    Index,
    Item,
    Length,
    Load,
    Local,
    Pack,
    ParallelFor,
    Program,
    Rendezvous,
    Scalarized,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.ops import result_dtype
from mjtorch.compiler.ir.text import statement_text
from mjtorch.compiler.ir.walk import bodies, touched_by, uses, walk


class VerifyError(AssertionError):
    """A program is not well formed; the message says what and where."""


def verify(p: Program) -> None:
    """Check that everything is defined before it is used, that shapes and dtypes fit, and what worlds share.

    Raises:
        VerifyError: it is not so.
    """
    for what, found in (("inputs", p.inputs), ("outputs", p.outputs), ("constants", p.constants)):
        kinds = {"inputs": (INPUT, SHARED), "outputs": (OUTPUT,), "constants": (CONSTANT,)}[what]
        for b in found:
            if b.kind not in kinds or b.dtype not in DTYPES:
                raise VerifyError(f"{what} hold a buffer of {b.kind} {b.dtype}")
            if b.kind == CONSTANT and (b.constant is None or b.constant.size != b.size):
                raise VerifyError(f"a constant of {b.size} elements has other values")
    uniform = _Check(p, set(), uniform=True)
    uniform.body(p.uniform, _Scope({}, set()))
    _Check(p, uniform.written, uniform=False).body(p.body, _Scope({}, set()))
    _verify_rendezvous(p.uniform, meet=False)
    _verify_rendezvous(p.body, meet=True)
    _verify_layout(p)


def _verify_rendezvous(statements: Sequence[Statement], *, meet: bool) -> None:
    """Check that all worlds come to each rendezvous equally often; meet: whether they do to these statements."""
    for s in statements:
        if isinstance(s, Rendezvous) and not meet:
            raise VerifyError(f"worlds may come to a rendezvous a different number of times, of {s.origin}")
        alike = s.is_counted if isinstance(s, For) else isinstance(s, (Function, Group))
        for body in bodies(s):
            _verify_rendezvous(body, meet=meet and alike)


class _Scope:
    """Loop variables with their ranges, and names of variables and lists."""

    def __init__(self, bounds: Bounds, names: set[object]) -> None:
        self.bounds, self.names = bounds, names


class _Check:
    """Walks a section of a program in the order in which it runs."""

    def __init__(self, p: Program, written: set[Buffer], *, uniform: bool) -> None:
        self.p, self.written, self.uniform = p, set(written), uniform
        self.known = {*p.inputs, *p.outputs, *p.constants}
        self.at: Statement | None = None

    def fail(self, problem: str) -> VerifyError:
        where = "" if self.at is None else f" in `{statement_text(self.p, self.at).strip()}`"
        origin = "" if self.at is None or self.at.origin is None else f", of {self.at.origin}"
        return VerifyError(f"{problem}{where}{origin}")

    def body(self, statements: Sequence[Statement], scope: _Scope) -> None:
        own = _Scope(scope.bounds, set(scope.names))
        for s in statements:
            self.statement(s, own)

    def statement(self, s: Statement, scope: _Scope) -> None:
        self.at = s
        if isinstance(s, FirstLane) and not all(isinstance(x, (Store, Scatter)) for x in s.body):
            raise self.fail("the first lane only stores")
        for variable, start, stop in self._loops(s):
            self.index(start, scope)
            self.index(stop, scope)
            scope = _Scope(scope.bounds, scope.names | {Variable(variable)})
        inner = _Scope(within(s, scope.bounds), scope.names)
        if isinstance(s, (For, ParallelFor)):  # an iteration may read what one before it has written
            self.written |= {x.buffer for x in walk(s.body) if isinstance(x, (Store, Scatter))}
        if isinstance(s, While):
            own = _Scope(inner.bounds, set(inner.names))
            for x in s.head:
                self.statement(x, own)
            self.at = s
            self.flag(s.flag, scope)
            self.body(s.body, inner)
        elif isinstance(s, Compact):
            self.index(s.start, scope)
            self.limits(s.holes, scope)
            own = _Scope(inner.bounds, {*inner.names, Variable(s.variable)})
            for x in s.body:
                self.statement(x, own)
            self.at = s
            self.flag(s.flag, own)
            scope.names |= {s.list}
        elif isinstance(s, Pack):
            self.pack(s, scope, inner)
        else:
            self._own(s, scope, inner)
            for body in bodies(s):
                self.body(body, inner)

    def pack(self, s: Pack, scope: _Scope, inner: _Scope) -> None:
        """What is packed has nothing of a world's but what was copied, and gives it nothing but by copies."""
        inside, everywhere = uses([s]), uses(self.p.body)
        private = {b for b in inside if b.kind == SCRATCH and inside[b] == everywhere[b]}
        copied = {x.buffer for x in walk(s.load) if isinstance(x, Store)}
        if any(b not in private and b.kind not in COMMON for b in {*copied, *touched_by(s.body)}):
            raise self.fail("what is packed uses an array of the worlds around")
        own = _Scope(inner.bounds, {*inner.names, Variable(s.variable)})
        self.flag(s.flag, own)
        self.copies(s.load, own)
        self.body(s.body, _Scope(scope.bounds, {x for x in scope.names if isinstance(x, Variable)}))
        self.copies(s.store, own)

    def copies(self, statements: Sequence[Statement], scope: _Scope) -> None:
        """Statements that only copy elements."""
        for x in walk(statements):
            self.at = x
            if not isinstance(x, For) and not (isinstance(x, Store) and isinstance(x.value, Load)):
                raise self.fail("what is packed is copied, element by element")
        self.body(statements, scope)

    def _own(self, s: Statement, scope: _Scope, inner: _Scope) -> None:
        """What `s` itself holds, and what it writes."""
        if isinstance(s, For):
            self.limits([*s.holes, *([] if s.since is None else [(s.since, 0)])], scope)
        if isinstance(s, (For, ParallelFor)) and s.guard is not None:
            self.flag(s.guard, inner)
        elif isinstance(s, If):
            self.flag(s.flag, scope)
        elif isinstance(s, (Store, Scatter)):
            self.write(s, scope)
        elif isinstance(s, (Declare, Assign)):
            dtype = self.expr(s.value, scope)
            if dtype != s.local.dtype:
                raise self.fail(f"{s.local.name} is {s.local.dtype}, its value is {dtype}")
            if isinstance(s, Declare):
                if any(isinstance(x, Local) and x.name == s.local.name for x in scope.names):
                    raise self.fail(f"{s.local.name} is declared twice")
                scope.names.add(s.local)
            elif s.local not in scope.names:
                raise self.fail(f"{s.local.name} is not declared")
        elif isinstance(s, ParallelFor):
            for r in s.reductions:
                if r.local not in scope.names:
                    raise self.fail(f"{r.local.name} is not declared")

    def _loops(self, s: Statement) -> Sequence[tuple[str, Index, Index]]:
        if isinstance(s, For):
            return ((s.variable, s.start, s.stop),)
        return s.loops if isinstance(s, ParallelFor) else ()

    def limits(self, holes: Sequence[tuple[Expr, int]], scope: _Scope) -> None:
        if any(self.expr(limit, scope) not in WHOLE for limit, _ in holes):
            raise self.fail("a limit is no integer")

    def flag(self, e: Expr, scope: _Scope) -> None:
        if self.expr(e, scope) != BOOL:
            raise self.fail("a flag is no truth value")

    def write(self, s: Store | Scatter, scope: _Scope) -> None:
        b, value = s.buffer, s.value
        if isinstance(value, Call) and value.op == "where" and value.args[-1] == Load(b, s.index):
            for new in value.args[:-1]:
                self.expr(new, scope)
            self.written.add(b)  # worlds that do not take a branch keep what they have, until the other gives it
        dtype = self.expr(value, scope)
        if dtype != b.dtype:
            raise self.fail(f"an array of {b.dtype} cannot hold {dtype}")
        if b.kind not in ((UNIFORM,) if self.uniform else (SCRATCH, OUTPUT)):
            raise self.fail(f"an array that is {b.kind} is written to")
        if b.kind == OUTPUT and (b not in self.known or isinstance(s, Scatter)):
            raise self.fail("a result is unknown, or scattered to")
        if isinstance(s, Scatter) and self.expr(s.offset, scope) not in WHOLE:
            raise self.fail("an offset is no integer")
        self.place(b, s.index, isinstance(s, Scatter), scope)
        self.written.add(b)

    def read(self, e: Load | Gather, scope: _Scope) -> None:
        b = e.buffer
        if self.uniform and b.kind not in COMMON:
            raise self.fail(f"what all worlds share is made of an array that is {b.kind}")
        if b.kind in (INPUT, SHARED, CONSTANT) and b not in self.known:
            raise self.fail(f"an array that is {b.kind} is not one of the program's")
        if b.kind in (SCRATCH, OUTPUT, UNIFORM) and b not in self.written:
            raise self.fail("an array is read before anything is written to it")
        if isinstance(e, Gather) and e.offset.dtype not in WHOLE:
            raise self.fail("an offset is no integer")
        self.place(b, e.index, isinstance(e, Gather), scope)

    def place(self, b: Buffer, i: Index, moving: bool, scope: _Scope) -> None:
        self.index(i, scope)
        ends = None if moving else span(i, scope.bounds)
        if ends is not None and not (ends[0] >= 0 and (ends[1] < b.size or _is_empty(scope.bounds))):
            raise self.fail(f"places {ends[0]} to {ends[1]} of an array of {b.size}")

    def index(self, i: Index, scope: _Scope) -> None:
        for atom, _ in i.terms:
            if isinstance(atom, Variable) and atom not in scope.names:
                raise self.fail(f"there is no loop over {atom.name}")
            if isinstance(atom, (Item, Length)) and atom.list not in scope.names:
                raise self.fail(f"there is no list {atom.list}")
            if isinstance(atom, (Entry, Item)):
                self.index(atom.index, scope)
            if isinstance(atom, Entry):
                ends = span(atom.index, scope.bounds)
                if ends is not None and not (ends[0] >= 0 and ends[1] < len(atom.table)):
                    raise self.fail(f"entries {ends[0]} to {ends[1]} of a table of {len(atom.table)}")

    def expr(self, e: Expr, scope: _Scope) -> str:
        """The dtype of an expression."""
        if isinstance(e, Call):
            dtypes = [self.expr(a, scope) for a in e.args]
            try:
                dtype = e.dtype if e.op == "cast" else result_dtype(e.op, dtypes)
            except ValueError as problem:
                raise self.fail(str(problem)) from None
            if dtype != e.dtype:
                raise self.fail(f"{e.op} of {', '.join(dtypes)} is {dtype}, not {e.dtype}")
        elif isinstance(e, (Load, Gather)):
            if isinstance(e, Gather):
                self.expr(e.offset, scope)
            self.read(e, scope)
        elif isinstance(e, Local):
            if e not in scope.names:
                raise self.fail(f"{e.name} is not declared")
        elif hasattr(e, "index"):
            self.index(e.index, scope)
        if e.dtype not in DTYPES:
            raise self.fail(f"there is no dtype {e.dtype}")
        return e.dtype


def _is_empty(bounds: Bounds) -> bool:
    """Whether one of the loops around has no iteration."""
    return any(high < low for low, high in bounds.values())


def _verify_layout(p: Program) -> None:
    """Buffers that live at the same time have places of their own."""
    if p.layout is None:
        return
    registers = {b for s in walk(p.body) if isinstance(s, Function) for b in s.registers}
    variables = {b for s in walk(p.body) if isinstance(s, Scalarized) for b in s.private}
    for b in touched_by([*p.uniform, *p.body]):
        if b.kind in (SCRATCH, UNIFORM) and b not in registers | variables and b not in p.layout.offsets:
            raise VerifyError(f"an array that is {b.kind}, of {b.size} {b.dtype}, has no place")
    life = {b: t for b, t in lifetimes(p).items() if b in p.layout.offsets and b.kind in (INPUT, SCRATCH)}
    groups: dict[tuple[str, str], list[Buffer]] = {}
    for b in life:
        groups.setdefault(place(p.layout, b)[0], []).append(b)
    for key, group in groups.items():
        places = {b: place(p.layout, b)[1:] for b in group}
        group.sort(key=lambda b: places[b])
        for k, b in enumerate(group):
            end = places[b][1]
            if end > p.layout.sizes[key]:
                raise VerifyError(f"an array ends behind the memory that it is in: {end} of {p.layout.sizes[key]}")
            for other in group[k + 1 :]:
                if places[other][0] >= end:
                    break
                if life[b][0] <= life[other][1] and life[other][0] <= life[b][1] and b.size and other.size:
                    raise VerifyError(
                        f"two arrays, of {b.size} {b.dtype} and {other.size} {other.dtype}, live in one place"
                    )
