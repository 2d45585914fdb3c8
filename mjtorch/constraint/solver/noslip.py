"""Sweeps after the main solver that take the slip out of friction (mj_solNoSlip).

Regularised friction creeps. So the forces of friction are updated once more, with the other forces as they are, to
minimise the dual cost without the regulariser: `f' A f / 2 + f' b`, `A = J M^-1 J'`. With `M = L' L` and `W = J L^-1`
it is `W W'`, of which only what blocks have among themselves is formed, and the velocity `v = W' f` is kept up to date.
A row of W has the dofs of the two chains that meet: only these are gone through. Islands are swept one after the other,
each as long as it gains from it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.order import Apart
from mjtorch.constraint.solver.pgs import MAX_INCREASE
from mjtorch.constraint.solver.problem import Problem
from mjtorch.constraint.solver.qcqp import friction_force
from mjtorch.control_flow import fori_loop, while_loop
from mjtorch.math import linalg
from mjtorch.math.compact import compacted, room
from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Cone, Model
from mjtorch.model.plan.noslip import NoslipPlan

# The least diagonal of A in a block.
MIN_DIAGONAL = 1e-10

# forces (nefc,), velocity (nv,), by how much the cost is less ()
Carry = tuple[Tensor, Tensor, Tensor]


@tree.dataclass(kw_only=True)
class Sliding(tree.Tree):
    """What a sweep reads, all constant.

    W: (nefc, nv) J L^-1, of rows with friction; zero elsewhere
    dof: (nblock, k) the dofs that move the active blocks, in order, then 0; blocks: (nblock, w, k) their rows of W
    A: (nblock, w, w) of these rows; of filling, the identity
    b: (nefc,), frictionloss: (nefc,)
    friction: (nblock, 5) of each block's contact
    dry: (nf,) the rows of dry friction, order: (nblock,) the active blocks, then filling; island by island
    """

    W: Tensor
    dof: Tensor
    blocks: Tensor
    A: Tensor
    b: Tensor
    frictionloss: Tensor
    friction: Tensor
    dry: Tensor
    order: Tensor


class Span(NamedTuple):
    """Where an island's own of `Sliding.dry`, and of `Sliding.order`, begin and end, (2,) each."""

    dry: Tensor
    order: Tensor


@tree.dataclass(kw_only=True)
class Progress(tree.Tree):
    """Where the sweeps are: force (nefc,), velocity (nv,), niter (), done () bool."""

    force: Tensor
    velocity: Tensor
    niter: Tensor
    done: Tensor


def solve_noslip(
    m: Model,
    p: Problem,
    friction: Tensor,
    frictionloss: Tensor,
    efc_b: Tensor,
    rubs: tuple[Tensor, Tensor],
    visits: tuple[Tensor, Tensor],
    islands: Apart,
    force: Tensor,
) -> tuple[Tensor, Tensor]:
    """Forces (nefc,) and the number of sweeps of each island (k,), from what the main solver found, `force (nefc,)`.

    friction: (ncon, 5) of the contact slots, frictionloss: (nefc,)
    rubs: what of dry friction is active (nf,) in order, island by island, and how much each has (k,)
    visits: the active blocks (nblock,) in order, island by island, and how many each has (k,)
    """
    plan, iterations = m.plan.noslip, m.opt.noslip_iterations
    (dry, rows_of), (order, blocks_of) = rubs, visits
    c = m.plan.constraint
    rows = torch.arange(p.nefc, device=order.device)
    slides = ((rows >= c.ne) & (rows < c.ne + c.nf)) | (rows >= p.nefc - c.nc)
    W = linalg.ltl_half_solve(p.qLD, torch.where((slides & p.active)[:, None], p.J, 0.0).mT).mT
    dof, blocks, A = gathered(plan, W, order, blocks_of.sum())
    velocity = linalg.ltl_half_solve(p.qLD, p.rows.transpose_times(force)[:, None])[:, 0]
    s = Sliding(
        W=W, dof=dof, blocks=blocks, A=A, b=efc_b, frictionloss=frictionloss, friction=friction[plan.slot],
        dry=c.ne + dry, order=order,
    )  # fmt: skip
    spans = Span(*(torch.stack([x.cumsum(0) - x, x.cumsum(0)], dim=1) for x in (rows_of, blocks_of)))
    regular = islands.sums(0.5 * p.R * force * force)

    def island(k: Tensor, carry: Carry) -> Carry:
        force, velocity, niter = carry
        own = Span(*(x.index_select(0, k[None])[0] for x in spans))
        enough, first = (x.index_select(0, k[None])[0] for x in (m.opt.noslip_tolerance / islands.scale, regular))

        def go_on(at: Progress) -> Tensor:
            return ~at.done & (at.niter < iterations)

        def body(at: Progress) -> Progress:
            # The regulariser is left out from the first sweep on, which counts as a gain.
            gain = torch.where(at.niter == 0, first, 0.0)
            force, velocity, gain = sweep(m, s, own, (at.force, at.velocity, gain))
            return Progress(force=force, velocity=velocity, niter=at.niter + 1, done=gain < enough)

        zero = torch.zeros_like(niter[0])
        last = while_loop(go_on, body, Progress(force=force, velocity=velocity, niter=zero, done=zero > 0))
        return last.force, last.velocity, niter.scatter(0, k[None], last.niter[None])

    niter = torch.zeros_like(blocks_of)
    start = force, velocity, niter
    force, _, niter = fori_loop(0, len(niter), island, start, unroll=len(niter) == 1)
    return force, niter


