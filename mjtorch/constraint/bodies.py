"""Constraint rows of scenes of several kinematic trees, and of long chains: no Jacobian is stored of contacts.

A row of a contact asks how fast two bodies move relative to each other where they touch. So `J x` is the velocities of
bodies under x, seen from there, and `J' f` what forces on bodies do to dofs: both cost what the bodies and the contacts
that there are cost, not what all rows times all dofs would.
"""

import functools

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint import held_edges
from mjtorch.constraint.contact import along_rows
from mjtorch.constraint.equality import equality
from mjtorch.constraint.held_edges import HeldEdges
from mjtorch.constraint.limit import ball_limits, nearer, tendon_limit
from mjtorch.math.vector import cross
from mjtorch.model import Data, Model
from mjtorch.model.plan.bodies import BodiesPlan
from mjtorch.model.plan.solver import RowsPlan
from mjtorch.model.touching import colliders
from mjtorch.smooth.carried import carried

# Of a symmetric matrix (3, 3) that half which is stored.
UPPER = [0, 1, 2, 4, 5, 8]


@tree.dataclass(kw_only=True)
class Contacts(tree.Tree):
    """The rows of contacts, w for each slot, each of k bodies: those of both geoms, or of all corners of elements.

    row: (ncon, w) their numbers among the rows of contacts; as many as there are rows: none
    place: (nc,) where each row lies in these, flattened
    there: (ncon,) bool, which are active
    share: one (k, ncon), how far each body moves contacts, less than nothing on the first side; none: -1 and 1
    body, tree: (k, ncon) the bodies, and their kinematic trees, -1: none
    moves: (k, ncon) bool, which of them are of active contacts, and of a tree, and have a share
    arm: one (k, ncon, 3) [m] from the centre of mass that the motion of each body is about to the contact; none where
        nothing turns: then motions, forces and wrenches have three columns, not six
    direction: (ncon, w, 3) along which each row pushes the second body away from the first; if rows turn bodies, too,
        (ncon, w, 6), the axis first
    """

    row: Tensor
    place: Tensor
    there: Tensor
    share: tuple[Tensor, ...]
    body: Tensor
    tree: Tensor
    moves: Tensor
    arm: tuple[Tensor, ...]
    direction: Tensor

    def velocity(self, motion: Tensor) -> Tensor:
        """How fast (nc,) contacts move along the rows, if bodies move by `motion` (nbody, 3 or 6)."""
        along = (self.direction * self.relative(motion)[:, None]).sum(-1)
        return torch.where(self.there[:, None], along, 0.0).flatten()[self.place]

    def relative(self, motion: Tensor) -> Tensor:
        """How fast (ncon, 3 or 6) the second sides of contacts move relative to the first; how they turn first."""
        moved = [self.moved(motion, k) for k in range(len(self.body))]
        if self.share:
            weighted = (part[:, None] * x for part, x in zip(self.share[0], moved, strict=True))
            relative = functools.reduce(torch.add, weighted)
        else:
            relative = moved[1] - moved[0]
        return torch.where(self.there[:, None], relative, 0.0)

    def moved(self, motion: Tensor, k: int) -> Tensor:
        """How fast (ncon, 3 or 6) one of the bodies moves where it touches; how it turns first, if needed."""
        if not self.arm:
            # What no dof moves has no motion; so all corners of an element are looked up under one condition.
            found = motion[self.body[k]]
            return found if self.share else torch.where(self.moves[k][:, None], found, 0.0)
        angular, linear = torch.where(self.there[:, None], motion[self.body[k]], 0.0).split(3, dim=-1)
        linear = linear + cross(angular, self.arm[0][k])
        return linear if self.direction.shape[-1] == 3 else torch.cat([angular, linear], dim=-1)

    def force(self, x: Tensor, nbody: int) -> Tensor:
        """Spatial forces (nbody, 3 or 6) on bodies of forces x (nc,) along the rows."""
        share = self.by_slot(x)[..., None] * self.direction
        return self.spread(share.sum(1), nbody)

    def spread(self, total: Tensor, nbody: int) -> Tensor:
        """Spatial forces (nbody, 3 or 6) on bodies of forces (ncon, 3 or 6) on the second sides of contacts."""
        force = total.new_zeros(nbody, 6 if self.arm else 3)
        for share in self.share:
            # Contact by contact, so that of those that are not there nothing is looked up.
            push = share.mT[..., None] * total[:, None]
            given = linear = push[..., -3:]
            for arm in self.arm:
                angular = cross(arm.movedim(0, 1), linear)
                angular = angular if push.shape[-1] == 3 else angular + push[..., :3]
                given = torch.cat([angular, linear], dim=-1)
            given = torch.where(self.moves.mT.flatten()[:, None], given.flatten(0, 1), 0.0)
            return force.index_add(0, self.body.mT.flatten(), given)
        total = torch.where(self.there[:, None], total, 0.0)
        for k, push in enumerate((-total, total)):
            given = linear = push[:, -3:]
            for arm in self.arm:
                angular = cross(arm[k], linear)
                angular = angular if push.shape[-1] == 3 else angular + push[:, :3]
                given = torch.cat([angular, linear], dim=-1)
            force = force.index_add(0, self.body[k], torch.where(self.moves[k][:, None], given, 0.0))
        return force

    def squares(self, motion: Tensor) -> Tensor:
        """What the squares of the first row of each make (ncon,) of numbers of dofs.

        motion: (nbody, k, k) the sum of `x axis axis'` over the dofs that move each body, x a number of each
        """
        sides = torch.arange(-1, 2, 2, dtype=motion.dtype, device=motion.device)[:, None]
        share = torch.where(self.moves, self.share[0] if self.share else sides, 0.0)
        # A body may be there twice.
        same = self.body[:, None] == self.body
        weight = share * torch.where(same, share, 0.0).sum(1)
        first = self.row == self.row.amin(1, keepdim=True)
        wrench = torch.where(first[..., None], self.direction, 0.0).sum(1).expand(len(share), -1, -1)
        for arm in self.arm:
            linear = wrench[..., -3:]
            angular = cross(arm, linear)
            angular = angular if wrench.shape[-1] == 3 else angular + wrench[..., :3]
            wrench = torch.cat([angular, linear], dim=-1)
        along = (torch.where(self.moves[..., None, None], motion[self.body], 0.0) * wrench[..., None, :]).sum(-1)
        return (weight * (along * wrench).sum(-1)).sum(0)

    def springs(self, weight: Tensor) -> Tensor:
        """The forces (ncon, k, k) on the second sides of contacts that move, k being 3 or 6; weight: (nc,) of rows."""
        w = self.by_slot(weight)[..., None, None]
        spring = (w * self.direction[..., :, None] * self.direction[..., None, :]).sum(1)
        return torch.where(self.there[:, None, None], spring, 0.0)

    def turned(self, mix: Tensor) -> "Contacts":
        """With rows that are sums of these, `mix (ncon, w, w)` times them."""
        return self.replace(direction=torch.where(self.there[:, None, None], mix @ self.direction, 0.0))

    def by_slot(self, x: Tensor) -> Tensor:
        """Those of x (nc,) that belong to the rows of each slot (ncon, w), zero where it has none."""
        return torch.cat([x, x.new_zeros(1)])[self.row]

    def at(self, slot: Tensor) -> "Contacts":
        """Those in the slots `slot` (...): fields have its axes for that of the contacts."""
        return self.replace(
            there=self.there[slot],
            share=tuple(x[:, slot] for x in self.share),
            body=self.body[:, slot],
            tree=self.tree[:, slot],
            moves=self.moves[:, slot],
            arm=tuple(x[:, slot] for x in self.arm),
            direction=self.direction[slot],
        )

    def wrench(self) -> Tensor:
        """(k, ncon, w, 3 or 6) what each row does to the bodies, about the point that the motion of each is about.

        Of two bodies signs are left out.
        """
        wrench = self.direction[..., -3:].expand(len(self.body), *self.direction.shape[:-1], 3)
        for arm in self.arm:
            angular = cross(arm[..., None, :], wrench)
            angular = angular if self.direction.shape[-1] == 3 else angular + self.direction[..., :3]
            wrench = torch.cat([angular, wrench], dim=-1)
        return self.share[0][..., None, None] * wrench if self.share else wrench


