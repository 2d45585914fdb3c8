"""The table of colliders: one entry for each family of geom pairs, and one function for all without a formula."""

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
from mjtorch.collision.height_field import field_contacts
from mjtorch.collision.mesh_sdf import mesh_sdf_contacts
from mjtorch.collision.plane import plane_box, plane_cylinder, plane_ellipsoid
from mjtorch.collision.plane_mesh import plane_mesh
from mjtorch.collision.sdf import sdf_contacts, sdf_field
from mjtorch.collision.support import MESH, Core, assembled, from_first
from mjtorch.control_flow.map import each
from mjtorch.model import Data, Model
from mjtorch.model.plan.collision import Block, Family
from mjtorch.model.plan.geom_pairs import SDF

# From the first geoms of n pairs, the second ones, and the distances (n,) [m] within which contacts matter. How many
# contacts it returns for each pair is in `mjtorch/model/plan/geom_pairs.py`.
Collider = Callable[[Solid, Solid, Tensor], ContactPoints]

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


def family_contacts(m: Model, d: Data, family: Family, chosen: Chosen, threshold: Tensor) -> list[ContactPoints]:
    """The contacts of the chosen pairs of a family, block by block.

    threshold: (ncandidate,) [m] the distances at which they are detected
    """
    reach = threshold[chosen.candidate]
    rounding = m.settings.rounding[0] if m.settings.rounding else None
    one, two = (
        Solid(d.geom_xpos[geom], d.geom_xmat[geom], m.geom_size[geom], rounding=rounding) for geom in chosen.geom
    )
    if not family.distances:
        one, two = (with_hulls(m, *of) for of in zip((one, two), family.types, chosen.geom, strict=True))
    if family.name in COLLIDERS:
        return [formula_contacts(family, one, two, chosen.near, reach)]
    types = [m.plan.collision.geom_type[geom] for geom in chosen.geom]
    for fields in family.fields:
        shape = core_of(two, family.types[1], types[1])
        return [field_contacts(m, fields, one, shape, reach, family.blocks[0].contacts, two.hulls)]
    shape1, shape2 = (core_of(*of) for of in zip((one, two), family.types, types, strict=True))
    assert chosen.near is not None, "families that are collided by iteration are bounded"
    for distances in family.distances:
        sides = tree.map(lambda x: x if chosen.pair is None else x[chosen.pair], distances.sides)
        first, second = (sdf_field(*of) for of in zip((one, two), sides, family.types, types, strict=True))
        near, iterations = chosen.near, m.opt.sdf_iterations
        for faces in distances.faces:
            mine = faces if chosen.pair is None else faces.replace(mesh=faces.mesh[chosen.pair])
            return [mesh_sdf_contacts(m.sdf_grid, m.mesh_vert, mine, first, second, near, iterations)]
        return [sdf_contacts(m.sdf_grid, first, second, near, distances.spread, iterations)]
    return convex_contacts(m, family, shape1, shape2, chosen.near, reach)


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


def core_of(solid: Solid, types: tuple[int, ...], type: Tensor) -> Core:
    """Geoms of these `types`, of each its `type (n,)`, as the general collider wants them."""
    shape = assembled(types, type, solid.pos, solid.mat, solid.size)
    return shape if solid.hull is None else shape.replace(hull=solid.hull)


def with_hulls(m: Model, solid: Solid, types: tuple[int, ...], geom: Tensor) -> Solid:
    """The same geoms, `geom (n,)`, with the hulls of those that are meshes, if `types` says that there are any."""
    if {MESH, SDF}.isdisjoint(types):
        return solid
    p = m.plan.collision
    return solid._replace(hull=p.geom_hull[geom], hulls=p.hulls[0])
