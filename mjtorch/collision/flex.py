"""Contacts of flexes."""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch.collision.box import sphere_box
from mjtorch.collision.box_box import box_box
from mjtorch.collision.broad_phase import Chosen
from mjtorch.collision.capsule_box import capsule_box
from mjtorch.collision.contact_points import ContactPoints, Solid
from mjtorch.collision.core import capsule_capsule, sphere_capsule
from mjtorch.collision.plane import CORNERS, plane_point
from mjtorch.collision.sphere import surface
from mjtorch.collision.support import Core, hull_core
from mjtorch.control_flow.map import each
from mjtorch.flex.kinematics import points
from mjtorch.flex.rod import axes, frames
from mjtorch.math.triangle import nearest_on_triangle
from mjtorch.math.vector import basis, dot, normalize
from mjtorch.model import Data, Model
from mjtorch.model.plan.family import Family
from mjtorch.smooth.object import to_local

LINES = "line-line"
# From geoms, or lines as capsules, of n pairs, the corners (n, 3, 3) [m] of elements, of a line the second one twice,
# their radius (n,) [m], and the distances (n,) [m] within which contacts matter.
Collider = Callable[[Solid, Tensor, Tensor, Tensor], ContactPoints]


def plane_vertex(m: Model, d: Data, family: Family) -> ContactPoints:
    """Of planes and vertices, which are spheres (mj_collidePlaneFlex): one contact each."""
    plane, vertex = family.geom
    normal, point = d.geom_xmat[plane][..., 2], d.flexvert_xpos[vertex - m.ngeom]
    radius = m.flex_radius[m.plan.collision.collider_flex[vertex]]
    height = plane_point(d.geom_xpos[plane], normal, point).squeeze(-1)
    dist, pos = surface(height, normal, point, torch.zeros_like(radius), radius)
    exists = torch.ones_like(dist, dtype=torch.bool)
    return ContactPoints(dist[:, None], pos[:, None], normal[:, None], exists[:, None])


def plane_corners(m: Model, d: Data, family: Family) -> ContactPoints:
    """Of planes and vertices of rods with box sections: the two corners of the section that lie lowest."""
    plane, vertex = family.geom
    normal, point = d.geom_xmat[plane][..., 2], d.flexvert_xpos[vertex - m.ngeom]
    height = plane_point(d.geom_xpos[plane], normal, point)
    axis, half = sections(m, d, vertex)
    lean = half * dot(axis, normal[:, None])
    low = torch.where(lean >= 0, -half, half)
    # The other one lies at the other end of the side that leans less.
    side = lean.abs().argmin(-1, keepdim=True) == torch.arange(2, device=lean.device)
    place = torch.stack([low, torch.where(side, -low, low)], dim=1)
    corner = place @ axis
    dist = height + dot(corner, normal[:, None])
    pos = point[:, None] + corner - 0.5 * dist[..., None] * normal[:, None]
    return ContactPoints(dist, pos, normal[:, None].expand_as(pos), torch.ones_like(dist, dtype=torch.bool))


def sections(m: Model, d: Data, number: Tensor) -> tuple[Tensor, Tensor]:
    """Axes (n, 2, 3) of box sections of rods, and half-sizes (n, 2) [m] along them. number: (n,) of colliders"""
    (rods,), (flex,) = m.plan.constraint.contact.rods, m.plan.flex
    (plan,) = flex.rods
    axis = axes(d, plan, frames(d, plan, points(m, d, flex)))[rods.number[number]]
    lesser, more = m.flex_bending[rods.bending[number]].split(1, dim=-1)
    return axis, rods.half[number] * torch.cat([(1 + more / lesser).sqrt(), torch.ones_like(lesser)], dim=-1)


def ribbon(m: Model, d: Data, element: Tensor) -> Solid:
    """The boxes that elements of rods with box sections are, colliders `element (n,)`."""
    (rods,) = m.plan.constraint.contact.rods
    one, two = d.flexvert_xpos[rods.edge[element]].unbind(1)
    along, length = normalize(two - one, basis(one, 1, 0, 0))
    axis, half = sections(m, d, element)
    mat = torch.cat([along[:, None], axis], dim=1).mT
    return Solid(0.5 * (one + two), mat, torch.cat([0.5 * length, half], dim=-1))


def element_contacts(m: Model, d: Data, family: Family, chosen: Chosen, reach: Tensor) -> ContactPoints:
    """Of geoms, or lines, and elements that have a formula, those that may touch (mj_collideGeomElem).

    reach: (n,) [m] as for `Collider`
    """
    geom, element = chosen.geom
    contacts = family.blocks[0].contacts
    if family.name in (LINES, "line-ribbon"):
        solid = line(*element_of(m, d, geom))
    elif family.name in ("ribbon-line", "ribbon-ribbon"):
        solid = ribbon(m, d, geom)
    else:
        solid = Solid(d.geom_xpos[geom], d.geom_xmat[geom], m.geom_size[geom])

    if family.name in RIBBONS:
        pairs: tuple = (solid, ribbon(m, d, element), reach)
        collider: Callable[..., ContactPoints] = RIBBONS[family.name]
    else:
        corner, radius = element_of(m, d, element)
        pairs, collider = (solid, corner[:, :3], radius, reach), ELEMENTS[family.name]

    def apart(pairs: tuple) -> ContactPoints:
        none = pairs[-1].new_zeros((len(pairs[-1]), contacts))
        nowhere = none[..., None].expand(-1, -1, 3)
        return ContactPoints(none, nowhere, nowhere.clone(), torch.zeros_like(none, dtype=torch.bool))

    return each(lambda pairs: collider(*pairs), pairs, where=chosen.near, otherwise=apart)


