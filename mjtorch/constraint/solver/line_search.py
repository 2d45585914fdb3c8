"""The exact line search of the primal solvers (PrimalSearch in `engine_solver.c`).

Along a direction the cost is piecewise smooth and convex. Newton steps on its slope move until the slope changes sign,
then a bracket of two points is narrowed by their Newton steps and the midpoint.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.solver.groups import Groups, sums
from mjtorch.constraint.solver.problem import MIN_SQUARE, Problem, Residuals, bending, inertia_times, turn
from mjtorch.control_flow import while_loop
from mjtorch.math.vector import MIN_VALUE

# rows of a table of points
ALPHA, COST, SLOPE, CURVATURE = range(4)
# evaluations up to the first Newton step: at zero, and at that step
AT_FIRST = 2

# Whether points (4, ..., ngroup) are (..., ngroup) where the line is flat.
Flat = Callable[[Tensor], Tensor]

# Relative error of a sum over the rows in single precision.
ROUNDING = 16 * torch.finfo(torch.float32).eps


@tree.dataclass(kw_only=True)
class ConeLine:
    """Elliptic cones along the line; all (ncone, 1), but for the first two.

    x: (2, ncone, 1) r and q at the start, y: (2, ncone, 1) these, but not above zero
    mu: of the cones, weight: (ncone, ngroup) what each counts in sums
    T: length of the tangential part at the start
    dN: change of the normal part
    TT, Td, dd: the tangential part squared, times its change, its change squared
    speed: length of its change
    """

    x: Tensor
    y: Tensor
    mu: Tensor
    weight: Tensor
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
    weight: (nefc, ngroup) what each row counts in sums
    Jv: (nefc,) change of the rows' residuals
    slope, curvature: (ngroup,) derivatives of the inertial cost at the start
    Mv: (nv,) change of `M a`
    cones: one `ConeLine` if there are elliptic contacts
    """

    x: Tensor
    y: Tensor
    low: Tensor
    high: Tensor
    weight: Tensor
    Jv: Tensor
    slope: Tensor
    curvature: Tensor
    Mv: Tensor
    cones: tuple[ConeLine, ...]


@tree.dataclass(kw_only=True)
class Bracketing(tree.Tree):
    """First phase.

    here, behind: (4, 1, ngroup) the last point and the one before
    side: (ngroup,) the direction to go in, 1 or -1
    count: (ngroup,) evaluations, done: (ngroup,) bool, `here` is the answer
    """

    here: Tensor
    behind: Tensor
    side: Tensor
    count: Tensor
    done: Tensor


