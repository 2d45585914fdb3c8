"""What the primal solvers search apart: islands, each with steps of its own, or all at once (mj_solPrimal)."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.constraint.island import components, trees_of_rows
from mjtorch.model import Data, DisableBit, Integrator, Model, Solver
from mjtorch.smooth.inertia import diagonal_m

T = TypeVar("T")

# With more iterations both end, or nearly, whether islands have steps of their own or not.
ENOUGH = {Solver.NEWTON: 10, Solver.CG: 50}
# Sums of each group cost as much as there are groups.
MOST = 8


@tree.dataclass(kw_only=True)
class Groups(tree.Tree):
    """Groups of dofs and rows of which none touches another's.

    Either all are in one group, or each kinematic tree has one, and those which rows join are in that of the first.
    Who is in which is told by numbers, 1 or 0; if there is one group, by none.

    count: static, how many there are
    dof_tree: (nv,) the tree of each dof
    trees: (ntree, count), rows: (nefc, count), all zero if not active, cones: (ncone, count)
    there: (count,) whether there are active rows in it, touched: (nv,) or (1,) whether there are for each dof; bool
    scale: (count,) one over the trace of its inertia, which makes costs and gradients comparable with tolerances
    """

    count: int = tree.field(static=True)
    dof_tree: Tensor
    trees: Tensor
    rows: Tensor
    cones: Tensor
    there: Tensor
    touched: Tensor
    scale: Tensor

    def of_dofs(self, x: Tensor) -> Tensor:
        """Sums (count,), of x (nv,)."""
        if self.count == 1:
            return x.sum(0, keepdim=True)
        return x.new_zeros(len(self.trees)).index_add(0, self.dof_tree, x) @ self.trees

    def weighted_rows(self, weight: Tensor) -> Tensor:
        """What rows count, with weight (nefc,), in sums of each group (nefc, count)."""
        return weight[:, None] if self.count == 1 else weight[:, None] * self.rows

    def weighted_cones(self, weight: Tensor) -> Tensor:
        """What cones count, with weight (ncone,), in sums of each group (ncone, count)."""
        return weight[:, None] if self.count == 1 else weight[:, None] * self.cones

    def at_dofs(self, x: Tensor) -> Tensor:
        """What each dof's group has, (nv,), or (1,) for all, of x (count,)."""
        return x if self.count == 1 else (self.trees @ x)[self.dof_tree]

    def at_rows(self, x: Tensor) -> Tensor:
        """What each row's group has, (nefc, k), or (1, k) for all, of x (k, count)."""
        return x.mT if self.count == 1 else self.rows @ x.mT

    def at_cones(self, x: Tensor) -> Tensor:
        """What each cone's group has, (ncone, k), or (1, k) for all, of x (k, count)."""
        return x.mT if self.count == 1 else self.cones @ x.mT

    def keep(self, going: Tensor, new: T, old: T) -> T:
        """`new` in groups that are `going (count,)`, else `old`, all (..., count); one group goes as long as a loop."""
        if self.count == 1:
            return new
        return tree.map(lambda x, y: torch.where(going, x, y), new, old)


def sums(terms: Sequence[Tensor], weight: Tensor) -> Sequence[Tensor]:
    """Of each of some terms (n, k) the sums (k, count), by each group's weight (n, count)."""
    if weight.shape[1] == 1:
        return [(x * weight).sum(0)[:, None] for x in terms]
    # A compiler looks once for those that weigh something.
    return (torch.cat(list(terms), dim=1).mT @ weight).chunk(len(terms))


def whole(active: Tensor, scale: Tensor) -> Groups:
    """All in one group; active: (nefc,) the rows that are there, scale: ()."""
    none, there = scale.new_zeros(0), active.any()[None]
    number = torch.zeros_like(active[:0], dtype=torch.int64)
    return Groups(
        count=1,
        dof_tree=number,
        trees=none,
        rows=none,
        cones=none,
        there=there,
        touched=there,
        scale=scale[None],
    )


def islands(m: Model, d: Data) -> Groups:
    """Each island by itself; trees that no row touches have groups too, in which nothing is there."""
    p, cone_rows = m.plan.island, m.plan.solver.cone_rows
    first = components(m, d)
    number = torch.arange(m.ntree, device=first.device)
    of_tree, inertia = torch.where(first < 0, number, first), diagonal_m(m, d)
    trees = (of_tree[:, None] == number).to(inertia.dtype)
    # Of rows that are not active it does not matter.
    of_row = of_tree[trees_of_rows(m, d).clamp(min=0)]
    rows = torch.where((d.efc_D != 0)[:, None] & (of_row[:, None] == number), 1.0, 0.0).to(inertia.dtype)
    trace = inertia.new_zeros(m.ntree).index_add(0, p.dof_tree, inertia) @ trees
    return Groups(
        count=m.ntree,
        dof_tree=p.dof_tree,
        trees=trees,
        rows=rows,
        cones=rows[cone_rows[:, 0]],
        there=first >= 0,
        touched=(first >= 0)[p.dof_tree],
        # Trees that have joined another one have nothing of their own.
        scale=1 / torch.where(trace > 0, trace, 1.0),
    )


def searched_apart(m: Model) -> bool:
    """Whether islands have steps of their own, as in C: not where there are many, nor where they get to the end anyway.

    Newton's method takes no more steps for all of them at once than for the one that takes most.
    """
    return (
        1 < m.ntree <= MOST
        and m.opt.solver in ENOUGH
        and m.opt.iterations <= ENOUGH[m.opt.solver]
        and not m.opt.disabled(DisableBit.ISLAND)
        and m.opt.integrator != Integrator.DISCRETE
    )
