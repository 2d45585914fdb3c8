"""Convex hulls of meshes as arrays of one shape each."""

from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import numpy as np


class Hulls(NamedTuple):
    """The hulls of n meshes, padded to the largest by repetition.

    vert: (n, nvert, 3) [m] vertices in the frame of the geom
    face: (n, nface, k) vertices of the polygons, counterclockwise from outside; normal: (n, nface, 3) unit, outward
    degree: the most polygons at any vertex
    """

    vert: np.ndarray
    face: np.ndarray
    normal: np.ndarray
    degree: int


def hulls(mj_model: mujoco.MjModel, meshes: Sequence[int]) -> Hulls:
    """The hulls of `meshes`, in that order; there are no faces if one of the meshes has none."""
    parts = [_hull(mj_model, mesh) for mesh in meshes]
    faces = [face for _, face, _ in parts]
    if not all(faces):
        vert = _stacked([mj_vert for mj_vert, _, _ in parts])
        return Hulls(vert, np.zeros((len(parts), 0, 3), dtype=np.int64), np.zeros((len(parts), 0, 3)), 0)
    corners = max(len(polygon) for face in faces for polygon in face)
    padded = [np.array([_repeated(np.array(polygon), corners) for polygon in face]) for face in faces]
    degree = max(np.bincount(np.concatenate([np.unique(p) for p in face])).max() for face in faces)
    return Hulls(
        _stacked([vert for vert, _, _ in parts]),
        _stacked(padded),
        _stacked([normal for _, _, normal in parts]),
        int(degree),
    )


def hull_reach(mj_model: mujoco.MjModel) -> np.ndarray:
    """How far (ngeom, 3) [m] the meshes of geoms reach along their axes, either way; zero for other geoms."""
    reach = np.zeros((mj_model.ngeom, 3))
    types = [mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_SDF]
    for geom in np.flatnonzero(np.isin(mj_model.geom_type, types) & (mj_model.geom_dataid >= 0)):
        first, count = (int(x[mj_model.geom_dataid[geom]]) for x in (mj_model.mesh_vertadr, mj_model.mesh_vertnum))
        reach[geom] = np.abs(mj_model.mesh_vert[first : first + count]).max(0)
    return reach


def _hull(mj_model: mujoco.MjModel, mesh: int) -> tuple[np.ndarray, list[list[int]], np.ndarray]:
    """Vertices that are on the hull, polygons of these, and their normals."""
    first, count = mj_model.mesh_vertadr[mesh], mj_model.mesh_vertnum[mesh]
    vert = mj_model.mesh_vert[first : first + count].astype(float)
    polygons = range(mj_model.mesh_polyadr[mesh], mj_model.mesh_polyadr[mesh] + mj_model.mesh_polynum[mesh])
    if not polygons:
        return vert, [], np.zeros((0, 3))
    address, length = mj_model.mesh_polyvertadr, mj_model.mesh_polyvertnum
    face = [mj_model.mesh_polyvert[address[p] : address[p] + length[p]].tolist() for p in polygons]
    used = sorted({v for polygon in face for v in polygon})
    number = {v: k for k, v in enumerate(used)}
    return vert[used], [[number[v] for v in polygon] for polygon in face], mj_model.mesh_polynormal[list(polygons)]


def _repeated(x: np.ndarray, count: int) -> np.ndarray:
    """With the last row repeated until there are `count`."""
    return np.concatenate([x, np.repeat(x[-1:], count - len(x), axis=0)])


def _stacked(arrays: list[np.ndarray]) -> np.ndarray:
    count = max(len(x) for x in arrays)
    return np.stack([_repeated(x, count) for x in arrays])
