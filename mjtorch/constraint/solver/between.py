"""What contacts couple that no block of the second derivative has, and conjugate gradients, which find what it does.

Preconditioned by blocks that have a factor, they multiply by no block: of each vector it is known what the factors
would have made it of, and what is left are the contacts between bodies.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.bodies import BodyRows
from mjtorch.control_flow import while_loop

# What makes a vector (nv,) of a vector.
Product = Callable[[Tensor], Tensor]


@tree.dataclass(kw_only=True)
class Between(tree.Tree):
    """Contacts that push two bodies which dofs move, in a list as long as there are slots.

    slot: (ncon,) which they are, there: (ncon,) bool, up to which there are some
    body: (2, ncon) the bodies, wrench: (2, ncon, w, 6) what the rows do to them, signs apart
    """

    slot: Tensor
    there: Tensor
    body: Tensor
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


def couplings(at: Between, rows: BodyRows, weight: Tensor) -> Tensor:
    """What couples the bodies of `Between` (ncon, 6, 6): the force on the first if the second moves, signs apart."""
    (c,) = rows.contacts
    *_, touching = rows.split(weight)
    w = torch.cat([touching, touching.new_zeros(1)])[c.row[at.slot]]
    first, second = at.wrench
    spring = (w[:, :, None, None] * first[..., :, None] * second[..., None, :]).sum(1)
    return torch.where(at.there[:, None, None], spring, 0.0)


def coupled(at: Between, rows: BodyRows, spring: Tensor, x: Tensor) -> Tensor:
    """What the `couplings` add to `H x` (nv,), of x (nv,)."""
    motion, there = rows.motion(rows.cdof * x[:, None]), at.there[:, None]
    first, second = at.body
    on_first = torch.where(there, -(spring * motion[second][:, None]).sum(2), 0.0)
    on_second = torch.where(there, -(spring * motion[first][:, :, None]).sum(1), 0.0)
    force = torch.zeros_like(motion).index_add(0, first, on_first).index_add(0, second, on_second)
    return rows.pushed(force)


def conjugate_gradients(
    x: Tensor, near: Tensor, precondition: Product, product: Callable[[Tensor, Tensor], Tensor], tolerance: float
) -> Tensor:
    """`H^-1 x` (nv,), up to the root of `tolerance`, from `near`, which `precondition` gives for x.

    product: `H y`, of y (nv,) and of what `precondition` would make y of
    """
    least = tolerance * (x @ near)

    def go_on(s: Conjugate) -> Tensor:
        return (s.size > least) & (s.step < len(x))

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
