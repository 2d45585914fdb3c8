"""The stage that finds constraint forces and the constrained acceleration (mj_fwdConstraint)."""

import dataclasses

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.implicit_rows import floating
from mjtorch.constraint.order import apart, visits
from mjtorch.constraint.solver import sticking
from mjtorch.constraint.solver.groups import searched_apart
from mjtorch.constraint.solver.implicit import attach
from mjtorch.constraint.solver.noslip import solve_noslip
from mjtorch.constraint.solver.pgs import dual_state, solve_pgs
from mjtorch.constraint.solver.primal import solve_cg, solve_newton, warmstart
from mjtorch.constraint.solver.problem import Problem, build, force, residuals, state
from mjtorch.math import linalg
from mjtorch.math.value import value_of
from mjtorch.model import Data, DisableBit, Integrator, Model, Solver
from mjtorch.smooth.metric import Metric, effective_inertia


def solve(m: Model, d: Data, metric: tuple[Metric, ...] = ()) -> Data:
    """Solve for `qacc`, `qfrc_constraint`, `efc_force` and `efc_state`; sets `efc_b` and `solver_niter` too.

    Islands (see `island`) are solved together, but where they may not get to the end each takes steps of its own.
    Everything can be differentiated, by the implicit function theorem: derivatives are those of the exact minimiser,
    and of as many noslip sweeps as there were.

    metric: the effective inertia of the integrator `discrete`, if that is known already.
    """
    if m.opt.integrator == Integrator.DISCRETE:
        metric = metric or (effective_inertia(m, d),)
        return floating(m, minimised(m, d, metric), metric[0])
    return minimised(m, d, ())


def minimised(m: Model, d: Data, metric: tuple[Metric, ...]) -> Data:
    """`solve`, with the inertia M or, if there is one, `metric`."""
    if not d.efc_J.numel():
        return d.replace(
            qacc=d.qacc_smooth,
            qfrc_constraint=torch.zeros_like(d.qfrc_smooth),
            solver_niter=torch.zeros_like(d.solver_niter),
        )
    problem = build(m, d, metric, apart=searched_apart(m))
    efc_b = problem.rows.times(d.qacc_smooth) - d.efc_aref
    # Loops see none of the derivatives.
    fixed, fixed_b = tree.map(torch.Tensor.detach, (problem, efc_b))
    previous = d.qacc_warmstart.detach()
    finish = _dual if m.opt.solver == Solver.PGS else _primal
    d = finish(m, d.replace(efc_b=efc_b), problem, fixed, fixed_b, previous)
    if m.opt.noslip_iterations == 0:
        return d
    # What slips is found in an inertia that has no couplings of tendons and actuators.
    slipping = problem
    for x in metric if m.opt.solver != Solver.PGS else ():
        slipping = dataclasses.replace(problem, qLD=linalg.ltl(x.backbone))
    return _noslip(m, d, problem, slipping)


def inv_constraint(m: Model, d: Data) -> Data:
    """Constraint forces from the acceleration `qacc`, in closed form (mj_invConstraint).

    Sets efc_force, efc_state and qfrc_constraint; the inverse of `solve`. Needs `reference_constraint`.
    """
    if not d.efc_J.numel():
        return d.replace(qfrc_constraint=torch.zeros_like(d.qfrc_constraint))
    problem = build(m, d)
    at = residuals(problem, problem.rows.times(d.qacc) - problem.aref)
    efc_force = force(problem, at)
    return d.replace(
        efc_force=efc_force, efc_state=state(m, problem, at), qfrc_constraint=problem.rows.transpose_times(efc_force)
    )


def _primal(m: Model, d: Data, problem: Problem, p: Problem, efc_b: Tensor, previous: Tensor) -> Data:
    cold = m.opt.disabled(DisableBit.WARMSTART)
    start = p.qacc_smooth if cold else warmstart(p, previous, efc_b)
    solver = solve_newton if m.opt.solver == Solver.NEWTON else solve_cg
    found = solver(p, start, m.opt.iterations, m.opt.ls_iterations)
    qacc = attach(problem, found.qacc)
    at = residuals(p, found.jar)
    efc_force = value_of(force(p, at), force(problem, residuals(problem, problem.rows.times(qacc) - problem.aref)))
    return d.replace(
        qacc=qacc,
        efc_force=efc_force,
        efc_state=state(m, p, at),
        qfrc_constraint=problem.rows.transpose_times(efc_force),
        solver_niter=found.niter.amax(),
    )


def _dual(m: Model, d: Data, problem: Problem, p: Problem, efc_b: Tensor, previous: Tensor) -> Data:
    cold = m.opt.disabled(DisableBit.WARMSTART)
    start = torch.zeros_like(efc_b) if cold else force(p, residuals(p, p.rows.times(previous) - p.aref))
    frictionloss = d.efc_frictionloss.detach()
    plan = m.plan.solver
    row, islands = plan.block_rows[:, 0], apart(m, d, p.scale)
    order = islands.order(row, visits(m, d, plan.block_slot, p.active[row]))
    found, niter = solve_pgs(m, p, frictionloss, efc_b, order, islands.scale, start)
    qacc = attach(problem, p.qacc_smooth + linalg.ltl_solve(p.qLD, p.rows.transpose_times(found)))
    efc_force = value_of(found, force(problem, residuals(problem, problem.rows.times(qacc) - problem.aref)))
    return d.replace(
        qacc=qacc,
        efc_force=efc_force,
        efc_state=dual_state(m, p, frictionloss, found),
        qfrc_constraint=problem.rows.transpose_times(efc_force),
        solver_niter=niter,
    )


def _noslip(m: Model, d: Data, problem: Problem, slipping: Problem) -> Data:
    """Friction without slip, from the forces of the main solver; slipping: the problem in the inertia of what slips."""
    p, fixed = tree.map(torch.Tensor.detach, (slipping, d))
    friction, frictionloss = fixed.contact.friction, fixed.efc_frictionloss
    c, plan, islands = m.plan.constraint, m.plan.noslip, apart(m, fixed, p.scale)
    dry = torch.arange(c.nf, device=friction.device)
    blocks, nactive = visits(m, d, plan.slot, p.active[plan.normal])
    rubs = islands.order(c.ne + dry, (dry, torch.full_like(nactive, c.nf)))
    slides = islands.order(plan.normal, (blocks, nactive))
    found, niter = solve_noslip(m, p, friction, frictionloss, fixed.efc_b, rubs, slides, islands, fixed.efc_force)
    both = torch.cat([c.ne + dry, plan.normal]), (torch.cat([dry, c.nf + blocks]), c.nf + nactive)
    efc_force = sticking.attach(
        m, slipping, d.contact.friction, d.efc_frictionloss, d.efc_b, islands.order(*both), d.efc_force, found, niter
    )
    qfrc_constraint = problem.rows.transpose_times(efc_force)
    return d.replace(
        qacc=problem.qacc_smooth + linalg.ltl_solve(problem.qLD, qfrc_constraint),
        efc_force=efc_force,
        efc_state=dual_state(m, p, frictionloss, found),
        qfrc_constraint=qfrc_constraint,
        solver_niter=d.solver_niter + niter.amax(),
    )
