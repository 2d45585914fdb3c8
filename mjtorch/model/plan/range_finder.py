"""Index plan of rangefinders: the rays they cast and what they report of them."""

import enum

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.tensors import Tensors

CAMERA = int(mujoco.mjtObj.mjOBJ_CAMERA)


class RayField(enum.IntEnum):
    """mjtRayDataField: what can be reported of a ray, in the order of the report."""

    DIST = 0
    DIR = 1
    ORIGIN = 2
    POINT = 3
    NORMAL = 4
    DEPTH = 5


class RaySource(enum.IntEnum):
    """Where the rays come from: a site, or the pixels of a camera (mjtProjection)."""

    SITE = -1
    PERSPECTIVE = 0
    ORTHOGRAPHIC = 1


@tree.dataclass(kw_only=True)
class RangeGroup(tree.Tree):
    """n rangefinders that report the same fields; those of cameras have the same resolution.

    source, fields: static; sensors: static, their ids
    obj: (n,) sites or cameras, body: (n,) their bodies
    pixel: (npixel, 2) centres of the pixels, from the upper left corner, row by row; one pixel for sites
    """

    source: RaySource = tree.field(static=True)
    fields: tuple[RayField, ...] = tree.field(static=True)
    sensors: tuple[int, ...] = tree.field(static=True)
    obj: Tensor
    body: Tensor
    pixel: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors, sensors: list[int]) -> tuple[RangeGroup, ...]:
    """The groups of `sensors`, which are rangefinders."""
    m = mj_model
    groups: dict[tuple[RaySource, int, int, int], list[int]] = {}
    for i in sensors:
        obj, spec = int(m.sensor_objid[i]), int(m.sensor_intprm[i, 0])
        if m.sensor_objtype[i] == CAMERA:
            width, height = (int(x) for x in m.cam_resolution[obj])
            key = (RaySource(int(m.cam_projection[obj])), spec, width, height)
        else:
            key = (RaySource.SITE, spec, 1, 1)
        groups.setdefault(key, []).append(i)

    def group(source: RaySource, spec: int, width: int, height: int, mine: list[int]) -> RangeGroup:
        obj = m.sensor_objid[mine]
        row, col = np.indices((height, width)).reshape(2, -1)
        return RangeGroup(
            source=source,
            fields=tuple(field for field in RayField if spec & (1 << field)),
            sensors=tuple(mine),
            obj=make.ints(obj),
            body=make.ints((m.site_bodyid if source is RaySource.SITE else m.cam_bodyid)[obj]),
            pixel=make.floats(np.stack([col, row], axis=-1) + 0.5),
        )

    return tuple(group(*key, mine) for key, mine in groups.items())
