"""Rows of contacts in scenes of several kinematic trees, by the parts of trees that they touch.

A contact touches two trees at most, so its rows are zero but for the dofs of these. Stored is what they say of parts of
these trees, of `WIDTH` dofs each, and a second derivative is made of blocks, of two parts each, to which contacts add.
What that costs is what the contacts that there are cost, however many trees there are. Between two iterations of
Newton's method only few rows change their weight: the others have been added before.
"""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.bodies import BodyRows, Contacts
from mjtorch.control_flow import each, if_any
from mjtorch.math.vector import cross
from mjtorch.model.plan.parts import WIDTH, PartsPlan


@tree.dataclass(kw_only=True)
class Parts(tree.Tree):
    """The rows of contacts, by the k parts that there are of the two trees which a contact touches.

    plan: the parts of trees
    number: (ncon, k) which parts these are, in ascending order; that which has no dofs where there is none
    J: (ncon, k, w, WIDTH) what the rows say of them, zero where there is none
    """

    plan: PartsPlan
    number: Tensor
    J: Tensor

    def largest(self, diagonal: Tensor) -> Tensor:
        """`max_i J_i^2 / diagonal_i` of each row (ncon * w,), of diagonal (nv,)."""
        own = torch.cat([diagonal, torch.ones_like(diagonal[:1])])[self.plan.dof]
        return (self.J.square() / own[self.number][:, :, None]).amax((1, -1)).flatten()

    def add_blocks(self, blocks: Tensor, weight: Tensor) -> Tensor:
        """`blocks + J' weight J` (nblock, WIDTH * WIDTH), of weight (ncon, w), or (ncon, w, w) that couples rows."""
        there = (self.number < self.plan.none) & (weight != 0).flatten(1).any(1)[:, None]
        left, right = self.J[..., self.plan.row], self.J[..., self.plan.col]
        couples = weight.dim() == 3
        if couples:
            right = (weight[:, None] @ self.J)[..., self.plan.col]
        for k in range(self.number.shape[1]):
            for j in range(k + 1):
                both = (there[:, k] & there[:, j])[:, None]
                block = left[:, j] * right[:, k]
                block = (block if couples else weight[..., None] * block).sum(1)
                # Said to be zero where nothing is, it is neither computed nor added there.
                place = self.plan.block(self.number[:, j], self.number[:, k])
                blocks = blocks.index_add(0, place, torch.where(both, block, 0.0))
        return blocks


@tree.dataclass(kw_only=True)
class Held(tree.Tree):
    """What contacts add to a second derivative, blocks (nblock, WIDTH * WIDTH), at a weight as in `Parts.add_blocks`.

    What is added and taken away again leaves its rounding: less than M, as R is that of `resolved` rows at least.
    """

    weight: Tensor
    blocks: Tensor


def build(plan: PartsPlan, rows: BodyRows) -> tuple[Parts, ...]:
    """The rows of contacts, if there are some."""
    return tuple(of_contacts(plan, c, rows.axis) for c in rows.contacts)


def of_contacts(plan: PartsPlan, c: Contacts, cdof: Tensor) -> Parts:
    """The rows of contacts of two bodies each, where dofs move as `cdof (nv, 6)`; without derivatives."""
    cdof, xs = tree.map(torch.Tensor.detach, (cdof, (c.tree.mT, c.body.mT, c.arm[0].movedim(0, 1), c.direction)))
    motion = torch.cat([cdof, torch.zeros_like(cdof[:1])])[plan.dof].flatten(1)
    side = torch.arange(2, device=cdof.device)[:, None]

    def rows(xs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        tree_id, body, arm, direction = xs
        turned, own = (f(tree_id[:, 0], tree_id[:, 1])[:, None, None] for f in (torch.gt, torch.eq))
        # The tree of the lower number comes first; what touches itself has the second only, with what moves both.
        first, second = plan.moves[body].unbind(1)
        moves = torch.stack([-first, second], dim=1)
        both = torch.where(side[..., None] == 1, (second - first)[:, None], 0.0)
        moves = torch.where(own[..., None], both, torch.where(turned[..., None], moves.flip(1), moves))
        tree_id = torch.where(turned[..., 0], tree_id.flip(1), tree_id)
        arm = torch.where(turned, arm.flip(1), arm)[:, :, None, None]
        direction = direction[:, None, None, :, None]
        number = torch.where(own & (side == 0), plan.none, plan.of_tree[tree_id])

        def of(number: Tensor, moves: Tensor) -> Tensor:
            """The rows (n, 2, k, w, WIDTH) of parts `number` (n, 2, k); moves: (n, 2, k, WIDTH) as in the plan."""
            angular, linear = motion[number].unflatten(-1, (WIDTH, 6)).split(3, dim=-1)
            linear = linear + cross(angular, arm)
            J = (direction[..., -3:] * linear[..., None, :, :]).sum(-1)
            if direction.shape[-1] > 3:
                J = J + (direction[..., :3] * angular[..., None, :, :]).sum(-1)
            return J * moves[..., None, :]

        # Most trees are things of one part.
        J, more = of(number[..., :1], moves[..., :1, :]), number[..., 1:]
        if more.shape[-1]:
            rest = torch.zeros_like(J).repeat(1, 1, more.shape[-1], 1, 1)
            there = (more < plan.none).flatten(1).any(1)
            J = torch.cat([J, if_any(there, lambda: of(more, moves[..., 1:, :]), rest)], dim=2)
        return number.flatten(1), J.flatten(1, 2)

    def nothing(xs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        tree_id, *_, direction = xs
        count = 2 * plan.of_tree.shape[1]
        J = direction.new_zeros(len(tree_id), count, direction.shape[1], WIDTH)
        return torch.full_like(tree_id[:, :1], plan.none).repeat(1, count), J

    number, J = each(rows, tree.map(torch.Tensor.contiguous, xs), where=c.there, otherwise=nothing)
    return Parts(plan=plan, number=number, J=J)


def nothing_held(parts: Parts, couples: bool) -> Held:
    """What is added by contacts of no weight; couples: whether weights couple rows."""
    count, _, width, _ = parts.J.shape
    return Held(
        weight=parts.J.new_zeros(count, *([width] * (2 if couples else 1))),
        blocks=parts.J.new_zeros(parts.plan.nblock, WIDTH * WIDTH),
    )


def changed(parts: Parts, held: Held, weight: Tensor) -> Held:
    """What contacts add at another weight, given what they did: those whose weight is the same cost nothing."""
    return Held(weight=weight, blocks=parts.add_blocks(held.blocks, weight - held.weight))


def add_held(parts: tuple[Parts, ...], rows: BodyRows, M: Tensor, held: tuple[Held, ...], weight: Tensor) -> Tensor:
    """`M + J' diag(weight) J` (nv, nv), of weight (nefc,), where contacts add what is held."""
    single, fixed, *_ = rows.split(weight)
    H = M + torch.diag_embed(rows.diagonal(single))
    for one, found in zip(parts, held, strict=True):
        H = H + found.blocks.flatten()[one.plan.source]
    J = rows.dense_fixed()
    return torch.addmm(H, J.mT, fixed[:, None] * J) if len(fixed) else H
