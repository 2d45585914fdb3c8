"""What contacts couple that no block of the second derivative has, and conjugate gradients, which find what it does.

Preconditioned by blocks that have a factor, they multiply by no block: of each vector it is known what the factors
would have made it of, and what is left are the contacts between bodies.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.bodies import BodyRows, Contacts, halves
from mjtorch.control_flow import while_loop
from mjtorch.math.compact import compacted
from mjtorch.math.vector import cross

# The part of the decrease that Newton's method promises that a step may miss in single precision: the next step gains
# it. Half as many conjugate gradients as up to the rounding find that, and no more steps are taken.
ROUGH = 1e-4
# It may miss this part, too, of a decrease for which no step is taken: else a third of all are for being told to stop.
MISSED = 0.01

# What makes a vector (nv,) of a vector.
Product = Callable[[Tensor], Tensor]


@tree.dataclass(kw_only=True)
class Between(tree.Tree):
    """Pairs of bodies that dofs move, and that push each other, in lists as long as there are slots.

    slot: (ncon,) the contacts of these pairs, there: (ncon,) bool, up to which there are some
    pair: (ncon,) the pair of each
    body: (2, ncon) the bodies of each pair, met: (ncon,) bool, up to which there are some
    arm: one (ncon, 3) [m] from the point that the motion of the first body is about to each contact
    shift: one (ncon, 3) [m] for each pair, from the point that the motion of the second is about to that of the first
    """

    slot: Tensor
    there: Tensor
    pair: Tensor
    body: Tensor
    met: Tensor
    arm: tuple[Tensor, ...]
    shift: tuple[Tensor, ...]


@tree.dataclass(kw_only=True)
class Conjugate(tree.Tree):
    """Conjugate gradients: what is found, what is left, where to go (nv,); square of what is left (); steps ().

    held: (nv,) what `precondition` makes `towards` of
    """

    found: Tensor
    left: Tensor
    towards: Tensor
    held: Tensor
    size: Tensor
    step: Tensor


def listed(c: Contacts, moves: Tensor) -> Between:
    """Those of the contacts of which both bodies are to be found in `moves` (2, ncon)."""
    slot, there, _ = compacted(moves.all(0), len(c.row))
    body = c.body[:, slot]
    # The contacts of two geoms come one after another. Where those of two bodies do not, they are several pairs.
    new = there & torch.cat([torch.ones_like(there[:1]), (body[:, 1:] != body[:, :-1]).any(0)])
    first, met, _ = compacted(new, len(slot))
    return Between(
        slot=slot,
        there=there,
        pair=torch.clamp(new.cumsum(0) - 1, min=0),
        body=body[:, first],
        met=met,
        arm=tuple(arm[0, slot] for arm in c.arm),
        shift=tuple((arm[1] - arm[0])[slot[first]] for arm in c.arm),
    )


def couplings(at: Between, rows: BodyRows, weight: Tensor) -> Tensor:
    """The force on the first body of each pair if the second moves (ncon, 6, 6), signs apart."""
    (c,) = rows.contacts
    *_, touching = rows.split(weight)
    spring = halves(c.springs(touching)[at.slot], at.arm)
    # Said where it is added, zeros are not added.
    total = torch.zeros_like(spring).index_add(0, at.pair, torch.where(at.there[:, None], spring, 0.0))
    total = total[:, rows.bodies.symmetric].unflatten(1, (-1, rows.axis.shape[1]))
    for shift in at.shift:
        angular, linear = total.split(3, dim=-1)
        total = torch.cat([angular + cross(shift[:, None], linear), linear], dim=-1)
    return torch.where(at.met[:, None, None], total, 0.0)


def coupled(at: Between, rows: BodyRows, spring: Tensor, x: Tensor) -> Tensor:
    """What the `couplings` add to `H x` (nv,), of x (nv,)."""
    motion = rows.motion(x)
    first, second = at.body
    force = torch.zeros_like(motion)
    for body, one, other in ((first, spring, second), (second, spring.mT, first)):
        force = force.index_add(0, body, torch.where(at.met[:, None], along(one, motion[other]), 0.0))
    return -rows.pushed(force)


def along(spring: Tensor, motion: Tensor) -> Tensor:
    """`spring @ motion` (n, 6), for each of n; sums of three are computed where they are asked for, longer ones not."""
    motion = motion[:, None]
    angular, linear = (spring[..., part] * motion[..., part] for part in (slice(3), slice(3, None)))
    return angular.sum(2) + linear.sum(2)


def enough(x: Tensor, near: Tensor, dtype: torch.dtype, negligible: Tensor | None) -> Tensor:
    """How small () the square of what is left of x (nv,) has to be, for a problem that is given in `dtype`.

    near: (nv,) what the blocks make of x; negligible: as for `curvature.hessian_solve`
    """
    if negligible is not None and dtype == torch.float32:
        return torch.maximum(ROUGH * (x @ near), 2 * MISSED * negligible)
    return torch.finfo(dtype).eps * (x @ near)


def conjugate_gradients(
    x: Tensor,
    near: Tensor,
    precondition: Product,
    product: Callable[[Tensor, Tensor], Tensor],
    least: Tensor,
    turns: int = 1,
) -> Tensor:
    """`H^-1 x` (nv,), from `near`, which `precondition` gives for x, until the square of what is left is `least`.

    product: `H y`, of y (nv,) and of what `precondition` would make y of
    turns: how many times as many steps there are at most as x has numbers
    """

    def go_on(s: Conjugate) -> Tensor:
        return (s.size > least) & (s.step < turns * len(x))

    def body(s: Conjugate) -> Conjugate:
        image = product(s.towards, s.held)
        length = s.size / (s.towards @ image)
        left = s.left - length * image
        nearer = precondition(left)
        size = left @ nearer
        turn = size / s.size
        return Conjugate(
            found=s.found + length * s.towards,
            left=left,
            towards=nearer + turn * s.towards,
            held=left + turn * s.held,
            size=size,
            step=s.step + 1,
        )

    step = torch.zeros_like(least, dtype=torch.int64)
    start = Conjugate(found=torch.zeros_like(x), left=x, towards=near, held=x, size=x @ near, step=step)
    return while_loop(go_on, body, start).found
