"""Index plan of the constraint room: which rows there are, and where each finds its numbers.

Rows come in C's order. An *element* is a group of rows that share one reference and one impedance: a connect, the
translation or the rotation of a weld, a joint equality, a frictional dof, a limit, a contact. Under the elliptic cone a
frictional contact is two elements, its normal and its friction, since `solreffriction` applies to the latter.
"""

import mujoco
import numpy as np
from mujoco import mjtConstraint, mjtDisableBit, mjtEq, mjtJoint
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import grid_contacts, passive_contact, rigid, rod_contacts
from mjtorch.model.plan.colliders import carriers, collider_body, element_flex
from mjtorch.model.plan.collision import CollisionPlan
from mjtorch.model.plan.flex import equality_edges
from mjtorch.model.plan.flex_grid import strain_rows
from mjtorch.model.plan.geom_pairs import GeomPairs, rank
from mjtorch.model.plan.grid_contacts import GridContactsPlan
from mjtorch.model.plan.passive_contact import PassiveContactPlan
from mjtorch.model.plan.rod_contacts import RodContactsPlan
from mjtorch.model.plan.tendon import moving_tendons
from mjtorch.model.plan.tensors import Tensors


@tree.dataclass(kw_only=True)
class EqualityPlan(tree.Tree):
    """Equality rows, computed family by family: body pairs (nconnect connects, then nweld welds), then scalar pairs.

    A scalar pair is two joints or two tendons, or one of them alone: njoint pairs of joints, then ntendon of tendons.
    Last come nedge edges of flexes, then nmode ways in which cells of flexes must not deform.

    nconnect, nweld, njoint, ntendon, nedge, nmode: static counts
    has_site: static, whether a body pair is given by sites
    id: (nelement,) equality of each element: body pairs, rotations of welds, scalar pairs, edges, modes
    row_id: (ne,) equality of each row
    order: (ne,) where each row lies in [translations, rotations, scalar pairs, edges, modes]; in_order: static, 0, 1...
    row: (ne,) the row of each of these
    body: (2, nconnect + nweld) bodies of each body pair
    by_site: (nconnect + nweld, 1) bool, site: (2, nconnect + nweld) its sites, 0 if it has none
    sign: (2, nconnect + nweld, 1, nv) +1 where a dof moves the first body, -1 where it moves the second
    dof: (2, njoint) dofs of each joint pair, qpos: (2, njoint) their addresses; of the first joint if it is alone
    column: (2, njoint, nv) one-hot, the dof of each joint; zero for a joint that is not there
    tendon: (2, ntendon) tendons of each tendon pair; twice the same if one is alone
    tendon_there: (2, ntendon, 1) 0 for a tendon that is not there
    paired: (njoint + ntendon,) 0 where a joint or tendon is alone
    edge: (nedge,) edges that keep their lengths
    entry: (n,) what lies in their rows of `flexedge_J`; place: (n,) where it lies in the dense (nedge, nv), flattened
    """

    nconnect: int = tree.field(static=True)
    nweld: int = tree.field(static=True)
    njoint: int = tree.field(static=True)
    ntendon: int = tree.field(static=True)
    nedge: int = tree.field(static=True)
    nmode: int = tree.field(static=True)
    has_site: bool = tree.field(static=True)
    in_order: bool = tree.field(static=True)
    id: Tensor
    row_id: Tensor
    order: Tensor
    row: Tensor
    body: Tensor
    by_site: Tensor
    site: Tensor
    sign: Tensor
    dof: Tensor
    qpos: Tensor
    column: Tensor
    tendon: Tensor
    tendon_there: Tensor
    paired: Tensor
    edge: Tensor
    entry: Tensor
    place: Tensor


@tree.dataclass(kw_only=True)
class LimitPlan(tree.Tree):
    """Limit rows, computed family by family: hinges and slides, then balls.

    A hinge or slide has one row, for the nearer of its two limits, if only one of them can be active at a time: its
    range is wider than both margins. Otherwise it has two, lower then upper.

    nscalar, nball: static counts of rows
    joint: (nl,) joint of each row, dof: (nl,) its first dof
    order: (nl,) where each row lies in [scalars, balls]; in_order: static, order is 0, 1, 2...
    scalar_joint: (nscalar,), ball_joint: (nball,); qpos: (nscalar,), ball_qpos: (nball, 4) their addresses
    column: (nscalar, nv) one-hot, ball_column: (nball, 3, nv) one-hot
    has_pair: static, whether a joint has two rows
    fixed_side, lower_side: (nscalar,) bool: the row belongs to one side, and that is the lower one
    """

    nscalar: int = tree.field(static=True)
    nball: int = tree.field(static=True)
    in_order: bool = tree.field(static=True)
    has_pair: bool = tree.field(static=True)
    joint: Tensor
    dof: Tensor
    order: Tensor
    scalar_joint: Tensor
    ball_joint: Tensor
    qpos: Tensor
    ball_qpos: Tensor
    column: Tensor
    ball_column: Tensor
    fixed_side: Tensor
    lower_side: Tensor


