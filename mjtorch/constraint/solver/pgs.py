"""Projected Gauss-Seidel on the dual problem (mj_solPGS in `engine_solver.c`).

Minimises `f' (A + R) f / 2 + f' b` over the forces f that the constraints allow, `A = J M^-1 J'`, one block of rows
after another: an elliptic contact is a block, any other row is one by itself. As in C, Nesterov's momentum is added
between sweeps, and the active blocks are visited in an order that is shuffled anew before every sweep. Islands are
solved one after the other, each with sweeps of its own.

All that a sweep reads is gathered first: the rows of active blocks alone, in the order that C has them in. So a sweep
takes time in proportion to what is active, whatever the number of slots, and finds it close together.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.solver.dual import WIDTH, Factored, Formed, Listed, operator
from mjtorch.constraint.solver.problem import CONE, QUADRATIC, SATISFIED, Problem, merge
from mjtorch.constraint.solver.qcqp import friction_force
from mjtorch.control_flow import fori_loop, while_loop
from mjtorch.control_flow.context import wants_scans
from mjtorch.control_flow.if_any import if_any
from mjtorch.math import linalg
from mjtorch.math.compact import room
from mjtorch.math.vector import MIN_VALUE, norm
from mjtorch.model import Model
from mjtorch.model.plan.solver import SolverPlan

# A block whose cost would grow by more keeps its force.
MAX_INCREASE = 1e-10


@tree.dataclass(kw_only=True)
class Gathered(tree.Tree):
    """Which blocks and rows are active, in C's order, then filling.

    blocks: (nblock,) their numbers; first: (nblock,) the first row of each, among those of active blocks
    source: (nefc,) where these rows lie
    nactive: () how many blocks; count: () how many rows
    """

    blocks: Tensor
    first: Tensor
    source: Tensor
    nactive: Tensor
    count: Tensor


@tree.dataclass(kw_only=True)
class Dual(tree.Tree):
    """What a sweep reads, all constant: the rows of the active blocks one after the other, then filling.

    A: the residual, as forces change
    numbers: (nefc, 3) R, the diagonal of A + R, and one by it
    low, high: (nefc,) bounds of forces
    cone: (nblock,) of active blocks; the number of cones where it has none
    blocks: (nblock, w, w) A + R of active blocks, in filling the identity; none without cones
    friction: (nblock, w - 1) friction coefficients of active blocks, one in the padding
    gathered: which blocks and rows these are
    """

    A: Formed | Factored | Listed
    numbers: Tensor
    low: Tensor
    high: Tensor
    cone: Tensor
    blocks: Tensor
    friction: Tensor
    gathered: Gathered


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


class Block(NamedTuple):
    """One block of `w` rows; `w` is 1 where there are no cones.

    k: (1,) its number among active blocks
    rows: (w,) where they are in `Dual`, filled up with the first
    mask: (w,) 1 for its rows, 0 for filling
    """

    k: Tensor
    rows: Tensor
    mask: Tensor


def solve_pgs(
    m: Model,
    p: Problem,
    frictionloss: Tensor,
    efc_b: Tensor,
    visits: tuple[Tensor, Tensor],
    scale: Tensor,
    force: Tensor,
) -> tuple[Tensor, Tensor]:
    """Forces (nefc,) and the most sweeps of an island (), from the warm start `force (nefc,)`, which is dropped if bad.

    visits: the active blocks (nblock,) in order, island by island, before it is shuffled, and how many each has (k,)
    scale: (k,) one over the trace of the inertia of each
    """
    plan, iterations = m.plan.solver, m.opt.iterations
    if plan.draws.shape[-1] < iterations * (plan.block_rows.shape[0] - 1):
        raise ValueError(
            "PGS needs random numbers that put_model makes for `opt.solver` and `opt.iterations`; set both in the "
            "MjModel before put_model instead of changing the Model"
        )
    # The other rows are not read.
    J = torch.where(p.active, p.J.mT, room(p.J, *p.J.mT.shape))
    W = linalg.ltl_half_solve(p.qLD, J).mT
    velocity = linalg.ltl_half_solve(p.qLD, p.rows.transpose_times(force)[:, None])[:, 0]
    cost = 0.5 * (velocity @ velocity) + force @ (efc_b + 0.5 * (p.R * force))
    force = torch.where(cost > 0, 0.0, force)
    blocks, sizes = visits
    begin = sizes.cumsum(0) - sizes
    place = torch.arange(len(blocks), device=blocks.device)

    def island(k: Tensor, carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        force, most = carry
        first, count = (x.index_select(0, k[None]) for x in (begin, sizes))
        mine = blocks.index_select(0, (first + place).clamp(max=len(blocks) - 1))
        gathered = _gathered(plan, p, mine, count[0])
        dual, start = _dual(plan, p, W, frictionloss, efc_b, force, gathered)
        found, niter = _sweeps(m, dual, p.tolerance / scale.index_select(0, k[None])[0], start)

        def give_back(k: Tensor, force: Tensor) -> Tensor:
            return force.scatter(0, gathered.source.index_select(0, k[None]), found.index_select(0, k[None]))

        return fori_loop(0, gathered.count, give_back, force), torch.maximum(most, niter)

    start = force, torch.zeros_like(sizes[0])
    return fori_loop(0, len(sizes), island, start, unroll=len(sizes) == 1)


def _sweeps(m: Model, dual: Dual, enough: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Forces (nefc,) of the rows in `dual`, from `start (nefc,)`, and the number of sweeps ().

    enough: () a decrease of the cost that ends them
    """
    plan, iterations, gathered = m.plan.solver, m.opt.iterations, dual.gathered

    def go_on(s: Sweeps) -> Tensor:
        return ~s.done & (s.niter < iterations)

    def body(s: Sweeps) -> Sweeps:
        order = _shuffle(plan, s.order, gathered.nactive, s.niter)
        start = _extrapolate(plan, dual, s)
        force, gain, agreement = _sweep(plan, dual, order, start, s.force)
        restart = (s.niter > 0) & (agreement < 0)
        return Sweeps(
            force=force,
            previous=s.force,
            order=order,
            momentum=torch.where(restart, 0, s.momentum + 1),
            niter=s.niter + 1,
            done=~(gain >= enough),
        )

    zero = torch.zeros_like(gathered.nactive)
    order = torch.arange(len(gathered.blocks), device=start.device)
    init = Sweeps(force=start, previous=start, order=order, momentum=zero, niter=zero, done=gathered.nactive == 0)
    last = while_loop(go_on, body, init)
    return last.force, last.niter


