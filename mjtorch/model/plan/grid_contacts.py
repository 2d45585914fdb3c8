"""Index plan of what touches elements of grids: between which nodes a point of an element lies."""

import itertools

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.colliders import grids_touch
from mjtorch.model.plan.tensors import Tensors

# Of a line's shape functions in [0, 1], Lagrange's polynomials: those of 1, x and x^2, by `|flex_interp|`.
POLYNOMIALS = {
    0: np.zeros((0, 3)),
    1: np.array([[1, -1, 0], [0, 1, 0]]),
    2: np.array([[1, -3, 2], [0, 4, -4], [0, -1, 2]]),
}


@tree.dataclass(kw_only=True)
class GridContactsPlan(tree.Tree):
    """Grids whose elements may touch something, and all other flexes; w is the most nodes of a cell along an axis.

    is_grid: (nflex,) bool
    place: (nflexvert, 3) where the vertices of grids are at rest, a cell being the unit cube
    last: (nflex, 3) the last cell along each axis
    first: (nflex,) the first node of each, as a carrier; stride: (nflex, 3) from a cell to the next along each axis
    node: (nflex, w * w * w) from the first node of a cell to each; 0 where a cell has fewer
    shape: (nflex, w, 3) of the shape functions, what 1, x and x^2 are multiplied by; 0 where a cell has fewer
    """

    is_grid: Tensor
    place: Tensor
    last: Tensor
    first: Tensor
    stride: Tensor
    node: Tensor
    shape: Tensor


def build(m: mujoco.MjModel, make: Tensors) -> tuple[GridContactsPlan, ...]:
    """One, if elements of grids may touch something."""
    if not grids_touch(m):
        return ()
    order = np.abs(m.flex_interp)
    width = int(order.max()) + 1
    size = m.flex_cellnum * order[:, None] + 1
    ones = np.ones(m.nflex, dtype=int)
    stride = np.stack([size[:, 1] * size[:, 2], size[:, 2], ones], axis=-1)
    step = np.array(list(itertools.product(range(width), repeat=3)))
    there = (step <= order[:, None, None]).all(-1)
    shape = [np.pad(POLYNOMIALS[int(k)], [(0, width - len(POLYNOMIALS[int(k)])), (0, 0)]) for k in order]
    flex = np.repeat(np.arange(m.nflex), m.flex_vertnum)
    return (
        GridContactsPlan(
            is_grid=make.bools(order > 0),
            place=make.floats(m.flex_vert0 * m.flex_cellnum[flex]),
            last=make.floats((m.flex_cellnum - 1).clip(min=0)),
            first=make.ints(np.where(order > 0, m.ngeom + m.nflexvert + m.flex_nodeadr, 0)),
            stride=make.ints(stride * order[:, None]),
            node=make.ints(np.where(there, stride @ step.T, 0)),
            shape=make.floats(np.stack(shape)),
        ),
    )
