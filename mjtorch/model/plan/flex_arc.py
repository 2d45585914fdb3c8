"""Index plan of arcs: elastic lines whose edges no joints turn, such as rings."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.flex_points import Builder
from mjtorch.model.plan.flex_rod import STIFFNESS, records, twisting

# Where a record of two corners has the stiffness and the bend at rest of each, and that of the angle between them.
WEIGHTS, BENDS, ANGLE = (4, 5), (6, 7), (8, 9)
# Where a record of one corner has its stiffness and its bend at rest.
ALONE = (STIFFNESS, 6)


@tree.dataclass(kw_only=True)
class ArcPlan(tree.Tree):
    """The corners of lines, n of them, each between two edges, and k pairs of corners that have an edge in common.

    A corner of two pairs is there twice.

    point: (n, 3) their points
    stiffness, rest: (n, 1) where their stiffness and how much they are bent at rest lie in `flex_bending`
    inner: (n, 2) 1 for the edge that the corner has in common with the other of its pair
    pair: (2, k) the corners of pairs; pair_point: (k, 4) their points
    angle: (k, 2) where stiffness times cosine and sine of the angle at rest lie in `flex_bending`
    flex: (n, 1), pair_flex: (k, 1) their flexes; damped: static, whether any of these has damping
    """

    damped: bool = tree.field(static=True)
    point: Tensor
    stiffness: Tensor
    rest: Tensor
    inner: Tensor
    pair: Tensor
    pair_point: Tensor
    angle: Tensor
    flex: Tensor
    pair_flex: Tensor


def bending(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: lines that resist bending, of edges that no joints turn."""
    return (m.flex_dim == 1) & (m.flex_bendingadr >= 0) & ~twisting(m) & ~m.flex_rigid.astype(bool)


def arcs(b: Builder) -> tuple[ArcPlan, ...]:
    """All that bend, in one; none without any."""
    m, flexes = b.m, np.flatnonzero(bending(b.m)).tolist()
    if not flexes:
        return ()
    found = [records(m, f) for f in flexes]
    flex = np.repeat(flexes, [len(start) for _, start in found])
    record, start = (np.concatenate(x) for x in zip(*found, strict=True))
    point = b.point_of_vertex[m.flex_vertadr[flex, None] + record[:, :4].astype(int)]
    two = record[:, 3] >= 0
    k, ones = int(two.sum()), ~two
    first, second = start[two, None], start[ones, None]
    return (
        ArcPlan(
            damped=bool(m.flex_damping[flexes].any()),
            point=b.make.ints(np.concatenate([point[two, :3], point[two, 1:], point[ones, :3]])),
            stiffness=b.make.ints(np.concatenate([*(first + x for x in WEIGHTS), second + ALONE[0]])),
            rest=b.make.ints(np.concatenate([*(first + x for x in BENDS), second + ALONE[1]])),
            inner=b.make.floats(np.repeat([[0, 1], [1, 0], [0, 0]], [k, k, ones.sum()], axis=0)),
            pair=b.make.ints([np.arange(k), k + np.arange(k)]),
            pair_point=b.make.ints(point[two], k, 4),
            angle=b.make.ints(first + ANGLE, k, 2),
            flex=b.make.ints(np.concatenate([flex[two], flex[two], flex[ones]])[:, None]),
            pair_flex=b.make.ints(flex[two, None], k, 1),
        ),
    )
