"""How bodies, geoms, sites and cameras move (mj_objectVelocity, mj_objectAcceleration)."""

import torch
from torch import Tensor

from mjtorch.math.vector import cross
from mjtorch.model import Data, DisableBit, Model
from mjtorch.model.arguments import check_both, checked_ids
from mjtorch.model.enums import ObjType
from mjtorch.model.plan.sensor import FRAME_MAT, FRAME_POS


def to_local(mat: Tensor, v: Tensor) -> Tensor:
    """Components of the world vectors `v (..., 3)` along the axes of frames `mat (..., 3, 3)`."""
    return (mat * v[..., :, None]).sum(-2)


def point_velocity(d: Data, body_id: Tensor, arm: Tensor) -> tuple[Tensor, Tensor]:
    """Angular [rad/s] and linear [m/s] velocity (k, 3) of points `arm` (k, 3) from the centre of mass of the root."""
    angular, linear = d.cvel[body_id].split(3, dim=-1)
    return angular, linear + cross(angular, arm)


def point_acceleration(m: Model, d: Data, body_id: Tensor, arm: Tensor) -> tuple[Tensor, Tensor]:
    """Angular [rad/s^2] and proper linear [m/s^2] acceleration (k, 3) of the same points under `d.qacc`.

    Proper: what an accelerometer feels, `-gravity` at rest.
    """
    by_dof = d.cdof_dot * d.qvel[:, None] + d.cdof * d.qacc[:, None]
    angular, linear = (m.plan.kinematics.body_dof[body_id] @ by_dof).split(3, dim=-1)
    linear = linear + cross(angular, arm) + cross(*point_velocity(d, body_id, arm))
    return angular, linear if m.opt.disabled(DisableBit.GRAVITY) else linear - m.opt.gravity


def object_velocity(m: Model, d: Data, objtype: ObjType, objid: Tensor, *, local: bool = False) -> Tensor:
    """Velocity (k, 6) of objects, angular [rad/s], then linear [m/s] (mj_objectVelocity). Needs `com_vel`.

    Args:
        m: the model.
        d: what `forward` leaves.
        objtype: what kind of objects; `BODY` is a body's inertial frame, `XBODY` its own.
        objid: (k,) int64, which of them.
        local: whether along the axes of the objects; else in world axes.

    Raises:
        TypeError, ValueError, IndexError: there is no such kind, or no such object.
    """
    objid = _checked(m, d, "object_velocity", objtype, objid)
    body_id, arm = _body_and_arm(m, d, objtype, objid)
    return _oriented(d, objtype, objid, point_velocity(d, body_id, arm), local)


def object_acceleration(m: Model, d: Data, objtype: ObjType, objid: Tensor, *, local: bool = False) -> Tensor:
    """Acceleration (k, 6) of objects, angular [rad/s^2], then proper linear [m/s^2] (mj_objectAcceleration).

    Under `d.qacc`. Proper: `-gravity` at rest, as an accelerometer feels it. MuJoCo before 4.0 says zero for objects
    that cannot move. Arguments are those of `object_velocity`. `rne_postconstraint` is not needed.
    """
    objid = _checked(m, d, "object_acceleration", objtype, objid)
    body_id, arm = _body_and_arm(m, d, objtype, objid)
    return _oriented(d, objtype, objid, point_acceleration(m, d, body_id, arm), local)


def object_body(m: Model, objtype: ObjType, objid: Tensor) -> Tensor:
    """The bodies (k,) that objects `objid` (k,) are fixed to."""
    start = {ObjType.GEOM: m.nbody, ObjType.SITE: m.nbody + m.ngeom, ObjType.CAMERA: m.nbody + m.ngeom + m.nsite}
    return m.plan.kinematics.attached_body[start[objtype] + objid] if objtype in start else objid


def _checked(m: Model, d: Data, caller: str, objtype: ObjType, objid: Tensor) -> Tensor:
    check_both(m, d, caller)
    if objtype not in FRAME_POS:
        known = ", ".join(ObjType(kind).name for kind in FRAME_POS)
        raise ValueError(f"{caller}: objtype must be one of mjtorch.ObjType.{known}, got {objtype!r}")
    sizes = {ObjType.GEOM: m.ngeom, ObjType.SITE: m.nsite, ObjType.CAMERA: m.ncam}
    return checked_ids(caller, "objid", objid, sizes.get(objtype, m.nbody), d.qpos)


def _body_and_arm(m: Model, d: Data, objtype: ObjType, objid: Tensor) -> tuple[Tensor, Tensor]:
    body_id = object_body(m, objtype, objid)
    return body_id, getattr(d, FRAME_POS[objtype])[objid] - d.subtree_com[m.plan.kinematics.body_root[body_id]]


def _oriented(d: Data, objtype: ObjType, objid: Tensor, motion: tuple[Tensor, Tensor], local: bool) -> Tensor:
    if local:
        mat = getattr(d, FRAME_MAT[objtype])[objid]
        motion = (to_local(mat, motion[0]), to_local(mat, motion[1]))
    return torch.cat(motion, dim=-1)
