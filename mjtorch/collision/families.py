"""The table of colliders: one entry for each family of geom pairs."""

from collections.abc import Callable

from torch import Tensor

from mjtorch.collision.box import sphere_box
from mjtorch.collision.box_box import box_box
from mjtorch.collision.capsule_box import capsule_box
from mjtorch.collision.contact_points import ContactPoints, Hull, Solid
from mjtorch.collision.cylinder import sphere_cylinder
from mjtorch.collision.plane import plane_box, plane_cylinder, plane_ellipsoid
from mjtorch.collision.plane_mesh import plane_mesh
from mjtorch.model import Data, Model
from mjtorch.model.plan.collision import Family, Meshes

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
    return COLLIDERS[family.name](one, two, threshold[family.candidate])


def hull_of(meshes: Meshes) -> Hull:
    """The hulls of geoms that are meshes."""
    return Hull(meshes.vert[meshes.mesh], meshes.face[meshes.mesh], meshes.normal[meshes.mesh])
