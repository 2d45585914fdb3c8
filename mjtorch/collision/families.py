"""The table of colliders: one entry for each family of geom pairs, and one function for all without a formula."""

import functools
import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.box import sphere_box
from mjtorch.collision.box_box import box_box
from mjtorch.collision.broad_phase import Chosen
from mjtorch.collision.capsule_box import capsule_box
from mjtorch.collision.contact_points import ContactPoints, Solid
from mjtorch.collision.convex import Contacts, nearest, several, single
from mjtorch.collision.core import capsule_capsule, sphere_capsule, sphere_sphere
from mjtorch.collision.cylinder import sphere_cylinder
from mjtorch.collision.flex import (
    ELEMENTS,
    RIBBONS,
    element_contacts,
    element_core,
    element_of,
    plane_corners,
    plane_vertex,
)
from mjtorch.collision.height_field import field_contacts
from mjtorch.collision.mesh_sdf import mesh_sdf_contacts
from mjtorch.collision.plane import plane_box, plane_cylinder, plane_ellipsoid
from mjtorch.collision.plane_mesh import plane_mesh
from mjtorch.collision.portal import Settings, more_contacts, portal_contacts
from mjtorch.collision.round_normal import of_cylinder
from mjtorch.collision.sdf import sdf_contacts, sdf_field
from mjtorch.collision.support import MESH, Core, assembled, from_first, to_local, to_world, where_rows
from mjtorch.collision.triangle_sdf import triangle_sdf_contacts
from mjtorch.control_flow.map import each
from mjtorch.model import Data, DisableBit, Model
from mjtorch.model.plan.family import Block, Family
from mjtorch.model.plan.geom_pairs import CONVEX_ELEMENT, CONVEX_ELEMENTS, CYLINDER, FIELD_ELEMENT, SDF, TRIANGLE
from mjtorch.model.plan.mesh import Hulls
from mjtorch.model.plan.sdf import TriangleFields

# From the first geoms of n pairs, the second ones, and the distances (n,) [m] within which contacts matter. How many
# contacts it returns for each pair is in `mjtorch/model/plan/geom_pairs.py`.
Collider = Callable[[Solid, Solid, Tensor], ContactPoints]
# Of a row for each geom, those of some geoms.
Pick = Callable[[Tensor], Tensor]

COLLIDERS: dict[str, Collider] = {
    "plane-ellipsoid": plane_ellipsoid,
    "plane-cylinder": plane_cylinder,
    "plane-box": plane_box,
    "plane-mesh": plane_mesh,
    "sphere-sphere": sphere_sphere,
    "sphere-capsule": sphere_capsule,
    "capsule-capsule": capsule_capsule,
    "sphere-cylinder": sphere_cylinder,
    "sphere-box": sphere_box,
    "capsule-box": capsule_box,
    "box-box": box_box,
}


