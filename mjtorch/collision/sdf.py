"""Contacts of signed distance fields with convex geoms and with each other (mjc_SDF).

The distance field of a mesh is what an octree of it says: inside a cell, what is interpolated between its corners. That
of a plugin has a formula. From
points spread over where the boxes of two geoms overlap, C goes down the gradient of a sum of both distances, then one
step down the larger of both, which is the distance that it reports, negative inside both geoms. Each point that ends
there is a contact.

Where the points end is an accident of the steps that were taken, not the solution of an equation. So derivatives are
those of all the steps, whose lengths count as constants: what finite differences of C give, where no length changes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.contact_points import ContactPoints, Solid
from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.control_flow.map import each
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math import shape as shapes
from mjtorch.math.shape import Shape, parts
from mjtorch.math.value import value_of
from mjtorch.math.vector import MIN_VALUE, basis, dot, norm, normalize
from mjtorch.model.plan.geom_pairs import SDF
from mjtorch.model.plan.sdf import Fields, Side
from mjtorch.smooth.distance_field import Sample, sampled

# Of the line search: the least length of a step, and the least decrease for it, relative to what the gradient promises.
SHORTEST, DECREASE = 1e-4, 0.1


@tree.dataclass(kw_only=True)
class Field(tree.Tree):
    """The distance fields of geoms, one of each of n pairs.

    pos: (n, 3) [m], mat: (n, 3, 3), size: (n, 3) [m]
    center, half: (n, 3) [m] the box that a geom is in, in its own frame
    type: (n,) mjtGeom of each, types: static, those that there are
    fields: (n,) those that are signed distance fields, none where there are none
    """

    pos: Tensor
    mat: Tensor
    size: Tensor
    center: Tensor
    half: Tensor
    type: Tensor
    fields: tuple[Fields, ...]
    types: tuple[int, ...] = tree.field(static=True)


class Meeting(NamedTuple):
    """Two distance fields of each of n pairs, and where these are to each other.

    turn: (n, 3, 3) and shift: (n, 3) [m], from the frame of the first to that of the second
    """

    first: Field
    second: Field
    turn: Tensor
    shift: Tensor


class Descent(NamedTuple):
    """Where the descents of k points of n pairs are.

    start: (n, k, 3) [m] from where, slope: (n, k, 3) along which gradient, value: (n, k) from which objective a step is
    tried, and rate: (n, k) the length of the next try, relative to the gradient
    step: (n, k) how many steps were taken; -1: none was tried
    rates: (n, k, s) those of the steps that were taken, zero for others
    """

    start: Tensor
    slope: Tensor
    value: Tensor
    rate: Tensor
    step: Tensor
    rates: Tensor


def sdf_field(solid: Solid, side: Side, types: tuple[int, ...], type: Tensor) -> Field:
    """Geoms of these `types`, of each its `type (n,)`, as distance fields."""
    box, round, radius = parts(type, solid.size)
    half = side.half + box + round + radius[:, None]
    return Field(
        pos=solid.pos,
        mat=solid.mat,
        size=solid.size,
        center=side.center,
        half=half,
        type=type,
        fields=side.fields,
        types=types,
    )


def sdf_contacts(
    grid: Tensor, first: Field, second: Field, near: Tensor, spread: Tensor, iterations: int
) -> ContactPoints:
    """The contacts of n pairs of geoms, of which the second ones are distance fields.

    grid: of `Model`; near: (n,) bool, pairs that may touch; spread: (k, 3) where points start, from 0 to 1 along the
    edges of a box; iterations: mjOption.sdf_iterations
    """
    pair = meeting(first, second)
    start, overlap = starts(pair, spread)
    active = near & overlap

    def search(pairs: tuple[Meeting, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return searched(grid.detach(), *pairs, iterations)

    def stays(pairs: tuple[Meeting, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return pairs[1].new_zeros((*pairs[1].shape[:2], iterations + 1)), pairs[1].clone()

    rates, end = each(search, tree.map(Tensor.detach, (pair, start, active)), where=active, otherwise=stays)
    point = value_of(end, followed(grid, pair, start, rates))
    one, two = both(grid, pair, point)
    dist = torch.maximum(one.distance, two.distance)
    x = basis(point, 1, 0, 0).expand_as(point)
    inward = normalize(normalize(two.gradient, x)[0] - normalize(one.gradient, x)[0], -x)[0]
    return placed(second, point, dist, inward, active[:, None] & first_seen(point, dist))


def meeting(first: Field, second: Field) -> Meeting:
    """Where fields are to each other."""
    shift = ((first.pos - second.pos)[:, None] @ second.mat)[:, 0]
    return Meeting(first, second, second.mat.mT @ first.mat, shift)


def placed(field: Field, point: Tensor, dist: Tensor, inward: Tensor, exists: Tensor) -> ContactPoints:
    """Contacts in the world, at points (n, k, 3) [m] of the frames of the fields; inward: (n, k, 3) their normals."""
    normal = inward @ field.mat.mT
    pos = field.pos[:, None] + point @ field.mat.mT + 0.5 * dist[..., None] * normal
    return ContactPoints(dist, pos, normal, exists)


def first_seen(point: Tensor, dist: Tensor) -> Tensor:
    """Which points (n, k, 3) are inside both geoms, (n, k) bool, and not where an earlier one is."""
    point, inside = point.detach(), dist <= 0
    same = norm(point[:, :, None] - point[:, None]) < MIN_VALUE
    earlier = torch.ones(same.shape[1:], dtype=torch.bool, device=same.device).tril(-1)
    return inside & ~(same & earlier & inside[:, None]).any(-1)


def starts(pair: Meeting, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Where points start (n, k, 3) [m], in the frame of the second geom, and whether (n,) the boxes overlap.

    They are spread over what the boxes of both geoms have in common, along the axes of the first.
    """
    first, second, turn, shift = pair
    center = ((second.center - shift)[:, None] @ turn)[:, 0]
    half = (turn.abs().mT @ second.half[..., None])[..., 0]
    low = torch.maximum(first.center - first.half, center - half)
    high = torch.minimum(first.center + first.half, center + half)
    point = low[:, None] + (high - low)[:, None] * spread
    return point @ turn.mT + shift[:, None], (high >= low).all(-1)


