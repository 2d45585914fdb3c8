"""Index plan of the kinematic trees as the solver takes them: one by one, with what joins them."""

import itertools
from collections.abc import Sequence

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.bodies import BodiesPlan, dof_pairs, moved_bodies, pair_places
from mjtorch.model.plan.kinematics import TreesPlan
from mjtorch.model.plan.tensors import Tensors

# With fewer dofs the second derivative is factored whole: to find out which contacts join which trees costs more. Two
# humanoids, of 54, would take 1.4 times as long, three, of 81, 1.1, and four, of 108, take 0.8. Where trees have few
# dofs each it costs more yet, and twice as many are asked for: a hand at the keys of a piano, of 118, would take 1.6.
LEAST_DOFS = 100
FEW_DOFS = 6
# Of flexes where nothing turns: rows of contacts and edges couple their vertices alone.
LEAST_DOFS_OF_FLEXES = 60


@tree.dataclass(kw_only=True)
class GroupPlan(tree.Tree):
    """The kinematic trees that have n dofs each, in the order of `TreesPlan`.

    own: static, whether contacts of geoms may touch one of them alone; where elements of flexes touch something this is
        not asked
    number: (ntree,) which trees these are
    dof: (ntree, n) their dofs, leaves first: a factor then has the zeros that branches make
    M: (ntree, n, n) where each element of their blocks of the inertia lies in [M, 0]
    first, last: (ntree, n) the bodies that each dof moves lie from the first up to the last, which is not one of them
    source: (ntree, n, n) where each element of their blocks lies in [pairs of `BodiesPlan`, 0]
    fixed: (ntree, k) the rows that touch them, of those that have several dofs and are no contact's and no edge's; as
        many as there are: none
    fixed_entry: (ntree, k, n) where what these say of the dofs lies in [`BodyRows.fixed`, 0], shared_entry: (ntree,
        nshared, n) where what all those of `ForestPlan.shared` say lies there
    """

    own: bool = tree.field(static=True)
    number: Tensor
    dof: Tensor
    M: Tensor
    first: Tensor
    last: Tensor
    source: Tensor
    fixed: Tensor
    fixed_entry: Tensor
    shared_entry: Tensor


@tree.dataclass(kw_only=True)
class ForestPlan(tree.Tree):
    """Kinematic trees that are solved one by one, and the rows of several dofs that touch several.

    joins: static, whether contacts of geoms may touch two trees; where elements of flexes touch something it is not
        asked
    groups: the trees, by size
    place: (nv,) where each dof of the model lies in the dofs of these, one after another
    M: (npair,) where each pair of dofs that move the same (`BodiesPlan.row` and `col`) lies in [M, 0]
    shared: (nshared,) the rows that touch several trees, of those that have several dofs and are no contact's and no
        edge's
    """

    joins: bool = tree.field(static=True)
    groups: tuple[GroupPlan, ...]
    place: Tensor
    M: Tensor
    shared: Tensor


def build(
    m: mujoco.MjModel,
    make: Tensors,
    trees: tuple[TreesPlan, ...],
    touched: Sequence[Sequence[int]],
    bodies: BodiesPlan,
) -> tuple[ForestPlan, ...]:
    """The plan for `m`, if it has `trees`, and many dofs or no contacts among them.

    touched: the trees of each row that has several dofs and is no contact's and no edge's
    """
    joined = bodies.joins or bodies.own
    least = LEAST_DOFS if m.nv >= FEW_DOFS * m.ntree else 2 * LEAST_DOFS
    if not (bodies.turning or (joined and not bodies.elements)):
        least = LEAST_DOFS_OF_FLEXES
    if not trees or (m.nv < least and (joined or bodies.elements or bodies.edges)):
        return ()
    row, col = dof_pairs(m)
    moved, place = moved_bodies(m), pair_places(m)
    stored = np.full((m.nv, m.nv), m.nC)
    stored[np.repeat(np.arange(m.nv), m.M_rownnz), m.M_colind[: m.nC]] = np.arange(m.nC)
    own = () if bodies.elements else bodies.own
    groups = [(t.dof.cpu().numpy()[:, ::-1], t.M.cpu().numpy()[:, ::-1, ::-1]) for t in trees]
    shared = [k for k, t in enumerate(touched) if len(t) > 1]
    return (
        ForestPlan(
            joins=bodies.joins and not bodies.elements,
            groups=tuple(
                GroupPlan(
                    own=bool(np.isin(m.dof_treeid[dof[:, 0]], own).any()),
                    number=make.ints(m.dof_treeid[dof[:, 0]]),
                    dof=make.ints(dof),
                    M=make.ints(inertia),
                    first=make.ints(moved[dof, 0]),
                    last=make.ints(moved[dof, 1]),
                    source=make.ints(place[dof[:, :, None], dof[:, None, :]]),
                    **fixed_rows(make, m.dof_treeid[dof[:, 0]], dof, touched, shared, bodies.fixed_dof.cpu().numpy()),
                )
                for dof, inertia in groups
            ),
            place=make.ints(np.argsort(np.concatenate([dof.ravel() for dof, _ in groups]))),
            M=make.ints(stored[row, col]),
            shared=make.ints(shared),
        ),
    )


def fixed_rows(
    make: Tensors,
    number: np.ndarray,
    dof: np.ndarray,
    touched: Sequence[Sequence[int]],
    shared: Sequence[int],
    fixed_dof: np.ndarray,
) -> dict[str, Tensor]:
    """`fixed`, `fixed_entry` and `shared_entry` of `GroupPlan`, by name.

    number: (ntree,) the trees, dof: (ntree, n) their dofs; the rest as in `build`, `ForestPlan` and `BodiesPlan`
    """
    (count, width), none = fixed_dof.shape, fixed_dof.size
    touches = np.zeros((count + 1, max([*number, *itertools.chain(*touched)]) + 1), dtype=bool)
    place = np.full((count + 1, max(dof.max(), fixed_dof.max(initial=0)) + 1), none)
    for k, trees in enumerate(touched):
        touches[k, trees] = True
        place[k, fixed_dof[k]] = k * width + np.arange(width)

    def entries(rows: np.ndarray) -> np.ndarray:
        """Of rows (ntree, k) where what they say of the dofs of the trees lies (ntree, k, n)."""
        there = touches[rows, number[:, None]]
        return np.where(there[..., None], place[rows[..., None], dof[:, None]], none)

    own = touches[:count, number].T
    rows = np.sort(np.where(own, np.arange(count), count))[:, : own.sum(1).max(initial=0)]
    joint = np.tile(np.array(shared, dtype=int), (len(number), 1))
    return {
        "fixed": make.ints(rows, *rows.shape),
        "fixed_entry": make.ints(entries(rows), *rows.shape, dof.shape[1]),
        "shared_entry": make.ints(entries(joint), *joint.shape, dof.shape[1]),
    }
