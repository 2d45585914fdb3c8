"""Index plan of the collisions of height fields: how many of their prisms a geom can cover, and are tested."""

from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.colliders import corners, element_flex, vertex_flex
from mjtorch.model.plan.geom_pairs import COLLIDED, HFIELD, GeomPairs, collider_type, together, within
from mjtorch.model.plan.tensors import Tensors

# mjMAXCONPAIR: a pair makes no more contacts.
MOST = int(mujoco.mjMAXCONPAIR)
# Prisms that are tested at a time, for each one that short rollouts show in contact, and on top of that.
MARGIN, SPARE = 2, 256
# Of each pair, which makes no more than `MOST` contacts: of a shape that lies aslant faces tell of few that they are
# apart. It leaves room for others.
OF_PAIR = 256
# How much longer than at rest elements of flexes may become.
STRETCH = 1.5


@tree.dataclass(kw_only=True)
class HeightFields(tree.Tree):
    """The height fields of n pairs. A cell of the grid is two prisms.

    rows, cols: static, how many cells the second geom covers at most, in each direction
    tested: static, how many prisms are tested at a time, of all pairs together; listed: static, how many of each
    field: (n,) height fields, address: (n,) of their first heights, shape: (n, 2) heights along x and along y
    """

    rows: int = tree.field(static=True)
    cols: int = tree.field(static=True)
    tested: int = tree.field(static=True)
    listed: int = tree.field(static=True)
    field: Tensor
    address: Tensor
    shape: Tensor


class Window(NamedTuple):
    """How many cells geoms cover at most, in each direction, and how many contacts they were seen to have together."""

    rows: int
    cols: int
    seen: int = 0

    @property
    def contacts(self) -> int:
        """The most contacts of a pair."""
        return min(2 * self.rows * self.cols, MOST)


def kinds(mj_model: mujoco.MjModel, pairs: GeomPairs) -> dict[tuple[int, int], str]:
    """The types of those of `pairs` that have a height field -> what they are collided as."""
    types = collider_type(mj_model)[pairs.geom]
    there = np.unique(types[types[:, 0] == HFIELD], axis=0).tolist()
    return {(one, two): name for one, two in there if (name := _family(one, two))}


def windows(mj_model: mujoco.MjModel, pairs: GeomPairs, fields: dict[tuple[int, int], str]) -> dict[str, Window]:
    """What the families of height fields are called -> the window of all geoms, of `pairs`, that may meet one.

    fields: as `kinds` has them
    """
    types = collider_type(mj_model)[pairs.geom]
    found: dict[str, Window] = {}
    for kind, name in fields.items():
        mine = (types == kind).all(1)
        some = GeomPairs(pairs.geom[mine], pairs.pair[mine])
        rows, cols, _ = covered(mj_model, some.geom, within(mj_model, some))
        other = found.get(name, Window(rows, cols))
        found[name] = Window(max(rows, other.rows), max(cols, other.cols))
    return found


def _family(type1: int, type2: int) -> str | None:
    """What geoms of two types are collided as, if the first one is a height field."""
    is_field = type1 == HFIELD and (type1, type2) in COLLIDED
    return together(COLLIDED[type1, type2].family) if is_field else None


def covered(m: mujoco.MjModel, geom: np.ndarray, margin: np.ndarray) -> Window:
    """The cells that the second of two colliders cover at most, anywhere, geoms by bounding spheres; contacts with all.

    geom: (n, 2) ids; margin: (n,) [m] by which they are larger
    """
    one, two = geom.T
    field = m.geom_dataid[one]
    cells = np.stack([m.hfield_nrow[field], m.hfield_ncol[field]], axis=-1) - 1
    spacing = 2 * m.hfield_size[field][:, 1::-1] / cells
    reach = _half_lengths(m)[two] + margin
    rows, cols = np.minimum(2 + 2 * reach[:, None] // spacing, cells).astype(int).max(0).tolist()
    return Window(rows, cols, 2 * rows * cols * len(geom))


def _half_lengths(m: mujoco.MjModel) -> np.ndarray:
    """(ncollider,) [m] half of how far colliders extend along any axis, at most; of vertices 0."""
    corner, points = corners(m), len(vertex_flex(m))
    if not len(corner):
        return np.append(m.geom_rbound, np.zeros(points))
    d = mujoco.MjData(m)
    for stage in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_flex):
        stage(m, d)
    place = d.flexvert_xpos[corner]
    length = np.linalg.norm(place[:, :, None] - place[:, None], axis=-1).max((1, 2))
    radius = m.flex_radius[element_flex(m)]
    return np.concatenate([m.geom_rbound, np.zeros(points), 0.5 * STRETCH * length + radius])


def tested(window: Window, pairs: int, least: int) -> int:
    """How many prisms of so many pairs are tested at a time, at least so many if there are as many."""
    prisms = 2 * window.rows * window.cols * pairs
    return prisms if prisms <= SPARE else min(prisms, max(MARGIN * window.seen + SPARE, least))


def build(mj_model: mujoco.MjModel, geoms: np.ndarray, window: Window, least: int, make: Tensors) -> HeightFields:
    """The fields of pairs of `geoms` (n, 2), the first of which are height fields; least: prisms tested at a time."""
    fields = mj_model.geom_dataid[geoms[:, 0]]
    most = tested(window, len(geoms), least)
    return HeightFields(
        rows=window.rows,
        cols=window.cols,
        tested=most,
        listed=min(most, 2 * window.rows * window.cols, max(OF_PAIR, least)),
        field=make.ints(fields),
        address=make.ints(mj_model.hfield_adr[fields]),
        shape=make.ints(np.stack([mj_model.hfield_ncol[fields], mj_model.hfield_nrow[fields]], axis=-1), -1, 2),
    )