@tree.dataclass(kw_only=True)
class TendonRowsPlan(tree.Tree):
    """Rows of tendons with friction loss, and rows of limited tendons: one or two each, as for a hinge or slide.

    friction: (nfriction,) tendons with friction loss; limit: (nlimit,) tendon of each limit row
    has_pair: static, whether a tendon has two limit rows
    fixed_side, lower_side: (nlimit,) bool, as in `LimitPlan`
    """

    has_pair: bool = tree.field(static=True)
    friction: Tensor
    limit: Tensor
    fixed_side: Tensor
    lower_side: Tensor


@tree.dataclass(kw_only=True)
class ContactPlan(tree.Tree):
    """Contact rows: `J = (a_n + mu a_t) . motion`, where `a` are the directions of a contact's frame.

    Directions are numbered 6 per contact: normal, tangents, spin, rolls; without the last 3 if `max_dim` is under 4.

    max_dim: static, the largest `dim` of a slot
    slot: (nrow,) contact slot of each row
    direction: (nrow,) the direction of the row (elliptic) or the normal (pyramidal)
    edge: (nrow,) pyramidal: the direction added, edge_mu: (nrow,) where its coefficient lies in `friction`,
    edge_sign: (nrow,) +1, -1, or 0 for a frictionless contact
    scale: (nrow,) where the factor of each row's R lies in a table (ncon, 2 if pyramidal, 6 if elliptic)
    first: (nrow,) the first row of the row's contact, counted from the first contact row
    slot_rows: (ncon, w) the rows of each slot, counted likewise; `nrow` stands for none. Pyramidal: the column of a
        frictionless normal, then a pair of edges for each direction of friction; elliptic: force, then torque
    row: (ncon, w) the same, without columns that no slot has; place: (nrow,) where each row lies in it, flattened
    normal_share: (nrow,) how much of a contact's normal a row is: 1 or 0, of pyramids an equal part
    frictional: (nfriction,) elliptic: slots with dim > 1; has_edges: (ncon,) pyramidal: 1 for slots with dim > 1
    geom_body: (ncollider,); carrier: (n,) of what carries contacts, geoms, vertices and nodes if elements of grids may
        touch something: the same if the same dofs move them as far
    geom_dof: (n, nv) how far dofs move these: 0 or 1, and of vertices that lie between nodes a share
    node_body, node_share: (n, w) the bodies of these nodes, and their shares; (n, 0) without such
    grids: between which nodes elements are touched, if those of grids may be; rods: which edges, if rods may be
    passive: which contacts are passive forces, if any are
    rank: where C lists the contacts of two colliders, as `geom_pairs.rank`; (0, 0) if the slots lie in C's order
    has_rigid: static, whether geoms that no dof moves relative to each other are tested for contact
    """

    max_dim: int = tree.field(static=True)
    has_rigid: bool = tree.field(static=True)
    slot: Tensor
    direction: Tensor
    edge: Tensor
    edge_mu: Tensor
    edge_sign: Tensor
    scale: Tensor
    first: Tensor
    slot_rows: Tensor
    row: Tensor
    place: Tensor
    normal_share: Tensor
    frictional: Tensor
    has_edges: Tensor
    geom_body: Tensor
    geom_dof: Tensor
    carrier: Tensor
    node_body: Tensor
    node_share: Tensor
    grids: tuple[GridContactsPlan, ...]
    rods: tuple[RodContactsPlan, ...]
    passive: tuple[PassiveContactPlan, ...]
    rank: Tensor


