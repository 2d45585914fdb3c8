"""Nearest points of triangles and tetrahedra."""

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE, cross, dot, norm

# Edges whose parallelogram is, squared, this many roundings of their product are along a line: the difference of two
# products of nearly that size is rounding, more so where a compiler fuses one of them with the subtraction.
FLAT = 1e3
# The corners of each face of a tetrahedron.
FACES = ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3))


def nearest_on_triangle(corner: Tensor, point: Tensor, least: float = 0.0) -> Tensor:
    """The shares (..., 3) of the corners in the point of a triangle that is nearest to `point` (..., 3) [m].

    corner: (..., 3, 3) [m]. Two of them may be the same: then that is a line.
    least: [m^4] with less than that for the square of its parallelogram's area, a triangle is taken for a line
    """
    origin = corner[..., 0, :]
    one, two, away = corner[..., 1, :] - origin, corner[..., 2, :] - origin, point - origin
    a, b, c, x, y = dot(one, one), dot(one, two), dot(two, two), dot(one, away), dot(two, away)
    det = a * c - b * b
    flat = det <= FLAT * torch.finfo(det.dtype).eps * a * c
    flat = flat | (det < least) if least else flat
    det = torch.where(flat, 1.0, det)
    second, third = (c * x - b * y) / det, (a * y - b * x) / det
    inside = torch.stack([1 - second - third, second, third], dim=-1)

    following = corner.roll(-1, -2)
    edge = following - corner
    square = dot(edge, edge)
    place = dot(point[..., None, :] - corner, edge) / torch.where(square <= MIN_VALUE, 1.0, square)
    place = place.clamp(0.0, 1.0)
    off = corner + place[..., None] * edge - point[..., None, :]
    nearest = (dot(off, off).argmin(-1, keepdim=True) == torch.arange(3, device=off.device)).to(off.dtype)
    # The edge `k` goes from corner `k` to the next one.
    along = nearest * place
    on_edge = nearest - along + along.roll(1, -1)
    within = ((inside >= 0).all(-1) & ~flat)[..., None]
    return torch.where(within, inside, on_edge)


def nearest_on_simplex(corner: Tensor, point: Tensor) -> Tensor:
    """The shares (..., k) of the corners in the point of a triangle or tetrahedron that is nearest to `point` (..., 3).

    corner: (..., k, 3) [m], k being 3 or 4. Some of them may be the same: then that is what the others span.
    """
    if corner.shape[-2] == 3:
        return nearest_on_triangle(corner, point)
    one, two, three = (corner[..., 1:, :] - corner[..., :1, :]).unbind(-2)
    away, across = point - corner[..., 0, :], cross(two, three)
    det = dot(one, across)
    flat = det.abs() <= FLAT * torch.finfo(det.dtype).eps * norm(one) * norm(two) * norm(three)
    others = torch.stack([dot(away, across), dot(away, cross(three, one)), dot(away, cross(one, two))], dim=-1)
    others = others / torch.where(flat, 1.0, det)[..., None]
    inner = torch.cat([1 - others.sum(-1, keepdim=True), others], dim=-1)

    faces = torch.tensor(FACES, device=corner.device)
    face = corner[..., faces, :]
    share = nearest_on_triangle(face, point[..., None, :])
    off = (share[..., None] * face).sum(-2) - point[..., None, :]
    nearest = dot(off, off).argmin(-1, keepdim=True) == torch.arange(4, device=off.device)
    place = (faces[..., None] == torch.arange(4, device=off.device)).to(off.dtype)
    outer = (torch.where(nearest[..., None], share, 0.0)[..., None] * place).sum((-3, -2))
    within = ((inner >= 0).all(-1) & ~flat)[..., None]
    return torch.where(within, inner, outer)