def family_contacts(m: Model, d: Data, family: Family, chosen: Chosen, reach: Tensor) -> list[ContactPoints]:
    """The contacts of the chosen pairs of a family, block by block; reach: (n,) [m] at which distances they matter."""
    if family.name == "plane-vertex":
        return [plane_vertex(m, d, family)]
    if family.name == "plane-corners":
        return [plane_corners(m, d, family)]
    if family.name in ELEMENTS or family.name in RIBBONS:
        return [element_contacts(m, d, family, chosen, reach)]
    if family.name in (CONVEX_ELEMENT, CONVEX_ELEMENTS):
        return [convex_elements(m, d, family, chosen, reach)]
    if family.name == FIELD_ELEMENT:
        return [field_elements(m, d, family, chosen, reach)]
    for triangles in family.triangles:
        return [triangle_sdf(m, d, triangles, chosen)]
    rounding = m.settings.rounding[0] if m.settings.rounding else None
    picks = picked(family, chosen)
    one, two = (
        Solid(of(d.geom_xpos), of(d.geom_xmat), of(m.geom_size), *hulls_of(m, family, types, of), rounding)
        for of, types in zip(picks, family.types, strict=True)
    )
    if family.name in COLLIDERS:
        return [formula_contacts(family, one, two, chosen.near, reach)]
    for fields in family.fields:
        _, shape = cores(m, d, family, picks)
        p, contacts = m.plan.collision, family.blocks[0].contacts
        hull = picks[1](p.hull_reach) + picks[1](p.hull_middle).abs()
        return [field_contacts(m, fields, one, shape, hull, reach, chosen.candidate, contacts, two.hulls)]
    assert chosen.near is not None, "families that are collided by iteration are bounded"
    for distances in family.distances:
        sides = tree.map(lambda x: x if chosen.pair is None else x[chosen.pair], distances.sides)
        types = [of(m.plan.collision.geom_type) for of in picks]
        first, second = (sdf_field(*of) for of in zip((one, two), sides, family.types, types, strict=True))
        near, iterations = chosen.near, m.opt.sdf_iterations
        for faces in distances.faces:
            mine = faces if chosen.pair is None else faces.replace(mesh=faces.mesh[chosen.pair])
            return [mesh_sdf_contacts(m.sdf_grid, m.mesh_vert, mine, first, second, near, iterations)]
        return [sdf_contacts(m.sdf_grid, first, second, near, distances.spread, iterations)]
    shape1, shape2 = cores(m, d, family, picks)
    if m.opt.disabled(DisableBit.NATIVECCD):
        size = torch.minimum(*(of(m.geom_rbound.detach()) for of in picks))
        return portals(m, family, shape1, shape2, chosen.near, reach, size)
    return convex_contacts(m, family, shape1, shape2, chosen.near, reach)


def picked(family: Family, chosen: Chosen) -> tuple[Pick, Pick]:
    """What takes of rows of all geoms those of the first geoms of the chosen pairs, and of the second.

    Where pairs are chosen when it is known which are near, those that are not have the rows of any pair of their block,
    which need not be looked up.
    """
    geom, near = chosen.geom, chosen.near
    if chosen.pair is None or near is None or family.distances:
        return lambda x: x[geom[0]], lambda x: x[geom[1]]
    starts = itertools.accumulate((block.pairs for block in family.blocks), initial=0)
    first = [start for block, start in zip(family.blocks, starts, strict=False) for _ in range(block.places)]
    spare = family.geom[:, torch.tensor(first, device=geom.device)]

    def pick(k: int, x: Tensor) -> Tensor:
        return where_rows(near, x[geom[k]], x[spare[k]])

    return functools.partial(pick, 0), functools.partial(pick, 1)


def formula_contacts(family: Family, one: Solid, two: Solid, near: Tensor | None, reach: Tensor) -> ContactPoints:
    """The contacts of geoms that have a formula; near: (n,) bool, which pairs may touch; None: not asked."""
    collider = COLLIDERS[family.name]
    if near is None:
        return collider(one, two, reach)
    contacts = family.blocks[0].contacts

    def touching(pairs: tuple[Solid, Solid, Tensor]) -> ContactPoints:
        first, second, reach = pairs
        same = one.rounding
        return collider(first._replace(rounding=same), second._replace(hulls=two.hulls, rounding=same), reach)

    def apart(pairs: tuple[Solid, Solid, Tensor]) -> ContactPoints:
        none = pairs[-1].new_zeros((len(pairs[-1]), contacts))
        nowhere = none[..., None].expand(-1, -1, 3)
        return ContactPoints(none, nowhere, nowhere.clone(), torch.zeros_like(none, dtype=torch.bool))

    alone = (solid._replace(hulls=None, rounding=None) for solid in (one, two))
    return each(touching, (*alone, reach), where=near, otherwise=apart)


