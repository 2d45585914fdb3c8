"""Contacts that will come within the next time step (doc: computation, "Speculative contacts").

What moves further in a step than the thinner of two geoms is thick is swept: the other contacts of the pair are left
out, and these are put in their place, if the two are apart and nothing is between them. A contact lies where what
touches is now; how far apart its points are is not said, but a distance for which the row of the constraint takes off
as much of the speed as is too much to touch at the end of the step.

The same as in C but for two things. What passes a geom at less than 3 % of their distance is a contact, unless C's
broad phase, which sorts boxes along axes that depend on all bodies, says that it passes. And of faces and edges that
are parallel, without multiccd, the nearest points are any two.

Times of impact come from a loop. As functions they are such that the distance is a fixed share of what it was; where a
geom turns so fast that the loop ends early, they are constants.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.convex import nearest, several, single
from mjtorch.collision.line_of_sight import hidden
from mjtorch.collision.multicontact import may_touch_along_faces
from mjtorch.collision.parameters import parameters
from mjtorch.collision.resting import lowest, resting
from mjtorch.collision.support import MESH, Core, assembled, detach, from_first
from mjtorch.collision.sweep import (
    Impact,
    Meeting,
    Motion,
    advanced,
    closing,
    differentiable,
    goal,
    taken_back,
    time_of_impact,
)
from mjtorch.collision.witness import Closest
from mjtorch.control_flow.map import each
from mjtorch.math.impedance import impedance, settled, stiffness_damping
from mjtorch.math.shape import Shape
from mjtorch.math.vector import MIN_VALUE, dot, norm
from mjtorch.model import Data, DisableBit, Integrator, Model
from mjtorch.model.plan.mesh import Hulls
from mjtorch.model.plan.speculative import SpeculativePlan, Swept
from mjtorch.smooth.com import com_vel
from mjtorch.smooth.object import point_velocity

# What stands for the depth [m] where there is no stiffness: the width of the impedance, or this.
LEAST_WIDTH = 1e-4


class Foreseen(NamedTuple):
    """Of all n candidates those that will come: dist (n,) [m], normal (n, 3), pos (n, 3) [m], exists (n,) bool.

    taken: (n,) bool, the pair will touch: whatever else is known of it is left out
    """

    dist: Tensor
    normal: Tensor
    pos: Tensor
    exists: Tensor
    taken: Tensor


class Pairs(NamedTuple):
    """n pairs of a group: shapes and how these move, margin and reach (n,) [m] within which contacts matter.

    asked: (n,) bool, fast ones that may meet and do not touch
    """

    shape1: Core
    shape2: Core
    one: Motion
    two: Motion
    margin: Tensor
    asked: Tensor


def foreseen(m: Model, d: Data, touches: Tensor, includemargin: Tensor, threshold: Tensor, source: Tensor) -> Foreseen:
    """The contacts to come of all candidates.

    touches: (ncandidate,) bool, contacts that there are, within the margin; includemargin, threshold: (ncandidate,) [m]
    source: (ncandidate, 2) as in `CollisionPlan`
    """
    (p,) = m.plan.collision.speculative
    motion, parts = motions(m, d), []
    for group in p.groups:
        first = group.candidate[:, 0]
        touching = torch.nn.functional.pad(touches, (0, 1))[group.candidate].any(1)
        margin, reach = includemargin[first], threshold[first]
        pairs = swept_pairs(m, d, p, group, motion, ~touching, margin, reach)
        parts.append(contacts(m, d, p, group, pairs, source[first]))
    dist, normal, pos, exists = (torch.cat([x.flatten(0, 1) for x in part]) for part in zip(*parts, strict=True))
    taken = torch.cat([part[3].any(1) for part in parts])
    at = p.row.clamp(max=len(dist) - 1)
    return Foreseen(
        dist[at],
        normal[at],
        pos[at],
        torch.nn.functional.pad(exists, (0, 1))[p.row],
        torch.nn.functional.pad(taken, (0, 1))[p.pair],
    )


def motions(m: Model, d: Data) -> Motion:
    """How all geoms move in a time step, by the velocities at its beginning."""
    body = m.plan.collision.geom_body[: m.ngeom]
    arm = d.geom_xpos - d.subtree_com[m.plan.kinematics.body_root[body]]
    angular, linear = point_velocity(com_vel(m, d), body, arm)
    # Spheres do not turn.
    turns = (m.plan.collision.geom_type != int(Shape.SPHERE))[:, None]
    return Motion(m.opt.timestep * linear, torch.where(turns, m.opt.timestep * angular, 0.0), m.geom_rbound)


def swept_pairs(
    m: Model,
    d: Data,
    p: SpeculativePlan,
    group: Swept,
    motion: Motion,
    free: Tensor,
    margin: Tensor,
    reach: Tensor,
) -> Pairs:
    """The pairs of a group; free: (n,) bool, those that do not touch."""
    one, two = (Motion(*(x[geom] for x in motion)) for geom in group.geom)
    thin = p.thickness[group.geom].amin(0)
    fast = torch.maximum(one.way(), two.way()) > thin
    near = (planes_near if is_planes(group) else spheres_near)(m, d, group, one, two, reach)
    shape1, shape2 = (shapes(m, d, group, k) for k in (0, 1))
    return Pairs(shape1, shape2, one, two, margin, free & fast & near.detach() & (reach > -1))


def is_planes(group: Swept) -> bool:
    """Whether the first geoms are planes; static."""
    return group.types[0] == (int(Shape.PLANE),)


def spheres_near(m: Model, d: Data, group: Swept, one: Motion, two: Motion, reach: Tensor) -> Tensor:
    """(n,) bool: whether spheres around the geoms come within reach (n,) [m] of each other as their centres move."""
    apart = d.geom_xpos[group.geom[1]] - d.geom_xpos[group.geom[0]]
    way = two.shift - one.shift
    square = dot(way, way)
    time = (-dot(apart, way) / torch.where(square > 0, square, 1.0)).clamp(0, 1)
    return norm(apart + time[:, None] * way) <= m.geom_rbound[group.geom].sum(0) + reach


def planes_near(m: Model, d: Data, group: Swept, one: Motion, two: Motion, reach: Tensor) -> Tensor:
    """(n,) bool: whether spheres around geoms come within reach (n,) [m] of planes."""
    plane, other = group.geom
    normal = d.geom_xmat[plane][..., 2]
    height = dot(d.geom_xpos[other] - d.geom_xpos[plane], normal)
    fall = dot(two.shift - one.shift, normal).clamp(max=0)
    return height + fall <= m.geom_rbound[other] + reach


def shapes(m: Model, d: Data, group: Swept, k: int) -> Core:
    """The first geoms of a group, or with k = 1 the second."""
    c, geom, types = m.plan.collision, group.geom[k], group.types[k]
    found = assembled(types, c.geom_type[geom], d.geom_xpos[geom], d.geom_xmat[geom], m.geom_size[geom])
    return found.replace(hull=c.geom_hull[geom]) if MESH in types else found


class Met(NamedTuple):
    """How n pairs meet.

    shape1, shape2: where they are at times `then (n,)`, when their distance was seen last
    now, found: what they are like then, found: of convex shapes
    time: (n,) when they will touch, rate: (n,) [m] at which they approach in a time step
    hits: (n,) bool, whether they do; ahead: (n,) [m] half of what they are pushed into each other by to see where
    """

    shape1: Core
    shape2: Core
    then: Tensor
    now: Meeting
    found: Closest | None
    time: Tensor
    rate: Tensor
    hits: Tensor
    ahead: Tensor


def contacts(
    m: Model, d: Data, p: SpeculativePlan, group: Swept, pairs: Pairs, source: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dist (n, k) [m], normal (n, k, 3), pos (n, k, 3) [m] and exists (n, k) bool of the contacts of a group."""
    hulls = next(iter(m.plan.collision.hulls), None)
    met = meeting(m, pairs, is_planes(group), hulls)
    point1, point2, exists = (x[:, : group.contacts] for x in points(met, group.contacts > 1, hulls))
    exists = exists & met.hits[:, None]
    point1 = taken_back(pairs.shape1, pairs.one, met.then, point1)
    point2 = taken_back(pairs.shape2, pairs.two, met.then, point2)
    pos, seen = between(m, d, p, group, pairs, point1, point2)
    dist = effective_distance(m, pairs.margin, met.time, met.rate, source)
    there = exists & seen
    dist = torch.where(met.hits, dist, 0.0)[:, None].expand_as(there)
    normal = met.now.normal[:, None].expand_as(pos)
    return dist, normal, torch.where(there[..., None], pos, 0.0), there


