"""The second derivative of the cost as one matrix, of rows that are not stored.

Contacts with the world are a stiffness of bodies (`BodyRows.stiffness`), which costs what the pairs of dofs that move
the same cost, however many contacts there are, and however many dofs each moves. Contacts of two bodies that dofs move
are listed, and have rows.
"""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.bodies import BodyRows, Contacts
from mjtorch.control_flow import fori_loop
from mjtorch.math.compact import compacted

# Rows are stored of one contact in so many slots, and of so many at least; others are made where they are added.
SLOTS_A_PLACE = 8
LEAST_PLACES = 16


@tree.dataclass(kw_only=True)
class Whole(tree.Tree):
    """The contacts by what they add to the second derivative.

    two: (ncon,) bool, those of two bodies that dofs move
    list: (ncon,) where these are, one after another, count: () how many
    first: (k,) the first k of them, there: (k,) bool, up to which there are some
    J: (nfixed + k * w, nv) the rows that are no contact's, and those of these
    stiff: (2, ncon) bool, the bodies that the other contacts make stiff, wrench: (2, ncon, w, 6) what rows do to these
    """

    two: Tensor
    list: Tensor
    count: Tensor
    first: Tensor
    there: Tensor
    J: Tensor
    stiff: Tensor
    wrench: Tensor


def build(rows: BodyRows) -> tuple[Whole, ...]:
    """Of the rows of contacts, if there are some."""
    return tuple(_of_contacts(rows, c) for c in rows.contacts)


def _of_contacts(rows: BodyRows, c: Contacts) -> Whole:
    two, may_be = c.moves.all(0), rows.bodies.joins or rows.bodies.own
    listed, there, _ = compacted(two, len(two))
    most = min(len(two), max(LEAST_PLACES, len(two) // SLOTS_A_PLACE)) if may_be else 0
    first, there, stiff = listed[:most], there[:most], c.moves & ~two
    J = rows.of(c.at(first).replace(there=there))
    return Whole(
        two=two,
        list=listed,
        count=two.sum(),
        first=first,
        there=there,
        J=torch.cat([rows.fixed, J.flatten(0, 1)]),
        stiff=stiff,
        wrench=torch.where(stiff[..., None, None], c.wrench(), 0.0),
    )


def add_gram(whole: tuple[Whole, ...], rows: BodyRows, M: Tensor, weight: Tensor) -> Tensor:
    """`M + J' diag(weight) J` (nv, nv), of weight (nefc,)."""
    p = rows.bodies
    single, fixed, _, touching = rows.split(weight)
    value = torch.zeros_like(M[0, :1]).expand(len(p.row)).index_add(0, p.diagonal, rows.diagonal(single))
    J, H = rows.fixed, M
    for h, c in zip(whole, rows.contacts, strict=True):
        value = value + rows.stiffness(h.stiff, h.wrench, touching)
        by_slot = torch.where(h.two[:, None], torch.cat([touching, touching.new_zeros(1)])[c.row], 0.0)
        H = add_more(h, rows, c, H, by_slot)
        listed = torch.where(h.there[:, None], by_slot[h.first], 0.0)
        J, fixed = h.J, torch.cat([fixed, listed.flatten()])
    H = H + torch.cat([value, value.new_zeros(1)])[p.source]
    return torch.addmm(H, J.mT, fixed[:, None] * J) if len(J) else H


def add_more(h: Whole, rows: BodyRows, c: Contacts, H: Tensor, weight: Tensor) -> Tensor:
    """H (nv, nv) and what the rows of those add that are listed after the first k; weight: (ncon, w) of all."""

    def added(i: Tensor, H: Tensor) -> Tensor:
        slot = h.list.index_select(0, i[None])
        J, w = rows.of(c.at(slot))[0], weight.index_select(0, slot)[0]
        return H + J.mT @ (w[:, None] * J)

    return fori_loop(len(h.first), h.count, added, H) if 0 < len(h.first) < len(h.list) else H
