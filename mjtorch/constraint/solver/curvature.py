"""The second derivative of the problem's cost, and systems of equations with it."""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint import parts
from mjtorch.constraint.bodies import BodyRows, Contacts
from mjtorch.constraint.parts import Held
from mjtorch.constraint.solver import articulated, trees
from mjtorch.constraint.solver.articulated import doubled
from mjtorch.constraint.solver.problem import (
    Cones,
    Problem,
    Residuals,
    inertia,
    inertia_factor,
    inertia_solve,
    inertia_times,
    merge,
)
from mjtorch.constraint.solver.rows import Rows
from mjtorch.constraint.solver.trees import Forest
from mjtorch.control_flow import if_any
from mjtorch.math import linalg

# The relative error of a solution, in the norm of H, that one refinement mends: it leaves about the square.
REFINABLE = 0.1


@tree.dataclass(kw_only=True)
class Bends(tree.Tree):
    """The second derivative of the cost by the residuals of rows: a sum of squares.

    rows: (nefc,) what the square of each row counts
    directions: of cones (ncone, 2, w), in their rows; squares: (ncone, 2) what the squares along these count beside
    """

    rows: Tensor
    directions: tuple[Tensor, ...]
    squares: tuple[Tensor, ...]


def curvature(p: Problem, at: Residuals) -> Tensor:
    """Second derivative (nefc,) of the cost of each row by its residual; those of cones have none of their own."""
    return torch.where((p.low < at.jar) & (at.jar < p.high), p.D, 0.0)


def bends(p: Problem, at: Residuals) -> Bends:
    """The second derivative at `at`.

    In a cone's middle zone the cost is the square of r, and bends by `1 - t t'` with t the tangential direction, of
    which its rows have the 1. In the bottom zone it is the sum of the squares of all rows.
    """
    rows = curvature(p, at)
    directions: tuple[Tensor, ...] = ()
    squares: tuple[Tensor, ...] = ()
    for c, s in zip(p.cones, at.slips, strict=True):
        r, q = torch.where(s.terms < 0, c.Dm, 0.0).unbind(0)
        sticks, bend = q != 0, c.Dm * s.bending
        rows = merge(p, rows, bend[:, None] * c.scale * c.tangential)
        normal, tangent = c.scale[:, :1], s.U / s.T[:, None] * c.scale[:, 1:]
        slope = torch.cat([normal, torch.where(sticks, 0.0, -c.mu)[:, None] * tangent], dim=1)
        directions = (torch.stack([slope, torch.cat([torch.zeros_like(normal), tangent], dim=1)], dim=1),)
        squares = (torch.stack([r + c.mu * c.mu * q, torch.where(sticks, 0.0, -bend)], dim=1),)
    return Bends(rows=rows, directions=directions, squares=squares)


def hessian(p: Problem, at: Residuals) -> Tensor:
    """Second derivative (nv, nv) of the problem's cost."""
    return gram(p, inertia(p), bends(p, at))


def gram(p: Problem, M: Tensor, b: Bends) -> Tensor:
    """`M + J' b J` (nv, nv)."""
    if isinstance(p.rows, Rows):
        return add_cones(b, tuple(J for c in p.cones for J in c.J), p.rows.add_gram(M, b.rows))
    if p.forest or p.articulated:
        J = p.J
        return add_cones(b, tuple(J[c.rows] for c in p.cones), torch.addmm(M, J.mT, b.rows[:, None] * J))
    nothing = tuple(parts.nothing_held(one, couples=bool(p.cones)) for one in p.parts)
    return parts.add_held(p.parts, p.rows, M, held_at(p, p.rows, b, nothing), b.rows)


def add_cones(b: Bends, J: tuple[Tensor, ...], H: Tensor) -> Tensor:
    """H (nv, nv) and the squares along the directions of cones, which cost something only where these are touched.

    J: (ncone, w, nv) of the cones, if there are any
    """
    for cones, direction, square in zip(J, b.directions, b.squares, strict=True):
        along = torch.where((square != 0)[..., None], direction @ cones, 0.0).flatten(0, 1)
        H = torch.addmm(H, along.mT, square.flatten()[:, None] * along)
    return H


