"""The convex problem that the solvers minimise, and its derivatives (mj_constraintUpdate).

The constrained acceleration minimises `(a - a_smooth)' M (a - a_smooth) / 2 + s(J a - aref)`, see "Constraint model" in
MuJoCo's documentation. The cost `s` is a sum over rows and elliptic cones, as functions of the residual
`jar = J a - aref`:

* A row that stands alone costs `D x^2 / 2` while x lies in an interval, and goes on linearly outside. The interval is
  the whole line for an equality, `x < 0` for limits, frictionless and pyramidal contacts, `|x| < R frictionloss` for
  dry friction. With `y` the nearest point to x in the interval, cost `D y (x - y/2)` and force `-D y` say all of it.
* An elliptic cone is scaled to be circular: `U = jar * (mu, friction)`, `N = U[0]`, `T = |U[1:]|`. Its cost grows with
  the squared distance of (N, T) from the cone `N >= mu T`. Turned by the cone's angle the distance falls apart into two
  one-sided residuals, `r = N - mu T` and `q = mu N + T`: the cost is `Dm (min(r, 0)^2 + min(q, 0)^2) / 2`. In C's words
  r >= 0 is the top zone, q < 0 the bottom zone, and between them lies the middle zone. This relies on how the stiffness
  of the friction rows follows from that of the normal row (mj_makeImpedance).

So everything is a sum over *terms*: the rows, and r and q of every cone, with a stiffness and an interval each.
"""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint import bodies, parts
from mjtorch.constraint.bodies import BodyRows
from mjtorch.constraint.parts import Parts
from mjtorch.constraint.solver import articulated, groups, rows, trees
from mjtorch.constraint.solver.articulated import Articulated
from mjtorch.constraint.solver.groups import Groups
from mjtorch.constraint.solver.rows import Rows
from mjtorch.constraint.solver.trees import Forest
from mjtorch.math import linalg
from mjtorch.math.banded import Banded
from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Data, Model
from mjtorch.smooth.inertia import TreeBlocks, by_tree, diagonal_m, full_m, stored_blocks, tree_blocks
from mjtorch.smooth.metric import Metric

# mjtConstraintState
SATISFIED, QUADRATIC, CONE = 0, 1, 4
# The smallest tolerance that makes sense at a precision.
MIN_TOLERANCE = {torch.float32: 1e-6, torch.float64: 0.0}
# Where M has zeros for more than the rest of this, trees have branches that are worth the order.
BRANCHED = 0.7
# Floor of T^2, which keeps the direction of T finite.
MIN_SQUARE = MIN_VALUE * MIN_VALUE


@tree.dataclass(kw_only=True)
class Cones(tree.Tree):
    """Elliptic contacts; `w` rows each, padded.

    rows: (ncone, w) row indices
    scale: (ncone, w) mu, then the friction coefficients; zero in the padding
    mu: (ncone,) of the regularized cone
    Dm: (ncone,) stiffness
    tangential: (ncone, w) the friction coefficients, zero elsewhere
    J: one (ncone, w, nv), none if rows are not stored
    slot_cone: (ncon,) the cone of each slot; as many as there are: none
    """

    rows: Tensor
    scale: Tensor
    mu: Tensor
    Dm: Tensor
    tangential: Tensor
    J: tuple[Tensor, ...]
    slot_cone: Tensor


@tree.dataclass(kw_only=True)
class Problem(tree.Tree):
    """One world's minimisation.

    M: one (nv, nv), none if there is a forest, or a band, or `trees`, which have it
    qLD: (nv, nv) lower, `M = qLD^T qLD`; empty if there is a band, which a forest may have, too
    trees, factors: M and qLD by kinematic trees, if rows are stored by parts of these, else none
    qfrc_smooth, qacc_smooth: (nv,)
    jacobian: one J (nefc, nv), none if it is not stored; rows: the same as the solvers multiply by it
    aref, R: (nefc,)
    active: (nefc,) bool
    D: (nefc,) stiffness; zero in rows that are not active, and in those of cones
    low, high: (nefc,) the interval where a row's cost is quadratic
    row_source: (nefc,) where each row is found in [rows, flattened cones]
    cones: one `Cones` if there are elliptic contacts, else none
    articulated: what the second derivative is made of where chains are long, and no rows stored
    parts: the rows of contacts, if they are stored by parts of trees
    band: one M if it is an effective inertia of few elements, and there is no forest
    forest: one `Forest` if kinematic trees are solved one by one, else none
    leaves_first: static, whether M has branches, which its factor has too if leaves come first
    groups: what is searched apart
    scale: () one over the trace of M, which makes costs and gradients comparable with tolerances
    tolerance, ls_tolerance: ()
    """

    M: tuple[Tensor, ...]
    qLD: Tensor
    trees: tuple[TreeBlocks, ...]
    factors: tuple[TreeBlocks, ...]
    qfrc_smooth: Tensor
    qacc_smooth: Tensor
    jacobian: tuple[Tensor, ...]
    rows: Rows | BodyRows
    aref: Tensor
    R: Tensor
    active: Tensor
    D: Tensor
    low: Tensor
    high: Tensor
    row_source: Tensor
    cones: tuple[Cones, ...]
    articulated: tuple[Articulated, ...]
    parts: tuple[Parts, ...]
    band: tuple[Banded, ...]
    forest: tuple[Forest, ...]
    leaves_first: bool = tree.field(static=True)
    groups: Groups
    scale: Tensor
    tolerance: Tensor
    ls_tolerance: Tensor

    @property
    def nefc(self) -> int:
        """Number of rows."""
        return self.aref.shape[0]

    @property
    def J(self) -> Tensor:
        """(nefc, nv), made if it is not stored."""
        if self.jacobian:
            return self.jacobian[0]
        assert isinstance(self.rows, BodyRows)
        return self.rows.dense()


