"""Whether something is between two points of geoms that are about to meet."""

import torch
from torch import Tensor

from mjtorch.math import shape as shapes
from mjtorch.math.shape import Shape
from mjtorch.math.vector import cross, dot, norm
from mjtorch.model import Data, Model
from mjtorch.model.plan.speculative import SpeculativePlan
from mjtorch.smooth.object import to_local
from mjtorch.smooth.triangles import corners_of, nearest_triangle, vertices_of

# What is nearer to the start of a way [m], or to its end as a share of it, than that is not in between.
AT_START, AT_END = 1e-6, 2e-7


def hidden(m: Model, d: Data, p: SpeculativePlan, start: Tensor, end: Tensor, hides: Tensor) -> Tensor:
    """(r,) bool: whether an obstacle is entered on the way from `start` to `end`, (r, 3) [m]; they have no derivative.

    hides: (r, o) bool, the obstacles that count. One that begins around the start is left, not entered. Planes have no
    borders.
    """
    start, way = start.detach(), (end - start).detach()
    length = norm(way)
    first, last = AT_START / torch.where(length > 0, length, 1.0), 1 - AT_END
    found, count = torch.zeros_like(length, dtype=torch.bool), 0
    for shape, geom in zip(p.shapes, p.obstacles, strict=True):
        mat, pos = d.geom_xmat[geom].detach(), d.geom_xpos[geom].detach()
        point, direction = to_local(mat, start[:, None] - pos), to_local(mat, way[:, None])
        size = m.geom_size[geom].detach()
        size = torch.zeros_like(size) if shape == Shape.PLANE else size
        share = shapes.ray(shape, size, point, direction)
        enters = (share * length[:, None] > AT_START) & (share < last) & ~shapes.inside(shape, size, point)
        found = found | (enters & hides[:, count : count + len(geom)]).any(1)
        count += len(geom)
    if p.meshes.shape[0]:
        t, local = p.triangles, vertices_of(m, p.triangles)
        share, which = nearest_triangle(d, t, local, start, way, hides[:, count:])
        a, b, c = corners_of(d, t, local, which).detach().unbind(1)
        falls = dot(cross(b - a, c - a), way) < 0
        found = found | ((share > first) & (share < last) & falls)
    return found
