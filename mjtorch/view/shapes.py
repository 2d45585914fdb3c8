"""Geoms as triangles and colours."""

from dataclasses import dataclass

import mujoco
import numpy as np

GEOM = mujoco.mjtGeom
# Of circles, and of half a circle from pole to pole.
SEGMENTS, RINGS = 32, 16
# A plane without bounds reaches this many times as far as the model.
REACH = 8.0
# Colours of geoms that have one of their own beside a material.
GREY = np.array([0.5, 0.5, 0.5, 1.0], np.float32)


@dataclass(frozen=True)
class Shape:
    """Triangles.

    vertices: (n, 3) [m], those of an edge twice
    faces: (k, 3) numbers of vertices, counterclockwise seen from outside
    """

    vertices: np.ndarray
    faces: np.ndarray


Key = tuple[object, ...]


def key(mj_model: mujoco.MjModel, geom_id: int) -> tuple[Key, np.ndarray]:
    """What `shape` a geom has, for which geoms share one, and its scale (3,) along the axes."""
    kind, size = GEOM(int(mj_model.geom_type[geom_id])), mj_model.geom_size[geom_id]
    data_id = int(mj_model.geom_dataid[geom_id])
    if kind in (GEOM.mjGEOM_SPHERE, GEOM.mjGEOM_ELLIPSOID):
        return ("sphere",), np.full(3, size[0]) if kind == GEOM.mjGEOM_SPHERE else size.copy()
    if kind == GEOM.mjGEOM_CAPSULE:
        return ("capsule", float(size[1] / size[0])), np.full(3, size[0])
    if kind == GEOM.mjGEOM_CYLINDER:
        return ("cylinder",), np.array([size[0], size[0], size[1]])
    if kind == GEOM.mjGEOM_BOX:
        return ("box",), size.copy()
    if kind == GEOM.mjGEOM_PLANE:
        half = [x if x else REACH * mj_model.stat.extent for x in size[:2]]
        return ("plane",), np.array([*half, 1.0])
    if kind == GEOM.mjGEOM_HFIELD:
        return ("hfield", data_id), np.ones(3)
    return ("mesh", data_id), np.ones(3)  # mjGEOM_SDF has one, too


def shape(mj_model: mujoco.MjModel, wanted: Key) -> Shape:
    """The triangles of a `key`, of radius or half-size 1 where they are scaled."""
    name, *rest = wanted
    angles = np.linspace(0, np.pi, RINGS + 1)
    circle = np.stack([np.sin(angles), np.cos(angles)], -1)
    if name == "sphere":
        return revolved(circle)
    if name == "capsule":
        half = np.where(np.arange(RINGS + 2) <= RINGS // 2, 1, -1) * float(rest[0])  # type: ignore[arg-type]
        both = np.concatenate([circle[: RINGS // 2 + 1], circle[RINGS // 2 :]])
        return revolved(np.stack([both[:, 0], both[:, 1] + half], -1))
    if name == "cylinder":
        return revolved(np.array([[0, 1], [1, 1], [1, 1], [1, -1], [1, -1], [0, -1.0]]))
    if name == "box":
        return box()
    if name == "plane":
        corners = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0.0]])
        return Shape(corners, np.array([[0, 1, 2], [0, 2, 3]]))
    data_id = int(rest[0])  # type: ignore[call-overload]
    return height_field(mj_model, data_id) if name == "hfield" else mesh(mj_model, data_id)


def revolved(profile: np.ndarray) -> Shape:
    """A curve (n, 2), of distances from the z axis and heights from the top down, turned about that axis."""
    turns = np.linspace(0, 2 * np.pi, SEGMENTS + 1)
    r, z = profile[:, :1], np.broadcast_to(profile[:, 1:], (len(profile), SEGMENTS + 1))
    vertices = np.stack([r * np.cos(turns), r * np.sin(turns), z], -1)
    at = np.arange(vertices[..., 0].size).reshape(vertices.shape[:2])
    a, b, c, d = at[:-1, :-1], at[1:, :-1], at[1:, 1:], at[:-1, 1:]
    faces = np.concatenate([np.stack([a, b, c], -1).reshape(-1, 3), np.stack([a, c, d], -1).reshape(-1, 3)])
    corners = vertices.reshape(-1, 3)[faces]
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=-1)
    return Shape(vertices.reshape(-1, 3), faces[area > 1e-9])


def box() -> Shape:
    """A cube from -1 to 1."""
    corners, faces = [], []
    for axis in range(3):
        for side in (-1, 1):
            u, v, w = np.roll(np.eye(3), axis, axis=1)
            corners += [side * w + side * x * u + y * v for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
            faces += [[len(corners) - 4 + k for k in triangle] for triangle in ((0, 1, 2), (0, 2, 3))]
    return Shape(np.array(corners), np.array(faces))


def mesh(mj_model: mujoco.MjModel, mesh_id: int) -> Shape:
    """A mesh, its vertices once for each normal that they have."""
    first, count = mj_model.mesh_vertadr[mesh_id], mj_model.mesh_vertnum[mesh_id]
    rows = slice(mj_model.mesh_faceadr[mesh_id], mj_model.mesh_faceadr[mesh_id] + mj_model.mesh_facenum[mesh_id])
    pairs = np.stack([mj_model.mesh_face[rows], mj_model.mesh_facenormal[rows]], -1).reshape(-1, 2)
    kept, faces = np.unique(pairs, axis=0, return_inverse=True)
    return Shape(mj_model.mesh_vert[first : first + count][kept[:, 0]], faces.reshape(-1, 3))


def height_field(mj_model: mujoco.MjModel, hfield_id: int) -> Shape:
    """The surface of a height field."""
    rows, columns = int(mj_model.hfield_nrow[hfield_id]), int(mj_model.hfield_ncol[hfield_id])
    first, (x, y, top, _) = mj_model.hfield_adr[hfield_id], mj_model.hfield_size[hfield_id]
    heights = top * mj_model.hfield_data[first : first + rows * columns].reshape(rows, columns)
    across, along = np.meshgrid(np.linspace(-x, x, columns), np.linspace(-y, y, rows))
    at = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = (at[i : rows - 1 + i, j : columns - 1 + j].ravel() for i, j in ((0, 0), (0, 1), (1, 1), (1, 0)))
    faces = np.concatenate([np.stack([a, b, c], -1), np.stack([a, c, d], -1)])
    return Shape(np.stack([across, along, heights], -1).reshape(-1, 3), faces)


def color(mj_model: mujoco.MjModel, geom_id: int) -> np.ndarray:
    """(4,) red, green, blue and opacity: the geom's own, or its material's, with the mean of its texture."""
    own, material = mj_model.geom_rgba[geom_id], int(mj_model.geom_matid[geom_id])
    if material < 0 or not np.array_equal(own, GREY):
        return own.copy()
    rgba = mj_model.mat_rgba[material].copy()
    textures = [int(t) for t in mj_model.mat_texid[material] if t >= 0]
    if textures:
        rgba[:3] *= texture_mean(mj_model, textures[0])
    return rgba


def texture_mean(mj_model: mujoco.MjModel, texture_id: int) -> np.ndarray:
    """(3,) of a texture."""
    channels, first = int(mj_model.tex_nchannel[texture_id]), mj_model.tex_adr[texture_id]
    size = channels * int(mj_model.tex_width[texture_id]) * int(mj_model.tex_height[texture_id])
    mean = mj_model.tex_data[first : first + size].reshape(-1, channels).mean(axis=0) / 255
    return np.resize(mean[: 3 if channels >= 3 else 1], 3)
