"""The second derivative of the problem's cost, and systems of equations with it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mjtorch.constraint.bodies import BodyRows
from mjtorch.constraint.solver import trees
from mjtorch.constraint.solver.problem import Problem, Residuals, inertia, inertia_times, merge
from mjtorch.constraint.solver.rows import Rows
from mjtorch.constraint.solver.trees import Forest
from mjtorch.control_flow import if_any
from mjtorch.math import linalg

# The relative error of a solution, in the norm of H, that one refinement mends: it leaves about the square.
REFINABLE = 0.1


def curvature(p: Problem, at: Residuals) -> Tensor:
    """Second derivative (nterm,) of the cost of each term by its residual."""
    return torch.where((p.low < at.terms) & (at.terms < p.high), p.D, 0.0)


def hessian(p: Problem, at: Residuals) -> Tensor:
    """Second derivative (nv, nv) of the problem's cost."""
    if p.cones or not isinstance(p.rows, Rows):
        return dense_hessian(p, at)
    return p.rows.add_gram(inertia(p), curvature(p, at))


def dense_hessian(p: Problem, at: Residuals) -> Tensor:
    """`hessian`, whatever the rows are.

    A cone adds dyads of the slopes of r and q where these are negative, and the bending of T, which is `1 - t t'` with
    t the tangential direction.
    """
    J = p.J
    return torch.addmm(inertia(p), J.mT, weighted(p, at, J, [c.J for c in p.cones]))


def weighted(p: Problem, at: Residuals, Y: Tensor, of_cones: Sequence[Tensor]) -> Tensor:
    """The second derivative of the cost by the rows' residuals, times Y (nefc, k); of it cones have (ncone, w, k)."""
    weight = curvature(p, at)
    product = weight[: p.nefc, None] * Y
    for c, s, y in zip(p.cones, at.slips, of_cones, strict=True):
        bend = c.Dm * s.bending
        direction = torch.cat([c.axes[..., :1], c.axes[..., 1:] * (s.U / s.T[:, None])[:, None]], dim=2)
        slopes = direction * c.scale[:, None]
        weights = torch.cat([weight[p.nefc :], -bend]).unflatten(0, (3, -1)).mT
        isotropic = bend[:, None] * c.scale * c.tangential
        cones = slopes.mT @ (weights[..., None] * (slopes @ y)) + isotropic[..., None] * y
        product = merge(p, product, cones)
    return product


def hessian_times(p: Problem, at: Residuals, x: Tensor) -> Tensor:
    """`H x` (nv,), by way of the rows: what `H` itself has lost to rounding is in it."""
    y = p.rows.times(x)[:, None]
    return inertia_times(p, x) + p.rows.transpose_times(weighted(p, at, y, [y[c.rows] for c in p.cones])[:, 0])


def hessian_solve(p: Problem, at: Residuals, x: Tensor) -> Tensor:
    """`H^-1 x (nv,)`, `H` the second derivative at `at`; never without a solution, where M has a factor."""
    return trees_solve(p, at, x, p.forest[0], p.rows) if isinstance(p.rows, BodyRows) else dense_solve(p, at, x)


def trees_solve(p: Problem, at: Residuals, x: Tensor, forest: Forest, rows: BodyRows) -> Tensor:
    """`hessian_solve`, tree by tree."""
    weight = curvature(p, at)
    b = trees.blocks(forest, rows, weight)
    found = trees.solve(forest, b, x, lambda y: hessian_times(p, at, y))
    return if_any(b.lost, lambda: trees.whitened_solve(forest, rows, weight, x), found)


def dense_solve(p: Problem, at: Residuals, x: Tensor) -> Tensor:
    """`hessian_solve` without regard to trees.

    Long chains, and light things that touch heavy ones, have a Hessian that single precision factors badly, so that
    what is found must be refined; how far that went tells whether it was enough. In the coordinates where M is the
    identity most of the trouble is gone: what is left are the stiffnesses of the constraints, which are all alike.
    """
    H = hessian(p, at)
    factor, weak, lost = linalg.checked_cholesky(H.flip(0, 1) if p.leaves_first else H)

    def solved(y: Tensor) -> Tensor:
        return linalg.cholesky_solve(factor, y.flip(0)).flip(0) if p.leaves_first else linalg.cholesky_solve(factor, y)

    def refined() -> tuple[Tensor, Tensor]:
        # left' H^-1 left, the square of the error, is about correction' left; found' H found is found' x.
        left = x - hessian_times(p, at, found)
        correction = solved(left)
        return found + correction, correction @ left > REFINABLE**2 * (found @ x)

    found = solved(x)
    found, rough = if_any(weak, refined, (found, torch.zeros_like(weak)))
    return if_any(lost | rough, lambda: whitened_solve(p, at, x), found)


def whitened_solve(p: Problem, at: Residuals, x: Tensor) -> Tensor:
    """`hessian_solve` by way of `z = L a`, `M = L^T L`: `H = L^T K L`, `K` the second derivative by z.

    `K` is the identity plus what the constraints add. If not even that has a factor it is taken for the identity.
    """
    half = linalg.ltl_half_solve(p.qLD, torch.cat([p.J, x[None]]).mT).mT
    W, y = half[:-1], half[-1]
    identity = torch.eye(len(x), dtype=x.dtype, device=x.device)
    q = p.replace(M=(identity,), jacobian=(W,), cones=tuple(c.replace(J=W[c.rows]) for c in p.cones))
    factor, info = torch.linalg.cholesky_ex(dense_hessian(q, at))
    z = torch.where(info == 0, linalg.cholesky_solve(factor, y), y)
    return linalg.triangular_solve(p.qLD, z[:, None])[:, 0]
