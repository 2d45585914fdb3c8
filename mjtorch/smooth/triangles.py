"""Where rays meet the triangles of meshes and height fields (mj_rayMesh, mj_rayHfield)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.control_flow import each, if_any, while_loop
from mjtorch.math.vector import MIN_VALUE, basis, cross, dot, normalize
from mjtorch.model import Data, Model
from mjtorch.model.plan.triangles import TrianglePlan
from mjtorch.smooth.object import to_local

# Boxes are met by rays that miss them by so many roundings.
SLACK = 16
# What a ray that stays in a plane is taken to leave it by.
LEAST_RATE = 1e-20


def vertices_of(m: Model, p: TrianglePlan) -> Tensor:
    """The vertices (v, 3) [m] of triangles in the frames of their geoms."""
    local = m.mesh_vert[p.mesh_vert]
    if p.hfield.shape[0]:
        size = m.hfield_size[p.hfield]
        height = torch.cat([m.hfield_data, m.hfield_data.new_zeros(1)])[p.height][:, None]
        z = height * size[:, 2:3] - p.below * size[:, 3:]
        local = torch.cat([local, torch.cat([p.grid * size[:, :2], z], dim=-1)])
    return local


def corners_of(d: Data, p: TrianglePlan, local: Tensor, which: Tensor) -> Tensor:
    """The corners (k, 3, 3) [m] of triangles `which` (k,) in the world; local: what `vertices_of` has found."""
    vert = p.face[which]
    geom = p.vert_geom[vert[:, 0]]
    return d.geom_xpos[geom][:, None] + local[vert] @ d.geom_xmat[geom].mT


def meet_triangles(m: Model, d: Data, pnt: Tensor, vec: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first triangle that rays meet.

    Args:
        m: the model.
        d: what `kinematics` leaves.
        pnt, vec: (k, 3) [m] where the rays start and where they go.
        seen: (k or 1, n) bool, whether a ray sees the geoms of `m.plan.ray`.

    Returns:
        how far it is (k,) in lengths of `vec`, -1 if there is none, which triangle (k,), and its unit normal (k, 3).
    """
    p = m.plan.ray.triangles
    local = vertices_of(m, p)
    found, which = nearest_triangle(d, p, local, pnt, vec, seen[:, -p.boxes.geom.shape[0] :])
    corner = corners_of(d, p, local, which)
    outward, far = _plane(corner)
    rate = dot(outward, vec)
    flat = rate.abs() < MIN_VALUE
    way = (far - dot(outward, pnt)) / torch.where(flat, 1.0, rate)
    normal, _ = normalize(outward, basis(outward, 0, 0, 1))
    return torch.where(found < math.inf, way, -1.0), which, normal


class Found(NamedTuple):
    """Where n rays are in a tree of boxes: the node (n,), how far the first triangle is (n,), and which it is (n,)."""

    node: Tensor
    way: Tensor
    which: Tensor


