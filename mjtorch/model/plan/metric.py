"""Index plan of the effective inertia, where few of its elements are not zero (see `mjtorch.smooth.metric`)."""

import itertools

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.math.banded import Band
from mjtorch.model.option import Solver
from mjtorch.model.plan.bodies import dof_pairs
from mjtorch.model.plan.flex import FlexPlan
from mjtorch.model.plan.flex_blocks import is_metric
from mjtorch.model.plan.flex_points import asking
from mjtorch.model.plan.tensors import Tensors

# With fewer dofs, or blocks of a band, the whole matrix costs no more.
LEAST_DOFS = 250
LEAST_BLOCKS = 5
# Blocks that are smaller cost more to go through than to compute.
LEAST_WIDTH = 24


@tree.dataclass(kw_only=True)
class MetricPlan(tree.Tree):
    """Where the elements of the effective inertia lie.

    M: (nvalue,) where those of the inertia lie in [M, 0]
    pair: (npair,) where those of the pairs of dofs of `BodiesPlan` lie in [values, 0]
    """

    band: Band
    M: Tensor
    pair: Tensor


def build(
    m: mujoco.MjModel, make: Tensors, flexes: tuple[FlexPlan, ...], M_dense: Tensor
) -> tuple[tuple[MetricPlan, ...], tuple[FlexPlan, ...]]:
    """The plan for `m`, if a band pays, and the plans of flexes, whose blocks then lie among its values.

    Tendons, actuators, rods and passive contacts add elements elsewhere; what the solvers PGS and noslip do with the
    inertia asks for a factor of all of it. M_dense: (nv, nv) where each element of the inertia lies in [M, 0]
    """
    elsewhere = m.ntendon or m.nu or asking(m).any() or any(x.rods for x in flexes)
    whole = int(m.opt.solver) == Solver.PGS or m.opt.noslip_iterations > 0
    stiff = is_metric(m) and any(x.blocks for x in flexes)
    if not stiff or elsewhere or whole or m.nv < LEAST_DOFS:
        return (), flexes
    (flex,), inertia = flexes, M_dense.cpu().numpy()
    there = (inertia < m.nC) | np.eye(m.nv, dtype=bool)
    for block in flex.blocks:
        there.ravel()[block.place.cpu().numpy()] = True
    band = banded(make, there, LEAST_WIDTH)
    if len(band.own) < LEAST_BLOCKS:
        return (), flexes
    number = band.whole.cpu().numpy()
    blocks = tuple(x.replace(place=make.ints(number.ravel()[x.place.cpu().numpy()])) for x in flex.blocks)
    plan = MetricPlan(band=band, M=make.ints(inertia[there]), pair=make.ints(number[*dof_pairs(m)]))
    return (plan,), (flex.replace(blocks=blocks),)


def banded(make: Tensors, there: np.ndarray, least: int) -> Band:
    """The band of symmetric matrices with the elements that are `there` (n, n), in blocks no smaller than `least`."""
    n, (row, col) = len(there), np.nonzero(there)
    order = min(np.arange(n), near(row, col, n), key=lambda order: width(row, col, order))
    w = max(least, width(row, col, order))
    number = np.full((n + 1, n + 1), len(row))
    number[row, col] = np.arange(len(row))
    rows = np.concatenate([order, np.full(-n % w, n)])
    blocks = rows.reshape(-1, w)
    own = number[blocks[:, :, None], blocks[:, None]]
    own[(blocks[:, :, None] == n) & np.eye(w, dtype=bool)] = len(row) + 1
    right = np.concatenate([number[blocks[:-1, :, None], blocks[1:, None]], np.full((1, w, w), len(row))])
    return Band(
        row=make.ints(row),
        col=make.ints(col),
        diagonal=make.floats(row == col),
        whole=make.ints(number[:n, :n]),
        own=make.ints(own),
        right=make.ints(right),
        order=make.ints(rows),
        place=make.ints(np.argsort(order)),
    )


def width(row: np.ndarray, col: np.ndarray, order: np.ndarray) -> int:
    """How far from the diagonal elements lie with rows in `order` (n,)."""
    place = np.argsort(order)
    return int(np.abs(place[row] - place[col]).max())


def near(row: np.ndarray, col: np.ndarray, n: int) -> np.ndarray:
    """An order (n,) of rows in which elements are near the diagonal (the reverse of Cuthill's and McKee's)."""
    start = np.searchsorted(row, np.arange(n + 1))
    neighbours = [col[slice(*x)] for x in itertools.pairwise(start)]
    degree, left = np.diff(start), np.ones(n, dtype=bool)
    found: list[int] = []
    for root in np.argsort(degree, kind="stable").tolist():
        if left[root]:
            far = outwards(neighbours, degree, left.copy(), root)[-1]
            found += outwards(neighbours, degree, left, far)
    return np.array(found[::-1])


def outwards(neighbours: list[np.ndarray], degree: np.ndarray, left: np.ndarray, root: int) -> list[int]:
    """The rows that hang together with `root`, by distance from it, then by degree; they are no more `left`."""
    left[root], found = False, [root]
    for one in found:
        fresh = neighbours[one][left[neighbours[one]]]
        left[fresh] = False
        found += fresh[np.argsort(degree[fresh], kind="stable")].tolist()
    return found
