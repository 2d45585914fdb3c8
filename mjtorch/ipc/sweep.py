"""What vertices meet on their way, straight from one place to another, and how far they get."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.control_flow import while_loop
from mjtorch.control_flow.map import each
from mjtorch.ipc.gaps import Gap, Obstacle, gap
from mjtorch.ipc.scene import Scene, of_pairs
from mjtorch.math.vector import norm
from mjtorch.model.plan.ipc import IpcPlan, PairsPlan

# What is left of a gap at most where the way ends, and to what part of it this is found, in so many steps at most.
LEFT, CLOSE, MOST = 0.2, 1e-9, 32
# Shorter ways [m] are none.
STILL = 1e-12


# How far along, whether that is all, and how often this was asked.
State = tuple[Tensor, Tensor, Tensor]


class Arguments(NamedTuple):
    """Vertices at `point`, and their `way (n, k, 3)` [m], on which gaps `dist (n,)` shrink by `speed (n,)` at most."""

    point: Tensor
    way: Tensor
    dist: Tensor
    speed: Tensor
    obstacle: tuple[Obstacle, ...]


def gaps(p: IpcPlan, s: Scene, x: Tensor) -> Gap:
    """Of all pairs, whose vertices are at `x (n, 3)` [m]; weights (p, 4), 0 of vertices that are none."""
    found = [gap(q.kind, x[q.point], o) for q, o in zip(p.pairs, s.obstacles, strict=True)]
    weight = [torch.nn.functional.pad(g.weight, (0, 4 - g.weight.shape[1])) for g in found]
    none = x[:0]  # there may be no pairs
    dist, normal = torch.cat([none[:, 0], *(g.dist for g in found)]), torch.cat([none, *(g.normal for g in found)])
    return Gap(dist, normal, torch.cat([x.new_zeros(0, 4), *weight]))


def meeting(p: IpcPlan, s: Scene, dist: Tensor, way: Tensor) -> Tensor:
    """(p,) bool: what may come near on the `way (n, 3)` [m], from gaps `dist (p,)` [m] (mjc_candidates).

    Vertices that lie on each other already are left alone.
    """
    closer = torch.cat([way[:0, 0], *(closing(q, way[q.point]) for q in p.pairs)])
    near = dist < s.reach + closer
    return near & ((dist > 0) | ~s.mutual)


def closing(q: PairsPlan, way: Tensor) -> Tensor:
    """By how much (n,) [m] gaps shrink on the `way (n, k, 3)` [m], at most."""
    one, two = way[:, : q.leading], way[:, q.leading :]
    return norm(one[:, :, None] - two[:, None]).amax((1, 2)) if two.shape[1] else norm(one).amax(1)


def advance(p: IpcPlan, s: Scene, x: Tensor, way: Tensor, dist: Tensor, met: Tensor) -> tuple[Tensor, Tensor]:
    """How far along the `way (n, 3)` [m] from `x (n, 3)` pairs get, as a part of it (p,), and which (p,) come near.

    Of each gap, now `dist (p,)`, a fifth is left. Others than those that are `met (p,)` get to the end (mjc_advance).
    """
    found, near = [], []
    for q, obstacle, itself, g, is_met in zip(
        p.pairs, s.obstacles, *(of_pairs(p, y) for y in (p.itself, dist, met)), strict=True
    ):
        moved = way[q.point]
        relative = torch.where(itself[:, None, None], moved - moved.mean(1, keepdim=True), moved)
        one, two = norm(relative[:, : q.leading]).amax(1), relative[:, q.leading :]
        speed = one + norm(two).amax(1) if two.shape[1] else one
        comes = is_met & (speed >= STILL) & (g > 0) & (speed > (1 - LEFT) * g)
        arguments = Arguments(x[q.point], moved, torch.where(comes, g, 1.0), torch.where(comes, speed, 1.0), obstacle)
        found.append(each(partial(reached, q.kind), arguments, where=comes, otherwise=to_the_end))
        near.append(comes)
    return torch.cat([way[:0, 0], *found]), torch.cat([met[:0], *near])


def to_the_end(arguments: Arguments) -> Tensor:
    """What pairs that never come near reach."""
    return torch.ones_like(arguments.dist)


def reached(kind: str, y: Arguments) -> Tensor:
    """How far (n,) pairs get, as a part of the way."""

    def go_on(state: State) -> Tensor:
        return (~state[1]).any() & (state[2] < MOST)

    def body(state: State) -> State:
        part, done, count = state
        room = gap(kind, y.point + part[:, None, None] * y.way, y.obstacle).dist - LEFT * y.dist
        there = done | (room <= CLOSE * y.dist)
        further = torch.where(there, part, part + room / y.speed)
        return further.clamp(max=1.0), there | (further >= 1), count + 1

    start = torch.zeros_like(y.dist)
    return while_loop(go_on, body, (start, start > 0, torch.zeros_like(start[0], dtype=torch.int64)))[0]
