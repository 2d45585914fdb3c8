"""Where the parameters of contacts come from: geoms, flexes or explicit pairs (mj_contactParam)."""

from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from mjtorch.model.plan.colliders import collider_flex, of_colliders
from mjtorch.model.plan.geom_pairs import GeomPairs
from mjtorch.model.plan.tensors import Tensors


def condim(mj_model: mujoco.MjModel, pairs: GeomPairs) -> np.ndarray:
    """Of an explicit pair its own, else that of the geom of higher priority, else the larger."""
    dim, priority = (of_colliders(mj_model, name)[pairs.geom] for name in ("condim", "priority"))
    same = priority[:, 0] == priority[:, 1]
    found = np.where(same, dim.max(1), np.where(priority[:, 0] > priority[:, 1], *dim.T))
    explicit = pairs.pair >= 0
    found[explicit] = mj_model.pair_dim[pairs.pair[explicit]]
    return found


def contact_condim(mj_model: mujoco.MjModel, contact: Any) -> np.ndarray:
    """`condim` (ncon,) of the contacts of an `MjData`, which gives those that stick across a gap one of 1."""
    dim = np.array(contact.dim)
    # This is asked at every step of many, of most of which no contact sticks.
    if not (sticks := contact.adhesion != 0).any():
        return dim
    across = np.flatnonzero(sticks & (contact.dist >= contact.includemargin))
    geom, flex = np.sort(contact.geom[across], axis=1), np.sort(contact.flex[across], axis=1)
    explicit = np.sort([mj_model.pair_geom1, mj_model.pair_geom2], axis=0)
    same = (geom[:, :1] == explicit[0]) & (geom[:, 1:] == explicit[1])
    pair = np.where(same.any(1), np.append(same, np.ones((len(geom), 1), dtype=bool), axis=1).argmax(1), -1)
    # Any vertex stands for its flex.
    vertex = mj_model.ngeom + np.append(mj_model.flex_vertadr, 0)[flex]
    dim[across] = condim(mj_model, GeomPairs(np.where(geom < 0, vertex[:, ::-1], geom), pair))
    return dim


def source(mj_model: mujoco.MjModel, pairs: GeomPairs) -> np.ndarray:
    """The rows (n, 2) of [geoms, flexes, pairs] whose parameters are mixed; of one alone, twice that."""
    one, two = of_colliders(mj_model, "priority")[pairs.geom].T
    geom = pairs.geom.copy()
    for k, wins in ((0, one > two), (1, two > one)):
        geom[wins] = pairs.geom[wins, k][:, None]
    return _rows(mj_model, pairs, geom)


def margin_source(mj_model: mujoco.MjModel, pairs: GeomPairs) -> np.ndarray:
    """The rows (n, 2) of [geoms, flexes, pairs] whose margins and gaps are added; one more for what has neither."""
    found = _rows(mj_model, pairs, pairs.geom)
    found[within_itself(mj_model, pairs)] = mj_model.ngeom + mj_model.nflex + mj_model.npair
    return found


def within_itself(mj_model: mujoco.MjModel, pairs: GeomPairs) -> np.ndarray:
    """(n,) bool: a flex and itself."""
    flex = np.concatenate([np.arange(mj_model.ngeom) - mj_model.ngeom, collider_flex(mj_model)])
    return np.equal(*flex[pairs.geom].T) & (pairs.geom[:, 0] >= mj_model.ngeom)


def adhesion_source(mj_model: mujoco.MjModel, pairs: GeomPairs, make: Tensors) -> tuple[Tensor, ...]:
    """`CollisionPlan.adhesion_source`."""
    if not (mj_model.geom_adhesion.any() or mj_model.pair_adhesion.any()):
        return ()
    owner = _owners(mj_model)
    count = mj_model.ngeom + (mj_model.nflex if len(owner) > mj_model.ngeom else 0)
    table = np.zeros((count, count, 2))
    one, two = owner[pairs.geom].T
    table[one, two] = source(mj_model, pairs)
    return (make.ints(table),)


def _owners(mj_model: mujoco.MjModel) -> np.ndarray:
    """(ncollider,) what each collider belongs to, in [geoms, flexes]."""
    return np.concatenate([np.arange(mj_model.ngeom), mj_model.ngeom + collider_flex(mj_model)])


def _rows(mj_model: mujoco.MjModel, pairs: GeomPairs, otherwise: np.ndarray) -> np.ndarray:
    """The row of an explicit pair in [geoms, flexes, pairs], twice; for others those of the colliders (n, 2)."""
    explicit, owner = pairs.pair >= 0, _owners(mj_model)
    rows = owner[otherwise]
    flexes = mj_model.nflex if len(owner) > mj_model.ngeom else 0
    rows[explicit] = mj_model.ngeom + flexes + pairs.pair[explicit, None]
    return rows
