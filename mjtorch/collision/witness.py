"""Nearest points of convex shapes as functions of their poses and sizes, once it is known where they are.

An iteration finds what is nearest; its derivative is that of the equations that the result solves: the line between
the nearest points p1 and p2 is along the normal n of both surfaces, p2 - p1 = d n. Around the result a surface is
described by the point where its outward normal is m, s(m) = s0 + H (m - m0) in the frame of its geom: H is zero at a
corner, the matrix of the radii of curvature where it is curved, and large along what is flat. A turn `b` of the normal,
in the two directions T across it, then follows from a step of Newton's method:

    (T' (H1 + H2) T + d) b = T' (p2 - p1).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.frame import make_frame
from mjtorch.collision.gjk import Support, difference
from mjtorch.collision.support import HULLS, PRISM, Core, is_at, to_local, to_world, where_rows
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math.shape import Shape
from mjtorch.math.vector import basis, cross, dot, norm

# Steps by which curved surfaces are met more closely than by polytopes: Newton's, but for two that try whether flat
# sides of the first shape, and then of the second, are just across the normal.
STEPS = 6
FLAT1, FLAT2 = 1, 3
# Which step comes after each, as long as Newton's change something, and where there is no such flat side.
NEXT = (2, 2, 4, 4, 5, 6, 6)
# The cosine of the angle between a normal and a flat side under which it is taken as perpendicular.
ALIGNED = 2e-2
# How much of a size a point may be short of a corner and still be the corner.
AT_END = 1e-6


class Nearest(NamedTuple):
    """Nearest points of n pairs of shapes, or where these are deepest in each other.

    normal: (n, 3) unit, from 1 to 2; dist: (n,) [m], negative in penetration; point1, point2: (n, 3) [m]
    """

    normal: Tensor
    dist: Tensor
    point1: Tensor
    point2: Tensor


class Closest(NamedTuple):
    """Where n pairs of shapes are nearest, and the corners (n, 3, 3) [m] on either core that this was found from.

    vertex1, vertex2: (n, 3) the numbers of these corners if they are vertices of hulls, else zero
    within: (n,) bool, they may be as near as was asked about; else the rest means nothing
    """

    nearest: Nearest
    corner1: Tensor
    corner2: Tensor
    vertex1: Tensor
    vertex2: Tensor
    within: Tensor


class Surface(NamedTuple):
    """A surface around a point, in the world.

    point: (n, 3) [m] where the normal is the given one, fixed: (n, 3) [m] the point of the geom that is there now
    bend: (n, 3, 3) [m] H, see above
    tilt: (n, 3) how its normal turns with the vertices of prisms, of value zero; None: not at all
    """

    point: Tensor
    fixed: Tensor
    bend: Tensor
    tilt: Tensor | None = None


def surface(shape: Core, point: Tensor, normal: Tensor, corner: Tensor) -> Surface:
    """The surface of a core around `point (n, 3)` with outward `normal (n, 3)`, constants.

    corner: (n, k, 3) [m] what spans the face, or edge, that the point is on, some of them equal
    """
    q, m = to_local(shape, point - shape.pos).detach(), to_local(shape, normal).detach()
    flat_radius = (1e3 if q.dtype is torch.float32 else 1e7) * shape.extent.detach()[:, None]
    kinds = [(types, around) for types, around in _SURFACES if shape.has(types)]
    local, bend = kinds[0][1](shape, q, m, flat_radius, corner)
    for types, around in kinds[1:]:
        mine, (own, own_bend) = shape.among(types), around(shape, q, m, flat_radius, corner)
        local = torch.where(mine[:, None], own, local)
        bend = torch.where(mine[:, None, None], own_bend, bend)
    bend = bend.detach()
    # What is a constant in the frame of the geom turns with it: s(m) for the fixed normal of the world.
    turned = (bend @ (to_local(shape, normal.detach()) - m)[..., None])[..., 0]
    tilt = None
    if shape.only((PRISM,)):
        moved, tilted = _reshaped(shape, q, m, corner.detach())
        local, tilt = local + moved, to_world(shape, tilted)
    mat = shape.mat.detach()
    fixed = to_world(shape, local) + shape.pos
    return Surface(fixed + to_world(shape, turned), fixed, mat @ bend @ mat.mT, tilt)


def _reshaped(shape: Core, q: Tensor, m: Tensor, corner: Tensor) -> tuple[Tensor, Tensor]:
    """How the point `q` of a prism moves with the vertices, and how its normal `m` turns, (n, 3) each, of value zero.

    corner: (n, 3, 3) [m] vertices in the world, constants, one or two of them repeated on an edge or at a vertex
    """
    local = (corner - shape.pos.detach()[:, None]) @ shape.mat.detach()
    which = (shape.prism.detach()[:, None] - local[:, :, None]).abs().sum(-1).argmin(-1)
    vert = is_at(which, shape.prism.shape[1]).to(q.dtype) @ shape.prism
    fixed = vert.detach()
    weight, is_face, edge = _weights(fixed, q)
    moved = (weight[..., None] * (vert - fixed)).sum(1)
    # What is across a face stays so, by both of its edges; on an edge it turns no more than it has to.
    along = vert[:, 1:] - vert[:, :1]
    up = cross(along[:, 0], along[:, 1])
    length = torch.where(is_face, dot(up, m, keepdim=True).detach(), 1.0)
    facing = up / length
    facing = facing - m * dot(facing, m, keepdim=True)
    along = (edge[..., None] * along).sum(1)
    square = dot(along, along, keepdim=True).detach()
    aside = -along.detach() * dot(along, m, keepdim=True) / torch.where(square > 0, square, 1.0)
    turned = torch.where(is_face, facing, aside)
    return moved, turned - turned.detach()


def _weights(corner: Tensor, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (n, 3) of the corners (n, 3, 3) of a triangle, edge or vertex in the point (n, 3) on it.

    Whether it is a triangle (n, 1), and which of the edges from the first corner is longer, (n, 2) bool one-hot.
    """
    edge = corner[:, 1:] - corner[:, :1]
    square = dot(edge, edge)
    along = dot(edge, (point - corner[:, 0])[:, None])
    mixed = dot(edge[:, 0], edge[:, 1])
    det = square[:, 0] * square[:, 1] - mixed * mixed
    is_face = (det > 1e-6 * square[:, 0] * square[:, 1])[:, None]
    inner = along * square.flip(-1) - mixed[:, None] * along.flip(-1)
    inner = inner / torch.where(is_face, det[:, None], 1.0)
    longer = is_at(square.argmax(-1), 2)
    single = torch.where(longer & (square > 0), along / torch.where(square > 0, square, 1.0), 0.0)
    pair = torch.where(is_face, inner, single)
    return torch.cat([1 - pair.sum(-1, keepdim=True), pair], dim=-1), is_face, longer


