"""Sums in variables, and rows that need none."""

from __future__ import annotations

from collections.abc import Callable

from mjtorch.compiler.ir.nodes import BOOL, INT, Assign, Call, Expr, Index, Local, Number
from mjtorch.compiler.lower.lowering import Lowering, call

# From this many rows on it pays to look for those that are zero.
MANY_ROWS = 12


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


def nonzero(e: Expr) -> Expr:
    """Whether `e` is not 0; NaN counts as such."""
    return Call("ne", (e, zero(e.dtype)), BOOL)


def may_skip(low: Lowering, count: int) -> bool:
    """Whether to look for those of `count` rows that are zero: a zero that meets an infinity or NaN then gives 0."""
    return not low.exact and count >= MANY_ROWS


def nonzero_rows(low: Lowering, count: int, flag: Callable[[Index], Expr]) -> tuple[Callable[[Index], Index], Index]:
    """The rows `k < count` for which `flag(k)` holds in some world, and how many; all, if zeros are not skipped."""
    return (lambda k: k, Index(count)) if low.exact else low.compact(count, flag)