def element_of(m: Model, d: Data, element: Tensor) -> tuple[Tensor, Tensor]:
    """The corners (n, k, 3) [m] of elements, colliders `element (n,)`, and their radius (n,) [m]."""
    p = m.plan.collision
    corner = d.flexvert_xpos[p.corner[element - (m.ngeom + m.nflexvert)]]
    return corner, m.flex_radius[p.collider_flex[element]]


def element_core(m: Model, d: Data, element: Tensor) -> Core:
    """Elements, colliders `element (n,)`, as convex shapes: the hulls of their corners, and a ball."""
    corner, radius = element_of(m, d, element)
    return hull_core(corner, radius)


def line(corner: Tensor, radius: Tensor) -> Solid:
    """The capsules that lines are, from their second ends to their first (mj_makeCapsule)."""
    one, two = corner[:, 0], corner[:, 1]
    axis, length = normalize(one - two, basis(one, 0, 0, 1))
    size = torch.cat([radius[:, None], 0.5 * length, torch.zeros_like(length)], dim=-1)
    return Solid(0.5 * (one + two), torch.nn.functional.pad(axis[..., None], (2, 0)), size)


def sphere_line(sphere: Solid, corner: Tensor, radius: Tensor, reach: Tensor) -> ContactPoints:
    """As of a capsule."""
    return sphere_capsule(sphere, line(corner, radius), reach)


def capsule_line(capsule: Solid, corner: Tensor, radius: Tensor, reach: Tensor) -> ContactPoints:
    """As of a capsule."""
    return capsule_capsule(capsule, line(corner, radius), reach)


def box_line(box: Solid, corner: Tensor, radius: Tensor, reach: Tensor) -> ContactPoints:
    """As of a capsule; the normal points from the box to the line."""
    found = capsule_box(line(corner, radius), box, reach)
    return found._replace(normal=-found.normal)


def points_triangle(point: Tensor, radius: Tensor, corner: Tensor, thickness: Tensor) -> ContactPoints:
    """Contacts (n, k) of spheres around k points (n, k, 3) [m] (mjraw_SphereTriangle).

    radius, thickness: (n,) [m] of the spheres, and of the triangles, whose corners are at (n, 3, 3) [m]
    """
    nearest = nearest_on_triangle(corner[:, None], point) @ corner
    normal, distance = normalize(nearest - point, basis(point, 1, 0, 0))
    dist, pos = surface(distance[..., 0], normal, nearest, radius[:, None], thickness[:, None])
    return ContactPoints(dist, pos, normal, torch.ones_like(dist, dtype=torch.bool))


def sphere_triangle(sphere: Solid, corner: Tensor, radius: Tensor, reach: Tensor) -> ContactPoints:
    """One contact."""
    return points_triangle(sphere.pos[:, None], sphere.size[:, 0], corner, radius)


def capsule_triangle(capsule: Solid, corner: Tensor, radius: Tensor, reach: Tensor) -> ContactPoints:
    """The ends of the axis and the triangle, then its corners and the axis between these (mjraw_CapsuleTriangle)."""
    thick, half = capsule.size[:, 0], capsule.axis * capsule.size[:, 1:2]
    ends = points_triangle(torch.stack([capsule.pos - half, capsule.pos + half], dim=1), thick, corner, radius)
    start = (capsule.pos - half)[:, None]
    along = 2 * half[:, None]
    place = dot(corner - start, along, keepdim=True) / dot(along, along, keepdim=True)
    nearest = start + place * along
    normal, distance = normalize(corner - nearest, basis(corner, 1, 0, 0))
    dist, pos = surface(distance[..., 0], normal, corner, thick[:, None], radius[:, None])
    between = ((place > 0) & (place < 1)).squeeze(-1)
    return joined(ends, ContactPoints(dist, pos, normal, between))


def box_triangle(box: Solid, corner: Tensor, radius: Tensor, reach: Tensor) -> ContactPoints:
    """The corners of the triangle and the nearest faces, then the corners of the box (mjraw_BoxTriangle)."""
    local = to_local(box.mat[:, None], corner - box.pos[:, None])
    beyond = local.abs() - box.size[:, None]
    deepest, face = beyond.max(-1, keepdim=True)
    inside = (beyond <= (reach + radius)[:, None, None]).all(-1)
    of_face = face == torch.arange(3, device=face.device)
    normal = torch.where(of_face, 2.0 * (local > 0).to(local.dtype) - 1.0, 0.0) @ box.mat.mT
    dist, pos = surface(deepest[..., 0], normal, corner, torch.zeros_like(corner[..., 0]), radius[:, None])
    signs = torch.tensor(CORNERS, dtype=dist.dtype, device=dist.device)
    point = box.pos[:, None] + (signs * box.size[:, None]) @ box.mat.mT
    return joined(
        ContactPoints(dist, pos, normal, inside),
        points_triangle(point, torch.zeros_like(radius), corner, radius),
    )


def joined(one: ContactPoints, two: ContactPoints) -> ContactPoints:
    """Contacts of the same pairs, one after the other."""
    return ContactPoints(*(torch.cat(x, dim=1) for x in zip(one[:4], two[:4], strict=True)))


ELEMENTS: dict[str, Collider] = {
    LINES: capsule_line,
    "sphere-line": sphere_line,
    "capsule-line": capsule_line,
    "box-line": box_line,
    "ribbon-line": box_line,
    "sphere-triangle": sphere_triangle,
    "capsule-triangle": capsule_triangle,
    "box-triangle": box_triangle,
}
RIBBONS: dict[str, Callable[[Solid, Solid, Tensor], ContactPoints]] = {
    "sphere-ribbon": sphere_box,
    "capsule-ribbon": capsule_box,
    "box-ribbon": box_box,
    "line-ribbon": capsule_box,
    "ribbon-ribbon": box_box,
}
