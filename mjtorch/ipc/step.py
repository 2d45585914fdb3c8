"""The flag `ipc`: contacts of membranes that never pass through each other (Li et al., arXiv:2512.12151).

A step is found in rounds. Each takes gaps for linear in the positions, from where vertices surely can be; solves for
the accelerations, pairs being springs with a wall at `multiplier / stiffness` beside the gap at which they rest; goes
there, as far as that lowers the cost; sets the multipliers to the forces of the springs; and moves the vertices as far
on the way there as no gap loses more than four fifths. The step is done when they are there.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.driver import CONTACTFULL
from mjtorch.constraint.implicit_rows import floating
from mjtorch.constraint.solver.implicit import attach
from mjtorch.constraint.solver.problem import Problem, build, cost, force, residuals, state
from mjtorch.control_flow import while_loop
from mjtorch.ipc.gaps import Gap
from mjtorch.ipc.rows import Pushes, jacobian, nothing, pushes, solve_pushes, with_pushes
from mjtorch.ipc.scene import Scene, largest, moved, scene
from mjtorch.ipc.sweep import advance, gaps, meeting
from mjtorch.math.value import value_of
from mjtorch.model import Data, Model
from mjtorch.model.plan.ipc import IpcPlan
from mjtorch.smooth.metric import Metric, effective_inertia

# A pair leaves after so many rounds without force, if it never had any, or has had some.
NEVER, SINCE = 25, 44
# Of the stiffness this part is left after each of them, but for the first few after the last force.
DECAY, AT_ONCE = 0.9, 6
# A pair that was left out joins when its wall is passed by this [m].
PASSED = 1e-8
# Shorter parts of the way are not gone; after so many of them the step ends, and after so many rounds in any case.
SHORT, STALLED, ROUNDS = 1e-6, 64, 1024
# With a change of velocity [m/s] below this the solution is taken, whatever the cost.
SETTLED = 0.05
# How often the way to the solution is halved, and what the cost [J] may rise by.
HALVINGS, RISE = 8, 1e-12
# What is lost of the cost to rounding in single precision, in units of its last place.
ROUNDING = 8
# Meetings are at the same time within this part of the way.
TIE = 1e-12
# The step is done with this part of the motion.
COMPLETE = 1 - 1e-6


@tree.dataclass(kw_only=True)
class Progress(tree.Tree):
    """Where a step is.

    w: (nv,) velocity at its end as far as it is known, free: (nv,) that with which vertices surely get there
    member: (p,) bool, pairs that are watched; lam: (p,) [N] their multipliers, age: (p,) rounds without force, negative
        after they have had one
    vertex_lam, vertex_age: (n,) the same of vertices: the largest, and their own count
    found: what pushed in the last solve, qacc, push: (nv,) its solution, and the force of pairs
    beta: () how much of the motion is done, stall: () rounds without any, trips: () rounds
    lost: () pairs without room, niter: () iterations of all solves; done: () bool
    """

    w: Tensor
    free: Tensor
    member: Tensor
    lam: Tensor
    age: Tensor
    vertex_lam: Tensor
    vertex_age: Tensor
    found: Pushes
    qacc: Tensor
    push: Tensor
    beta: Tensor
    stall: Tensor
    trips: Tensor
    lost: Tensor
    niter: Tensor
    done: Tensor


@tree.dataclass(kw_only=True)
class Round(tree.Tree):
    """Solves of a round. chosen: (p,) bool, pairs that may push; again: () bool, whether others have joined."""

    chosen: Tensor
    found: Pushes
    qacc: Tensor
    push: Tensor
    lost: Tensor
    niter: Tensor
    again: Tensor


class Walls(NamedTuple):
    """Gaps of pairs, linear around `x (n, 3)`; offset: (p,) [m] what they are there beyond the wall."""

    at: Gap
    x: Tensor
    offset: Tensor

    def beyond(self, p: IpcPlan, y: Tensor) -> Tensor:
        """How far (p,) [m] pairs are beyond their walls with vertices at `y (n, 3)`."""
        way = torch.cat([y - self.x, torch.zeros_like(y[:1])])[p.point]
        along = (way * self.at.normal[:, None]).sum(-1)
        return self.offset + (self.at.weight * along).sum(-1)


def free_flight(m: Model, d: Data) -> Data:
    """What `forward` says of accelerations: those without constraints, which the step finds."""
    none = torch.zeros_like
    return d.replace(
        qacc=d.qacc_smooth,
        qfrc_constraint=none(d.qfrc_constraint),
        efc_b=none(d.efc_b),
        efc_force=none(d.efc_force),
        efc_state=none(d.efc_state),
        solver_niter=none(d.solver_niter),
    )


def solve_ipc(m: Model, d: Data) -> Data:
    """Accelerations (nv,) over the step, forces of constraints and of pairs of membranes (mj_ipc).

    Sets qacc, qfrc_constraint, efc_b, efc_force and efc_state, which are of the rows of other constraints,
    solver_niter, flexvert_lambda, flexvert_conage, and `warning`: CONTACTFULL where more pairs push than there is room
    for, CNSTRFULL, which is next to it, where the step ends before the motion does. Needs `free_flight`.

    Derivatives are those of the last solve, with the pairs, walls, stiffnesses and directions that it had.
    """
    (p,) = m.plan.ipc
    metric = effective_inertia(m, d)
    problem, s = build(m, d, (metric,)), scene(m, d, p)
    fixed, seen, fixed_metric, fixed_d = tree.map(torch.Tensor.detach, (problem, s, metric, d))
    last = solved(m, fixed_d, p, fixed_metric, fixed, seen)

    h = m.opt.timestep
    # Where vertices would be at the present velocity is what the rows depend on.
    there = s.x + moved(p, s, h * d.qvel)
    point = p.point[last.found.place]
    change = torch.cat([there - there.detach(), torch.zeros_like(there[:1])])[point]
    found = last.found.replace(aref=last.found.aref - (last.found.slope * change).sum((1, 2)))
    J = jacobian(m, p, seen, found)
    whole = with_pushes(problem, p, found, J)
    qacc = floating(m, d.replace(qacc=attach(whole, last.qacc)), metric).qacc
    qacc = value_of((last.free - d.qvel.detach()) / h, qacc)
    at = residuals(problem, problem.rows.times(qacc) - problem.aref)
    efc_force = force(problem, at)
    troubles = torch.stack([last.lost, (last.beta < COMPLETE).to(last.lost.dtype)])
    pair_force = force(whole, residuals(whole, whole.rows.times(qacc) - whole.aref))[problem.nefc :]
    return d.replace(
        qacc=qacc,
        qfrc_constraint=problem.rows.transpose_times(efc_force) + value_of(last.push, pair_force @ J),
        efc_b=problem.rows.times(d.qacc_smooth) - d.efc_aref,
        efc_force=efc_force,
        efc_state=state(m, problem, at),
        solver_niter=last.niter,
        flexvert_lambda=d.flexvert_lambda.index_copy(0, p.vertex, last.vertex_lam),
        flexvert_conage=d.flexvert_conage.index_copy(0, p.vertex, last.vertex_age),
        warning=d.warning + torch.nn.functional.pad(troubles, (CONTACTFULL, 5 - CONTACTFULL)),
    )


def solved(m: Model, d: Data, p: IpcPlan, metric: Metric, problem: Problem, s: Scene) -> Progress:
    """The step of `d`, in rounds."""
    h = m.opt.timestep

    def points(w: Tensor) -> Tensor:
        return s.x + moved(p, s, h * w)

    ahead = d.qvel + h * d.qacc_smooth
    target, coasting = points(ahead), points(d.qvel)
    start = beginning(m, d, p, s, ahead, target)

    def price(w: Tensor, walls: Walls, now: Progress) -> Tensor:
        """What velocities `w (nv,)` at the end cost () [J]."""
        qacc = (w - d.qvel) / h
        change = qacc - d.qacc_smooth
        rows = cost(problem, residuals(problem, problem.rows.times(qacc) - problem.aref))
        pressed = torch.where(now.member, walls.beyond(p, points(w)).clamp(max=0), 0.0)
        inertial = 0.5 * (change @ metric.matrix.times(change))
        return h * h * (inertial + rows) + 0.5 * (stiffness(s, now.age) @ (pressed * pressed))

    def trip(now: Progress) -> Progress:
        x, free = points(now.w), points(now.free)
        at = gaps(p, s, free)
        walls = Walls(at, free, at.dist - s.standoff - now.lam / s.stiffness)
        asked = walls.beyond(p, coasting)

        def solve(one: Round) -> Round:
            found, lost = pushes(p, one.chosen, at, asked, stiffness(s, now.age), h)
            J = jacobian(m, p, s, found)
            answer = solve_pushes(m, with_pushes(problem, p, found, J), J, one.qacc)
            qacc = floating(m, d.replace(qacc=answer.qacc), metric).qacc
            passed = now.member & ~one.chosen & (walls.beyond(p, points(d.qvel + h * qacc)) < -PASSED)
            return Round(
                chosen=one.chosen | passed,
                found=found,
                qacc=qacc,
                push=answer.push,
                lost=torch.maximum(one.lost, lost),
                niter=one.niter + answer.niter,
                again=passed.any(),
            )

        chosen = now.member & ((walls.beyond(p, target) < 0) | (walls.beyond(p, x) < 0))
        first = Round(
            chosen=chosen,
            found=now.found,
            qacc=d.qacc_warmstart,
            push=now.push,
            lost=now.lost,
            niter=now.niter,
            again=torch.ones_like(now.done),
        )
        one = while_loop(lambda x: x.again, solve, first)
        goal = d.qvel + h * one.qacc
        settled = (goal - now.w).abs().amax() <= SETTLED
        w, full = lowered(lambda y: price(y, walls, now), now, goal, settled)
        return after(p, s, now, one, walls, w, points(w), full | settled)

    return while_loop(lambda x: ~x.done & (x.trips < ROUNDS), trip, start)


def beginning(m: Model, d: Data, p: IpcPlan, s: Scene, ahead: Tensor, target: Tensor) -> Progress:
    """At rest; in free flight, with velocities `ahead (nv,)`, if nothing is near the way to `target (n, 3)`."""
    zero, none = torch.zeros_like(d.qvel), torch.zeros_like(d.solver_niter)
    met = meeting(p, s, gaps(p, s, s.x).dist, target - s.x)
    vertex_lam, vertex_age = d.flexvert_lambda[p.vertex], d.flexvert_conage[p.vertex]
    lam, age = of_vertices(p, vertex_lam, vertex_age)
    return Progress(
        w=torch.where(~met.any() & p.own, ahead, 0.0),
        free=zero,
        member=met,
        lam=lam,
        age=age,
        vertex_lam=vertex_lam,
        vertex_age=vertex_age,
        found=nothing(p, d.qvel),
        qacc=zero,
        push=zero,
        beta=torch.zeros_like(d.time),
        stall=none,
        trips=none,
        lost=none,
        niter=none,
        done=torch.zeros_like(none, dtype=torch.bool),
    )


def of_vertices(p: IpcPlan, lam: Tensor, age: Tensor) -> tuple[Tensor, Tensor]:
    """The multiplier (p,) and age (p,) of new pairs, by those of vertices (n,): the largest and the least."""
    late = torch.full_like(age[:1], torch.iinfo(age.dtype).max)
    lam = torch.cat([lam, torch.zeros_like(lam[:1])])[p.point].amax(1)
    return lam.clamp(min=0), torch.cat([age, late])[p.point].amin(1)


def stiffness(s: Scene, age: Tensor) -> Tensor:
    """Stiffness (p,) [N/m] of pairs, which fades with the rounds without force."""
    quiet = torch.where(age >= 0, age, (-age - AT_ONCE).clamp(min=0))
    return s.stiffness * DECAY ** quiet.to(s.stiffness.dtype)


def aged(age: Tensor, loaded: Tensor) -> Tensor:
    """The count of rounds without force after another one, with force where `loaded`."""
    return torch.where(loaded, torch.where((age == 0) | (age > 5), 0, -1), torch.where(age >= 0, age + 1, age - 1))


def lowered(price: Callable[[Tensor], Tensor], now: Progress, goal: Tensor, settled: Tensor) -> tuple[Tensor, Tensor]:
    """Velocities (nv,) on the way to `goal (nv,)` that cost no more than those at hand, and whether () all is gone.

    Where none are found, a little of the way is gone all the same, unless the motion is complete already.
    """
    worth = price(now.w)
    # In double precision, as in C, all is taken to be exact.
    rounding = 0.0 if worth.dtype == torch.float64 else ROUNDING * torch.finfo(worth.dtype).eps
    before = worth + RISE + rounding * worth.abs()

    def go_on(trial: tuple[Tensor, Tensor]) -> Tensor:
        return ~trial[1] & (trial[0] < HALVINGS)

    def body(trial: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        lower = price(now.w + along(trial[0]) * (goal - now.w)) <= before
        return torch.where(lower, trial[0], trial[0] + 1), lower

    def along(halvings: Tensor) -> Tensor:
        return 0.5 ** halvings.to(goal.dtype)

    halvings, lower = while_loop(go_on, body, (torch.zeros_like(now.trips), settled))
    part = along(halvings.clamp(max=HALVINGS - 1))
    part = torch.where(~lower & (now.beta >= COMPLETE), 0.0, part)
    return now.w + part * (goal - now.w), halvings == 0


def after(
    p: IpcPlan, s: Scene, now: Progress, one: Round, walls: Walls, w: Tensor, x: Tensor, ends: Tensor
) -> Progress:
    """What a round leaves, with vertices on their way to `x (n, 3)`: multipliers, who is watched, and how far they got.

    ends: () bool, whether the step may end if they get there
    """
    beyond = walls.beyond(p, x)
    lam = torch.where(beyond > 0, 0.0, -s.stiffness * beyond)
    age = aged(now.age, beyond <= 0)
    vertex_lam = largest(p, torch.where(now.member, lam, 0.0))
    vertex_age = aged(now.vertex_age, vertex_lam > 0)

    dist, way = walls.at.dist, x - walls.x
    met = meeting(p, s, dist, way)
    reach, near = advance(p, s, walls.x, way, dist, met)
    part = torch.where(near, reach, 1.0).amin() if len(reach) else torch.ones_like(now.beta)
    # Of what a vertex meets on its way, what it meets first joins.
    early = torch.where(near, 2 - reach, 0.0)
    first = torch.cat([largest(p, early), torch.full_like(now.beta[None], torch.inf)])[p.point]
    joins = met & torch.where(near, (early[:, None] >= first - TIE).any(1), dist <= 0)
    stays = now.member & ~((lam <= 0) & (age < -SINCE)) & (age <= NEVER)
    new_lam, new_age = of_vertices(p, vertex_lam, vertex_age)

    moves = part > SHORT
    free = torch.where(p.waits, torch.where(moves, now.free + part * (w - now.free), now.free), w)
    beta = now.beta + (1 - now.beta) * part
    stall = torch.where(moves, 0, now.stall + 1)
    return Progress(
        w=w,
        free=free,
        member=stays | joins,
        lam=torch.where(stays, lam, new_lam),
        age=torch.where(stays, age, new_age),
        vertex_lam=vertex_lam,
        vertex_age=vertex_age,
        found=one.found,
        qacc=one.qacc,
        push=one.push,
        beta=beta,
        stall=stall,
        trips=now.trips + 1,
        lost=one.lost,
        niter=one.niter,
        # What is not finite goes no further.
        done=((beta >= COMPLETE) & ends) | (stall >= STALLED) | ~(w.abs() < torch.inf).all(),
    )
