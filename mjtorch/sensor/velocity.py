"""Sensors that need velocities (mj_sensorVel)."""

from torch import Tensor

from mjtorch.math.vector import cross
from mjtorch.model import Data, Model
from mjtorch.model.plan.sensor import SensorGroup, SensorType
from mjtorch.sensor.frame import Frames
from mjtorch.sensor.stage import SensorFunction, first_active_row, sense, skip
from mjtorch.smooth.energy import subtree_vel
from mjtorch.smooth.object import to_local


def velocimeter(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Linear velocity (n, 3) [m/s] of sites in their own axes."""
    return to_local(frames.mat[group.obj], frames.velocity[1][group.obj])


def gyro(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Angular velocity (n, 3) [rad/s] of sites in their own axes."""
    return to_local(frames.mat[group.obj], frames.velocity[0][group.obj])


def limit_vel(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Velocity (n,) [m/s or rad/s] of active limits of joints or tendons, positive when moving away."""
    return first_active_row(d, group.obj, d.efc_vel)


def frame_linvel(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Linear velocity (n, 3) [m/s] in the world, or as an observer who turns with the reference frame sees it."""
    angular, linear = frames.velocity
    velocity = linear[group.obj]
    if not group.referenced:
        return velocity
    arm = frames.pos[group.obj] - frames.pos[group.ref]
    carried = linear[group.ref] + cross(angular[group.ref], arm)
    return to_local(frames.mat[group.ref], velocity - carried)


def frame_angvel(m: Model, d: Data, group: SensorGroup, frames: Frames) -> Tensor:
    """Angular velocity (n, 3) [rad/s] relative to the reference frames, in their axes."""
    angular = frames.velocity[0]
    return to_local(frames.mat[group.ref], angular[group.obj] - angular[group.ref])


TABLE: dict[SensorType, SensorFunction] = {
    SensorType.VELOCIMETER: velocimeter,
    SensorType.GYRO: gyro,
    SensorType.JOINTLIMITVEL: limit_vel,
    SensorType.TENDONLIMITVEL: limit_vel,
    SensorType.FRAMELINVEL: frame_linvel,
    SensorType.FRAMEANGVEL: frame_angvel,
}


def sensor_vel(m: Model, d: Data, *, past: bool = True) -> Data:
    """The sensors that need velocities (mj_sensorVel), into their part of sensordata.

    Subtree and user sensors also set subtree_linvel and subtree_angmom. Needs what `sensor_pos` needs, and `com_vel`,
    `ten_velocity`, `actuator_velocity`, `reference_constraint`.
    past: whether sensors with a delay, or that measure at intervals, report what they have recorded; else, even if
    sensors are disabled, what they would measure now.
    """
    stage = m.plan.sensor.vel
    if skip(m, stage, past):
        return d
    if {SensorType.SUBTREELINVEL, SensorType.SUBTREEANGMOM, SensorType.USER} & set(stage.types):
        d = subtree_vel(m, d)
    return sense(m, d, stage, TABLE, past)