def meeting(m: Model, pairs: Pairs, planes: bool, hulls: Hulls | None) -> Met:
    """How pairs meet; planes: whether the first of each is one, static."""
    shape1, shape2, one, two, margin, asked = pairs
    tolerance = (torch.zeros_like(margin) + m.opt.ccd_tolerance).detach()

    def measured(first: Core, second: Core, active: Tensor, tolerance: Tensor) -> tuple[Meeting, Closest | None]:
        if planes:
            return above(first, second, hulls), None
        return apart(first, second, active, m.opt.ccd_iterations, tolerance, hulls)

    def search(given: tuple[Pairs, Meeting, Tensor]) -> Impact:
        (first, second, one, two, margin, asked), begin, tolerance = given

        def measure(time: Tensor, active: Tensor) -> Meeting:
            return measured(advanced(first, one, time), advanced(second, two, time), active, tolerance)[0]

        return time_of_impact(measure, begin, one, two, asked, margin, tolerance)

    begin, _ = measured(shape1, shape2, asked, tolerance)
    asked = asked & (begin.dist > margin).detach()
    fixed = (
        Pairs(detach(shape1), detach(shape2), *tree.map(Tensor.detach, (one, two, margin)), asked),
        tree.map(Tensor.detach, begin),
        tolerance,
    )
    impact: Impact = each(search, fixed, where=asked, otherwise=lambda x: nowhere(x[1]))
    ended1, ended2 = advanced(shape1, one, impact.time), advanced(shape2, two, impact.time)
    ended, _ = measured(ended1, ended2, impact.hits, tolerance)
    left = ended.dist - margin - goal(begin.dist, margin)
    then = differentiable(impact, left, closing(ended, ended1, ended2, one, two))
    later1, later2 = advanced(shape1, one, then), advanced(shape2, two, then)
    now, found = measured(later1, later2, impact.hits, tolerance)
    rate = closing(now, later1, later2, one, two)
    time, hits = arrival(impact, then, now.dist - margin, begin.dist - margin, rate)
    passed = (begin.dist - now.dist) / torch.where(impact.time > 0, then, 1.0)
    rate = torch.where(impact.time > 0, torch.maximum(rate, passed), rate)
    ahead = now.dist + 0.5 * (rate * (1 - time) + tolerance)
    return Met(later1, later2, then, now, found, time, rate, hits & (rate > 0).detach(), ahead)


