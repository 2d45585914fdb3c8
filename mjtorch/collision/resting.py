"""Where convex shapes that are about to touch planes will rest on them: corners of a face, ends of a line, or a point.

However steep it is, the face that looks most towards the plane is taken; but of a cylinder, and of a capsule, that
nearly lies the line that does.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch.collision.clipping import CONTACTS, first, largest, outline
from mjtorch.collision.multicontact import BOX, END, HULL, ROUND, WITHIN, polygons
from mjtorch.collision.plane_mesh import lowest_face
from mjtorch.collision.support import Core, support, to_local
from mjtorch.control_flow.if_any import if_any
from mjtorch.math.shape import Shape
from mjtorch.math.vector import basis, dot, norm
from mjtorch.model.plan.mesh import Hulls

# Of the corners of the polygon that stands for the end of a cylinder, four that span as large an area as any.
OF_END = (0, 3, 7, 11)


def lowest(shape: Core, up: Tensor, hulls: Hulls | None) -> Tensor:
    """The points (n, 3) [m] of shapes that are furthest against `up (n, 3)`; which ones these are is a constant."""
    direction = -up.detach() if shape.only(BOX) or shape.only(HULL) else -up
    return support(shape, direction, hulls) - shape.radius[:, None] * up


def resting(shape: Core, plane: Core, ahead: Tensor, hulls: Hulls | None) -> tuple[Tensor, Tensor]:
    """Points (n, 4, 3) [m] of n shapes that will rest on planes, and which there are, (n, 4) bool.

    ahead: (n,) [m] half of how high above the plane points may be. As in C, lines of capsules are shifted by its share
        along their axes.
    """
    up = plane.mat[..., 2]
    point = lowest(shape, up, hulls)[:, None].expand(-1, CONTACTS, 3)
    place = torch.arange(CONTACTS, device=up.device)
    exists = (place == 0).expand(len(up), CONTACTS)

    def low(point: Tensor) -> Tensor:
        return dot(point - plane.pos[:, None], up[:, None]).detach() <= 2 * ahead.detach()[:, None]

    flat = tuple(type for type in (Shape.CYLINDER, *BOX, *HULL) if shape.has((type,)))
    if flat:
        corner, number = corners(shape, up, low, hulls)
        mine = shape.among(flat)
        point = torch.where(mine[:, None, None], corner, point)
        exists = torch.where(mine[:, None], place < number[:, None], exists)
    if shape.has(ROUND):
        ends, lies = line(shape, up, ahead)
        point = torch.where(lies[:, None, None], ends, point)
        exists = torch.where(lies[:, None], (place < 2) & low(ends), exists)
    return point, exists


def corners(shape: Core, up: Tensor, low: Callable[[Tensor], Tensor], hulls: Hulls | None) -> tuple[Tensor, Tensor]:
    """Four low corners (n, 4, 3) [m] of faces, of more those that span a large area; and how many (n,) there are.

    low: which of points (n, k, 3) [m] are. Of shapes without faces what is returned means nothing.
    """
    local = to_local(shape, up.detach()).detach()
    face = (local[:, 2] <= 0).long()
    if shape.has(BOX):
        # In the order +x, -x, +y, -y, +z, -z.
        towards = torch.stack([-local, local], dim=-1).flatten(1)
        face = torch.where(shape.among(BOX), towards.argmax(1), face)
    if shape.has(HULL):
        assert hulls is not None, "meshes need hulls"
        face = torch.where(shape.among(HULL), lowest_face(hulls, shape.hull.clamp(min=0), local), face)
    faces = polygons(shape, hulls)
    around = outline(faces.corners(face, faces.most))
    size = around.corner.shape[1]
    there = torch.arange(size, device=up.device) < around.number[:, None]
    kept = first(there & low(around.corner), size)
    corner = around.corner.gather(1, kept.element[..., None].expand(-1, -1, 3))
    chosen, number = spanning(shape, corner.detach(), kept.exists.sum(1))
    return corner.gather(1, chosen[..., None].expand(-1, -1, 3)), number.clamp(max=CONTACTS)


def spanning(shape: Core, corner: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Which four (n, 4) of the first `number (n,)` corners (n, k, 3) [m] span a large area; and the number."""
    place = torch.arange(CONTACTS, device=number.device).expand(len(number), CONTACTS)
    many, ends = number > CONTACTS, torch.zeros_like(number, dtype=torch.bool)
    if shape.has((Shape.CYLINDER,)):
        ends = shape.among((Shape.CYLINDER,)) & (number == END)
        many = many & ~ends
    chosen = if_any(many, lambda: torch.where(many[:, None], largest(corner, number, many), place), place)
    chosen = torch.where(ends[:, None], torch.tensor(OF_END, device=number.device), chosen)
    return chosen.clamp(max=corner.shape[1] - 1), number


def line(shape: Core, up: Tensor, ahead: Tensor) -> tuple[Tensor, Tensor]:
    """Both ends of the lines of cylinders and capsules (n, 4, 3) [m] that face planes, and which of these lie, (n,).

    Of a cylinder the lower end comes first.
    """
    axis = shape.mat[..., 2]
    rise = dot(axis, up, keepdim=True)
    is_capsule = shape.among((Shape.CAPSULE,))[:, None]
    down = rise * axis - up
    length = norm(down, keepdim=True)
    radius = shape.radius[:, None] + shape.round[:, :1]
    side = radius * down / torch.where(is_capsule | (length == 0), 1.0, length)
    side = side + torch.where(is_capsule, ahead[:, None] * rise, 0.0) * axis
    order = basis(up, 1, -1, 0, 0)
    sign = torch.where(~is_capsule & (rise < 0), order, -order)[..., None]
    ends = (shape.pos + side)[:, None] + sign * (shape.half[:, 2:] * axis)[:, None]
    return ends, shape.among(ROUND) & (rise[:, 0].abs() < WITHIN)