def to_local_both(shape: Core, matrix: Tensor) -> Tensor:
    """Matrices (n, 3, 3) of the world in the frames of the geoms."""
    return shape.mat.mT @ matrix @ shape.mat


def _boxed(shape: Core, q: Tensor, m: Tensor, flat_radius: Tensor, corner: Tensor) -> tuple[Tensor, Tensor]:
    """Point and bend, in its own frame, of a box that may be a segment or a point."""
    flat = (q.abs() < (1 - AT_END) * shape.half) & (m.abs() < ALIGNED)
    return torch.where(flat, q, shape.half * q.sign()), torch.diag_embed(flat_radius * flat)


def _ellipsoid(shape: Core, q: Tensor, m: Tensor, flat_radius: Tensor, corner: Tensor) -> tuple[Tensor, Tensor]:
    """Point and bend, in its own frame, of an ellipsoid."""
    square = shape.round * shape.round
    length = norm(shape.round * m, keepdim=True)
    length = torch.where(length > 0, length, 1.0)
    along = square * m / length
    return square * m / length, (torch.diag_embed(square) - along[:, :, None] * along[:, None]) / length[..., None]


def _cylinder(shape: Core, q: Tensor, m: Tensor, flat_radius: Tensor, corner: Tensor) -> tuple[Tensor, Tensor]:
    """Point and bend, in its own frame, of a cylinder: on its side, on its rim, or on a flat end."""
    radius, length = shape.round[:, :1], shape.half[:, 2:]
    across, out = norm(m[:, :2], keepdim=True), norm(q[:, :2], keepdim=True)
    on_end = (across < ALIGNED) & (out < (1 - AT_END) * radius)
    on_side = (m[:, 2:].abs() < ALIGNED) & (q[:, 2:].abs() < (1 - AT_END) * length)
    # On the rim of a flat contact the normal does not say where: the point does.
    ray = torch.where(across < ALIGNED, q[:, :2] / out.clamp(min=1e-12), m[:, :2] / across.clamp(min=1e-12))
    xy = torch.where(on_end, q[:, :2], radius * ray)
    z = torch.where(on_side, q[:, 2:], torch.where(q[:, 2:] >= 0, length, -length))
    tangent = torch.nn.functional.pad(torch.stack([-ray[:, 1], ray[:, 0]], dim=-1), (0, 1))
    curved = torch.minimum(radius / across.clamp(min=1e-12), flat_radius)[..., None] * tangent[:, :, None]
    flat = flat_radius * torch.cat([on_end, on_end, on_side], dim=-1)
    bend = torch.where(on_end[..., None], 0.0, curved * tangent[:, None]) + torch.diag_embed(flat)
    return torch.cat([xy, z], dim=-1), bend


