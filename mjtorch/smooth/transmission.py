"""How actuators act on joints and tendons: lengths and moment arms (mj_transmission)."""

import torch

from mjtorch.math import quaternion as quat
from mjtorch.math.vector import dot
from mjtorch.model import Data, Model


def transmission(m: Model, d: Data) -> Data:
    """Lengths and moments of actuators on joints and tendons (mj_transmission; computation/index.rst, "Transmission").

    Sets actuator_length, actuator_moment. A slide or hinge joint has length `gear[0] qpos`. A ball joint's is the
    component of its rotation vector along the gear's torque. A free joint, which feels the gear's force in world and
    torque in body axes, has length 0. An actuator "in parent" has its torque turned into the parent's (world's) frame.
    A tendon has length `gear[0] ten_length` and moment `gear[0] ten_J`. Needs `tendon`.
    """
    if not m.nu:
        return d
    p = m.plan.actuation
    gear, zero = m.actuator_gear.flatten(), m.qpos0.new_zeros(1)
    parts = [gear, zero]
    if p.turned_gear.shape[0]:
        turned = quat.rotate(gear[p.turned_gear], quat.conjugate(quat.normalize(d.qpos[p.turned_qpos])))
        parts = [gear, turned.flatten(), zero]
    position = d.qpos
    if p.pulling.shape[0]:
        parts = [*parts, (m.actuator_gear[p.pulling, :1] * d.ten_J[p.pulled]).flatten()]
        position = torch.cat([position, d.ten_length])
    wrench = torch.cat(parts)
    length = position[p.scalar_source] * m.actuator_gear[:, 0]
    if not p.has_scalar_length:
        rotation = quat.to_rotation_vector(quat.normalize(d.qpos[p.ball_qpos]))
        length = torch.cat([length, dot(rotation, wrench[p.ball_gear]), zero])[p.length_source]
    return d.replace(actuator_length=length, actuator_moment=wrench[p.moment_source])