def _gathered(plan: SolverPlan, p: Problem, blocks: Tensor, nactive: Tensor) -> Gathered:
    place = torch.arange(len(blocks), device=blocks.device)
    if not plan.ncone:
        return Gathered(blocks=blocks, first=place, source=blocks, nactive=nactive, count=nactive)
    mask = (plan.block_mask[blocks] > 0) & (place < nactive)[:, None]
    sizes = mask.sum(1)
    first = sizes.cumsum(0) - sizes
    into = torch.where(mask, first[:, None] + torch.arange(mask.shape[1], device=blocks.device), p.nefc)
    source = first.new_zeros(p.nefc + 1).scatter(0, into.flatten(), plan.block_rows[blocks].flatten())[: p.nefc]
    return Gathered(blocks=blocks, first=first, source=source, nactive=nactive, count=sizes.sum())


def _dual(
    plan: SolverPlan, p: Problem, W: Tensor, frictionloss: Tensor, efc_b: Tensor, force: Tensor, g: Gathered
) -> tuple[Dual, Tensor]:
    """What a sweep reads, and the forces to begin with; W: (nefc, nv) J L^-1."""
    bound = torch.where(p.active, frictionloss, 0.0)
    table = torch.stack([force, p.R, plan.force_low - bound, plan.force_high + bound], dim=1)
    A = operator(W, efc_b, g.source, g.count)

    def gather(k: Tensor, found: list[Tensor]) -> list[Tensor]:
        force, R, low, high = table.index_select(0, g.source.index_select(0, k[None])).unbind(1)
        own = A.diagonal.index_select(0, k[None]) + R
        more = [torch.stack([R, own, 1 / own], dim=1), force, low, high]
        return [x.scatter(0, k.expand_as(new), new) for x, new in zip(found, more, strict=True)]

    n = len(A.diagonal)
    numbers, force, low, high = fori_loop(0, g.count, gather, [room(force, n, 3), *[room(force, n)] * 3])
    cone, blocks, friction = _cones(plan, p, W, g)
    dual = Dual(
        A=A, numbers=numbers, low=low, high=high, cone=cone, blocks=blocks, friction=friction, gathered=g
    )  # fmt: skip
    return dual, force