def _hull(shape: Core, q: Tensor, m: Tensor, flat_radius: Tensor, corner: Tensor) -> tuple[Tensor, Tensor]:
    """Point and bend, in its own frame, of the hull of a mesh, or of a prism."""
    edge = (corner[:, :, None] - corner[:, None]).flatten(1, 2)
    unit = edge / norm(edge, keepdim=True).clamp(min=1e-12)
    return q, to_local_both(shape, flat_radius[..., None] * (unit.mT @ unit)).detach()


_SURFACES = (
    ((Shape.SPHERE, Shape.CAPSULE, Shape.BOX), _boxed),
    ((Shape.ELLIPSOID,), _ellipsoid),
    ((Shape.CYLINDER,), _cylinder),
    (HULLS, _hull),
)


def turn(surface1: Surface, surface2: Surface, normal: Tensor) -> tuple[Tensor, Tensor]:
    """The step (n, 3) by which the normal turns, and the distance (n,) along `normal (n, 3)`.

    If the surface of shape 1 tilts, the step is what comes on top of that.
    """
    across = make_frame(normal)[:, 1:]
    between = surface2.point - surface1.point
    # To first order points move across the normal only: rounding must not be multiplied by what is large in H.
    dist = dot(normal, surface2.fixed - surface1.fixed)
    if surface1.tilt is not None:
        tilt = surface1.tilt if surface2.tilt is None else surface1.tilt + surface2.tilt
        carried = (surface2.bend @ tilt[..., None])[..., 0] + dist.detach()[:, None] * surface1.tilt
        between = between - carried
    a = (across @ (surface1.bend + surface2.bend) @ across.mT).detach()
    rest = (across @ between[..., None])[..., 0]
    a11, a22, a12 = a[:, 0, 0] + dist.detach(), a[:, 1, 1] + dist.detach(), 0.5 * (a[:, 0, 1] + a[:, 1, 0])
    det = a11 * a22 - a12 * a12
    # Positive at every nearest point, and at every least depth.
    definite = (det > 1e-12 * (a11 * a22).abs()) & (a11 > 0)
    b1, b2 = a22 * rest[:, 0] - a12 * rest[:, 1], a11 * rest[:, 1] - a12 * rest[:, 0]
    b = torch.stack([b1, b2], dim=-1) / torch.where(definite, det, 1.0)[:, None]
    small = definite & (dot(b, b) < 0.1)
    return (across.mT @ torch.where(small[:, None], b, 0.0)[..., None])[..., 0], dist


def witness(shape1: Core, shape2: Core, found: Nearest, corner1: Tensor, corner2: Tensor) -> Nearest:
    """What was found as a function of the shapes: all values and first derivatives.

    corner1, corner2: (n, k, 3) [m] what spans the faces, or edges, that the points are on
    """
    normal = found.normal
    surface1 = surface(shape1, found.point1, normal, corner1)
    surface2 = surface(shape2, found.point2, -normal, corner2)
    step, dist = turn(surface1, surface2, normal)
    # What was found is the gap along the normal; it is another only if the points are off.
    off = (dist - found.dist).detach()
    total = step if surface1.tilt is None else step + surface1.tilt
    # How far the normal turns from that of the second surface, which is turned itself.
    relative = total if surface2.tilt is None else total + surface2.tilt
    return Nearest(
        normal + (total - total.detach()),
        dist - torch.where(off.abs() > 1e-3 * found.dist.abs(), off, 0.0),
        surface1.point + (surface1.bend @ step[..., None])[..., 0],
        surface2.point - (surface2.bend @ relative[..., None])[..., 0],
    )


