"""Kinematic trees, which are a block each of the second derivative, and the rows that join them.

Most rows touch one tree, so the second derivative is `A + U' W U`: the blocks `A` of trees and their own rows, and the
rows U that touch several. Where there are none, blocks are all there is to factor. Where there are, conjugate gradients
are preconditioned by blocks that the rows of U add their part to: what two bodies in contact have in common is found in
as many steps as they have directions of contact. Cost and memory follow the sum of the trees, not the square.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.solver.rows import Rows
from mjtorch.control_flow import if_any, scan, while_loop
from mjtorch.math import linalg
from mjtorch.model.plan.kinematics import TreesPlan


@tree.dataclass(kw_only=True)
class Trees(tree.Tree):
    """The kinematic trees of n dofs each, with the rows that touch no other.

    dof: (ntree, n), M: (ntree, n, n)
    row: (ntree, nrest) these rows of `Rows.rest`, there: (ntree, nrest) bool, up to which there are some
    J: (ntree, nrest, n)
    """

    dof: Tensor
    M: Tensor
    row: Tensor
    there: Tensor
    J: Tensor


@tree.dataclass(kw_only=True)
class Forest(tree.Tree):
    """All kinematic trees, by size, their dofs one after another.

    dof: (nv,) of the model, place: (nv,) where each dof of the model lies
    row, there: (nrest,) the rows that touch several trees, as in `Trees`; J: (nrest, nv)
    """

    groups: tuple[Trees, ...]
    dof: Tensor
    place: Tensor
    row: Tensor
    there: Tensor
    J: Tensor


@tree.dataclass(kw_only=True)
class Blocks(tree.Tree):
    """The second derivative at a point: `A + J' diag(weight) J`, J those of the forest.

    A, factor: (ntree, n, n) by size of trees; lower factors of the diagonal blocks of all of it
    weight: (nrest,), weak, lost: () bool, whether rounding has left little, or nothing, of some block
    """

    A: tuple[Tensor, ...]
    factor: tuple[Tensor, ...]
    weight: Tensor
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


def build(plans: Sequence[TreesPlan], place: Tensor, M: Tensor, rows: Rows) -> Forest:
    """The trees of the inertia M (nv, nv) and the rows."""
    touches = [(rows.rest[:, t.dof] != 0).any(-1).mT for t in plans]
    several = torch.cat(touches).sum(0) > 1
    groups = []
    for t, mine in zip(plans, touches, strict=True):
        row, there = compacted(mine & ~several)
        ntree = t.dof.shape[0]
        part = rows.rest[:, t.dof.flatten()].unflatten(1, t.dof.shape).flatten(0, 1)
        J = torch.where(there[..., None], part[ntree * row + torch.arange(ntree, device=row.device)[:, None]], 0.0)
        groups.append(Trees(dof=t.dof, M=M[t.dof[:, :, None], t.dof[:, None, :]], row=row, there=there, J=J))
    dof = torch.cat([t.dof.flatten() for t in plans])
    row, there = compacted(several)
    J = torch.where(there[:, None], rows.rest[row], 0.0)[:, dof]
    return Forest(groups=tuple(groups), dof=dof, place=place, row=row, there=there, J=J)


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
    shared = torch.where(f.there, rest[f.row], 0.0)
    parts: list[tuple[Tensor, ...]] = []

    def one(_: Tensor, part: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        M, diagonal, J, weight, U = part
        A = M + torch.diag_embed(diagonal) + J.mT @ (weight[:, None] * J)
        return _, (A, *linalg.checked_cholesky(A + U.mT @ (shared[:, None] * U)))

    for t, d, U in zip(f.groups, split(f, diagonal), split(f, f.J.mT), strict=True):
        mine = torch.where(t.there, rest[t.row], 0.0)
        parts.append(scan(one, torch.zeros_like(shared[0]), (t.M, d, t.J, mine, U.mT), unroll=False)[1])
    A, factor, weak, lost = zip(*parts, strict=True)
    return Blocks(A=A, factor=factor, weight=shared, weak=torch.cat(weak).any(), lost=torch.cat(lost).any())


def solve(f: Forest, b: Blocks, x: Tensor) -> Tensor:
    """`H^-1 x (nv,)`, unless the blocks are lost."""
    x = x[f.dof]
    apart = precondition(f, b, x)
    return if_any(f.there[0] | b.weak, lambda: conjugate_gradients(f, b, x, apart), apart)[f.place]


def conjugate_gradients(f: Forest, b: Blocks, x: Tensor, first: Tensor) -> Tensor:
    """`H^-1 x (nv,)`, up to the root of the rounding; `first` is what `precondition` gives for x."""
    tolerance = torch.finfo(x.dtype).eps * (x @ first)

    def go_on(s: Conjugate) -> Tensor:
        return (s.size > tolerance) & (s.step < len(x))

    def body(s: Conjugate) -> Conjugate:
        image = product(f, b, s.towards)
        length = s.size / (s.towards @ image)
        left = s.left - length * image
        nearer = precondition(f, b, left)
        size = left @ nearer
        towards = nearer + size / s.size * s.towards
        return Conjugate(found=s.found + length * s.towards, left=left, towards=towards, size=size, step=s.step + 1)

    step = torch.zeros_like(tolerance, dtype=torch.int64)
    # A NaN stays one.
    start = Conjugate(found=0.0 * first, left=x, towards=first, size=x @ first, step=step)
    return while_loop(go_on, body, start).found


def product(f: Forest, b: Blocks, x: Tensor) -> Tensor:
    """`H x` (nv,)."""
    return blocks_times(f, b.A, x) + (b.weight * torch.where(f.there, f.J @ x, 0.0)) @ f.J


def blocks_times(f: Forest, A: Sequence[Tensor], x: Tensor) -> Tensor:
    """`A x` (nv,), of blocks (ntree, n, n) by size."""
    return torch.cat([(block @ y[..., None]).flatten() for block, y in zip(A, split(f, x), strict=True)])


def precondition(f: Forest, b: Blocks, x: Tensor) -> Tensor:
    """The diagonal blocks' solution (nv,)."""
    return torch.cat([linalg.cholesky_solve(L, y).flatten() for L, y in zip(b.factor, split(f, x), strict=True)])


def split(f: Forest, x: Tensor) -> list[Tensor]:
    """The parts (ntree, n, ...) of x (nv, ...) that belong to trees, by size."""
    parts = x.split([t.dof.numel() for t in f.groups])
    return [part.unflatten(0, t.dof.shape) for t, part in zip(f.groups, parts, strict=True)]
