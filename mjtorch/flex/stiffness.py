"""The stiffness of flexes: by how much the forces on their points change as these move (mj_effBuild).

As the integrator `discrete` takes it, of which it is no more than what is never negative: frames of cells do not turn,
edges that are pushed together are not slack, and curved references have no part in it.
"""

import torch
from torch import Tensor

from mjtorch.flex.elasticity import cell_matrices, corotated
from mjtorch.flex.kinematics import of_edges, pair_motion, point_velocity, points
from mjtorch.model import Data, Model
from mjtorch.model.plan.flex import ElementPlan, FlexPlan
from mjtorch.model.plan.flex_blocks import BlockPlan
from mjtorch.model.plan.flex_grid import ElasticCellPlan


def flex_metric(m: Model, d: Data, p: FlexPlan, spring: float, damper: float) -> tuple[Tensor, Tensor]:
    """`h^2 K + h D` (nv, nv) of flexes, and how their springs change in a step, `-h K v` (nv,).

    spring, damper: 1, or 0 where the flags SPRING or DAMPER disable them.
    """
    h = m.opt.timestep
    pos = points(m, d, p)
    motion = pair_motion(d, p, pos)
    velocity = point_velocity(d, p, motion)
    reach = torch.cat([motion, torch.zeros_like(motion[:1])])
    total, change = d.qvel.new_zeros(m.nv * m.nv), torch.zeros_like(velocity)
    for plan, stiffness, damping in blocks(m, p, pos):
        weight = h * h * spring + h * damper * damping
        total = total.index_add(0, plan.place, of_dofs(plan, reach, weight[..., None] * stiffness))
        moved = (stiffness @ velocity[plan.point].flatten(1)[..., None]).reshape(-1, 3)
        change = change.index_add(0, plan.point.flatten(), moved)
    shift = -h * spring * (change[p.pair_point] * motion).sum(-1)
    return total.reshape(m.nv, m.nv), torch.zeros_like(d.qvel).index_add(0, p.pair_dof, shift)


def of_dofs(p: BlockPlan, reach: Tensor, stiffness: Tensor) -> Tensor:
    """What blocks (n, 3 k, 3 k) are between the dofs that move their points: for each of `place`.

    reach: (npair + 1, 3) velocity of the point of a pair per velocity of its dof, and zeros.
    """
    n, k, w = p.pair.shape
    along = reach[p.pair]
    half = (along @ stiffness.reshape(n, k, 3, 3 * k)).reshape(n, k, w, k, 3).transpose(2, 3)
    return (half @ along[:, None].mT).flatten()


def blocks(m: Model, p: FlexPlan, pos: Tensor) -> list[tuple[BlockPlan, Tensor, Tensor]]:
    """Of elements, hinges and cells, by kind: their plan, stiffness (n, 3 k, 3 k) [N/m], and damping (n, 1) [s]."""
    rest = of_edges(p, m.flexedge_length0)
    found = [element_stiffness(m, x, pos[plan.point], rest) for x, plan in zip(p.elements, p.blocks, strict=False)]
    found += [in_space(m.flex_bending[x.stiffness]) for x in p.hinges]
    found += [cell_stiffness(m, x, pos) for x in p.cells]
    flex = [*(x.flex for x in p.elements), *(x.flex for x in p.hinges), *(x.flex for x in p.cells)]
    return [(plan, x, m.flex_damping[of]) for plan, x, of in zip(p.blocks, found, flex, strict=True)]


def element_stiffness(m: Model, p: ElementPlan, x: Tensor, rest: Tensor) -> Tensor:
    """Of elements (n, 3 k, 3 k) at `x` (n, k, 3) [m], the second derivative of the energy of `element_tension`.

    rest: (nedge,) [m] lengths of edges
    """
    metric, arrow = m.flex_stiffness[p.stiffness], p.ends @ x
    growth = arrow.square().sum(-1) - rest[p.edge].square()
    tension = (metric @ growth[..., None]).clamp(min=0)
    grows = (p.ends[..., None] * arrow[:, :, None]).flatten(2)
    return 2 * grows.mT @ metric @ grows + in_space(p.ends.mT @ (tension * p.ends))


def in_space(stiffness: Tensor) -> Tensor:
    """The same stiffness (n, k, k) along each axis: (n, 3 k, 3 k)."""
    axes = torch.eye(3, dtype=stiffness.dtype, device=stiffness.device)
    return (stiffness[:, :, None, :, None] * axes[:, None]).flatten(3).flatten(1, 2)


def cell_stiffness(m: Model, p: ElasticCellPlan, pos: Tensor) -> Tensor:
    """Of cells (n, 3 k, 3 k), as they are turned. pos: (npoint, 3) [m]"""
    frame, stiffness = corotated(m, p.cells, pos)[0][:, None], cell_matrices(m, p)
    n, size, _ = stiffness.shape
    turned = (frame @ stiffness.reshape(n, -1, 3, size)).reshape(n, size, -1, 3)
    return -(turned @ frame.mT).reshape(n, size, size)
