"""The primal solvers, Newton and conjugate gradient (mj_solPrimal in `engine_solver.c`)."""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint import parts
from mjtorch.constraint.parts import Held
from mjtorch.constraint.solver import line_search
from mjtorch.constraint.solver.curvature import curvature, next_solve
from mjtorch.constraint.solver.problem import (
    Problem,
    Residuals,
    cost,
    gradient,
    inertia_solve,
    inertia_times,
    residuals,
)
from mjtorch.control_flow import while_loop
from mjtorch.math.vector import MIN_VALUE

# Within a quadratic piece a step leaves less than this part of the decrease that it promised; more is rounding.
STALLED = 0.1


@tree.dataclass(kw_only=True)
class Iterate(tree.Tree):
    """Where a primal solver is.

    qacc, Ma, grad: (nv,) acceleration, M times it, gradient of the cost
    jar: (nefc,) `J qacc - aref`
    niter: (ngroup,) steps taken
    same: (ngroup,) bool, whether the last step left the cost in the same quadratic piece
    done: (ngroup,) bool
    memory: what the solver's direction remembers, held: and of the second derivative, see `next_solve`
    """

    qacc: Tensor
    Ma: Tensor
    grad: Tensor
    jar: Tensor
    niter: Tensor
    same: Tensor
    done: Tensor
    memory: tuple[Tensor, ...]
    held: tuple[Held, ...] = ()


@tree.dataclass(kw_only=True)
class Direction(tree.Tree):
    """Where to go next: `search (nv,)`, or `stop (ngroup,)` because nothing is to be gained."""

    search: Tensor
    stop: Tensor
    memory: tuple[Tensor, ...]
    held: tuple[Held, ...] = ()


def newton_direction(p: Problem, s: Iterate, at: Residuals, rounding: Tensor) -> Direction:
    """`-H^-1 grad`; stops when the decrease that the quadratic model predicts is below tolerance, or rounding.

    `memory` is that decrease.
    """
    # Before the first step the gradient must be small as well: stiff rows hide force errors from the decrement.
    first = s.niter == 0
    enough = torch.where(first, 0.0, torch.maximum(p.tolerance / p.groups.scale, rounding))
    Hgrad, held = next_solve(p, at, s.grad, s.held, torch.where(s.done, torch.inf, enough).amin())
    decrease = 0.5 * p.groups.of_dofs(s.grad * Hgrad)
    converged = small(p, decrease) | (decrease < rounding)
    stop = converged & (~first | small(p, length(p, s.grad)))
    stalled = s.same & (decrease > STALLED * s.memory[0])
    if p.cones:
        # Where they slip their cost is no quadratic function, but to the last digits that can be seen of it.
        stalled = stalled & (torch.finfo(rounding.dtype).eps * decrease < rounding)
    return Direction(search=-Hgrad, stop=stop | stalled, memory=(decrease,), held=held)


def cg_direction(p: Problem, s: Iterate, at: Residuals, rounding: Tensor) -> Direction:
    """Conjugate direction of Hager and Zhang, preconditioned by M.

    Restarts where conjugacy is lost, which also starts it: the first `memory` is zero.
    """
    search, old_grad, old_Mgrad = s.memory
    Mgrad = inertia_solve(p, s.grad)
    y, My = s.grad - old_grad, Mgrad - old_Mgrad
    curvature = p.groups.of_dofs(search * y)
    lost = curvature < MIN_VALUE
    safe = torch.where(lost, 1.0, curvature)
    downhill, steepness = p.groups.of_dofs(search * s.grad), length(p, s.grad)
    beta = (p.groups.of_dofs(y * Mgrad) - 2 * p.groups.of_dofs(y * My) / safe * downhill) / safe
    lowest = -1 / torch.clamp(length(p, search) * torch.clamp(steepness, max=0.01), min=MIN_VALUE)
    beta = torch.where(lost, 0.0, torch.maximum(beta, lowest))
    search = p.groups.at_dofs(beta) * search - Mgrad
    return Direction(search=search, stop=torch.zeros_like(s.done), memory=(search, s.grad, Mgrad))


def solve_newton(p: Problem, qacc: Tensor, iterations: int, ls_iterations: int) -> Iterate:
    """Newton's method, from `qacc (nv,)`."""
    start = begin(p, qacc, (torch.zeros_like(p.groups.scale),), gradient_too=True)
    start = start.replace(held=tuple(parts.nothing_held(one, couples=bool(p.cones)) for one in p.parts))
    return _iterate(p, newton_direction, start, iterations, ls_iterations)


def solve_cg(p: Problem, qacc: Tensor, iterations: int, ls_iterations: int) -> Iterate:
    """Conjugate gradients, from `qacc (nv,)`."""
    nothing = torch.zeros_like(qacc)
    start = begin(p, qacc, (nothing, nothing, nothing), gradient_too=False)
    return _iterate(p, cg_direction, start, iterations, ls_iterations)