def held_at(p: Problem, rows: BodyRows, b: Bends, held: tuple[Held, ...]) -> tuple[Held, ...]:
    """What contacts add to the second derivative, given what is held of it at another point."""
    weights = []
    for c in rows.contacts:
        *_, touching = rows.split(b.rows)
        weight = c.by_slot(touching)
        for cones, direction, square in zip(p.cones, b.directions, b.squares, strict=True):
            couples = (square[..., None, None] * direction[..., None] * direction[..., None, :]).sum(1)
            weight = torch.diag_embed(weight) + of_slots(c, cones, couples, torch.zeros_like(couples[:1]))
        weights.append(weight)
    return tuple(parts.changed(one, before, w) for one, before, w in zip(p.parts, held, weights, strict=True))


def of_slots(c: Contacts, cones: Cones, x: Tensor, none: Tensor) -> Tensor:
    """What cones have (ncone, w, w), by slots (ncon, w, w), zero in empty ones; none: (1, w, w) of what has no cone."""
    return torch.where(c.there[:, None, None], torch.cat([x, none])[cones.slot_cone[: len(c.row)]], 0.0)


def straightened(p: Problem, at: Residuals, b: Bends) -> tuple[tuple[Tensor, ...], Tensor]:
    """The second derivative of the cost, b, as squares of sums of rows: these, and what each square counts (nefc,).

    Of the rows of a cone in its middle zone the first becomes the slope, the others what is across to the slip. The
    sums are one (ncon, w, w), as for `BodyRows.turned`, or none if there are no cones.
    """
    weight = b.rows
    mix: tuple[Tensor, ...] = ()
    for c, s in zip(p.cones, at.slips, strict=True):
        r, q = torch.where(s.terms < 0, c.Dm, 0.0).unbind(0)
        slip = torch.where((q != 0)[:, None], 0.0, s.U / s.T[:, None])
        one = torch.eye(c.scale.shape[1], dtype=slip.dtype, device=slip.device)
        first = torch.cat([one[:1, :1].expand(len(slip), -1), -c.mu[:, None] * slip], dim=1)
        across = torch.nn.functional.pad(one[1:, 1:] - slip[:, :, None] * slip[:, None], (1, 0))
        mixed = torch.cat([first[:, None], across], dim=1) * c.scale[:, None]
        counts = torch.cat([(r + c.mu * c.mu * q)[:, None], (c.Dm * s.bending)[:, None].expand(slip.shape)], dim=1)
        weight = merge(p, weight, counts)
        contacts = p.rows.contacts if isinstance(p.rows, BodyRows) else ()
        mix = tuple(of_slots(x, c, mixed, one[None]) for x in contacts)
    return mix, weight


def hessian_times(p: Problem, b: Bends, x: Tensor) -> Tensor:
    """`H x` (nv,), by way of the rows: what `H` itself has lost to rounding is in it."""
    y = p.rows.times(x)
    product = b.rows * y
    for c, direction, square in zip(p.cones, b.directions, b.squares, strict=True):
        along = square * (direction * y[c.rows][:, None]).sum(-1)
        product = merge(p, product, product[c.rows] + (along[..., None] * direction).sum(1))
    return inertia_times(p, x) + p.rows.transpose_times(product)


def hessian_solve(p: Problem, at: Residuals, x: Tensor, negligible: Tensor | None = None) -> Tensor:
    """`H^-1 x (nv,)`, `H` the second derivative at `at`; never without a solution, where M has a factor.

    negligible: () a decrease `x' H^-1 x / 2` of the cost that is not worth a step; then in single precision what is
        found may be a hundredth off, or by less than this matters
    """
    if p.forest and isinstance(p.rows, BodyRows):
        return trees_solve(p, at, x, p.forest[0], p.rows, negligible)
    for chains in p.articulated:
        mix, weight = straightened(p, at, bends(p, at))
        rows = chains.rows
        for mixed in mix:
            rows = rows.turned(mixed.double())
        return articulated.solve(chains.replace(rows=rows), weight, x, negligible)
    return dense_solve(p, at, x)


