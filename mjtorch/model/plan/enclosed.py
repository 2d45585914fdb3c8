"""Index plan of the sensors of how far objects jut out of sites: which shapes each one looks at."""

from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.volume import MESH, Volume, VolumeKey, build as build_volume, volume_key

GEOM, SITE, BODY, XBODY = (int(getattr(mujoco.mjtObj, f"mjOBJ_{x}")) for x in ("GEOM", "SITE", "BODY", "XBODY"))
SIZED: VolumeKey = (-1, -1)


class Looked(NamedTuple):
    """A shape that a sensor looks at: a geom, or a site."""

    sensor: int
    is_site: bool
    number: int


@tree.dataclass(kw_only=True)
class Objects(tree.Tree):
    """n geoms, or sites, of one kind: of some sizes, or of one mesh; and sites of one kind that they should be in.

    is_site: static; type: (n,) mjtGeom; number: (n,) ids
    vert: (nvert,) the vertices, as rows of `mesh_vert`; none of what sizes describe
    site: (n,) ids; site_type: (n,) mjtGeom
    hull: the volume that the sites have in common, if they are of a mesh
    """

    is_site: bool = tree.field(static=True)
    type: Tensor
    number: Tensor
    vert: Tensor
    site: Tensor
    site_type: Tensor
    hull: tuple[Volume, ...]


@tree.dataclass(kw_only=True)
class EnclosedPlan(tree.Tree):
    """The s sensors that look at whole shapes.

    sensors: static, their ids
    objects: what they look at, by kind
    place: (s, k) which of [objects, nothing] each sensor looks at
    """

    sensors: tuple[int, ...] = tree.field(static=True)
    objects: tuple[Objects, ...]
    place: Tensor


def build(m: mujoco.MjModel, make: Tensors, sensors: list[int]) -> tuple[EnclosedPlan, ...]:
    """The plan of `sensors`, if there are any."""
    if not sensors:
        return ()
    kinds: dict[tuple[bool, int, VolumeKey], list[Looked]] = {}
    for sensor in sensors:
        for shape in looked_at(m, sensor):
            kinds.setdefault(_kind(m, shape), []).append(shape)
    every = [shape for shapes in kinds.values() for shape in shapes]
    rows = [[k for k, shape in enumerate(every) if shape.sensor == sensor] for sensor in sensors]
    width = max(map(len, rows))
    return (
        EnclosedPlan(
            sensors=tuple(sensors),
            objects=tuple(_objects(m, make, *kind, shapes) for kind, shapes in kinds.items()),
            place=make.ints([row + [len(every)] * (width - len(row)) for row in rows]),
        ),
    )


def is_enclosed(m: mujoco.MjModel) -> np.ndarray:
    """(nsensor,) bool: sensors that look at whole shapes."""
    return (m.sensor_type == mujoco.mjtSensor.mjSENS_INSIDESITE) & (m.sensor_intprm[:, 0] != 0)


def looked_at(m: mujoco.MjModel, sensor: int) -> list[Looked]:
    """A geom or a site, the geoms of a body, or those of it and all below."""
    kind, number = int(m.sensor_objtype[sensor]), int(m.sensor_objid[sensor])
    if kind in (GEOM, SITE):
        return [Looked(sensor, kind == SITE, number)]
    bodies = {number}
    if kind == XBODY:
        for body in range(number + 1, m.nbody):
            bodies |= {body} if int(m.body_parentid[body]) in bodies else set()
    return [Looked(sensor, False, geom) for geom in range(m.ngeom) if int(m.geom_bodyid[geom]) in bodies]


def _kind(m: mujoco.MjModel, shape: Looked) -> tuple[bool, int, VolumeKey]:
    """Whether it is a site, its mesh, and the volume that it should be in; -1 and `SIZED` if sizes describe them."""
    is_mesh = not shape.is_site and m.geom_type[shape.number] == MESH
    volume = volume_key(m, int(m.sensor_refid[shape.sensor]))
    return shape.is_site, int(m.geom_dataid[shape.number]) if is_mesh else -1, volume if volume[0] == MESH else SIZED


def _objects(
    m: mujoco.MjModel, make: Tensors, is_site: bool, mesh: int, volume: VolumeKey, shapes: list[Looked]
) -> Objects:
    numbers, sites = [shape.number for shape in shapes], m.sensor_refid[[shape.sensor for shape in shapes]]
    vert = np.arange(m.mesh_vertnum[mesh]) + m.mesh_vertadr[mesh] if mesh >= 0 else np.zeros(0, dtype=int)
    return Objects(
        is_site=is_site,
        type=make.ints((m.site_type if is_site else m.geom_type)[numbers]),
        number=make.ints(numbers),
        vert=make.ints(vert),
        site=make.ints(sites),
        site_type=make.ints(m.site_type[sites]),
        hull=() if volume == SIZED else (build_volume(m, make, volume),),
    )
