"""The second derivative where chains are long: a factor of it along the kinematic tree, by articulated bodies.

Of many dofs that move the same it is dense, but it is a sum over bodies: `A = sum_b S_b' (I_b + K_b) S_b + diag`, with
S_b how dofs move body b, I_b its inertia, and K_b the stiffness of what it touches. From the last dof to the first, a
dof hands on to the one above it what is left of the inertia that it moves when it gives way: `I - U U' / D`, with
`U = I s` and `D = s' U + diag` (Featherstone, "Rigid Body Dynamics Algorithms", section 7.3; all is told about the
centre of mass of the tree, so that nothing is moved). What that costs is what the dofs cost, not their cube.

Contacts of two bodies that dofs move are in A what they are to each of the bodies; conjugate gradients find what they
couple, and what rows of several dofs add. All of it is in double precision: stiffnesses may be 1e8 times the inertia,
of which single precision would leave nothing.
"""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.bodies import BodyRows
from mjtorch.constraint.solver.between import Between, conjugate_gradients, coupled, couplings, enough, listed
from mjtorch.control_flow import if_any, scan
from mjtorch.math.spatial import blocks, skew, symmetric
from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Data, Model
from mjtorch.model.plan.articulated import ArticulatedPlan
from mjtorch.smooth.reflected import dof_armature

# The square of what may be left in double precision, relative to that of the right-hand side: in the norm of A, which
# says little of what couples.
EXACT = 1e-24
# Where much is coupled, rounding makes more steps necessary than there are dofs.
TURNS = 4


@tree.dataclass(kw_only=True)
class Articulated(tree.Tree):
    """What the second derivative is made of, in double precision; k is 6, or 3 where nothing turns.

    plan: the dofs, rows: those of the problem
    inertia: (nv + 1, k, k) of what moves with each dof, but for what further dofs move; armature: (nv,)
    stiff: (2, ncon) bool, the bodies that contacts make stiff
    between: the contacts that move two bodies, if there may be some
    """

    plan: ArticulatedPlan
    rows: BodyRows
    inertia: Tensor
    armature: Tensor
    stiff: Tensor
    between: tuple[Between, ...]


@tree.dataclass(kw_only=True)
class Factor(tree.Tree):
    """push: (nv, k) the force U that moves each dof at unit acceleration, pivot: (nv,) its part D along the dof."""

    push: Tensor
    pivot: Tensor


def doubled(x: Tensor) -> Tensor:
    """Numbers in double precision; what is no number as it is."""
    return x.double() if x.is_floating_point() else x


def build(plan: ArticulatedPlan, m: Model, d: Data, rows: BodyRows) -> Articulated:
    """The bodies of `m`, and the rows."""
    cinert, armature, rows = tree.map(doubled, (d.cinert, dof_armature(m), rows))
    inertia = spatial(cinert)[:, -rows.axis.shape[1] :, -rows.axis.shape[1] :]
    stiff = torch.zeros_like(plan.last[:0]) > 0
    between: tuple[Between, ...] = ()
    for c in rows.contacts:
        stiff = c.moves
        if rows.bodies.joins or rows.bodies.own:
            between = (listed(c, stiff),)
    nothing = inertia.new_zeros(len(rows.axis) + 1, *inertia.shape[1:])
    return Articulated(
        plan=plan,
        rows=rows,
        inertia=nothing.index_add(0, plan.last, inertia),
        armature=armature,
        stiff=stiff,
        between=between,
    )


def spatial(cinert: Tensor) -> Tensor:
    """Inertias (..., 10) as matrices (..., 6, 6), which make a force of an acceleration."""
    moment, mass = skew(cinert[..., 6:9]), cinert[..., 9, None, None]
    eye = torch.eye(3, dtype=cinert.dtype, device=cinert.device)
    return blocks(symmetric(cinert), moment, moment.mT, mass * eye)


def solve(a: Articulated, weight: Tensor, x: Tensor, negligible: Tensor | None) -> Tensor:
    """`H^-1 x` (nv,), of curvatures `weight` (nefc,); negligible: as for `curvature.hessian_solve`."""
    rows, weight, right = a.rows, weight.double(), x.double()
    single, fixed, _, touching = rows.split(weight)
    inertia = a.inertia
    if rows.contacts:
        spring = rows.springs_of_bodies(a.stiff, touching)[:, rows.bodies.symmetric]
        inertia = inertia.index_add(0, a.plan.last, spring.unflatten(1, inertia.shape[1:]))
    f = factored(a, inertia, a.armature + rows.diagonal(single))

    def precondition(y: Tensor) -> Tensor:
        return factor_solve(a, f, y)

    near = precondition(right)
    more = torch.stack([*(c.there.any() for c in a.between), (fixed != 0).any()]).any()

    def searched() -> Tensor:
        springs = [couplings(c, rows, weight) for c in a.between]

        def times(y: Tensor, held: Tensor) -> Tensor:
            for c, spring in zip(a.between, springs, strict=True):
                held = held + coupled(c, rows, spring, y)
            return rows.add_fixed_transpose_times(held, fixed * rows.fixed_times(y)) if len(fixed) else held

        if x.dtype == torch.float64:
            least = EXACT * (right @ near)
        else:
            least = enough(right, near, x.dtype, None if negligible is None else negligible.double())
        return conjugate_gradients(right, near, precondition, times, least, TURNS)

    found = if_any(more, searched, near) if a.between or len(fixed) else near
    return found.to(x.dtype)


def factored(a: Articulated, inertia: Tensor, diagonal: Tensor) -> Factor:
    """The factor; inertia: (nv + 1, k, k) as in `Articulated`, diagonal: (nv,) what each dof resists by itself."""

    def one(carried: Tensor, dof: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        number, parent, axis, own = dof
        moved = carried.index_select(0, number[None])[0]
        push = (moved * axis).sum(-1)
        pivot = torch.clamp((axis * push).sum() + own, min=MIN_VALUE)
        left = moved - push[:, None] * (push / pivot)
        return carried.index_add(0, parent[None], left[None]), (push, pivot)

    dofs = a.plan.number, a.plan.parent, a.rows.axis, diagonal
    push, pivot = scan(one, inertia, dofs, reverse=True, unroll=False)[1]
    return Factor(push=push, pivot=pivot)


def factor_solve(a: Articulated, f: Factor, x: Tensor) -> Tensor:
    """What the bodies make of x (nv,): forces go up the trees, accelerations down."""
    axis, p = a.rows.axis, a.plan

    def up(carried: Tensor, dof: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        number, parent, s, push, pivot, right = dof
        force = carried.index_select(0, number[None])[0]
        half = (right - (s * force).sum()) / pivot
        return carried.index_add(0, parent[None], (force + push * half)[None]), half

    def down(carried: Tensor, dof: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        number, parent, s, push, pivot, half = dof
        motion = carried.index_select(0, parent[None])[0]
        found = half - (push * motion).sum() / pivot
        return carried.index_add(0, number[None], (motion + s * found)[None]), found

    nothing = axis.new_zeros(len(axis) + 1, axis.shape[1])
    half = scan(up, nothing, (p.number, p.parent, axis, f.push, f.pivot, x), reverse=True, unroll=False)[1]
    return scan(down, nothing, (p.number, p.parent, axis, f.push, f.pivot, half), unroll=False)[1]