def gathered(plan: NoslipPlan, W: Tensor, order: Tensor, nactive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`Sliding.dof`, `blocks` and `A`; W: (nefc, nv) J L^-1, of which only rows of active blocks are read."""
    n, w = plan.rows.shape

    def gather(k: Tensor, found: list[Tensor]) -> list[Tensor]:
        block = order.index_select(0, k[None])
        mask = plan.mask.index_select(0, block)[0]
        rows = W.index_select(0, plan.rows.index_select(0, block)[0]) * mask[:, None]
        dof, there, _ = compacted((rows != 0).any(0), plan.dofs)
        row = torch.where(there, rows.index_select(1, dof), 0.0)
        # The filling is a separate problem with the solution zero.
        A = row @ row.mT
        A = A + torch.diag(torch.where(mask > 0, A.diagonal().clamp(min=MIN_DIAGONAL), 1.0) - A.diagonal())
        more = (x.reshape(1, -1) for x in (dof, row, A))
        return [x.scatter(0, k.expand_as(new), new) for x, new in zip(found, more, strict=True)]

    start = [room(order, n, plan.dofs), room(W, n, w * plan.dofs), room(W, n, w * w)]
    dof, rows, A = fori_loop(0, nactive, gather, start) if n else start
    return dof, rows.view(n, w, plan.dofs), A.view(n, w, w)


def sweep(m: Model, s: Sliding, own: Span, carry: Carry) -> Carry:
    """Update dry friction, row by row, then the friction of contacts, block by block."""
    if s.dry.shape[0]:
        first, end = own.dry.unbind(0)
        carry = fori_loop(first, end, lambda k, c: rub(s, s.dry.index_select(0, k[None]), c), carry)
    if s.order.shape[0]:
        first, end = own.order.unbind(0)
        carry = fori_loop(first, end, lambda k, c: slide(m, s, k[None], c), carry)
    return carry


def rub(s: Sliding, row: Tensor, carry: Carry) -> Carry:
    """Minimise over one force of dry friction, of the row `row (1,)`."""
    force, velocity, gain = carry
    W, old, bound = (x.index_select(0, row) for x in (s.W, force, s.frictionloss))
    diagonal = (W * W).sum().clamp(min=MIN_VALUE)
    residual = s.b.index_select(0, row) + W @ velocity
    new = torch.clamp(old - residual / diagonal, -bound, bound)
    delta = new - old
    change = (delta * (0.5 * delta * diagonal + residual))[0]
    return force.scatter(0, row, new), velocity + delta @ W, gain - change


def slide(m: Model, s: Sliding, k: Tensor, carry: Carry) -> Carry:
    """Minimise over the friction of a contact, as far as it belongs to the active block `k (1,)`."""
    p, block = m.plan.noslip, s.order.index_select(0, k)
    force, velocity, gain = carry
    rows, mask = p.rows.index_select(0, block)[0], p.mask.index_select(0, block)[0]
    dof, W, A = (x.index_select(0, k)[0] for x in (s.dof, s.blocks, s.A))
    old = force.index_select(0, rows) * mask
    residual = (s.b.index_select(0, rows) + (W * velocity.index_select(0, dof)).sum(1)) * mask
    b = residual - A @ old
    if m.opt.cone == Cone.PYRAMIDAL:
        new = along_edges(A, b, old)
    else:
        normal = force.index_select(0, p.normal.index_select(0, block))[0]
        friction = torch.where(mask > 0, s.friction.index_select(0, block)[0, : mask.shape[0]], 1.0)
        new = friction_force(A, b, friction, normal, mask.sum() < 4) * mask
    delta = new - old
    change = 0.5 * (delta @ A @ delta) + delta @ residual
    worse = change > MAX_INCREASE
    new, change = torch.where(worse, old, new), torch.where(worse, 0.0, change)
    # Filling repeats the first row: it must write the same.
    written = torch.where(mask > 0, new, new[:1])
    velocity = velocity.scatter_add(0, dof, ((new - old)[:, None] * W).sum(0))
    return force.scatter(0, rows, written), velocity, gain - change


def along_edges(A: Tensor, b: Tensor, old: Tensor) -> Tensor:
    """The forces (2,) along opposite edges that cost least, with the sum of `old (2,)`: it is the normal force."""
    mid = 0.5 * old.sum()
    curvature = A[0, 0] + A[1, 1] - A[0, 1] - A[1, 0]
    slope = mid * (A[0, 0] - A[1, 1]) + b[0] - b[1]
    flat = curvature < MIN_VALUE
    y = torch.where(flat, 0.0, -slope / torch.where(flat, 1.0, curvature)).clamp(-mid, mid)
    return torch.stack([mid + y, mid - y])