def both(grid: Tensor, pair: Meeting, point: Tensor) -> tuple[Sample, Sample]:
    """The distances of points (n, k, 3) in the frame of the second geom: from that geom, and from the first."""
    there = sample(grid, pair.first, (point - pair.shift[:, None]) @ pair.turn)
    return sample(grid, pair.second, point), Sample(there.distance, there.gradient @ pair.turn.mT)


def searched(grid: Tensor, pair: Meeting, start: Tensor, active: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """How long the steps from `start (n, k, 3)` down are, (n, k, iterations + 1), and where they end (n, k, 3) [m].

    active: (n,) bool, pairs of interest; others stay where they are
    """
    place = torch.arange(iterations + 1, device=start.device)

    def going(state: Descent) -> Tensor:
        return state.step <= iterations

    def advance(state: Descent) -> Descent:
        point = state.start - state.rate[..., None] * state.slope
        one, two = both(grid, pair, point)
        value = objective(one.distance, two.distance, state.step == iterations)
        promised = DECREASE * state.rate * dot(state.slope, state.slope)
        tried = going(state) & ((state.rate <= SHORTEST) | (value - state.value <= -promised))
        up = tried & (value > state.value)
        taken = tried & ~up
        # A step that leads up is not taken, and ends the first descent: the second one begins where that is.
        step = torch.where(up & (state.step < iterations), iterations - 1, state.step + tried.long())
        is_last = step == iterations
        here = taken[..., None]
        return Descent(
            start=torch.where(here, point, state.start),
            slope=torch.where(here, slope(one, two, is_last), state.slope),
            value=torch.where(taken, objective(one.distance, two.distance, is_last), state.value),
            rate=torch.where(up, 0.0, torch.where(taken, 1.0, 0.5 * state.rate)),
            step=step,
            rates=torch.where(here & (place == state.step[..., None]), state.rate[..., None], state.rates),
        )

    zero = torch.zeros_like(start[..., 0])
    initial = Descent(
        start=start.contiguous(),
        slope=torch.zeros_like(start),
        value=zero + torch.inf,
        rate=zero,
        step=torch.where(active[:, None], -1, iterations + 1).expand(zero.shape).contiguous(),
        rates=zero[..., None].expand(*zero.shape, iterations + 1).contiguous(),
    )
    final = while_loop(lambda state: going(state).any(), advance, initial)
    return final.rates, final.start


def followed(grid: Tensor, pair: Meeting, start: Tensor, rates: Tensor) -> Tensor:
    """Where steps of given lengths `rates (n, k, s)` lead from `start (n, k, 3)` [m]."""
    last = rates.shape[-1] - 1

    def advance(i: Tensor, point: Tensor) -> Tensor:
        one, two = both(grid, pair, point)
        return point - rates.index_select(-1, i[None]) * slope(one, two, i == last)

    return fori_loop(0, last + 1, advance, start)


def objective(one: Tensor, two: Tensor, is_last: Tensor) -> Tensor:
    """What a descent minimises, of two distances: in its last step the larger one."""
    larger = torch.maximum(one, two)
    return torch.where(is_last, larger, one + two + larger.abs())


def slope(one: Sample, two: Sample, is_last: Tensor) -> Tensor:
    """The gradient (n, k, 3) of `objective`."""
    is_one = one.distance > two.distance
    larger = torch.where(is_one[..., None], one.gradient, two.gradient)
    positive = (torch.where(is_one, one.distance, two.distance) > 0)[..., None]
    total = one.gradient + two.gradient + torch.where(positive, larger, -larger)
    return torch.where(is_last[..., None], larger, total)


def sample(grid: Tensor, field: Field, point: Tensor) -> Sample:
    """The distances of points (n, k, 3) [m] in the frames of n geoms, and their gradients."""
    found = [(kind, _sample_type(kind, grid, field, point)) for kind in field.types]
    (_, result), *others = found
    for kind, of_type in others:
        mine = (field.type == kind)[:, None]
        result = Sample(
            torch.where(mine, of_type.distance, result.distance),
            torch.where(mine[..., None], of_type.gradient, result.gradient),
        )
    return result


def _sample_type(kind: int, grid: Tensor, field: Field, point: Tensor) -> Sample:
    if kind == SDF:
        (fields,) = field.fields
        return sampled(grid, fields, point)
    shape = Shape(kind)
    # The sizes of other types may be zero.
    size = field.size if len(field.types) == 1 else torch.where((field.type == kind)[:, None], field.size, 1.0)
    return Sample(shapes.distance(shape, size[:, None], point), shapes.gradient(shape, size[:, None], point))
