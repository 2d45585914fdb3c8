"""What is drawn of a model: its geoms in all worlds, contacts, tendons. Knows nothing of browsers."""

from collections import defaultdict
from dataclasses import dataclass

import mujoco
import numpy as np

from mjtorch.view import shapes

# MuJoCo's viewers show these groups of geoms; the others are mostly simpler shapes for collisions.
SHOWN_GROUPS = 3


@dataclass(frozen=True)
class Look:
    """Where things are: the numbers that MuJoCo computes what is drawn from, of all worlds.

    qpos: (worlds, nq); qvel: (worlds, nv); ctrl: (worlds, nu); act: (worlds, na); mocap_pos: (worlds, nmocap, 3) [m];
    mocap_quat: (worlds, nmocap, 4); time: (worlds,) [s]
    """

    time: np.ndarray
    qpos: np.ndarray
    qvel: np.ndarray
    ctrl: np.ndarray
    act: np.ndarray
    mocap_pos: np.ndarray
    mocap_quat: np.ndarray

    @property
    def worlds(self) -> int:
        """How many."""
        return len(self.qpos)


@dataclass(frozen=True)
class Group:
    """Geoms of one shape, drawn together.

    geom_id: (n,); scale: (n, 3); color: (n, 3) uint8; opacity: (n,); once: it is the same in all worlds, and drawn once
    """

    name: str
    shape: shapes.Shape
    geom_id: np.ndarray
    scale: np.ndarray
    color: np.ndarray
    opacity: np.ndarray
    extra: bool
    once: bool


@dataclass(frozen=True)
class Placed:
    """Where everything is, in all worlds, without the distance that they are shown at.

    geom_pos: (worlds, ngeom, 3) [m]; geom_quat: (worlds, ngeom, 4)
    contact: (n, 3) [m]; force: (n, 3) [N], on the second geom; contact_world: (n,)
    tendon: (n, 2, 3) [m], pieces; tendon_color: (n, 3) uint8; tendon_world: (n,)
    """

    geom_pos: np.ndarray
    geom_quat: np.ndarray
    contact: np.ndarray
    force: np.ndarray
    contact_world: np.ndarray
    tendon: np.ndarray
    tendon_color: np.ndarray
    tendon_world: np.ndarray


class Scene:
    """A model to be drawn."""

    def __init__(self, mj_model: mujoco.MjModel) -> None:
        self.mj_model, self._mj_data = mj_model, mujoco.MjData(mj_model)
        self.groups = groups(mj_model)

    @property
    def triangles(self) -> int:
        """Of one world."""
        return sum(len(g.shape.faces) * len(g.geom_id) for g in self.groups)

    @property
    def vertices(self) -> int:
        """How many there are to send to a browser."""
        return sum(len(g.shape.vertices) for g in self.groups)

    @property
    def force_scale(self) -> float:
        """Metres that a newton is drawn as: the weight of all that is there is as long as the model is large."""
        gravity = np.linalg.norm(self.mj_model.opt.gravity) or 9.81
        weight = gravity * max(float(self.mj_model.body_mass.sum()), mujoco.mjMINVAL)
        return float(self.mj_model.stat.extent / weight)

    def place(self, look: Look, contacts: bool = False) -> Placed:
        """Where everything is; MuJoCo computes it from the state. Worlds that are not finite stay at rest."""
        mj_model, mj_data = self.mj_model, self._mj_data
        positions = np.zeros((look.worlds, mj_model.ngeom, 3))
        turned = np.zeros((look.worlds, mj_model.ngeom, 4))
        points: list[np.ndarray] = [np.zeros((0, 3))]
        forces: list[np.ndarray] = [np.zeros((0, 3))]
        pieces: list[np.ndarray] = [np.zeros((0, 2, 3))]
        colors: list[np.ndarray] = [np.zeros((0, 3), np.uint8)]
        for world in range(look.worlds):
            mujoco.mj_resetData(mj_model, mj_data)
            if np.isfinite(look.qpos[world]).all():
                for name in ("qpos", "qvel", "ctrl", "act", "mocap_pos", "mocap_quat"):
                    getattr(mj_data, name)[:] = getattr(look, name)[world]
            if contacts:
                mujoco.mj_forward(mj_model, mj_data)
            else:
                for stage in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_tendon):
                    stage(mj_model, mj_data)
            positions[world] = mj_data.geom_xpos
            for k in range(mj_model.ngeom):
                mujoco.mju_mat2Quat(turned[world, k], mj_data.geom_xmat[k])
            points.append(mj_data.contact.pos.copy())
            forces.append(contact_forces(mj_model, mj_data))
            piece, color = tendons(mj_model, mj_data)
            pieces.append(piece)
            colors.append(color)
        counts = [[len(x) for x in xs[1:]] for xs in (points, pieces)]
        where = [np.repeat(np.arange(look.worlds), n) for n in counts]
        joined = [np.concatenate(xs) for xs in (points, forces, pieces, colors)]
        return Placed(positions, turned, joined[0], joined[1], where[0], joined[2], joined[3], where[1])


