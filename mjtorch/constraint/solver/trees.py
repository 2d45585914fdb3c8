"""Kinematic trees, which are a block each of the second derivative, and the rows that join them.

Most rows touch one tree, so the second derivative is `A + U' W U`: the blocks `A` of trees and their own rows, and the
rows U that touch several. Where there are none, blocks are all there is to factor. Up to `MOST` of these rows are taken
out of the solution of blocks by the formula of Sherman, Morrison and Woodbury: with `A = L L'`, `Y = L^-1 U' W^1/2`
and `G = 1 + Y' Y` the inverse is `L^-T (1 - Y G^-1 Y') L^-1`. Where there are more, conjugate gradients are
preconditioned by that, with blocks that the other rows add their part to. Cost and memory follow the sum of the trees,
not the square.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.solver.rows import Rows
from mjtorch.control_flow import if_any, scan, while_loop
from mjtorch.math import linalg
from mjtorch.model.plan.kinematics import KinematicsPlan

# Rows that touch several trees and are taken out of the solution of blocks: each costs a column for each tree.
MOST = 32


@tree.dataclass(kw_only=True)
class Trees(tree.Tree):
    """The kinematic trees of n dofs each, with the rows that touch no other.

    dof: (ntree, n), M: (ntree, n, n), qLD: (ntree, n, n) lower, `M = qLD^T qLD`
    row: (ntree, nrest) these rows of `Rows.rest`, there: (ntree, nrest) bool, up to which there are some
    J: (ntree, nrest, n)
    """

    dof: Tensor
    M: Tensor
    qLD: Tensor
    row: Tensor
    there: Tensor
    J: Tensor


@tree.dataclass(kw_only=True)
class Forest(tree.Tree):
    """All kinematic trees, by size, their dofs one after another.

    dof: (nv,) of the model, place: (nv,) where each dof of the model lies
    source: (nv, nv) where each element of a dense matrix lies in [blocks, 0]
    several: (nrest,) bool, the rows that touch several trees
    row: (k,) the first k of these, k no more than `MOST`, there: (k,) bool, up to which there are some
    U: (k, nv), more: () bool, whether there are more than k
    """

    groups: tuple[Trees, ...]
    dof: Tensor
    place: Tensor
    source: Tensor
    several: Tensor
    row: Tensor
    there: Tensor
    U: Tensor
    more: Tensor


@tree.dataclass(kw_only=True)
class Blocks(tree.Tree):
    """The second derivative at a point: `A + J' diag(weight) J`, J those of the forest.

    A, factor: (ntree, n, n) by size of trees; lower factors of A and what rows past the first k add to it
    weight: (nrest,) of the rows that touch several trees, zero for others
    Y: (nv, k), G: (k, k) a lower factor, joined: () bool, whether Y is not zero
    weak, lost: () bool, whether rounding has left little, or nothing, of some block or of G
    """

    A: tuple[Tensor, ...]
    factor: tuple[Tensor, ...]
    weight: Tensor
    Y: Tensor
    G: Tensor
    joined: Tensor
    weak: Tensor
    lost: Tensor


@tree.dataclass(kw_only=True)
class Conjugate(tree.Tree):
    """Conjugate gradients: what is found, what is left, where to go (nv,); square of what is left (); steps ()."""

    found: Tensor
    left: Tensor
    towards: Tensor
    size: Tensor
    step: Tensor


def build(k: KinematicsPlan, M: Tensor, qLD: Tensor, rows: Rows) -> Forest:
    """The trees of the inertia M (nC,), with its factor (nv, nv), and the rows."""
    active = rows.active[:, None, None]
    touches = [torch.where(active, rows.rest[:, t.dof] != 0, False).any(-1).mT for t in k.trees]
    several = torch.cat(touches).sum(0) > 1
    stored = torch.cat([M, M.new_zeros(1)])
    groups = []
    for t, mine in zip(k.trees, touches, strict=True):
        row, there = compacted(mine & ~several)
        ntree = t.dof.shape[0]
        part = rows.rest[:, t.dof.flatten()].unflatten(1, t.dof.shape).flatten(0, 1)
        J = torch.where(there[..., None], part[ntree * row + torch.arange(ntree, device=row.device)[:, None]], 0.0)
        factor = qLD[t.dof[:, :, None], t.dof[:, None, :]]
        groups.append(Trees(dof=t.dof, M=stored[t.M], qLD=factor, row=row, there=there, J=J))
    dof = torch.cat([t.dof.flatten() for t in k.trees])
    row, there = (x[:MOST] for x in compacted(several))
    return Forest(
        groups=tuple(groups),
        dof=dof,
        place=k.tree_dof,
        source=k.tree_source,
        several=several,
        row=row,
        there=there,
        U=torch.where(there[:, None], rows.rest[row], 0.0)[:, dof],
        more=several.sum() > len(row),
    )


def compacted(flag: Tensor) -> tuple[Tensor, Tensor]:
    """The places (..., n) where `flag` is true, one after another, and up to which there are some (..., n)."""
    number = torch.arange(flag.shape[-1], device=flag.device).expand(flag.shape)
    count = flag.cumsum(-1)
    target = torch.where(flag, count - 1, flag.shape[-1])
    row = torch.zeros_like(number[..., :1]).expand(*flag.shape[:-1], flag.shape[-1] + 1).scatter(-1, target, number)
    return row[..., :-1], number < count[..., -1:]


def blocks(f: Forest, rows: Rows, weight: Tensor) -> Blocks:
    """The second derivative, given that of the cost of the rows (nefc,)."""
    single, rest = rows.split(weight)
    diagonal = ((rows.single * rows.single * single) @ rows.plan.column)[f.dof]
    shared = torch.where(f.several, rest, 0.0)
    scale = torch.where(f.there, rest[f.row].sqrt(), 0.0)[:, None]
    U = torch.where(f.there[:, None], scale * f.U, 0.0)
    nothing = tuple(torch.zeros_like(t.M) for t in f.groups)
    past = if_any(f.more, lambda: added_past(f, rows, shared), nothing) if len(f.row) < len(rest) else nothing
    parts: list[tuple[Tensor, ...]] = []

    def one(_: Tensor, part: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        M, diagonal, J, weight, past, U = part
        A = M + torch.diag_embed(diagonal) + J.mT @ (weight[:, None] * J)
        factor, weak, lost = linalg.checked_cholesky(A + past)
        return _, (A, factor, weak, lost, linalg.triangular_solve(factor, U))

    for t, d, more, u in zip(f.groups, split(f, diagonal), past, split(f, U.mT), strict=True):
        mine = torch.where(t.there, rest[t.row], 0.0)
        parts.append(scan(one, torch.zeros_like(diagonal[0]), (t.M, d, t.J, mine, more, u), unroll=False)[1])
    A, factor, weak, lost, half = zip(*parts, strict=True)
    Y = torch.cat([y.flatten(0, 1) for y in half])
    identity = torch.eye(len(f.row), dtype=Y.dtype, device=Y.device)
    G, *flags = linalg.checked_cholesky(torch.addmm(identity, Y.mT, torch.ones_like(Y[:, :1]) * Y))
    return Blocks(
        A=A,
        factor=factor,
        weight=shared,
        Y=Y,
        G=G,
        joined=(shared != 0).any(),
        weak=torch.cat(weak).any() | flags[0],
        lost=torch.cat(lost).any() | flags[1],
    )


def added_past(f: Forest, rows: Rows, shared: Tensor) -> tuple[Tensor, ...]:
    """What rows past the first k, of those with a weight `shared (nrest,)`, add to the blocks (ntree, n, n)."""
    weight = torch.where(f.several.cumsum(0) > len(f.row), shared, 0.0)[:, None]
    parts = [rows.rest[:, t.dof.flatten()].unflatten(1, t.dof.shape).movedim(1, 0) for t in f.groups]
    return tuple(part.mT @ (weight * part) for part in parts)


def solve(f: Forest, b: Blocks, rows: Rows, x: Tensor) -> Tensor:
    """`H^-1 x (nv,)`, unless the blocks are lost."""
    x = x[f.dof]
    near = precondition(f, b, x)
    return if_any(f.more | b.weak, lambda: conjugate_gradients(f, b, rows, x, near), near)[f.place]


def conjugate_gradients(f: Forest, b: Blocks, rows: Rows, x: Tensor, near: Tensor) -> Tensor:
    """`H^-1 x (nv,)`, up to the root of the rounding, from what `precondition` gives for x."""
    tolerance = torch.finfo(x.dtype).eps * (x @ near)

    def go_on(s: Conjugate) -> Tensor:
        return (s.size > tolerance) & (s.step < len(x))

    def body(s: Conjugate) -> Conjugate:
        image = product(f, b, rows, s.towards)
        length = s.size / (s.towards @ image)
        left = s.left - length * image
        nearer = precondition(f, b, left)
        size = left @ nearer
        towards = nearer + size / s.size * s.towards
        return Conjugate(found=s.found + length * s.towards, left=left, towards=towards, size=size, step=s.step + 1)

    step = torch.zeros_like(tolerance, dtype=torch.int64)
    left = x - product(f, b, rows, near)
    towards = precondition(f, b, left)
    start = Conjugate(found=near, left=left, towards=towards, size=left @ towards, step=step)
    return while_loop(go_on, body, start).found


def product(f: Forest, b: Blocks, rows: Rows, x: Tensor) -> Tensor:
    """`H x` (nv,)."""
    joint = b.weight * torch.where(f.several, rows.rest @ x[f.place], 0.0)
    return blocks_times(f, b.A, x) + (joint @ rows.rest)[f.dof]


def blocks_times(f: Forest, A: Sequence[Tensor], x: Tensor) -> Tensor:
    """`A x` (nv,), of blocks (ntree, n, n) by size."""
    return torch.cat([(block @ y[..., None]).flatten() for block, y in zip(A, split(f, x), strict=True)])


def precondition(f: Forest, b: Blocks, x: Tensor) -> Tensor:
    """`H^-1 x` (nv,) if there are no more than k rows that touch several trees, else near to it."""
    half = triangles(f, b.factor, x, linalg.triangular_solve)

    def joint() -> Tensor:
        return half - b.Y @ linalg.cholesky_solve(b.G, half @ b.Y)

    return triangles(f, [L.mT for L in b.factor], if_any(b.joined, joint, half), linalg.upper_solve)


def inertia_solve(f: Forest, x: Tensor) -> Tensor:
    """`M^-1 x` (nv,), of the model's dofs."""
    return triangles(f, [t.qLD for t in f.groups], x[f.dof], linalg.ltl_solve)[f.place]


def triangles(f: Forest, A: Sequence[Tensor], x: Tensor, solve: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What `solve(matrix, column)` makes of x (nv,), tree by tree; A: (ntree, n, n) by size."""
    return torch.cat([solve(block, y[..., None]).flatten() for block, y in zip(A, split(f, x), strict=True)])


def dense(f: Forest) -> Tensor:
    """The inertia (nv, nv)."""
    parts = [t.M.flatten() for t in f.groups]
    return torch.cat([*parts, torch.zeros_like(parts[0][:1])])[f.source]


def split(f: Forest, x: Tensor) -> list[Tensor]:
    """The parts (ntree, n, ...) of x (nv, ...) that belong to trees, by size."""
    parts = x.split([t.dof.numel() for t in f.groups])
    return [part.unflatten(0, t.dof.shape) for t, part in zip(f.groups, parts, strict=True)]
