"""Pairs of convex geoms in many poses: what C finds, and the same shapes as tensors."""

from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.support import MESH, Convex, primitive
from mjtorch.model.plan.mesh import Hulls, build
from mjtorch.model.plan.tensors import Tensors

ASSETS = """<asset>
  <mesh name="brick"
    vertex="-.1 -.15 -.2 .1 -.15 -.2 -.1 .15 -.2 .1 .15 -.2 -.1 -.15 .2 .1 -.15 .2 -.1 .15 .2 .1 .15 .2"/>
  <mesh name="wedge" vertex="-.1 -.1 -.1 .1 -.1 -.1 0 .12 -.1 -.1 -.1 .1 .1 -.1 .1 0 .12 .1"/>
  <mesh name="stone" builtin="supersphere" params="24 .3 .4" scale=".2 .13 .085"/>
</asset>"""
SHAPES = {
    "sphere": 'type="sphere" size=".1"',
    "capsule": 'type="capsule" size=".07 .15"',
    "ellipsoid": 'type="ellipsoid" size=".1 .15 .2"',
    "cylinder": 'type="cylinder" size=".1 .15"',
    "box": 'type="box" size=".1 .15 .2"',
    "brick": 'type="mesh" mesh="brick"',
    "wedge": 'type="mesh" mesh="wedge"',
    "stone": 'type="mesh" mesh="stone"',
}
# Older ones converge less closely, and find fewer contacts of edges.
IS_RECENT = int(mujoco.__version__.split(".")[0]) >= 4
Pose = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # pos1, quat1, pos2, quat2


class Poses(NamedTuple):
    """Two geoms in n poses: as C has them, and as shapes with a world axis in front, one pair in each world."""

    mj_model: mujoco.MjModel
    mj_data: list[mujoco.MjData]
    shape1: Convex
    shape2: Convex
    hulls: Hulls | None


def two_geoms(first: str, second: str, margin: float = 0.0, option: str = "") -> mujoco.MjModel:
    """Two bodies, the first one mocap and the second one free; C iterates until it has converged."""
    return mujoco.MjModel.from_xml_string(
        f"""<mujoco><option ccd_iterations="300" {option}/>{ASSETS}<worldbody>
          <body mocap="true"><geom {SHAPES[first]} margin="{margin}"/></body>
          <body><freejoint/><geom {SHAPES[second]}/></body>
        </worldbody></mujoco>"""
    )


def random_poses(count: int, reach: float, seed: int = 0) -> list[Pose]:
    """From deep in each other to `reach` [m] between the centres, turned in any way."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        pos, offset = rng.normal(size=3), rng.normal(size=3)
        offset *= reach * rng.random() / np.linalg.norm(offset)
        found.append((pos, rng.normal(size=4), pos + offset, rng.normal(size=4)))
    return found


HALF = 0.5**0.5
TURNS = ((1, 0, 0, 0), (0, 1, 0, 0), (HALF, HALF, 0, 0), (HALF, 0, HALF, 0), (HALF, 0, 0, HALF), (0.5, 0.5, 0.5, 0.5))
EIGHTH = ((0.92388, 0.382683, 0, 0), (0.92388, 0, 0.382683, 0), (0.92388, 0, 0, 0.382683))


def aligned_poses(count: int, tilt: float, seed: int = 0, turns: tuple[tuple[float, ...], ...] = TURNS) -> list[Pose]:
    """Faces on faces, edges and axes parallel or across, but for about `tilt`."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        quat = np.array(turns[rng.integers(len(turns))]) + tilt * rng.normal(size=4)
        offset = 0.05 * rng.normal(size=3)
        offset[rng.integers(3)] = rng.choice([-1, 1]) * rng.uniform(0.2, 0.45)
        found.append((np.zeros(3), np.array((1.0, 0.0, 0.0, 0.0)), offset, quat))
    return found


def grazing(mj_model: mujoco.MjModel, poses: list[Pose], depth: float = 2e-3, seed: int = 0) -> list[Pose]:
    """The same but for the second geom, which is moved towards the first until it is up to `depth` [m] in there."""
    rng = np.random.default_rng(seed)
    found = []
    for pos1, quat1, pos2, quat2 in poses:
        away = pos2 - pos1
        away *= 0.9 / np.linalg.norm(away)
        gap, direction = _gap(mj_model, (pos1, quat1, pos1 + away, quat2))
        # No step goes further than to where they touch.
        while gap > 1e-6:
            away *= 1 - (0.98 * gap + 1e-6) / np.linalg.norm(away)
            gap, direction = _gap(mj_model, (pos1, quat1, pos1 + away, quat2), direction)
        found.append((pos1, quat1, pos1 + away - direction * (gap + depth * rng.random()), quat2))
    return found


