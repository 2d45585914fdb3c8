"""When geoms meet that move on as they do: conservative advancement (doc: computation, "Speculative contacts").

All is measured in time steps: displacements instead of velocities, and times from 0 to 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.support import Core, where_rows
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math import quaternion
from mjtorch.math.vector import MIN_VALUE, cross, dot, norm

# Times at which a search stops, as shares of the first distance: where it wants to be, and how much further is enough.
CLEARANCE, ENOUGH = 0.02, 0.01
# After so many advances the rest of the way is taken in one.
ADVANCES = 16


class Motion(NamedTuple):
    """How n geoms move in a time step.

    shift: (n, 3) [m] of the centres, turn: (n, 3) [rad] about these; radius: (n,) [m] of spheres around them
    """

    shift: Tensor
    turn: Tensor
    radius: Tensor

    def spin(self) -> Tensor:
        """(n,) [m] how far turning moves what is furthest from the centre, at most."""
        return norm(self.turn) * self.radius

    def way(self) -> Tensor:
        """(n,) [m] how far any point moves, at most."""
        return norm(self.shift) + self.spin()

    def of(self, arm: Tensor) -> Tensor:
        """(n, 3) [m] how points `arm (n, 3)` from the centres move."""
        return self.shift + cross(self.turn, arm)


class Meeting(NamedTuple):
    """Where n pairs are nearest: dist (n,) [m], normal (n, 3) from 1 to 2, points (n, 3) [m] on both."""

    dist: Tensor
    normal: Tensor
    point1: Tensor
    point2: Tensor


class Sweep(NamedTuple):
    """The search of n pairs.

    time: (n,) at which they are looked at; now: what they are like then
    """

    time: Tensor
    now: Meeting


class Impact(NamedTuple):
    """How n searches ended.

    time: (n,); hits: (n,) bool; tired: (n,) bool, before they were near enough
    """

    time: Tensor
    hits: Tensor
    tired: Tensor


# Where pairs are nearest at times (n,), those of which it is asked (n,) bool.
Measure = Callable[[Tensor, Tensor], Meeting]


def advanced(shape: Core, motion: Motion, time: Tensor) -> Core:
    """The shapes at times (n,)."""
    turned = quaternion.to_mat(quaternion.from_rotation_vector(time[:, None] * motion.turn)) @ shape.mat
    return shape.replace(pos=shape.pos + time[:, None] * motion.shift, mat=turned)


def taken_back(shape: Core, motion: Motion, time: Tensor, point: Tensor) -> Tensor:
    """Where points (n, k, 3) [m] that move with the shapes, and are given at times (n,), were at time 0."""
    arm = point - (shape.pos + time[:, None] * motion.shift)[:, None]
    back = quaternion.from_rotation_vector(-time[:, None] * motion.turn)
    return shape.pos[:, None] + quaternion.rotate(arm, back[:, None])


def goal(start: Tensor, margin: Tensor) -> Tensor:
    """(n,) [m] how far beyond the margin pairs are that count as met, from their distances at time 0."""
    return CLEARANCE * (start - margin)


def closing(now: Meeting, shape1: Core, shape2: Core, one: Motion, two: Motion) -> Tensor:
    """(n,) [m] how much nearer to each other, along the normal, the nearest points of shapes come in a time step."""
    return dot(now.normal, one.of(now.point1 - shape1.pos) - two.of(now.point2 - shape2.pos))


def time_of_impact(
    measure: Measure, begin: Meeting, one: Motion, two: Motion, active: Tensor, margin: Tensor, tolerance: Tensor
) -> Impact:
    """When n pairs that are further apart than the margin come near enough, each from where it is.

    However a pair turns, in a time `(dist - margin - goal) / rate` it comes no nearer than the goal: so far it goes,
    and is looked at again. It misses if it goes apart before, or if what is left of its ways is shorter than how far
    apart it is. All are constants.

    begin: where they are at time 0; active: (n,) bool, the pairs that are asked about; margin, tolerance: (n,) [m]
    """
    relative, spin, way = one.shift - two.shift, one.spin() + two.spin(), one.way() + two.way()

    def judged(s: Sweep) -> tuple[Tensor, Tensor, Tensor]:
        """Which go on (n,), which miss each other (n,), and at which rate (n,) [m] they approach at most."""
        rate, gap = dot(s.now.normal, relative) + spin, s.now.dist - margin
        near = gap - goal(begin.dist, margin) <= torch.maximum(tolerance, ENOUGH * (begin.dist - margin))
        misses = ((rate <= 0) & ~near) | (gap >= (1 - s.time) * way)
        return active & ~misses & ~near, misses, rate

    def body(carry: tuple[Sweep, Tensor]) -> tuple[Sweep, Tensor]:
        s, count = carry
        on, _, rate = judged(s)
        step = (s.now.dist - margin - goal(begin.dist, margin)) / torch.where(on, rate, 1.0)
        time = torch.where(on, s.time + step, s.time)
        return Sweep(time, where_rows(on, measure(time, on), s.now)), count + 1

    count = torch.zeros((), dtype=torch.long, device=margin.device)
    start = Sweep(torch.zeros_like(begin.dist), begin)
    end, _ = while_loop(lambda carry: judged(carry[0])[0].any() & (carry[1] < ADVANCES), body, (start, count))
    on, misses, _ = judged(end)
    return Impact(end.time, active & ~misses, on)


def differentiable(impact: Impact, left: Tensor, rate: Tensor) -> Tensor:
    """The times (n,) at which searches ended, as functions of where shapes are, of their sizes, and how they move.

    By the theorem of implicit functions: what is left of the way stays what it is.

    left: (n,) [m] beyond the goal at these times, taken for constants; rate: (n,) [m] at which shapes approach then
    """
    moves = ~impact.tired & (impact.time > 0) & (rate.detach() > MIN_VALUE)
    change = (left - left.detach()) / torch.where(moves, rate.detach(), 1.0)
    return impact.time + torch.where(moves, change, 0.0)