def nearest_triangle(
    d: Data, p: TrianglePlan, local: Tensor, pnt: Tensor, vec: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor]:
    """How far (k,) the triangle that is met first is, infinity if there is none, and its number (k,).

    local: (v, 3) what `vertices_of` has found
    seen: (k or 1, g) bool, the geoms of `p.boxes` that a ray sees. Without derivatives.
    """
    b, k, local = p.boxes, pnt.shape[0], local.detach()
    g = b.geom.shape[0]
    low, high = _bounds(local, p)
    mat, pos = d.geom_xmat[b.geom].detach(), d.geom_xpos[b.geom].detach()
    point, direction = to_local(mat, pnt.detach()[:, None] - pos), to_local(mat, vec.detach()[:, None])
    point, direction = point.flatten(0, 1), direction.flatten(0, 1)
    root = b.root.expand(k, g).flatten()

    def search(xs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return _search(p, local, low, high, *xs)

    def nothing(xs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.full_like(xs[0][:, 0], math.inf), torch.zeros_like(xs[2])

    far = torch.full_like(point[:, 0], math.inf)
    where = seen.expand(k, g).flatten() & _meets(low[root], high[root], point, direction, far)
    way, which = each(search, (point, direction, root), where=where, otherwise=nothing)
    way, first = way.unflatten(0, (k, g)).min(1)
    return way, which.unflatten(0, (k, g)).gather(1, first[:, None])[:, 0]


def _bounds(local: Tensor, p: TrianglePlan) -> tuple[Tensor, Tensor]:
    """The least and the largest coordinates (nnode, 3) in each box."""
    corner = local[p.face[p.boxes.leaf]].flatten(1, 2)
    low, high = [corner.amin(1)], [corner.amax(1)]
    for children in p.boxes.children:
        low.append(low[-1][children].amin(1))
        high.append(high[-1][children].amax(1))
    return torch.cat(low), torch.cat(high)


def _meets(low: Tensor, high: Tensor, point: Tensor, direction: Tensor, way: Tensor) -> Tensor:
    """(n,) bool: whether rays meet boxes before `way` (n,)."""
    rate = torch.where(direction.abs() < LEAST_RATE, LEAST_RATE, direction)
    slack = SLACK * torch.finfo(low.dtype).eps * (low.abs() + high.abs() + point.abs())
    one, other = (low - slack - point) / rate, (high + slack - point) / rate
    enter, leave = torch.minimum(one, other).amax(-1), torch.maximum(one, other).amin(-1)
    return (enter <= leave) & (leave >= 0) & (enter <= way)


def _search(
    p: TrianglePlan, local: Tensor, low: Tensor, high: Tensor, point: Tensor, direction: Tensor, root: Tensor
) -> tuple[Tensor, Tensor]:
    """How far (n,) rays go to the first triangle of the geoms whose trees have `root` (n,), and which it is."""
    b, nleaf = p.boxes, p.boxes.leaf.shape[0]

    def look(s: Found) -> Found:
        at = s.node.clamp(min=0)
        met = (s.node >= 0) & _meets(low[at], high[at], point, direction, s.way)
        leaf = met & (at < nleaf)
        triangle = b.leaf[at.clamp(max=nleaf - 1)]

        def test() -> tuple[Tensor, Tensor]:
            ways, k = _ways(local[p.face[triangle]], point, direction).min(1)
            nearer = leaf & (ways < s.way)
            which = triangle.gather(1, k[:, None])[:, 0]
            return torch.where(nearer, ways, s.way), torch.where(nearer, which, s.which)

        way, which = if_any(leaf, test, (s.way, s.which))
        return Found(torch.where(s.node < 0, s.node, torch.where(met, b.inside[at], b.past[at])), way, which)

    start = Found(root, torch.full_like(point[:, 0], math.inf), torch.zeros_like(root))
    found = while_loop(lambda s: (s.node >= 0).any(), look, start)
    return found.way, found.which


def _plane(corner: Tensor) -> tuple[Tensor, Tensor]:
    """Normals (..., 3) of triangles `corner` (..., 3, 3), not of unit length, and how far along them they lie (...)."""
    outward = cross(corner[..., 0, :] - corner[..., 2, :], corner[..., 1, :] - corner[..., 2, :])
    return outward, dot(outward, corner[..., 2, :])


def _ways(corner: Tensor, pnt: Tensor, vec: Tensor) -> Tensor:
    """How far (n, t) rays go to triangles `corner` (n, t, 3, 3), infinity where they miss them.

    In the plane across a ray, the ray is a point: it meets the triangle if the point is inside (ray_triangle).
    """
    x_axis = basis(vec, 1, 0, 0).expand_as(vec)
    along, _ = normalize(vec, x_axis)
    least = vec.abs().argmin(-1, keepdim=True)
    axis = (torch.arange(3, device=vec.device) == least).to(vec.dtype)
    across, _ = normalize(cross(axis, along), x_axis)
    x, y = (dot(corner - pnt[:, None, None], b[:, None, None]) for b in (across, cross(along, across)))
    x, x2, y, y2 = x[..., :2] - x[..., 2:], x[..., 2], y[..., :2] - y[..., 2:], y[..., 2]
    det = x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]
    t0, t1 = x[..., 1] * y2 - y[..., 1] * x2, y[..., 0] * x2 - x[..., 0] * y2
    turn = det.sign()
    inside = (turn * t0 >= 0) & (turn * t1 >= 0) & (turn * (t0 + t1) <= det.abs())
    outward, far = _plane(corner)
    rate = dot(outward, vec[:, None])
    crosses = (rate.abs() >= MIN_VALUE) & (det.abs() >= MIN_VALUE)
    way = (far - dot(outward, pnt[:, None])) / torch.where(crosses, rate, 1.0)
    return torch.where(inside & crosses & (way >= 0), way, math.inf)
