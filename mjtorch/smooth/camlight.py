"""Cameras and lights that follow or look at bodies (mj_camlight)."""

import torch
from torch import Tensor

from mjtorch.math import quaternion as quat
from mjtorch.math.vector import basis, cross, normalize
from mjtorch.model import Data, Model
from mjtorch.model.plan.kinematics import TrackingPlan


def camlight(m: Model, d: Data) -> Data:
    """Positions and orientations of cameras and lights in all tracking modes (mj_camlight).

    Sets cam_xpos, cam_xmat, light_xpos, light_xdir. Needs `kinematics`, which places cameras as if they were fixed,
    and `com_pos` for the modes that use a centre of mass.
    """
    changes: dict[str, Tensor] = {}
    if m.plan.kinematics.cam.moves:
        changes |= _cameras(m, d)
    if m.nlight:
        changes |= _lights(m, d)
    return d.replace(**changes)


def look_at(camera: Tensor, target: Tensor) -> Tensor:
    """Orientation (n, 3, 3) of cameras at `camera (n, 3)` that look at `target (n, 3)` with a level horizon.

    Columns are x (right), y (up), z (backwards). Looking straight up or down leaves x undefined: it is (1, 0, 0).
    """
    fallback = basis(camera, 1, 0, 0)
    z = normalize(camera - target, fallback)[0]
    x = normalize(cross(basis(camera, 0, 0, 1), z), fallback)[0]
    y = normalize(cross(z, x), fallback)[0]
    return torch.stack([x, y, z], dim=-1)


def _track(d: Data, p: TrackingPlan, pos: Tensor, pos0: Tensor, poscom0: Tensor) -> Tensor:
    """Positions (n, 3) under the modes that follow a body or its subtree's centre of mass, `pos` under the others."""
    pos = torch.where(p.track, d.xpos[p.body] + pos0, pos)
    return torch.where(p.trackcom, d.subtree_com[p.body] + poscom0, pos)


def _target(d: Data, p: TrackingPlan) -> Tensor:
    """The points (n, 3) that the targeting modes look at."""
    return torch.where(p.looks_at_com, d.subtree_com[p.target], d.xpos[p.target])


def _cameras(m: Model, d: Data) -> dict[str, Tensor]:
    p = m.plan.kinematics.cam
    pos = _track(d, p, d.cam_xpos, m.cam_pos0, m.cam_poscom0)
    mat = torch.where((p.track | p.trackcom)[..., None], m.cam_mat0.reshape(-1, 3, 3), d.cam_xmat)
    return {"cam_xpos": pos, "cam_xmat": torch.where(p.looks[..., None], look_at(pos, _target(d, p)), mat)}


def fixed_lights(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """Positions and directions (nlight, 3) of lights as if all were fixed to their bodies."""
    body = m.plan.kinematics.light.body
    quats = d.xquat[body]
    return d.xpos[body] + quat.rotate(m.light_pos, quats), quat.rotate(m.light_dir, quats)


def _lights(m: Model, d: Data) -> dict[str, Tensor]:
    p = m.plan.kinematics.light
    pos, direction = fixed_lights(m, d)
    if p.moves:
        pos = _track(d, p, pos, m.light_pos0, m.light_poscom0)
        direction = torch.where(p.track | p.trackcom, m.light_dir0, direction)
        direction = torch.where(p.looks, _target(d, p) - pos, direction)
    return {"light_xpos": pos, "light_xdir": normalize(direction, basis(direction, 1, 0, 0))[0]}
