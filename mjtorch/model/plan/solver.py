"""Index plan of the constraint solver."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import articulated, bodies, forest, parts
from mjtorch.model.plan.articulated import ArticulatedPlan
from mjtorch.model.plan.bodies import BodiesPlan
from mjtorch.model.plan.collision import CollisionPlan
from mjtorch.model.plan.constraint import ConstraintPlan
from mjtorch.model.plan.forest import ForestPlan
from mjtorch.model.plan.geom_pairs import GeomPairs
from mjtorch.model.plan.island import trees_of_rows
from mjtorch.model.plan.kinematics import TreesPlan
from mjtorch.model.plan.parts import PartsPlan
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.transmission import has_heavy_tendons

CONSTRAINT = mujoco.mjtConstraint
STATE = mujoco.mjtConstraintState
FRICTION = (int(CONSTRAINT.mjCNSTR_FRICTION_DOF), int(CONSTRAINT.mjCNSTR_FRICTION_TENDON))
# Rows of contacts are stored if bodies are moved by fewer dofs than these, on average, and trees not solved one by one;
# else the second derivative is factored along the tree.
LONG = 20


@tree.dataclass(kw_only=True)
class RowsPlan(tree.Tree):
    """Which rows have one dof, the same in all states: friction of dofs, limits of hinges and slides.

    nsingle: static, how many
    in_order: static, whether they are the first
    order: (nefc,) these rows, then the others: edges of flexes last but contacts
    source: (nefc,) where each row lies in the others, then these
    dof: (nsingle,) their dofs, column: (nsingle, nv) one-hot
    """

    nsingle: int = tree.field(static=True)
    in_order: bool = tree.field(static=True)
    order: Tensor
    source: Tensor
    dof: Tensor
    column: Tensor


@tree.dataclass(kw_only=True)
class SolverPlan(tree.Tree):
    """How the rows fall into families of cost, and into the blocks that PGS visits.

    Every row that is no part of an elliptic cone has a cost `D x^2 / 2` that turns linear outside an interval of x.
    `w` is the largest number of rows of a cone or block; shorter ones are filled up with their first row.

    low, high: (nefc,) the interval without the friction bound: 0 at a side that has one or where the cost ends, else
        infinite
    state_low, state_high: (nefc,) mjtConstraintState below and above the interval
    alone: (nefc,) 1 for a row that is no part of a cone
    cone_rows: (ncone, w) rows of each elliptic contact, normal first
    cone_mask: (ncone, w) 1 for its rows, 0 for filling
    cone_slot: (ncone,) contact slot
    slot_cone: (ncon,) the cone of each slot; as many as there are: none
    row_source: (nefc,) where a row is found in [all rows, flattened cones]
    force_low, force_high: (nefc,) the interval of the force, without the friction bound
    block_rows: (nblock, w) rows that PGS updates together
    block_mask: (nblock, w)
    block_cone: (nblock,) the cone of a block; the number of cones where it has none
    block_slot: (nblock,) the contact slot of a block; -1 where it has none
    draws: (iterations * (nblock - 1),) random numbers that shuffle the blocks; only one if the solver is not PGS
    rows: which of them have one dof
    bodies: how contacts touch bodies, if their rows are not stored; else none
    articulated: the dofs along the kinematic trees, where chains are long; else none
    forest: how they touch kinematic trees, if these are solved one by one; else none
    parts: of trees, if rows of contacts are what they say of these; else none. With a forest, to see how stiff rows are
    """

    low: Tensor
    high: Tensor
    state_low: Tensor
    state_high: Tensor
    alone: Tensor
    cone_rows: Tensor
    cone_mask: Tensor
    cone_slot: Tensor
    slot_cone: Tensor
    row_source: Tensor
    force_low: Tensor
    force_high: Tensor
    block_rows: Tensor
    block_mask: Tensor
    block_cone: Tensor
    block_slot: Tensor
    draws: Tensor
    rows: RowsPlan
    bodies: tuple[BodiesPlan, ...]
    articulated: tuple[ArticulatedPlan, ...]
    forest: tuple[ForestPlan, ...]
    parts: tuple[PartsPlan, ...]

    @property
    def ncone(self) -> int:
        """Number of elliptic contacts."""
        return self.cone_rows.shape[0]


def build(
    mj_model: mujoco.MjModel,
    make: Tensors,
    constraint: ConstraintPlan,
    collision: CollisionPlan,
    tried: GeomPairs,
    trees: tuple[TreesPlan, ...],
) -> SolverPlan:
    """The plan for `mj_model`, whose rows are those of `constraint`.

    tried: its `tried_pairs`
    trees: those that may be solved one by one; under the integrator `discrete` they are if no dof moves several bodies
    """
    discrete = mj_model.opt.integrator == mujoco.mjtIntegrator.mjINT_DISCRETE
    pgs = mj_model.opt.solver == mujoco.mjtSolver.mjSOL_PGS
    by_dof = from_types(mj_model, constraint.efc_type, constraint.efc_id, make)
    # Rows of one dof come first, contacts last, and edges before these.
    row, order, after = np.arange(constraint.nefc), by_dof.order.cpu().numpy(), constraint.nefc - constraint.nc
    single = np.isin(row, order[: by_dof.nsingle])
    held = np.isin(row, order[after - constraint.equality.nedge : after])
    by_body: tuple[BodiesPlan, ...] = ()
    by_tree: tuple[ForestPlan, ...] = ()
    by_part: tuple[PartsPlan, ...] = ()
    chains: tuple[ArticulatedPlan, ...] = ()
    needs_rows = pgs or mj_model.opt.noslip_iterations or discrete
    elliptic = int(CONSTRAINT.mjCNSTR_CONTACT_ELLIPTIC) in constraint.efc_type
    long = not (needs_rows or has_heavy_tendons(mj_model)) and bodies.mean_chain(mj_model) >= LONG
    joined = trees and not (elliptic and needs_rows)
    if (joined or long) and moved_by_bodies(constraint) and not single.all():
        edge = constraint.equality.edge.cpu().numpy()
        others, alone = np.flatnonzero(~held[: constraint.ne]), single | held
        touched = [t for t, apart in zip(trees_of_rows(mj_model, constraint), alone, strict=False) if not apart]
        plan = bodies.build(mj_model, make, tried, edge, others, touched)
        geoms = not (plan.elements or plan.edges)
        if not (needs_rows or long) and plan.joins and plan.turning and geoms:
            by_part = parts.build(mj_model, make)
        few = bool(by_part) and mj_model.nv <= parts.MOST_DOFS
        if (plan.leaves or not discrete) and not few:
            by_tree = forest.build(mj_model, make, trees, touched, plan)
        if long and geoms and not by_tree:
            by_body = (plan.replace(hops=articulated.hops(mj_model, make)),)
            chains = (articulated.build(mj_model, make),)
        elif by_tree or by_part:
            by_body = (plan,)
    return from_rows(
        constraint.efc_type,
        constraint.efc_id,
        collision.contact_dim,
        make=make,
        iterations=int(mj_model.opt.iterations) if pgs else 0,
        by_dof=by_dof,
        by_body=by_body,
        chains=chains,
        by_tree=by_tree,
        by_part=by_part,
    )


def moved_by_bodies(constraint: ConstraintPlan) -> bool:
    """Whether rows of contacts are what bodies do where they touch.

    Not where vertices lie between nodes, nor of rods; nor with equalities of cells.
    """
    touched = constraint.contact.node_body.shape[1] or constraint.contact.rods
    return not (constraint.equality.nmode or touched)


def from_rows(
    efc_type: tuple[int, ...],
    efc_id: tuple[int, ...],
    contact_dim: tuple[int, ...],
    *,
    make: Tensors,
    iterations: int,
    by_dof: RowsPlan,
    by_body: tuple[BodiesPlan, ...] = (),
    chains: tuple[ArticulatedPlan, ...] = (),
    by_tree: tuple[ForestPlan, ...] = (),
    by_part: tuple[PartsPlan, ...] = (),
) -> SolverPlan:
    """The plan for rows of the given types; `efc_id` of a contact row is its slot in `contact_dim`."""
    kind = np.array(efc_type, dtype=np.int64)
    equality, friction = kind == int(CONSTRAINT.mjCNSTR_EQUALITY), np.isin(kind, FRICTION)
    elliptic = kind == int(CONSTRAINT.mjCNSTR_CONTACT_ELLIPTIC)
    is_contact = kind >= int(CONSTRAINT.mjCNSTR_CONTACT_FRICTIONLESS)
    one_sided = ~(equality | friction | elliptic)
    blocks = _blocks(elliptic, efc_id, contact_dim)
    cones = [b for b in blocks if len(b) > 1]
    width = max([len(b) for b in blocks], default=1)
    source = np.arange(len(kind))
    for c, rows in enumerate(cones):
        source[rows] = len(kind) + c * width + np.arange(len(rows))
    cone_of = {rows[0]: c for c, rows in enumerate(cones)}
    slot_cone = np.full(len(contact_dim), len(cones))
    slot_cone[[efc_id[rows[0]] for rows in cones]] = np.arange(len(cones))

    return SolverPlan(
        low=make.floats(np.where(friction, 0.0, -np.inf)),
        high=make.floats(np.where(friction | one_sided, 0.0, np.inf)),
        state_low=make.ints(np.where(friction, int(STATE.mjCNSTRSTATE_LINEARNEG), int(STATE.mjCNSTRSTATE_QUADRATIC))),
        state_high=make.ints(np.where(friction, int(STATE.mjCNSTRSTATE_LINEARPOS), int(STATE.mjCNSTRSTATE_SATISFIED))),
        alone=make.floats(1.0 - elliptic),
        cone_rows=make.ints(_filled(cones, width)),
        cone_mask=make.floats(_mask(cones, width)),
        cone_slot=make.ints([efc_id[rows[0]] for rows in cones]),
        slot_cone=make.ints(slot_cone),
        row_source=make.ints(source),
        force_low=make.floats(np.where(friction | one_sided, 0.0, -np.inf)),
        force_high=make.floats(np.where(friction, 0.0, np.inf)),
        block_rows=make.ints(_filled(blocks, width)),
        block_mask=make.floats(_mask(blocks, width)),
        block_cone=make.ints([cone_of.get(rows[0], len(cones)) for rows in blocks]),
        block_slot=make.ints([efc_id[rows[0]] if is_contact[rows[0]] else -1 for rows in blocks]),
        draws=make.ints(_pcg32(max(1, iterations * (len(blocks) - 1)))),
        rows=by_dof,
        bodies=by_body,
        articulated=chains,
        forest=by_tree,
        parts=by_part,
    )


def from_types(m: mujoco.MjModel, efc_type: tuple[int, ...], efc_id: tuple[int, ...], make: Tensors) -> RowsPlan:
    """Which of the rows of the given types have one dof."""
    kind, number = np.array(efc_type, dtype=np.int64), np.array(efc_id, dtype=np.int64)
    dof, family = np.full(len(kind), -1), np.ones(len(kind), dtype=np.int8)

    def rows(kinds: mujoco.mjtConstraint) -> np.ndarray:
        return np.flatnonzero(kind == int(kinds))

    rubs, limits = rows(CONSTRAINT.mjCNSTR_FRICTION_DOF), rows(CONSTRAINT.mjCNSTR_LIMIT_JOINT)
    limits = limits[m.jnt_type[number[limits]] != mujoco.mjtJoint.mjJNT_BALL]
    dof[rubs], dof[limits] = number[rubs], m.jnt_dofadr[number[limits]]
    equal = rows(CONSTRAINT.mjCNSTR_EQUALITY)
    family[equal[m.eq_type[number[equal]] == mujoco.mjtEq.mjEQ_FLEX]] = 2
    family[kind >= int(CONSTRAINT.mjCNSTR_CONTACT_FRICTIONLESS)] = 3
    family[dof >= 0] = 0
    single, order = dof[dof >= 0], np.argsort(family, kind="stable")
    column = np.zeros((len(single), m.nv), dtype=bool)
    column[np.arange(len(single)), single] = True
    return RowsPlan(
        nsingle=len(single),
        in_order=bool((order == np.arange(len(order))).all()),
        order=make.ints(order),
        source=make.ints(np.argsort(np.roll(order, -len(single)))),
        dof=make.ints(single),
        column=make.floats(column, len(single), m.nv),
    )


def _blocks(elliptic: np.ndarray, efc_id: tuple[int, ...], contact_dim: tuple[int, ...]) -> list[list[int]]:
    """Rows that belong together: all rows of an elliptic contact, any other row alone."""
    blocks: list[list[int]] = []
    row = 0
    while row < len(elliptic):
        size = contact_dim[efc_id[row]] if elliptic[row] else 1
        blocks.append(list(range(row, row + size)))
        row += size
    return blocks


def _filled(blocks: list[list[int]], width: int) -> np.ndarray:
    rows = [b + [b[0]] * (width - len(b)) for b in blocks]
    return np.array(rows, dtype=np.int64).reshape(len(blocks), width)


def _mask(blocks: list[list[int]], width: int) -> np.ndarray:
    return np.array([[float(j < len(b)) for j in range(width)] for b in blocks]).reshape(len(blocks), width)


def _pcg32(count: int) -> list[int]:
    """Numbers of the PCG32 generator as MuJoCo's PGS seeds it: state 0, increment 1, first number thrown away."""
    numbers, state = [], 1
    for _ in range(count):
        old = state
        state = (old * 6364136223846793005 + 1) % (1 << 64)
        xorshifted, rot = (((old >> 18) ^ old) >> 27) % (1 << 32), old >> 59
        numbers.append((xorshifted >> rot | xorshifted << (-rot & 31)) % (1 << 32))
    return numbers
