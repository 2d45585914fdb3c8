"""*Colliders*: the geoms, and in models whose flexes may touch something their vertices, then their elements."""

import itertools

import mujoco
import numpy as np
import torch

from mjtorch.model.option import DisableBit, EnableBit
from mjtorch.model.plan.flex_grid import between, filled_up, on_surface
from mjtorch.model.plan.flex_points import Builder
from mjtorch.model.plan.flex_rod import turned_bodies, twisting
from mjtorch.model.plan.tensors import Tensors

# More pairs of elements that may touch each other than these are found by patches; where contacts are foreseen all are
# listed, so that there may be no more than the others: of 1.4 million `put_model` takes 0.9 GB and 48 s.
LISTED, MOST_PAIRS = 2_000, 4_000_000
# Convex geoms.
SOLIDS = tuple(
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{name}"))
    for name in ("SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX", "MESH")
)
# Geoms that the flag `ipc` has membranes meet by itself, if they are fixed.
SURFACES = {
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{name.upper()}")): name
    for name in ("plane", "sphere", "capsule", "box", "mesh")
}
HFIELD, SDF = int(mujoco.mjtGeom.mjGEOM_HFIELD), int(mujoco.mjtGeom.mjGEOM_SDF)


def met_planes(m: mujoco.MjModel) -> np.ndarray:
    """(n, 2) planes, which do not move, and the flexes that may touch them, in the order of these."""
    still = m.body_dofnum[m.body_weldid[m.geom_bodyid]] == 0
    planes = still & (m.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)
    return np.argwhere(meeting(m) & planes[:, None])


def met_solids(m: mujoco.MjModel) -> np.ndarray:
    """(n, 2) geoms and the flexes whose elements may touch them: of distance fields membranes alone."""
    touched = np.isin(m.geom_type, (*SOLIDS, HFIELD))[:, None] | ((m.geom_type == SDF)[:, None] & (m.flex_dim == 2))
    return np.argwhere(meeting(m) & touched)


def meeting(m: mujoco.MjModel) -> np.ndarray:
    """(ngeom, nflex) bool: whether geoms and flexes may meet, and one of them moves."""
    if no_contacts(m):
        return np.zeros((m.ngeom, m.nflex), dtype=bool)
    one, two = m.geom_contype[:, None] & m.flex_conaffinity, m.geom_conaffinity[:, None] & m.flex_contype
    moves = m.body_dofnum[m.body_weldid] > 0
    return ((one != 0) | (two != 0)) & (moves[m.geom_bodyid][:, None] | moving(m)) & ~owned_geoms(m)


def met_flexes(m: mujoco.MjModel) -> np.ndarray:
    """(n, 2) flexes that may touch each other, the first one's number being less, or touch themselves: no grid does."""
    if no_contacts(m):
        return np.zeros((0, 2), dtype=np.int64)
    one, moves = (m.flex_contype[:, None] & m.flex_conaffinity) != 0, moving(m)
    meets = np.triu((one | one.T) & (moves[:, None] | moves), 1)
    meets &= ~(membranes(m)[:, None] & membranes(m))
    itself = (
        one.diagonal() & ~membranes(m) & ~m.flex_rigid.astype(bool) & (m.flex_selfcollide != 0) & (m.flex_interp == 0)
    )
    return np.argwhere(meets | np.diag(itself))


def pushes_membranes(m: mujoco.MjModel) -> bool:
    """Whether contacts of membranes are solved for in a loop around the step."""
    return bool(m.opt.enableflags & EnableBit.IPC and (m.flex_dim == 2).any())