@tree.dataclass(kw_only=True)
class Slip:
    """Where each cone stands.

    T: (ncone,), U: (ncone, w - 1) the vector that T is the length of
    terms: (2, ncone) r and q; bending: (ncone,) see `bending`
    """

    T: Tensor
    U: Tensor
    terms: Tensor
    bending: Tensor


@tree.dataclass(kw_only=True)
class Residuals:
    """Residuals at some acceleration: of rows (nefc,), and where the cones stand."""

    jar: Tensor
    slips: tuple[Slip, ...]


def build(m: Model, d: Data, metric: tuple[Metric, ...] = (), *, apart: bool = False) -> Problem:
    """Collect what the solvers need.

    Args:
        metric: the effective inertia instead of M, if there is one.
        apart: whether islands are searched apart.
    """
    p = m.plan.solver
    active = d.efc_D != 0
    # A row that is not active may hold anything in R; it must not spread.
    R = torch.where(active, d.efc_R, 0.0)
    bound = R * d.efc_frictionloss
    D, low, high = d.efc_D * p.alone, p.low - bound, p.high + bound
    k = m.plan.kinematics
    jacobian: tuple[Tensor, ...] = ()
    chains: tuple[Articulated, ...] = ()
    blocks: tuple[Parts, ...] = ()
    band: tuple[Banded, ...] = ()
    forest: tuple[Forest, ...] = ()
    lines: Rows | BodyRows
    if p.forest:
        lines = bodies.build(m, d)
        forest = (trees.build(m, d, lines, tuple(x.matrix for x in metric if isinstance(x.matrix, Banded))),)
    elif p.bodies:
        lines = bodies.build(m, d)
        if p.parts:
            blocks = parts.build(p.parts[0], lines)
        else:
            chains = (articulated.build(p.articulated[0], m, d, lines),)
    else:
        lines, jacobian = rows.build(p.rows, d.efc_J, active), (d.efc_J,)
    qLD = d.qLD
    M: tuple[Tensor, ...] = ()
    M_trees: tuple[TreeBlocks, ...] = ()
    factors: tuple[TreeBlocks, ...] = ()
    for x in metric:
        if isinstance(x.matrix, Banded):
            qLD, band = d.M.new_zeros(0, 0), () if forest else (x.matrix,)
        else:
            M, qLD = (x.matrix.M,), x.matrix.qLD
    if blocks:
        M_trees, factors = (by_tree(m, stored_blocks(m, d.M)),), (by_tree(m, tree_blocks(m, qLD)),)
    elif not (forest or metric):
        M = (full_m(m, d),)
    scale = 1 / _trace(m, d, M, metric)
    return Problem(
        M=M,
        qLD=qLD,
        trees=M_trees,
        factors=factors,
        qfrc_smooth=d.qfrc_smooth + metric[0].shift if metric else d.qfrc_smooth,
        qacc_smooth=d.qacc_smooth,
        jacobian=jacobian,
        rows=lines,
        aref=d.efc_aref,
        R=R,
        active=active,
        D=D,
        low=low,
        high=high,
        row_source=p.row_source,
        cones=(_cones(m, d),) if p.ncone else (),
        articulated=chains,
        parts=blocks,
        band=band,
        forest=forest,
        leaves_first=2 * len(k.M_row) < BRANCHED * m.nv**2,
        groups=groups.islands(m, d) if apart else groups.whole(active, scale),
        scale=scale,
        # Single precision does not get closer.
        tolerance=torch.clamp(m.opt.tolerance, min=MIN_TOLERANCE[m.opt.tolerance.dtype]),
        ls_tolerance=m.opt.ls_tolerance,
    )


def _trace(m: Model, d: Data, M: tuple[Tensor, ...], metric: tuple[Metric, ...]) -> Tensor:
    """Of the inertia, which is `metric`, or M, if that is dense."""
    for x in metric:
        return x.matrix.trace()
    for dense in M:
        return dense.diagonal().sum()
    return diagonal_m(m, d).sum()


