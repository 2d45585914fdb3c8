"""Distance of points from planes."""

from torch import Tensor

from mjtorch.math.vector import dot


def plane_point(origin: Tensor, normal: Tensor, point: Tensor) -> Tensor:
    """Signed height (..., 1) [m] of `point` above the plane through `origin` with unit `normal`, all (..., 3) [m].

    The core of mjc_PlaneSphere and, applied to both ends of the axis, of mjc_PlaneCapsule: a capsule touches a plane
    with the two spheres at its ends.
    """
    return dot(point - origin, normal, keepdim=True)
