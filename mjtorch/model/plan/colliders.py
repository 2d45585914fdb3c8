"""*Colliders*: the geoms, and in models whose flexes may touch something their vertices, then their elements."""

import mujoco
import numpy as np
import torch

from mjtorch.model.option import DisableBit
from mjtorch.model.plan.flex_grid import between
from mjtorch.model.plan.flex_points import Builder
from mjtorch.model.plan.tensors import Tensors

# Geoms that lines and triangles may touch.
ROUND_OR_BOX = tuple(int(getattr(mujoco.mjtGeom, f"mjGEOM_{name}")) for name in ("SPHERE", "CAPSULE", "BOX"))


def met_planes(m: mujoco.MjModel) -> np.ndarray:
    """(n, 2) planes, which do not move, and the flexes that may touch them, in the order of these."""
    still = m.body_dofnum[m.body_weldid[m.geom_bodyid]] == 0
    planes = still & (m.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)
    return np.argwhere(meeting(m) & planes[:, None])


def met_solids(m: mujoco.MjModel) -> np.ndarray:
    """(n, 2) spheres, capsules and boxes, and the lines and membranes on bodies that may touch them."""
    mine = (m.flex_dim < 3) & (m.flex_interp == 0)
    return np.argwhere(meeting(m) & np.isin(m.geom_type, ROUND_OR_BOX)[:, None] & mine)


def meeting(m: mujoco.MjModel) -> np.ndarray:
    """(ngeom, nflex) bool: whether geoms and flexes may meet, and one of them moves."""
    if m.opt.disableflags & (DisableBit.CONTACT | DisableBit.CONSTRAINT):
        return np.zeros((m.ngeom, m.nflex), dtype=bool)
    one, two = m.geom_contype[:, None] & m.flex_conaffinity, m.geom_conaffinity[:, None] & m.flex_contype
    moves = m.body_dofnum[m.body_weldid] > 0
    return ((one != 0) | (two != 0)) & (moves[m.geom_bodyid][:, None] | moving(m))


def moving(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that move, as a whole or in part."""
    moves = m.body_dofnum[m.body_weldid] > 0
    found = np.zeros(m.nflex, dtype=bool)
    for f in range(m.nflex):
        first, count, body = m.flex_vertadr[f], m.flex_vertnum[f], m.flex_vertbodyid
        if m.flex_interp[f]:
            first, count, body = m.flex_nodeadr[f], m.flex_nodenum[f], m.flex_nodebodyid
        found[f] = moves[body[first : first + count]].any()
    return found


def vertex_flex(m: mujoco.MjModel) -> np.ndarray:
    """(n,) the flex of each vertex that is a collider: of all, or, if no flex may touch anything, of none."""
    if not m.nflex or not (len(met_planes(m)) or len(met_solids(m))):
        return np.zeros(0, dtype=np.int64)
    return np.repeat(np.arange(m.nflex), m.flex_vertnum)


def element_flex(m: mujoco.MjModel) -> np.ndarray:
    """(n,) the flex of each element that is a collider: of all of them, if any may touch a geom, or of none."""
    return np.repeat(np.arange(m.nflex), m.flex_elemnum if m.nflex and len(met_solids(m)) else 0)


def corners(m: mujoco.MjModel) -> np.ndarray:
    """(n, 3) the vertices of each element that is a collider; of a line the second one twice."""
    found = np.zeros((len(element_flex(m)), 3), dtype=np.int64)
    for f in np.unique(element_flex(m)):
        size, count = m.flex_dim[f] + 1, m.flex_elemnum[f]
        start = m.flex_elemdataadr[f]
        vertex = m.flex_elem[start : start + size * count].reshape(count, size)[:, [0, 1, min(2, size - 1)]]
        found[m.flex_elemadr[f] : m.flex_elemadr[f] + count] = m.flex_vertadr[f] + vertex
    return found


def collider_flex(m: mujoco.MjModel) -> np.ndarray:
    """(n,) the flexes of the colliders that are no geoms."""
    return np.concatenate([vertex_flex(m), element_flex(m)])


def of_colliders(m: mujoco.MjModel, name: str) -> np.ndarray:
    """What geoms and flexes have under the same name, such as "margin", of all colliders."""
    geoms, flexes = getattr(m, f"geom_{name}"), getattr(m, f"flex_{name}")
    return np.concatenate([geoms, flexes[collider_flex(m)]])


def collider_body(m: mujoco.MjModel) -> np.ndarray:
    """(n,) the bodies that carry colliders: the first vertex of an element, the first node of a grid (mj_flexBody)."""
    flex = vertex_flex(m)
    vertex = m.flex_vertbodyid[: len(flex)].copy()
    grid = m.flex_interp[flex] != 0
    vertex[grid] = m.flex_nodebodyid[m.flex_nodeadr[flex[grid]]]
    return np.concatenate([m.geom_bodyid, vertex, vertex[corners(m)[:, 0]]])


def carriers(m: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """(n, w) the bodies that carry geoms and vertices, and the part of it that each carries: one, or those of nodes."""
    flex = vertex_flex(m)
    bodies = collider_body(m)[: m.ngeom + len(flex), None]
    shares = np.ones(bodies.shape)
    grid = m.ngeom + np.flatnonzero(m.flex_interp[flex])
    if len(grid):
        b = Builder(m, Tensors(torch.device("cpu"), torch.float64))
        node, weight = between(b)
        bodies = np.repeat(bodies, weight.shape[1], axis=1)
        shares = np.pad(shares, [(0, 0), (0, weight.shape[1] - 1)])
        bodies[grid], shares[grid] = b.body[node], weight
    return bodies, shares


def collider_trees(m: mujoco.MjModel) -> np.ndarray:
    """(n, w) the kinematic trees that move each collider, filled up with -1."""
    bodies, shares = carriers(m)
    trees = np.where(shares != 0, m.body_treeid[bodies], -1)
    of_corners = trees[m.ngeom + corners(m)].reshape(-1, 3 * trees.shape[1])
    if len(of_corners):
        trees = np.pad(trees, [(0, 0), (0, 2 * trees.shape[1])], constant_values=-1)
    return np.concatenate([trees, of_corners]) if len(of_corners) else trees