def _cones(plan: SolverPlan, p: Problem, W: Tensor, g: Gathered) -> tuple[Tensor, Tensor, Tensor]:
    """`Dual.cone`, `blocks` and `friction`; none of these if there are no cones."""
    cone = plan.block_cone.index_select(0, g.blocks) if plan.ncone else plan.block_cone[:0]
    n, w = len(cone), plan.block_mask.shape[1]
    blocks, friction = room(W, n, w * w), torch.ones_like(plan.block_mask[:n, 1:])
    for c in p.cones:
        scale = torch.where(plan.cone_mask > 0, c.scale, 1.0)[:, 1:]
        friction = torch.cat([scale, torch.ones_like(scale[:1])]).index_select(0, cone)

        def gather(k: Tensor, found: Tensor) -> Tensor:
            block = g.blocks.index_select(0, k[None])
            rows, mask = plan.block_rows.index_select(0, block)[0], plan.block_mask.index_select(0, block)[0]
            some = W.index_select(0, rows) * mask[:, None]
            # The padding is a separate problem with the solution zero.
            A = some @ some.mT + torch.diag(torch.where(mask > 0, p.R.index_select(0, rows), 1.0))
            return found.scatter(0, k.expand(1, w * w), A.view(1, -1))

        blocks = fori_loop(0, g.nactive, gather, blocks)
    return cone, blocks.view(n, w, w), friction


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


def _block(plan: SolverPlan, dual: Dual, k: Tensor) -> Block:
    """The active block `k (1,)`."""
    if not plan.ncone:
        return Block(k, k, torch.ones_like(dual.numbers[0, :1]))
    mask = plan.block_mask.index_select(0, dual.gathered.blocks.index_select(0, k))[0]
    place = torch.arange(len(mask), device=k.device)
    first = dual.gathered.first.index_select(0, k)
    return Block(k, first + torch.where(mask > 0, place, 0), mask)