@tree.dataclass(kw_only=True)
class ConstraintPlan(tree.Tree):
    """The constraint rows: equality, friction, limit, contact, as in C.

    Rows of features that are disabled when the model is put are left out: enabling one needs another `put_model`.

    efc_type: static, mjtConstraint of each row
    efc_id: static, the equality, dof, tendon, joint or contact slot that each row belongs to
    ne, nf, nl, nc: static, number of equality, friction, limit and contact rows
    all_spring: static, whether `spring` is 1 everywhere
    has_rigid_row: static, whether there is a row that may be rigid to C: see `rigid.py`
    root: static, the root of the only kinematic tree that moves, -1 if there are several
    element: (nefc,) element of each row, in [equality, friction, limit, contact, friction of elliptic contacts]
    spring: (nelement,) 0 for elements without position: frictional dofs, tendons, friction of elliptic contacts
    eq_active0: (neq,) bool
    friction_dof: (nf,) dofs, friction_column: (nf, nv) one-hot
    rigid: (ncollider,) bool, the geoms of which contacts may be
    """

    efc_type: tuple[int, ...] = tree.field(static=True)
    efc_id: tuple[int, ...] = tree.field(static=True)
    ne: int = tree.field(static=True)
    nf: int = tree.field(static=True)
    nl: int = tree.field(static=True)
    nc: int = tree.field(static=True)
    all_spring: bool = tree.field(static=True)
    has_rigid_row: bool = tree.field(static=True)
    root: int = tree.field(static=True)
    element: Tensor
    spring: Tensor
    eq_active0: Tensor
    friction_dof: Tensor
    friction_column: Tensor
    rigid: Tensor
    equality: EqualityPlan
    limit: LimitPlan
    tendon: TendonRowsPlan
    contact: ContactPlan

    @property
    def nefc(self) -> int:
        """Number of rows."""
        return len(self.efc_type)


class _Builder:
    """Structure of one model in numpy, and what makes tensors of it."""

    def __init__(self, mj_model: mujoco.MjModel, make: Tensors) -> None:
        self.m, self.make = mj_model, make
        m = mj_model
        self.body_dof = np.zeros((m.nbody, m.nv))
        for b in range(1, m.nbody):
            self.body_dof[b] = self.body_dof[m.body_parentid[b]]
            self.body_dof[b, m.body_dofadr[b] : m.body_dofadr[b] + m.body_dofnum[b]] = 1
        self.column = np.eye(m.nv)

    def enabled(self, flag: mjtDisableBit) -> bool:
        return not self.m.opt.disableflags & (int(flag) | int(mjtDisableBit.mjDSBL_CONSTRAINT))


def build(mj_model: mujoco.MjModel, make: Tensors, collision: CollisionPlan, tried: GeomPairs) -> ConstraintPlan:
    """The plan for `mj_model`, whose contacts lie in the slots of `collision`; tried: its `tried_pairs`."""
    b, m = _Builder(mj_model, make), mj_model
    has_friction = b.enabled(mjtDisableBit.mjDSBL_FRICTIONLOSS)
    frictional = np.flatnonzero(m.dof_frictionloss > 0).tolist() if has_friction else []
    dims = collision.contact_dim if b.enabled(mjtDisableBit.mjDSBL_CONTACT) and m.nv else ()
    equality, eq_element, eq_id = _equality(b)
    limit, limit_id = _limit(b)
    tendon = _tendon(b)
    tendon_friction, tendon_limit = tendon.friction.tolist(), tendon.limit.tolist()
    contact, contact_element, contact_type = _contact(b, dims, tried)
    ne, nc = len(eq_id), len(contact_type)
    nf, nl = len(frictional) + len(tendon_friction), len(limit_id) + len(tendon_limit)

    rigid_geom = rigid.geoms(m)
    before = len(equality.id) + nf + nl
    nelement = before + len(dims) + len(contact.frictional)
    spring = np.ones(nelement)
    spring[len(equality.id) : len(equality.id) + nf] = 0
    spring[before + len(dims) :] = 0
    roots = {int(m.body_rootid[body]) for body in m.dof_bodyid}
    types = [mjtConstraint.mjCNSTR_EQUALITY] * ne + [mjtConstraint.mjCNSTR_FRICTION_DOF] * len(frictional)
    types += [mjtConstraint.mjCNSTR_FRICTION_TENDON] * len(tendon_friction)
    types += [mjtConstraint.mjCNSTR_LIMIT_JOINT] * len(limit_id)
    types += [mjtConstraint.mjCNSTR_LIMIT_TENDON] * len(tendon_limit) + contact_type
    ids = [*eq_id, *frictional, *tendon_friction, *limit_id, *tendon_limit, *contact.slot.tolist()]
    return ConstraintPlan(
        efc_type=tuple(int(t) for t in types),
        efc_id=tuple(int(i) for i in ids),
        ne=ne,
        nf=nf,
        nl=nl,
        nc=nc,
        all_spring=bool(spring.all()),
        has_rigid_row=bool(rigid_geom.any()) or rigid.has_equality(m),
        rigid=b.make.bools(np.pad(rigid_geom, (0, len(collider_body(m)) - m.ngeom))),
        root=roots.pop() if len(roots) == 1 else -1,
        element=b.make.ints([*eq_element, *range(len(equality.id), before), *(before + e for e in contact_element)]),
        spring=b.make.floats(spring, nelement),
        eq_active0=b.make.bools(m.eq_active0),
        friction_dof=b.make.ints(frictional),
        friction_column=b.make.floats(b.column[frictional], len(frictional), m.nv),
        equality=equality,
        limit=limit,
        tendon=tendon,
        contact=contact,
    )


