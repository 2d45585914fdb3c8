"""Index plan of the collisions of height fields: how many of their prisms a geom can cover, and are tested."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import contact_capacity
from mjtorch.model.plan.geom_pairs import HFIELD, SUPPORTED, GeomPair, together, types
from mjtorch.model.plan.tensors import Tensors

# mjMAXCONPAIR: a pair makes no more contacts.
MOST = int(mujoco.mjMAXCONPAIR)
# Prisms that are tested at a time, for each one that short rollouts show in contact, and on top of that.
MARGIN, SPARE = 2, 16


@tree.dataclass(kw_only=True)
class HeightFields(tree.Tree):
    """The height fields of n pairs. A cell of the grid is two prisms.

    rows, cols: static, how many cells the second geom covers at most, in each direction
    tested: static, how many prisms are tested at a time, of all pairs together
    field: (n,) height fields, address: (n,) of their first heights, shape: (n, 2) heights along x and along y
    """

    rows: int = tree.field(static=True)
    cols: int = tree.field(static=True)
    tested: int = tree.field(static=True)
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


def windows(mj_model: mujoco.MjModel, pairs: Sequence[GeomPair]) -> dict[str, Window]:
    """What the families of height fields are called -> the window of all geoms, of `pairs`, that may meet one."""
    found: dict[str, Window] = {}
    for pair in pairs:
        name = _family(*types(mj_model, pair))
        if name:
            mine = _window(mj_model, pair)
            other = found.get(name, mine)
            found[name] = Window(max(mine.rows, other.rows), max(mine.cols, other.cols))
    if not found:
        return found
    seen = _seen(mj_model)
    return {name: window._replace(seen=seen[name]) for name, window in found.items()}


def _family(type1: int, type2: int) -> str | None:
    """What geoms of two types are collided as, if the first one is a height field."""
    is_field = type1 == HFIELD and (type1, type2) in SUPPORTED
    return together(SUPPORTED[type1, type2].family) if is_field else None


def _window(mj_model: mujoco.MjModel, pair: GeomPair) -> Window:
    """The cells that the bounding sphere of a geom covers at most, wherever it is."""
    m, geoms = mj_model, [pair.geom1, pair.geom2]
    if pair.pair >= 0:
        reach = m.pair_margin[pair.pair] + m.pair_gap[pair.pair]
    else:
        reach = (m.geom_margin[geoms] + m.geom_gap[geoms]).sum()
    field = m.geom_dataid[pair.geom1]
    cells = np.array([m.hfield_ncol[field], m.hfield_nrow[field]]) - 1
    spacing = 2 * m.hfield_size[field, :2] / cells
    cols, rows = np.minimum(2 + 2 * (m.geom_rbound[pair.geom2] + reach) // spacing, cells).astype(int).tolist()
    return Window(rows, cols)


def build(mj_model: mujoco.MjModel, geoms: Sequence[tuple[int, int]], window: Window, make: Tensors) -> HeightFields:
    """The fields of pairs of `geoms`, the first of which are height fields."""
    fields = mj_model.geom_dataid[[one for one, _ in geoms]]
    prisms = 2 * window.rows * window.cols * len(geoms)
    return HeightFields(
        rows=window.rows,
        cols=window.cols,
        tested=prisms if prisms <= SPARE else min(prisms, MARGIN * window.seen + SPARE),
        field=make.ints(fields),
        address=make.ints(mj_model.hfield_adr[fields]),
        shape=make.ints(np.stack([mj_model.hfield_ncol[fields], mj_model.hfield_nrow[fields]], axis=-1), -1, 2),
    )


def _seen(mj_model: mujoco.MjModel) -> Counter[str | None]:
    """For each family of height fields, the most contacts at a time, in short rollouts."""
    most: Counter[str | None] = Counter()
    for _, data in contact_capacity.states(mj_model):
        most |= Counter(_family(*pair) for pair in mj_model.geom_type[data.contact.geom].tolist())
    return most