def _extrapolate(plan: SolverPlan, dual: Dual, s: Sweeps) -> Tensor:
    """Forces (nefc,) carried on by momentum, made feasible."""
    momentum = s.momentum.to(s.force.dtype)
    beta = torch.clamp((momentum - 1) / (momentum + 2), min=0)
    width = WIDTH if wants_scans() else len(s.force)
    table = [x.view(-1, width) for x in (s.force, s.previous, dual.low, dual.high)]

    def further(c: Tensor, found: Tensor) -> Tensor:
        force, previous, low, high = (x.index_select(0, c[None])[0] for x in table)
        some = _between(force + beta * (force - previous), low, high)
        return found.scatter(0, c.expand(1, width), torch.where(beta > 0, some, force)[None])

    start = fori_loop(0, (dual.gathered.count + width - 1) // width, further, room(table[0], *table[0].shape)).flatten()

    def cone(k: Tensor, start: Tensor) -> Tensor:
        at = _block(plan, dual, k[None])
        alone, force, previous = (x.index_select(0, at.rows) for x in (start, s.force, s.previous))
        is_cone = (dual.cone.index_select(0, at.k) < plan.ncone) & (beta > 0)
        inside = if_any(is_cone, lambda: _into_cone(dual, at, force + beta * (force - previous)), alone)
        return start.scatter(0, at.rows, inside)

    return fori_loop(0, dual.gathered.nactive, cone, start) if plan.ncone else start


def _into_cone(dual: Dual, at: Block, force: Tensor) -> Tensor:
    """The nearest (w,) to `force` in the direction of its normal, in the cone that the block is."""
    mask = at.mask[1:]
    normal, tangent = force[:1], force[1:] * mask
    scaled = tangent / dual.friction.index_select(0, at.k)[0]
    square = scaled @ scaled
    shrink = torch.where(square > normal * normal, normal / torch.clamp(square, min=MIN_VALUE).sqrt(), 1.0)
    return torch.where(normal < 0, 0.0, torch.cat([normal, torch.where(mask > 0, tangent * shrink, normal)]))


def _sweep(
    plan: SolverPlan, dual: Dual, order: Tensor, start: Tensor, previous: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Update the active blocks in turn, from `start (nefc,)`.

    Returns the forces (nefc,), by how much the dual cost is less (), and how far the sweep went where the extrapolation
    had gone, `(force - start)' (start - previous)` ().
    """
    update = _update_contact if plan.ncone else _update_row
    # Rows are a chain of latencies. It is short if each hands on to the next at once what this is going to find.
    ahead = dual.A if isinstance(dual.A, Formed) and not plan.ncone else None

    def body(k: Tensor, carry: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        force, state, gain, agreement, *known = carry
        at = _block(plan, dual, order.index_select(0, k[None]))
        old = force.index_select(0, at.rows)
        found = dual.A.at(state, at.rows) if ahead is None else known[0]
        new, change = update(plan, dual, at, old, found)
        delta = new - old
        if plan.ncone:
            # The best of a single row cannot cost more.
            worse = change > MAX_INCREASE
            new, change = torch.where(worse, old, new), torch.where(worse, 0.0, change)
            delta = (new - old) * at.mask
        if ahead is not None:
            following = order.index_select(0, torch.clamp(k + 1, max=len(order) - 1)[None])
            known = [ahead.at(state, following) + ahead.between(at.rows, following) * delta]
        agreement = agreement + delta @ (old - previous.index_select(0, at.rows))
        return force.scatter(0, at.rows, new), dual.A.change(state, at.rows, delta), gain - change, agreement, *known

    state, zero = dual.A.start(start, dual.gathered.count), start.new_zeros(())
    known = [] if ahead is None else [ahead.at(state, order[:1])]
    force, _, gain, agreement, *_ = fori_loop(0, dual.gathered.nactive, body, (start, state, zero, zero, *known))
    return force, gain, agreement


def _update_row(plan: SolverPlan, dual: Dual, at: Block, old: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """Minimise over one force (1,), where `A f + b` is `found (1,)`; the new force and the change of cost ()."""
    R, diagonal, inverse = dual.numbers.index_select(0, at.rows).unbind(1)
    low, high = (x.index_select(0, at.rows) for x in (dual.low, dual.high))
    residual = found + R * old
    new = _between(old - residual * inverse, low, high)
    delta = new - old
    return new, (delta * (0.5 * delta * diagonal + residual))[0]


def _between(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """`x.clamp(low, high)` for bounds that are numbers: sweeps are chains of this, and to ask takes as long again."""
    x = torch.where(x < low, low, x)
    return torch.where(x > high, high, x)


def _update_contact(plan: SolverPlan, dual: Dual, at: Block, old: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """Minimise over a block of forces (w,), where `A f + b` is `found (w,)`; the new ones and the change of cost ().

    Along the ray of the force and then over friction, if it is a cone.
    """
    mask, numbers = at.mask, dual.numbers.index_select(0, at.rows)
    old = old * mask
    residual = found * mask + numbers[:, 0] * old
    AR = dual.blocks.index_select(0, at.k)[0]
    inverse = numbers[0, 2]
    low, high = (x.index_select(0, at.rows[:1])[0] for x in (dual.low, dual.high))

    alone = torch.clamp(old[0] - residual[0] * inverse, low, high)
    normal_only = torch.cat([alone[None], torch.zeros_like(old[1:])])
    is_cone = dual.cone.index_select(0, at.k) < plan.ncone
    new = if_any(is_cone, lambda: _update_cone(dual, at, AR, residual, inverse, old), normal_only)
    delta = new - old
    change = 0.5 * (delta @ AR @ delta) + delta @ residual
    # Padding repeats the first row: it must write the same.
    return torch.where(mask > 0, new, new[:1]), change


def _update_cone(dual: Dual, at: Block, AR: Tensor, residual: Tensor, inverse: Tensor, old: Tensor) -> Tensor:
    """New forces (w,) of an elliptic contact."""
    # A force without normal part starts anew from the normal, any other is scaled first.
    normal = torch.clamp(old[0] - residual[0] * inverse, min=0)
    resistance = old @ AR @ old
    usable = resistance >= MIN_VALUE
    stretch = torch.clamp(-(old @ residual) / torch.where(usable, resistance, 1.0), min=-1)
    normal = torch.where(old[0] < MIN_VALUE, normal, old[0] * (1 + torch.where(usable, stretch, 0.0)))

    friction = dual.friction.index_select(0, at.k)[0]
    A = AR[1:, 1:]
    b = residual[1:] - A @ old[1:] + AR[1:, 0] * (normal - old[0])
    return torch.cat([normal[None], friction_force(A, b, friction, normal, at.mask.sum() < 5)])


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