def _equality(b: _Builder) -> tuple[EqualityPlan, list[int], list[int]]:
    """The plan, the element of each row and the equality of each row. Equalities that no dof can move have no rows."""
    m = b.m
    scalar = (int(mjtEq.mjEQ_JOINT), int(mjtEq.mjEQ_TENDON))
    kinds = (int(mjtEq.mjEQ_CONNECT), int(mjtEq.mjEQ_WELD), *scalar, int(mjtEq.mjEQ_FLEX))
    found: dict[int, list[int]] = {k: [] for k in kinds}
    body, site = np.zeros((2, m.neq), dtype=int), np.zeros((2, m.neq), dtype=int)
    by_site = m.eq_objtype == mujoco.mjtObj.mjOBJ_SITE
    for i in range(m.neq if b.enabled(mjtDisableBit.mjDSBL_EQUALITY) else 0):
        objects = np.array([m.eq_obj1id[i], m.eq_obj2id[i]])
        if m.eq_type[i] in scalar:
            if m.eq_type[i] == mjtEq.mjEQ_JOINT or moving_tendons(m)[objects[objects >= 0]].any():
                found[int(m.eq_type[i])].append(i)
        elif m.eq_type[i] == mjtEq.mjEQ_FLEX:
            found[int(m.eq_type[i])].append(i)
        elif m.eq_type[i] in found:
            site[:, i] = objects if by_site[i] else 0
            body[:, i] = m.site_bodyid[objects] if by_site[i] else objects
            if b.body_dof[body[:, i]].any():
                found[int(m.eq_type[i])].append(i)
    connect, weld, joint, tendon, flex = found.values()
    held = [(i, int(e)) for i in flex for e in equality_edges(m, i)]
    pairs = connect + weld
    kw, kj, kt, kp = len(weld), len(joint), len(tendon), len(pairs)

    # (equality, component, element) of each row, in the order of computation
    rows = [(i, c, e) for e, i in enumerate(pairs) for c in range(3)]
    rows += [(i, 3 + c, kp + e) for e, i in enumerate(weld) for c in range(3)]
    rows += [(i, 0, kp + kw + e) for e, i in enumerate(joint + tendon)]
    rows += [(i, e, kp + kw + kj + kt + k) for k, (i, e) in enumerate(held)]
    modes = strain_rows(m) if b.enabled(mjtDisableBit.mjDSBL_EQUALITY) else []
    rows += [(i, k, kp + kw + kj + kt + len(held) + e) for e, (i, k) in enumerate(modes)]
    order = sorted(range(len(rows)), key=lambda r: rows[r][:2])

    first = np.array([m.eq_obj1id[i] for i in joint + tendon], dtype=int)
    second = np.array([m.eq_obj2id[i] for i in joint + tendon], dtype=int)
    paired = second >= 0
    there = np.array([np.ones(kj + kt), paired])[..., None]
    joints, tendons = np.split(np.array([first, np.where(paired, second, first)]), [kj], axis=1)
    dofs, masks = m.jnt_dofadr[joints], b.body_dof[body[:, pairs]]
    columns = b.column[dofs] * there[:, :kj]
    edge = np.array([e for _, e in held], dtype=int)
    start, count = m.flexedge_J_rowadr[edge], m.flexedge_J_rownnz[edge]
    entry = np.array([k for first, n in zip(start, count, strict=True) for k in range(first, first + n)], dtype=int)
    plan = EqualityPlan(
        nconnect=len(connect),
        nweld=kw,
        njoint=kj,
        ntendon=kt,
        nedge=len(held),
        nmode=len(modes),
        has_site=bool(by_site[pairs].any()),
        in_order=order == list(range(len(rows))),
        id=b.make.ints(pairs + weld + joint + tendon + [i for i, _ in held + modes]),
        row_id=b.make.ints([rows[r][0] for r in order]),
        order=b.make.ints(order),
        row=b.make.ints(np.argsort(order)),
        body=b.make.ints(body[:, pairs], 2, kp),
        by_site=b.make.bools(by_site[pairs], kp, 1),
        site=b.make.ints(site[:, pairs], 2, kp),
        sign=b.make.floats(masks * np.array([1, -1])[:, None, None], 2, kp, 1, m.nv),
        dof=b.make.ints(dofs, 2, kj),
        qpos=b.make.ints(m.jnt_qposadr[joints], 2, kj),
        column=b.make.floats(columns, 2, kj, m.nv),
        tendon=b.make.ints(tendons, 2, kt),
        tendon_there=b.make.floats(there[:, kj:], 2, kt, 1),
        paired=b.make.floats(paired, kj + kt),
        edge=b.make.ints(edge),
        entry=b.make.ints(entry),
        place=b.make.ints(np.repeat(np.arange(len(held)), count) * m.nv + m.flexedge_J_colind[entry]),
    )
    return plan, [rows[r][2] for r in order], [rows[r][0] for r in order]


