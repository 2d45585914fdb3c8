"""Contacts of planes and convex hulls of meshes."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.contact_points import ContactPoints, Solid
from mjtorch.collision.multicontact import polygon_corners, polygons_around
from mjtorch.collision.plane import touching_plane
from mjtorch.collision.rounding import blur, first_largest, larger, rounding_of
from mjtorch.collision.support import hull_support
from mjtorch.control_flow import while_loop
from mjtorch.math.vector import cross, dot
from mjtorch.model.plan.mesh import Hulls
from mjtorch.smooth.object import to_local

# A face that rests on a plane makes this many contacts.
MOST = 4


class Search(NamedTuple):
    """Where the search for four corners is: the second, third and fourth of them, (n, 3) int64, the square of the area
    (n,), and which of them, the last first, is tried next: (n,) 0, 1, 2; 3 when done."""

    corners: Tensor
    area: Tensor
    phase: Tensor


def plane_mesh(plane: Solid, mesh: Solid, reach: Tensor) -> ContactPoints:
    """Up to four corners of a face of the hull (mjc_PlaneConvex).

    The face is the one, of those around the lowest vertex, that looks most towards the plane. Its corners, from the
    lowest on, or of more than four those that span a large area, touch the plane if they are within reach and no higher
    than the centre of the geom. Of equally low corners the first is the lowest; C takes what rounding says.
    """
    hull, hulls = mesh.hull, mesh.hulls
    assert hull is not None and hulls is not None
    up = to_local(mesh.mat, plane.axis)
    point, count = polygon_corners(hulls, lowest_face(hulls, hull, up.detach()), hulls.corners)
    count = count[:, None]
    chosen = four_of(from_lowest(point, count, up.detach()), count)
    rise = dot(chosen, up[:, None])
    height = dot(mesh.pos - plane.pos, plane.axis, keepdim=True) + rise
    exists = torch.arange(MOST, device=count.device) < count
    exists = exists & (rise <= 0) & (height <= reach[:, None])
    return touching_plane(plane, mesh.pos[:, None] + chosen @ mesh.mat.mT, exists)


def lowest_face(hulls: Hulls, hull: Tensor, up: Tensor) -> Tensor:
    """The faces (n,) around the lowest vertices of hulls (n,) that look down most."""
    around, _ = polygons_around(hulls, hull_support(hulls, hull, -up))
    face = around.clamp(min=0)
    slope = dot(hulls.normal[face], up[:, None]).masked_fill(around < 0, torch.inf)
    return face.gather(1, first_largest(-slope, blur(slope.dtype)))[:, 0]


def from_lowest(point: Tensor, count: Tensor, up: Tensor) -> Tensor:
    """Polygons (n, k, 3) of `count` (n, 1) corners, each in its order, beginning with the lowest."""
    first = first_largest(-dot(point, up[:, None]), rounding_of(point[:, 0], point[:, 0].abs()))
    index = torch.arange(point.shape[1], device=count.device)
    return point.gather(1, ((first + index) % count)[..., None].expand(-1, -1, 3))


def four_of(point: Tensor, count: Tensor) -> Tensor:
    """Four (n, 4, 3) of the first `count` (n, 1) of the points (n, k, 3); if there are but three, one twice.

    The first, and three others found by moving them on, the last first, as long as that makes the area larger; as C
    does, which is not always the largest.
    """
    if point.shape[1] < MOST:
        return torch.cat([point, point[:, -1:]], dim=1)
    if point.shape[1] == MOST:
        return point
    others = torch.cat([torch.zeros_like(count), larger_area(point, count).corners], dim=1)
    return point.gather(1, others[..., None].expand(-1, -1, 3))


def larger_area(point: Tensor, count: Tensor) -> Search:
    """The end of the search among the first `count` (n, 1) of the points (n, k, 3) of polygons."""

    def area(corners: Tensor) -> Tensor:
        """Four times the square of the area between the first point and three others."""
        a, (b, c, d) = point[:, 0], point.gather(1, corners[..., None].expand(-1, -1, 3)).unbind(1)
        across = cross(c - a, d - b)
        return dot(across, across)

    def advance(search: Search) -> Search:
        moved = (search.corners + 1) % count
        tried = torch.where(
            torch.arange(2, -1, -1, device=count.device) == search.phase[:, None], moved, search.corners
        )
        new = area(tried)
        wins = larger(new, search.area) & (search.phase < 3)
        # The last one moves once, then the others as far as they can; it is over when the last one cannot move.
        onwards = torch.tensor([[3, 2, 0, 3], [1, 1, 2, 3]], device=count.device)
        phase = onwards[wins.long(), search.phase]
        return Search(torch.where(wins[:, None], tried, search.corners), torch.where(wins, new, search.area), phase)

    start = torch.arange(1, MOST, device=count.device).expand(count.shape[0], -1)
    phase = torch.where(count[:, 0] > MOST, 0, 3)
    return while_loop(lambda search: (search.phase < 3).any(), advance, Search(start.clone(), area(start), phase))
