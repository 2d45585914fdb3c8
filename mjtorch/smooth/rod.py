"""Contacts of elastic rods: what touches an edge turns it, too."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch import tree
from mjtorch.flex.rod import remembered, turn_by_transport
from mjtorch.math.vector import MIN_VALUE, cross, dot
from mjtorch.model import Data, Model
from mjtorch.model.plan.rod_contacts import RodContactsPlan
from mjtorch.model.touching import colliders


@tree.dataclass(kw_only=True)
class Touched(tree.Tree):
    """Where contacts lie on edges of rods, for both sides of each.

    ends: (ncon, 2, 2, 3) [m] of the edge, edge: (ncon, 2, 3) [m] between them, length: (ncon, 2, 1) [m], not 0
    turn: (ncon, 2, 3) [1/m] by how much transport turns the frame about it, per motion of it
    share: (ncon, 2, 1) how far along it the contact is; arm: (ncon, 2, 3) [m] from there to it, of vertices to the
        surface
    """

    ends: Tensor
    edge: Tensor
    length: Tensor
    turn: Tensor
    share: Tensor
    arm: Tensor


def touched(m: Model, d: Data, p: RodContactsPlan, number: Tensor) -> Touched:
    """`Touched` of the colliders `number (ncon, 2)`."""
    ends, vertex, c = d.flexvert_xpos[p.edge[number]], p.vertex[number], d.contact
    start, edge = ends[..., 0, :], ends[..., 1, :] - ends[..., 0, :]
    length = dot(edge, edge, keepdim=True).clamp(min=MIN_VALUE).sqrt()
    along = edge / length
    place = dot(c.pos[:, None] - start, along, keepdim=True) / length
    share = torch.where(vertex, p.end[number], place.clamp(0, 1))
    # Contacts lie halfway between what touches, and vertices are touched on their own surface.
    depth = 0.5 * c.dist[:, None] * c.frame[:, 0]
    pos = c.pos[:, None] + torch.where(vertex, torch.stack([-depth, depth], dim=1), 0.0)
    arm = pos - (start + share * edge)
    turn = turn_by_transport(remembered(d.plastic[p.place[number]], along)[0], along, length)
    return Touched(ends=ends, edge=edge, length=length, turn=turn, share=share, arm=arm)


def pushes(t: Touched, frame: Tensor, turns: bool) -> tuple[Tensor, Tensor]:
    """What unit forces along `frame (ncon, 3, 3)` do to both ends of edges (ncon, 2, 2, k, 3), and against twist.

    The latter are (ncon, 2, k) [m]; turns: whether k is 6, unit torques about the same directions being the others.
    An edge e turns with `w = e x (v2 - v1) / e^2`, and about itself with its joint, less what transport does (C's
    Jacobians were probed for it). What touches it moves with a point of it, and `w x arm`.
    """
    force, arm = frame[:, None], t.arm[:, :, None]
    along, length = (t.edge / t.length)[:, :, None], t.length[:, :, None]
    swing = (force * dot(along, arm, keepdim=True) - arm * dot(force, along, keepdim=True)) / length
    twist = dot(force, cross(along, arm))
    carried = t.share[..., None] * force
    rest = force - carried
    if turns:
        swing = torch.cat([swing, cross(force, along) / length], dim=2)
        twist = torch.cat([twist, dot(force, along)], dim=2)
        carried, rest = F.pad(carried, (0, 0, 0, 3)), F.pad(rest, (0, 0, 0, 3))
    swing = swing - twist[..., None] * t.turn[:, :, None]
    return torch.stack([rest - swing, carried + swing], dim=2), twist


def rod_directions(m: Model, d: Data, p: RodContactsPlan, point: Tensor, there: Tensor) -> Tensor:
    """What the directions of contacts do to both ends of the edges of both sides, then to their twist (n, 26).

    Of ends wrenches about `point`, of edges that do not bend none; there: (ncon, 1, 1) bool
    """
    number = colliders(m, d)
    t = touched(m, d, p, number)
    push, twist = pushes(t, d.contact.frame, m.plan.constraint.contact.max_dim > 3)
    push = torch.where((p.bends[number] & there)[..., None, None], push, 0.0)
    wrench = torch.cat([cross((t.ends - point)[..., None, :], push), push], dim=-1)
    sides = torch.stack([-wrench[:, 0], wrench[:, 1]], dim=1)
    about = torch.where(there, torch.stack([-twist[:, 0], twist[:, 1]], dim=1), 0.0)
    return torch.cat([sides.movedim(3, 1).flatten(2), about.mT], dim=-1).flatten(0, 1)


def rod_rows(m: Model, p: RodContactsPlan, number: Tensor, row: Tensor, motion: Tensor) -> Tensor:
    """How fast rows (nc, nv) move as dofs move and twist edges of rods.

    number: (nc, 2) colliders of both sides; row: (nc, 26) of `rod_directions`
    """
    wrench, twist = row.split([24, 2], dim=-1)
    ends = m.plan.constraint.contact.geom_dof[m.ngeom + p.edge[number]].flatten(1, 2)
    moved = ((wrench.unflatten(1, (4, 6)) @ motion.mT) * ends).sum(1)
    return moved + (twist[..., None] * p.twists[number]).sum(1)
