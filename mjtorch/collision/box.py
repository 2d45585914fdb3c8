"""Contacts of boxes with what is round."""

import torch
from torch import Tensor

from mjtorch.collision.contact_points import ContactPoints, Solid
from mjtorch.collision.rounding import first_largest, rounding_of
from mjtorch.math.value import value_of
from mjtorch.math.vector import MIN_VALUE, dot, normalize
from mjtorch.smooth.object import to_local


def sphere_box(sphere: Solid, box: Solid, reach: Tensor) -> ContactPoints:
    """One contact (mjc_SphereBox)."""
    center = to_local(box.mat, sphere.pos - box.pos)
    slack = rounding_of(sphere.pos, box.size)
    return in_the_world(
        box, *center_box(center[:, None], sphere.size[:, :1], box.size[:, None], box.rounding, slack[:, None])
    )


def in_the_world(box: Solid, dist: Tensor, pos: Tensor, normal: Tensor) -> ContactPoints:
    """Contacts (n, k) whose `pos` and `normal` are given in the frame of a box; all of them exist."""
    turned = box.mat.mT
    return ContactPoints(
        dist, box.pos[:, None] + pos @ turned, normal @ turned, torch.ones_like(dist, dtype=torch.bool)
    )


def center_box(
    center: Tensor, radius: Tensor, size: Tensor, rounding: Tensor | None, slack: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Distance (...) [m], position and normal (..., 3) of the contact of a sphere and a box, in the frame of the box.

    center: (..., 3) [m], radius: (...) [m], size: (..., 3) [m] half lengths. A centre inside the box is pushed out
    through the nearest face; of several, through the first of -x, x, -y, y, -z, z. rounding: see `Solid`;
    slack: (..., 1) [m] what rounding may do to the centre.
    """
    nearest = torch.maximum(torch.minimum(center, size), -size)
    outwards, distance = normalize(nearest - center, torch.zeros_like(center))
    inside = distance <= slack.clamp(min=MIN_VALUE)
    depth, inwards = nearest_face(center, size, slack)
    normal = torch.where(inside, inwards, outwards)
    dist = torch.where(inside, -depth, distance)[..., 0] - radius
    # Midway between the surfaces: half the distance from that of the sphere.
    pos = center + normal * (radius + 0.5 * dist)[..., None]
    return dist, pos, normal if rounding is None else value_of(normal, rounded_normal(center, size, rounding))


def rounded_normal(center: Tensor, size: Tensor, rounding: Tensor) -> Tensor:
    """Smooth normal (..., 3) of a sphere and a box, as `center_box` has it where `rounding` () [m] goes to zero.

    The way from the centre to the box, `max(-c - a, 0) - max(c - a, 0)` in each direction, with softplus for max. That
    also tells the nearest face from inside.
    """

    def soft(x: Tensor) -> Tensor:
        return torch.nn.functional.softplus(x / rounding)

    return normalize(soft(-center - size) - soft(center - size), torch.zeros_like(center))[0]


def nearest_face(center: Tensor, size: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
    """Distance (..., 1) [m] to the nearest face of a box from inside, and its inward normal (..., 3)."""
    to_face = torch.stack([center + size, size - center], dim=-1).abs().flatten(-2)
    face = torch.arange(6, device=center.device) == first_largest(-to_face.detach(), slack)
    chosen = face.to(center.dtype)
    low, high = chosen.unflatten(-1, (3, 2)).unbind(-1)
    return dot(chosen, to_face, keepdim=True), low - high
