"""Where rays meet the triangles of meshes and height fields (mj_rayMesh, mj_rayHfield)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.control_flow import fori_loop
from mjtorch.math.vector import MIN_VALUE, basis, cross, dot, normalize
from mjtorch.model import Data, Model
from mjtorch.model.plan.triangles import TrianglePlan

# Triangles that are tested at a time: more of them would need memory for all rays times all triangles.
BLOCK = 512


def vertices_of(m: Model, d: Data, p: TrianglePlan) -> Tensor:
    """The vertices (v, 3) [m] of triangles in the world."""
    local = m.mesh_vert[p.mesh_vert]
    if p.hfield.shape[0]:
        size = m.hfield_size[p.hfield]
        height = torch.cat([m.hfield_data, m.hfield_data.new_zeros(1)])[p.height][:, None]
        z = height * size[:, 2:3] - p.below * size[:, 3:]
        local = torch.cat([local, torch.cat([p.grid * size[:, :2], z], dim=-1)])
    return d.geom_xpos[p.vert_geom] + (d.geom_xmat[p.vert_geom] @ local[..., None]).squeeze(-1)


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
    vertex = vertices_of(m, d, p)
    found, which = nearest_triangle(vertex.detach(), p.face, p.owner, pnt.detach(), vec.detach(), seen)
    corner = vertex[p.face[which]]
    outward, far = _plane(corner)
    rate = dot(outward, vec)
    flat = rate.abs() < MIN_VALUE
    way = (far - dot(outward, pnt)) / torch.where(flat, 1.0, rate)
    normal, _ = normalize(outward, basis(outward, 0, 0, 1))
    return torch.where(found < math.inf, way, -1.0), which, normal


def nearest_triangle(
    vertex: Tensor, face: Tensor, owner: Tensor, pnt: Tensor, vec: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor]:
    """How far (k,) the triangle that is met first is, infinity if there is none, and its number (k,).

    vertex: (v, 3), face: (n, 3), owner: (n,) of each triangle among the geoms of `seen`
    """
    n, k, sees = face.shape[0], pnt.shape[0], seen.transpose(0, 1)
    if n <= BLOCK:
        way = _ways(vertex[face], pnt, vec, sees[owner])
        return way.min(0)
    blocks = -(-n // BLOCK)
    # Filled up with triangles without area, which no ray meets.
    faces = F.pad(face, (0, 0, 0, blocks * BLOCK - n)).unflatten(0, (blocks, BLOCK))
    owners = F.pad(owner, (0, blocks * BLOCK - n)).unflatten(0, (blocks, BLOCK))

    def body(i: Tensor, best: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        mine, whose = faces.index_select(0, i[None])[0], owners.index_select(0, i[None])[0]
        way, which = _ways(vertex[mine], pnt, vec, sees[whose]).min(0)
        nearer = way < best[0]
        return torch.where(nearer, way, best[0]), torch.where(nearer, which + i * BLOCK, best[1])

    start = pnt.new_full((k,), math.inf), torch.zeros(k, dtype=torch.int64, device=pnt.device)
    return fori_loop(0, blocks, body, start)


def _plane(corner: Tensor) -> tuple[Tensor, Tensor]:
    """Normals (..., 3) of triangles `corner` (..., 3, 3), not of unit length, and how far along them they lie (...)."""
    outward = cross(corner[..., 0, :] - corner[..., 2, :], corner[..., 1, :] - corner[..., 2, :])
    return outward, dot(outward, corner[..., 2, :])


def _ways(corner: Tensor, pnt: Tensor, vec: Tensor, seen: Tensor) -> Tensor:
    """How far (n, k) rays go to each triangle `corner` (n, 3, 3), infinity where they miss or do not see it.

    In the plane across a ray, the ray is a point: it meets the triangle if the point is inside (ray_triangle).
    """
    x_axis = basis(vec, 1, 0, 0).expand_as(vec)
    along, _ = normalize(vec, x_axis)
    least = vec.abs().argmin(-1, keepdim=True)
    axis = (torch.arange(3, device=vec.device) == least).to(vec.dtype)
    across, _ = normalize(cross(axis, along), x_axis)
    x, y = ((corner @ b.mT) - dot(b, pnt) for b in (across, cross(along, across)))
    x, x2, y, y2 = x[:, :2] - x[:, 2:], x[:, 2], y[:, :2] - y[:, 2:], y[:, 2]
    det = x[:, 0] * y[:, 1] - x[:, 1] * y[:, 0]
    t0, t1 = x[:, 1] * y2 - y[:, 1] * x2, y[:, 0] * x2 - x[:, 0] * y2
    turn = det.sign()
    inside = (turn * t0 >= 0) & (turn * t1 >= 0) & (turn * (t0 + t1) <= det.abs())
    outward, far = _plane(corner)
    rate = outward @ vec.mT
    crosses = (rate.abs() >= MIN_VALUE) & (det.abs() >= MIN_VALUE)
    way = (far[:, None] - outward @ pnt.mT) / torch.where(crosses, rate, 1.0)
    return torch.where(inside & crosses & seen & (way >= 0), way, math.inf)
