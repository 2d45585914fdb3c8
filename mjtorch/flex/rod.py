"""Elastic rods: lines that resist bending and twist (modeling.rst, "Rods").

Each edge carries a frame that is transported in time, without turning about the edge, and that a joint turns by an
angle (Bergou et al., "Discrete elastic rods", 2008, and "Discrete viscous threads", 2010). Edges e0, e1 that are
neighbours, of lengths l0, l1, are bent by `2 e0 x e1 / (l0 l1 + e0 . e1)`, and twisted by what their frames differ by
about the second, after the first has been turned onto it. Their energy is that of two springs across, in either frame
half of it, and one along.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.math import quaternion as quat
from mjtorch.math.vector import MIN_VALUE, basis, cross, dot, normalize
from mjtorch.model import Data, Model
from mjtorch.model.plan.flex_rod import RodPlan


@tree.dataclass(kw_only=True)
class Frames(tree.Tree):
    """How edges lie.

    edge, along: (n, 3) edges [m] and their directions; length: (n, 1) [m]
    across: (n, 3) the frames as they have been transported
    turned: (n, 3) [1/m] by how much transport turns them about an edge, per motion of it
    twist: (k,) [rad] of the second of each pair of frames against the first
    """

    edge: Tensor
    along: Tensor
    length: Tensor
    across: Tensor
    turned: Tensor
    twist: Tensor


def rod_memory(d: Data, p: RodPlan, pos: Tensor) -> Tensor:
    """What rods remember: directions and frames of edges, then twists of pairs. pos: (npoint, 3) [m] of points"""
    f = frames(d, p, pos)
    return torch.cat([torch.cat([f.along, f.across], dim=-1).flatten(), f.twist])


def transport(across: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """`across` (n, 3), turned as the direction `start` is turned onto `end` by the shortest way."""
    turn, size = cross(start, end), dot(start, end, keepdim=True)
    return size * across + cross(turn, across) + turn * dot(turn, across, keepdim=True) / more(size)


def more(size: Tensor) -> Tensor:
    """`1 + size` of directions with the inner product `size`, not 0 where they are opposite."""
    return (1 + size).clamp(min=MIN_VALUE)


def frames(d: Data, p: RodPlan, pos: Tensor) -> Frames:
    """The frames of edges between points at `pos` (npoint, 3) [m]; those that no step has left start anew."""
    edge = pos[p.second] - pos[p.first]
    along, length = normalize(edge, basis(pos, 1, 0, 0))
    start, across, anew = remembered(d.plastic[p.place], along)
    across = transport(torch.where(anew, propagated(d, p, along), across), start, along)
    turned = turn_by_transport(start, along, length)
    if p.fixed:
        carried = quat.rotate(p.across0, d.xquat[p.body])
        across, turned = torch.where(p.clamped, carried, across), torch.where(p.clamped, 0.0, turned)
    one, two = p.pair
    moved = transport(across[one], along[one], along[two])
    twist = torch.atan2(dot(cross(moved, across[two]), along[two]), dot(moved, across[two]))
    last = torch.where((anew[one] | anew[two])[:, 0], 0.0, d.plastic[p.twist_place])
    whole = ((last - twist) / (2 * math.pi)).detach().round()
    twist = twist + 2 * math.pi * whole
    return Frames(edge=edge, along=along, length=length, across=across, turned=turned, twist=twist)


def remembered(memory: Tensor, along: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Directions and frames (..., 3) of edges, as they are in `memory (..., 6)`, and which of them start anew (..., 1).

    Those start from the directions `along (..., 3)`.
    """
    start, across = memory.split(3, dim=-1)
    anew = ~((start != 0).any(-1, keepdim=True) & (across != 0).any(-1, keepdim=True))
    return torch.where(anew, along, start), across, anew


def turn_by_transport(start: Tensor, along: Tensor, length: Tensor) -> Tensor:
    """By how much (..., 3) [1/m] transport from the direction `start` turns a frame about its edge, per motion of it.

    along: (..., 3) the direction of the edge, length: (..., 1) [m]
    """
    return cross(start, along) / (more(dot(start, along, keepdim=True)) * length.clamp(min=MIN_VALUE))


