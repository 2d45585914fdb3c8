"""What carries that which touches in contacts: bodies, and how far each moves a contact (mj_contactJacobian)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.math.triangle import nearest_on_simplex
from mjtorch.math.vector import basis
from mjtorch.model import Data, Model
from mjtorch.model.touching import colliders
from mjtorch.smooth.grid import nodes_between


def moved(m: Model, d: Data, there: Tensor) -> Tensor:
    """How far (ncon, nv) dofs move what touches second, less how far what touches first; there: (ncon, 1, 1) bool."""
    p = m.plan.constraint.contact
    if m.plan.collision.corner.shape[0]:
        number, share = carried(m, d)
        return torch.where(there, p.geom_dof[number] * share[..., None], 0.0).sum(1)
    first, second = (moved_alone(m, number) for number in colliders(m, d).unbind(1))
    return torch.where(there.squeeze(1), second - first, 0.0)


def moved_alone(m: Model, number: Tensor) -> Tensor:
    """How far (n, nv) dofs move a collider (n,), if they do not bend it."""
    moves = m.plan.constraint.contact.geom_dof[number]
    for rods in m.plan.constraint.contact.rods:
        moves = torch.where(rods.bends[number], 0.0, moves)
    return moves


def carried(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """What is pushed apart in each contact (ncon, w): what touches first, or its corners, then the other, or its.

    They are numbers of geoms, vertices and, of elements of grids, nodes. And how far each moves the contact (ncon, w):
    1, 0, 0, or where the point nearest to the contact lies between the corners (mj_elemBodyWeight); less than nothing
    for what touches first; none of edges of rods, which turn (`rod_rows`).
    """
    (first, share1), (second, share2) = carriers(m, d)
    for rods in m.plan.constraint.contact.rods:
        one, two = rods.bends[colliders(m, d)].unbind(1)
        share1, share2 = torch.where(one, 0.0, share1), torch.where(two, 0.0, share2)
    return torch.cat([first, second], dim=1), torch.cat([-share1, share2], dim=1)


def touched(m: Model, d: Data) -> Tensor:
    """What carries each contact (ncon, w), by the numbers of `carried`; some may be there several times."""
    return carried(m, d)[0] if m.plan.collision.corner.shape[0] else colliders(m, d)


def carriers(m: Model, d: Data) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Of what touches first, and of the other: what carries it (ncon, k), and their shares in contacts (ncon, k)."""
    number = colliders(m, d)
    second, share2 = corners_of(m, d, number[:, 1])
    if m.plan.collision.pairs_elements:
        return corners_of(m, d, number[:, 0]), (second, share2)
    return (number[:, :1], torch.ones_like(share2[:, :1])), (second, share2)


def corners_of(m: Model, d: Data, number: Tensor) -> tuple[Tensor, Tensor]:
    """The geoms, vertices and nodes (ncon, k) that carry colliders (ncon,), and their shares in contacts."""
    first = m.ngeom + m.nflexvert
    is_element = (number >= first)[:, None]
    corner = m.plan.collision.corner[(number - first).clamp(min=0)]
    between = nearest_on_simplex(d.flexvert_xpos[corner], d.contact.pos)
    share = torch.where(is_element, between, basis(between, 1, *[0] * (corner.shape[1] - 1)))
    carrier = torch.where(is_element, corner + m.ngeom, number[:, None].clamp(max=first - 1))
    for p in m.plan.constraint.contact.grids:
        flex = m.plan.collision.collider_flex[number].clamp(min=0)
        node, part = nodes_between(p, flex, corner, between)
        of_grid, more = is_element & p.is_grid[flex][:, None], node.shape[1] - corner.shape[1]
        carrier = torch.where(of_grid, node, torch.cat([carrier, carrier[:, :1].expand(-1, more)], dim=1))
        share = torch.where(of_grid, part, F.pad(share, (0, more)))
    return carrier, share
