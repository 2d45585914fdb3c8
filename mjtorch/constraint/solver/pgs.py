"""Projected Gauss-Seidel on the dual problem (mj_solPGS in `engine_solver.c`).

Minimises `f' (A + R) f / 2 + f' b` over the forces f that the constraints allow, `A = J M^-1 J'`, one block of rows
after another: an elliptic contact is a block, any other row is one by itself. As in C, Nesterov's momentum is added
between sweeps, and the active blocks are visited in an order that is shuffled anew before every sweep.

A is not formed. With `M = L' L` and `W = J L^-1` it is `W W'`: the velocity `v = W' f` is kept up to date, and a row of
`A f` is a row of W times v. So a sweep takes time in proportion to the active rows alone, whatever their number.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.solver.problem import CONE, QUADRATIC, SATISFIED, Problem, merge
from mjtorch.constraint.solver.qcqp import friction_force
from mjtorch.control_flow import fori_loop, while_loop
from mjtorch.math import linalg
from mjtorch.math.vector import MIN_VALUE, norm
from mjtorch.model import Model
from mjtorch.model.plan.solver import SolverPlan

# A block whose cost would grow by more keeps its force.
MAX_INCREASE = 1e-10


@tree.dataclass(kw_only=True)
class Dual(tree.Tree):
    """What a sweep reads, all constant.

    W: (nefc, nv) J L^-1
    table: (nefc, 6) for each row: b, R, diagonal of A + R and its inverse, low, high
    order: (nblock,) the active blocks, then filling
    nactive: () how many blocks are active
    friction: (ncone + 1, w - 1) friction coefficients, one in the padding; the last line is for blocks without cone
    """

    W: Tensor
    table: Tensor
    order: Tensor
    nactive: Tensor
    friction: Tensor


@tree.dataclass(kw_only=True)
class Sweeps(tree.Tree):
    """Where PGS is.

    force, previous: (nefc,) now, and before the last extrapolation
    order: (nblock,) of the last sweep
    momentum: () sweeps since momentum was last given up
    niter: (), done: () bool
    """

    force: Tensor
    previous: Tensor
    order: Tensor
    momentum: Tensor
    niter: Tensor
    done: Tensor


class Rows(NamedTuple):
    """One block of `w` rows; `w` is 1 where there are no cones.

    rows: (w,) their numbers
    W: (w, nv)
    b, R, diagonal, inverse, low, high: (w,)
    """

    rows: Tensor
    W: Tensor
    b: Tensor
    R: Tensor
    diagonal: Tensor
    inverse: Tensor
    low: Tensor
    high: Tensor


def solve_pgs(
    m: Model, p: Problem, frictionloss: Tensor, efc_b: Tensor, visits: Tensor, force: Tensor
) -> tuple[Tensor, Tensor]:
    """Forces (nefc,) and the number of sweeps (), from the warm start `force (nefc,)`, which is dropped if bad.

    visits: (nblock,) the order of the blocks, before it is shuffled.
    """
    plan, iterations = m.plan.solver, m.opt.iterations
    if plan.draws.shape[-1] < iterations * (plan.block_rows.shape[0] - 1):
        raise ValueError(
            "PGS needs random numbers that put_model makes for `opt.solver` and `opt.iterations`; set both in the "
            "MjModel before put_model instead of changing the Model"
        )
    dual = _dual(plan, p, frictionloss, efc_b, visits)
    velocity = force @ dual.W
    cost = 0.5 * (velocity @ velocity) + force @ (efc_b + 0.5 * (p.R * force))
    force = torch.where(cost > 0, 0.0, force)
    dual = dual.replace(W=_active_rows(plan, dual))

    def go_on(s: Sweeps) -> Tensor:
        return ~s.done & (s.niter < iterations)

    def body(s: Sweeps) -> Sweeps:
        order = _shuffle(plan, s.order, dual.nactive, s.niter)
        start, previous, velocity = _extrapolate(plan, dual, s, order)
        force, gain, agreement = _sweep(plan, dual, order, start, previous, velocity)
        restart = (s.niter > 0) & (agreement < 0)
        return Sweeps(
            force=force,
            previous=previous,
            order=order,
            momentum=torch.where(restart, 0, s.momentum + 1),
            niter=s.niter + 1,
            done=~(p.scale * gain >= p.tolerance),
        )

    zero = torch.zeros_like(dual.nactive)
    init = Sweeps(force=force, previous=force, order=dual.order, momentum=zero, niter=zero, done=dual.nactive == 0)
    last = while_loop(go_on, body, init)
    return last.force, last.niter


def _dual(plan: SolverPlan, p: Problem, frictionloss: Tensor, efc_b: Tensor, visits: Tensor) -> Dual:
    # Zero J is anyway in the other rows; said so, they are not looked at.
    W = linalg.ltl_half_solve(p.qLD, torch.where(p.active[:, None], p.J, 0.0).mT).mT
    bound = torch.where(p.active, frictionloss, 0.0)
    low, high = plan.force_low - bound, plan.force_high + bound
    diagonal = torch.where(p.active, (W * W).sum(1) + p.R, 1.0)
    order, nactive = active_first(p.active[plan.block_rows[:, 0]], visits)
    friction = torch.ones_like(plan.block_mask[:1, 1:])
    for c in p.cones:
        friction = torch.cat([torch.where(plan.cone_mask[:, 1:] > 0, c.scale[:, 1:], 1.0), friction])
    table = torch.stack([efc_b, p.R, diagonal, 1 / diagonal, low, high], dim=1)
    return Dual(W=W, table=table, order=order, nactive=nactive, friction=friction)


def active_first(active: Tensor, visits: Tensor) -> tuple[Tensor, Tensor]:
    """Those of `visits (n,)`, numbers up to n, that are `active (n,)`, followed by zeros, and how many they are ()."""
    n, active = active.shape[0], active[visits]
    # Each active one goes to the place after the active ones before it, the others to one that is cut off.
    place = torch.where(active, active.cumsum(0) - 1, n)
    return place.new_zeros(n + 1).scatter(0, place, visits)[:n], active.sum()


def _active_rows(plan: SolverPlan, dual: Dual) -> Tensor:
    """W with zeros in rows that are not active: a copy of what the sweeps read, which lies closer together."""

    def body(k: Tensor, W: Tensor) -> Tensor:
        r = _block(plan, dual, dual.order.index_select(0, k[None]))
        return W.scatter(0, r.rows[:, None].expand_as(r.W), r.W)

    return fori_loop(0, dual.nactive, body, torch.zeros_like(dual.W))


def _shuffle(plan: SolverPlan, order: Tensor, nactive: Tensor, niter: Tensor) -> Tensor:
    """Fisher and Yates' shuffle of the first `nactive` entries, with the next `nactive - 1` random numbers."""
    begin = niter * (nactive - 1)

    def body(k: Tensor, order: Tensor) -> Tensor:
        # A world that has finished goes along with others that have not: keep its indices in range.
        last = torch.clamp(nactive - 1 - k, min=0)
        draw = torch.clamp(begin + k, max=plan.draws.shape[0] - 1)
        pair = torch.cat([last[None], plan.draws.index_select(0, draw[None]) % (last + 1)])
        return order.scatter(0, pair, order.index_select(0, pair).flip(0))

    return fori_loop(0, nactive - 1, body, order)


