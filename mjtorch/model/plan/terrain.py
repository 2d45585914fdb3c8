"""Index plan of terrain: geoms that no joint moves, so many that most are out of reach of what moves at any time."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.geom_pairs import HFIELD, PLANE, GeomPairs
from mjtorch.model.plan.tensors import Tensors

# Of fewer pairs with terrain all are looked at: that takes less than to find out which are near.
LEAST_PAIRS = 2000
# Of so many that are near there is room for all, at least.
LEAST_ROOM = 16
# Of so many of these geoms it is found out how many others are as near as a tree would be.
TRIED = 500


@tree.dataclass(kw_only=True)
class TerrainPlan(tree.Tree):
    """Geoms that no joint moves, k of them, and those of n kinematic trees that may meet them.

    room: static, how many of them are looked at, if no more are near; where more are, all are
    still: static, whether all of them belong to the body of the world, and so are where the model says
    fixed: (k,) geom ids; geom: (n, w) geom ids, the first one again where a tree has fewer
    other: (ngeom - k,) all other geoms; source: (ngeom,) where each lies in [other, fixed]
    """

    room: int = tree.field(static=True)
    still: bool = tree.field(static=True)
    fixed: Tensor
    geom: Tensor
    other: Tensor
    source: Tensor


@tree.dataclass(kw_only=True)
class TerrainPairs(tree.Tree):
    """Which pairs of a block have a geom of the terrain.

    geom: (w,) the geom ids of the others; number: (k, w) of the pair with each of the k, -1: there is none
    rest: (n,) the numbers of all other pairs
    """

    geom: Tensor
    number: Tensor
    rest: Tensor


def build(m: mujoco.MjModel, make: Tensors, tried: GeomPairs) -> tuple[TerrainPlan, ...]:
    """The plan, if such pairs are many among those `tried`."""
    mine, ground, other = _split(m, tried.geom)
    if len(mine) < LEAST_PAIRS:
        return ()
    ground, other = np.unique(ground), np.unique(other)
    owner = m.body_treeid[m.geom_bodyid[other]]
    of_trees = [other[owner == k] for k in np.unique(owner)]
    width = max(map(len, of_trees))
    others = np.setdiff1d(np.arange(m.ngeom), ground)
    return (
        TerrainPlan(
            room=_room(m, ground, of_trees),
            still=not m.geom_bodyid[ground].any() and not m.nflex,
            fixed=make.ints(ground),
            geom=make.ints([np.pad(x, (0, width - len(x)), constant_values=x[0]) for x in of_trees]),
            other=make.ints(others),
            source=make.ints(np.argsort(np.concatenate([others, ground]))),
        ),
    )


def _room(m: mujoco.MjModel, fixed: np.ndarray, of_trees: list[np.ndarray]) -> int:
    """How many of the fixed geoms a tree may be near: where most are as near as they would be, were it in the middle.

    As long as it is in its first pose, and twice as many for others.
    """
    d = mujoco.MjData(m)
    mujoco.mj_kinematics(m, d)
    half = d.geom_xmat.reshape(-1, 3, 3)
    half = np.abs(half) @ m.geom_aabb[:, 3:, None]
    center = d.geom_xpos + np.einsum("gij,gj->gi", d.geom_xmat.reshape(-1, 3, 3), m.geom_aabb[:, :3])
    low, high = center - half[..., 0], center + half[..., 0]
    reach = sum(0.5 * (high[x].max(0) - low[x].min(0)) for x in of_trees)
    most = max(
        int(((low[fixed] <= center[k] + reach) & (high[fixed] >= center[k] - reach)).all(1).sum())
        for k in fixed[:: max(1, len(fixed) // TRIED)]
    )
    return min(len(fixed), max(LEAST_ROOM, 2 * most))


def pairs(
    m: mujoco.MjModel, make: Tensors, plan: tuple[TerrainPlan, ...], geom: np.ndarray
) -> tuple[TerrainPairs, ...]:
    """Those of a block whose pairs are `geom (n, 2)`, if they are many."""
    mine, ground, other = _split(m, geom)
    if not plan or len(mine) < LEAST_PAIRS:
        return ()
    all_ground, moving = plan[0].fixed.cpu().numpy(), np.unique(other)
    number = np.full((len(all_ground), len(moving)), -1)
    number[np.searchsorted(all_ground, ground), np.searchsorted(moving, other)] = mine
    if (number >= 0).sum() < len(mine):
        return ()  # some are paired twice
    rest = np.setdiff1d(np.arange(len(geom)), mine)
    return (TerrainPairs(geom=make.ints(moving), number=make.ints(number), rest=make.ints(rest)),)


def _split(m: mujoco.MjModel, geom: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which of the pairs `geom (n, 2)` have a geom of the terrain (k,), which these are (k,), and the others (k,).

    The others belong to kinematic trees, and both have bounds.
    """
    none = np.zeros(0, dtype=int)
    if not m.ngeom:
        return none, none, none
    geoms = np.minimum(geom, m.ngeom - 1)
    fixed = m.body_treeid[m.geom_bodyid[geoms]] < 0
    bounded = (geom < m.ngeom).all(1) & ~np.isin(m.geom_type[geoms], (PLANE, HFIELD)).any(1)
    mine = np.flatnonzero(bounded & (fixed.sum(1) == 1))
    return mine, geom[mine][fixed[mine]], geom[mine][~fixed[mine]]
