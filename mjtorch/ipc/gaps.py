"""How far apart what may touch is: vertices, edges and triangles of membranes, and geoms that do not move."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.sphere import nearest_on_segment
from mjtorch.math.triangle import nearest_on_triangle
from mjtorch.math.vector import MIN_VALUE, basis, dot, normalize
from mjtorch.model import Data, Model
from mjtorch.model.plan.ipc import PairsPlan
from mjtorch.smooth.object import to_local

# Segments are parallel where the square of the area between them is less than this [m^4], or than that of its rounding.
PARALLEL, ROUNDING = 1e-12, 16


class Gap(NamedTuple):
    """Of n pairs: dist (n,) [m], and how it changes, `normal (n, 3)` times `weight (n, k)` of each vertex.

    Membranes are as thin as their triangles here, whatever their radius.
    """

    dist: Tensor
    normal: Tensor
    weight: Tensor


@tree.dataclass(kw_only=True)
class Obstacle(tree.Tree):
    """The geoms of n pairs, which stay where they are during a step: pose, sizes (n, 3), and f sharp points (n, f, 3).

    rounding: (n,) [m] how far the surface is from these
    face: (n, t, 3, 3) [m] the corners of the triangles of meshes, normal: (n, t, 3), both in the frame of the geom
    """

    pos: Tensor
    mat: Tensor
    size: Tensor
    sharp: Tensor
    rounding: Tensor
    face: Tensor
    normal: Tensor


def obstacles(m: Model, d: Data, p: PairsPlan) -> tuple[Obstacle, ...]:
    """What the vertices of `p` meet, if that are geoms."""
    if not p.geom.shape[0]:
        return ()
    pos, mat, size = d.geom_xpos[p.geom], d.geom_xmat[p.geom], m.geom_size[p.geom]
    vert = torch.cat([m.mesh_vert, m.mesh_vert.new_zeros(1, 3)])
    local = vert[p.vert] + p.sign * size[torch.arange(len(size), device=size.device)[:, None, None], p.size]
    return (
        Obstacle(
            pos=pos,
            mat=mat,
            size=size,
            sharp=pos[:, None] + (mat[:, None] @ local[..., None]).squeeze(-1),
            rounding=p.round * size[:, 0],
            face=vert[p.face],
            normal=p.normal,
        ),
    )


def gap(kind: str, point: Tensor, obstacle: tuple[Obstacle, ...]) -> Gap:
    """Of pairs of one kind, whose vertices are at `point (n, k, 3)` [m] (mjc_pairGap)."""
    return KINDS[kind](point, *obstacle)


def away(difference: Tensor) -> tuple[Tensor, Tensor]:
    """Length (n,) and direction of `difference (n, 3)`, which is zero where there is none."""
    normal, length = normalize(difference, torch.zeros_like(difference))
    return length[..., 0], normal


def vertex_triangle(point: Tensor) -> Gap:
    """Of a vertex and the three of a triangle."""
    corner = point[:, 1:]
    share = nearest_on_triangle(corner, point[:, 0])
    dist, normal = away(point[:, 0] - (share[..., None] * corner).sum(1))
    return Gap(dist, normal, torch.cat([torch.ones_like(dist)[:, None], -share], dim=1))


def edge_edge(point: Tensor) -> Gap:
    """Of the ends of two edges."""
    place, other, difference = nearest_of_edges(*point.unbind(1))
    dist, normal = away(difference)
    return Gap(dist, normal, torch.stack([1 - place, place, other - 1, -other], dim=1))


def nearest_of_edges(start: Tensor, end: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where on two segments (n,), from 0 to 1, they are nearest to each other, and from there to here (n, 3) [m].

    Of parallel ones, as far at the start of the first as there is something beside it.
    """
    one, two, between = end - start, last - first, start - first
    a, b, e, c, f = dot(one, one), dot(one, two), dot(two, two), dot(one, between), dot(two, between)
    det = a * e - b * b
    crossing = det > torch.clamp(ROUNDING * torch.finfo(det.dtype).eps * a * e, min=PARALLEL)
    place = torch.where(crossing, (b * f - c * e) / torch.where(crossing, det, 1.0), 0.0).clamp(0.0, 1.0)
    other = (b * place + f) / e.clamp(min=MIN_VALUE)
    beyond = torch.where(other < 0, -c, b - c) / a.clamp(min=MIN_VALUE)
    place = torch.where((other < 0) | (other > 1), beyond.clamp(0.0, 1.0), place)
    other = other.clamp(0.0, 1.0)
    return place, other, between + place[:, None] * one - other[:, None] * two