def _block(plan: SolverPlan, dual: Dual, block: Tensor) -> Rows:
    """The rows of `block (1,)`."""
    rows = plan.block_rows.index_select(0, block)[0] if plan.ncone else block
    return Rows(rows, dual.W.index_select(0, rows), *dual.table.index_select(0, rows).unbind(1))


def _extrapolate(plan: SolverPlan, dual: Dual, s: Sweeps, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Carry the forces on by momentum, then make them feasible.

    Returns the forces to start the sweep from, those to go back to, and the velocity (nv,) of the former.
    """
    momentum = s.momentum.to(s.force.dtype)
    beta = torch.clamp((momentum - 1) / (momentum + 2), min=0)

    def body(k: Tensor, carry: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        force, previous, velocity = carry
        block = order.index_select(0, k[None])
        r = _block(plan, dual, block)
        now = force.index_select(0, r.rows)
        further = now + beta * (now - previous.index_select(0, r.rows))
        start = torch.clamp(further, r.low, r.high)
        if plan.ncone:
            start = _into_cone(plan, dual, block, start, further)
        start = torch.where(beta > 0, start, now)
        counted = start * plan.block_mask.index_select(0, block)[0] if plan.ncone else start
        return force.scatter(0, r.rows, start), previous.scatter(0, r.rows, now), velocity + counted @ r.W

    return fori_loop(0, dual.nactive, body, (s.force, s.previous, torch.zeros_like(dual.W[0])))


def _into_cone(plan: SolverPlan, dual: Dual, block: Tensor, alone: Tensor, force: Tensor) -> Tensor:
    """The nearest (w,) to `force` in the direction of its normal, if the block is a cone, else `alone`."""
    cone = plan.block_cone.index_select(0, block)
    mask = plan.block_mask.index_select(0, block)[0, 1:]
    normal, tangent = force[:1], force[1:] * mask
    scaled = tangent / dual.friction.index_select(0, cone)[0]
    square = scaled @ scaled
    shrink = torch.where(square > normal * normal, normal / torch.clamp(square, min=MIN_VALUE).sqrt(), 1.0)
    inside = torch.where(normal < 0, 0.0, torch.cat([normal, torch.where(mask > 0, tangent * shrink, normal)]))
    return torch.where(cone < plan.ncone, inside, alone)


def _sweep(
    plan: SolverPlan, dual: Dual, order: Tensor, start: Tensor, previous: Tensor, velocity: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Update the active blocks in turn, from `start (nefc,)`.

    Returns the forces (nefc,), by how much the dual cost is less (), and how far the sweep went where the extrapolation
    had gone, `(force - start)' (start - previous)` ().
    """
    update = _update_contact if plan.ncone else _update_row

    def body(k: Tensor, carry: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        force, velocity, gain, agreement = carry
        block = order.index_select(0, k[None])
        r = _block(plan, dual, block)
        old = force.index_select(0, r.rows)
        new, change = update(plan, dual, block, r, old, velocity)
        worse = change > MAX_INCREASE
        new, change = torch.where(worse, old, new), torch.where(worse, 0.0, change)
        delta = new - old
        if plan.ncone:
            delta = delta * plan.block_mask.index_select(0, block)[0]
        agreement = agreement + delta @ (old - previous.index_select(0, r.rows))
        return force.scatter(0, r.rows, new), velocity + delta @ r.W, gain - change, agreement

    zero = start.new_zeros(())
    force, _, gain, agreement = fori_loop(0, dual.nactive, body, (start, velocity, zero, zero))
    return force, gain, agreement


def _update_row(
    plan: SolverPlan, dual: Dual, block: Tensor, r: Rows, old: Tensor, velocity: Tensor
) -> tuple[Tensor, Tensor]:
    """Minimise over one force (1,); the new force and the change of cost ()."""
    residual = r.b + r.W @ velocity + r.R * old
    new = torch.clamp(old - residual * r.inverse, r.low, r.high)
    delta = new - old
    return new, (delta * (0.5 * delta * r.diagonal + residual))[0]


def _update_contact(
    plan: SolverPlan, dual: Dual, block: Tensor, r: Rows, old: Tensor, velocity: Tensor
) -> tuple[Tensor, Tensor]:
    """Minimise over a block of forces (w,): along the ray of the force and then over friction, if it is a cone."""
    mask, cone = plan.block_mask.index_select(0, block)[0], plan.block_cone.index_select(0, block)[0]
    is_cone = cone < plan.ncone
    old = old * mask
    residual = (r.b + r.W @ velocity + r.R * old) * mask
    # The padding is a separate problem with the solution zero.
    AR = torch.where(mask[:, None] * mask > 0, r.W @ r.W.mT, 0.0) + torch.diag(torch.where(mask > 0, r.R, 1.0))

    alone = torch.clamp(old[0] - residual[0] * r.inverse[0], r.low[0], r.high[0])
    normal_only = torch.cat([alone[None], torch.zeros_like(old[1:])])
    new = torch.where(is_cone, _update_cone(dual, cone, AR, residual, r.inverse[0], old, mask), normal_only)
    delta = new - old
    change = 0.5 * (delta @ AR @ delta) + delta @ residual
    # Padding repeats the first row: it must write the same.
    return torch.where(mask > 0, new, new[:1]), change


def _update_cone(
    dual: Dual, cone: Tensor, AR: Tensor, residual: Tensor, inverse: Tensor, old: Tensor, mask: Tensor
) -> Tensor:
    """New forces (w,) of an elliptic contact."""
    # A force without normal part starts anew from the normal, any other is scaled first.
    normal = torch.clamp(old[0] - residual[0] * inverse, min=0)
    resistance = old @ AR @ old
    usable = resistance >= MIN_VALUE
    stretch = torch.clamp(-(old @ residual) / torch.where(usable, resistance, 1.0), min=-1)
    normal = torch.where(old[0] < MIN_VALUE, normal, old[0] * (1 + torch.where(usable, stretch, 0.0)))

    friction = dual.friction.index_select(0, cone[None])[0]
    A = AR[1:, 1:]
    b = residual[1:] - A @ old[1:] + AR[1:, 0] * (normal - old[0])
    return torch.cat([normal[None], friction_force(A, b, friction, normal, mask.sum() < 5)])


def dual_state(m: Model, p: Problem, frictionloss: Tensor, force: Tensor) -> Tensor:
    """mjtConstraintState of each row (nefc,) as the forces tell (dualState)."""
    plan = m.plan.solver
    low = plan.force_low - frictionloss
    high = plan.force_high + frictionloss
    # Forces oppose residuals: the least force belongs to the greatest residual.
    states = torch.where(force <= low, plan.state_high, torch.where(force >= high, plan.state_low, QUADRATIC))
    for c in p.cones:
        f = force[c.rows] / torch.where(c.scale > 0, c.scale, 1.0) * (c.scale > 0)
        N, T = f[:, 0], norm(f[:, 1:])
        zone = torch.where(c.mu * N >= T, SATISFIED, torch.where(N + c.mu * T <= 0, QUADRATIC, CONE))
        states = merge(p, states, zone[:, None].expand(c.rows.shape))
    return torch.where(p.active, states, SATISFIED)