def begin(p: Problem, qacc: Tensor, memory: tuple[Tensor, ...], *, gradient_too: bool) -> Iterate:
    """The first iterate; where nothing is constrained it is the last.

    It is done if the duality gap `grad' M^-1 grad / 2` is below tolerance, and the gradient as well if asked.
    """
    Ma, jar = inertia_times(p, qacc), p.rows.times(qacc) - p.aref
    grad = gradient(p, Ma, residuals(p, jar))
    done = small(p, 0.5 * p.groups.of_dofs(grad * inertia_solve(p, grad)))
    if gradient_too:
        done = done & small(p, length(p, grad))
    done = done | ~p.groups.there
    return Iterate(
        qacc=qacc,
        Ma=Ma,
        grad=grad,
        jar=jar,
        niter=torch.zeros_like(done, dtype=torch.int64),
        same=torch.zeros_like(done),
        done=done,
        memory=memory,
    )


def _iterate(
    p: Problem,
    direction: Callable[[Problem, Iterate, Residuals, Tensor], Direction],
    start: Iterate,
    iterations: int,
    ls_iterations: int,
) -> Iterate:
    """Find a direction, minimise along it, until converged.

    A NaN passes through one iteration, so that the result is NaN, and fails every test for going on.
    """

    groups = p.groups

    def go_on(s: Iterate) -> Tensor:
        return (~s.done & (s.niter < iterations)).any()

    def body(s: Iterate) -> Iterate:
        at = residuals(p, s.jar)
        rounding = unresolved(p, at)
        towards = direction(p, s, at, rounding)
        line = line_search.prepare(p, at, s.Ma, towards.search)
        # Those that have ended stay where they are.
        stop = towards.stop if groups.count == 1 else towards.stop | s.done | (s.niter >= iterations)
        slope = groups.of_dofs(towards.search * s.grad)
        alpha, gain = line_search.search(p, line, length(p, towards.search), slope, rounding, stop, ls_iterations)
        step = groups.at_dofs(alpha)
        Ma, jar = s.Ma + step * line.Mv, s.jar + groups.at_rows(alpha[None])[:, 0] * line.Jv
        then = residuals(p, jar)
        grad = gradient(p, Ma, then)
        moved = alpha != 0
        gained = (gain <= 0) | ~small(p, gain)
        steep = groups.scale * length(p, grad) >= p.tolerance
        return Iterate(
            qacc=s.qacc + step * towards.search,
            Ma=Ma,
            grad=grad,
            jar=jar,
            niter=s.niter + moved,
            same=same_piece(p, at, then),
            done=~(moved & gained & steep),
            memory=towards.memory,
            held=towards.held,
        )

    return while_loop(go_on, body, start)


def small(p: Problem, x: Tensor) -> Tensor:
    """Whether costs or lengths of gradients (ngroup,) are below tolerance. NaN is not; nothing is below zero."""
    return torch.clamp(p.groups.scale * x, min=0) < p.tolerance


def same_piece(p: Problem, one: Residuals, two: Residuals) -> Tensor:
    """Whether (ngroup,) the cost is one smooth function of both, quadratic but for cones; no in double precision.

    On either side of what dry friction holds the cost is straight, but with slopes of opposite signs.
    """
    if p.aref.dtype != torch.float32:
        return torch.zeros_like(p.groups.there)
    x, y = one.jar, two.jar
    crossed = ((p.low < x) != (p.low < y)) | ((x < p.high) != (y < p.high))
    changes = crossed.to(x.dtype) @ p.groups.weighted_rows(p.D)
    for c, s, t in zip(p.cones, one.slips, two.slips, strict=True):
        crossed = ((s.terms < 0) != (t.terms < 0)).any(0)
        changes = changes + crossed.to(x.dtype) @ p.groups.weighted_cones(c.Dm)
    return changes == 0


def unresolved(p: Problem, at: Residuals) -> Tensor:
    """What (ngroup,) the rounding of the rows' residuals adds to `grad' H^-1 grad / 2`, at most.

    Residuals are differences of numbers of the size of `aref`, so they are off by `eps |aref|`, and the gradient is by
    `n = J' W eps |aref|`, with `W` the curvatures. As `J H^-1 J' <= W^-1`, `n' H^-1 n <= eps^2 aref' W aref`. Of a cone
    that touches the curvature, in its scaled rows, is `Dm (1 + mu^2)` at most. In double precision, as in C, all is
    taken to be exact.
    """
    if p.aref.dtype != torch.float32:
        return torch.zeros_like(p.groups.scale)
    error = torch.finfo(torch.float32).eps * p.aref
    twice = (error * error) @ p.groups.weighted_rows(curvature(p, at))
    for c, s in zip(p.cones, at.slips, strict=True):
        of_cone = (error[c.rows] * c.scale).square().sum(-1)
        stiffness = torch.where((s.terms < 0).any(0), c.Dm * (1 + c.mu * c.mu), 0.0)
        twice = twice + of_cone @ p.groups.weighted_cones(stiffness)
    return 0.5 * twice


def length(p: Problem, x: Tensor) -> Tensor:
    """Euclidean lengths (ngroup,) of the parts of a vector (nv,)."""
    return p.groups.of_dofs(x * x).sqrt()


def warmstart(p: Problem, previous: Tensor, efc_b: Tensor) -> Tensor:
    """The better of `previous (nv,)`, the last step's acceleration, and the unconstrained one (warmstart)."""
    jar = p.rows.times(previous) - p.aref
    inertial = 0.5 * (inertia_times(p, previous) - p.qfrc_smooth) @ (previous - p.qacc_smooth)
    worse = cost(p, residuals(p, jar)) + inertial > cost(p, residuals(p, efc_b))
    return torch.where(worse | ~p.groups.touched, p.qacc_smooth, previous)
