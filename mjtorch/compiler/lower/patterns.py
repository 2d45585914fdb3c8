"""Products and factorisations of matrices whose zeros are found when they run.

What is zero in all worlds side by side is left out: rows, and in the rest of them columns. Four rows (or columns) at a
time have one list of what is not, and are copied there, close together, before they are multiplied by each other.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from mjtorch.compiler.ir.nodes import BOOL, INT, Assign, Call, Expr, FromIndex, Index, Load, Local, Number, Store
from mjtorch.compiler.lower.lowering import Lowering, call
from mjtorch.compiler.lower.sums import nonzero, zero
from mjtorch.compiler.lower.values import Array, View

# Rows that share a list, and columns that are eliminated at a time.
GROUP = 4
# From this many columns on lists pay.
MANY_COLUMNS = 20


def any_of(flags: list[Expr]) -> Expr:
    """Whether one of the flags holds."""
    found = flags[0]
    for flag in flags[1:]:
        found = Call("or", (found, flag), BOOL)
    return found


def update(
    low: Lowering,
    out: View,
    batch: list[Index],
    listed: tuple[Callable[[Index], Index], Index],
    panel: View,
    factors: Callable[[Index], list[Expr]],
    op: str,
    upper: bool = False,
) -> None:
    """`out[i, j] = out[i, j] + sum over t of factors(p)[t] * panel[q, t]`, i and j the entries p and q of a list.

    op: "add", or "sub" to subtract the sum; upper: q is p or more, not p or less
    """
    dtype, (which, count) = out.dtype, listed

    def row(p: Index) -> None:
        scale = [low.local(dtype, e) for e in factors(p)]

        def element(q: Index) -> None:
            at = out.address([*batch, which(p), which(q)])
            total: Expr = Load(out.buffer, at)
            for t, factor in enumerate(scale):
                total = call(op, total, call("mul", factor, panel.at([q, Index(t)]), dtype=dtype), dtype=dtype)
            low.emit(Store(out.buffer, at, total))

        if upper:
            low.loop(count, element, start=p)
        else:
            low.loop(p + 1, element)

    low.loop(count, row)


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
        elif name != "diagonal":
            return BOTH
    return found.pop() if len(found) == 1 else BOTH


def op_name(node: Node) -> str:
    """The operation of a node."""
    return getattr(getattr(node.target, "overloadpacket", node.target), "__name__", "")


def gram(low: Lowering, x: View, weight: Array, first: Array | None, half: str) -> View:
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


def cholesky(low: Lowering, a: Array) -> tuple[View, View]:
    """The lower factors of a stack of matrices, and the first minor of each that is not positive, counted from 1."""
    n, lead, dtype = a.shape[-1], a.shape[:-2], a.dtype
    out, info = low.alloc(a.shape, dtype), low.alloc(lead, INT)
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

        def minus(total: Expr, x: Expr, y: Expr) -> Expr:
            return call("sub", total, call("mul", x, y, dtype=dtype), dtype=dtype)

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

        low.loop(n, begin)
        low.loop(n // GROUP, lambda q: low.group(lambda: columns_from(q * GROUP)))
        rest = n % GROUP
        if rest:
            low.group(lambda: diagonal(Index(n - rest), rest))
        low.emit(Store(info.buffer, info.address(batch), failed))

    low.nest(lead, one)
    return out, info
