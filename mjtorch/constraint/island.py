"""Islands: groups of kinematic trees that constraints join (mj_island)."""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.control_flow import while_loop
from mjtorch.model import Data, DisableBit, Integrator, Model, Solver
from mjtorch.model.sleeping import awake
from mjtorch.model.touching import colliders
from mjtorch.smooth.passive_contact import is_passive

# So many trees are joined by a table of all pairs of them.
FEW = 8


@tree.dataclass(kw_only=True)
class Islands(tree.Tree):
    """What constraints join, as integers; all names are MuJoCo's. There are at most as many islands as trees.

    An island is a group of kinematic trees that active constraint rows join. They are numbered by their first trees.
    The numbers of islands that are not there are zero. With the flag `island` disabled there are none.

    nisland () islands, nidof () dofs in them

    Trees
        tree_island (ntree,) the island of each tree, -1: none; map_itree2tree (ntree,) the trees, island by island,
        then those in none
        island_ntree, island_itreeadr (ntree,) how many trees an island has, and the first in `map_itree2tree`
    Dofs
        dof_island (nv,) the island of each, -1: none; map_idof2dof (nv,) the dofs, island by island, then those in
        none; map_dof2idof (nv,) where each dof is there
        island_nv, island_idofadr (ntree,) how many dofs an island has, and the first in `map_idof2dof`
        island_dofadr (ntree,) the first dof of each
    Rows, those of `Data`
        efc_island (nefc,) the island of each row, -1: not active; map_iefc2efc (nefc,) the rows, island by island, then
        those not active; map_efc2iefc (nefc,) where each row is there
        island_ne, island_nf, island_nefc, island_iefcadr (ntree,) how many rows an island has, equalities, friction and
        all, and the first in `map_iefc2efc`
    """

    nisland: Tensor
    nidof: Tensor
    tree_island: Tensor
    map_itree2tree: Tensor
    island_ntree: Tensor
    island_itreeadr: Tensor
    dof_island: Tensor
    map_dof2idof: Tensor
    map_idof2dof: Tensor
    island_nv: Tensor
    island_idofadr: Tensor
    island_dofadr: Tensor
    efc_island: Tensor
    map_efc2iefc: Tensor
    map_iefc2efc: Tensor
    island_ne: Tensor
    island_nf: Tensor
    island_nefc: Tensor
    island_iefcadr: Tensor


def island(m: Model, d: Data) -> Islands:
    """The islands of the active constraint rows (mj_island); needs `make_constraint`, so `forward` or `step`."""
    p, c = m.plan.island, m.plan.constraint
    first = components(m, d)
    there = first >= 0
    roots = there & (first == _count(m.ntree, first))
    tree_island = torch.where(there, (roots.cumsum(0) - 1)[first.clamp(min=0)], -1)
    nisland = roots.sum()
    island_ntree, island_itreeadr, map_itree2tree, _ = _grouped(m, tree_island, nisland)

    dof_island = tree_island[p.dof_tree]
    island_nv, island_idofadr, map_idof2dof, map_dof2idof = _grouped(m, dof_island, nisland)
    there = _count(m.ntree, first) < nisland
    island_dofadr = torch.where(there, map_idof2dof[torch.where(there, island_idofadr, 0)], 0)

    efc_island = torch.where(d.efc_D != 0, tree_island[trees_of_rows(m, d).clamp(min=0)], -1)
    island_nefc, island_iefcadr, map_iefc2efc, map_efc2iefc = _grouped(m, efc_island, nisland)
    return Islands(
        nisland=nisland,
        nidof=island_nv.sum(),
        tree_island=tree_island,
        map_itree2tree=map_itree2tree,
        island_ntree=island_ntree,
        island_itreeadr=island_itreeadr,
        dof_island=dof_island,
        map_dof2idof=map_dof2idof,
        map_idof2dof=map_idof2dof,
        island_nv=island_nv,
        island_idofadr=island_idofadr,
        island_dofadr=island_dofadr,
        efc_island=efc_island,
        map_efc2iefc=map_efc2iefc,
        map_iefc2efc=map_iefc2efc,
        island_ne=_sizes(m, efc_island[: c.ne]),
        island_nf=_sizes(m, efc_island[c.ne : c.ne + c.nf]),
        island_nefc=island_nefc,
        island_iefcadr=island_iefcadr,
    )


