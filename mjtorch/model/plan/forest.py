"""Index plan of the kinematic trees as the solver takes them: one by one, with what joins them."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.bodies import BodiesPlan, dof_pairs, moved_bodies, pair_places
from mjtorch.model.plan.constraint import ConstraintPlan
from mjtorch.model.plan.island import trees_of_rows
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
    """

    own: bool = tree.field(static=True)
    number: Tensor
    dof: Tensor
    M: Tensor
    first: Tensor
    last: Tensor
    source: Tensor


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
    constraint: ConstraintPlan,
    trees: tuple[TreesPlan, ...],
    apart: np.ndarray,
    bodies: BodiesPlan,
) -> tuple[ForestPlan, ...]:
    """The plan for `m`, if it has `trees`, and many dofs or no contacts among them.

    apart: (nefc,) bool, the rows of one dof, and of edges of flexes
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
    touched = [t for t, alone in zip(trees_of_rows(m, constraint), apart, strict=False) if not alone]
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
                )
                for dof, inertia in groups
            ),
            place=make.ints(np.argsort(np.concatenate([dof.ravel() for dof, _ in groups]))),
            M=make.ints(stored[row, col]),
            shared=make.ints([k for k, t in enumerate(touched) if len(t) > 1]),
        ),
    )
