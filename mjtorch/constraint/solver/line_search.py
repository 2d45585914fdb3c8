"""The exact line search of the primal solvers (PrimalSearch in `engine_solver.c`).

Along a direction the cost is piecewise smooth and convex. Newton steps on its slope move until the slope changes sign,
then a bracket of two points is narrowed by their Newton steps and the midpoint.
"""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.solver.problem import MIN_SQUARE, Problem, Residuals, bending, inertia_times, turn
from mjtorch.control_flow import while_loop
from mjtorch.math.vector import MIN_VALUE

# rows of a table of points
ALPHA, COST, SLOPE, CURVATURE = range(4)
# evaluations up to the first Newton step: at zero, and at that step
AT_FIRST = 2

# Relative error of a sum over the rows in single precision.
ROUNDING = 16 * torch.finfo(torch.float32).eps


@tree.dataclass(kw_only=True)
class ConeLine:
    """Elliptic cones along the line; all (ncone, 1), but for the first two.

    x: (2, ncone, 1) r and q at the start, y: (2, ncone, 1) these, but not above zero
    mu, Dm: of the cones
    T: length of the tangential part at the start
    dN: change of the normal part
    TT, Td, dd: the tangential part squared, times its change, its change squared
    speed: length of its change
    """

    x: Tensor
    y: Tensor
    mu: Tensor
    Dm: Tensor
    T: Tensor
    dN: Tensor
    TT: Tensor
    Td: Tensor
    dd: Tensor
    speed: Tensor


@tree.dataclass(kw_only=True)
class Line:
    """The cost along `a + alpha search`.

    x: (nefc, 1) residuals of the rows, y: (nefc, 1) clamped to where their cost is quadratic, which is
    low, high: (nefc, 1) between these
    Jv: (nefc,) change of the rows' residuals
    slope, curvature: () derivatives of the inertial cost at the start
    Mv: (nv,) change of `M a`
    cones: one `ConeLine` if there are elliptic contacts
    """

    x: Tensor
    y: Tensor
    low: Tensor
    high: Tensor
    Jv: Tensor
    slope: Tensor
    curvature: Tensor
    Mv: Tensor
    cones: tuple[ConeLine, ...]


@tree.dataclass(kw_only=True)
class Bracketing(tree.Tree):
    """First phase.

    here, behind: (4, 1) the last point and the one before
    side: () the direction to go in, 1 or -1
    count: () evaluations, done: () bool, `here` is the answer
    """

    here: Tensor
    behind: Tensor
    side: Tensor
    count: Tensor
    done: Tensor


@tree.dataclass(kw_only=True)
class Narrowing(tree.Tree):
    """Second phase.

    ends: (4, 2) of the bracket, near: (4, 2) a candidate next to each, stale: (2,) bool, evaluate the candidate first
    count: () evaluations, done: () bool, `result (4,)` is the answer
    """

    ends: Tensor
    near: Tensor
    stale: Tensor
    count: Tensor
    done: Tensor
    result: Tensor


def prepare(p: Problem, at: Residuals, Ma: Tensor, search: Tensor) -> Line:
    """What the cost along `search (nv,)` depends on (PrimalPrepare)."""
    Mv, Jv = inertia_times(p, search), p.rows.times(search)
    cones: tuple[ConeLine, ...] = ()
    for c, start in zip(p.cones, at.slips, strict=True):
        V = Jv[c.rows] * c.scale
        dN, V = V[:, :1], V[:, 1:]
        dd, T = (V * V).sum(-1, keepdim=True), start.T[:, None]
        along = ConeLine(
            x=start.terms[..., None],
            y=torch.clamp(start.terms, max=0)[..., None],
            mu=c.mu[:, None],
            Dm=c.Dm[:, None],
            T=T,
            dN=dN,
            TT=T * T,
            Td=(start.U * V).sum(-1, keepdim=True),
            dd=dd,
            speed=dd.sqrt(),
        )
        cones = (along,)
    x, low, high = at.jar[:, None], p.low[:, None], p.high[:, None]
    return Line(
        x=x,
        y=torch.clamp(x, low, high),
        low=low,
        high=high,
        Jv=Jv,
        slope=search @ (Ma - p.qfrc_smooth),
        curvature=search @ Mv,
        Mv=Mv,
        cones=cones,
    )


def evaluate(p: Problem, line: Line, alpha: Tensor) -> Tensor:
    """Points (4, k): `alpha (k,)`, cost less the cost at zero, slope, curvature (PrimalEval).

    The cost is a sum of products with the steps of the terms, since near the minimum its sign decides.
    """
    # A row of k numbers for each term: of those that are not active a compiler need not compute any.
    rate = line.Jv[:, None]
    step = alpha * rate
    curved = alpha * line.curvature
    x = line.x + step
    y = torch.clamp(x, line.low, line.high)
    change = (y - line.y) * (line.x - 0.5 * (y + line.y)) + y * step
    cost = change.mT @ p.D + alpha * (line.slope + 0.5 * curved)
    slope = (y * rate).mT @ p.D + line.slope + curved
    curvature = line.curvature + torch.where((line.low < x) & (x < line.high), rate * rate, 0.0).mT @ p.D
    for cones in line.cones:
        more = _cone_sums(cones, alpha)
        cost, slope, curvature = cost + more[0], slope + more[1], curvature + more[2]
    return torch.stack([alpha, cost, slope, torch.where(curvature <= 0, MIN_VALUE, curvature)])


