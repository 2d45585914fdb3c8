"""Sensors that need accelerations and forces (mj_sensorAcc)."""

import torch
from torch import Tensor

from mjtorch.constraint import contact_force, rne_postconstraint
from mjtorch.math.shape import ray
from mjtorch.math.vector import cross
from mjtorch.model import Data, Model
from mjtorch.model.plan.sensor import SensorGroup, SensorType
from mjtorch.model.touching import colliders
from mjtorch.sensor.frame import Frames
from mjtorch.sensor.stage import SensorFunction, first_active_row, sense, skip
from mjtorch.smooth.object import to_local


def accelerometer(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Proper acceleration (n, 3) [m/s^2] of sites in their own axes: `-gravity` at rest, zero in free fall."""
    return to_local(frames.mat[group.obj], frames.acceleration[1][group.obj])


def force(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Force (n, 3) [N] that the bodies of sites get from their parents, in the axes of the sites."""
    return to_local(frames.mat[group.obj], d.cfrc_int[frames.plan.body[group.obj], 3:])


def torque(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Torque (n, 3) [N m] about sites that their bodies get from their parents, in the axes of the sites."""
    about_com, linear = d.cfrc_int[frames.plan.body[group.obj]].split(3, dim=-1)
    return to_local(frames.mat[group.obj], about_com - cross(frames.arm[group.obj], linear))


def touch(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Sum (n,) [N] of the normal forces on the bodies of sites whose line meets the site's volume.

    The line starts at the contact and goes along its normal, out of the body if that is the contact's first, else into
    it. Only the forces have derivatives, not which of them count.
    """
    if not m.plan.constraint.nc:
        return d.qpos.new_zeros(group.obj.shape[0])
    c, normal = d.contact, contact_force(m, d)[:, 0]
    bodies = m.plan.constraint.contact.geom_body[colliders(m, d)]
    first, second = (frames.plan.body[group.obj][:, None, None] == bodies).unbind(-1)
    shape, mat = group.volume[0].shape, frames.mat[group.obj][:, None]
    assert shape is not None
    point = to_local(mat, c.pos - frames.pos[group.obj][:, None])
    axis = to_local(mat, c.frame[:, 0])
    inwards = torch.where(second[..., None], -axis, axis)
    meets = ray(shape, m.site_size[group.element][:, None], point, inwards) >= 0
    return torch.where((first | second) & meets, normal.clamp(min=0), 0.0).sum(-1)


def limit_frc(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Force (n,) [N or N m] of active limits of joints or tendons."""
    return first_active_row(d, group.obj, d.efc_force)


def tendon_actuator_frc(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Total force (n,) [N] of the actuators on tendons."""
    return torch.cat([d.actuator_force, d.actuator_force.new_zeros(1)])[group.obj].sum(-1)


def frame_linacc(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Proper acceleration (n, 3) [m/s^2] in world axes."""
    return frames.acceleration[1][group.obj]


def frame_angacc(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Angular acceleration (n, 3) [rad/s^2] in world axes."""
    return frames.acceleration[0][group.obj]


TABLE: dict[SensorType, SensorFunction] = {
    SensorType.TOUCH: touch,
    SensorType.ACCELEROMETER: accelerometer,
    SensorType.FORCE: force,
    SensorType.TORQUE: torque,
    SensorType.JOINTLIMITFRC: limit_frc,
    SensorType.TENDONLIMITFRC: limit_frc,
    SensorType.TENDONACTFRC: tendon_actuator_frc,
    SensorType.FRAMELINACC: frame_linacc,
    SensorType.FRAMEANGACC: frame_angacc,
}


def sensor_acc(m: Model, d: Data, *, past: bool = True) -> Data:
    """The sensors that need accelerations and forces (mj_sensorAcc), into their part of sensordata.

    Sensors of force and torque, of users and plugins, also set cacc, cfrc_int and cfrc_ext. Needs `qacc`,
    `actuator_force`, `qfrc_actuator`, `efc_force`, and what `sensor_vel` needs.
    past: whether sensors with a delay, or that measure at intervals, report what they have recorded; else, even if
    sensors are disabled, what they would measure now.
    """
    stage = m.plan.sensor.acc
    if skip(m, stage, past):
        return d
    if {SensorType.FORCE, SensorType.TORQUE, SensorType.USER, SensorType.PLUGIN} & set(stage.types):
        d = rne_postconstraint(m, d)
    return sense(m, d, stage, TABLE, past)
