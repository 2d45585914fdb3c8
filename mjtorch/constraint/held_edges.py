"""Rows of edges of flexes that equalities hold at their lengths: each has the dofs of two points, and no others."""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model import Data
from mjtorch.model.plan.bodies import HeldEdgesPlan


@tree.dataclass(kw_only=True)
class HeldEdges(tree.Tree):
    """J (n, nv) of n edges, of which the numbers are stored that need not be zero.

    plan: which these are
    J: (n, w) up to w of each row; zero where there are fewer, and of rows that are not active
    there: () bool, whether any is active
    """

    plan: HeldEdgesPlan
    J: Tensor
    there: Tensor

    def times(self, x: Tensor) -> Tensor:
        """`J x` (n,), of x (nv,)."""
        return (self.J * x[self.plan.dof]).sum(-1)

    def squares_times(self, x: Tensor) -> Tensor:
        """`(J * J) x` (n,), of x (nv,)."""
        return (self.J * self.J * x[self.plan.dof]).sum(-1)

    def add_transpose_times(self, total: Tensor, x: Tensor) -> Tensor:
        """`total + J' x` (nv,), of x (n,)."""
        return total.index_put((self.plan.dof,), self.J * x[:, None], accumulate=True)

    def add_stiffness(self, value: Tensor, weight: Tensor) -> Tensor:
        """`value` (npair,), and what `J' diag(weight) J` has at these pairs of dofs; weight: (n,)."""
        J = self.J.flatten()
        products = J[self.plan.one] * J[self.plan.two] * weight[self.plan.edge]
        return value.index_add(0, self.plan.pair, products)

    def dense(self, nv: int) -> Tensor:
        """J (n, nv)."""
        return self.J.new_zeros(len(self.J), nv).scatter_add(1, self.plan.dof, self.J)


def build(plan: HeldEdgesPlan, d: Data, active: Tensor) -> HeldEdges:
    """The rows at the positions of `d`; active: (n,) bool."""
    J = torch.cat([d.flexedge_J, d.flexedge_J.new_zeros(1)])[plan.entry]
    return HeldEdges(plan=plan, J=torch.where(active[:, None], J, 0.0), there=active.any())