def membranes(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes of which contacts are solved for in a loop around the step."""
    return (m.flex_dim == 2) & pushes_membranes(m)


def owned_geoms(m: mujoco.MjModel) -> np.ndarray:
    """(ngeom, nflex) bool: geoms and membranes that may meet only there."""
    meets = (m.geom_contype[:, None] & m.flex_conaffinity) | (m.geom_conaffinity[:, None] & m.flex_contype)
    fixed = (m.body_weldid[m.geom_bodyid] == 0) & np.isin(m.geom_type, [*SURFACES])
    mesh: np.ndarray = m.geom_type == mujoco.mjtGeom.mjGEOM_MESH
    fixed[mesh] &= m.mesh_graphadr[m.geom_dataid[mesh]] >= 0
    return (meets != 0) & fixed[:, None] & membranes(m)


def pairs_of_elements(m: mujoco.MjModel) -> np.ndarray:
    """(n,) how many pairs of elements of each of `met_flexes` there are."""
    met = met_flexes(m)
    count = np.bincount(np.repeat(np.arange(m.nflex), m.flex_elemnum)[active(m)], minlength=m.nflex)[met]
    one, two = count.T
    return np.where(met[:, 0] == met[:, 1], one * (one - 1) // 2, one * two)


def patched(m: mujoco.MjModel) -> bool:
    """Whether pairs of elements are found by patches, and are not listed."""
    return not speculates(m) and pairs_of_elements(m).sum() > LISTED


def too_many(m: mujoco.MjModel) -> np.ndarray:
    """Those of `met_flexes` (n,) bool whose pairs of elements are too many to be listed, where they have to be."""
    return (pairs_of_elements(m) > MOST_PAIRS) & speculates(m)


def speculates(m: mujoco.MjModel) -> bool:
    """Whether contacts are foreseen: by the flag, and as C does, only with its own collider of convex shapes."""
    return bool(m.opt.enableflags & EnableBit.SPECULATIVE) and not m.opt.disableflags & DisableBit.NATIVECCD


def no_contacts(m: mujoco.MjModel) -> bool:
    """Whether contacts are disabled."""
    return bool(m.opt.disableflags & (DisableBit.CONTACT | DisableBit.CONSTRAINT))


def moving(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that move, as a whole or in part."""
    moves = m.body_dofnum[m.body_weldid] > 0
    found = np.zeros(m.nflex, dtype=bool)
    for f in range(m.nflex):
        found[f] = moves[bodies_of(m, f)].any()
    return found


def bodies_of(m: mujoco.MjModel, flex: int) -> np.ndarray:
    """(n,) the bodies of the vertices of a flex; of grids, of the nodes."""
    if m.flex_interp[flex]:
        return m.flex_nodebodyid[m.flex_nodeadr[flex] :][: m.flex_nodenum[flex]]
    return m.flex_vertbodyid[m.flex_vertadr[flex] :][: m.flex_vertnum[flex]]


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


def grids_touch(m: mujoco.MjModel) -> bool:
    """Whether elements of grids may touch something."""
    return bool(m.flex_interp[np.concatenate([met_solids(m)[:, 1], met_flexes(m).ravel()])].any())


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
    """(n, w) the bodies that carry geoms, vertices, and nodes if elements of grids touch, and the part that each does.

    Vertices of grids are carried by the bodies of nodes, and the nodes within a shell by those on its surface.
    """
    flex = vertex_flex(m)
    bodies = collider_body(m)[: m.ngeom + len(flex), None]
    shares = np.ones(bodies.shape)
    grid = m.ngeom + np.flatnonzero(m.flex_interp[flex])
    if not len(grid):
        return bodies, shares
    b = Builder(m, Tensors(torch.device("cpu"), torch.float64))
    (node, weight), (own, part) = between(b), on_surface(b)
    if not grids_touch(m):
        own, part = own[:0], part[:0]
    width = max(node.shape[1], own.shape[1])
    bodies = np.concatenate([np.repeat(bodies, width, axis=1), filled_up(b.body[own], width)])
    shares = np.concatenate([filled_up(shares, width), filled_up(part, width)])
    bodies[grid], shares[grid] = filled_up(b.body[node], width), filled_up(weight, width)
    return bodies, shares


def collider_trees(m: mujoco.MjModel) -> np.ndarray:
    """(n, w) the kinematic trees that move each collider, filled up with -1.

    All of a rod are in one island: one of them is enough.
    """
    bodies, shares = carriers(m)
    trees = np.where(shares != 0, m.body_treeid[bodies], -1)
    for f in np.flatnonzero(twisting(m)).tolist() if len(vertex_flex(m)) else []:
        of_rod = m.ngeom + m.flex_vertadr[f] + np.arange(m.flex_vertnum[f])
        trees[of_rod, 0] = np.where(trees[of_rod, 0] < 0, m.body_treeid[turned_bodies(m, f)].max(), trees[of_rod, 0])
    points, made_of = m.ngeom + len(vertex_flex(m)), m.ngeom + corners(m)
    grids = len(trees) > points
    if grids:
        # Where between its nodes an element is touched is not known.
        nodes = points + nodes_around(m)
        of_grid = m.flex_interp[element_flex(m)] != 0
        width = max(nodes.shape[1], made_of.shape[1])
        nodes, made_of = (np.pad(x, [(0, 0), (0, width - x.shape[1])], mode="edge") for x in (nodes, made_of))
        made_of = np.where(of_grid[:, None], nodes, made_of)
    of_elements = trees[made_of].reshape(len(made_of), made_of.shape[1] * trees.shape[1])
    of_elements = distinct(of_elements) if grids else of_elements
    trees = trees[:points]
    if not len(of_elements):
        return trees
    width = max(trees.shape[1], of_elements.shape[1])
    return np.concatenate([filled_up(trees, width, -1), filled_up(of_elements, width, -1)])


def distinct(numbers: np.ndarray) -> np.ndarray:
    """(n, w) the different numbers of each row, which are -1 or more, in falling order and filled up with -1."""
    falling = -np.sort(-numbers, axis=1)
    falling[:, 1:][falling[:, 1:] == falling[:, :-1]] = -1
    falling = -np.sort(-falling, axis=1)
    return falling[:, : max(1, int((falling >= 0).sum(1).max(initial=0)))]


def nodes_around(m: mujoco.MjModel) -> np.ndarray:
    """(n, w) the nodes of the cells of grids that each element reaches into, repeated; of other elements node 0."""
    flex, corner, found = element_flex(m), corners(m), []
    for f, vertex in zip(flex.tolist(), corner, strict=True):
        order, count = abs(int(m.flex_interp[f])), m.flex_cellnum[f]
        at = m.flex_vert0[vertex] * count
        low = np.floor(at.min(0)).clip(0, count - 1).astype(int)
        high = np.ceil(at.max(0)).clip(low + 1, count).astype(int)
        axes = [range(order * a, order * b + 1) for a, b in zip(low, high, strict=True)] if order else []
        steps = np.array(list(itertools.product(*axes)), dtype=int).reshape(-1, 3)
        size = count * order + 1
        found.append(m.flex_nodeadr[f] + steps @ [size[1] * size[2], size[2], 1] if order else np.zeros(1, dtype=int))
    width = max(map(len, found))
    return np.stack([np.pad(x, (0, width - len(x)), mode="edge") for x in found])
