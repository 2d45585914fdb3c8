"""The residual `A f + b` of the dual problem, kept up to date while single forces change.

`A = J M^-1 J' = W W'` with `W = J L^-1` and `M = L' L`. Rows here are those that are active in a world, one after the
other: so what is looked at grows with their number, and not with the number of slots. All three classes are one
operator: A, or W where A would be large, and W in parts, of which compiled code goes through those that are not zero.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from mjtorch import tree
from mjtorch.control_flow.context import wants_scans
from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.math.compact import compacted, room

# A is not formed where A and W have more numbers than this; of so few dofs than that: few of so many rows are active.
MOST = 40_000
FEW_DOFS, MOST_OF_FEW = 64, 250_000
# In place of these, where A has more than this in compiled code: it touches what is active, of one world after another.
MOST_COMPILED = 1_500_000
# Numbers that compiled code updates together, and dofs, and rows, that it looks at together.
WIDTH, PART = 32, 4


@tree.dataclass(kw_only=True)
class Listed(tree.Tree):
    """W, of which a row has few dofs: to change a force takes time in proportion to their number.

    Dofs are in parts of `PART`, the last filled up. A row has the dofs of the chains that it is about.

    W: (nefc * nparts, PART); b: (nefc,); diagonal: (nefc,) of A
    part: (nefc * nparts,) the parts in which a row is not zero, then filling; size: (nefc,) how many they are
    """

    W: Tensor
    b: Tensor
    diagonal: Tensor
    part: Tensor
    size: Tensor

    def start(self, force: Tensor, count: Tensor) -> Tensor:
        """What is kept up to date: the velocity `W' f` (nparts, PART) under `force`, of which `count ()` are read."""
        velocity = self.W.new_zeros(len(self.part) // len(self.size), PART)

        def add(k: Tensor, state: Tensor) -> Tensor:
            return self.change(state, k[None], force.index_select(0, k[None]))

        return fori_loop(0, count, add, velocity)

    def at(self, state: Tensor, rows: Tensor) -> Tensor:
        """`A f + b` of `rows (w,)`."""
        return torch.cat([self.b.index_select(0, row) + self.dot(state, row) for row in rows.split(1)])

    def change(self, state: Tensor, rows: Tensor, delta: Tensor) -> Tensor:
        """The state after the forces of `rows (w,)` have changed by `delta (w,)`."""
        for row, more in zip(rows.split(1), delta.split(1), strict=True):
            state = self.add(state, row, more)
        return state

    def dot(self, state: Tensor, row: Tensor) -> Tensor:
        """The row `row (1,)` by the velocity (1,)."""

        def add(k: Tensor, total: Tensor) -> Tensor:
            part, W = self.of(row, k)
            return total + W * state.index_select(0, part)

        total = fori_loop(0, self.size.index_select(0, row)[0], add, state.new_zeros(1, PART))
        return total.sum(1)

    def add(self, state: Tensor, row: Tensor, delta: Tensor) -> Tensor:
        """The velocity after the force of `row (1,)` has changed by `delta (1,)`."""

        def add(k: Tensor, state: Tensor) -> Tensor:
            part, W = self.of(row, k)
            return state.scatter_add(0, part[:, None].expand_as(W), delta * W)

        return fori_loop(0, self.size.index_select(0, row)[0], add, state)

    def of(self, row: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The part (1,) of `row (1,)` that is the `k ()`th that is not zero, and the row there (1, PART)."""
        first = row * (len(self.part) // len(self.size))
        part = self.part.index_select(0, first + k)
        return part, self.W.index_select(0, first + part)


@tree.dataclass(kw_only=True)
class Formed(tree.Tree):
    """A, for few rows: to change a force takes time in proportion to their number.

    A: (nefc * nchunk, width) the rows of A one after the other, each in as many chunks as are active
    b: (nchunk, width), diagonal: (nefc,) of A
    count: () how many chunks are active
    """

    A: Tensor
    b: Tensor
    diagonal: Tensor
    count: Tensor

    def start(self, force: Tensor, count: Tensor) -> Tensor:
        """What is kept up to date: `A f + b` (nchunk, width) under `force (nefc,)`, of which `count ()` are read."""
        if not wants_scans():
            return self.b + force @ self.A
        place = torch.arange(PART, device=force.device)

        def add(k: Tensor, state: Tensor) -> Tensor:
            rows = k * PART + place
            return self.change(state, rows, torch.where(rows < count, force.index_select(0, rows), 0.0))

        return fori_loop(0, (count + PART - 1) // PART, add, self.b)

    def at(self, state: Tensor, rows: Tensor) -> Tensor:
        """`A f + b` of `rows (w,)`."""
        return state.flatten().index_select(0, rows)

    def between(self, row: Tensor, other: Tensor) -> Tensor:
        """A between `row (1,)` and `other (1,)`."""
        return self.A.flatten().index_select(0, row * (self.count * self.b.shape[1]) + other)

    def change(self, state: Tensor, rows: Tensor, delta: Tensor) -> Tensor:
        """The state after the forces of `rows (w,)` have changed by `delta (w,)`."""
        first = rows * self.count

        def body(c: Tensor, state: Tensor) -> Tensor:
            more = delta @ self.A.index_select(0, first + c)
            return state.scatter_add(0, c.expand(1, self.b.shape[1]), more[None])

        return fori_loop(0, self.count, body, state)


@tree.dataclass(kw_only=True)
class Factored(tree.Tree):
    """W, for many rows: to change a force takes time in proportion to the number of dofs.

    W: (nefc, nv); b: (nefc,); diagonal: (nefc,) of A
    """

    W: Tensor
    b: Tensor
    diagonal: Tensor

    def start(self, force: Tensor, count: Tensor) -> Tensor:
        """What is kept up to date: the velocity `W' f` (nv,) under `force (nefc,)`, of which `count ()` are read."""
        return force @ self.W

    def at(self, state: Tensor, rows: Tensor) -> Tensor:
        """`A f + b` of `rows (w,)`."""
        return self.b.index_select(0, rows) + self.W.index_select(0, rows) @ state

    def change(self, state: Tensor, rows: Tensor, delta: Tensor) -> Tensor:
        """The state after the forces of `rows (w,)` have changed by `delta (w,)`."""
        return state + delta @ self.W.index_select(0, rows)


def is_formed(nefc: int, nv: int) -> bool:
    """Whether `operator` forms A of so many rows and dofs."""
    if wants_scans():
        return nefc * nefc <= MOST_COMPILED
    return (nefc + WIDTH) * (nefc + nv) <= (MOST_OF_FEW if nv <= FEW_DOFS else MOST)


def padding(nefc: int) -> int:
    """How many numbers more than rows an operator has, which are not read.

    A loop over chunks costs more than it saves where operations are called one by one.
    """
    return -nefc % WIDTH if wants_scans() else 0


def operator(W: Tensor, b: Tensor, source: Tensor, count: Tensor) -> Formed | Factored | Listed:
    """The operator of `count ()` rows.

    W: (nefc, nv), b: (nefc,) of all rows, of which those that count lie at `source (nefc,)`
    """
    if wants_scans():
        rows = listed(W, b, source, count)
        return formed(rows, count) if is_formed(*W.shape) else rows
    W, b = W.index_select(0, source), b.index_select(0, source)
    diagonal = (W * W).sum(1)
    if is_formed(*W.shape):
        return Formed(A=W @ W.mT, b=b[None], diagonal=diagonal, count=torch.ones_like(count))
    return Factored(W=W, b=b, diagonal=diagonal)


def listed(W: Tensor, b: Tensor, source: Tensor, count: Tensor) -> Listed:
    """`operator`, of W."""
    n, nv = len(b) + padding(len(b)), W.shape[1]
    nparts = -(-nv // PART)

    def gather(k: Tensor, found: list[Tensor]) -> list[Tensor]:
        at = source.index_select(0, k[None])
        row = F.pad(W.index_select(0, at), (0, nparts * PART - nv)).view(nparts, PART)
        some = (row != 0).any(1)
        part, _, _ = compacted(some, nparts)
        more = (row.view(1, -1), b.index_select(0, at), (row * row).sum(0).sum()[None], part[None], some.sum()[None])
        return [x.scatter(0, k.expand_as(new), new) for x, new in zip(found, more, strict=True)]

    # Rows that fill up the last part of rows have no parts.
    init = [room(b, n, nparts * PART), room(b, n), room(b, n), room(source, n, nparts), source.new_zeros(n)]
    rows, b, diagonal, part, size = fori_loop(0, count, gather, init)
    return Listed(W=rows.view(-1, PART), b=b, diagonal=diagonal, part=part.flatten(), size=size)


def formed(rows: Listed, count: Tensor) -> Formed:
    """A of `rows`, of which there are `count ()`."""
    n, chunks = len(rows.b), len(rows.b) // WIDTH
    nparts = len(rows.part) // n
    active = (count + WIDTH - 1) // WIDTH

    def gather(k: Tensor, columns: Tensor) -> Tensor:
        column = rows.W.view(n, -1).index_select(0, k[None]).mT
        return columns.scatter(1, k.expand_as(column), column)

    columns = fori_loop(0, count, gather, room(rows.b, nparts * PART, n)).view(-1, WIDTH)
    place = torch.arange(PART, device=count.device)

    def row(k: Tensor, A: Tensor) -> Tensor:
        def chunk(c: Tensor, A: Tensor) -> Tensor:
            def add(j: Tensor, total: Tensor) -> Tensor:
                part, W = rows.of(k[None], j)
                return total + W[0] @ columns.index_select(0, (part * PART + place) * chunks + c)

            total = fori_loop(0, rows.size.index_select(0, k[None])[0], add, rows.b.new_zeros(WIDTH))
            return A.scatter(0, (k * active + c).expand(1, WIDTH), total[None])

        return fori_loop(0, active, chunk, A)

    # Forces past the last are zero, and so must be what they are multiplied with.
    A = fori_loop(0, (count + PART - 1) // PART * PART, row, room(rows.b, n * chunks, WIDTH))
    return Formed(A=A, b=rows.b.view(chunks, WIDTH), diagonal=rows.diagonal, count=active)