def _cones(m: Model, d: Data) -> Cones:
    p = m.plan.solver
    D = d.efc_D[p.cone_rows[:, 0]]
    # Slots without contact may have no friction; one avoids dividing by it.
    friction = torch.where((D != 0)[:, None], d.contact.friction[p.cone_slot, : p.cone_rows.shape[1] - 1], 1.0)
    mu = friction[:, 0] * torch.rsqrt(torch.clamp(m.opt.impratio, min=MIN_VALUE))
    scale = torch.cat([mu[:, None], friction], dim=1) * p.cone_mask
    return Cones(
        rows=p.cone_rows,
        scale=scale,
        mu=mu,
        Dm=D / (mu * mu * (1 + mu * mu)),
        tangential=torch.cat([torch.zeros_like(scale[:, :1]), scale[:, 1:]], dim=1),
        J=() if p.bodies else (d.efc_J[p.cone_rows],),
        slot_cone=p.slot_cone,
    )


def inertia_times(p: Problem, x: Tensor) -> Tensor:
    """`M x` (nv,)."""
    for forest in p.forest:
        return trees.inertia_times(forest, x)
    for M in p.trees:
        return M.times(x)
    for band in p.band:
        return band.times(x)
    return inertia(p) @ x


def inertia_solve(p: Problem, x: Tensor) -> Tensor:
    """`M^-1 x` (nv,)."""
    for forest in p.forest:
        return trees.inertia_solve(forest, x)
    for band in p.band:
        return band.solve(x)
    for factors in p.factors:
        return factors.ltl_solve(x)
    return linalg.ltl_solve(p.qLD, x)


def inertia_factor(p: Problem) -> Tensor:
    """`L (nv, nv)` lower, `M = L^T L`."""
    for factors in p.factors:
        return factors.dense()
    return linalg.ltl(inertia(p)) if p.band else p.qLD


def inertia(p: Problem) -> Tensor:
    """M (nv, nv)."""
    for M in (*p.M, *(x.dense() for x in p.trees), *(x.dense() for x in p.band)):
        return M
    return trees.dense(p.forest[0])


def residuals(p: Problem, jar: Tensor) -> Residuals:
    """The residuals of all terms, from those of the rows `jar (nefc,)`."""
    slips: tuple[Slip, ...] = ()
    for c in p.cones:
        U = jar[c.rows] * c.scale
        N, U = U[:, 0], U[:, 1:]
        T = torch.clamp((U * U).sum(-1), min=MIN_SQUARE).sqrt()
        terms = turn(c.mu, N, T)
        slips = (Slip(T=T, U=U, terms=terms, bending=bending(c.mu, T, terms)),)
    return Residuals(jar=jar, slips=slips)


def turn(mu: Tensor, N: Tensor, T: Tensor) -> Tensor:
    """From (N, T) of cones to r and q, (2, ...)."""
    return torch.stack([N - mu * T, mu * N + T])


def bending(mu: Tensor, T: Tensor, terms: Tensor) -> Tensor:
    """`-d cost / dT / (Dm T)` of cones (...) by their r and q (2, ...): how the tangential part adds to curvature."""
    r, q = terms.unbind(0)
    # In the bottom zone the quotient is constant; computed, it would be noise when T is small.
    return torch.where(q < 0, 1 + mu * mu, -mu * torch.clamp(r, max=0) / T)


def merge(p: Problem, alone: Tensor, cones: Tensor) -> Tensor:
    """Values per row, from those of the rows that stand alone (nefc, ...) and those of the cones (ncone, w, ...)."""
    return torch.cat([alone, cones.flatten(0, 1)]).index_select(0, p.row_source)


def force(p: Problem, at: Residuals) -> Tensor:
    """Constraint forces (nefc,), minus the slope of the cost in the residuals."""
    force = -p.D * torch.clamp(at.jar, p.low, p.high)
    for c, s in zip(p.cones, at.slips, strict=True):
        r, q = torch.clamp(s.terms, max=0).unbind(0)
        cones = torch.cat([-(c.Dm * (r + c.mu * q))[:, None], -(c.Dm * s.bending)[:, None] * s.U], dim=1)
        return merge(p, force, c.scale * cones)
    return force


def cost(p: Problem, at: Residuals) -> Tensor:
    """`s(jar)`, a number."""
    y = torch.clamp(at.jar, p.low, p.high)
    total = p.D @ (y * (at.jar - 0.5 * y))
    for c, s in zip(p.cones, at.slips, strict=True):
        y = torch.clamp(s.terms, max=0)
        total = total + 0.5 * (c.Dm * (y * y)).sum()
    return total


def gradient(p: Problem, Ma: Tensor, at: Residuals) -> Tensor:
    """`M a - qfrc_smooth - J' force`, (nv,)."""
    return Ma - p.qfrc_smooth - p.rows.transpose_times(force(p, at))


def state(m: Model, p: Problem, at: Residuals) -> Tensor:
    """mjtConstraintState of each row (nefc,); a row that is not active counts as satisfied."""
    plan = m.plan.solver
    states = torch.where(at.jar <= p.low, plan.state_low, QUADRATIC)
    states = torch.where(at.jar >= p.high, plan.state_high, states)
    for c, s in zip(p.cones, at.slips, strict=True):
        r, q = s.terms.unbind(0)
        zone = torch.where(q <= 0, QUADRATIC, torch.where(r < 0, CONE, SATISFIED))
        states = merge(p, states, zone[:, None].expand(c.rows.shape))
    return torch.where(p.active, states, SATISFIED)
