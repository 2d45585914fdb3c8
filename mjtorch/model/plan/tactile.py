"""Index plan of tactile sensors: their taxels, and the geoms that may press on them."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.math.shape import Shape
from mjtorch.model.plan.geom_pairs import tested_pairs
from mjtorch.model.plan.sdf import Fields, fields, has_formula, has_octree
from mjtorch.model.plan.tensors import Tensors

MESH = int(mujoco.mjtGeom.mjGEOM_MESH)
SHAPES = tuple(int(shape) for shape in Shape)


@tree.dataclass(kw_only=True)
class TactilePlan(tree.Tree):
    """A tactile sensor with n taxels, the vertices of a mesh.

    sensors: static, its id alone
    geom: (1,) that carries the mesh, body: (1,) the body that this is welded to, mine: (ngeom,) bool, its geoms
    vert: (n,) rows of `mesh_vert`; tangent: (2, n) rows of `mesh_normal`, or (2, 0) if the mesh has normals only
    shapes: static, geoms: an index tensor for each: geoms that may touch those of the body; others: (k,) all of them,
        the signed distance fields `field_geoms` (f,) last, whose `fields` these are, if there are some
    """

    sensors: tuple[int, ...] = tree.field(static=True)
    geom: Tensor
    body: Tensor
    mine: Tensor
    vert: Tensor
    tangent: Tensor
    shapes: tuple[Shape, ...] = tree.field(static=True)
    geoms: tuple[Tensor, ...]
    field_geoms: Tensor
    fields: tuple[Fields, ...]
    others: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors, sensors: list[int]) -> tuple[TactilePlan, ...]:
    """The plans of `sensors`, which are tactile sensors."""
    m = mj_model

    plans = []
    for i in sensors:
        mesh, geom = int(m.sensor_objid[i]), int(m.sensor_refid[i])
        taxel = np.arange(m.mesh_vertnum[mesh])
        has_frames = m.mesh_normalnum[mesh] == 3 * m.mesh_vertnum[mesh]
        tangent = m.mesh_normaladr[mesh] + 3 * taxel + np.array([[1], [2]])
        others = touching_geoms(m, i)
        by_shape = {shape: others[m.geom_type[others] == int(shape)] for shape in Shape}
        by_shape = {shape: geoms for shape, geoms in by_shape.items() if len(geoms)}
        is_field = others[has_field(m)[others]]
        plans.append(
            TactilePlan(
                sensors=(i,),
                geom=make.ints([geom]),
                body=make.ints(m.body_weldid[m.geom_bodyid[[geom]]]),
                mine=make.bools(welded_geoms(m, i)),
                vert=make.ints(m.mesh_vertadr[mesh] + taxel),
                tangent=make.ints(tangent if has_frames else tangent[:, :0]),
                shapes=tuple(by_shape),
                geoms=tuple(make.ints(geoms) for geoms in by_shape.values()),
                field_geoms=make.ints(is_field),
                fields=(fields(m, is_field.tolist(), make),) if len(is_field) else (),
                others=make.ints(np.concatenate([np.zeros(0), *by_shape.values(), is_field])),
            )
        )
    return tuple(plans)


def has_field(m: mujoco.MjModel) -> np.ndarray:
    """(ngeom,) bool: geoms whose depth is that of a distance field; of those of type `sdf` C takes plugins only."""
    return has_formula(m) | (has_octree(m) & (m.geom_type == MESH))


def welded_geoms(m: mujoco.MjModel, sensor: int) -> np.ndarray:
    """(ngeom,) bool: the geoms that move with a tactile sensor."""
    weld = m.body_weldid[m.geom_bodyid]
    return weld == weld[m.sensor_refid[sensor]]


def touching_geoms(m: mujoco.MjModel, sensor: int) -> np.ndarray:
    """The geoms that may touch those that move with a tactile sensor. Flexes are not felt: C reads no geom for them."""
    mine = welded_geoms(m, sensor)
    pairs = tested_pairs(m).geom
    pairs = pairs[(pairs < m.ngeom).all(1)]
    return np.unique(np.concatenate([pairs[mine[pairs[:, 0]], 1], pairs[mine[pairs[:, 1]], 0]]))


def unfelt_geoms(m: mujoco.MjModel, sensor: int) -> np.ndarray:
    """The geoms that may touch a tactile sensor and whose depth is unknown; meshes that C ignores are none of them."""
    others = touching_geoms(m, sensor)
    others = others[~has_field(m)[others]]
    ignored = [m.geom_type[g] == MESH and m.mesh_octadr[m.geom_dataid[g]] < 0 for g in others]
    return others[~np.isin(m.geom_type[others], SHAPES) & ~np.array(ignored, dtype=bool)]