def vertex_plane(point: Tensor, plane: Obstacle) -> Gap:
    """Above the plane."""
    normal = plane.mat[..., 2]
    return from_surface(dot(normal, point[:, 0] - plane.pos), normal)


def vertex_sphere(point: Tensor, sphere: Obstacle) -> Gap:
    """Of the centre, along z in the world if the vertex is there."""
    normal, length = normalize(point[:, 0] - sphere.pos, basis(point, 0, 0, 1))
    return from_surface(length[:, 0] - sphere.size[:, 0], normal)


def vertex_capsule(point: Tensor, capsule: Obstacle) -> Gap:
    """Of the axis, along x of the capsule if the vertex is there."""
    core = nearest_on_segment(point[:, 0], capsule.pos, capsule.mat[..., 2], capsule.size[:, 1:2])
    normal, length = normalize(point[:, 0] - core, capsule.mat[..., 0])
    return from_surface(length[:, 0] - capsule.size[:, 0], normal)


def vertex_box(point: Tensor, box: Obstacle) -> Gap:
    """Of the surface; from inside of the nearest face."""
    local = to_local(box.mat, point[:, 0] - box.pos)
    outwards, distance = normalize(
        local - torch.maximum(torch.minimum(local, box.size), -box.size), torch.zeros_like(local)
    )
    depth, face = (box.size - local.abs()).min(-1)
    nearest = face[:, None] == torch.arange(3, device=face.device)
    inwards = torch.where(nearest, torch.where(local >= 0, 1.0, -1.0), 0.0)
    inside = distance[:, 0] == 0
    dist = torch.where(inside, -depth, distance[:, 0])
    return from_surface(dist, to_world(box, torch.where(inside[:, None], inwards, outwards)))


def vertex_mesh(point: Tensor, mesh: Obstacle) -> Gap:
    """Of the hull; from inside of the plane of the face that is nearest."""
    local = to_local(mesh.mat, point[:, 0] - mesh.pos)[:, None]
    above, face = dot(mesh.normal, local - mesh.face[:, :, 0]).max(-1)
    nearest = (nearest_on_triangle(mesh.face, local)[..., None] * mesh.face).sum(2)
    off = local - nearest
    first = dot(off, off).argmin(-1)
    rows = torch.arange(len(face), device=face.device)
    outwards, distance = normalize(off[rows, first], mesh.normal[rows, face])
    inside = above <= 0
    normal = torch.where(inside[:, None], mesh.normal[rows, face], outwards)
    return from_surface(torch.where(inside, above, distance[:, 0]), to_world(mesh, normal))


def from_surface(dist: Tensor, normal: Tensor) -> Gap:
    """Of one vertex."""
    return Gap(dist, normal, torch.ones_like(dist)[:, None])


def to_world(obstacle: Obstacle, x: Tensor) -> Tensor:
    """Vectors (n, 3) in frames of geoms, in the world."""
    return (obstacle.mat @ x[..., None]).squeeze(-1)


def corner_triangle(corner: Tensor, geom: Obstacle) -> Gap:
    """Of the three vertices of a triangle and a sharp point of a geom."""
    point = geom.sharp[:, 0]
    share = nearest_on_triangle(corner, point)
    dist, normal = away(point - (share[..., None] * corner).sum(1))
    return Gap(dist - geom.rounding, normal, -share)


def edge_border(end: Tensor, geom: Obstacle) -> Gap:
    """Of the ends of an edge and a sharp edge of a geom."""
    _, place, difference = nearest_of_edges(*geom.sharp.unbind(1), *end.unbind(1))
    dist, normal = away(difference)
    return Gap(dist - geom.rounding, normal, torch.stack([place - 1, -place], dim=1))


KINDS: dict[str, Callable[..., Gap]] = {
    "vertex-triangle": vertex_triangle,
    "edge-edge": edge_edge,
    "vertex-plane": vertex_plane,
    "vertex-sphere": vertex_sphere,
    "vertex-capsule": vertex_capsule,
    "vertex-box": vertex_box,
    "vertex-mesh": vertex_mesh,
    "corner-triangle": corner_triangle,
    "edge-border": edge_border,
}