def components(m: Model, d: Data) -> Tensor:
    """The first tree (ntree,) of the island that each tree is in; -1: in none, no active row touches it."""
    nowhere = torch.full((m.ntree,), -1, device=d.efc_D.device)
    p = m.plan.island
    # What flexes couple counts as soon as anything is constrained, or, under `discrete`, may sleep.
    whole = bool(m.plan.sleep) and m.opt.integrator == Integrator.DISCRETE and p.flex_trees.shape[0] > 0
    if m.opt.disabled(DisableBit.ISLAND) or not (whole or m.plan.constraint.nefc):
        return nowhere
    couples = torch.ones_like(d.nefc, dtype=torch.bool) if whole else d.nefc > 0
    active = d.efc_D[p.row] != 0
    ends = torch.cat([p.trees.mT, _contact_trees(m, d)], dim=1)
    for _ in m.plan.constraint.contact.passive:
        pushes = is_passive(m, d)[: len(m.plan.constraint.contact.slot_rows)] & couples
        fixed = p.trees.shape[0]
        others = active[fixed:].reshape(-1, pushes.shape[0])
        active = torch.cat([active[:fixed], (others | pushes).flatten()])
    if p.flex_trees.shape[0]:
        ends = torch.cat([ends, p.flex_trees.mT], dim=1)
        active = torch.cat([active, couples.expand(p.flex_trees.shape[0])])
    for coupled in coupled_trees(m):
        ends = torch.cat([ends, coupled.mT], dim=1)
        stirs = awake(m, d, coupled).all(-1) if m.plan.sleep else torch.ones_like(coupled[:, 0], dtype=torch.bool)
        active = torch.cat([active, (d.nefc > 0) & stirs])
    # An end without a tree is where the other end is; slots that are empty have none at all.
    ends = torch.where(ends < 0, ends.flip(0), ends).clamp(min=0)
    number_of = _joined_densely if m.ntree <= FEW else _joined
    return number_of(ends, active, _count(m.ntree, nowhere))


def _joined(ends: Tensor, active: Tensor, number: Tensor) -> Tensor:
    """The lowest number (n,) that nodes 0, 1, ... (n,) are joined with by edges (2, k) which are active (k,); or -1.

    Each starts with its own number; edges hand on the lower one of their two, and each takes that of the node which its
    number is of, until all edges agree.
    """
    both = ends.flatten()

    def apart(label: Tensor) -> Tensor:
        one, two = label[ends]
        return (active & (one != two)).any()

    def lower(label: Tensor) -> Tensor:
        least = torch.where(active, label[ends].amin(0), len(number))
        label = label.scatter_reduce(0, both, least.repeat(2), "amin")
        return label[label]

    label = while_loop(apart, lower, number)
    touched = torch.zeros_like(number).scatter_reduce(0, both, active.to(number.dtype).repeat(2), "amax")
    return torch.where(touched > 0, label, -1)


def _joined_densely(ends: Tensor, active: Tensor, number: Tensor) -> Tensor:
    """`_joined`, by the table of all pairs of nodes."""
    one, two = torch.where(active[:, None] & (ends[..., None] == number), 1.0, 0.0)
    reach = one.mT @ two
    reach = (reach + reach.mT) > 0
    touched = reach.any(1)
    for _ in range((len(number) - 1).bit_length()):
        steps = reach.to(one.dtype)
        reach = reach | (steps @ steps > 0)
    return torch.where(touched, torch.where(reach, number, len(number)).amin(1), -1)


def trees_of_slots(m: Model, d: Data) -> Tensor:
    """A tree (ncon,) that each contact touches, -1: none."""
    return _contact_trees(m, d).amax(0)[: len(m.plan.constraint.contact.slot_rows)]


def trees_of_rows(m: Model, d: Data) -> Tensor:
    """A tree (nefc,) that each active row touches; anything, or -1, of others."""
    return torch.cat([m.plan.island.row_tree, trees_of_slots(m, d)[m.plan.island.row_slot]])


def coupled_trees(m: Model) -> list[Tensor]:
    """Edges (n, 2) between the trees that forces couple in the effective inertia; the dual solver knows none."""
    p = m.plan.island
    edges = [
        (p.spring_trees, not m.opt.disabled(DisableBit.SPRING)),
        (p.damper_trees, not m.opt.disabled(DisableBit.DAMPER)),
        (p.actuator_trees, not m.opt.disabled(DisableBit.ACTUATION)),
    ]
    return [trees for trees, there in edges if there and trees.shape[0] and m.opt.solver != Solver.PGS]


def _contact_trees(m: Model, d: Data) -> Tensor:
    """(2, k ncon) trees that each contact joins, -1: none: first those of what touches."""
    slots = len(m.plan.constraint.contact.slot_rows)
    touching, p, there = colliders(m, d)[:slots], m.plan.island, d.contact.detected[:slots]
    ends = torch.where(there, p.geom_tree[touching].mT, -1)
    if not p.node_tree.shape[1]:
        return ends
    nodes = torch.where(there, p.node_tree[touching].flatten(1).mT, -1)
    # One of them is joined with each.
    ends = torch.cat([ends, nodes])
    return torch.stack([ends.amax(0).expand_as(ends), ends]).flatten(1)


def _count(n: int, like: Tensor) -> Tensor:
    """0, 1, ... (n,)."""
    return torch.arange(n, device=like.device)


def _sizes(m: Model, of: Tensor) -> Tensor:
    """How many (ntree,) things, each `of` (n,) an island or -1, there are in each island."""
    return _count(m.ntree, of).new_zeros(m.ntree + 1).index_add(0, of + 1, torch.ones_like(of))[1:]


def _grouped(m: Model, of: Tensor, nisland: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of things, each `of` (n,) an island or -1: how many there are in each (ntree,), and the number of the first.

    Then the things in the order of their islands, those in none last, (n,), and where each of them is (n,).
    """
    size = _sizes(m, of)
    order = torch.where(of < 0, m.ntree, of).sort(stable=True).indices
    start = torch.where(_count(m.ntree, of) < nisland, size.cumsum(0) - size, 0)
    return size, start, order, torch.zeros_like(order).scatter(0, order, _count(len(of), of))