def squared(shape: Core, normal: Tensor) -> Tensor:
    """Normals (n, 3) like these but just across, or along, the flat sides that they are nearly across, or along."""
    m = to_local(shape, normal)
    side = (shape.half > 0) & (m.abs() < ALIGNED)
    is_end = shape.among((Shape.CYLINDER,))[:, None] & (norm(m[:, :2], keepdim=True) < ALIGNED)
    end = is_end & (torch.arange(3, device=m.device) < 2)
    turned = to_world(shape, torch.where(side | end, 0.0, m))
    return turned / norm(turned, keepdim=True)


class Refinement(NamedTuple):
    """How far `closer` has come with n pairs: what is nearest, the number (n,) of the next step, and whether Newton's
    last one (n,) bool hardly changed anything, and nothing else has since."""

    now: Nearest
    number: Tensor
    steady: Tensor


def closer(furthest: Support, shape1: Core, shape2: Core, found: Nearest, corner1: Tensor, corner2: Tensor) -> Nearest:
    """Nearest points of shapes of which one is curved, all constants, refined by Newton's method.

    The gap between two shapes along any direction is at most their distance, so a step is good if the gap gets larger.
    furthest: the points of both shapes that are `support` of the first against and of the second along a direction
    """

    def gap(normal: Tensor) -> Tensor:
        point1, point2 = furthest(-normal)
        return dot(normal, difference(point1, point2))

    scale = shape1.extent + shape2.extent
    eps = torch.finfo(scale.dtype).eps
    following = torch.tensor(NEXT, device=scale.device)

    def step(at: Refinement) -> Refinement:
        now, number = at.now, at.number
        surface1 = surface(shape1, now.point1, now.normal, corner1)
        surface2 = surface(shape2, now.point2, -now.normal, corner2)
        change, _ = turn(surface1, surface2, now.normal)
        is_first, is_second = (number == FLAT1)[:, None], (number == FLAT2)[:, None]
        change = torch.where(is_first | is_second, 0.0, change)
        normal = now.normal + change
        normal = normal / norm(normal, keepdim=True)
        normal = torch.where(is_first, squared(shape1, normal), torch.where(is_second, squared(shape2, normal), normal))
        dist = gap(normal)
        # A point on a flat side may have to move where the normal cannot get better.
        better = (dist >= now.dist - 16 * eps * scale)[:, None]
        point1 = surface1.point + (surface1.bend @ change[..., None])[..., 0]
        point2 = surface2.point - (surface2.bend @ change[..., None])[..., 0]
        new = Nearest(
            torch.where(better, normal, now.normal),
            torch.maximum(dist, now.dist),
            torch.where(better, point1, now.point1),
            torch.where(better, point2, now.point2),
        )
        # Newton's next change would be about the square of this one.
        small = torch.where((is_first | is_second)[:, 0], at.steady & ~better[:, 0], norm(change) <= eps**0.5)
        flat1, flat2 = ((squared(x, new.normal) - new.normal).abs().amax(-1) > eps for x in (shape1, shape2))
        number = torch.where(small, STEPS, following[at.number])
        number = torch.where(flat2 & (at.number < FLAT2) & (number > FLAT1 + 1), FLAT2, number)
        number = torch.where(flat1 & (at.number < FLAT1), FLAT1, number)
        goes_on = at.number < STEPS
        return Refinement(
            where_rows(goes_on, new, now),
            torch.where(goes_on, number, at.number),
            torch.where(goes_on, small, at.steady),
        )

    first = torch.zeros_like(shape1.type)
    start = Refinement(found._replace(dist=gap(found.normal)), first, first > 0)
    return while_loop(lambda at: (at.number < STEPS).any(), step, start).now


def unknown(shape1: Core, shape2: Core) -> Closest:
    """What stands for the nearest points of pairs that are of no interest."""
    point1, point2 = shape1.pos, shape2.pos
    normal, no = basis(point1, 1, 0, 0).expand_as(point1), torch.zeros_like(shape1.type, dtype=torch.bool)
    nothing = Closest(
        Nearest(normal, dot(normal, point2 - point1), point1, point2),
        point1[:, None].expand(-1, 3, 3),
        point2[:, None].expand(-1, 3, 3),
        torch.zeros_like(shape1.type)[:, None].expand(-1, 3),
        torch.zeros_like(shape2.type)[:, None].expand(-1, 3),
        no,
    )
    return tree.map(Tensor.contiguous, nothing)


def vertices(corner: Tensor) -> Tensor:
    """The numbers (n, k) of corners (n, k, c) as in `Support`."""
    return corner[..., 3].long() if corner.shape[-1] > 3 else torch.zeros_like(corner[..., 0], dtype=torch.long)
