"""Derivatives of friction that noslip iterations found: those of the sweeps, as if each found what sticks in the last.

A sweep minimises `f' A f / 2 + f' b`, `A = J M^-1 J'`, by the friction of one block after another. Friction within its
limits sticks: along what it may change, the range of a projector P, the cost then has no slope, `P (A f + b) = 0`. On a
cone that is its tangent, and the cone's curvature, the multiplier by the radius, adds to A. At a limit friction follows
the limit. Where contacts are redundant sweeps come to an end only after thousands, so their number counts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.solver.noslip import MIN_DIAGONAL
from mjtorch.constraint.solver.problem import Problem
from mjtorch.constraint.solver.qcqp import is_singular
from mjtorch.control_flow import fori_loop
from mjtorch.math import linalg
from mjtorch.math.value import value_of
from mjtorch.math.vector import MIN_VALUE, dot, norm
from mjtorch.model import Cone, Model

# What part of its limit friction may be short of it and still be at it, by precision.
SINGLE, DOUBLE = 1e-3, 1e-6


class Friction(NamedTuple):
    """Friction of n blocks of up to w rows each; rows beyond a block's own are zero.

    follows: (n, w) what it is at its limit, or of which it has a part whatever it does; but for derivatives
    scale: (n, w) what it is counted in, so that its limit is a sphere
    project: (n, w, w) P, by what is counted so; bend: (n,) the curvature of the limit
    moves: (n,) 1, or 0 for what sweeps leave as it is
    """

    follows: Tensor
    scale: Tensor
    project: Tensor
    bend: Tensor
    moves: Tensor


@tree.dataclass(kw_only=True)
class Sweeps(tree.Tree):
    """Sweeps through blocks of friction, all constant.

    order: (n,) the blocks, island by island, of which each has `count (k,)`; sweeps: (k,) how many of each
    W: (n, w, nv) the rows of blocks of J L^-1, `M = L^T L`; A: (n, w, w) W W'
    scale: (n, w), project: (n, w, w), moves: (n,) as in `Friction`
    factor: (n, w, w) of what resists friction that sticks
    """

    order: Tensor
    count: Tensor
    sweeps: Tensor
    W: Tensor
    A: Tensor
    scale: Tensor
    project: Tensor
    moves: Tensor
    factor: Tensor


def attach(
    m: Model,
    p: Problem,
    friction: Tensor,
    frictionloss: Tensor,
    efc_b: Tensor,
    visits: tuple[Tensor, Tensor],
    main: Tensor,
    found: Tensor,
    niter: Tensor,
) -> Tensor:
    """The forces `found (nefc,)`, with the derivatives of the sweeps that led to them.

    friction: (ncon, 5) of the contact slots, frictionloss, efc_b: (nefc,)
    visits: dry friction, then the blocks of contacts, (n,) in order, island by island, and how many each has (k,)
    main: (nefc,) what the main solver found; niter: (k,) how many sweeps of each island there were
    """
    c, plan, fixed = m.plan.constraint, m.plan.noslip, tree.map(torch.Tensor.detach, p)
    dry = torch.arange(c.ne, c.ne + c.nf, device=found.device)
    width = plan.rows.shape[1]
    rows = torch.cat([dry[:, None].expand(-1, width), plan.rows])
    first = (torch.arange(width, device=rows.device) == 0).to(found.dtype)
    mask = torch.cat([first.expand(c.nf, -1), plan.mask])
    slope = efc_b + p.rows.times(linalg.ltl_solve(p.qLD, p.rows.transpose_times(found)))
    W = linalg.ltl_half_solve(fixed.qLD, (mask[..., None] * fixed.J[rows]).flatten(0, 1).mT).mT.unflatten(0, rows.shape)
    A = W @ W.mT
    of_loss = at_loss(found[dry], frictionloss[dry], first)
    if m.opt.cone == Cone.PYRAMIDAL:
        of_contacts = along_edges(m, main, found)
    else:
        of_contacts = in_cones(m, friction, A[c.nf :], slope.detach(), main, found)
    f = Friction(*(torch.cat(x) for x in zip(of_loss, of_contacts, strict=True)))

    leaves, spec = pytree.tree_flatten(sweeps(f, W, A, mask, *visits, niter))
    start = fixed.rows.transpose_times(main)[:, None]
    velocity = linalg.ltl_half_solve(fixed.qLD, start)[:, 0]
    change = _Sweeps.apply(spec, mask * f.scale * slope[rows], mask * f.follows, mask * main[rows], velocity, *leaves)

    def by_row(x: Tensor) -> Tensor:
        return torch.zeros_like(found).index_add(0, rows.flatten(), (mask * x).flatten())

    return value_of(found, torch.where(by_row(torch.ones_like(mask)) > 0, by_row(change), main))


def at_loss(found: Tensor, loss: Tensor, first: Tensor) -> Friction:
    """Dry friction (n,), which sticks within its `loss (n,)`; first: (w,) 1 for the row that a block has, 0."""
    sticks = found.abs() < loss
    return Friction(
        torch.where(sticks, 0.0, found.sign() * loss)[:, None] * first,
        torch.ones_like(found)[:, None].expand(-1, len(first)),
        torch.where(sticks[:, None, None], first[:, None] * first, 0.0),
        torch.zeros_like(found),
        torch.ones_like(found),
    )


def along_edges(m: Model, main: Tensor, found: Tensor) -> Friction:
    """Forces along opposite edges of pyramids, which share what the main solver gave them; all to one is the limit."""
    rows = m.plan.noslip.rows
    force, total = found[rows].clamp(min=0), main[rows].sum(1, keepdim=True)
    whole = force.sum(1, keepdim=True)
    sticks = (force > short_of_limit(force.dtype) * whole).all(1, keepdim=True)
    part = torch.where(sticks, 0.5, force / torch.where(whole > 0, whole, 1.0))
    width = force.shape[1]
    apart = torch.eye(width, dtype=force.dtype, device=force.device) - 1 / width
    return Friction(
        part * total,
        torch.ones_like(force),
        torch.where(sticks[..., None], apart, 0.0),
        torch.zeros_like(whole[:, 0]),
        torch.ones_like(whole[:, 0]),
    )


def in_cones(m: Model, friction: Tensor, A: Tensor, slope: Tensor, main: Tensor, found: Tensor) -> Friction:
    """Friction of elliptic cones, counted in its coefficients; A as in `Sweeps`, slope: (nefc,) `A f + b`, constants.

    Where nothing moves along a contact in some direction sweeps find none, and leave it unless that is better.
    """
    plan = m.plan.noslip
    scale = friction[plan.slot][:, : plan.mask.shape[1]]
    scale = torch.where((plan.mask > 0) & (scale > 0), scale, 1.0)
    normal = main[plan.normal]
    counted = scale.detach() * plan.mask
    A = torch.diag_embed(1 - plan.mask) + counted[:, :, None] * A * counted[:, None]
    flat = torch.vmap(is_singular)(linalg.cholesky(A), A.diagonal(dim1=1, dim2=2), plan.mask.sum(1) < 4)
    x = plan.mask * found[plan.rows] / scale.detach()
    size, most = norm(x), normal.detach()
    pushed = (most > MIN_VALUE) & ~flat
    slips = pushed & (size > (1 - short_of_limit(x.dtype)) * most)
    way = torch.where(slips[:, None], x / torch.where(size > 0, size, 1.0)[:, None], 0.0)
    across = torch.diag_embed(plan.mask) - way[:, None] * way[..., None]
    against = -dot(way, counted * slope[plan.rows]).clamp(max=0)
    return Friction(
        normal[:, None] * scale * way,
        scale,
        torch.where(pushed[:, None, None], across, 0.0),
        torch.where(slips, against / torch.where(pushed, most, 1.0), 0.0),
        1.0 - (flat & (size > 0)).to(x.dtype),
    )


def short_of_limit(dtype: torch.dtype) -> float:
    """What part of its limit friction may be short of it and still be at it."""
    return SINGLE if dtype == torch.float32 else DOUBLE


def sweeps(f: Friction, W: Tensor, A: Tensor, mask: Tensor, order: Tensor, count: Tensor, niter: Tensor) -> Sweeps:
    """The sweeps through blocks; mask: (n, w) 1, or 0 for filling, the rest as in `Sweeps`."""
    scale = mask * f.scale.detach()
    resists = f.project @ (scale[:, :, None] * A * scale[:, None]) @ f.project
    # What next to nothing resists does not stick, as in the sweeps.
    project = torch.where((resists.diagonal(dim1=1, dim2=2).sum(1) > MIN_VALUE)[:, None, None], f.project, 0.0)
    rest = torch.eye(mask.shape[1], dtype=W.dtype, device=W.device) - project
    factor = linalg.cholesky(resists + (f.bend[:, None, None] + MIN_DIAGONAL) * project + rest)
    return Sweeps(
        order=order, count=count, sweeps=niter, W=W, A=A, scale=scale, project=project, moves=f.moves, factor=factor
    )


class _Sweeps(torch.autograd.Function):
    """Zero, the change of friction (n, w), with its derivative.

    slope: (n, w) of the cost, scaled, at fixed forces; follows, main: (n, w) friction at its limits, and at first
    velocity: (nv,) L^-T J' f of the main solver's forces f
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        spec: pytree.TreeSpec, slope: Tensor, follows: Tensor, main: Tensor, velocity: Tensor, *leaves: Tensor
    ) -> Tensor:
        return torch.zeros_like(slope)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.spec = inputs[0]
        ctx.save_for_backward(*inputs[5:])
        ctx.save_for_forward(*inputs[5:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        found = pulled(pytree.tree_unflatten(ctx.saved_tensors, ctx.spec), grad)
        return (None, *found, *(None for _ in ctx.saved_tensors))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return pushed(pytree.tree_unflatten(ctx.saved_tensors, ctx.spec), *tangents[1:5])


def pushed(s: Sweeps, slope: Tensor, follows: Tensor, main: Tensor, velocity: Tensor) -> Tensor:
    """The change of friction (n, w) that changes of what `_Sweeps` takes make."""

    def visit(k: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        change, velocity = now
        W, A, scale, project, moves, factor = block_of(s, k)
        base = (follows - change).index_select(0, k)[0]
        along = slope.index_select(0, k)[0] + scale * (W @ velocity + A @ base)
        step = moves * (base - scale * (project @ linalg.cholesky_solve(factor, project @ along)))
        return added(change, k, step), velocity + step @ W

    return swept(s, visit, (main, velocity))[0]


def pulled(s: Sweeps, change: Tensor) -> tuple[Tensor, ...]:
    """The transpose of `pushed`: of change (n, w), that of slope, follows, main and velocity."""
    n, last = len(s.order), s.count.sum() - 1
    order = s.order.index_select(0, (last - torch.arange(n, device=last.device)).clamp(min=0))
    back = s.replace(order=order, count=s.count.flip(0), sweeps=s.sweeps.flip(0))

    def visit(k: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        change, velocity, slope, follows = now
        W, A, scale, project, moves, factor = block_of(s, k)
        step = moves * (change.index_select(0, k)[0] + W @ velocity)
        along = -(project @ linalg.cholesky_solve(factor, project @ (scale * step)))
        scaled = scale * along
        base = step + A @ scaled
        return (
            added(change, k, -base),
            velocity + scaled @ W,
            added(slope, k, along),
            added(follows, k, base),
        )

    nothing = torch.zeros_like(change)
    change, velocity, slope, follows = swept(back, visit, (change, torch.zeros_like(s.W[0, 0]), nothing, nothing))
    return slope, follows, change, velocity


def added(x: Tensor, k: Tensor, row: Tensor) -> Tensor:
    """`x (n, w)` with `row (w,)` added to the one at `k (1,)`; with `index_add` Inductor would add in ended worlds."""
    return x.scatter_add(0, k[:, None].expand(1, len(row)), row[None])


def block_of(s: Sweeps, k: Tensor) -> tuple[Tensor, ...]:
    """W (w, nv), A (w, w), scale (w,), project (w, w), moves () and factor (w, w) of the block `k (1,)`."""
    return tuple(x.index_select(0, k)[0] for x in (s.W, s.A, s.scale, s.project, s.moves, s.factor))


def swept(
    s: Sweeps, visit: Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]], start: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """What visits of blocks (1,), one after another in each sweep, make of `start`, island by island."""
    ends = s.count.cumsum(0)

    def island(k: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        begin, end, times = (x.index_select(0, k[None])[0] for x in (ends - s.count, ends, s.sweeps))

        def sweep(_: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return fori_loop(begin, end, lambda k, x: visit(s.order.index_select(0, k[None]), x), now)

        return fori_loop(0, times, sweep, now)

    return fori_loop(0, len(ends), island, start, unroll=len(ends) == 1)
