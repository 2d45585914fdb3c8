"""Where rays meet geoms (mj_ray)."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.math import shape as shapes
from mjtorch.model import Data, Model
from mjtorch.model.plan.ray import NGROUP
from mjtorch.smooth.object import to_local


def ray(
    m: Model,
    d: Data,
    pnt: Tensor,
    vec: Tensor,
    *,
    geomgroup: Sequence[bool] | None = None,
    flg_static: bool = True,
    bodyexclude: int | Tensor = -1,
) -> tuple[Tensor, Tensor]:
    """How far rays go before they meet a visible geom, and which (mj_ray).

    Args:
        m: the model.
        d: what `kinematics` leaves.
        pnt: (k, 3) [m] where the rays start.
        vec: (k, 3) [m] where they go.
        geomgroup: for each of the six groups of geoms whether rays see it; not given: all of them.
        flg_static: whether rays see geoms that cannot move.
        bodyexclude: a body whose geoms rays do not see, or (k,) int64 one for each ray; -1: none.

    Returns:
        dist (k,) in lengths of `vec`, and the geom (k,) int64; both -1 where a ray meets nothing. Derivatives of `dist`
        are those of the way to the geom that was met.

    Raises:
        NotImplementedError: rays would see meshes or other geoms that are not planes, spheres, capsules, ellipsoids,
            cylinders or boxes.
        ValueError: `geomgroup` does not have six elements.
    """
    p = m.plan.ray
    if p.others:
        raise NotImplementedError(
            f"ray: the model has visible geoms without a primitive shape: {', '.join(map(str, p.others))}; "
            "make them transparent or replace them by primitive geoms"
        )
    excluded = torch.as_tensor(bodyexclude, device=p.body.device).reshape(-1, 1)
    seen = p.body != excluded
    if not flg_static:
        seen = seen & ~p.fixed
    if geomgroup is not None:
        if len(geomgroup) != NGROUP:
            raise ValueError(f"ray: geomgroup must have {NGROUP} elements, got {len(geomgroup)}")
        groups = torch.tensor([bool(g) for g in geomgroup], device=p.group.device)
        seen = seen & groups[p.group]
    return cast(m, d, pnt, vec, seen)


def cast(m: Model, d: Data, pnt: Tensor, vec: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """`ray`, among the geoms of `m.plan.ray` of which `seen` (k or 1, n) bool says whether a ray sees them."""
    p = m.plan.ray
    ways = [pnt.new_full((pnt.shape[0], 1), math.inf)]  # to nothing
    for shape, geom_id in zip(p.shapes, p.geoms, strict=True):
        mat = d.geom_xmat[geom_id]
        point, direction = to_local(mat, pnt[:, None] - d.geom_xpos[geom_id]), to_local(mat, vec[:, None])
        ways.append(shapes.ray(shape, m.geom_size[geom_id], point, direction))
    way = torch.cat(ways, dim=1)
    dist, nearest = torch.where(F.pad(seen, (1, 0), value=True) & (way >= 0), way, math.inf).min(1)
    geom = F.pad(p.all_geoms, (1, 0), value=-1)[nearest]
    return torch.where(dist < math.inf, dist, -1.0), geom
