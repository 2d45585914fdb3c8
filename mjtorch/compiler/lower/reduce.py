"""Rules for reductions, scans and orderings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from mjtorch.compiler.ir.nodes import BOOL, INT, Assign, Call, Expr, FromIndex, Index, Local, Number, Store
from mjtorch.compiler.lower.elementwise import as_dtype, extremum, op_name, result_dtype
from mjtorch.compiler.lower.lowering import Lowering, call, cast, rule
from mjtorch.compiler.lower.shape import fix, reshape
from mjtorch.compiler.lower.values import Array, Lazy, Value, View, number, numel, store

# Reductions over at most this many elements become one expression instead of a loop.
UNROLLED = 4
# Orderings, and searches, of this many elements look for those that are in no world worth a look.
MANY = 32
# From this many elements on each world has a list of its own of what is to be ordered: a hundred humanoids, whose pairs
# of geoms are ordered by their distances, step 1.2 times as fast.
APART = 256


def reduce(low: Lowering, a: Array, dims: Any, keepdim: bool, op: str, start: Expr) -> Array:
    """Fold the elements along `dims` with `op`."""
    rank = len(a.shape)
    which = list(range(rank)) if dims is None or dims == [] else [dims] if isinstance(dims, int) else list(dims)
    gone = sorted(d % rank for d in which) if rank else []
    size = numel([a.shape[d] for d in gone])
    kept = tuple(1 if d in gone else n for d, n in enumerate(a.shape))
    out: Array
    if size <= UNROLLED and size > 0:
        positions = list(itertools.product(*(range(a.shape[d]) for d in gone)))

        def at(index: Sequence[Index]) -> Expr:
            terms = []
            for p in positions:
                own = list(index)
                for d, k in zip(gone, p, strict=True):
                    own[d] = Index(k)
                terms.append(a.at(own))
            total = terms[0]
            for t in terms[1:]:
                total = call(op, total, t, dtype=a.dtype)
            return total

        cost = size * (1 + (a.cost if isinstance(a, Lazy) else 0))
        out = Lazy(kept, a.dtype, at, cost)
    else:
        view = low.alloc(kept, a.dtype)

        def element(index: list[Index]) -> None:
            total = low.local(a.dtype, start)
            low.nest(
                [a.shape[d] for d in gone],
                lambda r: low.emit(Assign(total, call(op, total, a.at(_merge(index, gone, r)), dtype=a.dtype))),
            )
            low.emit(Store(view.buffer, view.address(index), total))

        low.nest(kept, element)
        out = view
    if not keepdim:
        for d in reversed(gone):
            out = fix(low, out, d, 0)
    return out


def _merge(index: Sequence[Index], gone: Sequence[int], r: Sequence[Index]) -> list[Index]:
    own = list(index)
    for d, i in zip(gone, r, strict=True):
        own[d] = i
    return own


@rule("sum")
def _sum(low: Lowering, node: Node, x: Value, dims: Any = None, keepdim: bool = False, **_: Any) -> Array:
    dtype = result_dtype(node)
    return reduce(low, as_dtype(low, x, dtype), dims, keepdim, "add", Number(0 if dtype == INT else 0.0, dtype))


@rule("mean")
def _mean(low: Lowering, node: Node, x: Value, dims: Any = None, keepdim: bool = False, **_: Any) -> Array:
    return _average(low, as_dtype(low, x, result_dtype(node)), dims, keepdim)


def _average(low: Lowering, a: Array, dims: Any, keepdim: bool, correction: float = 0) -> Array:
    """The sum along `dims`, divided by the number of elements less `correction`."""
    total = reduce(low, a, dims, keepdim, "add", Number(0.0, a.dtype))
    count = numel(a.shape) / max(1, numel(total.shape)) - correction
    return low.elementwise("div", total, float(max(0, count)))


@rule("var")
def _var(
    low: Lowering,
    node: Node,
    x: Value,
    dims: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    **_: Any,
) -> Array:
    if isinstance(dims, bool):  # var(x, unbiased)
        dims, unbiased = None, dims
    a = as_dtype(low, x, result_dtype(node))
    away = low.store(low.elementwise("sub", a, low.store(_average(low, a, dims, True))))
    squares = low.elementwise("mul", away, away)
    return _average(low, squares, dims, keepdim, unbiased if correction is None else correction)


@rule("prod")
def _prod(low: Lowering, node: Node, x: Value, dims: Any = None, keepdim: bool = False, **_: Any) -> Array:
    dtype = result_dtype(node)
    return reduce(low, as_dtype(low, x, dtype), dims, keepdim, "mul", Number(1 if dtype == INT else 1.0, dtype))


@rule("any")
def _any(low: Lowering, node: Node, x: Value, dims: Any = None, keepdim: bool = False) -> Array:
    return reduce(low, as_dtype(low, x, BOOL), dims, keepdim, "or", Number(False, BOOL))


@rule("all")
def _all(low: Lowering, node: Node, x: Value, dims: Any = None, keepdim: bool = False) -> Array:
    return reduce(low, as_dtype(low, x, BOOL), dims, keepdim, "and", Number(True, BOOL))


@rule("amax", "amin")
def _amax(low: Lowering, node: Node, x: Value, dims: Any = None, keepdim: bool = False) -> Array:
    return _extreme(low, low.array(x), dims, keepdim, op_name(node)[1:])


def _extreme(low: Lowering, a: Array, dims: Any, keepdim: bool, name: str) -> Array:
    if a.dtype == BOOL:
        return (_any if name == "max" else _all)(low, None, a, dims, keepdim)
    return reduce(low, a, dims, keepdim, name, least(a.dtype, name))


def least(dtype: str, name: str) -> Number:
    """What `max`, or `min`, of no numbers is."""
    if dtype == BOOL:
        return Number(name == "min", BOOL)
    sign = -1 if name == "max" else 1
    return Number(sign * (2**62) if dtype == INT else sign * float("inf"), dtype)


@rule("max", "min")
def _max(low: Lowering, node: Node, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    name = op_name(node)
    if dim is None:
        return _extreme(low, low.array(x), None, False, name)
    if isinstance(dim, int):
        return _arg(low, x, dim, keepdim, name)
    return extremum(low, name, x, dim, result_dtype(node))


@rule("argmax", "argmin")
def _argmax(low: Lowering, node: Node, x: Value, dim: Any = None, keepdim: bool = False) -> Array:
    a = low.array(x)
    if dim is None:
        a, dim, keepdim = reshape(low, a, (numel(a.shape),)), 0, False
    place = _arg(low, a, dim, keepdim, op_name(node)[3:])[1]
    return reshape(low, place, tuple(node.meta["val"].shape))


def _arg(low: Lowering, x: Value, dim: int, keepdim: bool, name: str) -> tuple[Array, Array]:
    """The extreme values along an axis and where they first stand; a NaN counts as the most extreme."""
    given, a = low.array(x), _numbers(low, x)
    if not a.shape:
        return a, low.store(0)
    dim %= len(a.shape)
    kept = tuple(1 if d == dim else n for d, n in enumerate(a.shape))
    values, places = low.alloc(kept, a.dtype), low.alloc(kept, INT)

    def element(index: list[Index]) -> None:
        best = low.local(a.dtype, a.at(index))
        place = low.local(INT, Number(0, INT))

        def compare(k: Index) -> None:
            e = a.at(_merge(index, [dim], [k]))
            better = Call("gt" if name == "max" else "lt", (e, best), BOOL)
            if a.dtype != INT:
                # What is not worse or equal, but may be no number.
                worse = Call("le" if name == "max" else "ge", (e, best), BOOL)
                better = Call("and", (Call("not", (worse,), BOOL), Call("eq", (best, best), BOOL)), BOOL)
            flag = low.local(BOOL, better)
            low.emit(Assign(best, Call("where", (flag, e, best), a.dtype)))
            low.emit(Assign(place, Call("where", (flag, FromIndex(k), place), INT)))

        def iteration(k: Index) -> None:
            counts = _counts(given.at(_merge(index, [dim], [k])), least(a.dtype, name))
            if counts is None or a.shape[dim] < MANY or low.elements:
                compare(k)
            else:
                low.choose(counts, lambda: compare(k), lambda: None)

        low.loop(a.shape[dim], iteration, start=1)
        low.emit(Store(values.buffer, values.address(index), best))
        low.emit(Store(places.buffer, places.address(index), place))

    low.nest(kept, element)
    found = as_dtype(low, values, low.array(x).dtype)
    return (found, places) if keepdim else (fix(low, found, dim, 0), fix(low, places, dim, 0))


def _counts(e: Expr, worst: Number) -> Expr | None:
    """The flag without which `e` is no better than any other number, if there is one."""
    if not isinstance(e, Call) or e.op != "where" or e.args[1] != worst:
        return None
    masked = e.args[0]
    return masked.args[0] if isinstance(masked, Call) and masked.op == "not" else Call("not", (masked,), BOOL)


def _numbers(low: Lowering, x: Value) -> View:
    """`x` as stored elements that can be compared; a mask is not a number that could be smaller than another."""
    a = low.array(x)
    return low.stored(as_dtype(low, a, INT) if a.dtype == BOOL else a)


@rule("cumsum", "cumprod")
def _cumsum(low: Lowering, node: Node, x: Value, dim: int, **_: Any) -> Array:
    dtype = result_dtype(node)
    a = as_dtype(low, x, dtype)
    if not a.shape:
        return a
    dim %= len(a.shape)
    out = low.alloc(a.shape, dtype)
    op, start = ("add", 0) if op_name(node) == "cumsum" else ("mul", 1)
    kept = tuple(1 if d == dim else n for d, n in enumerate(a.shape))

    def element(index: list[Index]) -> None:
        total = low.local(dtype, Number(start if dtype == INT else float(start), dtype))

        def add(k: Index) -> None:
            own = _merge(index, [dim], [k])
            low.emit(Assign(total, call(op, total, a.at(own), dtype=dtype)))
            low.emit(Store(out.buffer, out.address(own), total))

        low.loop(a.shape[dim], add)

    low.nest(kept, element)
    return out


def _listed(
    low: Lowering,
    n: int,
    which: Callable[[Index], Index],
    found: Index,
    at: Callable[[Index], Expr],
    is_meant: Callable[[Expr], Expr],
    filling: Expr,
) -> tuple[Callable[[Index], Expr], Index, Callable[[Index], Expr]]:
    """Lists that each world has for itself of what is meant of n elements, in their order.

    Which element each entry is, how long the longest list is, and the entries themselves; shorter ones are filled up.

    which, found: a list of elements that has all that are meant in any world, and its length
    """
    dtype = filling.dtype
    entries, rows = low.alloc((n + 1,), dtype), low.alloc((n + 1,), INT)
    count = low.local(INT, Number(0, INT))

    def append(q: Index) -> None:
        mine = low.local(dtype, at(which(q)))
        meant = low.local(BOOL, is_meant(mine))
        # What is not meant is written past all places.
        place = low.local(INT, Call("where", (meant, count, Number(n, INT)), INT))
        low.emit(store(entries.buffer, entries.base, mine, place))
        low.emit(store(rows.buffer, rows.base, FromIndex(which(q)), place))
        low.emit(Assign(count, call("add", count, cast(meant, INT), dtype=INT)))

    def is_there(q: Index) -> Expr:
        return Call("lt", (FromIndex(q), count), BOOL)

    def fill(q: Index) -> None:
        value = Call("where", (is_there(q), entries.at([q]), filling), dtype)
        low.emit(Store(entries.buffer, entries.address([q]), value))

    low.loop(found, append)
    _, longest = low.compact(n, is_there)
    low.loop(longest, fill)
    return lambda q: rows.at([q]), longest, lambda q: entries.at([q])


@rule("sort")
def _sort(
    low: Lowering, node: Node, x: Value, *args: Any, dim: int = -1, descending: bool = False, stable: bool = True
) -> Any:
    dim, descending = (*args, *(dim, descending)[len(args) :])
    shape = low.array(x).shape
    return ordered(low, x, dim, _asked_for(low, node, dim, shape[dim]) if shape else 1, descending)


def _asked_for(low: Lowering, node: Node, dim: int, size: int) -> int:
    """How many elements along an axis are used of what `sort` gives: the first ones, if the others are cut off."""
    if not low.inline:  # all of it is to be looked at
        return size
    most = 1
    for part in node.users:
        for user in part.users:
            given: Any = user.args[1:4] if op_name(user) == "slice" else ()
            axis, _, stop = given if len(given) == 3 else (0, 0, -1)
            if (axis - dim) % len(part.meta["val"].shape) or not 0 <= stop <= size:
                return size
            most = max(most, stop)
    return most


@rule("topk")
def _topk(low: Lowering, node: Node, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return ordered(low, x, dim, k, largest)


def ordered(low: Lowering, x: Value, dim: int, count: int, descending: bool) -> tuple[Array, View]:
    """The first `count` elements along an axis in stable order, and where they stood; a NaN counts as the greatest.

    Each element's rank is the number of elements that go before it: quadratic, but without a branch. Among many
    elements the infinities that come last are left out: they mark what is not meant to be found, and most may be such.
    """
    a = _numbers(low, x)
    if not a.shape:
        values, places = ordered(low, reshape(low, a, (1,)), 0, count, descending)
        return (fix(low, values, 0, 0), fix(low, places, 0, 0)) if count else (values, places)
    dim %= len(a.shape)
    n = a.shape[dim]
    shape = tuple(count if d == dim else s for d, s in enumerate(a.shape))
    kept = tuple(1 if d == dim else s for d, s in enumerate(a.shape))
    # One slot more than is asked for takes all the elements that come too late.
    wide = tuple(count + 1 if d == dim else s for d, s in enumerate(a.shape))
    values, places = low.alloc(wide, a.dtype), low.alloc(wide, INT)

    # Counted in the numbers' own dtype: adding one where a comparison holds is then one instruction.
    unit = a.dtype
    one, none = number(1, unit), number(0, unit)

    def add_if(total: Local, condition: Expr) -> None:
        low.emit(Assign(total, call("add", total, Call("where", (condition, one, none), unit), dtype=unit)))

    def element(index: list[Index]) -> None:
        def at(i: Index) -> Expr:
            return a.at(_merge(index, [dim], [i]))

        last = number(0 if unit == INT else -math.inf if descending else math.inf, unit)

        def is_nearer(x: Expr) -> Expr:
            return Call("gt" if descending else "lt", (x, last), BOOL)

        # Comparisons with NaN are false, so NaN is not counted: the other elements, and those so far.
        others, seen, nearer = (low.local(unit, none) for _ in range(3))

        def tell(i: Index) -> None:
            add_if(others, Call("eq", (at(i), at(i)), BOOL))
            if n >= MANY and not low.elements:
                add_if(nearer, is_nearer(at(i)))

        if unit != INT:
            low.loop(n, tell)
        nans = call("sub", number(n, unit), others, dtype=unit)

        def after_nan(place: Expr, mine: Expr, before: Expr = seen) -> Expr:
            """The rank of `mine` if it has `place` among the numbers, and so many NaN are `before` it."""
            if unit == INT:
                return place
            number_place = call("add", place, nans, dtype=unit) if descending else place
            nan_place = before if descending else call("add", others, before, dtype=unit)
            return Call("where", (Call("ne", (mine, mine), BOOL), nan_place, number_place), unit)

        def count_before(place: Local, mine: Expr, k: Index, stop: Index, key: Callable[[Index], Expr]) -> None:
            weak, strict = ("ge", "gt") if descending else ("le", "lt")
            low.loop(k, lambda j: add_if(place, Call(weak, (key(j), mine), BOOL)))
            low.loop(stop, lambda j: add_if(place, Call(strict, (key(j), mine), BOOL)), start=k + 1)

        def put(i: Index | Expr, mine: Expr, place: Expr) -> None:
            if count < n:
                place = Call("min", (place, number(count, unit)), unit)
            stride = values.axes[dim][1] - values.axes[dim][0] if count else 0
            offset = call("mul", cast(place, INT), Number(stride, INT), dtype=INT)
            base = values.address(_merge(index, [dim], [Index()]))
            low.emit(store(values.buffer, base, mine, offset))
            low.emit(store(places.buffer, base, FromIndex(i) if isinstance(i, Index) else i, offset))

        def rank(i: Index) -> None:
            mine, place = low.local(a.dtype, at(i)), low.local(unit, none)
            count_before(place, mine, i, Index(n), at)
            put(i, mine, after_nan(place, mine))
            add_if(seen, Call("ne", (mine, mine), BOOL))

        def side_by_side() -> None:
            """Each element by itself; without NaN, those that come last in the order in which they stand."""

            def put_if_early(i: Index, mine: Expr, place: Expr) -> None:
                rank = low.local(unit, place)
                early = Call("lt", (rank, number(count, unit)), BOOL)
                low.choose(early, lambda: put(i, mine, rank), lambda: None)

            def alone(i: Index) -> None:
                mine, place, before = low.local(a.dtype, at(i)), low.local(unit, none), low.local(unit, none)
                count_before(place, mine, i, Index(n), at)
                if unit != INT:
                    low.loop(i, lambda j: add_if(before, Call("ne", (at(j), at(j)), BOOL)))
                put_if_early(i, mine, after_nan(place, mine, before))

            def general() -> None:
                low.loop(n, alone, parallel=True)

            def nearer_first() -> None:
                which, found = low.compact(n, lambda i: is_nearer(at(i)))
                others, rest = low.compact(n, lambda i: Call("not", (is_nearer(at(i)),), BOOL))

                def nearer(q: Index) -> None:
                    mine, place = low.local(a.dtype, at(which(q))), low.local(unit, none)
                    count_before(place, mine, q, found, lambda p: at(which(p)))
                    put_if_early(which(q), mine, place)

                def other(q: Index) -> None:
                    put_if_early(others(q), at(others(q)), cast(FromIndex(found + q), unit))

                low.loop(found, nearer, parallel=True)
                low.loop(rest, other, parallel=True)

            if unit == INT or n < MANY:
                general()
            else:
                low.choose(Call("gt", (nans, none), BOOL), general, lambda: low.group(nearer_first))

        if low.elements:
            side_by_side()
            return
        if unit == INT or n < MANY:
            low.loop(n, rank)
            return

        def nearest_first() -> None:
            """Without NaN: those that come last do so in the order in which they stand, so early ones stand early."""
            which, found = low.compact(n, lambda i: is_nearer(at(i)))
            far = low.local(unit, nearer)
            listed = which, found, lambda q: at(which(q))
            if n >= APART:
                listed = _listed(low, n, which, found, at, is_nearer, last)
            row_of, longest, key = listed

            def put_nearer(q: Index) -> None:
                mine, place = low.local(a.dtype, key(q)), low.local(unit, none)
                count_before(place, mine, q, longest, key)
                put(row_of(q), mine, Call("where", (is_nearer(mine), place, number(count, unit)), unit))

            def put_last(i: Index) -> None:
                mine = low.local(a.dtype, at(i))
                put(i, mine, Call("where", (is_nearer(mine), number(count, unit), far), unit))
                add_if(far, Call("eq", (mine, last), BOOL))

            low.loop(longest, put_nearer)
            low.loop(min(n, count), put_last)

        low.choose(Call("gt", (nans, none), BOOL), lambda: low.loop(n, rank), lambda: low.group(nearest_first))

    low.nest(kept, element)
    axes = tuple(axis[:count] if d == dim else axis for d, axis in enumerate(values.axes))
    assert tuple(len(axis) for axis in axes) == shape
    found = as_dtype(low, View(values.buffer, values.base, axes), low.array(x).dtype)
    return found, View(places.buffer, places.base, axes)