@tree.dataclass(kw_only=True)
class Narrowing(tree.Tree):
    """Second phase.

    ends: (4, 2, ngroup) of the bracket, near: (4, 2, ngroup) a candidate next to each
    stale: (2, ngroup) bool, evaluate the candidate first
    count: (ngroup,) evaluations, done: (ngroup,) bool, `result (4, ngroup)` is the answer
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
            weight=p.groups.weighted_cones(c.Dm),
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
        weight=p.groups.weighted_rows(p.D),
        Jv=Jv,
        slope=p.groups.of_dofs(search * (Ma - p.qfrc_smooth)),
        curvature=p.groups.of_dofs(search * Mv),
        Mv=Mv,
        cones=cones,
    )


def evaluate(p: Problem, line: Line, alpha: Tensor) -> Tensor:
    """Points (4, k, ngroup): `alpha (k, ngroup)`, cost less the cost at zero, slope, curvature (PrimalEval).

    The cost is a sum of products with the steps of the terms, since near the minimum its sign decides.
    """
    # A row of k numbers for each term: of those that are not active a compiler need not compute any.
    groups, rate = p.groups, line.Jv[:, None]
    step = groups.at_rows(alpha) * rate
    curved = alpha * line.curvature
    x = line.x + step
    y = torch.clamp(x, line.low, line.high)
    change = (y - line.y) * (line.x - 0.5 * (y + line.y)) + y * step
    bends = torch.where((line.low < x) & (x < line.high), rate * rate, 0.0)
    cost, slope, curvature = sums([change, y * rate, bends], line.weight)
    cost = cost + alpha * (line.slope + 0.5 * curved)
    slope, curvature = slope + line.slope + curved, line.curvature + curvature
    for cones in line.cones:
        more = _cone_sums(groups, cones, alpha)
        cost, slope, curvature = cost + more[0], slope + more[1], curvature + more[2]
    return torch.stack([alpha, cost, slope, torch.where(curvature <= 0, MIN_VALUE, curvature)])


def _cone_sums(groups: Groups, line: ConeLine, alpha: Tensor) -> Sequence[Tensor]:
    """What cones add to cost, slope and curvature, all (k, ngroup)."""
    alpha = groups.at_cones(alpha)
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
    return sums([cost.sum(0), (y * rate).sum(0), curvature], line.weight)


def newton(point: Tensor) -> Tensor:
    """Where the slope at a point, drawn on as a straight line, is zero."""
    return point[ALPHA] - point[SLOPE] / point[CURVATURE]


def search(
    p: Problem, line: Line, length: Tensor, slope: Tensor, rounding: Tensor, stop: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """Minimise along the line.

    Args:
        length: (ngroup,) length of the search vector.
        slope: (ngroup,) of the cost at the start.
        rounding: (ngroup,) a decrease of the cost that is not worth a step.
        stop: (ngroup,) bool, do nothing and give zero.
        iterations: the most evaluations, `opt.ls_iterations`.

    Returns:
        alpha and by how much the cost is less, both (ngroup,); alpha zero means that no better point was found.
    """
    tolerance = p.tolerance * p.ls_tolerance * length / p.groups.scale
    # A slope is the difference of two numbers that are known up to rounding; in double precision, as in C, they are
    # taken to be exact.
    if tolerance.dtype == torch.float32:
        tolerance = torch.maximum(tolerance, ROUNDING * (line.slope.abs() + (slope - line.slope).abs()))
    stop = stop | (length < MIN_VALUE)

    def flat(points: Tensor) -> Tensor:
        found = points[SLOPE].abs() < tolerance
        if tolerance.dtype != torch.float32:
            return found
        # Where rows push against each other their sum is known less well than by its size.
        return found | (points[SLOPE].square() < 2 * rounding * points[CURVATURE])

    first = _bracket(p, line, tolerance, flat, stop, iterations)
    last = _narrow(p, line, flat, first, stop, iterations)
    point = torch.where(last.done, last.result, _better_end(last.ends))
    return torch.where(stop, 0.0, point[ALPHA]), -point[COST]


def _bracket(p: Problem, line: Line, tolerance: Tensor, flat: Flat, stop: Tensor, iterations: int) -> Bracketing:
    """Newton steps from zero while the slope keeps the sign that it has after the first; at least one."""

    def going(s: Bracketing) -> Tensor:
        downhill = s.here[SLOPE, 0] * s.side <= -tolerance
        return ~s.done & ((s.count < AT_FIRST) | (downhill & (s.count < iterations)))

    def body(s: Bracketing) -> Bracketing:
        here = evaluate(p, line, newton(s.here))
        slope, count = here[SLOPE, 0], s.count + 1
        better = (here[COST, 0] < 0) | ((count == AT_FIRST) & (here[ALPHA, 0] == 0))
        new = Bracketing(
            here=here,
            behind=s.here,
            side=torch.where(count <= AT_FIRST, -slope.sign(), s.side),
            count=count,
            done=flat(here[:, 0]) & better,
        )
        return p.groups.keep(going(s), new, s)

    # Not evaluated yet; its Newton step leads to zero.
    nowhere = torch.zeros_like(tolerance).expand(3, 1, -1)
    nowhere = torch.cat([nowhere, torch.ones_like(nowhere[:1])])
    count = torch.zeros_like(stop, dtype=torch.int64)
    start = Bracketing(here=nowhere, behind=nowhere, side=torch.ones_like(tolerance), count=count, done=stop)
    return while_loop(lambda s: going(s).any(), body, start)


def _narrow(p: Problem, line: Line, flat: Flat, s: Bracketing, stop: Tensor, iterations: int) -> Narrowing:
    """Move the ends of the bracket to the flattest candidates on their side until one is flat enough."""

    def going(s: Narrowing) -> Tensor:
        return ~s.done & (s.count < iterations)

    def body(s: Narrowing) -> Narrowing:
        midpoint = 0.5 * (s.ends[ALPHA, :1] + s.ends[ALPHA, 1:])
        points = evaluate(p, line, torch.cat([s.near[ALPHA], midpoint]))
        candidates = torch.cat([torch.where(s.stale, points[:, :2], s.near), points[:, 2:]], dim=1)

        enough = flat(candidates)
        found = enough.any(0)
        best = torch.where(enough, candidates[COST], torch.inf).argmin(0, keepdim=True)
        best = _picked(candidates, best)[:, 0]

        same_side = candidates[SLOPE] * s.ends[SLOPE, :, None] > 0
        steepness = torch.where(same_side, candidates[SLOPE].abs(), torch.inf)
        flattest, index = steepness.min(1)
        moved = flattest < s.ends[SLOPE].abs()
        ends = torch.where(moved, _picked(candidates, index), s.ends)
        near = torch.cat([newton(ends)[None], candidates[1:, :2]])
        new = Narrowing(
            ends=ends,
            near=torch.where(moved, near, candidates[:, :2]),
            stale=moved,
            count=s.count + 1 + moved.sum(0),
            done=found | ~moved.any(0),
            result=torch.where(found, best, candidates[:, 2]),
        )
        return p.groups.keep(going(s), new, s)

    near = torch.cat([torch.cat([newton(s.here)[None], s.here[1:]]), s.here], dim=1)
    init = Narrowing(
        ends=torch.cat([s.here, s.behind], dim=1),
        near=near,
        stale=(torch.arange(2, device=near.device) == 0)[:, None].expand(near.shape[1:]),
        count=s.count + 1,
        done=stop | s.done | (s.count >= iterations),
        result=s.here[:, 0],
    )
    return while_loop(lambda s: going(s).any(), body, init)


def _better_end(ends: Tensor) -> Tensor:
    """The end that costs less, at alpha zero if neither is better than the start."""
    best = _picked(ends, ends[COST].argmin(0, keepdim=True))[:, 0]
    return torch.where(best[COST] < 0, best, 0.0)


def _picked(points: Tensor, index: Tensor) -> Tensor:
    """Points (4, i, ngroup) at `index (i, ngroup)` of those (4, k, ngroup)."""
    return points.take_along_dim(index[None], 1)