def convex_contacts(
    m: Model, family: Family, shape1: Core, shape2: Core, near: Tensor, reach: Tensor
) -> list[ContactPoints]:
    """The contacts of convex shapes that have no formula, block by block; reach: (n,) [m] as for `Collider`.

    near: (n,) bool, which pairs may touch
    """
    one, two, origin = from_first(shape1, shape2)
    hulls = next(iter(m.plan.collision.hulls), None)
    found = nearest(one, two, near, reach.detach(), m.opt.ccd_iterations, m.opt.ccd_tolerance, hulls)
    # Blocks of one contact each come first.
    alone, flat = ([block for block in family.blocks if (block.contacts > 1) == many] for many in (False, True))
    count = sum(block.places for block in alone)
    parts = [single(found)] * len(alone)
    if flat:
        one, two = (_rest(x, count, _types(flat, k)) for k, x in enumerate((one, two)))
        rest = tree.map(lambda x: x[count:], found)
        parts += [several(one, two, rest, reach[count:], hulls)] * len(flat)
    near = near & found.within
    points, start = [], 0
    for block, contacts in zip(family.blocks, parts, strict=True):
        here = slice(start, start + block.places)
        points.append(_points(contacts, block, start - (count if block.contacts > 1 else 0), near[here], origin[here]))
        start += block.places
    return points


def portals(
    m: Model, family: Family, shape1: Core, shape2: Core, near: Tensor, reach: Tensor, size: Tensor
) -> list[ContactPoints]:
    """The same with the flag `nativeccd` disabled; size: (n,) [m] of the smaller shape of each pair."""
    settings = Settings(m.opt.ccd_iterations, m.opt.ccd_tolerance, next(iter(m.plan.collision.hulls), None))
    found = portal_contacts(shape1, shape2, near, reach, settings)
    points, start = [], 0
    for block in family.blocks:
        here = slice(start, start + block.places)
        mine: ContactPoints = tree.map(lambda x, here=here: x[here], found)
        if block.contacts > 1:
            one, two = (
                tree.map(lambda x, here=here: x[here], shape).replace(types=types)
                for shape, types in zip((shape1, shape2), block.types, strict=True)
            )
            mine = more_contacts(one, two, mine, reach[here], size[here], settings)
        points.append(mine)
        start += block.places
    return points


def convex_elements(m: Model, d: Data, family: Family, chosen: Chosen, reach: Tensor) -> ContactPoints:
    """Of elements of flexes and convex geoms, or other elements, one contact for each pair (mjc_ConvexElem).

    reach: (n,) [m] as for `Collider`
    """
    assert chosen.near is not None, "elements are bounded"
    first, second = chosen.geom
    # What moves its own corners goes first; the normal points from the geom to the element.
    if family.name == CONVEX_ELEMENT:
        side, element = -1.0, element_core(m, d, second)
        other = core_of(m, family, 0, lambda x: x[first], all_cores(m, d, {*family.types[0]}))
    else:
        side, element, other = 1.0, element_core(m, d, first), element_core(m, d, second)
    one, two, origin = from_first(element, other)
    hulls = next(iter(m.plan.collision.hulls), None)
    found = nearest(one, two, chosen.near, reach.detach(), m.opt.ccd_iterations, m.opt.ccd_tolerance, hulls)
    near = chosen.near & found.within
    contacts = single(found._replace(nearest=found.nearest._replace(normal=side * found.nearest.normal)))
    points = _points(contacts, family.blocks[0], 0, near, origin)
    if CYLINDER not in family.types[0] or TRIANGLE not in family.types[1]:
        return points
    of_both = other.among((CYLINDER,)) & (m.plan.collision.collider_dim[second] == 2)
    normal = points.normal[:, 0]
    away, is_round = of_cylinder(other, to_local(other, points.pos[:, 0] - other.pos), normal)
    away = torch.where((is_round & of_both)[:, None], to_world(other, away), normal)
    return points._replace(normal=away[:, None])


