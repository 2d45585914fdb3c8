"""Contacts of triangles of flexes with signed distance fields (mjc_FlexSDF).

A triangle is searched as a face of a mesh is, and touches where the deepest of its searches ended; where that is a
corner that others have, too, only the first one does. Neither thickness nor margin make it touch before it is inside. C
stops after 50 triangles of a flex.
"""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.contact_points import ContactPoints
from mjtorch.collision.mesh_sdf import from_starts
from mjtorch.collision.sdf import Field, placed
from mjtorch.collision.support import is_at
from mjtorch.control_flow.map import each
from mjtorch.math.vector import MIN_VALUE, basis, norm, normalize
from mjtorch.model.plan.sdf import Fields, TriangleFields
from mjtorch.smooth.distance_field import sampled
from mjtorch.smooth.object import to_local


def triangle_sdf_contacts(
    grid: Tensor, triangles: TriangleFields, field: Field, corner: Tensor, near: Tensor, iterations: int
) -> ContactPoints:
    """One contact of each of n distance fields with a triangle, whose corners are at (n, 3, 3) [m].

    grid: of `Model`; near: (n,) bool, pairs that may touch; iterations: mjOption.sdf_iterations
    """
    (fields,) = field.fields
    local = to_local(field.mat[:, None], corner - field.pos[:, None])

    def search(pairs: tuple[Fields, Tensor]) -> tuple[Tensor, Tensor]:
        return deepest(grid.detach(), *pairs, triangles.start, iterations)

    def apart(pairs: tuple[Fields, Tensor]) -> tuple[Tensor, Tensor]:
        none = torch.zeros_like(pairs[1][:, 0])
        return none, none[:, 0] > 0

    fixed = tree.map(Tensor.detach, (fields, local))
    weight, inside = each(search, fixed, where=near, otherwise=apart)
    point = weight[:, None] @ local
    distance, gradient = sampled(grid, fields, point)
    inward = -normalize(gradient, basis(point, 1, 0, 0).expand_as(point))[0]
    exists = first_there(triangles, point[:, 0].detach(), inside & near)
    found = placed(field, point, distance, inward, exists[:, None])
    return found._replace(normal=-found.normal)


def first_there(triangles: TriangleFields, point: Tensor, exists: Tensor) -> Tensor:
    """Which points (n, 3) [m] that exist (n,) bool are not where an earlier one of the same geom and flex is."""
    together, order = triangles.together, triangles.order
    same = (together == together[:, None]) & (norm(point - point[:, None]) < MIN_VALUE)
    return exists & ~(same & (order < order[:, None]) & exists).any(1)


def deepest(grid: Tensor, fields: Fields, corner: Tensor, start: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Where triangles with corners (n, 3, 3) [m] are deepest: weights (n, 3), and whether (n,) that is inside."""
    chosen, weight, distance = from_starts(grid, fields, corner[:, None], start, iterations)
    ended = torch.where(chosen.any(2)[:, 0], distance[:, 0], torch.inf)
    least, way = ended.min(-1)
    return (is_at(way, 3).to(weight.dtype)[:, None] @ weight[:, 0])[:, 0], least < 0
