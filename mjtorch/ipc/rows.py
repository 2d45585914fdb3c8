"""Pairs that push, as rows of the constrained solve."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.solver.primal import solve_cg, solve_newton, warmstart
from mjtorch.constraint.solver.problem import Problem, force, residuals
from mjtorch.constraint.solver.rows import Rows
from mjtorch.ipc.gaps import Gap
from mjtorch.ipc.scene import Scene
from mjtorch.math.compact import compacted
from mjtorch.math.vector import dot
from mjtorch.model import DisableBit, Model, Solver
from mjtorch.model.plan.ipc import IpcPlan


@tree.dataclass(kw_only=True)
class Pushes(tree.Tree):
    """The r pairs that may push.

    place: (r,) their numbers, there: (r,) bool, up to which there are some
    slope: (r, 4, 3) how their gaps change as vertices move
    D: (r,) stiffness, aref: (r,) what they ask for, in accelerations
    """

    place: Tensor
    there: Tensor
    slope: Tensor
    D: Tensor
    aref: Tensor


class Solved(NamedTuple):
    """qacc: (nv,) the solution; push: (nv,) the generalised force of pairs; niter: () iterations."""

    qacc: Tensor
    push: Tensor
    niter: Tensor


def nothing(p: IpcPlan, like: Tensor) -> Pushes:
    """No pair pushes."""
    r = p.capacity
    return Pushes(
        place=torch.zeros(r, dtype=torch.int64, device=like.device),
        there=torch.zeros(r, dtype=torch.bool, device=like.device),
        slope=like.new_zeros(r, 4, 3),
        D=like.new_zeros(r),
        aref=like.new_zeros(r),
    )


def pushes(p: IpcPlan, chosen: Tensor, at: Gap, wall: Tensor, stiffness: Tensor, h: Tensor) -> tuple[Pushes, Tensor]:
    """The pairs that are `chosen (p,)`, as many as there is room for; and how many () there is none for.

    wall: (p,) [m] how far outside the walls pairs were at the present velocity; stiffness: (p,) [N/m]
    """
    if not p.capacity:
        return nothing(p, wall), torch.zeros_like(p.point[:, 0].sum())
    place, there, past = compacted(chosen, p.capacity)
    slope = (at.weight[..., None] * at.normal[:, None])[place]
    D = torch.where(there, stiffness[place] / (h * h), 0.0)
    return Pushes(place=place, there=there, slope=slope, D=D, aref=-wall[place]), past.sum()


def jacobian(m: Model, p: IpcPlan, s: Scene, found: Pushes) -> Tensor:
    """The rows (r, nv): how far gaps change, by accelerations over the step."""
    point = p.point[found.place]
    axis = torch.cat([s.axis, torch.zeros_like(s.axis[:1])])[point]
    dof = torch.cat([p.dof, torch.full_like(p.dof[:1], m.nv)])[point]
    h = m.opt.timestep
    along = h * h * dot(axis, found.slope[:, :, None])
    value = torch.where(found.there[:, None, None], along, 0.0).flatten(1)
    return value.new_zeros(len(point), m.nv + 1).scatter_add(1, dof.flatten(1), value)[:, :-1]


def with_pushes(problem: Problem, p: IpcPlan, found: Pushes, J: Tensor) -> Problem:
    """`problem` with rows `J (r, nv)` after all others."""
    n, r = problem.nefc, len(J)
    assert isinstance(problem.rows, Rows)

    none = torch.zeros_like(found.D)
    source = problem.row_source
    moved = torch.where(source < n, source, source + r)
    return problem.replace(
        jacobian=(torch.cat([*problem.jacobian, J]),),
        rows=problem.rows.replace(
            plan=p.rows,
            rest=torch.cat([problem.rows.rest, J]),
            active=torch.cat([problem.rows.active, found.there]),
        ),
        aref=torch.cat([problem.aref, found.aref]),
        R=torch.cat([problem.R, none]),
        active=torch.cat([problem.active, found.there]),
        D=torch.cat([problem.D, found.D]),
        low=torch.cat([problem.low, none - torch.inf]),
        high=torch.cat([problem.high, none]),
        row_source=torch.cat([moved, n + torch.arange(r, device=source.device)]),
    )


def solve_pushes(m: Model, problem: Problem, J: Tensor, previous: Tensor) -> Solved:
    """The solution of a problem whose last rows are `J (r, nv)`; previous: (nv,) where to begin, if that is better."""
    efc_b = problem.rows.times(problem.qacc_smooth) - problem.aref
    cold = m.opt.disabled(DisableBit.WARMSTART)
    start = problem.qacc_smooth if cold else warmstart(problem, previous, efc_b)
    solver = solve_newton if m.opt.solver == Solver.NEWTON else solve_cg
    found = solver(problem, start, m.opt.iterations, m.opt.ls_iterations)
    push = force(problem, residuals(problem, found.jar))[problem.nefc - len(J) :]
    return Solved(qacc=found.qacc, push=push @ J, niter=found.niter.amax())
