"""Contacts of planes and convex hulls of meshes."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.contact_points import ContactPoints, Solid
from mjtorch.collision.plane import touching_plane
from mjtorch.collision.rounding import blur, first_largest_of, larger, rounding_of, wrapped
from mjtorch.collision.support import hull_support
from mjtorch.control_flow import while_loop
from mjtorch.math.vector import cross, dot
from mjtorch.model.plan.mesh import Hulls
from mjtorch.smooth.object import to_local

# A face that rests on a plane makes this many contacts.
MOST = 4


class Face(NamedTuple):
    """Polygons of hulls, counted from some corner on.

    entry: (n, 1) the first of their corners in the list of all, corners: (n, 1) how many they have
    start: (n, 1) which of these counts as the first one
    """

    entry: Tensor
    corners: Tensor
    start: Tensor


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
    face = from_lowest(hulls, lowest_face(hulls, hull, up.detach()), up.detach())
    chosen = corners(hulls, face, four_of(hulls, face))
    rise = dot(chosen, up[:, None])
    height = dot(mesh.pos - plane.pos, plane.axis, keepdim=True) + rise
    exists = torch.arange(MOST, device=hull.device) < face.corners
    exists = exists & (rise <= 0) & (height <= reach[:, None])
    return touching_plane(plane, mesh.pos[:, None] + chosen @ mesh.mat.mT, exists)


def corners(hulls: Hulls, face: Face, number: Tensor) -> Tensor:
    """The corners (n, k, 3) [m] of faces, by their numbers (n, k) or (k,); those past the last one mean nothing."""
    place = face.entry + wrapped(face.start + wrapped(number, face.corners), face.corners)
    return hulls.vert[hulls.outline[place.clamp(max=len(hulls.outline) - 1)]]


def lowest_face(hulls: Hulls, hull: Tensor, up: Tensor) -> Tensor:
    """The faces (n,) around the lowest vertices of hulls (n,) that look down most."""
    first, count = hulls.around[hull_support(hulls, hull, -up)].unbind(-1)

    def faces(number: Tensor) -> Tensor:
        return hulls.polygon[(first[:, None] + number).clamp(max=len(hulls.polygon) - 1)]

    def steepness(number: Tensor) -> Tensor:
        return -dot(hulls.normal[faces(number)], up[:, None])

    return faces(first_largest_of(steepness, count, blur(up.dtype)))[:, 0]


def from_lowest(hulls: Hulls, face: Tensor, up: Tensor) -> Face:
    """Faces (n,) of hulls, counted from their lowest corners on."""
    entry, count = hulls.corner[face].split(1, -1)
    turned = Face(entry, count, torch.zeros_like(count))
    point = corners(hulls, turned, turned.start)[:, 0]

    def depth(number: Tensor) -> Tensor:
        return -dot(corners(hulls, turned, number), up[:, None])

    start = first_largest_of(depth, count[:, 0], rounding_of(point, point.abs()))
    return turned._replace(start=start)


def four_of(hulls: Hulls, face: Face) -> Tensor:
    """Four (n, 4) of the corners of faces; if there are but three, one twice.

    The first, and three others found by moving them on, the last first, as long as that makes the area larger; as C
    does, which is not always the largest.
    """
    if hulls.corners <= MOST:
        return torch.arange(MOST, device=face.corners.device).expand(len(face.corners), MOST)
    return torch.nn.functional.pad(larger_area(hulls, face).corners, (1, 0))


def larger_area(hulls: Hulls, face: Face) -> Search:
    """The end of the search among the corners of faces."""
    count = face.corners
    first = corners(hulls, face, torch.zeros_like(count))[:, 0]

    def area(others: Tensor) -> Tensor:
        """Four times the square of the area between the first point and three others."""
        b, c, d = corners(hulls, face, others).unbind(1)
        across = cross(c - first, d - b)
        return dot(across, across)

    def advance(search: Search) -> Search:
        moved = wrapped(search.corners + 1, count)
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
