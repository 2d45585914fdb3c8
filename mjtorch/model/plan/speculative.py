"""Index plan of speculative contacts: which pairs of geoms are swept, and what may hide the two from each other."""

from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.math.shape import Shape
from mjtorch.model.option import DisableBit
from mjtorch.model.plan import triangles
from mjtorch.model.plan.colliders import speculates
from mjtorch.model.plan.geom_pairs import MESH, PLANE, GeomPairs, tested_pairs
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.triangles import TrianglePlan

# Types of geoms that are swept; each of them may hide others, too.
SWEPT = (*(int(shape) for shape in Shape), MESH)
# The most contacts of a pair that is swept: corners of what touches in more than a point.
MOST = 4


class Listed(NamedTuple):
    """What the plan of collisions lists of n candidates: geom, types (n, 2), number (n,), and how many a pair has."""

    geom: np.ndarray
    types: np.ndarray
    nth: np.ndarray
    most: np.ndarray


@tree.dataclass(kw_only=True)
class Swept(tree.Tree):
    """n pairs of geoms that are swept towards each other.

    types: static, those of the first geoms and of the second; contacts: static, the most that a pair makes
    geom: (2, n) geom ids; candidate: (n, c) the candidates of each, the number of all where it has fewer
    hides: (n, 2, o) bool, whether each of the obstacles stops the first geom on its way, and the second one
    """

    types: tuple[tuple[int, ...], tuple[int, ...]] = tree.field(static=True)
    contacts: int = tree.field(static=True)
    geom: Tensor
    candidate: Tensor
    hides: Tensor


@tree.dataclass(kw_only=True)
class SpeculativePlan(tree.Tree):
    """Pairs that are swept, and obstacles: planes and primitive shapes, then meshes.

    groups: pairs with planes, others that may touch in more than a point, and the rest; those that there are
    row: (ncandidate,) which of the contacts of all groups each candidate may be, their number if none
    pair: (ncandidate,) which of their pairs it belongs to, their number if none
    thickness: (ngeom,) [m] half of the least extent
    shapes: static, those of obstacles; obstacles: for each of them geom ids; meshes: (k,) geom ids
    triangles: of these meshes
    """

    groups: tuple[Swept, ...]
    row: Tensor
    pair: Tensor
    thickness: Tensor
    shapes: tuple[Shape, ...] = tree.field(static=True)
    obstacles: tuple[Tensor, ...]
    meshes: Tensor
    triangles: TrianglePlan


def build(mj_model: mujoco.MjModel, make: Tensors, listed: Listed) -> tuple[SpeculativePlan, ...]:
    """The plan for `mj_model`; none where nothing is foreseen."""
    swept = np.isin(listed.types[:, 0], SWEPT) & np.isin(listed.types[:, 1], SWEPT)
    if not (speculates(mj_model) and swept.any()):
        return ()
    m, count = mj_model, len(swept)
    solid = np.isin(m.geom_type, SWEPT) & ((m.geom_contype != 0) | (m.geom_conaffinity != 0) | _paired(m))
    by_shape = {shape: np.flatnonzero(solid & (m.geom_type == int(shape))) for shape in Shape}
    by_shape = {shape: geoms for shape, geoms in by_shape.items() if len(geoms)}
    meshes = np.flatnonzero(solid & (m.geom_type == MESH))
    obstacles = np.concatenate([np.zeros(0, dtype=np.int64), *by_shape.values(), meshes]).astype(np.int64)
    meet = _meeting(m, tested_pairs(m))
    several = not m.opt.disableflags & DisableBit.MULTICCD

    groups, row, pair = [], np.full(count, -1), np.full(count, -1)
    rows = pairs = 0
    is_plane = np.isin(listed.types[:, 0], PLANE)
    flat = ~is_plane & (listed.most > 1) & several
    for mine in (is_plane, flat, ~is_plane & ~flat):
        first: np.ndarray = np.flatnonzero(swept & (listed.nth == 0) & mine)
        if not len(first):
            continue
        place = np.arange(listed.most[first].max())
        there = place < listed.most[first, None]
        candidate = np.where(there, first[:, None] + place, count)
        contacts = min(MOST, len(place)) if (is_plane | flat)[first[0]] else 1
        taken = there & (place < contacts)
        row[candidate[taken]] = (rows + np.arange(len(first))[:, None] * contacts + place)[taken]
        pair[candidate[there]] = np.broadcast_to(pairs + np.arange(len(first))[:, None], there.shape)[there]
        rows, pairs = rows + contacts * len(first), pairs + len(first)
        geom = listed.geom[first]
        groups.append(
            Swept(
                types=tuple(tuple(np.unique(listed.types[first, k]).tolist()) for k in (0, 1)),  # type: ignore[arg-type]
                contacts=contacts,
                geom=make.ints(geom.T),
                candidate=make.ints(candidate),
                hides=make.bools(_hiding(m, geom, obstacles, meet)),
            )
        )
    return (
        SpeculativePlan(
            groups=tuple(groups),
            row=make.ints(np.where(row < 0, rows, row)),
            pair=make.ints(np.where(pair < 0, pairs, pair)),
            thickness=make.floats(m.geom_aabb[:, 3:].min(1)),
            shapes=tuple(by_shape),
            obstacles=tuple(make.ints(geoms) for geoms in by_shape.values()),
            meshes=make.ints(meshes),
            triangles=triangles.build(m, make, 0, [int(g) for g in meshes]),
        ),
    )


def _paired(m: mujoco.MjModel) -> np.ndarray:
    """(ngeom,) bool: geoms of explicit pairs."""
    return np.isin(np.arange(m.ngeom), [m.pair_geom1, m.pair_geom2])


def _meeting(m: mujoco.MjModel, pairs: GeomPairs) -> np.ndarray:
    """(ngeom, ngeom) bool: which geoms may touch each other."""
    table = np.zeros((m.ngeom, m.ngeom), dtype=bool)
    one, two = pairs.geom[(pairs.geom < m.ngeom).all(1)].T
    table[one, two] = table[two, one] = True
    return table


def _hiding(m: mujoco.MjModel, geom: np.ndarray, obstacles: np.ndarray, meet: np.ndarray) -> np.ndarray:
    """(n, 2, o) bool: obstacles that may touch the one geom of each pair; none is of the same rigid body as the two.

    geom: (n, 2). What cannot move belongs to no rigid body here.
    """
    weld = m.body_weldid[m.geom_bodyid]
    own = ((weld[obstacles] == weld[geom][..., None]) & (weld[obstacles] != 0)).any(1)
    same = (obstacles == geom[..., None]).any(1)
    return meet[geom][..., obstacles] & ~(own | same)[:, None]
