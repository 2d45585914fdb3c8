"""The residual `A f + b` of the dual problem, kept up to date while single forces change.

`A = J M^-1 J' = W W'` with `W = J L^-1` and `M = L' L`. Rows here are those that are active in a world, one after the
other: so what is looked at grows with their number, and not with the number of slots. Both classes are one operator.
"""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.control_flow.context import wants_scans
from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.math.compact import room

# A is not formed where A and W have more numbers than this; of so few dofs than that: few of so many rows are active.
# Cassie on a height field, with room for 296 rows, takes 1.2 times as long without, 222 dofs 3.3 times as long with.
MOST = 40_000
FEW_DOFS, MOST_OF_FEW = 64, 250_000
# Numbers that compiled code updates together.
WIDTH = 16


@tree.dataclass(kw_only=True)
class Formed(tree.Tree):
    """A, for few rows: to change a force takes time in proportion to their number.

    A: (nefc * nchunk, width) rows, each in chunks
    b: (nchunk, width), R: (nefc,)
    count: () how many chunks are active
    """

    A: Tensor
    b: Tensor
    R: Tensor
    count: Tensor

    def start(self, force: Tensor, count: Tensor) -> Tensor:
        """What is kept up to date: `A f + b` (nchunk, width) under `force (nefc,)`, of which `count ()` are read."""
        if not wants_scans():
            return self.b + force @ self.A
        chunks, width = self.b.shape

        def chunk(c: Tensor, state: Tensor) -> Tensor:
            def row(k: Tensor, total: Tensor) -> Tensor:
                return total + force.index_select(0, k[None]) * self.A.index_select(0, (k * chunks + c)[None])[0]

            total = fori_loop(0, count, row, self.b.index_select(0, c[None])[0])
            return state.scatter(0, c.expand(1, width), total[None])

        return fori_loop(0, self.count, chunk, room(self.b, *self.b.shape))

    def at(self, state: Tensor, rows: Tensor) -> Tensor:
        """`A f + b` of `rows (w,)`."""
        return state.flatten().index_select(0, rows)

    def block(self, rows: Tensor) -> Tensor:
        """`A + R` between `rows (w,)`."""
        A = self.A.view(-1, self.b.numel()).index_select(0, rows).index_select(1, rows)
        return A + torch.where(rows[:, None] == rows, self.R.index_select(0, rows), 0.0)

    def between(self, row: Tensor, other: Tensor) -> Tensor:
        """A between `row (1,)` and `other (1,)`."""
        return self.A.flatten().index_select(0, row * self.b.numel() + other)

    def change(self, state: Tensor, rows: Tensor, delta: Tensor) -> Tensor:
        """The state after the forces of `rows (w,)` have changed by `delta (w,)`."""
        chunks, width = self.b.shape
        first = rows * chunks

        def body(c: Tensor, state: Tensor) -> Tensor:
            more = delta @ self.A.index_select(0, first + c)
            return state.scatter_add(0, c.expand(1, width), more[None])

        return fori_loop(0, self.count, body, state)


@tree.dataclass(kw_only=True)
class Factored(tree.Tree):
    """W, for many rows: to change a force takes time in proportion to the number of dofs.

    W: (nefc, nv); b, R: (nefc,)
    """

    W: Tensor
    b: Tensor
    R: Tensor

    def start(self, force: Tensor, count: Tensor) -> Tensor:
        """What is kept up to date: the velocity `W' f` (nv,) under `force (nefc,)`, of which `count ()` are read."""
        if not wants_scans():
            return force @ self.W

        def add(k: Tensor, state: Tensor) -> Tensor:
            return self.change(state, k[None], force.index_select(0, k[None]))

        return fori_loop(0, count, add, torch.zeros_like(self.W[0]))

    def at(self, state: Tensor, rows: Tensor) -> Tensor:
        """`A f + b` of `rows (w,)`."""
        return self.b.index_select(0, rows) + self.W.index_select(0, rows) @ state

    def block(self, rows: Tensor) -> Tensor:
        """`A + R` between `rows (w,)`."""
        W = self.W.index_select(0, rows)
        return W @ W.mT + torch.where(rows[:, None] == rows, self.R.index_select(0, rows), 0.0)

    def change(self, state: Tensor, rows: Tensor, delta: Tensor) -> Tensor:
        """The state after the forces of `rows (w,)` have changed by `delta (w,)`."""
        return state + delta @ self.W.index_select(0, rows)


def is_formed(nefc: int, nv: int) -> bool:
    """Whether `operator` forms A of so many rows and dofs."""
    return (nefc + WIDTH) * (nefc + nv) <= (MOST_OF_FEW if nv <= FEW_DOFS else MOST)


def padding(nefc: int, nv: int) -> int:
    """How many numbers more than rows `operator` is to be given, which are not read.

    A loop over chunks costs more than it saves where operations are called one by one.
    """
    return -nefc % WIDTH if is_formed(nefc, nv) and wants_scans() else 0


def operator(W: Tensor, b: Tensor, R: Tensor, source: Tensor, count: Tensor) -> Formed | Factored:
    """The operator of `count ()` rows.

    W: (nefc, nv) of all rows, of which those that count lie at `source (nefc,)`
    b, R: (nefc + padding,) of those that count, then filling
    """
    return (_formed if is_formed(*W.shape) else _factored)(W, b, R, source, count)


def _factored(W: Tensor, b: Tensor, R: Tensor, source: Tensor, count: Tensor) -> Factored:
    def body(k: Tensor, rows: Tensor) -> Tensor:
        row = W.index_select(0, source.index_select(0, k[None]))
        return rows.scatter(0, k.expand_as(row), row)

    return Factored(W=fori_loop(0, count, body, room(W, *W.shape)), b=b, R=R)


def _formed(W: Tensor, b: Tensor, R: Tensor, source: Tensor, count: Tensor) -> Formed:
    n, nv = W.shape
    if not wants_scans():
        W = W.index_select(0, source)
        return Formed(A=W @ W.mT, b=b[None], R=R, count=torch.ones_like(count))
    chunks = len(b) // WIDTH
    active = (count + WIDTH - 1) // WIDTH

    def gather(k: Tensor, columns: Tensor) -> Tensor:
        column = W.index_select(0, source.index_select(0, k[None])).mT
        return columns.scatter(1, k.expand_as(column), column)

    columns = fori_loop(0, count, gather, room(W, nv, len(b)))

    def row(k: Tensor, A: Tensor) -> Tensor:
        def chunk(c: Tensor, A: Tensor) -> Tensor:
            def of(j: Tensor) -> Tensor:
                factor = columns.flatten().index_select(0, (j * len(b) + k)[None])
                return factor * columns.view(-1, WIDTH).index_select(0, (j * chunks + c)[None])[0]

            total = fori_loop(1, torch.full_like(count, nv), lambda j, total: total + of(j), of(torch.zeros_like(k)))
            return A.scatter(0, (k * chunks + c).expand(1, WIDTH), total[None])

        return fori_loop(0, active, chunk, A)

    A = fori_loop(0, count, row, room(W, n * chunks, WIDTH))
    return Formed(A=A, b=b.view(chunks, WIDTH), R=R, count=active)