def groups(mj_model: mujoco.MjModel) -> list[Group]:
    """All geoms that can be seen, by shape, and by whether MuJoCo's viewers show them unasked."""
    found: dict[tuple[shapes.Key, bool, bool], list[tuple[int, np.ndarray, np.ndarray]]] = defaultdict(list)
    for geom_id in range(mj_model.ngeom):
        rgba = shapes.color(mj_model, geom_id)
        if rgba[3] > 0:
            key, scale = shapes.key(mj_model, geom_id)
            fixed = mj_model.body_weldid[mj_model.geom_bodyid[geom_id]] == 0
            once = key == ("plane",) and bool(fixed) and not mj_model.geom_size[geom_id, :2].all()
            extra = bool(mj_model.geom_group[geom_id] >= SHOWN_GROUPS)
            found[key, extra, once].append((geom_id, scale, rgba))
    made: dict[shapes.Key, shapes.Shape] = {}
    result = []
    for number, ((key, extra, once), members) in enumerate(found.items()):
        shape = made.setdefault(key, made.get(key) or shapes.shape(mj_model, key))
        ids, scales, rgbas = (np.stack([member[k] for member in members]) for k in range(3))
        colors = np.round(255 * np.clip(rgbas[:, :3], 0, 1)).astype(np.uint8)
        result.append(Group(f"{key[0]}{number}", shape, ids, scales, colors, rgbas[:, 3], extra, once))
    return result


def contact_forces(mj_model: mujoco.MjModel, mj_data: mujoco.MjData) -> np.ndarray:
    """(ncon, 3) [N], in the frame of the world, on the second geom of each contact."""
    force, result = np.zeros(6), np.zeros((mj_data.ncon, 3))
    for k in range(mj_data.ncon):
        mujoco.mj_contactForce(mj_model, mj_data, k, force)
        result[k] = mj_data.contact.frame[k].reshape(3, 3).T @ force[:3]
    return result


def tendons(mj_model: mujoco.MjModel, mj_data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
    """Pieces (n, 2, 3) [m] of the paths of tendons, and their colours (n, 3) uint8."""
    pieces, colors = [], []
    through = mj_data.wrap_xpos.reshape(-1, 3), mj_data.wrap_obj.ravel()
    for tendon_id in range(mj_model.ntendon):
        first = mj_data.ten_wrapadr[tendon_id]
        for k in range(first, first + mj_data.ten_wrapnum[tendon_id] - 1):
            if -2 not in through[1][k : k + 2]:  # a pulley
                pieces.append(through[0][k : k + 2])
                colors.append(255 * np.clip(mj_model.tendon_rgba[tendon_id, :3], 0, 1))
    return np.array(pieces).reshape(-1, 2, 3), np.array(colors).reshape(-1, 3).astype(np.uint8)
