"""Signed distance fields of meshes and other geoms in many poses: what C finds, and what we do."""

from itertools import pairwise

import mujoco
import numpy as np
import torch
from collision.fields import Found

import mjtorch
from mjtorch.model import Contact, Model

WEDGE = "-.1 -.1 -.1 .1 -.1 -.1 0 .12 -.1 -.1 -.1 .1 .1 -.1 .1 0 .12 .1"
ASSETS = f"""<asset>
  <mesh name="ring" builtin="supertorus" params="12 .4 1 1" scale=".1 .1 .1"/>
  <mesh name="wedge" vertex="{WEDGE}"/>
</asset>"""
SHAPES = {
    "plane": 'type="plane" size="1 1 1"',
    "sphere": 'type="sphere" size=".1"',
    "capsule": 'type="capsule" size=".07 .1"',
    "ellipsoid": 'type="ellipsoid" size=".1 .2 .15"',
    "cylinder": 'type="cylinder" size=".1 .2"',
    "box": 'type="box" size=".1 .12 .14"',
    "mesh": 'type="mesh" mesh="wedge"',
    "sdf": 'type="sdf" mesh="wedge"',
}
# Beside the fields of plugins, which are that large.
LARGE = {
    "plane": 'type="plane" size="3 3 1"/>',
    "sphere": 'type="sphere" size=".4"/>',
    "box": 'type="box" size=".4 .48 .56"/>',
    "mesh": 'type="mesh" mesh="wedge"/>',
    "sdf": 'type="sdf" mesh="wedge"/>',
}


def with_ring(shape: str) -> mujoco.MjModel:
    """A geom, and a ring that moves freely."""
    return mujoco.MjModel.from_xml_string(
        f"""<mujoco>{ASSETS}<worldbody>
          <body mocap="true"><geom name="geom" {SHAPES[shape]}/></body>
          <body><freejoint/><geom name="ring" type="sdf" mesh="ring"/></body>
        </worldbody></mujoco>"""
    )


def with_plugin(name: str, shape: str) -> mujoco.MjModel:
    """A geom four times as large, or the field of a plugin, and another such field that moves freely."""
    plugins = {name, *({shape} - SHAPES.keys())}
    instances = "".join(
        f'<plugin plugin="mujoco.sdf.{one}"><instance name="{one}"/></plugin>' for one in sorted(plugins)
    )
    meshes = "".join(f'<mesh name="{one}"><plugin instance="{one}"/></mesh>' for one in sorted(plugins))
    geom = LARGE.get(shape, f'type="sdf" mesh="{shape}"><plugin instance="{shape}"/></geom>')
    return mujoco.MjModel.from_xml_string(
        f"""<mujoco><extension>{instances}</extension><asset>{meshes}
          <mesh name="wedge" scale="4 4 4" vertex="{WEDGE}"/></asset><worldbody>
          <body mocap="true"><geom name="geom" {geom}</body>
          <body><freejoint/><geom name="field" type="sdf" mesh="{name}"><plugin instance="{name}"/></geom></body>
        </worldbody></mujoco>"""
    )


def poses(mj_model: mujoco.MjModel, count: int, seed: int = 0, reach: float = 0.3) -> list[mujoco.MjData]:
    """C's contacts in poses from apart to deep in each other, turned in any way; `reach` [m]: how far apart at most."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        d = mujoco.MjData(mj_model)
        offset, turns = rng.normal(size=3), rng.normal(size=(2, 4))
        d.mocap_pos[0] = rng.normal(size=3)
        d.mocap_quat[0], d.qpos[3:7] = turns / np.linalg.norm(turns, axis=1, keepdims=True)
        d.qpos[:3] = d.mocap_pos[0] + reach * rng.random() * offset / np.linalg.norm(offset)
        mujoco.mj_fwdPosition(mj_model, d)
        found.append(d)
    return found


def stacked(m: Model, datas: list[mujoco.MjData]) -> mjtorch.Data:
    """The poses of the geoms, with a world axis in front."""
    d = mjtorch.make_data(m)

    def of(field: str) -> torch.Tensor:
        return torch.tensor(np.stack([getattr(x, field) for x in datas]), dtype=m.qpos0.dtype)

    worlds = mjtorch.batch(d, len(datas))
    return worlds.replace(geom_xpos=of("geom_xpos"), geom_xmat=of("geom_xmat").unflatten(-1, (3, 3)))


def listed(contact: Contact) -> list[list[Found]]:
    """The contacts of each world."""
    return [
        [
            Found(float(contact.dist[k, i]), contact.pos[k, i].numpy(), contact.frame[k, i, 0].numpy())
            for i in there.nonzero()[:, 0]
        ]
        for k, there in enumerate(contact.detected)
    ]


def matching(mine: list[Found], theirs: list[Found], atol: float = 1e-6) -> int:
    """How many contacts of two lists are the same, in the same order."""

    def same(a: Found, b: Found) -> bool:
        return bool(np.abs(np.concatenate([[a.dist - b.dist], a.pos - b.pos, a.normal - b.normal])).max() < atol)

    place = [next((i for i, a in enumerate(mine) if same(a, b)), None) for b in theirs]
    places = [i for i in place if i is not None]
    assert all(i < j for i, j in pairwise(places))
    return len(places)