def trees_solve(
    p: Problem, at: Residuals, x: Tensor, forest: Forest, rows: BodyRows, negligible: Tensor | None
) -> Tensor:
    """`hessian_solve`, tree by tree."""
    b = bends(p, at)
    mix, weight = straightened(p, at, b)
    for mixed in mix:
        forest, rows = forest.turned(mixed), rows.turned(mixed)
    blocks = trees.blocks(forest, rows, weight)
    found = trees.solve(forest, rows, blocks, weight, x, lambda y: hessian_times(p, b, y), negligible)
    return if_any(blocks.lost, lambda: trees.whitened_solve(forest, rows, weight, x), found)


def next_solve(
    p: Problem, at: Residuals, x: Tensor, held: tuple[Held, ...], negligible: Tensor
) -> tuple[Tensor, tuple[Held, ...]]:
    """`hessian_solve`, given what is held of the second derivative at another point; and what is held then.

    held: what contacts add, if their rows are stored by parts of trees, else nothing
    """
    if not p.parts or not isinstance(p.rows, BodyRows):
        return hessian_solve(p, at, x, negligible), held
    b = bends(p, at)
    held = held_at(p, p.rows, b, held)
    return dense_solve(p, at, x, parts.add_held(p.parts, p.rows, inertia(p), held, b.rows)), held


def dense_solve(p: Problem, at: Residuals, x: Tensor, H: Tensor | None = None) -> Tensor:
    """`hessian_solve` without regard to trees; H: the second derivative, if it is known, or nearly.

    Long chains, and light things that touch heavy ones, have a Hessian that single precision factors badly, so that
    what is found must be refined; how far that went tells whether it was enough. Where it was not, H is summed and
    factored in double precision, and what was in double precision in the coordinates where M is the identity.
    """
    b = bends(p, at)
    H = gram(p, inertia(p), b) if H is None else H
    factor, weak, lost = linalg.checked_cholesky(H.flip(0, 1) if p.leaves_first else H)

    def solved(y: Tensor) -> Tensor:
        return linalg.cholesky_solve(factor, y.flip(0)).flip(0) if p.leaves_first else linalg.cholesky_solve(factor, y)

    def refined() -> tuple[Tensor, Tensor]:
        # left' H^-1 left, the square of the error, is about correction' left; found' H found is found' x.
        left = x - hessian_times(p, b, found)
        correction = solved(left)
        return found + correction, correction @ left > REFINABLE**2 * (found @ x)

    found = solved(x)
    found, rough = if_any(weak, refined, (found, torch.zeros_like(weak)))
    again = whitened_solve if x.dtype == torch.float64 else double_solve
    return if_any(lost | rough, lambda: again(p, b, x), found)


def double_solve(p: Problem, b: Bends, x: Tensor) -> Tensor:
    """`hessian_solve` of a problem in single precision, by the factor in double; by that of M if there is none."""
    b, rows, blocks, cones = tree.map(doubled, (b, p.rows, p.parts, p.cones))
    q = p.replace(rows=rows, parts=blocks, cones=cones)
    factor, info = torch.linalg.cholesky_ex(gram(q, inertia(p).double(), b))
    found = linalg.cholesky_solve(factor, x.double()).to(x.dtype)
    return torch.where(info == 0, found, inertia_solve(p, x))


def whitened_solve(p: Problem, b: Bends, x: Tensor) -> Tensor:
    """`hessian_solve` by way of `z = L a`, `M = L^T L`: `H = L^T K L`, `K` the second derivative by z.

    `K` is the identity plus what the constraints add, whose stiffnesses are all alike. If not even that has a factor it
    is taken for the identity.
    """
    identity = torch.eye(len(x), dtype=x.dtype, device=x.device)
    qLD = inertia_factor(p)
    y = linalg.ltl_half_solve(qLD, x[:, None])[:, 0]
    if p.jacobian:
        W = linalg.ltl_half_solve(qLD, p.J.mT).mT
        K = torch.addmm(identity, W.mT, b.rows[:, None] * W)
        K = add_cones(b, tuple(W[c.rows] for c in p.cones), K)
    else:
        added = linalg.ltl_half_solve(qLD, gram(p, torch.zeros_like(identity), b))
        K = identity + linalg.ltl_half_solve(qLD, added.mT)
    factor, info = torch.linalg.cholesky_ex(K)
    z = torch.where(info == 0, linalg.cholesky_solve(factor, y), y)
    return linalg.triangular_solve(qLD, z[:, None])[:, 0]
