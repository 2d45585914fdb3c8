"""Products with constant matrices of which few elements are other than zero, or whose sums have much in common."""

from __future__ import annotations

import torch

from mjtorch.compiler.ir.nodes import Assign, Expr, Index, Local, Store, lookup
from mjtorch.compiler.lower.lowering import Lowering, call
from mjtorch.compiler.lower.shared_sums import Sums, shared_sums
from mjtorch.compiler.lower.sums import accumulate
from mjtorch.compiler.lower.values import Array, Lazy, Value, View

# A constant matrix is sparse if its products add at most this share of its elements.
SPARSE = 0.5


def sparse_rows(low: Lowering, matrix: torch.Tensor, y: Array, out: View, transposed: bool) -> View:
    """`matrix @ y`, or its transpose-like `y @ matrix`, visiting the non-zeros of the constant `matrix` only.

    Sums that are part of others, as those over subtrees are, are computed once, if elements are one after another.
    """
    parts = sums_of(low, matrix)
    weights = None if is_mask(matrix) else low.constant(matrix[matrix != 0])
    y = low.store(y) if isinstance(y, Lazy) and y.cost > 0 else y

    def element(index: list[Index]) -> None:
        step, rest = (index[-1], index[:-1]) if transposed else (index[0], index[1:])

        def at(array: Array, k: Index) -> Expr:
            return array.at([*rest, k] if transposed else [k, *rest])

        def term(p: Index) -> Expr:
            e = at(y, lookup(parts.terms, p))
            return e if weights is None else call("mul", weights.at([p]), e, dtype=out.dtype)

        first, last = (lookup(x, step) for x in (parts.first_term[:-1], parts.first_term[1:]))
        total = accumulate(low, out.dtype, last, term, start=first)
        if len(parts.sums):
            first, last = (lookup(x, step) for x in (parts.first_sum[:-1], parts.first_sum[1:]))
            low.loop(last, lambda p: low.emit(add_to(total, at(out, lookup(parts.sums, p)))), first)
        row = lookup(parts.order, step)
        low.emit(Store(out.buffer, out.address([*rest, row] if transposed else [row, *rest]), total))

    low.nest(out.shape, element)
    return out


def add_to(total: Local, x: Expr) -> Assign:
    """The statement that adds to a variable."""
    return Assign(total, call("add", total, x, dtype=total.dtype))


def is_mask(matrix: torch.Tensor) -> bool:
    """Whether all elements are 0 or 1."""
    return bool(((matrix == 0) | (matrix == 1)).all())


def sums_of(low: Lowering, matrix: torch.Tensor) -> Sums:
    """What the products of a constant matrix are summed of."""
    member = (matrix != 0).cpu().numpy()
    return shared_sums(member) if is_mask(matrix) and not low.elements else Sums.of_all(member)


def is_sparse(low: Lowering, x: Value) -> bool:
    """Whether `x` is a constant matrix whose products are sums of little: few of its elements, or few other sums."""
    return not low.exact and isinstance(x, torch.Tensor) and x.dim() == 2 and sums_of(low, x).size <= SPARSE * x.numel()
