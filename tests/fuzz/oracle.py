"""How deep two convex geoms are in each other, by no algorithm of collision: the least overlap over all directions."""

import mujoco
import numpy as np

SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = (
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{name}"))
    for name in ("SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX", "MESH")
)
CONVEX = (SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH)


def reach(mj_model: mujoco.MjModel, d: mujoco.MjData, geom: int, direction: np.ndarray) -> np.ndarray:
    """How far (k,) [m] a geom reaches from its centre along unit vectors (k, 3): its support function."""
    kind, size = int(mj_model.geom_type[geom]), mj_model.geom_size[geom]
    local = direction @ d.geom_xmat[geom].reshape(3, 3)
    if kind == SPHERE:
        return np.full(len(local), size[0])
    if kind == CAPSULE:
        return size[0] + size[1] * np.abs(local[:, 2])
    if kind == ELLIPSOID:
        return np.linalg.norm(local * size, axis=-1)
    if kind == CYLINDER:
        return size[0] * np.hypot(local[:, 0], local[:, 1]) + size[1] * np.abs(local[:, 2])
    if kind == BOX:
        return np.abs(local) @ size
    if kind == MESH:
        mesh = mj_model.geom_dataid[geom]
        first, count = mj_model.mesh_vertadr[mesh], mj_model.mesh_vertnum[mesh]
        return (local @ mj_model.mesh_vert[first : first + count].T).max(-1)
    raise ValueError(f"no support function of {mujoco.mjtGeom(kind).name}")


def overlap(mj_model: mujoco.MjModel, d: mujoco.MjData, geom1: int, geom2: int, direction: np.ndarray) -> np.ndarray:
    """How far (k,) [m] the second geom has to go along unit vectors (k, 3) until it is clear of the first."""
    towards = reach(mj_model, d, geom1, direction) + reach(mj_model, d, geom2, -direction)
    return towards - direction @ (d.geom_xpos[geom2] - d.geom_xpos[geom1])


def least_overlap(
    mj_model: mujoco.MjModel, d: mujoco.MjData, geom1: int, geom2: int, guess: np.ndarray | None = None
) -> float:
    """How far [m] one geom has to go until it is clear of the other; minus the distance where they are apart.

    Directions all over the sphere are tried, and any `guess` (k, 3), then some around the best, nearer and nearer.
    """
    rng = np.random.default_rng(0)
    offset = d.geom_xpos[geom2] - d.geom_xpos[geom1]

    tried = rng.normal(size=(2000, 3))
    guessed = [normals(mj_model, d, geom1), normals(mj_model, d, geom2), offset[None] + 1e-12]
    tried = np.concatenate([tried, *guessed, *([] if guess is None else [guess, -guess])])
    tried /= np.linalg.norm(tried, axis=-1, keepdims=True)
    found = overlap(mj_model, d, geom1, geom2, tried)
    width = 0.1
    for _ in range(80):
        best = tried[np.argsort(found)[:3]]
        tried = np.concatenate([best, np.repeat(best, 16, axis=0) + width * rng.normal(size=(48, 3))])
        tried /= np.linalg.norm(tried, axis=-1, keepdims=True)
        found = overlap(mj_model, d, geom1, geom2, tried)
        width *= 0.84
    return float(found.min())


def normals(mj_model: mujoco.MjModel, d: mujoco.MjData, geom: int) -> np.ndarray:
    """Of flat faces (k, 3), both ways: a minimum there is found at once."""
    mat = d.geom_xmat[geom].reshape(3, 3)
    if mj_model.geom_type[geom] != MESH:
        return np.concatenate([mat.T, -mat.T])
    mesh = mj_model.geom_dataid[geom]
    first, count = mj_model.mesh_faceadr[mesh], mj_model.mesh_facenum[mesh]
    vert = mj_model.mesh_vert[mj_model.mesh_vertadr[mesh] :][mj_model.mesh_face[first : first + count]]
    normal = np.cross(vert[:, 1] - vert[:, 0], vert[:, 2] - vert[:, 0])
    normal = normal[np.linalg.norm(normal, axis=-1) > 0] @ mat.T
    return np.concatenate([normal, -normal])