@tree.dataclass(kw_only=True)
class Springs(tree.Tree):
    """`J' diag(weight) J` (nv, nv) of `BodyRows`, in parts that are multiplied by quickly.

    diagonal: (nv,) of the rows of one dof; fixed: (nfixed,), held: (n,) the weights of others and of edges
    contacts: (ncon, k, k) those of contacts, if there are some
    """

    diagonal: Tensor
    fixed: Tensor
    held: Tensor
    contacts: tuple[Tensor, ...]


@tree.dataclass(kw_only=True)
class BodyRows(tree.Tree):
    """J (nefc, nv), of which those rows that have several dofs and are no contact's are stored.

    plan: which rows have one dof; bodies: how contacts touch bodies
    single: (nsingle,) these, fixed: (nfixed, w) others that are no contact's and no edge's, at the dofs
        `bodies.fixed_dof`; zero where they are not active
    edges: one `HeldEdges`, if there are rows of edges of flexes
    contacts: one `Contacts`, if there are rows of contacts
    axis: (nv, 6) how each dof moves what it moves, `cdof`; (nv, 3), its linear part, where nothing turns
    body_dof: (nbody, nv), dof_body: (nv,), subtree: (nbody, nbody), as in the plan
    """

    plan: RowsPlan
    bodies: BodiesPlan
    single: Tensor
    fixed: Tensor
    edges: tuple[HeldEdges, ...]
    contacts: tuple[Contacts, ...]
    axis: Tensor
    body_dof: Tensor
    dof_body: Tensor
    subtree: Tensor

    def times(self, x: Tensor) -> Tensor:
        """`J x` (nefc,), of x (nv,)."""
        parts = [self.fixed_times(x)] if self.fixed.shape[0] else []
        parts += [e.times(x) for e in self.edges]
        parts += [c.velocity(self.motion(x)) for c in self.contacts]
        return torch.cat([*parts, self.single * x[self.plan.dof]])[self.plan.source]

    def squares_times(self, x: Tensor) -> Tensor:
        """`(J * J) x` (nefc,), of x (nv,); all rows of a contact have that of the first.

        Where no dof moves more than one body.
        """
        parts = [self.replace(fixed=self.fixed.square()).fixed_times(x)] if self.fixed.shape[0] else []
        parts += [e.squares_times(x) for e in self.edges]
        for c in self.contacts:
            outer = x[:, None, None] * self.axis[:, :, None] * self.axis[:, None]
            motion = outer.new_zeros(len(self.body_dof), *outer.shape[1:]).index_add(0, self.dof_body, outer)
            parts.append(c.squares(motion)[:, None].expand(c.row.shape).flatten()[c.place])
        return torch.cat([*parts, self.single * self.single * x[self.plan.dof]])[self.plan.source]

    def touched(self) -> Tensor:
        """Which dofs (nv,) bool rows touch that are active; those of contacts touch all dofs of a body."""
        there = self.replace(fixed=(self.fixed != 0).to(self.axis.dtype))
        none, each = torch.zeros_like(self.axis[:, 0]), self.fixed.new_ones(len(self.fixed))
        found = there.add_fixed_transpose_times(none, each) > 0
        found = found | ((self.single != 0).to(self.axis.dtype) @ self.plan.column > 0)
        for e in self.edges:
            found = found | (torch.zeros_like(self.axis[:, 0]).index_put((e.plan.dof,), e.J.abs(), accumulate=True) > 0)
        for c in self.contacts:
            force = torch.zeros_like(self.body_dof[:, 0])
            found = found | (force.index_add(0, c.body.flatten(), c.moves.flatten().to(force.dtype)) > 0)[self.dof_body]
        return found

    def transpose_times(self, x: Tensor) -> Tensor:
        """`J' x` (nv,), of x (nefc,)."""
        single, fixed, held, touching = self.split(x)
        total = (self.single * single) @ self.plan.column
        if self.fixed.shape[0]:
            total = self.add_fixed_transpose_times(total, fixed)
        for e in self.edges:
            total = e.add_transpose_times(total, held)
        for c in self.contacts:
            total = total + self.pushed(c.force(touching, len(self.body_dof)))
        return total

    def pushed(self, force: Tensor) -> Tensor:
        """What spatial forces (nbody, 3 or 6) on bodies do to dofs (nv,)."""
        if self.bodies.hops:
            for hop in self.bodies.hops:
                force = force.index_add(0, hop, force)
        elif not self.bodies.leaves:
            force = self.subtree @ force
        return (self.axis * force[self.dof_body]).sum(-1)

    def turned(self, mix: Tensor) -> "BodyRows":
        """With rows of contacts that are sums of these, `mix (ncon, w, w)` times those of each."""
        return self.replace(contacts=tuple(c.turned(mix) for c in self.contacts))

    def motion(self, x: Tensor) -> Tensor:
        """How bodies move (nbody, 3 or 6) if dofs do, by x (nv,)."""
        p = self.bodies
        if p.leaves and not p.hops:
            return (self.axis[p.own_dof] * (p.has_dof * x[p.own_dof])[..., None]).sum(1)
        x = self.axis * x[:, None]
        if not p.hops:
            return self.body_dof @ x
        motion = x.new_zeros(len(self.body_dof), x.shape[1]).index_add(0, self.dof_body, x)
        for hop in self.bodies.hops:
            motion = motion + motion[hop]
        return motion

    def diagonal(self, weight: Tensor) -> Tensor:
        """What rows of one dof, of weights (nsingle,), add to the diagonal (nv,) of the second derivative."""
        return (self.single * self.single * weight) @ self.plan.column

    def springs(self, weight: Tensor) -> Springs:
        """What rows do against motion, of weights (nefc,)."""
        single, fixed, held, touching = self.split(weight)
        return Springs(
            diagonal=self.diagonal(single),
            fixed=fixed,
            held=held,
            contacts=tuple(c.springs(touching) for c in self.contacts),
        )

    def springs_times(self, s: Springs, x: Tensor) -> Tensor:
        """`J' diag(weight) J x` (nv,), of x (nv,)."""
        total = s.diagonal * x
        if self.fixed.shape[0]:
            total = self.add_fixed_transpose_times(total, s.fixed * self.fixed_times(x))
        for e in self.edges:
            total = e.add_transpose_times(total, s.held * e.times(x))
        for c, spring in zip(self.contacts, s.contacts, strict=True):
            relative = c.relative(self.motion(x))
            force = (spring * relative[:, None]).sum(-1)
            total = total + self.pushed(c.spread(force, len(self.body_dof)))
        return total

    def stiffness(self, stiff: Tensor, weight: Tensor) -> Tensor:
        """What contacts of bodies with the world add to the second derivative (npair,), at pairs of dofs.

        The rows of a contact are a stiffness of the body; the body of the dof further down carries those of all that it
        carries, and a dof moves with `axis`: as in `crb`.

        stiff: (k, ncon) bool, which bodies, weight: (nc,) of the rows
        """
        p = self.bodies
        if not self.contacts:
            return self.axis.new_zeros(len(p.row))
        carried = self.springs_of_bodies(stiff, weight)
        if not p.leaves:
            carried = self.subtree @ carried
        matrix = carried[self.dof_body][:, p.symmetric].unflatten(1, (-1, self.axis.shape[1]))
        push = (matrix * self.axis[:, None]).sum(-1)
        return (push[p.row] * self.axis[p.col]).sum(-1)

    def springs_of_bodies(self, stiff: Tensor, weight: Tensor) -> Tensor:
        """The stiffness of each body (nbody, 21), as `halves` (6, 6), or (nbody, 6) of one of (3, 3).

        stiff, weight: as for `stiffness`, if there are contacts
        """
        (c,) = self.contacts
        spring = c.springs(weight)
        # Contact by contact: first all first bodies, then all second ones, took longer.
        each = spring[:, None].expand(-1, len(c.body), -1, -1).flatten(0, 1)
        own = halves(each, tuple(arm.movedim(0, 1).flatten(0, 1) for arm in c.arm))
        for share in c.share:
            own = share.mT.flatten()[:, None].square() * own
        found = own.new_zeros(len(self.subtree), own.shape[1])
        return found.index_add(0, c.body.mT.flatten(), torch.where(stiff.mT.flatten()[:, None], own, 0.0))

    def fixed_times(self, x: Tensor) -> Tensor:
        """What `fixed` makes (nfixed,) of x (nv,)."""
        if self.fixed.shape[1] == len(self.axis):
            return self.fixed @ x
        return (self.fixed * x[self.bodies.fixed_dof]).sum(-1)

    def add_fixed_transpose_times(self, total: Tensor, x: Tensor) -> Tensor:
        """`total` (nv,) and what the transpose of `fixed` makes of x (nfixed,)."""
        if self.fixed.shape[1] == len(self.axis):
            return total + x @ self.fixed
        return total.index_add(0, self.bodies.fixed_dof.flatten(), (x[:, None] * self.fixed).flatten())

    def dense_fixed(self) -> Tensor:
        """`fixed`, of all dofs (nfixed, nv)."""
        if self.fixed.shape[1] == len(self.axis):
            return self.fixed
        return self.fixed.new_zeros(len(self.fixed), len(self.axis)).scatter_add(1, self.bodies.fixed_dof, self.fixed)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Those of x (nefc,) that belong to `single`, to `fixed`, to `edges` and to contacts."""
        ordered = x if self.plan.in_order else x[self.plan.order]
        counts = [self.plan.nsingle, self.fixed.shape[0], sum(len(e.entry) for e in self.bodies.edges)]
        single, fixed, held, touching = ordered.split([*counts, len(x) - sum(counts)])
        return single, fixed, held, touching

    def dense(self) -> Tensor:
        """J (nefc, nv)."""
        parts = [self.dense_fixed()]
        parts += [e.dense(len(self.axis)) for e in self.edges]
        parts += [self.of(c).flatten(0, 1)[c.place] for c in self.contacts]
        return torch.cat([*parts, self.single[:, None] * self.plan.column])[self.plan.source]

    def of(self, c: Contacts) -> Tensor:
        """The rows (ncon, w, nv) of contacts, zero where these are not there.

        What moves both bodies moves neither relative to the other.
        """
        p, there = self.bodies, c.there[:, None, None]
        body = c.body[..., None]
        moves = ((body >= p.first) & (body < p.last)).to(self.axis.dtype)
        moved = (torch.where(there, c.wrench(), 0.0) @ self.axis.mT) * moves[:, :, None]
        return torch.where(there, moved.sum(0) if c.share else moved[1] - moved[0], 0.0)


def halves(spring: Tensor, arm: tuple[Tensor, ...]) -> Tensor:
    """Stiffnesses (n, 3, 3) of points, or (n, 6, 6) of bodies there, about points from which these are `arm (n, 3)`.

    They are symmetric, and what is stored (n, 21) of them is half of the angular part, the part of linear rows and
    angular columns, and half of the linear part; without `arm` the last (n, 6) alone.
    """
    linear = spring[:, -3:, -3:]
    if not arm:
        return linear.flatten(1)[:, UPPER]
    about = arm[0][:, None]
    across = cross(about, linear)
    if spring.shape[-1] == 3:
        angular = cross(about, across.mT)
    else:
        across = across + spring[:, 3:, :3]
        angular = (spring[:, :3, :3] + cross(about, spring[:, :3, 3:])).mT + cross(about, across.mT)
    return torch.cat([angular.flatten(1)[:, UPPER], across.flatten(1), linear.flatten(1)[:, UPPER]], dim=1)


def build(m: Model, d: Data) -> BodyRows:
    """The rows at the positions and contacts of `d`, of a model that has a plan for them: `m.plan.solver.bodies`."""
    (plan,), active = m.plan.solver.bodies, d.efc_D != 0
    rows = BodyRows(
        plan=m.plan.solver.rows,
        bodies=plan,
        single=single_rows(m, d),
        fixed=fixed_rows(m, d),
        edges=(),
        contacts=(),
        axis=d.cdof if plan.turning else d.cdof[:, 3:],
        body_dof=m.plan.kinematics.body_dof,
        dof_body=m.plan.kinematics.dof_body,
        subtree=m.plan.kinematics.subtree,
    )
    single, fixed, held, touching = rows.split(active)
    return rows.replace(
        single=torch.where(single, rows.single, 0.0),
        fixed=torch.where(fixed[:, None], rows.fixed, 0.0),
        edges=tuple(held_edges.build(e, d, held) for e in plan.edges),
        contacts=(contacts(m, d, touching),) if m.plan.constraint.nc else (),
    )


def contacts(m: Model, d: Data, active: Tensor) -> Contacts:
    """The contacts of which rows are active (nc,)."""
    p, (plan,) = m.plan.constraint.contact, m.plan.solver.bodies
    slots = len(p.row)
    frame, pos = d.contact.frame[:slots], d.contact.pos[:slots]
    share: tuple[Tensor, ...] = ()
    if m.plan.collision.corner.shape[0]:
        geom, part = carried(m, d)
        share = (part[:slots].mT.contiguous(),)
    else:
        geom = colliders(m, d)
    # PyTorch's fake tensors forget which axis of what is picked is the innermost.
    geom = geom[:slots].mT.contiguous()
    body, tree = p.geom_body[geom], plan.geom_tree[geom]
    # The first row says of all whether they are there.
    there = torch.cat([active, torch.zeros_like(active[:1])])[p.row.amin(1)]
    if p.max_dim > 3:
        frame = torch.cat([torch.nn.functional.pad(frame, (3, 0)), torch.nn.functional.pad(frame, (0, 3))], dim=1)
    along = along_rows(m, d, frame.flatten(0, 1))
    direction = torch.cat([along, torch.zeros_like(along[:1])])[p.row]
    moves = there & (tree >= 0)
    for part in share:
        moves = moves & (part != 0)
    return Contacts(
        row=p.row,
        place=p.place,
        there=there,
        share=share,
        body=body,
        tree=tree,
        moves=moves,
        arm=(pos - d.subtree_com[m.plan.kinematics.body_root[body]],) if plan.turning else (),
        direction=torch.where(there[:, None, None], direction, 0.0),
    )


def single_rows(m: Model, d: Data) -> Tensor:
    """The rows of one dof (nsingle,): 1 for friction, the side of limits."""
    p, limit = m.plan.constraint, m.plan.constraint.limit
    rubs = torch.ones_like(d.qvel[p.friction_dof])
    if not limit.nscalar:
        return rubs
    return torch.cat([rubs, nearer(limit, d.qpos[limit.qpos], m.jnt_range[limit.scalar_joint])[1]])


def fixed_rows(m: Model, d: Data) -> Tensor:
    """`BodyRows.fixed`, active or not: the rows of equalities, tendons, and limits of balls."""
    p, (plan,) = m.plan.constraint, m.plan.solver.bodies
    parts = [d.qvel.new_zeros(0, m.nv)]
    if p.ne > p.equality.nedge:
        J = equality(m, d)[1]
        parts.append(J[plan.edges[0].others] if plan.edges else J)
    if p.tendon.friction.shape[0]:
        parts.append(d.ten_J[p.tendon.friction])
    if p.limit.nball:
        parts.append(ball_limits(m, d)[1])
    if p.tendon.limit.shape[0]:
        parts.append(tendon_limit(m, d)[1])
    rows = torch.cat(parts)
    return rows if plan.fixed_dof.shape[1] == m.nv else rows.gather(1, plan.fixed_dof)
