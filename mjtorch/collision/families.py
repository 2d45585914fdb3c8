"""The table of colliders: one entry for each family of geom pairs, and one function for all without a formula."""

from collections.abc import Callable

from torch import Tensor

from mjtorch.collision.box import sphere_box
from mjtorch.collision.box_box import box_box
from mjtorch.collision.capsule_box import capsule_box
from mjtorch.collision.contact_points import ContactPoints, Hull, Solid
from mjtorch.collision.convex import convex
from mjtorch.collision.cylinder import sphere_cylinder
from mjtorch.collision.height_field import field_contacts
from mjtorch.collision.plane import plane_box, plane_cylinder, plane_ellipsoid
from mjtorch.collision.plane_mesh import plane_mesh
from mjtorch.collision.support import Convex, primitive
from mjtorch.model import Data, Model
from mjtorch.model.plan.collision import Family, Meshes
from mjtorch.model.plan.geom_pairs import CONVEX, FIELDS

# From the first geoms of n pairs, the second ones, and the distances (n,) [m] within which contacts matter. How many
# contacts it returns for each pair is in `mjtorch/model/plan/geom_pairs.py`.
Collider = Callable[[Solid, Solid, Tensor], ContactPoints]

COLLIDERS: dict[str, Collider] = {
    "plane-ellipsoid": plane_ellipsoid,
    "plane-cylinder": plane_cylinder,
    "plane-box": plane_box,
    "plane-mesh": plane_mesh,
    "sphere-cylinder": sphere_cylinder,
    "sphere-box": sphere_box,
    "capsule-box": capsule_box,
    "box-box": box_box,
}


def family_contacts(m: Model, d: Data, family: Family, threshold: Tensor) -> ContactPoints:
    """The contacts of all pairs of a family; threshold: (ncandidate,) [m] the distances at which they are detected."""
    one, two = (
        Solid(d.geom_xpos[geom], d.geom_xmat[geom], m.geom_size[geom], None if mesh is None else hull_of(mesh))
        for geom, mesh in zip(family.geom, family.meshes, strict=True)
    )
    reach = threshold[family.candidate]
    if family.name in CONVEX:
        return convex_contacts(m, family, one, two, reach)
    if family.fields is not None:
        shape = shape_of(two, FIELDS[family.name][1])
        return field_contacts(m, family.fields, one, shape, reach, family.contacts)
    return COLLIDERS[family.name](one, two, reach)


def convex_contacts(m: Model, family: Family, one: Solid, two: Solid, reach: Tensor) -> ContactPoints:
    """The contacts of a family of convex shapes that have no formula; reach: (n,) [m] as for `Collider`."""
    shape1, shape2 = (shape_of(solid, type) for solid, type in zip((one, two), CONVEX[family.name], strict=True))
    found = convex(
        shape1,
        shape2,
        reach,
        multiccd=family.contacts > 1,
        iterations=m.opt.ccd_iterations,
        tolerance=m.opt.ccd_tolerance,
    )
    normal = found.normal[:, None].expand_as(found.pos)
    return ContactPoints(dist=found.dist, pos=found.pos, normal=normal, exists=found.exists)


def shape_of(solid: Solid, type: int) -> Convex:
    """Geoms of one type as the general collider wants them."""
    shape = primitive(type, solid.pos, solid.mat, solid.size)
    hull = solid.hull
    if hull is None:
        return shape
    return shape.replace(vert=hull.vert, face=hull.face, normal=hull.normal, degree=hull.degree)


def hull_of(meshes: Meshes) -> Hull:
    """The hulls of geoms that are meshes."""
    return Hull(meshes.vert[meshes.mesh], meshes.face[meshes.mesh], meshes.normal[meshes.mesh], meshes.degree)
