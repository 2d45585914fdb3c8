"""Products with constant matrices of which few elements are other than zero, or whose sums have much in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mjtorch.compiler.ir.nodes import Assign, Index, Store, lookup
from mjtorch.compiler.lower.lowering import Lowering, call
from mjtorch.compiler.lower.shared_sums import Sums, shared_sums
from mjtorch.compiler.lower.sums import zero
from mjtorch.compiler.lower.values import Array, Lazy, Value, View

# Columns that are summed at a time.
TOGETHER = 8
# A constant matrix is sparse if its products add at most this share of its elements.
SPARSE = 0.5


def sparse_rows(low: Lowering, matrix: torch.Tensor, parts: Sums, y: Array, out: View, transposed: bool) -> View:
    """`matrix @ y`, or its transpose-like `y @ matrix`, of a constant `matrix` and the sums that it is made of.

    Columns are summed together: each number of the sparse matrix is looked up once for all of them.
    """
    weights = None if is_mask(matrix) else low.constant(matrix[matrix != 0])
    again = len(parts.terms) > y.shape[-1 if transposed else 0]
    y = low.store(y) if isinstance(y, Lazy) and y.cost > 0 and again else y
    lead = out.shape[:-1] if transposed else out.shape[1:]
    width = TOGETHER if len(lead) == 1 and not low.elements else 1

    def rows(step: Index, columns: Sequence[Sequence[Index]]) -> None:
        totals = [low.local(out.dtype, zero(out.dtype)) for _ in columns]

        def sum_up(array: Array, table: np.ndarray, starts: np.ndarray, weights: View | None) -> None:
            def add(p: Index) -> None:
                k, weight = lookup(table, p), None if weights is None else low.local(out.dtype, weights.at([p]))
                for total, rest in zip(totals, columns, strict=True):
                    e = array.at([*rest, k] if transposed else [k, *rest])
                    e = e if weight is None else call("mul", weight, e, dtype=out.dtype)
                    low.emit(Assign(total, call("add", total, e, dtype=out.dtype)))

            low.loop(lookup(starts[1:], step), add, start=lookup(starts[:-1], step))

        sum_up(y, parts.terms, parts.first_term, weights)
        if len(parts.sums):
            sum_up(out, parts.sums, parts.first_sum, None)
        row = lookup(parts.order, step)
        for total, rest in zip(totals, columns, strict=True):
            low.emit(Store(out.buffer, out.address([*rest, row] if transposed else [row, *rest]), total))

    def every(step: Index) -> None:
        if width == 1:
            low.nest(lead, lambda rest: rows(step, [rest]))
            return
        (count,) = lead
        low.loop(count // width, lambda q: rows(step, [[q * width + c] for c in range(width)]))
        if count % width:
            low.group(lambda: rows(step, [[Index(c)] for c in range(count - count % width, count)]))

    low.loop(len(parts.order), every)
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
