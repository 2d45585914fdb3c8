"""Rows that are too hard for single precision.

A body that turns about its centre of mass has no inverse weight there. A contact elsewhere on it gets the least R of
all, 1e-15, and C balances forces of 1e16 N. Such rows are as good as rigid with an R of `HARDNESS` times the inverse
inertia that they push against, `max_k J_k^2 / M_kk` or more.

In C rows that contradict each other have the same R: with another they would find another balance. So the rows of a
contact, and all that some dof of a softened row answers to as well, get the R of the softest of them; what other bodies
do is not concerned. Where rows of contacts are not stored, it is contacts of one tree that share R, and rows that are
stored, such as welds, do not share theirs with contacts.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint import bodies, parts
from mjtorch.control_flow import if_any
from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Cone, Data, Model
from mjtorch.model.touching import colliders
from mjtorch.smooth.inertia import diagonal_m

# R over inverse inertia that makes a row rigid in single precision.
HARDNESS = 1e-6


def resolved(m: Model, d: Data, J: Tensor, R: Tensor, active: Tensor) -> Tensor:
    """R (nefc,) of rows that are active (nefc,), where too small for single precision replaced by one that is not.

    What no dof answers to adds a cost that nothing can change, of 1e17 and more, beside which single precision sees no
    other: such rows get R = 1, but not those of a cone of which other rows are answered to. J: (n, nv) of all rows, or
    of all but those of contacts if these are not stored
    """
    p, given, diagonal = m.plan.constraint, R.detach(), diagonal_m(m, d).detach()
    push = J.detach().square() / diagonal
    most, least = push.amax(1), softest(push, given[: len(push)])
    if len(push) < len(R):
        touching, by_tree = touching_pushes(m, d, active[-p.nc :], diagonal)
        softened = softest(by_tree, of_slots(m, given[-p.nc :]))
        most, least = torch.cat([most, touching]), torch.cat([least, softened[p.contact.slot]])
    elif p.nc:
        least = shared(m, least)
    if p.nc and m.opt.cone == Cone.ELLIPTIC:
        most = shared(m, most)
    R = torch.where(least > R, least, R)
    return torch.where((most == 0) & (R < HARDNESS), 1.0, R)


def shared(m: Model, x: Tensor) -> Tensor:
    """Numbers of rows (nefc,), those of contacts replaced by the largest of all rows of the contact."""
    nc = m.plan.constraint.nc
    return torch.cat([x[:-nc], of_slots(m, x[-nc:])[m.plan.constraint.contact.slot]])


def of_slots(m: Model, x: Tensor) -> Tensor:
    """The largest of the numbers, not negative, of the rows of contacts (nc,) of each slot (ncon,)."""
    return F.pad(x, (0, 1))[m.plan.constraint.contact.row].amax(1)


def softest(push: Tensor, R: Tensor) -> Tensor:
    """The least R (n,) that rows may have; zero: any.

    push: (n, k) the inverse inertia that rows push against, by dof, or by tree
    """
    low = HARDNESS * push.amax(1) > R

    def softened() -> Tensor:
        rigid = torch.where(low[:, None], push, 0.0).amax(0)
        return HARDNESS * torch.where(push > 0, rigid, 0.0).amax(1)

    return if_any(low.any(), softened, torch.zeros_like(R)) if len(R) else R


def touching_pushes(m: Model, d: Data, active: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """What rows of contacts (nc,) push against, of which that says which are active, and by contact and tree.

    It is asked for of those of geoms that are `rigid` alone: of others next to nothing, but more. diagonal: (nv,) of M;
    returns (nc,) and (ncon, ntree)
    """
    p, (plan,) = m.plan.constraint, m.plan.solver.parts
    asked = p.rigid[colliders(m, d)[: len(p.contact.row)]].any(1)[p.contact.slot]
    c, cdof = tree.map(torch.Tensor.detach, (bodies.contacts(m, d, active & asked), d.cdof))
    nothing = torch.zeros_like(active, dtype=diagonal.dtype)
    push = if_any((active & asked).any(), lambda: parts.of_contacts(plan, c, cdof).largest(diagonal)[c.place], nothing)
    push = torch.where(asked, push, MIN_VALUE)
    touches = (c.tree[..., None] == torch.arange(m.ntree, device=push.device)).any(0)
    return push, torch.where(touches, of_slots(m, push)[:, None], 0.0)
