"""*Colliders*: the geoms, and in models whose flexes may touch something their vertices, then their elements."""

import mujoco
import numpy as np
import torch

from mjtorch.model.option import DisableBit
from mjtorch.model.plan.flex_grid import between
from mjtorch.model.plan.flex_points import Builder
from mjtorch.model.plan.tensors import Tensors

# Geoms that elements may touch.
SOLIDS = tuple(
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{name}"))
    for name in ("SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX", "MESH")
)


def met_planes(m: mujoco.MjModel) -> np.ndarray:
    """(n, 2) planes, which do not move, and the flexes that may touch them, in the order of these."""
    still = m.body_dofnum[m.body_weldid[m.geom_bodyid]] == 0
    planes = still & (m.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)
    return np.argwhere(meeting(m) & planes[:, None])


def met_solids(m: mujoco.MjModel) -> np.ndarray:
    """(n, 2) convex geoms, and the flexes on bodies that may touch them."""
    return np.argwhere(meeting(m) & np.isin(m.geom_type, SOLIDS)[:, None] & (m.flex_interp == 0))


def meeting(m: mujoco.MjModel) -> np.ndarray:
    """(ngeom, nflex) bool: whether geoms and flexes may meet, and one of them moves."""
    if no_contacts(m):
        return np.zeros((m.ngeom, m.nflex), dtype=bool)
    one, two = m.geom_contype[:, None] & m.flex_conaffinity, m.geom_conaffinity[:, None] & m.flex_contype
    moves = m.body_dofnum[m.body_weldid] > 0
    return ((one != 0) | (two != 0)) & (moves[m.geom_bodyid][:, None] | moving(m))


def met_flexes(m: mujoco.MjModel) -> np.ndarray:
    """(n, 2) flexes on bodies that may touch each other, the first one's number being less, or touch themselves."""
    if no_contacts(m):
        return np.zeros((0, 2), dtype=np.int64)
    one, moves = (m.flex_contype[:, None] & m.flex_conaffinity) != 0, moving(m)
    meets = np.triu((one | one.T) & (moves[:, None] | moves), 1)
    itself = one.diagonal() & ~m.flex_rigid.astype(bool) & (m.flex_selfcollide != 0)
    return np.argwhere((meets | np.diag(itself)) & (m.flex_interp[:, None] == 0) & (m.flex_interp == 0))


def no_contacts(m: mujoco.MjModel) -> bool:
    """Whether contacts are disabled."""
    return bool(m.opt.disableflags & (DisableBit.CONTACT | DisableBit.CONSTRAINT))


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
    if not m.nflex or not (len(met_planes(m)) or elements_touch(m)):
        return np.zeros(0, dtype=np.int64)
    return np.repeat(np.arange(m.nflex), m.flex_vertnum)


def element_flex(m: mujoco.MjModel) -> np.ndarray:
    """(n,) the flex of each element that is a collider: of all of them, if any may touch something, or of none."""
    return np.repeat(np.arange(m.nflex), m.flex_elemnum if m.nflex and elements_touch(m) else 0)


def elements_touch(m: mujoco.MjModel) -> bool:
    """Whether elements of flexes may touch geoms, or each other."""
    return bool(len(met_solids(m)) or len(met_flexes(m)))


def active(m: mujoco.MjModel) -> np.ndarray:
    """(nflexelem,) bool: the elements that may touch something; of solids, the outer layers."""
    flex = np.repeat(np.arange(m.nflex), m.flex_elemnum)
    return (m.flex_dim[flex] < 3) | (m.flex_elemlayer < m.flex_activelayers[flex])


def corners(m: mujoco.MjModel) -> np.ndarray:
    """(n, k) the vertices of each element that is a collider, k being 4 if there are solids, else 3.

    Of lines and triangles the last one is there again.
    """
    flex = element_flex(m)
    width = 4 if (m.flex_dim[flex] == 3).any() else 3
    found = np.zeros((len(flex), width), dtype=np.int64)
    for f in np.unique(flex):
        size, count = m.flex_dim[f] + 1, m.flex_elemnum[f]
        start = m.flex_elemdataadr[f]
        vertex = m.flex_elem[start : start + size * count].reshape(count, size)
        vertex = vertex[:, np.arange(width).clip(max=size - 1)]
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
    corner = corners(m)
    of_corners = trees[m.ngeom + corner].reshape(-1, corner.shape[1] * trees.shape[1])
    if len(of_corners):
        trees = np.pad(trees, [(0, 0), (0, of_corners.shape[1] - trees.shape[1])], constant_values=-1)
    return np.concatenate([trees, of_corners]) if len(of_corners) else trees