def _limit(b: _Builder) -> tuple[LimitPlan, list[int]]:
    """The plan and the joint of each row."""
    m = b.m
    scalar: list[tuple[int, bool, bool]] = []
    ball = []
    for j in np.flatnonzero(m.jnt_limited) if b.enabled(mjtDisableBit.mjDSBL_LIMIT) else []:
        if m.jnt_type[j] == mjtJoint.mjJNT_BALL:
            ball.append(int(j))
        elif m.jnt_type[j] != mjtJoint.mjJNT_FREE:
            scalar += _sides(int(j), m.jnt_range[j], m.jnt_margin[j])
    joint = [j for j, _, _ in scalar] + ball
    order = sorted(range(len(joint)), key=lambda r: joint[r])
    dof = m.jnt_dofadr[joint]
    ns, nb = len(scalar), len(ball)
    ordered = [joint[r] for r in order]
    plan = LimitPlan(
        nscalar=ns,
        nball=nb,
        in_order=order == list(range(len(joint))),
        has_pair=any(fixed for _, fixed, _ in scalar),
        joint=b.make.ints(ordered),
        dof=b.make.ints(m.jnt_dofadr[ordered]),
        order=b.make.ints(order),
        scalar_joint=b.make.ints(joint[:ns]),
        ball_joint=b.make.ints(ball),
        qpos=b.make.ints(m.jnt_qposadr[joint[:ns]]),
        ball_qpos=b.make.ints(m.jnt_qposadr[ball][:, None] + np.arange(4), nb, 4),
        column=b.make.floats(b.column[dof[:ns]], ns, m.nv),
        ball_column=b.make.floats(b.column[dof[ns:, None] + np.arange(3)], nb, 3, m.nv),
        fixed_side=b.make.bools([fixed for _, fixed, _ in scalar]),
        lower_side=b.make.bools([lower for _, _, lower in scalar]),
    )
    return plan, ordered


def _sides(i: int, bounds: np.ndarray, margin: float) -> list[tuple[int, bool, bool]]:
    """For each limit row of the joint or tendon `i`: itself, whether the row is of one side, whether of the lower."""
    wide = bounds[1] - bounds[0] > 2 * margin
    return [(i, False, False)] if wide else [(i, True, True), (i, True, False)]


def _tendon(b: _Builder) -> TendonRowsPlan:
    """Friction and limits of tendons. Tendons that no dof can move have no rows."""
    m = b.m
    moves = moving_tendons(m)
    friction = moves & (m.tendon_frictionloss > 0) & b.enabled(mjtDisableBit.mjDSBL_FRICTIONLOSS)
    limited = moves & m.tendon_limited.astype(bool) & b.enabled(mjtDisableBit.mjDSBL_LIMIT)
    rows = [row for i in np.flatnonzero(limited) for row in _sides(int(i), m.tendon_range[i], m.tendon_margin[i])]
    return TendonRowsPlan(
        has_pair=any(fixed for _, fixed, _ in rows),
        friction=b.make.ints(np.flatnonzero(friction)),
        limit=b.make.ints([i for i, _, _ in rows]),
        fixed_side=b.make.bools([fixed for _, fixed, _ in rows]),
        lower_side=b.make.bools([lower for _, _, lower in rows]),
    )


