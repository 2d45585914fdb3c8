"""Index plan of passive contacts: which contacts of flexes are springs instead of constraints."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.colliders import bodies_of, carriers, collider_flex, vertex_flex
from mjtorch.model.plan.flex_points import asking
from mjtorch.model.plan.tensors import Tensors


@tree.dataclass(kw_only=True)
class PassiveContactPlan(tree.Tree):
    """Contacts of flexes that ask for it, with flexes and with geoms that do not move.

    asks: (ncollider,) bool, vertices and elements of flexes that ask for it
    still: (ncollider,) bool, flexes, and geoms that are fixed in the world; bodies of `mocap` are not
    mass_dof: (n,) of vertices that carry contacts the first dof, whose inertia is that of a point; `nv`: it is no point
    node: (nv, ngrid) where dofs are the first ones of nodes of a grid that slide freely, vertices per such node, else 0
    """

    asks: Tensor
    still: Tensor
    mass_dof: Tensor
    node: Tensor


def are_passive(m: mujoco.MjModel, geom: np.ndarray, flex: np.ndarray) -> np.ndarray:
    """(ncon,) bool: contacts of geoms, or flexes, (ncon, 2) that are passive."""
    fixed = np.append(fixed_geoms(m), True)
    return np.append(asking(m), False)[flex].any(axis=1) & fixed[np.where(flex < 0, geom, -1)].all(axis=1)


def fixed_geoms(m: mujoco.MjModel) -> np.ndarray:
    """(ngeom,) bool: geoms that are fixed in the world."""
    return m.body_weldid[m.geom_bodyid] == 0


def build(m: mujoco.MjModel, make: Tensors) -> tuple[PassiveContactPlan, ...]:
    """One, if a flex that may touch something asks for it."""
    flex = collider_flex(m)
    if not asking(m)[flex].any():
        return ()
    body, vertices = carriers(m)[0][:, 0], np.arange(m.ngeom, m.ngeom + len(vertex_flex(m)))
    point = np.zeros(len(body), dtype=bool)
    point[vertices] = (m.body_dofnum[body[vertices]] == 3) & (m.flex_interp[vertex_flex(m)] == 0)
    grids = np.flatnonzero(m.flex_interp)
    node = np.zeros((m.nv, len(grids)))
    for k, f in enumerate(grids):
        nodes = bodies_of(m, int(f))
        free = nodes[m.body_dofnum[nodes] == 3]
        node[m.body_dofadr[free], k] = m.flex_vertnum[f] / max(len(free), 1)
    return (
        PassiveContactPlan(
            asks=make.bools(np.concatenate([np.zeros(m.ngeom, dtype=bool), asking(m)[flex]])),
            still=make.bools(np.concatenate([fixed_geoms(m), np.ones(len(flex), dtype=bool)])),
            mass_dof=make.ints(np.where(point, m.body_dofadr[body], m.nv)),
            node=make.floats(node, m.nv, len(grids)),
        ),
    )
