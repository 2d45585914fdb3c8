"""Index plan of contact sensors: which contacts each looks for, and what it reports of them."""

import enum

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import volume
from mjtorch.model.plan.colliders import collider_body
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.volume import Volume, VolumeKey, volume_key

BODY, XBODY, GEOM, SITE = (int(getattr(mujoco.mjtObj, f"mjOBJ_{kind}")) for kind in ("BODY", "XBODY", "GEOM", "SITE"))


class ContactField(enum.IntEnum):
    """mjtConDataField: what can be reported of a contact, in the order of the report."""

    FOUND = 0
    FORCE = 1
    TORQUE = 2
    DIST = 3
    POS = 4
    NORMAL = 5
    TANGENT = 6
    LINVEL = 7
    ANGVEL = 8


class Reduce(enum.IntEnum):
    """How contacts are chosen if there are more than slots, or what is made of them."""

    NONE = 0
    MINDIST = 1
    MAXFORCE = 2
    NETFORCE = 3


@tree.dataclass(kw_only=True)
class ContactGroup(tree.Tree):
    """n contact sensors that differ only in what they look for.

    fields, reduce: static; num: static, how many contacts each reports
    sensors: static, their ids
    volume: one, of the sites that contacts must be in, if there are sites
    matches: (ncollider, 2, n) bool, whether a geom or a vertex is of what is first, and second, in each sensor
    site: (n,) or, without sites, (0,)
    """

    fields: tuple[ContactField, ...] = tree.field(static=True)
    reduce: Reduce = tree.field(static=True)
    num: int = tree.field(static=True)
    sensors: tuple[int, ...] = tree.field(static=True)
    volume: tuple[Volume, ...]
    matches: Tensor
    site: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors, sensors: list[int]) -> tuple[ContactGroup, ...]:
    """The groups of `sensors`, which are contact sensors."""
    m = mj_model
    groups: dict[tuple[int, int, int, VolumeKey | None], list[int]] = {}
    for i in sensors:
        spec, reduce, num = (int(x) for x in m.sensor_intprm[i])
        in_site = m.sensor_objtype[i] == SITE
        where = volume_key(m, m.sensor_objid[i]) if in_site else None
        groups.setdefault((spec, reduce, num, where), []).append(i)
    return tuple(
        ContactGroup(
            fields=tuple(field for field in ContactField if spec & (1 << field)),
            reduce=Reduce(reduce),
            num=num,
            sensors=tuple(mine),
            volume=() if where is None else (volume.build(m, make, where),),
            matches=make.bools(np.stack([_matches(m, i) for i in mine], axis=-1)),
            site=make.ints(m.sensor_objid[mine] if where is not None else []),
        )
        for (spec, reduce, num, where), mine in groups.items()
    )


def _matches(m: mujoco.MjModel, i: int) -> np.ndarray:
    """(ncollider, 2) bool: which colliders belong to the first and to the second object of sensor `i`."""
    return np.stack(
        [_belongs(m, m.sensor_objtype[i], m.sensor_objid[i]), _belongs(m, m.sensor_reftype[i], m.sensor_refid[i])],
        axis=-1,
    )


def _belongs(m: mujoco.MjModel, objtype: int, obj: int) -> np.ndarray:
    """(ncollider,) bool: the geom itself, those of a body or of a subtree; all if contacts are not chosen by these."""
    body = collider_body(m)
    if objtype == GEOM:
        return np.arange(len(body)) == obj
    if objtype not in (BODY, XBODY):
        return np.ones(len(body), dtype=bool)
    below = np.arange(m.nbody) == obj
    for k in range(1, m.nbody if objtype == XBODY else 0):
        below[k] |= below[m.body_parentid[k]]
    return below[body]
