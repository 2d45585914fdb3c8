"""Index plan of the stiffness of flexes: where what points do to each other lies in the dofs that move them."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.option import Integrator
from mjtorch.model.plan.flex_points import Builder


@tree.dataclass(kw_only=True)
class BlockPlan(tree.Tree):
    """What n elements, hinges or cells of k points put into a matrix of dofs; w: how many dofs a point has at most.

    point: (n, k) their points
    pair: (n, k, w) the pairs of these; the number of pairs stands for none
    place: (n k k w w,) where what the pairs (n, point, other point, pair, other pair) add lies in that matrix (nv, nv),
        flattened, or among the values of a band (`MetricPlan`); 0 where there is nothing to add
    """

    point: Tensor
    pair: Tensor
    place: Tensor


def is_metric(m: mujoco.MjModel) -> bool:
    """Whether the integrator takes the stiffness of flexes for inertia."""
    return int(m.opt.integrator) == Integrator.DISCRETE


def block_plan(b: Builder, point: np.ndarray) -> BlockPlan:
    """Of things with the points `point` (n, k)."""
    pair = b.point_pair[point]
    used = (pair < len(b.pairs)).any(axis=(0, 1))
    pair = pair[..., used]
    dof = np.array([dof for _, dof in b.pairs] + [0])[pair]
    there = pair < len(b.pairs)
    place = np.where(
        there[:, :, None, :, None] & there[:, None, :, None, :],
        dof[:, :, None, :, None] * b.m.nv + dof[:, None, :, None, :],
        0,
    )
    return BlockPlan(point=b.make.ints(point), pair=b.make.ints(pair), place=b.make.ints(place.ravel()))
