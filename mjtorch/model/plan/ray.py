"""Index plan of rays: the geoms that they can meet, by shape."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.math.shape import Shape
from mjtorch.model.plan import sdf, triangles
from mjtorch.model.plan.geom_pairs import SDF
from mjtorch.model.plan.sdf import Fields
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.triangles import HFIELD, MESH, TrianglePlan

NGROUP = int(mujoco.mjNGROUP)


@tree.dataclass(kw_only=True)
class RayPlan(tree.Tree):
    """The n visible geoms, shape by shape, then distance, meshes and height fields. Transparent geoms are invisible.

    shapes: static, primitive ones; geoms: one index tensor for each of them; all_geoms: (n,) all that rays can meet
    body: (n,) body of each, fixed: (n,) bool, whether that cannot move
    group: (n,) of each, from 0 to 5
    kind: (ngeom,) mjtGeom of every geom
    fields: (f,) those that are distance fields, field: theirs, none without such geoms
    nth_field: (ngeom,) the place of each geom among these, 0 of others
    triangles: of meshes and height fields
    """

    shapes: tuple[Shape, ...] = tree.field(static=True)
    geoms: tuple[Tensor, ...]
    all_geoms: Tensor
    body: Tensor
    fixed: Tensor
    group: Tensor
    kind: Tensor
    fields: Tensor
    field: tuple[Fields, ...]
    nth_field: Tensor
    triangles: TrianglePlan


def visible_geoms(m: mujoco.MjModel) -> np.ndarray:
    """(ngeom,) bool: geoms whose colour, or that of their material, is not transparent."""
    if not m.nmat:
        return m.geom_rgba[:, 3] != 0
    return np.where(m.geom_matid < 0, m.geom_rgba[:, 3], m.mat_rgba[m.geom_matid.clip(min=0), 3]) != 0


def build(mj_model: mujoco.MjModel, make: Tensors) -> RayPlan:
    """The plan for `mj_model`."""
    m, visible = mj_model, visible_geoms(mj_model)
    by_shape = {shape: np.flatnonzero(visible & (m.geom_type == int(shape))) for shape in Shape}
    by_shape = {shape: geoms for shape, geoms in by_shape.items() if len(geoms)}
    fields = np.flatnonzero(visible & (m.geom_type == SDF))
    surfaces = [*np.flatnonzero(visible & (m.geom_type == MESH)), *np.flatnonzero(visible & (m.geom_type == HFIELD))]
    order = np.concatenate([np.zeros(0, int), *by_shape.values(), fields, surfaces]).astype(np.int64)
    nth_field = np.zeros(m.ngeom, dtype=np.int64)
    nth_field[fields] = np.arange(len(fields))
    body = m.geom_bodyid[order]

    return RayPlan(
        shapes=tuple(by_shape),
        geoms=tuple(make.ints(geoms) for geoms in by_shape.values()),
        all_geoms=make.ints(order),
        body=make.ints(body),
        fixed=make.bools(m.body_weldid[body] == 0),
        group=make.ints(m.geom_group[order].clip(0, NGROUP - 1)),
        kind=make.ints(m.geom_type),
        fields=make.ints(fields),
        field=(sdf.fields(m, fields.tolist(), make),) if len(fields) else (),
        nth_field=make.ints(nth_field),
        triangles=triangles.build(m, make, len(order) - len(surfaces), [int(g) for g in surfaces]),
    )