def _gap(mj_model: mujoco.MjModel, pose: Pose, touching: np.ndarray | None = None) -> tuple[float, np.ndarray]:
    """The distance, and the direction from the first geom to the second; `touching`: that where they touch."""
    d, fromto = placed(mj_model, pose), np.zeros(6)
    gap = mujoco.mj_geomDistance(mj_model, d, 0, 1, 10.0, fromto)
    return gap, (fromto[3:] - fromto[:3]) / gap if gap > 1e-6 or touching is None else touching


def placed(mj_model: mujoco.MjModel, pose: Pose) -> mujoco.MjData:
    """The geoms in a pose, before they are collided."""
    pos1, quat1, pos2, quat2 = pose
    d = mujoco.MjData(mj_model)
    d.mocap_pos[0], d.mocap_quat[0] = pos1, quat1 / np.linalg.norm(quat1)
    d.qpos[:3], d.qpos[3:7] = pos2, quat2 / np.linalg.norm(quat2)
    mujoco.mj_kinematics(mj_model, d)
    mujoco.mj_comPos(mj_model, d)
    return d


def posed(mj_model: mujoco.MjModel, poses: list[Pose]) -> Poses:
    """C's contacts, and the shapes, in each of the poses."""
    mj_data = []
    for pose in poses:
        d = placed(mj_model, pose)
        mujoco.mj_collision(mj_model, d)
        mj_data.append(d)
    hulls = next(iter(build(mj_model, Tensors(torch.device("cpu"), torch.float64))), None)
    return Poses(mj_model, mj_data, *(_shape(mj_model, mj_data, geom, hulls) for geom in (0, 1)), hulls)


def _shape(mj_model: mujoco.MjModel, mj_data: list[mujoco.MjData], geom: int, hulls: Hulls | None) -> Convex:
    n, kind = len(mj_data), int(mj_model.geom_type[geom])
    pos = torch.tensor(np.array([d.geom_xpos[geom] for d in mj_data]))
    mat = torch.tensor(np.array([d.geom_xmat[geom].reshape(3, 3) for d in mj_data]))
    shape = primitive(kind, pos, mat, torch.tensor(mj_model.geom_size[geom]).repeat(n, 1))
    if kind == MESH:
        shape = shape.replace(hull=torch.full((n,), hulls.mesh.index(mj_model.geom_dataid[geom])))
    return tree.map(lambda x: x[:, None], shape)


def geom_distances(poses: Poses) -> tuple[Tensor, Tensor]:
    """What mj_geomDistance says: the distance (n,) [m] and the points on both geoms (n, 2, 3) [m]."""
    found, ends = [], []
    for d in poses.mj_data:
        fromto = np.zeros(6)
        found.append(mujoco.mj_geomDistance(poses.mj_model, d, 0, 1, 10.0, fromto))
        ends.append(fromto.reshape(2, 3))
    return torch.tensor(found, dtype=torch.float64), torch.tensor(np.array(ends))


def overlap(poses: Poses, direction: np.ndarray) -> np.ndarray:
    """How far (n, k) [m] the second geom has to go along unit vectors (n, k, 3) until it is clear of the first."""
    total = np.zeros(direction.shape[:2])
    for geom, sign in ((0, 1.0), (1, -1.0)):
        kind, size = poses.mj_model.geom_type[geom], poses.mj_model.geom_size[geom]
        mat = np.array([d.geom_xmat[geom].reshape(3, 3) for d in poses.mj_data])
        pos = np.array([d.geom_xpos[geom] for d in poses.mj_data])
        local = np.abs(direction @ mat)
        if kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
            total += np.linalg.norm(local * size, axis=-1)
        elif kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
            total += size[0] * np.linalg.norm(local[..., :2], axis=-1) + size[1] * local[..., 2]
        else:
            total += local @ size
        total += sign * np.einsum("nki,ni->nk", direction, pos)
    return total


def least_overlap(poses: Poses, rounds: int = 40, seed: int = 0) -> np.ndarray:
    """The least `overlap (n,)` [m] that is found by trying directions: all over the sphere, then around the best."""
    rng = np.random.default_rng(seed)
    tried = rng.normal(size=(len(poses.mj_data), 3000, 3))
    width = 0.1
    for _ in range(rounds):
        tried /= np.linalg.norm(tried, axis=-1, keepdims=True)
        found = overlap(poses, tried)
        best = np.take_along_axis(tried, found.argmin(-1)[:, None, None], axis=1)
        tried = np.concatenate([best, best + width * rng.normal(size=(len(best), 60, 3))], axis=1)
        width *= 0.75
    return found.min(-1)
