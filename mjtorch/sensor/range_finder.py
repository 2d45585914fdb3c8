"""Rangefinders: what rays from sites, or through the pixels of cameras, meet."""

import torch
from torch import Tensor

from mjtorch.math.vector import dot
from mjtorch.model import Data, Model
from mjtorch.model.plan.range_finder import RangeGroup, RayField, RaySource
from mjtorch.sensor.camera import orthographic_rays, perspective_rays
from mjtorch.smooth.ray import cast, normals


def range_finder(m: Model, d: Data, group: RangeGroup) -> Tensor:
    """Readings (n, npixel * width), ray by ray, of the first visible geom of another body (mjSENS_RANGEFINDER).

    Sites look along their z axes. Where a ray meets nothing, `dist` and `depth` are -1, and vectors other than the
    origin zero. The depth that a camera sees is the distance from the plane of the camera.
    """
    origin, direction = rays(m, d, group)
    n, npixel, _ = origin.shape
    origin, direction = origin.flatten(0, 1), direction.flatten(0, 1)
    seen = (m.plan.ray.body != group.body[:, None])[:, None].expand(n, npixel, -1).flatten(0, 1)
    hit = cast(m, d, origin, direction, seen)
    met, dist = (hit.geom >= 0)[:, None], hit.dist[:, None]
    parts = []
    for field in group.fields:
        if field is RayField.DIST:
            parts.append(dist)
        elif field is RayField.DIR:
            parts.append(torch.where(met, direction, 0.0))
        elif field is RayField.ORIGIN:
            parts.append(origin)
        elif field is RayField.POINT:
            parts.append(torch.where(met, origin + dist * direction, 0.0))
        elif field is RayField.NORMAL:
            parts.append(normals(m, d, origin, direction, hit))
        else:
            parts.append(torch.where(met, depth(d, group, origin + dist * direction, dist), -1.0))
    return torch.cat(parts, dim=-1).unflatten(0, (n, npixel)).flatten(1)


def rays(m: Model, d: Data, group: RangeGroup) -> tuple[Tensor, Tensor]:
    """Origins [m] and unit directions (n, npixel, 3) in the world."""
    if group.source is RaySource.SITE:
        return d.site_xpos[group.obj][:, None], d.site_xmat[group.obj][:, None, :, 2]
    through = perspective_rays if group.source is RaySource.PERSPECTIVE else orthographic_rays
    return through(m, d, group.obj, group.pixel)


def depth(d: Data, group: RangeGroup, point: Tensor, dist: Tensor) -> Tensor:
    """How far (k, 1) [m] points (k, 3) are from the plane of their camera; from the site, if there is none."""
    if group.source is RaySource.SITE:
        return dist
    npixel = group.pixel.shape[0]
    pos, axis = (x.repeat_interleave(npixel, 0) for x in (d.cam_xpos[group.obj], d.cam_xmat[group.obj][..., 2]))
    return -dot(point - pos, axis, keepdim=True)
