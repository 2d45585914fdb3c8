"""Index plan of kinematic trees as articulated bodies: which dof hands on what it carries to which."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.tensors import Tensors


@tree.dataclass(kw_only=True)
class ArticulatedPlan(tree.Tree):
    """The dofs, one after another.

    number: (nv,) 0, 1, ...
    parent: (nv,) the nearest of the dofs that move all that a dof moves; nv: none
    last: (nbody,) the dof that moves a body and no other that does so; nv: none
    """

    number: Tensor
    parent: Tensor
    last: Tensor


def build(m: mujoco.MjModel, make: Tensors) -> ArticulatedPlan:
    """The plan for `m`."""
    last = np.full(m.nbody, m.nv)
    for body in range(1, m.nbody):
        own = m.body_dofadr[body] + m.body_dofnum[body] - 1
        last[body] = own if m.body_dofnum[body] else last[m.body_parentid[body]]
    parent = np.where(m.dof_parentid < 0, m.nv, m.dof_parentid)
    return ArticulatedPlan(number=make.ints(np.arange(m.nv)), parent=make.ints(parent), last=make.ints(last))


def hops(m: mujoco.MjModel, make: Tensors) -> tuple[Tensor, ...]:
    """(nbody,) the body that is 1, 2, 4, ... bodies above each, up to the world, which is above itself."""
    found, above = [], m.body_parentid.astype(np.int64)
    while above.any():
        found.append(make.ints(above))
        above = above[above]
    return tuple(found)
