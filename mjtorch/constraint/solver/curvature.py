"""The second derivative of the problem's cost, and systems of equations with it."""

import torch
from torch import Tensor

from mjtorch.constraint.solver import trees
from mjtorch.constraint.solver.problem import Problem, Residuals, merge
from mjtorch.control_flow import if_any
from mjtorch.math import linalg


def curvature(p: Problem, at: Residuals) -> Tensor:
    """Second derivative (nterm,) of the cost of each term by its residual."""
    return torch.where((p.low < at.terms) & (at.terms < p.high), p.D, 0.0)


def hessian(p: Problem, at: Residuals) -> Tensor:
    """Second derivative (nv, nv) of the problem's cost."""
    return dense_hessian(p, at) if p.cones else p.M + p.rows.gram(curvature(p, at))


def dense_hessian(p: Problem, at: Residuals) -> Tensor:
    """`hessian`, whatever the rows are.

    A cone adds dyads of the slopes of r and q where these are negative, and the bending of T, which is `1 - t t'` with
    t the tangential direction.
    """
    weight = curvature(p, at)
    weighted = weight[: p.nefc, None] * p.J
    for c, s in zip(p.cones, at.slips, strict=True):
        bend = c.Dm * s.bending
        direction = torch.cat([c.axes[..., :1], c.axes[..., 1:] * (s.U / s.T[:, None])[:, None]], dim=2)
        slopes = direction * c.scale[:, None]
        weights = torch.cat([weight[p.nefc :], -bend]).unflatten(0, (3, -1)).mT
        isotropic = bend[:, None] * c.scale * c.tangential
        cones = slopes.mT @ (weights[..., None] * (slopes @ c.J)) + isotropic[..., None] * c.J
        weighted = merge(p, weighted, cones)
    return p.M + p.J.mT @ weighted


def hessian_solve(p: Problem, at: Residuals, x: Tensor) -> Tensor:
    """`H^-1 x (nv,)`, `H` the second derivative at `at`; never without a solution, where M has a factor."""
    for forest in p.forest:
        b = trees.blocks(forest, p.rows, curvature(p, at))
        return if_any(b.weak, lambda: dense_solve(p, at, x), trees.solve(forest, b, x))
    return dense_solve(p, at, x)


def dense_solve(p: Problem, at: Residuals, x: Tensor) -> Tensor:
    """`hessian_solve` without regard to trees.

    Long chains, and light things that touch heavy ones, have a Hessian that single precision cannot factor. In the
    coordinates where M is the identity most of that is gone: what is left are the stiffnesses of the constraints, which
    are all alike.
    """
    factor, weak = linalg.checked_cholesky(hessian(p, at))
    return if_any(weak, lambda: whitened_solve(p, at, x), linalg.cholesky_solve(factor, x))


def whitened_solve(p: Problem, at: Residuals, x: Tensor) -> Tensor:
    """`hessian_solve` by way of `z = L a`, `M = L^T L`: `H = L^T K L`, `K` the second derivative by z.

    `K` is the identity plus what the constraints add. If not even that has a factor it is taken for the identity.
    """
    half = linalg.ltl_half_solve(p.qLD, torch.cat([p.J, x[None]]).mT).mT
    W, y = half[:-1], half[-1]
    identity = torch.eye(len(x), dtype=x.dtype, device=x.device)
    q = p.replace(M=identity, J=W, cones=tuple(c.replace(J=W[c.rows]) for c in p.cones))
    factor, info = torch.linalg.cholesky_ex(dense_hessian(q, at))
    z = torch.where(info == 0, linalg.cholesky_solve(factor, y), y)
    return linalg.triangular_solve(p.qLD, z[:, None])[:, 0]
