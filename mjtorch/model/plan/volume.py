"""The volumes of sites: primitive shapes, or the convex hulls of meshes."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.math.shape import Shape
from mjtorch.model.plan.tensors import Tensors

MESH = int(mujoco.mjtGeom.mjGEOM_MESH)
# mjtGeom of a site and, for a mesh, its id, else -1.
VolumeKey = tuple[int, int]


@tree.dataclass(kw_only=True)
class Volume(tree.Tree):
    """What sites of one shape enclose.

    shape: static, None for the hull of a mesh
    mesh: (1,) id, 0 if it is none
    hull: (f, 3) vertices of the triangles of the hull, counterclockwise from outside, as rows of `mesh_vert`
    """

    shape: Shape | None = tree.field(static=True)
    mesh: Tensor
    hull: Tensor


def volume_key(m: mujoco.MjModel, site: int) -> VolumeKey:
    """What sites have in common whose volumes are computed together."""
    kind = int(m.site_type[site])
    return kind, int(m.site_dataid[site]) if kind == MESH else -1


def build(m: mujoco.MjModel, make: Tensors, key: VolumeKey) -> Volume:
    """The volume of the sites that have `key`."""
    kind, mesh = key
    hull = _hull(m, mesh) if kind == MESH else np.zeros((0, 3), dtype=np.int64)
    return Volume(
        shape=None if kind == MESH else Shape(kind),
        mesh=make.ints([max(mesh, 0)]),
        hull=make.ints(hull),
    )


def _hull(m: mujoco.MjModel, mesh: int) -> np.ndarray:
    """(f, 3) the triangles of a mesh's convex hull, from the last part of its graph."""
    graph = m.mesh_graph[m.mesh_graphadr[mesh] :]
    nvert, nface = (int(x) for x in graph[:2])
    start = 2 + 3 * nvert + 3 * nface  # after the vertices and their edges
    face = graph[start : start + 3 * nface].reshape(nface, 3)
    return face.astype(np.int64) + int(m.mesh_vertadr[mesh])