def field_elements(m: Model, d: Data, family: Family, chosen: Chosen, reach: Tensor) -> ContactPoints:
    """Of height fields and elements of flexes (mjc_HFieldElem); reach: (n,) [m] as for `Collider`."""
    field, element = chosen.geom
    one = Solid(d.geom_xpos[field], d.geom_xmat[field], m.geom_size[field])
    shape = element_core(m, d, element)
    hull, contacts = shape.prism.abs().amax(1), family.blocks[0].contacts
    return field_contacts(m, family.fields[0], one, shape, hull, reach, chosen.candidate, contacts, None)


def triangle_sdf(m: Model, d: Data, triangles: TriangleFields, chosen: Chosen) -> ContactPoints:
    """Of signed distance fields and triangles of flexes."""
    assert chosen.near is not None, "elements are bounded"
    geom, element = chosen.geom
    if chosen.pair is not None:
        start, mine = triangles.start, chosen.pair
        triangles = tree.map(lambda x: x[mine], triangles.replace(start=mine)).replace(start=start)
    solid = Solid(d.geom_xpos[geom], d.geom_xmat[geom], m.geom_size[geom])
    field = sdf_field(solid, triangles.side, (SDF,), m.plan.collision.geom_type[geom])
    corner = element_of(m, d, element)[0][:, :3]
    return triangle_sdf_contacts(m.sdf_grid, triangles, field, corner, chosen.near, m.opt.sdf_iterations)


def _types(blocks: list[Block], k: int) -> tuple[int, ...]:
    """The types of the first geoms of some blocks, or of the second."""
    return tuple(sorted({t for block in blocks for t in block.types[k]}))


def _rest(shape: Core, count: int, types: tuple[int, ...]) -> Core:
    """The shapes from number `count` on, which are of these types."""
    return tree.map(lambda x: x[count:], shape).replace(types=types)


def _points(contacts: Contacts, block: Block, start: int, near: Tensor, origin: Tensor) -> ContactPoints:
    """The contacts of a block, those in the rows from `start` on, as the driver wants them; origin: (n, 3) [m]."""
    here, count, near = slice(start, start + block.places), block.contacts, near[:, None]
    pos = contacts.pos[here, :count] + origin[:, None]
    # What is said of the others depends on who shared their loops.
    return ContactPoints(
        dist=torch.where(near, contacts.dist[here, :count], 0.0),
        pos=torch.where(near[..., None], pos, 0.0),
        normal=contacts.normal[here, None].expand_as(pos),
        exists=contacts.exists[here, :count] & near,
    )


def cores(m: Model, d: Data, family: Family, picks: tuple[Pick, Pick]) -> tuple[Core, Core]:
    """The geoms of pairs as the general collider wants them, the first ones and the second."""
    geoms = all_cores(m, d, {*family.types[0], *family.types[1]})
    one, two = (core_of(m, family, k, of, geoms) for k, of in enumerate(picks))
    return one, two


def all_cores(m: Model, d: Data, types: set[int]) -> Core:
    """All geoms as convex shapes, those of these `types` being of interest."""
    return assembled(tuple(sorted(types)), m.plan.collision.geom_type, d.geom_xpos, d.geom_xmat, m.geom_size)


def core_of(m: Model, family: Family, k: int, of: Pick, geoms: Core) -> Core:
    """Of all `geoms`, the first ones of pairs, or with k = 1 the second."""
    types = family.types[k]
    (hull, _), shape = hulls_of(m, family, types, of), tree.map(of, geoms).replace(types=types)
    return shape if hull is None else shape.replace(hull=hull)


def hulls_of(m: Model, family: Family, types: tuple[int, ...], of: Pick) -> tuple[Tensor | None, Hulls | None]:
    """Which hull each geom of these `types` has, and all hulls, if any may be a mesh that is collided by its hull."""
    p = m.plan.collision
    return (None, None) if family.distances or {MESH, SDF}.isdisjoint(types) else (of(p.geom_hull), p.hulls[0])
