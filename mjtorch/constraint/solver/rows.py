"""The rows of the constraints as the solvers multiply by them."""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.solver import RowsPlan


@tree.dataclass(kw_only=True)
class Rows(tree.Tree):
    """J (nefc, nv), in which rows that have one dof, such as limits and friction of joints, are a number each.

    plan: which rows these are
    single: (nsingle,) the numbers, rest: (nrest, nv) the other rows
    active: (nrest,) bool
    """

    plan: RowsPlan
    single: Tensor
    rest: Tensor
    active: Tensor

    def times(self, x: Tensor) -> Tensor:
        """`J x` (nefc,), of x (nv,)."""
        # Zero they are anyway; said so, they are not computed.
        rest = torch.where(self.active, self.rest @ x, 0.0)
        if not self.plan.nsingle:
            return rest
        return torch.cat([rest, self.single * x[self.plan.dof]])[self.plan.source]

    def transpose_times(self, x: Tensor) -> Tensor:
        """`J' x` (nv,), of x (nefc,)."""
        if not self.plan.nsingle:
            return x @ self.rest
        single, rest = self.split(x)
        return rest @ self.rest + (self.single * single) @ self.plan.column

    def add_gram(self, M: Tensor, weight: Tensor) -> Tensor:
        """`M + J' diag(weight) J` (nv, nv), of weight (nefc,)."""
        single, rest = self.split(weight)
        if self.plan.nsingle:
            M = M + torch.diag_embed((self.single * self.single * single) @ self.plan.column)
        return torch.addmm(M, self.rest.mT, rest[:, None] * self.rest)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Those of x (nefc,) that belong to `single`, and to `rest`."""
        ordered = x if self.plan.in_order else x[self.plan.order]
        return ordered[: self.plan.nsingle], ordered[self.plan.nsingle :]


def build(plan: RowsPlan, J: Tensor, active: Tensor) -> Rows:
    """The rows of J (nefc, nv), zero where they are not active (nefc,)."""
    single = J[plan.order[: plan.nsingle], plan.dof]
    rest = J[plan.nsingle :] if plan.in_order else J[plan.order[plan.nsingle :]]
    found = Rows(plan=plan, single=single, rest=rest, active=active[:0])
    return found.replace(active=found.split(active)[1])
