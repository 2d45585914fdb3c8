"""Frames of bodies, geoms, sites and cameras that sensors are attached to, and how they move."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mjtorch.math import quaternion as quat
from mjtorch.model import Data, Model
from mjtorch.model.enums import ObjType
from mjtorch.model.plan.sensor import FRAME_MAT, FRAME_POS, FramePlan
from mjtorch.smooth.object import point_acceleration, point_velocity


def _once(compute: Callable[["Frames"], Any]) -> Any:
    """A property computed when first asked for; `functools.cached_property` takes a lock, which Dynamo rejects."""
    name = compute.__name__

    def get(self: "Frames") -> Any:
        if name not in self.known:
            self.known[name] = compute(self)
        return self.known[name]

    return property(get, doc=compute.__doc__)


class Frames:
    """The k frames of one stage, each quantity computed once and only if a sensor asks for it."""

    def __init__(self, m: Model, d: Data, plan: FramePlan) -> None:
        self.m, self.d, self.plan = m, d, plan
        self.known: dict[str, Any] = {}

    def _gather(self, fields: dict[ObjType, str]) -> Tensor:
        rows = [getattr(self.d, fields[t])[i] for t, i in zip(self.plan.objtypes, self.plan.ids, strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    @_once
    def pos(self) -> Tensor:
        """(k, 3) [m]"""
        return self._gather(FRAME_POS)

    @_once
    def mat(self) -> Tensor:
        """(k, 3, 3)"""
        return self._gather(FRAME_MAT)

    @_once
    def quat(self) -> Tensor:
        """(k, 4); a camera's is that of its fixed mode, even if it follows a target."""
        m, local = self.m, []
        mounted = {
            ObjType.BODY: m.body_iquat,
            ObjType.GEOM: m.geom_quat,
            ObjType.SITE: m.site_quat,
            ObjType.CAMERA: m.cam_quat,
        }
        for objtype, ids in zip(self.plan.objtypes, self.plan.ids, strict=True):
            if objtype in mounted:
                local.append(mounted[objtype][ids])
            else:
                identity = self.d.xquat.new_tensor([1.0, 0.0, 0.0, 0.0])
                local.append(identity.expand(ids.shape[0], 4))
        return quat.mul(self.d.xquat[self.plan.body], torch.cat(local))

    @_once
    def arm(self) -> Tensor:
        """(k, 3) [m] from the reference point of cvel and cdof to the frame."""
        return self.pos - self.d.subtree_com[self.plan.root]

    @_once
    def velocity(self) -> tuple[Tensor, Tensor]:
        """Angular (k, 3) [rad/s] and linear (k, 3) [m/s] velocity, in world axes (mj_objectVelocity)."""
        return point_velocity(self.d, self.plan.body, self.arm)

    @_once
    def acceleration(self) -> tuple[Tensor, Tensor]:
        """Angular (k, 3) [rad/s^2] and proper linear (k, 3) [m/s^2] acceleration in world axes (mj_objectAcceleration).

        Proper: what an accelerometer feels, `-gravity` at rest.
        """
        return point_acceleration(self.m, self.d, self.plan.body, self.arm)
