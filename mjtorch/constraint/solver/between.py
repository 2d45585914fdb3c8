"""What contacts couple that no block of the second derivative has, and conjugate gradients, which find what it does.

Preconditioned by blocks that have a factor, they multiply by no block: of each vector it is known what the factors
would have made it of, and what is left are the contacts between bodies.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.bodies import BodyRows, Contacts
from mjtorch.control_flow import while_loop
from mjtorch.math.compact import compacted

# The part of the decrease that Newton's method promises that a step may miss in single precision: the next step gains
# it. Half as many conjugate gradients as up to the rounding find that, and no more steps are taken.
ROUGH = 1e-4
# It may miss this part, too, of a decrease for which no step is taken: else a third of all are for being told to stop.
MISSED = 0.01

# What makes a vector (nv,) of a vector.
Product = Callable[[Tensor], Tensor]


@tree.dataclass(kw_only=True)
class Between(tree.Tree):
    """Contacts that push two bodies which dofs move, in a list as long as there are slots.

    slot: (ncon,) which they are, there: (2 ncon,) bool, up to which there are some, twice
    body: (2 ncon,) the first bodies, then the second, other: (2 ncon,) the second, then the first
    wrench: (2, ncon, w, 6) what the rows do to them, signs apart
    """

    slot: Tensor
    there: Tensor
    body: Tensor
    other: Tensor
    wrench: Tensor


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


def listed(c: Contacts, moves: Tensor, wrench: Tensor) -> Between:
    """Those of the contacts of which both bodies are to be found in `moves` (2, ncon); wrench: (2, ncon, w, 6)."""
    slot, there, _ = compacted(moves.all(0), len(c.row))
    body = c.body[:, slot]
    return Between(
        slot=slot,
        there=there.repeat(2),
        body=body.flatten(),
        other=body.flip(0).flatten(),
        wrench=torch.where(there[:, None, None], wrench[:, slot], 0.0),
    )


def couplings(at: Between, rows: BodyRows, weight: Tensor) -> Tensor:
    """The force on each `body` (2 ncon, 6, 6) if the `other` moves, signs apart."""
    (c,) = rows.contacts
    *_, touching = rows.split(weight)
    w = torch.cat([touching, touching.new_zeros(1)])[c.row[at.slot]]
    first, second = at.wrench
    spring = (w[:, :, None, None] * first[..., :, None] * second[..., None, :]).sum(1)
    spring = torch.where(at.there[: len(c.row), None, None], spring, 0.0)
    return torch.cat([spring, spring.mT])


def coupled(at: Between, rows: BodyRows, spring: Tensor, x: Tensor) -> Tensor:
    """What the `couplings` add to `H x` (nv,), of x (nv,)."""
    motion = rows.motion(rows.axis * x[:, None])
    force = torch.where(at.there[:, None], along(spring, motion[at.other]), 0.0)
    return -rows.pushed(torch.zeros_like(motion).index_add(0, at.body, force))


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
