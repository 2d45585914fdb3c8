"""Convex geoms on a height field in many poses: what C finds, and what we do."""

from typing import NamedTuple

import mujoco
import numpy as np
import torch
from collision.convex_pairs import ASSETS, SHAPES

import mjtorch
from mjtorch.collision import collision
from mjtorch.model import Contact, Model

NROW, NCOL = 9, 7
HALF_X, HALF_Y, HEIGHT, BASE = 0.6, 0.9, 0.25, 0.1


class Found(NamedTuple):
    """One contact."""

    dist: float
    pos: np.ndarray
    normal: np.ndarray


def terrain(roughness: float, seed: int = 0) -> np.ndarray:
    """(nrow, ncol) heights from 0 to 1: smooth hills, or rough."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(-2, 2, NCOL), np.linspace(-2, 2, NROW))
    hills = 0.3 + 0.3 * np.sin(x + 0.3) * np.cos(y)
    return np.clip(hills * (roughness > 0) + roughness * rng.uniform(-0.5, 0.5, hills.shape), 0, 1)


def on_field(shape: str, roughness: float = 0.6, margin: float = 0.0, pair: str = "") -> mujoco.MjModel:
    """A geom that moves freely over a field; C iterates until it has converged."""
    heights = " ".join(str(h) for h in terrain(roughness).ravel())
    mj_model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><option ccd_iterations="300" ccd_tolerance="1e-8"/>
        {ASSETS.replace("</asset>", "")}
          <hfield name="hills" nrow="{NROW}" ncol="{NCOL}" size="{HALF_X} {HALF_Y} {HEIGHT} {BASE}"
            elevation="{heights}"/>
        </asset>
        <worldbody>
          <body mocap="true"><geom name="field" type="hfield" hfield="hills"/></body>
          <body><freejoint/><geom name="geom" {SHAPES[shape]} margin="{margin}"/></body>
        </worldbody>{pair}</mujoco>"""
    )
    # The compiler stretches heights to the whole range.
    mj_model.hfield_data[:] = terrain(roughness).ravel()
    return mj_model


def poses(mj_model: mujoco.MjModel, count: int, seed: int = 0, upright: bool = False) -> list[mujoco.MjData]:
    """C's contacts in poses from apart to deep, over the field and over its border, the field itself turned."""
    rng = np.random.default_rng(seed)
    heights = mj_model.hfield_data.reshape(NROW, NCOL)
    found = []
    for _ in range(count):
        d = mujoco.MjData(mj_model)
        where = rng.uniform(-1.1, 1.1, 2)
        col, row = np.clip(np.round((where + 1) / 2 * [NCOL - 1, NROW - 1]), 0, [NCOL - 1, NROW - 1]).astype(int)
        z = HEIGHT * heights[row, col] + rng.uniform(-0.1, 0.25)
        local = np.array([HALF_X * where[0], HALF_Y * where[1], z])
        quat = np.array([1.0, 0, 0, 0]) if upright else rng.normal(size=4)
        d.mocap_quat[0] = quat / np.linalg.norm(quat)
        d.mocap_pos[0] = np.zeros(3) if upright else rng.normal(size=3)
        mat = np.zeros(9)
        mujoco.mju_quat2Mat(mat, d.mocap_quat[0])
        d.qpos[:3] = d.mocap_pos[0] + mat.reshape(3, 3) @ local
        turn = np.array([1.0, 0, 0, rng.normal()]) if upright else rng.normal(size=4)
        d.qpos[3:7] = turn / np.linalg.norm(turn)
        mujoco.mj_fwdPosition(mj_model, d)
        found.append(d)
    return found


def of_c(d: mujoco.MjData) -> list[Found]:
    return [Found(c.dist, c.pos.copy(), c.frame[:3].copy()) for c in d.contact]


def ours(m: Model, datas: list[mujoco.MjData], run=None) -> tuple[list[list[Found]], Contact]:
    """Our contacts in each pose, in their order, and as arrays with a world axis in front."""
    d = mjtorch.make_data(m)
    xpos = torch.tensor(np.stack([d.geom_xpos for d in datas]), dtype=m.qpos0.dtype)
    xmat = torch.tensor(np.stack([d.geom_xmat for d in datas]), dtype=m.qpos0.dtype).unflatten(-1, (3, 3))
    after = torch.vmap(lambda xpos, xmat: collision(m, d.replace(geom_xpos=xpos, geom_xmat=xmat)))(xpos, xmat)
    assert not after.warning.any()
    contact = after.contact
    lists = []
    for k in range(len(datas)):
        slots = contact.detected[k].nonzero()[:, 0]
        lists.append(
            [Found(float(contact.dist[k, i]), contact.pos[k, i].numpy(), contact.frame[k, i, 0].numpy()) for i in slots]
        )
    return lists, contact


def turned_geoms(d: mjtorch.model.Data, change: torch.Tensor) -> mjtorch.model.Data:
    """The second geom shifted by the first three of `change (6,)` and turned by the others."""
    shift, turn = change[:3], change[3:]
    x, y, z = turn.unbind(-1)
    zero = torch.zeros_like(x)
    skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).unflatten(0, (3, 3))
    mat = d.geom_xmat[1]
    mat = mat + skew @ mat + 0.5 * skew @ skew @ mat
    return d.replace(
        geom_xpos=torch.cat([d.geom_xpos[:1], (d.geom_xpos[1] + shift)[None]]),
        geom_xmat=torch.cat([d.geom_xmat[:1], mat[None]]),
    )
