"""Index plan of rays: the geoms that they can meet, by shape."""

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.math.shape import Shape

NGROUP = int(mujoco.mjNGROUP)
SHAPES = tuple(int(shape) for shape in Shape)


@tree.dataclass(kw_only=True)
class RayPlan(tree.Tree):
    """The n visible geoms of primitive shapes, shape by shape. A geom is invisible if its colour is transparent.

    shapes: static; geoms: one index tensor for each shape; all_geoms: (n,) all of them
    body: (n,) body of each, fixed: (n,) bool, whether that cannot move
    group: (n,) of each, from 0 to 5
    others: static, the visible geoms of other shapes
    """

    shapes: tuple[Shape, ...] = tree.field(static=True)
    geoms: tuple[Tensor, ...]
    all_geoms: Tensor
    body: Tensor
    fixed: Tensor
    group: Tensor
    others: tuple[int, ...] = tree.field(static=True)


def visible_geoms(m: mujoco.MjModel) -> np.ndarray:
    """(ngeom,) bool: geoms whose colour, or that of their material, is not transparent."""
    if not m.nmat:
        return m.geom_rgba[:, 3] != 0
    return np.where(m.geom_matid < 0, m.geom_rgba[:, 3], m.mat_rgba[m.geom_matid.clip(min=0), 3]) != 0


def unmet_geoms(m: mujoco.MjModel) -> np.ndarray:
    """(ngeom,) bool: visible geoms of other than primitive shapes."""
    return visible_geoms(m) & ~np.isin(m.geom_type, SHAPES)


def build(mj_model: mujoco.MjModel, device: torch.device) -> RayPlan:
    """The plan for `mj_model`."""
    m, visible = mj_model, visible_geoms(mj_model)
    by_shape = {shape: np.flatnonzero(visible & (m.geom_type == int(shape))) for shape in Shape}
    by_shape = {shape: geoms for shape, geoms in by_shape.items() if len(geoms)}
    order = np.concatenate([np.zeros(0, int), *by_shape.values()]).astype(np.int64)
    body = m.geom_bodyid[order]

    def index(x: np.ndarray) -> Tensor:
        return torch.tensor(x.astype(np.int64), device=device)

    return RayPlan(
        shapes=tuple(by_shape),
        geoms=tuple(index(geoms) for geoms in by_shape.values()),
        all_geoms=index(order),
        body=index(body),
        fixed=torch.tensor(m.body_weldid[body] == 0, device=device),
        group=index(m.geom_group[order].clip(0, NGROUP - 1)),
        others=tuple(int(i) for i in np.flatnonzero(unmet_geoms(m))),
    )
