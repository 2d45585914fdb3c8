"""Sums in variables, and rows that need none."""

from __future__ import annotations

from collections.abc import Callable

from mjtorch.compiler.ir.nodes import (
    BOOL,
    INT,
    Assign,
    Call,
    Expr,
    FromIndex,
    Gather,
    Index,
    Load,
    Local,
    Number,
    Store,
    Variable,
)
from mjtorch.compiler.ir.walk import mentions, walk_expr
from mjtorch.compiler.lower.lowering import Lowering, call
from mjtorch.compiler.lower.values import Array, Lazy, View

# From this many rows on it pays to look for those that are zero.
MANY_ROWS = 12
# How many sums a dot product is made of, and from how many terms on it is better that some may be left out.
CHAINS, MANY = 4, 32


def zero(dtype: str) -> Number:
    """The literal 0 of a dtype."""
    return Number(0 if dtype == INT else 0.0, dtype)


def accumulate(
    low: Lowering,
    dtype: str,
    stop: Index | int,
    term: Callable[[Index], Expr],
    *,
    start: Index | int = 0,
    first: Expr | None = None,
    op: str = "add",
) -> Local:
    """A variable holding `first + sum of term(k)`."""
    total = low.local(dtype, first if first is not None else zero(dtype))
    low.loop(stop, lambda k: low.emit(Assign(total, call(op, total, term(k), dtype=dtype))), start)
    return total


def some(low: Lowering, count: int, flag: Callable[[Index], Expr]) -> Local:
    """Whether `flag(i)` holds for some `i < count`."""
    found = low.local(BOOL, Number(False, BOOL))
    low.loop(count, lambda i: low.emit(Assign(found, Call("or", (found, flag(i)), BOOL))))
    return found


def some_nonzero(low: Lowering, count: int, value: Callable[[Index], Expr]) -> Expr:
    """Whether `value(i)` may be other than zero for some `i < count`; by its mask, if all have one in common."""
    any_one = Variable("any")
    e = value(Index(0, ((any_one, 1),))) if count else Number(False, BOOL)
    if isinstance(e, Call) and e.op == "where" and e.args[2] == zero(e.dtype):
        mask = [x for x in walk_expr(e.args[0]) if isinstance(x, (Load, Gather, FromIndex))]
        if not any(mentions(x.index, any_one) for x in mask):
            return e.args[0]
    return some(low, count, lambda i: nonzero(value(i)))


def nonzero(e: Expr) -> Expr:
    """Whether `e` is not 0; NaN counts as such."""
    return Call("ne", (e, zero(e.dtype)), BOOL)


def may_skip(low: Lowering, count: int) -> bool:
    """Whether to look for those of `count` rows that are zero: a zero that meets an infinity or NaN then gives 0."""
    return not low.exact and count >= MANY_ROWS


def nonzero_rows(low: Lowering, count: int, flag: Callable[[Index], Expr]) -> tuple[Callable[[Index], Index], Index]:
    """The rows `k < count` for which `flag(k)` holds in some world, and how many; all, if zeros are not skipped."""
    return (lambda k: k, Index(count)) if low.exact else low.compact(count, flag)


def few_sums(low: Lowering, a: Array, b: Array) -> View:
    """`a @ b` of one long row and a few columns that are to be computed, which can be done in the one loop there is.

    Where a factor of all that is added is zero in all worlds, `skip_zero_terms` leaves that out.
    """
    inner, n, dtype = a.shape[1], b.shape[1], a.dtype
    out = low.alloc((1, n), dtype)

    def write() -> None:
        totals = [low.local(dtype, zero(dtype)) for _ in range(n)]

        def add(k: Index) -> None:
            for j, total in enumerate(totals):
                term = call("mul", a.at([Index(), k]), b.at([k, Index(j)]), dtype=dtype)
                low.emit(Assign(total, call("add", total, term, dtype=dtype)))

        low.loop(inner, add)
        for j, total in enumerate(totals):
            low.emit(Store(out.buffer, out.address([Index(), Index(j)]), total))

    low.group(write)
    return out


def chains_of(low: Lowering, n: int, *factors: Array) -> int:
    """How many sums a dot product is made of, that do not wait for another.

    One, if something is computed for each of many terms: where they are zero that may then be left out.
    """
    if low.elements or n < 2 * CHAINS:
        return 1
    return 1 if n >= MANY and may_skip(low, n) and any(isinstance(x, Lazy) and x.cost > 0 for x in factors) else CHAINS


def inner_product(
    low: Lowering, n: int, left: Callable[[Index], Expr], right: Callable[[Index], Expr], out: View, chains: int
) -> View:
    """`out`, of one element, = sum over k < n of `left(k) right(k)`, in so many sums."""
    dtype = out.dtype

    def write() -> None:
        totals = [low.local(dtype, zero(dtype)) for _ in range(chains)]

        def add(total: Local, k: Index) -> None:
            term = call("mul", left(k), right(k), dtype=dtype)
            low.emit(Assign(total, call("add", total, term, dtype=dtype)))

        low.loop(n // chains, lambda q: [add(t, q * chains + c) for c, t in enumerate(totals)])
        for c in range(n % chains):
            add(totals[c], Index(n - n % chains + c))
        while len(totals) > 1:
            totals = [call("add", *pair, dtype=dtype) for pair in zip(totals[::2], totals[1::2], strict=True)]
        low.emit(Store(out.buffer, out.address([Index()] * len(out.shape)), totals[0]))

    low.group(write)
    return out