def points(met: Met, many: bool, hulls: Hulls | None) -> tuple[Tensor, Tensor, Tensor]:
    """Points (n, k, 3) [m] of both shapes where these are about to touch, and which there are, (n, k) bool.

    many: whether more than one point is looked for, static
    """
    if met.found is not None:
        return touching(met.shape1, met.shape2, met.found, met.ahead, many, hulls)
    point2, exists = resting(met.shape2, met.shape1, met.ahead, hulls)
    normal = met.now.normal[:, None]
    height = dot(point2 - met.shape1.pos[:, None], normal)
    return point2 - height[..., None] * normal, point2, exists


def nowhere(begin: Meeting) -> Impact:
    """What stands for the end of searches that are not made."""
    no = torch.zeros_like(begin.dist, dtype=torch.bool)
    return Impact(torch.zeros_like(begin.dist), no, no.clone())


def above(plane: Core, other: Core, hulls: Hulls | None) -> Meeting:
    """The lowest points of shapes above planes."""
    normal = plane.mat[..., 2]
    point = lowest(other, normal, hulls)
    dist = dot(point - plane.pos, normal)
    return Meeting(dist, normal, point - dist[:, None] * normal, point)


def apart(
    shape1: Core, shape2: Core, active: Tensor, iterations: int, tolerance: Tensor, hulls: Hulls | None
) -> tuple[Meeting, Closest]:
    """The nearest points of convex shapes, those that are `active (n,)`; and how they were found, from the first."""
    one, two, origin = from_first(shape1, shape2)
    reach = torch.full_like(tolerance, torch.inf)
    found = nearest(one, two, active, reach, iterations, tolerance, hulls)
    near = found.nearest
    return Meeting(near.dist, near.normal, near.point1 + origin, near.point2 + origin), found


