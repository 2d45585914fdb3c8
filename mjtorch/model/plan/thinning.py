"""Of which pairs C keeps no more than some contacts: of rigid flexes and grids, with geoms and with each other."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.colliders import collider_flex
from mjtorch.model.plan.tensors import Tensors

# mjMAXCONPAIR: the contacts that are kept.
MOST = int(mujoco.mjMAXCONPAIR)


@tree.dataclass(kw_only=True)
class ThinningPlan(tree.Tree):
    """Pairs of a geom and a flex, or two flexes, of whose contacts only some are kept.

    pairs: static, how many there are
    thing: (ncollider,) which geom each collider is, or of which flex it is a part; flexes come after the geoms
    column: (ncollider,) of `pair`: one for each flex, after one for all geoms
    pair: (n, 1 + nflex) the number of the pair that a thing is with a flex after it, `pairs` where they are none
    """

    pairs: int = tree.field(static=True)
    thing: Tensor
    column: Tensor
    pair: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors, geom: np.ndarray, found: np.ndarray) -> tuple[ThinningPlan, ...]:
    """One plan, or none if no pair can have too many contacts.

    geom: (n, 2) the colliders of all candidates that are listed; found: (m, 2) elements of flexes of which those that
        are near each other are found as they come
    """
    thing = np.concatenate([np.arange(mj_model.ngeom), mj_model.ngeom + collider_flex(mj_model)])
    stiff = np.concatenate([np.ones(mj_model.ngeom), (mj_model.flex_rigid != 0) | (mj_model.flex_interp != 0)]) != 0
    kinds, count = np.unique(np.sort(thing[geom].reshape(-1, 2), axis=1), axis=0, return_counts=True)
    kinds = np.concatenate([kinds[count > MOST], np.sort(thing[found].reshape(-1, 2), axis=1)])
    kinds = np.unique(kinds[stiff[kinds].all(1) & (kinds[:, 1] >= mj_model.ngeom)], axis=0)
    if not len(kinds):
        return ()
    column = (np.arange(len(stiff)) + 1 - mj_model.ngeom).clip(min=0)
    pair = np.full((len(stiff), 1 + mj_model.nflex), len(kinds))
    pair[kinds[:, 0], column[kinds[:, 1]]] = np.arange(len(kinds))
    return (
        ThinningPlan(pairs=len(kinds), thing=make.ints(thing), column=make.ints(column[thing]), pair=make.ints(pair)),
    )