def propagated(d: Data, p: RodPlan, along: Tensor) -> Tensor:
    """Directions across edges (n, 3) that follow from the first of each rod without any twist."""
    before = along[p.before]
    turn = quat.normalize(torch.cat([more(dot(before, along, keepdim=True)), cross(before, along)], dim=-1))
    none = basis(turn, 1, 0, 0, 0)[None]
    for lead in p.leads:
        turn = quat.mul(turn, torch.cat([turn, none])[lead])
    first = transport(p.across0, p.along0, along[p.begins])
    if p.fixed:
        first = torch.where(p.clamped, quat.rotate(p.across0, d.xquat[p.body]), first)
    return quat.rotate(first[p.begins], turn)


@tree.dataclass(kw_only=True)
class Bend(tree.Tree):
    """How the edges of pairs are bent.

    edge: (2, k, 3), length: (2, k, 1) [m] of both edges
    bend: (k, 3) by how much; share: (k, 1) [1/m^2] what its change is divided by, 0 where there is nothing to bend
    """

    edge: Tensor
    length: Tensor
    bend: Tensor
    share: Tensor

    @property
    def twisted(self) -> Tensor:
        """How motions of both edges twist them (2, k, 3) [1/m], frames not turning."""
        return self.bend / (2 * self.length.clamp(min=MIN_VALUE))

    @property
    def slopes(self) -> Tensor:
        """Derivatives (2, k, 3) of what the bend is divided by."""
        ratio = self.length.flip(0) / self.length.clamp(min=MIN_VALUE)
        return ratio * self.edge + self.edge.flip(0)

    def rate(self, velocity: Tensor) -> Tensor:
        """How fast the bend changes (k, 3) as the edges do, `velocity` (2, k, 3) [m/s]."""
        one, two = self.edge
        turned = 2 * (cross(one, velocity[1]) - cross(two, velocity[0]))
        return self.share * (turned - self.bend * dot(self.slopes, velocity, keepdim=True).sum(0))

    def forces(self, push: Tensor) -> Tensor:
        """What a force `push` (..., k, 3) on the bend is to both edges (..., 2, k, 3)."""
        one, two = self.edge
        turned = 2 * torch.stack([cross(two, push), -cross(one, push)], dim=-3)
        along = dot(self.bend, push, keepdim=True).unsqueeze(-3)
        return self.share * (turned - self.slopes * along)


def bend_of(edge: Tensor, length: Tensor) -> Bend:
    """`Bend` of edges (2, k, 3) that are `length` (2, k, 1) [m] long."""
    size = length[0] * length[1] + dot(*edge, keepdim=True)
    there = (size >= MIN_VALUE) & (length >= MIN_VALUE).all(0)
    share = torch.where(there, 1 / torch.where(there, size, 1.0), 0.0)
    return Bend(edge=edge, length=length, bend=2 * share * cross(*edge), share=share)


@tree.dataclass(kw_only=True)
class Bends(Bend):
    """How the edges of pairs are bent that carry frames.

    axes: (2, k, 2, 3) across either edge, as its joint turns them
    """

    axes: Tensor

    @property
    def bent(self) -> Tensor:
        """The bend along the axes of both frames (2, k, 2)."""
        return (self.axes @ self.bend[..., None]).squeeze(-1)


def axes(d: Data, p: RodPlan, f: Frames) -> Tensor:
    """The directions across edges (n, 2, 3), as their joints turn them: of the greater half-size of a box first."""
    angle = torch.cat([d.qpos, d.qpos.new_zeros(1)])[p.qpos][:, None]
    beside = cross(f.along, f.across)
    return torch.stack(
        [angle.cos() * f.across + angle.sin() * beside, angle.cos() * beside - angle.sin() * f.across], 1
    )


def bends(d: Data, p: RodPlan, f: Frames) -> Bends:
    """The pairs of edges, turned by the angles of their joints."""
    b = bend_of(f.edge[p.pair], f.length[p.pair])
    return Bends(edge=b.edge, length=b.length, bend=b.bend, share=b.share, axes=axes(d, p, f)[p.pair])


class Pushes(NamedTuple):
    """What pairs do: to their bends (k, 3) [N m], against twist (k,) [N m], and against turns of both frames (2, k)."""

    bend: Tensor
    twist: Tensor
    turn: Tensor


