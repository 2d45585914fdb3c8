"""Index plan of kinematic trees as parts of a few dofs each, in which rows of contacts and second derivatives lie."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.bodies import moved_bodies
from mjtorch.model.plan.tensors import Tensors

# Dofs of a part: those of a thing that floats.
WIDTH = 6
# With fewer dofs whole rows are stored, and with more parts of a tree, of which each two have code of their own. With
# more dofs trees are solved one by one. What that takes beside it depends on what joins them: of tables on which things
# stand in stacks 1.25 times as long with 189 dofs, 1.2 with 249 and the same with 369, of piles 0.7 with 300 and 0.2
# with 600 dofs.
LEAST_DOFS, MOST_DOFS = 60, 250
MOST_PARTS = 2


@tree.dataclass(kw_only=True)
class PartsPlan(tree.Tree):
    """The dofs of kinematic trees, in parts of `WIDTH` at most; k parts is what the largest tree has.

    none: static, the number of that part which has no dofs, the last one
    dof: (none + 1, WIDTH) the dofs of each, nv where there are no more
    of_tree: (ntree + 1, k) the parts of each tree, and of what is in none
    moves: (nbody, k, WIDTH) whether each dof of the parts of its tree moves a body, 1 or 0
    row, col: (WIDTH * WIDTH,) of each element of a block
    source: (nv, nv) where each element of a symmetric matrix lies in its blocks (nblock, WIDTH * WIDTH), see `block`
    """

    none: int = tree.field(static=True)
    dof: Tensor
    of_tree: Tensor
    moves: Tensor
    row: Tensor
    col: Tensor
    source: Tensor

    @property
    def nblock(self) -> int:
        """How many blocks there are."""
        return (self.none + 1) * (self.none + 2) // 2

    @staticmethod
    def block(first: Tensor, second: Tensor) -> Tensor:
        """Which block (...) is that of the rows of the part `first` and the columns of `second`, which is no less."""
        return second * (second + 1) // 2 + first


def build(m: mujoco.MjModel, make: Tensors) -> tuple[PartsPlan, ...]:
    """The plan for `m`, if it has many dofs, and trees of few parts."""
    trees = [np.flatnonzero(m.dof_treeid == k) for k in range(m.ntree)]
    cuts = [np.split(dof, range(WIDTH, len(dof), WIDTH)) for dof in trees]
    count, most = sum(map(len, cuts)), max(map(len, cuts))
    if m.nv < LEAST_DOFS or most > MOST_PARTS:
        return ()
    dof, of_tree = np.full((count + 1, WIDTH), m.nv), np.full((m.ntree + 1, most), count)
    part, within = np.zeros(m.nv, dtype=int), np.zeros(m.nv, dtype=int)
    moves, moved = np.zeros((m.nbody, most, WIDTH)), moved_bodies(m)
    for k, cut in enumerate(cuts):
        start = sum(map(len, cuts[:k]))
        for place, mine in enumerate(cut):
            dof[start + place, : len(mine)], of_tree[k, place] = mine, start + place
            part[mine], within[mine] = start + place, np.arange(len(mine))
            for column, (first, last) in enumerate(moved[mine]):
                moves[first:last, place, column] = 1
    row, col = np.minimum.outer(part, part), np.maximum.outer(part, part)
    later = part[:, None] > part
    i, j = np.where(later, within, within[:, None]), np.where(later, within[:, None], within)
    plan = PartsPlan(
        none=count,
        dof=make.ints(dof),
        of_tree=make.ints(of_tree),
        moves=make.floats(moves),
        row=make.ints(np.repeat(np.arange(WIDTH), WIDTH)),
        col=make.ints(np.tile(np.arange(WIDTH), WIDTH)),
        source=make.ints(((col * (col + 1) // 2 + row) * WIDTH + i) * WIDTH + j),
    )
    return (plan,)
