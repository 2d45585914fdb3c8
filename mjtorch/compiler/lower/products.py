"""Rules for products of matrices and vectors: true loops, never unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.fx import Node

from mjtorch.compiler.ir.nodes import (
    Assign,
    Expr,
    Index,
    Local,
    Store,
    lookup,
)
from mjtorch.compiler.lower import elements, patterns
from mjtorch.compiler.lower.lowering import Lowering, call, rule
from mjtorch.compiler.lower.shape import fix, take_axes, transposed, whole
from mjtorch.compiler.lower.sums import MANY_ROWS, accumulate, may_skip, nonzero, nonzero_rows, some, zero
from mjtorch.compiler.lower.values import Array, Lazy, Value, View, broadcast

# A constant matrix with at most this share of non-zeros is multiplied by visiting those only.
SPARSE = 0.5


def product(
    low: Lowering, x: Value, y: Value, shape: Sequence[int], inner: int, left: Callable, right: Callable
) -> View:
    """`out[i] = sum over k of x[left(i, k)] * y[right(i, k)]`, where few elements are read more than once."""
    a, b = low.array(x), low.array(y)
    out = low.alloc(shape, a.dtype)

    def element(index: list[Index]) -> None:
        def term(k: Index) -> Expr:
            return call("mul", a.at(left(index, k)), b.at(right(index, k)), dtype=a.dtype)

        low.emit(Store(out.buffer, out.address(index), accumulate(low, a.dtype, inner, term)))

    low.nest(shape, element)
    return out


def matrix_product(low: Lowering, a: Array, b: Array) -> View:
    """`a @ b`, in blocks of columns.

    Rows of `b`, or of `a`, that are zero in all worlds side by side are left out, where there are many: so inactive
    constraints cost nothing. (A zero that meets an infinity or NaN in such a row then gives 0, not NaN.)
    """
    (m, inner), n, dtype = a.shape, b.shape[1], a.dtype
    if m == 1 and n <= BLOCK and isinstance(b, Lazy) and b.cost > 0 and may_skip(low, inner) and not low.elements:
        return few_sums(low, low.stored(a) if n > 1 and isinstance(a, Lazy) and a.cost > 0 else a, b)
    a, b = (low.stored(x) if isinstance(x, Lazy) and x.cost > 0 and n > 1 else x for x in (a, b))
    if isinstance(b, Lazy) and b.cost > 0 and m > 1:
        b = low.stored(b)
    if low.elements:
        return elements.matrix_product(low, a, b)
    out = low.alloc((m, n), dtype)

    def write() -> None:
        rows, count = _nonzero_rows(low, a, b) if may_skip(low, inner) and n > 1 else (lambda k: k, Index(inner))

        def row(i: Index) -> None:
            _columns(low, out, i, Index(n), count, lambda k: a.at([i, rows(k)]), lambda k, j: b.at([rows(k), j]))

        def row_if_any(i: Index) -> None:
            empty = View(out.buffer, out.address([i, Index()]), out.axes[1:])
            flag = some(low, inner, lambda k: nonzero(a.at([i, k])))
            low.choose(flag, lambda: row(i), lambda: low.store(0.0, empty))

        low.loop(m, row_if_any if may_skip(low, m) and n >= WIDE and inner < MANY_ROWS else row)

    low.group(write)
    return out


# How many sums a dot product is made of, and from how many terms on it is better that some may be left out.
CHAINS, MANY = 4, 32
# Columns that are computed at a time: each element of the left matrix is loaded once for all of them.
BLOCK = 4
# A row of so many sums of few terms is left out if they are zero.
WIDE = 8


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


def _nonzero_rows(low: Lowering, a: Array, b: Array) -> tuple[Callable[[Index], Index], Index]:
    if a.shape[0] == 1:
        return low.compact(a.shape[1], lambda k: nonzero(a.at([Index(), k])))

    return low.compact(b.shape[0], lambda k: some(low, b.shape[1], lambda j: nonzero(b.at([k, j]))))


def _columns(
    low: Lowering,
    out: View,
    i: Index,
    n: Index,
    inner: Index,
    left: Callable[[Index], Expr],
    right: Callable[[Index, Index], Expr],
) -> None:
    """`out[i, j] = sum over k < inner of left(k) * right(k, j)` for `j < n`, a constant."""
    dtype, size = out.dtype, n.base

    def block(j: Index, width: int) -> None:
        totals = [low.local(dtype, zero(dtype)) for _ in range(width)]

        def add(k: Index) -> None:
            x = low.local(dtype, left(k)) if width > 1 else left(k)
            for t, total in enumerate(totals):
                low.emit(Assign(total, call("add", total, call("mul", x, right(k, j + t), dtype=dtype), dtype=dtype)))

        low.loop(inner, add)
        for t, total in enumerate(totals):
            low.emit(Store(out.buffer, out.address([i, j + t]), total))

    low.loop(size // BLOCK, lambda q: block(q * BLOCK, BLOCK))
    for j in range(size - size % BLOCK, size):
        low.group(lambda j=j: block(Index(j), 1))


def has_pattern(low: Lowering, n: int) -> bool:
    """Whether the zeros of a matrix with n columns are looked for when the program runs."""
    return n >= patterns.MANY_COLUMNS and not low.exact and not low.elements


def gram_weight(x: Value, y: Value) -> Array | None:
    """The `w` for which `x @ y` is `J.T @ (w[:, None] * J)`, if there is one."""
    if not (isinstance(x, View) and isinstance(y, Lazy) and y.op == "mul"):
        return None
    for matrix, weight in (y.args, y.args[::-1]):
        same = isinstance(matrix, View) and matrix.buffer is x.buffer and matrix.base == x.base
        if same and matrix.axes == x.axes[::-1] and weight.shape == (matrix.shape[0], 1):
            return weight
    return None


def gram(low: Lowering, x: View, weight: Array) -> View:
    """`J.T @ diag(weight) @ J`, given `x = J.T`: the lower triangle is computed, the upper copied.

    Rows whose weight is zero in all worlds side by side are left out.
    """
    n, inner, dtype = x.shape[0], x.shape[1], x.dtype
    if isinstance(weight, Lazy) and weight.cost > 0:
        weight = low.stored(weight)
    if low.elements:
        return elements.gram(low, x, weight)
    out, scaled = low.alloc((n, n), dtype), low.alloc((inner,), dtype)

    def write() -> None:
        rows, count = nonzero_rows(low, inner, lambda k: nonzero(weight.at([k, Index()])))

        def row(i: Index) -> None:
            def scale(k: Index) -> None:
                value = call("mul", weight.at([rows(k), Index()]), x.at([i, rows(k)]), dtype=dtype)
                low.emit(Store(scaled.buffer, scaled.address([k]), value))

            low.loop(count, scale)

            def block(q: Index) -> None:
                totals = [low.local(dtype, zero(dtype)) for _ in range(BLOCK)]

                def add(k: Index) -> None:
                    e = low.local(dtype, scaled.at([k]))
                    for t, total in enumerate(totals):
                        term = call("mul", e, x.at([lookup(clipped[t], q), rows(k)]), dtype=dtype)
                        low.emit(Assign(total, call("add", total, term, dtype=dtype)))

                low.loop(count, add)
                for t, total in enumerate(totals):
                    j = lookup(clipped[t], q)
                    low.emit(Store(out.buffer, out.address([i, j]), total))
                    low.emit(Store(out.buffer, out.address([j, i]), total))

            # Blocks that overlap the diagonal, or the last column, compute a few elements twice.
            low.loop(lookup([k // BLOCK + 1 for k in range(n)], i), block)

        clipped = [[min(q * BLOCK + t, n - 1) for q in range(-(-n // BLOCK))] for t in range(BLOCK)]
        low.loop(n, row)

    low.group(write)
    return out


def sparse_rows(low: Lowering, matrix: torch.Tensor, y: Array, out: View, transposed: bool) -> View:
    """`matrix @ y`, or its transpose-like `y @ matrix`, visiting the non-zeros of the constant `matrix` only."""
    rows, cols = np.nonzero(matrix.cpu().numpy())
    entries = matrix[torch.tensor(rows), torch.tensor(cols)]
    start = np.searchsorted(rows, np.arange(matrix.shape[0] + 1))
    unit = bool((entries == 1).all())
    weights = low.constant(entries.contiguous())
    y = low.store(y) if isinstance(y, Lazy) and y.cost > 0 else y
    order = (lambda i: (i[-1], i[:-1])) if transposed else (lambda i: (i[0], i[1:]))

    def element(index: list[Index]) -> None:
        row, rest = order(index)

        def term(p: Index) -> Expr:
            k = lookup(cols, p)
            e = y.at([*rest, k] if transposed else [k, *rest])
            return e if unit else call("mul", weights.at([p]), e, dtype=out.dtype)

        total = accumulate(low, out.dtype, lookup(start[1:], row), term, start=lookup(start[:-1], row))
        low.emit(Store(out.buffer, out.address(index), total))

    low.nest(out.shape, element)
    return out


def is_sparse(low: Lowering, x: Value) -> bool:
    """Whether `x` is a constant matrix with few non-zeros, which are all that need be looked at."""
    return not low.exact and isinstance(x, torch.Tensor) and x.dim() == 2 and int((x != 0).sum()) <= SPARSE * x.numel()


@rule("mm")
def _mm(low: Lowering, node: Node, x: Value, y: Value) -> Array:
    shape = tuple(node.meta["val"].shape)
    a, b = low.array(x), low.array(y)
    if is_sparse(low, x):
        return sparse_rows(low, x, b, low.alloc(shape, b.dtype), False)
    if is_sparse(low, y):
        return sparse_rows(low, y.T.contiguous(), a, low.alloc(shape, a.dtype), True)
    weight = gram_weight(x, y) if a.shape[1] else None
    if weight is not None:
        if has_pattern(low, a.shape[0]):
            return patterns.gram(low, x, weight, None, patterns.half_read(low, node))
        return gram(low, x, weight)
    if a.shape[1] == 1:
        return low.elementwise("mul", x, y)
    return matrix_product(low, a, b)


@rule("mv")
def _mv(low: Lowering, node: Node, x: Value, y: Value) -> Array:
    shape = tuple(node.meta["val"].shape)
    if is_sparse(low, x):
        b = low.array(y)
        return sparse_rows(low, x, b, low.alloc(shape, b.dtype), False)
    a, b = low.array(x), low.array(y)
    if a.shape[0] == 1:
        chains = chains_of(low, a.shape[1], a, b)
        return inner_product(
            low, a.shape[1], lambda k: a.at([Index(), k]), lambda k: b.at([k]), low.alloc(shape, b.dtype), chains
        )
    b = low.stored(b) if isinstance(b, Lazy) and b.cost > 0 else b
    if a.shape[1] > a.shape[0] and may_skip(low, a.shape[1]) and not low.elements:
        row = take_axes(low, b, [None, whole(b, 0)])
        return fix(low, matrix_product(low, row, transposed(low, a)), 0, 0)
    return product(low, a, b, shape, a.shape[1], lambda i, k: [i[0], k], lambda i, k: [k])


@rule("dot", "vdot")
def _dot(low: Lowering, node: Node, x: Value, y: Value) -> View:
    a, b = low.array(x), low.array(y)
    chains = chains_of(low, a.shape[0], a, b)
    return inner_product(low, a.shape[0], lambda k: a.at([k]), lambda k: b.at([k]), low.alloc((), a.dtype), chains)


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


@rule("bmm")
def _bmm(low: Lowering, node: Node, x: Value, y: Value) -> View:
    a, b = (low.stored(v) if isinstance(v := low.array(z), Lazy) and v.cost > 0 else v for z in (x, y))
    shape = tuple(node.meta["val"].shape)
    return product(low, a, b, shape, a.shape[2], lambda i, k: [i[0], i[1], k], lambda i, k: [i[0], k, i[2]])


@rule("addmm")
def _addmm(low: Lowering, node: Node, c: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Array:
    weight, first = gram_weight(x, y), low.array(c)
    shape = tuple(node.meta["val"].shape)
    if weight is not None and beta == alpha == 1 and has_pattern(low, shape[0]):
        half = patterns.half_read(low, node)
        if half != patterns.BOTH:  # which need not be the same in what is added
            whole = Lazy(shape, first.dtype, lambda i: broadcast(first, shape, i), 0)
            return patterns.gram(low, x, weight, whole, half)
    out = low.elementwise("mul", _mm(low, node, x, y), alpha)
    return low.elementwise("add", low.elementwise("mul", c, beta), out)


@rule("linalg_cross")
def _cross(low: Lowering, node: Node, x: Value, y: Value, *, dim: int = -1) -> Lazy:
    shape = tuple(node.meta["val"].shape)
    dim %= len(shape)
    a, b = (low.store(v) if isinstance(v := low.array(z), Lazy) and v.cost > 1 else v for z in (x, y))

    def at(index: Sequence[Index]) -> Expr:
        def element(v: Array, shift: int) -> Expr:
            own = list(index)
            own[dim] = lookup([(k + shift) % 3 for k in range(3)], index[dim])
            return broadcast(v, shape, own)

        dtype = a.dtype
        first = call("mul", element(a, 1), element(b, 2), dtype=dtype)
        return call("sub", first, call("mul", element(a, 2), element(b, 1), dtype=dtype), dtype=dtype)

    return Lazy(shape, a.dtype, at, 3)