def rod_force(m: Model, d: Data, p: RodPlan, pos: Tensor, velocity: Tensor | None) -> tuple[Tensor, Tensor]:
    """What rods do to their edges (2, n, 3) [N], and to the dofs that turn frames (2, e): springs and dampers."""
    f = frames(d, p, pos)
    b = bends(d, p, f)
    turns = frame_turns(d, p, f)
    stiffness, torsion = stiffnesses(m, p)
    spring = spring_pushes(d, p, b, f.twist, stiffness, torsion)
    damper = Pushes(*map(torch.zeros_like, spring))
    if velocity is not None and p.damped:
        turning = f.length.new_zeros(len(p.first)).index_add(0, p.entry_edge, turns * d.qvel[p.entry_dof])[p.pair]
        moved = (velocity[p.second] - velocity[p.first])[p.pair]
        damper = damper_pushes(b, moved, turning, stiffness, torsion, m.flex_damping[p.flex])
    push = Pushes(*(torch.stack(x) for x in zip(spring, damper, strict=True)))
    pull = -b.forces(push.bend) - push.twist[:, None, :, None] * b.twisted
    roll = torch.stack([push.twist, -push.twist], dim=1) - push.turn
    edge = p.pair.flatten()
    on_edge = pos.new_zeros(2, len(p.first), 3).index_add(1, edge, pull.flatten(1, 2))
    on_frame = pos.new_zeros(2, len(p.first)).index_add(1, edge, roll.flatten(1, 2))
    # To dampers frames do not turn by being transported.
    on_edge = on_edge - torch.stack([f.turned, torch.zeros_like(f.turned)]) * on_frame[..., None]
    return on_edge, on_frame[:, p.entry_edge] * turns


def frame_turns(d: Data, p: RodPlan, f: Frames) -> Tensor:
    """How fast each dof of `RodPlan.entry_dof` turns the frame about its edge (e,)."""
    return torch.where(p.entry_joint > 0, 1.0, dot(f.along[p.entry_edge], d.cdof[p.entry_dof, :3]))


def stiffnesses(m: Model, p: RodPlan) -> tuple[Tensor, Tensor]:
    """Against bending about both axes (k, 2), and against twist (k,) [N m]: second derivatives of the energy."""
    lesser, excess = m.flex_bending[p.bending].unbind(-1)
    return torch.stack([lesser, lesser + excess], dim=-1), 2 * m.flex_bending[p.torsion]


def spring_pushes(d: Data, p: RodPlan, b: Bends, twist: Tensor, stiffness: Tensor, torsion: Tensor) -> Pushes:
    """Derivatives of the energy, of which each frame of a pair has half of what bends. twist: (k,) of frames."""
    angle = torch.cat([d.qpos, d.qpos.new_zeros(1)])[p.qpos]
    bent = b.bent
    tension = stiffness * (bent - p.bent0)
    return Pushes(
        bend=(tension[..., None] * b.axes).sum((0, 2)),
        twist=torsion * (angle[p.pair[1]] - angle[p.pair[0]] + twist),
        turn=tension[..., 0] * bent[..., 1] - tension[..., 1] * bent[..., 0],
    )


def damper_pushes(
    b: Bends, moved: Tensor, turning: Tensor, stiffness: Tensor, torsion: Tensor, damping: Tensor
) -> Pushes:
    """What resists that edges move (2, k, 3) [m/s] and frames turn (2, k) [1/s].

    Of a bend the size is damped, not the direction; all of it where there is none.
    """
    rate = (b.axes @ sized(b, b.rate(moved))[..., None]).squeeze(-1)
    push = sized(b, ((damper_weights(stiffness) * rate)[..., None] * b.axes).sum((0, 2)))
    twist = torsion * (turning[1] - turning[0] + dot(b.twisted, moved).sum(0))
    return Pushes(bend=damping[:, None] * push, twist=damping * twist, turn=torch.zeros_like(turning))


def damper_weights(stiffness: Tensor) -> Tensor:
    """What dampers resist bends with (k, 2): their mean about one axis, the greater about the other."""
    lesser, greater = stiffness.unbind(-1)
    return torch.stack([(lesser * greater).sqrt(), greater], dim=-1)


def sized(b: Bend, x: Tensor) -> Tensor:
    """What of vectors `x` (k, 3), or (2, k, 2, 3), changes the sizes of bends."""
    unit, size = normalize(b.bend, torch.zeros_like(b.bend))
    if x.dim() > unit.dim():
        unit, size = unit[:, None], size[:, None]
    return torch.where(size < MIN_VALUE, x, unit * dot(unit, x, keepdim=True))


def of_points(on_edges: Tensor) -> Tensor:
    """What is of both edges of pairs (2, ..., k, 3) as of their three points (..., k, 9)."""
    one, two = on_edges
    return torch.cat([-one, one - two, two], dim=-1)
