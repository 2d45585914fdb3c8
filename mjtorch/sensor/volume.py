"""What is inside the volumes of sites (mj_insideSite)."""

from torch import Tensor

from mjtorch.math import quaternion as quat
from mjtorch.math.shape import inside
from mjtorch.math.vector import cross, dot
from mjtorch.model import Model
from mjtorch.model.plan.volume import Volume


def inside_volume(m: Model, volume: Volume, site: Tensor, point: Tensor) -> Tensor:
    """Whether points (..., n, 3) [m] in the frames of `site` (n,) are inside them; bool (..., n).

    Of a mesh it is the convex hull. Its vertices are given in the frame of its inertia, unlike the site.
    """
    if volume.shape is not None:
        return inside(volume.shape, m.site_size[site], point)
    turned = quat.rotate(point - m.mesh_pos[volume.mesh], quat.conjugate(m.mesh_quat[volume.mesh]))
    corner = m.mesh_vert[volume.hull]
    outward = normals(corner)
    return (turned @ outward.mT < dot(outward, corner[:, 0])).all(-1)


def hull_corners(m: Model, volume: Volume) -> Tensor:
    """The triangles (f, 3, 3) [m] of a mesh's convex hull, in the frame of the site."""
    return m.mesh_pos[volume.mesh] + quat.rotate(m.mesh_vert[volume.hull], m.mesh_quat[volume.mesh])


def normals(corner: Tensor) -> Tensor:
    """Of triangles (f, 3, 3), outward, of any length: (f, 3)."""
    return cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
