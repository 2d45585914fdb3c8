"""Where rays meet geoms (mj_ray, mj_multiRay)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.compiler import stage
from mjtorch.math import shape as shapes
from mjtorch.model import Data, Model
from mjtorch.model.arguments import check_both, check_numbers, checked_ids
from mjtorch.model.plan.geom_pairs import SDF
from mjtorch.model.plan.ray import NGROUP
from mjtorch.smooth.distance_field import field_normals, march
from mjtorch.smooth.object import to_local
from mjtorch.smooth.triangles import meet_triangles


@stage
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
        pnt: (k, 3) [m] where the rays start; or one ray, (3,).
        vec: (k, 3) [m] where they go, or (3,).
        geomgroup: for each of the six groups of geoms whether rays see it; not given, or empty: all of them.
        flg_static: whether rays see geoms that cannot move.
        bodyexclude: a body whose geoms rays do not see, or (k,) int64 one for each ray; -1: none.

    Returns:
        dist (k,) in lengths of `vec`, and the geom (k,) int64; both -1 where a ray meets nothing. Of one ray (). The
        derivatives of `dist` are those of the way to the geom that was met.

    Raises:
        TypeError, ValueError, IndexError: an argument does not fit.
    """
    check_both(m, d, "ray")
    for name, x in (("pnt", pnt), ("vec", vec)):
        check_numbers("ray", name, x, ((3,), (-1, 3)), d.qpos)
    one = pnt.dim() == 1 and vec.dim() == 1
    starts, ways = (pnt[None], vec[None]) if one else torch.broadcast_tensors(pnt, vec)
    hit = cast(m, d, starts, ways, sight(m, "ray", geomgroup, flg_static, bodyexclude))
    return (hit.dist[0], hit.geom[0]) if one else (hit.dist, hit.geom)


@stage
def multi_ray(
    m: Model,
    d: Data,
    pnt: Tensor,
    vec: Tensor,
    *,
    geomgroup: Sequence[bool] | None = None,
    flg_static: bool = True,
    bodyexclude: int | Tensor = -1,
) -> tuple[Tensor, Tensor, Tensor]:
    """`ray` from one point, with the normals of the surfaces that rays meet (mj_multiRay without cutoff).

    Args:
        m, d, vec, geomgroup, flg_static, bodyexclude: as for `ray`.
        pnt: (3,) [m] where all rays start, or (k, 3), one point for each.

    Returns:
        dist (k,) and the geom (k,) int64, as from `ray`, and the unit normal (k, 3) in world axes that points out of
        the geom; zero where a ray meets nothing.

    Raises:
        TypeError, ValueError, IndexError: as `ray`.
    """
    check_both(m, d, "multi_ray")
    check_numbers("multi_ray", "vec", vec, ((-1, 3),), d.qpos)
    check_numbers("multi_ray", "pnt", pnt, ((3,), tuple(vec.shape)), d.qpos)
    pnt = pnt.expand_as(vec)
    hit = cast(m, d, pnt, vec, sight(m, "multi_ray", geomgroup, flg_static, bodyexclude))
    return hit.dist, hit.geom, normals(m, d, pnt, vec, hit)


class Hit(NamedTuple):
    """Where rays meet the first geom.

    dist: (k,) in lengths of the ray's direction, and geom: (k,); both -1 where a ray meets nothing
    on_triangle: (k,) bool, whether it is a triangle of a mesh or a height field, facing: (k, 3) its unit normal then;
        both are None without such geoms
    """

    dist: Tensor
    geom: Tensor
    on_triangle: Tensor | None
    facing: Tensor | None


def sight(
    m: Model, caller: str, geomgroup: Sequence[bool] | None, flg_static: bool, bodyexclude: int | Tensor
) -> Tensor:
    """Which of the geoms of `m.plan.ray` rays see, (k or 1, n) bool; the arguments are those of `ray`."""
    p = m.plan.ray
    excluded = checked_ids(caller, "bodyexclude", bodyexclude, m.nbody, m.qpos0, least=-1).reshape(-1, 1)
    seen = p.body != excluded
    if not flg_static:
        seen = seen & ~p.fixed
    if geomgroup is not None and len(geomgroup):
        if len(geomgroup) != NGROUP:
            raise ValueError(f"{caller}: geomgroup must have {NGROUP} elements, got {len(geomgroup)}")
        groups = torch.tensor([bool(g) for g in geomgroup], device=p.group.device)
        seen = seen & groups[p.group]
    return seen


def cast(m: Model, d: Data, pnt: Tensor, vec: Tensor, seen: Tensor) -> Hit:
    """`ray`, among the geoms of `m.plan.ray` of which `seen` (k or 1, n) bool says whether a ray sees them."""
    p = m.plan.ray
    ways = [pnt.new_full((pnt.shape[0], 1), math.inf)]  # to nothing
    for shape, geom_id in zip(p.shapes, p.geoms, strict=True):
        mat = d.geom_xmat[geom_id]
        point, direction = to_local(mat, pnt[:, None] - d.geom_xpos[geom_id]), to_local(mat, vec[:, None])
        ways.append(shapes.ray(shape, m.geom_size[geom_id], point, direction))
    if p.field:
        ways.append(march(m, d, pnt, vec))
    way = torch.cat(ways, dim=1)
    n = way.shape[1] - 1
    dist, nearest = torch.where(F.pad(seen[:, :n], (1, 0), value=True) & (way >= 0), way, math.inf).min(1)
    geom = F.pad(p.all_geoms[:n], (1, 0), value=-1)[nearest]
    on_triangle = facing = None
    if p.triangles.face.shape[0]:
        further, which, facing = meet_triangles(m, d, pnt, vec, seen)
        on_triangle = (further >= 0) & (further < dist)
        geom = torch.where(on_triangle, p.all_geoms[p.triangles.owner[which]], geom)
        dist = torch.where(on_triangle, further, dist)
    return Hit(torch.where(dist < math.inf, dist, -1.0), geom, on_triangle, facing)


def normals(m: Model, d: Data, pnt: Tensor, vec: Tensor, hit: Hit) -> Tensor:
    """Outward unit normals (k, 3) in world axes of the surfaces that rays meet; zero where they meet nothing."""
    p = m.plan.ray
    if not m.ngeom:
        return torch.zeros_like(pnt)
    geom = hit.geom.clamp(min=0)
    mat, size, kind = d.geom_xmat[geom], m.geom_size[geom], p.kind[geom][:, None]
    local = to_local(mat, pnt + hit.dist[:, None] * vec - d.geom_xpos[geom])
    normal = torch.zeros_like(local)
    for shape in p.shapes:
        mine = kind == int(shape)
        # The sizes of other shapes may be zero.
        normal = torch.where(mine, shapes.normal(shape, torch.where(mine, size, 1.0), local), normal)
    if p.field:
        normal = torch.where(kind == SDF, field_normals(m, p.nth_field[geom], local), normal)
    normal = (mat @ normal[..., None]).squeeze(-1)
    if hit.on_triangle is not None and hit.facing is not None:
        normal = torch.where(hit.on_triangle[:, None], hit.facing, normal)
    return torch.where(hit.geom[:, None] >= 0, normal, 0.0)
