"""Index plan of the sensors of how far objects jut out of sites: which shapes each one looks at."""

from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.tensors import Tensors

GEOM, SITE, BODY, XBODY = (int(getattr(mujoco.mjtObj, f"mjOBJ_{x}")) for x in ("GEOM", "SITE", "BODY", "XBODY"))
MESH = int(mujoco.mjtGeom.mjGEOM_MESH)


class Looked(NamedTuple):
    """A shape that a sensor looks at: a geom, or a site."""

    sensor: int
    is_site: bool
    number: int


@tree.dataclass(kw_only=True)
class Objects(tree.Tree):
    """n geoms, or sites, of one kind: of some sizes, or of one mesh.

    is_site: static; type: (n,) mjtGeom; number: (n,) ids
    site: (n,) the sites that they should be in
    vert: (nvert,) the vertices, as rows of `mesh_vert`; none of what sizes describe
    """

    is_site: bool = tree.field(static=True)
    type: Tensor
    number: Tensor
    site: Tensor
    vert: Tensor


@tree.dataclass(kw_only=True)
class EnclosedPlan(tree.Tree):
    """The s sensors that look at whole shapes.

    sensors: static, their ids
    objects: what they look at, by kind; site_type: mjtGeom of the sites, one tensor (n,) for each kind
    place: (s, k) which of [objects, nothing] each sensor looks at
    """

    sensors: tuple[int, ...] = tree.field(static=True)
    objects: tuple[Objects, ...]
    site_type: tuple[Tensor, ...]
    place: Tensor


def build(m: mujoco.MjModel, make: Tensors, sensors: list[int]) -> tuple[EnclosedPlan, ...]:
    """The plan of `sensors`, if there are any."""
    if not sensors:
        return ()
    kinds: dict[tuple[bool, int], list[Looked]] = {}
    for sensor in sensors:
        for shape in looked_at(m, sensor):
            is_mesh = not shape.is_site and m.geom_type[shape.number] == MESH
            mesh = int(m.geom_dataid[shape.number]) if is_mesh else -1
            kinds.setdefault((shape.is_site, mesh), []).append(shape)
    every = [shape for shapes in kinds.values() for shape in shapes]
    rows = [[k for k, shape in enumerate(every) if shape.sensor == sensor] for sensor in sensors]
    width = max(map(len, rows))
    return (
        EnclosedPlan(
            sensors=tuple(sensors),
            objects=tuple(_objects(m, make, *kind, shapes) for kind, shapes in kinds.items()),
            site_type=tuple(make.ints(m.site_type[_sites(m, shapes)]) for shapes in kinds.values()),
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


def _sites(m: mujoco.MjModel, shapes: list[Looked]) -> np.ndarray:
    return m.sensor_refid[[shape.sensor for shape in shapes]]


def _objects(m: mujoco.MjModel, make: Tensors, is_site: bool, mesh: int, shapes: list[Looked]) -> Objects:
    numbers = [shape.number for shape in shapes]
    vert = np.arange(m.mesh_vertnum[mesh]) + m.mesh_vertadr[mesh] if mesh >= 0 else np.zeros(0, dtype=int)
    return Objects(
        is_site=is_site,
        type=make.ints((m.site_type if is_site else m.geom_type)[numbers]),
        number=make.ints(numbers),
        site=make.ints(_sites(m, shapes)),
        vert=make.ints(vert),
    )
