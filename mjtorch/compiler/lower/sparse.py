"""Products with constant matrices of which few elements are other than zero, or whose sums have much in common."""

from __future__ import annotations

import torch

from mjtorch.compiler.ir.nodes import Expr, Index, Store, lookup
from mjtorch.compiler.lower.lowering import Lowering, call
from mjtorch.compiler.lower.shared_sums import Sums, shared_sums
from mjtorch.compiler.lower.sums import accumulate
from mjtorch.compiler.lower.values import Array, Lazy, Value, View

# A constant matrix is sparse if its products add at most this share of its elements.
SPARSE = 0.5


def sparse_rows(low: Lowering, matrix: torch.Tensor, parts: Sums, y: Array, out: View, transposed: bool) -> View:
    """`matrix @ y`, or its transpose-like `y @ matrix`, of a constant `matrix` and the sums that it is made of."""
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
            total = accumulate(low, out.dtype, last, lambda p: at(out, lookup(parts.sums, p)), start=first, first=total)
        row = lookup(parts.order, step)
        low.emit(Store(out.buffer, out.address([*rest, row] if transposed else [row, *rest]), total))

    low.nest(out.shape, element)
    return out


def is_mask(matrix: torch.Tensor) -> bool:
    """Whether all elements are 0 or 1."""
    return bool(((matrix == 0) | (matrix == 1)).all())


def sums_of(low: Lowering, x: Value) -> Sums | None:
    """What the products of `x` are summed of, if it is a constant matrix and that is little.

    Few of its elements, or few other sums: those that are part of others, as those over subtrees are, are computed
    once, if elements are one after another.
    """
    if low.exact or not isinstance(x, torch.Tensor) or x.dim() != 2:
        return None
    member = (x != 0).cpu().numpy()
    found = shared_sums(member) if is_mask(x) and not low.elements else Sums.of_all(member)
    return found if found.size <= SPARSE * x.numel() else None
