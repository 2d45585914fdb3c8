"""Kinematic trees, which are a block each of the second derivative, and the rows that join them.

Most rows touch one tree, so the second derivative is `A + U' W U`: the blocks `A` of trees and their own rows, and the
rows U that touch several. Where there are none, blocks are all there is to factor. Up to `MOST` of these rows are taken
out of the solution of blocks by the formula of Sherman, Morrison and Woodbury: with `A = L L'`, `Y = L^-1 U' W^1/2`
and `G = 1 + Y' Y` the inverse is `L^-T (1 - Y G^-1 Y') L^-1`. Where there are more, conjugate gradients are
preconditioned by that, with blocks that the other rows add their part to. In scenes of so many trees that G would cost
more than they, all contacts that join trees are left to conjugate gradients: some ten or twenty steps, each of which
multiplies by what these contacts couple and no more. Cost and memory follow the sum of the trees, not the square.

Contacts of elements of flexes join the trees of several vertices each, and so do edges that are held at their lengths:
these are left to conjugate gradients, and blocks have what couples the dofs of each tree. So it is with an effective
inertia that couples trees, a band: blocks have what is theirs of it.

Rows of elliptic contacts are turned first, so that the second derivative is a sum of squares of theirs, too
(`curvature.straightened`).

What contacts of one body with the world add to a block needs no rows: they are a stiffness (6, 6) of the body, and
those of all bodies that two dofs both move make up, as inertias do, what couples these dofs (`BodyRows.stiffness`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.bodies import BodyRows, Contacts
from mjtorch.constraint.solver.between import Between, Product, conjugate_gradients, coupled, couplings, enough, listed
from mjtorch.control_flow import if_any, scan
from mjtorch.math import linalg
from mjtorch.math.banded import Banded
from mjtorch.math.compact import compacted
from mjtorch.model import Data, Model
from mjtorch.model.plan.forest import ForestPlan, GroupPlan

# Rows that touch several trees and are taken out of the solution of blocks: each costs a column for each tree. Where
# there are more trees more rows join them, and up to half as many again are: with twice as many 8 to 12 humanoids took
# 1.04 to 1.09 times as long. Where there are many trees, none: with conjugate gradients alone 12 humanoids took 1.06
# times as long, but 16 took 0.86, and a pile of 200 things a sixth.
MOST = 32
# Contacts of a tree with itself that its block has the rows of, and contacts of a tree with others: at least so many.
# Eight humanoids with room for eight each took 1.17 times as long.
MOST_OWN = 8
LEAST_SHARED = 4


@tree.dataclass(kw_only=True)
class Trees(tree.Tree):
    """The kinematic trees of n dofs each, with the rows that touch no other.

    dof: (ntree, n) leaves first, M: (ntree, n, n), L: (ntree, n, n) lower, `M = L L^T`
    fixed: (ntree, k, n) rows that are no contact's
    slot: (ntree, k) contacts of a tree with itself, there: (ntree, k) bool, up to which there are some
    J: (ntree, k * w, n) their rows
    U: (ntree, kU, n) of the rows that touch several trees those that touch this one, number: (ntree, kU) which these
        are, met: (ntree, kU) bool, which there are
    both: (ntree, kU, kU) bool, which pairs of these there are, the first not before the second
    place: (ntree, kU, kU) where they lie in `Blocks.G`
    source: (ntree, n, n) where each element of the blocks lies in those of `stiffness`
    """

    dof: Tensor
    M: Tensor
    L: Tensor
    fixed: Tensor
    slot: Tensor
    there: Tensor
    J: Tensor
    U: Tensor
    number: Tensor
    met: Tensor
    both: Tensor
    place: Tensor
    source: Tensor


@tree.dataclass(kw_only=True)
class Forest(tree.Tree):
    """All kinematic trees, by size, their dofs one after another.

    plan: how rows touch them
    dof: (nv,) of the model, place: (nv,) where each dof of the model lies
    source: (nv, nv) where each element of a dense matrix lies in [blocks, 0]
    slot: (k,) the contacts of two trees, or the first of them, there: (k,) bool, up to which there are some
    stiff: (2, ncon) bool, the bodies that contacts make stiff: all but those of these and of `Trees.slot`
    between: the pairs of bodies that contacts make stiff, both of them: what couples these is in no block
    M: (npair + 1,) the inertia at the pairs of dofs of the plan, and zero
    band: all of it, if it is an effective one that couples trees
    more: () bool, whether there are more contacts, or other rows, of two trees, or of a tree with itself
    """

    plan: ForestPlan
    groups: tuple[Trees, ...]
    dof: Tensor
    place: Tensor
    source: Tensor
    slot: Tensor
    there: Tensor
    stiff: Tensor
    between: tuple[Between, ...]
    M: Tensor
    band: tuple[Banded, ...]
    more: Tensor

    def turned(self, mix: Tensor) -> "Forest":
        """Of rows that are sums of those of each contact, `mix (ncon, w, w)` times them."""
        width, fixed = mix.shape[1], len(self.plan.shared[:MOST])
        groups = []
        for t in self.groups:
            own = mix[t.slot] @ t.J.unflatten(1, (-1, width))
            joint = (t.number[:, fixed::width] - fixed) // width
            met = t.met[:, fixed::width, None, None]
            joins = torch.where(met, mix[self.slot[joint]] @ t.U[:, fixed:].unflatten(1, (-1, width)), 0.0)
            groups.append(
                t.replace(
                    J=torch.where(t.there[..., None, None], own, 0.0).flatten(1, 2),
                    U=torch.cat([t.U[:, :fixed], joins.flatten(1, 2)], dim=1),
                )
            )
        return self.replace(groups=tuple(groups))


class Terms(NamedTuple):
    """What makes up the blocks of trees of n dofs: `added + J' diag(weight) J`, and the rows U that join them.

    added: (ntree, n, n), or where each element lies in the values that all trees have; J: (ntree, k, n), weight:
    (ntree, k), U: (ntree, kU, n), joins: (ntree, kU) their weight
    """

    added: Tensor
    J: Tensor
    weight: Tensor
    U: Tensor
    joins: Tensor


@tree.dataclass(kw_only=True)
class Blocks(tree.Tree):
    """The second derivative at a point: `A + U' diag(weight) U`, U those of the forest.

    factor: (ntree, n, n) by size of trees; lower factors of A, and of what rows past the first k add to it
    Y: (ntree, n, kU) by size of trees, G: (k, k) a lower factor, joined: () bool, whether Y is not zero
    weak, lost: () bool, whether rounding has left little, or nothing, of some block or of G
    """

    factor: tuple[Tensor, ...]
    Y: tuple[Tensor, ...]
    G: Tensor
    joined: Tensor
    weak: Tensor
    lost: Tensor


def build(m: Model, d: Data, rows: BodyRows, band: tuple[Banded, ...] = ()) -> Forest:
    """The trees of the model, and the rows; band: the effective inertia, if there is one."""
    k, (plan,) = m.plan.kinematics, m.plan.solver.forest
    stored, place = torch.cat([d.M, d.M.new_zeros(1)]), plan.M
    for x in band:
        stored, place = torch.cat([x.value, x.value.new_zeros(1)]), m.plan.metric[0].pair
    M = torch.cat([stored[place], stored.new_zeros(1)])
    nothing = torch.zeros_like(k.dof_body[:0])
    slot, there, stiff = nothing, nothing > 0, nothing > 0
    more = (rows.fixed[plan.shared[MOST:]] != 0).any()
    for e in rows.edges:
        more = more | e.there
    for c in rows.contacts:
        stiff = c.moves
        if c.share:
            # Of all that elements join, blocks have the diagonal: conjugate gradients do the rest.
            more = more | (c.moves.sum(0) > 1).any()
        if not plan.joins:
            continue
        first, second = c.tree
        joins = c.there & (first >= 0) & (second >= 0) & (first != second)
        most = most_contacts(m.ntree, c)
        if not most:
            more = more | joins.any()
            continue
        fits = fitting(plan, c, joins)
        slot, there, past = compacted(fits, most)
        stiff = c.moves & (~fits | past)
        more = more | (past | (joins & ~fits)).any()
    groups, fixed = [], torch.cat([rows.fixed.flatten(), rows.fixed.new_zeros(1)])
    for g in plan.groups:
        own, own_there, J = nothing.expand(len(g.dof), 0), nothing.expand(len(g.dof), 0) > 0, d.M.new_zeros(0)
        for c in rows.contacts if g.own else ():
            first, second = c.tree
            mine = c.there & (first == second) & (first == g.number[:, None])
            own, own_there, past = compacted(mine, min(MOST_OWN, c.row.shape[0]))
            stiff = stiff & ~(mine & ~past).any(0)
            more = more | past.any()
            J = own_rows(c, rows.axis[g.dof], g, own, own_there)
        if rows.contacts and not g.own:
            J = d.M.new_zeros(len(g.dof), 0, g.dof.shape[1])
        U, number, met = shared_rows(rows, fixed[g.shared_entry[:, :MOST]], plan, g, slot, there)
        both = (met[:, :, None] & met[:, None, :]).tril()
        block = M[g.source] if band else stored[g.M]
        count = len(plan.shared[:MOST]) + sum(slot.shape[0] * c.row.shape[1] for c in rows.contacts)
        groups.append(
            Trees(
                dof=g.dof,
                M=block,
                L=linalg.cholesky(block) if band else d.qLD[g.dof[:, None, :], g.dof[:, :, None]],
                fixed=fixed[g.fixed_entry],
                slot=own,
                there=own_there,
                J=J,
                U=U,
                number=number,
                met=met,
                both=both,
                place=torch.where(both, number[:, :, None] * count + number[:, None, :], 0),
                source=g.source,
            )
        )
    between: tuple[Between, ...] = ()
    for c in rows.contacts:
        if plan.joins or any(g.own for g in plan.groups):
            between = (listed(c, stiff),)
    return Forest(
        plan=plan,
        groups=tuple(groups),
        dof=torch.cat([g.dof.flatten() for g in plan.groups]),
        place=plan.place,
        source=k.tree_source,
        slot=slot,
        there=there,
        stiff=stiff,
        between=between,
        M=M,
        band=band,
        more=more,
    )


def most_contacts(ntree: int, c: Contacts) -> int:
    """How many contacts of two trees are taken out of the solution of so many trees."""
    rows = max(MOST, 4 * ntree)
    return rows // c.row.shape[1] if 2 * rows <= 3 * MOST else 0


def most_shared(plan: ForestPlan, c: Contacts) -> int:
    """How many of these may be a tree's: as many as each has if all have as many."""
    ntree = sum(len(g.number) for g in plan.groups)
    return max(LEAST_SHARED, 2 * most_contacts(ntree, c) // ntree)


def touches(g: GroupPlan, tree: Tensor) -> Tensor:
    """Whether (ntree, k) trees are one of the two `tree` (2, k)."""
    return (tree == g.number[:, None, None]).any(1)


def fitting(plan: ForestPlan, c: Contacts, joins: Tensor) -> Tensor:
    """Which of the contacts that join trees (ncon,) are among the first `most_shared` of both."""
    fits, most = joins, most_shared(plan, c)
    if most_contacts(sum(len(g.number) for g in plan.groups), c) > most:
        for g in plan.groups:
            mine = joins & touches(g, c.tree)
            fits = fits & ~(mine & (mine.cumsum(-1) > most)).any(0)
    return fits


def moves(g: GroupPlan, body: Tensor) -> Tensor:
    """Whether (ntree, k, 1, n) each dof moves the bodies (ntree or 1, k), 1 or 0."""
    body = body[..., None, None]
    return (body >= g.first[:, None, None]) & (body < g.last[:, None, None])


def own_rows(c: Contacts, motion: Tensor, g: GroupPlan, slot: Tensor, there: Tensor) -> Tensor:
    """The rows (ntree, k * w, n) of contacts of trees with themselves; motion: (ntree, n, 6) of the dofs."""
    c = c.at(slot)
    one, two = (moves(g, body) for body in c.body)
    wrench = torch.where(there[..., None, None], c.wrench()[1], 0.0)
    J = (wrench.flatten(1, 2) @ motion.mT).unflatten(1, slot.shape[1:] + wrench.shape[2:3])
    return torch.where(one == two, 0.0, torch.where(two, J, -J)).flatten(1, 2)


def shared_rows(
    rows: BodyRows, fixed: Tensor, plan: ForestPlan, g: GroupPlan, slot: Tensor, there: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the rows that touch several trees, those of each tree (ntree, k, n), which they are (ntree, k), and if at all.

    fixed: (ntree, k, n) those that are no contacts', which come first
    """
    count = fixed.shape[1]
    parts = [fixed]
    numbers = [torch.arange(count, device=fixed.device).expand(len(g.dof), -1)]
    there_are = [torch.ones_like(numbers[0], dtype=torch.bool)]
    for c in rows.contacts if len(slot) else ():
        joint, met, _ = compacted(there & touches(g, c.tree[:, slot]), min(most_shared(plan, c), len(slot)))
        width = c.row.shape[1]
        numbers.append((count + width * joint[..., None] + torch.arange(width, device=slot.device)).flatten(1))
        there_are.append(met[..., None].expand(-1, -1, width).flatten(1))
        c = c.at(slot[joint])
        # No more than one of the bodies is of a tree, and the rows push the first one back.
        one, two = (met & (tree == g.number[:, None]) for tree in c.tree)
        first, second = c.wrench()
        wrench = torch.where(two[..., None, None], second, torch.where(one[..., None, None], -first, 0.0))
        J = (wrench.flatten(1, 2) @ rows.axis[g.dof].mT).unflatten(1, wrench.shape[1:3])
        parts.append(torch.where(moves(g, torch.where(two, c.body[1], c.body[0])), J, 0.0).flatten(1, 2))
    return torch.cat(parts, dim=1), torch.cat(numbers, dim=1), torch.cat(there_are, dim=1)


def terms(f: Forest, rows: BodyRows, weight: Tensor, base: Tensor) -> tuple[Tensor, Tensor, list[Terms]]:
    """The weight (k,) of U, values (npair + 1,) and what, with these, makes up the blocks.

    weight: (nefc,) the curvatures, base: (npair + 1,) what is in the values beside the stiffnesses
    """
    single, fixed, held, touching = rows.split(weight)
    shared = f.plan.shared[:MOST]
    shared_weight, of_slots = fixed[shared], []
    for c in rows.contacts:
        of_slots.append(c.by_slot(touching))
        of_pairs = torch.where(f.there[:, None], of_slots[0][f.slot], 0.0)
        shared_weight = torch.cat([shared_weight, of_pairs.flatten()])
    value = rows.stiffness(f.stiff, touching).index_add(0, rows.bodies.diagonal, rows.diagonal(single))
    for e in rows.edges:
        value = e.add_stiffness(value, held)
    value = base + torch.cat([value, value.new_zeros(1)])
    kept = fixed.index_copy(0, shared, torch.zeros_like(fixed[shared])) if len(shared) else fixed
    found = []
    kept = torch.cat([kept, kept.new_zeros(1)])
    for g, t in zip(f.plan.groups, f.groups, strict=True):
        J, mine = t.fixed, kept[g.fixed]
        for w in of_slots:
            own = torch.where(t.there[..., None], w[t.slot], 0.0).flatten(1)
            J, mine = (torch.cat([J, t.J], 1), torch.cat([mine, own], 1)) if J.shape[1] else (t.J, own)
        found.append(Terms(t.source, J, mine, t.U, torch.where(t.met, shared_weight[t.number], 0.0)))
    return shared_weight, value, found


def blocks(f: Forest, rows: BodyRows, weight: Tensor) -> Blocks:
    """The second derivative, given that of the cost of the rows (nefc,)."""
    joins, value, found = terms(f, rows, weight, f.M)
    return factored(f, joins, found, lambda source: value[source])


def factored(f: Forest, weight: Tensor, found: Sequence[Terms], added: Callable[[Tensor], Tensor]) -> Blocks:
    """The factors of the sums of all terms.

    weight: (k,) of all rows that join trees, added: what `Terms.added` of a tree stands for
    """

    def one(_: Tensor, x: Terms) -> tuple[Tensor, tuple[Tensor, ...]]:
        factor, weak, lost = linalg.checked_cholesky(torch.addmm(added(x.added), x.J.mT, x.weight[:, None] * x.J))
        return _, (factor, weak, lost, linalg.triangular_solve(factor, (x.joins.sqrt()[:, None] * x.U).mT))

    parts = [scan(one, torch.zeros_like(weight.sum()), x, unroll=False)[1] for x in found]
    factor, weak, lost, Y = zip(*parts, strict=True)
    k = len(weight)
    G = torch.eye(k, dtype=weight.dtype, device=weight.device).flatten()
    for t, y in zip(f.groups, Y, strict=True):
        # Said to be zero where nothing is, it is neither computed nor added there.
        G = G.index_put((t.place,), torch.where(t.both, y.mT @ y, 0.0), accumulate=True)
    G, *flags = linalg.checked_cholesky(G.unflatten(0, (k, k)))
    return Blocks(
        factor=factor,
        Y=Y,
        G=G,
        joined=(weight != 0).any(),
        weak=torch.cat(weak).any() | flags[0],
        lost=torch.cat(lost).any() | flags[1],
    )


def whitened_solve(f: Forest, rows: BodyRows, weight: Tensor, x: Tensor) -> Tensor:
    """`H^-1 x` (nv,) by way of `z = L^T a`, `M = L L^T`, for where single precision factors no block of H.

    There M is the identity, and what is left are the stiffnesses of the constraints, which are all alike. What has no
    factor even so is taken for M. Rows past the first k are left to their blocks.
    """
    shared, value, found = terms(f, rows, weight, torch.zeros_like(f.M))
    halves = []
    for t, given in zip(f.groups, found, strict=True):
        one = torch.eye(t.M.shape[-1], dtype=x.dtype, device=x.device)
        added, J, U = (linalg.triangular_solve(t.L, y.mT).mT for y in (value[given.added], given.J, given.U))
        halves.append(Terms(one + linalg.triangular_solve(t.L, added), J, given.weight, U, given.joins))
    b, L = factored(f, shared, halves, lambda added: added), [t.L for t in f.groups]
    z = triangles(f, L, x[f.dof], linalg.triangular_solve)
    z = torch.where(b.lost, z, solved(f, b, z))
    return triangles(f, [y.mT for y in L], z, linalg.upper_solve)[f.place]


def solve(
    f: Forest,
    rows: BodyRows,
    b: Blocks,
    weight: Tensor,
    x: Tensor,
    product: Product,
    negligible: Tensor | None = None,
) -> Tensor:
    """`H^-1 x` (nv,), unless the blocks are lost.

    weight: (nefc,) the curvatures, product: `H y` of y (nv,); negligible: as for `curvature.hessian_solve`
    """
    near = precondition(f, b, x)
    least = enough(x, near, x.dtype, negligible)
    if f.band and negligible is None:
        # Blocks are far from what is soft in a stiff cloth: a derivative would have half the digits there.
        least = torch.finfo(x.dtype).eps * least
    # Without contacts between bodies, or with edges or rows past the first k, what the blocks lack is not known.
    known = bool(f.between) and len(f.plan.shared) <= MOST and not (rows.edges or f.band)

    def searched() -> Tensor:
        def nearer(left: Tensor) -> Tensor:
            return precondition(f, b, left)

        if not known:
            springs = rows.springs(weight)
            return conjugate_gradients(
                x, near, nearer, lambda y, _: inertia_times(f, y) + rows.springs_times(springs, y), least
            )
        (between,) = f.between
        spring = couplings(between, rows, weight)

        def times(y: Tensor, held: Tensor) -> Tensor:
            return if_any(b.weak, lambda: product(y), held + coupled(between, rows, spring, y))

        return conjugate_gradients(x, near, nearer, times, least)

    return searched() if f.band else if_any(f.more | b.weak, searched, near)


def precondition(f: Forest, b: Blocks, x: Tensor) -> Tensor:
    """`H^-1 x` (nv,) if there are no more than k rows that touch several trees, else near to it."""
    return solved(f, b, x[f.dof])[f.place]


def solved(f: Forest, b: Blocks, x: Tensor) -> Tensor:
    """What the blocks make of x (nv,), in the order of the forest."""
    half = triangles(f, b.factor, x, linalg.triangular_solve)

    def joint() -> Tensor:
        by_tree = split(f, half)
        along = half.new_zeros(len(b.G))
        for t, y, x in zip(f.groups, b.Y, by_tree, strict=True):
            along = along.index_add(0, t.number.flatten(), torch.where(t.met, (x[:, None] @ y)[:, 0], 0.0).flatten())
        back = linalg.cholesky_solve(b.G, along)
        # Where there is no row, Y is zero.
        parts = [x - (y @ back[t.number][..., None])[..., 0] for t, y, x in zip(f.groups, b.Y, by_tree, strict=True)]
        return torch.cat([x.flatten() for x in parts])

    return triangles(f, [L.mT for L in b.factor], if_any(b.joined, joint, half), linalg.upper_solve)


def inertia_times(f: Forest, x: Tensor) -> Tensor:
    """`M x` (nv,), of the model's dofs."""
    for band in f.band:
        return band.times(x)
    parts = [(t.M @ y[..., None]).flatten() for t, y in zip(f.groups, split(f, x[f.dof]), strict=True)]
    return torch.cat(parts)[f.place]


def inertia_solve(f: Forest, x: Tensor) -> Tensor:
    """`M^-1 x` (nv,), of the model's dofs."""
    for band in f.band:
        return band.solve(x)
    return triangles(f, [t.L for t in f.groups], x[f.dof], linalg.cholesky_solve)[f.place]


def triangles(f: Forest, A: Sequence[Tensor], x: Tensor, solve: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What `solve(matrix, column)` makes of x (nv,), tree by tree; A: (ntree, n, n) by size."""
    return torch.cat([solve(block, y[..., None]).flatten() for block, y in zip(A, split(f, x), strict=True)])


def dense(f: Forest) -> Tensor:
    """The inertia (nv, nv)."""
    for band in f.band:
        return band.dense()
    parts = [t.M.flip((1, 2)).flatten() for t in f.groups]
    return torch.cat([*parts, torch.zeros_like(parts[0][:1])])[f.source]


def split(f: Forest, x: Tensor) -> list[Tensor]:
    """The parts (ntree, n, ...) of x (nv, ...) that belong to trees, by size."""
    parts = x.split([t.dof.numel() for t in f.groups])
    return [part.unflatten(0, t.dof.shape) for t, part in zip(f.groups, parts, strict=True)]
