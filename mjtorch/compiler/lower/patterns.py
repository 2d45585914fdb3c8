"""Products and factorisations of matrices whose zeros are found when they run.

What is zero in all worlds side by side is left out: rows, and in the rest of them columns. Four rows (or columns) at a
time have one list of what is not, and are copied there, close together, before they are multiplied by each other.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from mjtorch.compiler.ir.nodes import (
    BOOL,
    INT,
    Assign,
    Call,
    Expr,
    FromIndex,
    Index,
    Load,
    Local,
    Number,
    Store,
    lookup,
)
from mjtorch.compiler.lower.elementwise import op_name
from mjtorch.compiler.lower.lowering import Lowering, call
from mjtorch.compiler.lower.sums import nonzero, some_nonzero, zero
from mjtorch.compiler.lower.values import Array, View, broadcast, is_partial

# Rows that share a list, and columns that are eliminated, or unknowns that are found, at a time.
GROUP = 4
# From this many columns on lists pay.
MANY_COLUMNS = 20

# How to look up an entry of a list, and how many there are.
Listed = tuple[Callable[[Index], Index], Index]


def has_pattern(low: Lowering, n: int) -> bool:
    """Whether the zeros of a matrix with n columns are looked for when the program runs."""
    return n >= MANY_COLUMNS and may_look(low)


def may_look(low: Lowering) -> bool:
    """Whether what is zero may be found, and left out, when the program runs."""
    return not low.exact and not low.elements


def any_of(flags: list[Expr]) -> Expr:
    """Whether one of the flags holds."""
    found = flags[0]
    for flag in flags[1:]:
        found = Call("or", (found, flag), BOOL)
    return found


def minus(total: Expr, x: Expr, y: Expr) -> Expr:
    """`total - x * y`."""
    return call("sub", total, call("mul", x, y, dtype=total.dtype), dtype=total.dtype)


def update(
    low: Lowering,
    out: View,
    batch: list[Index],
    listed: Listed,
    panel: View,
    factors: Callable[[Index], list[Expr]],
    op: str,
    upper: bool = False,
) -> None:
    """`out[i, j] = out[i, j] + sum over t of factors(p)[t] * panel[q, t]`, i and j the entries p and q of a list.

    Two rows at a time: one by one, registers of 64 bytes take 1.5 times as long, and those of 32 bytes 1.2.

    op: "add", or "sub" to subtract the sum; upper: q is p or more, not p or less
    """
    dtype, (which, count) = out.dtype, listed

    def rows(p: Index, number: int) -> None:
        """Those from p on: what is loaded of the panel serves all of them."""
        scales = [[low.local(dtype, e) for e in factors(p + r)] for r in range(number)]

        def elements(q: Index, among: range) -> None:
            column = [low.local(dtype, panel.at([q, Index(t)])) for t in range(len(scales[0]))]
            for r in among:
                at = out.address([*batch, which(p + r), which(q)])
                total: Expr = Load(out.buffer, at)
                for factor, x in zip(scales[r], column, strict=True):
                    total = call(op, total, call("mul", factor, x, dtype=dtype), dtype=dtype)
                low.emit(Store(out.buffer, at, total))

        everywhere = range(number)
        if upper:
            for q in range(number - 1):
                low.group(lambda q=q: elements(p + q, range(q + 1)))
            low.loop(count, lambda q: elements(q, everywhere), start=p + (number - 1))
        else:
            low.loop(p + 1, lambda q: elements(q, everywhere))
            for q in range(1, number):
                low.group(lambda q=q: elements(p + q, range(q, number)))

    counts = range(out.shape[-1] + 1)
    low.loop(lookup([k // 2 for k in counts], count), lambda pair: rows(pair * 2, 2))
    low.loop(count, lambda p: rows(p, 1), start=lookup([k // 2 * 2 for k in counts], count))


LOWER, UPPER, BOTH = "lower", "upper", "both"


def half_read(low: Lowering, node: Node) -> str:
    """Which half of a symmetric matrix is read."""
    if not low.inline:  # all of it is to be looked at
        return BOTH
    found = set()
    for user in node.users:
        name = op_name(user)
        if name == "linalg_cholesky_ex":
            found.add(UPPER if user.kwargs.get("upper", False) else LOWER)
        elif name == "flip" and len(user.args[1]) == len(node.meta["val"].shape):
            found.add({LOWER: UPPER, UPPER: LOWER, BOTH: BOTH}[half_read(low, user)])
        elif name == "addmm" and node not in user.args[1:]:
            found.add(half_read(low, user))
        elif name != "diagonal":
            return BOTH
    return found.pop() if len(found) == 1 else BOTH


def gram(low: Lowering, x: Array, weight: Array, first: Array | None, half: str) -> View:
    """`first + J.T @ diag(weight) @ J`, given `x = J.T`: one half, or the lower, which is copied, if both are read."""
    n, inner, dtype, upper = x.shape[0], x.shape[1], x.dtype, half == UPPER
    out, panel = low.alloc((n, n), dtype), low.alloc((n, GROUP), dtype)

    def write() -> None:
        def begin(i: Index) -> None:
            def element(j: Index) -> None:
                low.emit(Store(out.buffer, out.address([i, j]), zero(dtype) if first is None else first.at([i, j])))

            low.loop(n if upper else i + 1, element, start=i if upper else 0)

        def rows_from(k: Index, width: int) -> None:
            rows = [k + t for t in range(width)]
            weights = [low.local(dtype, weight.at([row, Index()])) for row in rows]
            listed = which, count = low.compact(n, lambda j: any_of([nonzero(x.at([j, row])) for row in rows]))

            def pack(q: Index) -> None:
                for t, row in enumerate(rows):
                    low.emit(Store(panel.buffer, panel.address([q, Index(t)]), x.at([which(q), row])))

            def scaled(p: Index) -> list[Expr]:
                return [call("mul", w, panel.at([p, Index(t)]), dtype=dtype) for t, w in enumerate(weights)]

            low.loop(count, pack)
            update(low, out, [], listed, panel, scaled, "add", upper)

        def counts(k: Index) -> Expr:
            return any_of([nonzero(weight.at([k * GROUP + t, Index()])) for t in range(GROUP)])

        low.loop(n, begin)
        if inner >= GROUP:
            groups, number = low.compact(inner // GROUP, counts)
            low.loop(number, lambda q: rows_from(groups(q) * GROUP, GROUP))
        rest = inner % GROUP
        if rest:
            low.group(lambda: rows_from(Index(inner - rest), rest))
        if half == BOTH:
            mirror(low, out)

    low.group(write)
    return out


def mirror(low: Lowering, out: View) -> None:
    """Copy the lower triangle to the upper."""

    def element(i: Index, j: Index) -> None:
        low.emit(Store(out.buffer, out.address([j, i]), out.at([i, j])))

    low.loop(out.shape[-1], lambda i: low.loop(i, lambda j: element(i, j)))


def overwritten(low: Lowering, node: Node, a: Array) -> frozenset[Node]:
    """The nodes that are the matrix `a`, if its factor, which `node` finds, may take its place.

    So it is where nothing but its diagonal is read beside that, and of the factor only the triangle.
    """
    x, same = node.args[0], {node.args[0]}
    while op_name(x) == "flip":
        x = x.args[0]
        same.add(x)
    made = op_name(x) in ("mm", "addmm") and half_read(low, x) != BOTH and isinstance(a, View)
    others = {u for n in same for u in n.users} - same - {node}
    alone = made and all(op_name(u) == "diagonal" and u in low.environment for u in others)
    factors = [u for u in node.users if u.args[1] == 0]
    return frozenset(same) if alone and all(is_triangle_read(low, x, False) for x in factors) else frozenset()


def is_triangle_read(low: Lowering, x: Node, upper: bool) -> bool:
    """Whether of a matrix, or of a stack of them, nothing but the triangle is read."""
    return all(reads_triangle(low, u, x, upper) for u in x.users)


def reads_triangle(low: Lowering, user: Node, x: Node, upper: bool) -> bool:
    """Whether that is all that a node reads of its operand `x`."""
    name = op_name(user)
    if name == "clone":
        return is_triangle_read(low, user, upper)
    if name == "transpose":
        last = x.meta["val"].dim()
        return {k % last for k in user.args[1:]} == {last - 2, last - 1} and is_triangle_read(low, user, not upper)
    if name == "linalg_solve_triangular":
        return user.args[0] is x and user.args[1] is not x and user.kwargs == {"upper": upper}
    if name == "while_loop":
        condition, body, carry, captured = user.args
        graphs = [getattr(g.graph.owning_module, g.target).graph for g in (condition, body)]
        inputs = [[n for n in graph.nodes if n.op == "placeholder"] for graph in graphs]
        places = [len(carry) + k for k, n in enumerate(captured) if n is x]
        return x not in carry and all(is_triangle_read(low, own[k], upper) for own in inputs for k in places)
    if user.op == "output" and (loop := low.scans.get(user.graph)) is not None:
        places = [k for k, n in enumerate(user.args[0]) if n is x]
        stacks = [u for u in loop.users if u.args[1] in places]
        return min(places) >= len(loop.args[1]) and all(is_triangle_read(low, u, upper) for u in stacks)
    return name == "diagonal"


def cholesky(low: Lowering, node: Node, a: Array, upper: bool) -> tuple[View, View]:
    """The lower factors of a stack of matrices, and the first minor of each that is not positive, counted from 1."""
    n, lead, dtype = a.shape[-1], a.shape[:-2], a.dtype
    same = frozenset() if upper or lead else overwritten(low, node, a)
    if same:
        assert isinstance(a, View)
        low.rescue(node, {a.buffer}, same)
    out, info = a if same else low.alloc(a.shape, dtype), low.alloc(lead, INT)
    panel = low.alloc((n, GROUP), dtype)

    def one(batch: list[Index]) -> None:
        failed = low.local(INT, Number(0, INT))

        def at(i: Index, j: Index) -> Expr:
            return Load(out.buffer, out.address([*batch, i, j]))

        def put(i: Index, j: Index, value: Expr) -> None:
            low.emit(Store(out.buffer, out.address([*batch, i, j]), value))

        def begin(i: Index) -> None:
            low.loop(i + 1, lambda j: put(i, j, a.at([*batch, i, j])))
            low.loop(n, lambda j: put(i, j, zero(dtype)), start=i + 1)

        def diagonal(k: Index, width: int) -> tuple[list[list[Local]], list[Local]]:
            """The factor of the block at k, of which `inverse` are one over the diagonal."""
            block: list[list[Local]] = []
            inverse: list[Local] = []
            for r in range(width):
                row: list[Local] = []
                for c in range(r + 1):
                    total = at(k + r, k + c)
                    for t in range(c):
                        total = minus(total, row[t], row[t] if c == r else block[c][t])
                    if c < r:
                        row.append(low.local(dtype, call("mul", total, inverse[c], dtype=dtype)))
                        continue
                    pivot = low.local(dtype, total)
                    fails = Call("not", (Call("gt", (pivot, zero(dtype)), BOOL),), BOOL)
                    fresh = Call("and", (fails, Call("eq", (failed, zero(INT)), BOOL)), BOOL)
                    low.emit(Assign(failed, Call("where", (fresh, FromIndex(k + (r + 1)), failed), INT)))
                    row.append(low.local(dtype, Call("sqrt", (pivot,), dtype)))
                    inverse.append(low.local(dtype, Call("div", (Number(1.0, dtype), row[-1]), dtype)))
                for c, value in enumerate(row):
                    put(k + r, k + c, value)
                block.append(row)
            return block, inverse

        def columns_from(k: Index) -> None:
            block, inverse = diagonal(k, GROUP)
            below = [k + t for t in range(GROUP)]
            listed = which, count = low.compact(n, lambda i: any_of([nonzero(at(i, j)) for j in below]), k + GROUP)

            def solve(p: Index) -> None:
                i = which(p)
                row: list[Local] = []
                for c, j in enumerate(below):
                    total = at(i, j)
                    for t in range(c):
                        total = minus(total, row[t], block[c][t])
                    row.append(low.local(dtype, call("mul", total, inverse[c], dtype=dtype)))
                    put(i, j, row[-1])
                    low.emit(Store(panel.buffer, panel.address([p, Index(c)]), row[-1]))

            def own(p: Index) -> list[Expr]:
                return [panel.at([p, Index(t)]) for t in range(GROUP)]

            low.loop(count, solve)
            update(low, out, batch, listed, panel, own, "sub")

        if not same:
            low.loop(n, begin)
        low.loop(n // GROUP, lambda q: low.group(lambda: columns_from(q * GROUP)))
        rest = n % GROUP
        if rest:
            low.group(lambda: diagonal(Index(n - rest), rest))
        low.emit(Store(info.buffer, info.address(batch), failed))

    low.nest(lead, one)
    return out, info


def triangular(low: Lowering, a: View, b: Array, out: View, upper: bool, unit: bool) -> None:
    """Solve `A X = B` for triangular matrices `A (..., n, n)` and columns `B (..., n, k)`: `out (..., k, n)`.

    Some unknowns at a time, once known, are taken out of the others that have to do with them, in groups of columns.
    Columns that are zero stay so.
    """
    lead, dtype = out.shape[:-2], out.dtype
    columns, n = out.shape[-2:]

    def one(batch: list[Index]) -> None:
        def entry(i: Index, j: Index) -> Expr:
            return broadcast(a, (*lead, n, n), [*batch, i, j])

        def given(c: Index, i: Index) -> Expr:
            return broadcast(b, (*lead, n, columns), [*batch, i, c])

        def at(c: Index, i: Index) -> Expr:
            return Load(out.buffer, out.address([*batch, c, i]))

        def put(c: Index, i: Index, value: Expr) -> None:
            low.emit(Store(out.buffer, out.address([*batch, c, i]), value))

        def begin(group: list[Index]) -> None:
            for c in group:
                low.loop(n, lambda i, c=c: put(c, i, given(c, i)))

        def is_there(group: list[Index]) -> Expr:
            return any_of([some_nonzero(low, n, lambda i, c=c: given(c, i)) for c in group])

        def turned(step: Index) -> Index:
            return Index(n - 1) + step * -1 if upper else step

        def unknowns(rows: list[Index], group: list[Index], inverses: list[Local], listed: Listed) -> None:
            which, count = listed
            found: list[list[Local]] = []
            for r, i in enumerate(rows):
                values = [at(c, i) for c in group]
                for j, known in zip(rows, found, strict=False):
                    factor = low.local(dtype, entry(i, j))
                    values = [minus(x, factor, y) for x, y in zip(values, known, strict=True)]
                if not unit:
                    values = [call("mul", x, inverses[r], dtype=dtype) for x in values]
                found.append([low.local(dtype, x) for x in values])

            def take_out(q: Index) -> None:
                k = turned(which(q))
                factors = [low.local(dtype, entry(k, i)) for i in rows]
                for n, c in enumerate(group):
                    total = at(c, k)
                    for factor, known in zip(factors, found, strict=True):
                        total = minus(total, factor, known[n])
                    put(c, k, total)

            for i, known in zip(rows, found, strict=True):
                for c, value in zip(group, known, strict=True):
                    put(c, i, value)
            some = any_of([nonzero(x) for known in found for x in known])
            low.choose(some, lambda: low.loop(count, take_out), lambda: None)

        def rows_from(step: Index, width: int) -> None:
            rows = [turned(step + r) for r in range(width)]
            listed = low.compact(n, lambda k: any_of([nonzero(entry(turned(k), i)) for i in rows]), step + width)
            one = Number(1.0, dtype)
            inverses = [] if unit else [low.local(dtype, Call("div", (one, entry(i, i)), dtype)) for i in rows]
            low.loop(number, lambda q: unknowns(rows, group(groups(q)), inverses, listed))
            if rest:
                low.group(lambda: unknowns(rows, rest, inverses, listed))

        def group(g: Index) -> list[Index]:
            return [g * GROUP + t for t in range(GROUP)]

        rest = [Index(c) for c in range(columns - columns % GROUP, columns)]
        if not is_partial(b):
            low.store(low.array(0.0), View(out.buffer, out.address([*batch, Index(), Index()]), out.axes[-2:]))
        groups, number = low.compact(columns // GROUP, lambda g: is_there(group(g)))
        low.loop(number, lambda q: begin(group(groups(q))))
        begin(rest)
        low.loop(n // GROUP, lambda q: low.group(lambda: rows_from(q * GROUP, GROUP)))
        if n % GROUP:
            low.group(lambda: rows_from(Index(n - n % GROUP), n % GROUP))

    low.nest(lead, lambda batch: low.group(lambda: one(batch)))
