"""Sensors that need positions only (mj_sensorPos)."""

import torch
from torch import Tensor

from mjtorch.math import quaternion
from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Data, Model
from mjtorch.model.plan.sensor import SensorGroup, SensorType
from mjtorch.sensor.camera import focal_length
from mjtorch.sensor.frame import Frames
from mjtorch.sensor.stage import SensorFunction, first_active_row, sense, skip
from mjtorch.sensor.volume import inside_volume
from mjtorch.smooth.energy import energy_pos, energy_vel
from mjtorch.smooth.object import to_local


def magnetometer(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """The magnetic field `opt.magnetic` (n, 3) in the axes of sites."""
    return to_local(frames.mat[group.obj], m.opt.magnetic)


def camera_projection(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Where sites appear in the images of cameras (n, 2) [pixel], from the upper left corner, x then y.

    A pinhole camera: positions over depth, times the focal length. Sites behind the camera are projected too.
    """
    x, y, z = to_local(frames.mat[group.ref], frames.pos[group.obj] - frames.pos[group.ref]).unbind(-1)
    depth = torch.where(z.abs() < MIN_VALUE, MIN_VALUE, z)
    resolution = m.cam_resolution[group.element]
    return focal_length(m, group.element) * torch.stack([-x, y], dim=-1) / depth[:, None] + 0.5 * resolution


def inside_site(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """1 where objects are in the volumes of sites, else 0 (n,). A body without mass is where its subtree's com is."""
    point = d.subtree_com[group.com] if group.com.shape[0] else frames.pos[group.obj]
    local = to_local(frames.mat[group.ref], point - frames.pos[group.ref])
    return inside_volume(m, group.volume[0], group.element, local).to(point.dtype)


def ball_quat(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Quaternions (n, 4) of ball joints, normalized."""
    return quaternion.normalize(d.qpos[group.obj])


def limit_pos(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Distance (n,) [m or rad] to active limits of joints or tendons, less the margin."""
    return first_active_row(d, group.obj, d.efc_pos - d.efc_margin)


def frame_pos(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Positions (n, 3) [m] in the reference frames."""
    return to_local(frames.mat[group.ref], frames.pos[group.obj] - frames.pos[group.ref])


def frame_axis(column: int) -> SensorFunction:
    """The sensor of one axis of a frame: components (n, 3) of column 0, 1 or 2 in the reference frames."""

    def axis(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
        return to_local(frames.mat[group.ref], frames.mat[group.obj][..., column])

    return axis


def frame_quat(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Orientations (n, 4) in the world or in the reference frames."""
    quat = frames.quat[group.obj]
    return quaternion.mul(quaternion.conjugate(frames.quat[group.ref]), quat) if group.referenced else quat


TABLE: dict[SensorType, SensorFunction] = {
    SensorType.MAGNETOMETER: magnetometer,
    SensorType.CAMPROJECTION: camera_projection,
    SensorType.INSIDESITE: inside_site,
    SensorType.BALLQUAT: ball_quat,
    SensorType.JOINTLIMITPOS: limit_pos,
    SensorType.TENDONLIMITPOS: limit_pos,
    SensorType.FRAMEPOS: frame_pos,
    SensorType.FRAMEXAXIS: frame_axis(0),
    SensorType.FRAMEYAXIS: frame_axis(1),
    SensorType.FRAMEZAXIS: frame_axis(2),
    SensorType.FRAMEQUAT: frame_quat,
}


def sensor_pos(m: Model, d: Data, *, past: bool = True) -> Data:
    """The sensors that need positions (mj_sensorPos), into their part of sensordata.

    Energy sensors also set `energy`. Needs `kinematics`, `com_pos`, `camlight`, `crb`, `transmission`,
    `make_constraint`, as far as sensors measure what these compute.
    past: whether sensors with a delay, or that measure at intervals, report what they have recorded; else, even if
    sensors are disabled, what they would measure now.
    """
    stage = m.plan.sensor.pos
    if skip(m, stage, past):
        return d
    if SensorType.E_POTENTIAL in stage.types:
        d = energy_pos(m, d)
    if SensorType.E_KINETIC in stage.types:
        d = energy_vel(m, d)
    return sense(m, d, stage, TABLE, past)