def _kinds(rows: np.ndarray) -> np.ndarray:
    """(n,) a number for each row, the same for those that are equal; to sort rows of thousands takes seconds."""
    known: dict[bytes, int] = {}
    rows = rows + rows.dtype.type(0)  # -0.0 becomes 0.0, whose bytes are others
    return np.array([known.setdefault(row.tobytes(), len(known)) for row in rows], dtype=int)


def _contact(
    b: _Builder, dims: tuple[int, ...], tried: GeomPairs
) -> tuple[ContactPlan, list[int], list[mjtConstraint]]:
    """The plan, the element of each row (counted from the first contact) and the type of each row."""
    m, pyramidal = b.m, b.m.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    n, per_contact = len(dims), 6 if max(dims, default=0) > 3 else 3
    frictional = [] if pyramidal else [s for s, dim in enumerate(dims) if dim > 1]
    friction_element = {s: n + k for k, s in enumerate(frictional)}
    rows: list[tuple[int, ...]] = []
    types, first, element = [], [], []
    for s, dim in enumerate(dims):
        normal, at = per_contact * s, len(rows)
        if dim == 1:
            rows.append((s, normal, normal, 5 * s, 0, s if pyramidal else 6 * s))
            types.append(mjtConstraint.mjCNSTR_CONTACT_FRICTIONLESS)
        elif pyramidal:
            signed = [(k, sign) for k in range(1, dim) for sign in (1, -1)]
            rows += [(s, normal, normal + k, 5 * s + k - 1, sign, s) for k, sign in signed]
            types += [mjtConstraint.mjCNSTR_CONTACT_PYRAMIDAL] * len(signed)
        else:
            rows += [(s, normal + k, normal + k, 5 * s, 0, 6 * s + k) for k in range(dim)]
            types += [mjtConstraint.mjCNSTR_CONTACT_ELLIPTIC] * dim
        added = len(rows) - at
        first += [at] * added
        element += [s] + [friction_element.get(s, s)] * (added - 1)
    slot, direction, edge, edge_mu, edge_sign, scale = np.array(rows, dtype=int).reshape(-1, 6).T
    slot_rows = np.full((n, 11 if pyramidal else 6), len(rows))
    for row, (s, start) in enumerate(zip(slot, first, strict=True)):
        slot_rows[s, row - start + (pyramidal and dims[s] > 1)] = row
    packed = slot_rows[:, (slot_rows < len(rows)).any(0)]
    edges = np.array([2 * (dims[s] - 1) if pyramidal and dims[s] > 1 else 1 for s in slot])
    bodies, shares = carriers(m)
    geom_dof = (b.body_dof[bodies] * shares[..., None]).sum(1)
    nodes = bodies.shape[1] if bodies.shape[1] > 1 else 0
    kind = _kinds(geom_dof if nodes else geom_dof != 0)
    plan = ContactPlan(
        max_dim=max(dims, default=0),
        has_rigid=len(element_flex(m)) > 0 or bool(np.equal(*kind[tried.geom].T).any()),
        slot=b.make.ints(slot),
        direction=b.make.ints(direction),
        edge=b.make.ints(edge),
        edge_mu=b.make.ints(edge_mu),
        edge_sign=b.make.floats(edge_sign, len(rows)),
        scale=b.make.ints(scale),
        first=b.make.ints(first),
        slot_rows=b.make.ints(slot_rows),
        row=b.make.ints(packed),
        place=b.make.ints(np.argsort(packed, axis=None)[: len(rows)]),
        normal_share=b.make.floats((pyramidal | (np.arange(len(rows)) == first)) / edges, len(rows)),
        frictional=b.make.ints(frictional),
        has_edges=b.make.floats([pyramidal and dim > 1 for dim in dims], n),
        geom_body=b.make.ints(collider_body(m)),
        geom_dof=b.make.floats(geom_dof, len(bodies), m.nv),
        carrier=b.make.ints(kind),
        node_body=b.make.ints(bodies[:, :nodes]),
        node_share=b.make.floats(shares[:, :nodes]),
        grids=grid_contacts.build(m, b.make),
        rods=rod_contacts.build(m, b.make),
        passive=passive_contact.build(m, b.make),
        rank=b.make.ints(rank(m, tried) if len(set(dims)) > 1 else np.zeros((0, 0))),
    )
    return plan, element, types