def arrival(impact: Impact, then: Tensor, gap: Tensor, start: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """When pairs meet (n,), and whether they do (n,) bool; then: (n,) when they were looked at last.

    gap, start: (n,) [m] beyond the margin, then and at time 0; rate: (n,) [m] at which the nearest points approach: a
    search that was tired goes on at that.
    """
    left = gap - goal(start, torch.zeros_like(start))
    moves = rate.detach().abs() > MIN_VALUE
    time = torch.where(impact.tired, then + left / torch.where(moves, rate, 1.0), then)
    late = (rate <= 0) | (gap >= (1 - then) * rate)
    return time, impact.hits & ~(impact.tired & late.detach())


def touching(
    shape1: Core, shape2: Core, found: Closest, ahead: Tensor, many: bool, hulls: Hulls | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Points (n, k, 3) [m] of both shapes where these are about to touch, and which there are, (n, k) bool.

    found: where they are nearest, seen from the first one; ahead: (n,) [m] how far each is pushed along the normal
    many: whether more than one point is looked for, static
    """
    one, two, origin = from_first(shape1, shape2)
    flat = many and may_touch_along_faces(one, two, hulls)
    push = ahead[:, None] * found.nearest.normal
    across1, across2 = off_axis(one, push), off_axis(two, push)
    if flat:
        one, two = one.replace(pos=across1), two.replace(pos=two.pos - across2)
        # Capsules have gone half of the way.
        pushed = shape1.among((Shape.CAPSULE,)) | shape2.among((Shape.CAPSULE,))
        at = several(one, two, found, torch.where(pushed, ahead, 2 * ahead), hulls)
    else:
        at = single(found)
    half = 0.5 * at.dist[..., None] * at.normal[:, None]
    pos = at.pos + origin[:, None]
    if not flat:
        return pos - half, pos + half, at.exists
    turned = push - ahead[:, None] * at.normal
    lines = at.dist[:, 0] != found.nearest.dist
    back1, back2 = (
        torch.where((lines & shape.among((Shape.CAPSULE,)))[:, None], push, turned)[:, None] for shape in (one, two)
    )
    return pos - half - back1, pos + half + back2, at.exists


def off_axis(shape: Core, push: Tensor) -> Tensor:
    """Of how capsules are pushed, (n, 3) [m], what is across their axes; nothing of other shapes."""
    axis = shape.mat[..., 2]
    across = push - dot(axis, push, keepdim=True) * axis
    return torch.where(shape.among((Shape.CAPSULE,))[:, None], across, 0.0)


def between(
    m: Model, d: Data, p: SpeculativePlan, group: Swept, pairs: Pairs, point1: Tensor, point2: Tensor
) -> tuple[Tensor, Tensor]:
    """Where contacts are (n, k, 3) [m], and which pairs of points (n, k, 3) [m] see each other, (n, k) bool.

    A contact is nearer to what moves further; the two would meet nearer to what moves less, and up to there each must
    not run into anything else.
    """
    way1, way2 = pairs.one.way()[:, None, None], pairs.two.way()[:, None, None]
    total = way1 + way2
    share = way1 / torch.where(total > 0, total, 1.0)
    pos, middle = share * point1 + (1 - share) * point2, (1 - share) * point1 + share * point2
    start, end = torch.stack([point1, point2], dim=2), middle[:, :, None].expand(-1, -1, 2, -1)
    hides = group.hides[:, None].expand(-1, point1.shape[1], -1, -1)
    blocked = hidden(m, d, p, start.flatten(0, 2), end.flatten(0, 2), hides.flatten(0, 2))
    return pos, ~blocked.reshape(*point1.shape[:2], 2).any(-1)


def effective_distance(m: Model, margin: Tensor, time: Tensor, rate: Tensor, source: Tensor) -> Tensor:
    """The distances (n,) [m] for which constraints leave the share `time (n,)` of the speed.

    With the stiffness k and the damping b of one step, a step takes off `b + k depth / rate` of the speed, or of the
    speed at its end with the integrator `discrete`.
    rate: (n,) [m] in a time step; source: (n, 2) as in `CollisionPlan`
    """
    h = m.opt.timestep
    _, solref, _, solimp = parameters(m, source, torch.ones_like(time, dtype=torch.bool))
    most = impedance(solimp, torch.zeros_like(time))[2]
    implicit, refsafe = m.opt.integrator == Integrator.DISCRETE, not m.opt.disabled(DisableBit.REFSAFE)
    stiffness, damping = stiffness_damping(solref, most, h, refsafe and not implicit)
    if implicit and refsafe:
        stiffness, damping = settled(solref, most, stiffness, damping, h)
    k, b = h * h * stiffness * most * most, h * damping * most
    soft = k <= MIN_VALUE
    rest = 1 - time - (time * (b + k) if implicit else b)
    depth = rest / torch.where(soft, 1.0, k) * rate
    return margin - torch.where(soft, solimp[:, 2].clamp(min=LEAST_WIDTH), depth)