def _cone_sums(line: ConeLine, alpha: Tensor) -> Tensor:
    """What cones add to cost, slope and curvature (3, k)."""
    Td = line.Td + alpha * line.dd
    change = alpha * (line.Td + Td)
    T = torch.clamp(line.TT + change, min=MIN_SQUARE).sqrt()
    # Where T almost vanishes the quotient is noise, but no faster than the vector it is the length of.
    dT = torch.clamp(Td / T, -line.speed, line.speed)
    step, rate = turn(line.mu, alpha * line.dN, change / (T + line.T)), turn(line.mu, line.dN, dT)
    x = line.x + step
    y = torch.clamp(x, max=0)
    cost = (y - line.y) * (line.x - 0.5 * (y + line.y)) + y * step
    curvature = torch.where(x < 0, rate * rate, 0.0).sum(0) + bending(line.mu, T, x) * (line.dd - dT * dT)
    return (torch.stack([cost.sum(0), (y * rate).sum(0), curvature]) * line.Dm).sum(1)


def newton(point: Tensor) -> Tensor:
    """Where the slope at a point, drawn on as a straight line, is zero."""
    return point[ALPHA] - point[SLOPE] / point[CURVATURE]


def search(
    p: Problem, line: Line, length: Tensor, slope: Tensor, stop: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """Minimise along the line.

    Args:
        length: () length of the search vector.
        slope: () of the cost at the start.
        stop: () bool, do nothing and give zero.
        iterations: the most evaluations, `opt.ls_iterations`.

    Returns:
        alpha and by how much the cost is less, both (); alpha zero means that no better point was found.
    """
    tolerance = p.tolerance * p.ls_tolerance * length / p.scale
    # A slope is the difference of two numbers that are known up to rounding; in double precision, as in C, they are
    # taken to be exact.
    if tolerance.dtype == torch.float32:
        tolerance = torch.maximum(tolerance, ROUNDING * (line.slope.abs() + (slope - line.slope).abs()))
    stop = stop | (length < MIN_VALUE)
    first = _bracket(p, line, tolerance, stop, iterations)
    last = _narrow(p, line, tolerance, first, stop, iterations)
    point = torch.where(last.done, last.result, _better_end(last.ends))
    return torch.where(stop, 0.0, point[ALPHA]), -point[COST]


def _bracket(p: Problem, line: Line, tolerance: Tensor, stop: Tensor, iterations: int) -> Bracketing:
    """Newton steps from zero while the slope keeps the sign that it has after the first; at least one."""

    def go_on(s: Bracketing) -> Tensor:
        downhill = s.here[SLOPE, 0] * s.side <= -tolerance
        return ~s.done & ((s.count < AT_FIRST) | (downhill & (s.count < iterations)))

    def body(s: Bracketing) -> Bracketing:
        here = evaluate(p, line, newton(s.here))
        slope, count = here[SLOPE, 0], s.count + 1
        better = (here[COST, 0] < 0) | ((count == AT_FIRST) & (here[ALPHA, 0] == 0))
        return Bracketing(
            here=here,
            behind=s.here,
            side=torch.where(count <= AT_FIRST, -slope.sign(), s.side),
            count=count,
            done=(slope.abs() < tolerance) & better,
        )

    # Not evaluated yet; its Newton step leads to zero.
    nowhere = torch.zeros_like(tolerance).expand(3, 1)
    nowhere = torch.cat([nowhere, torch.ones_like(nowhere[:1])])
    count = torch.zeros_like(stop, dtype=torch.int64)
    return while_loop(
        go_on, body, Bracketing(here=nowhere, behind=nowhere, side=torch.ones_like(tolerance), count=count, done=stop)
    )


def _narrow(p: Problem, line: Line, tolerance: Tensor, s: Bracketing, stop: Tensor, iterations: int) -> Narrowing:
    """Move the ends of the bracket to the flattest candidates on their side until one is flat enough."""

    def go_on(s: Narrowing) -> Tensor:
        return ~s.done & (s.count < iterations)

    def body(s: Narrowing) -> Narrowing:
        midpoint = 0.5 * (s.ends[ALPHA, :1] + s.ends[ALPHA, 1:])
        new = evaluate(p, line, torch.cat([s.near[ALPHA], midpoint]))
        candidates = torch.cat([torch.where(s.stale, new[:, :2], s.near), new[:, 2:]], dim=1)

        flat = candidates[SLOPE].abs() < tolerance
        found = flat.any()
        best = torch.where(flat, candidates[COST], torch.inf).argmin(0, keepdim=True)
        best = candidates.index_select(1, best)[:, 0]

        same_side = candidates[SLOPE] * s.ends[SLOPE, :, None] > 0
        steepness = torch.where(same_side, candidates[SLOPE].abs(), torch.inf)
        flattest, index = steepness.min(1)
        moved = flattest < s.ends[SLOPE].abs()
        ends = torch.where(moved, candidates.index_select(1, index), s.ends)
        near = torch.cat([newton(ends)[None], candidates[1:, :2]])
        return Narrowing(
            ends=ends,
            near=torch.where(moved, near, candidates[:, :2]),
            stale=moved,
            count=s.count + 1 + moved.sum(),
            done=found | ~moved.any(),
            result=torch.where(found, best, candidates[:, 2]),
        )

    near = torch.cat([torch.cat([newton(s.here)[None], s.here[1:]]), s.here], dim=1)
    init = Narrowing(
        ends=torch.cat([s.here, s.behind], dim=1),
        near=near,
        stale=torch.arange(2, device=near.device) == 0,
        count=s.count + 1,
        done=stop | s.done | (s.count >= iterations),
        result=s.here[:, 0],
    )
    return while_loop(go_on, body, init)


def _better_end(ends: Tensor) -> Tensor:
    """The end that costs less, at alpha zero if neither is better than the start."""
    best = ends.index_select(1, ends[COST].argmin(0, keepdim=True))[:, 0]
    return torch.where(best[COST] < 0, best, 0.0)
