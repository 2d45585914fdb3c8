"""The stiffness of flexes: by how much the forces on their points change as these move (mj_effBuild).

As the integrator `discrete` takes it, of which it is no more than what is never negative: frames of cells do not turn,
edges that are pushed together are not slack, curved references have no part in it, and solids of another law are left
without their negative eigenvalues.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.flex.arc import arc_stiffness
from mjtorch.flex.elasticity import cell_matrices, corotated, offsets
from mjtorch.flex.kinematics import of_edges, pair_motion, point_velocity, points
from mjtorch.flex.neo_hookean import solid_stiffness
from mjtorch.flex.rod_stiffness import Weights, rod_stiffness
from mjtorch.model import Data, Model
from mjtorch.model.plan.flex import ElementPlan, FlexPlan
from mjtorch.model.plan.flex_blocks import BlockPlan
from mjtorch.model.plan.flex_grid import ElasticCellPlan


class Block(NamedTuple):
    """Where blocks lie; by how much forces of springs change (n, 3 k, 3 k) [N/m]; what is inertia of it [kg]."""

    plan: BlockPlan
    stiffness: Tensor
    inertia: Tensor


class Places(NamedTuple):
    """What is added to the elements `place (n,)` of a matrix (nv, nv), or of its band (`BlockPlan`): value (n,)."""

    place: Tensor
    value: Tensor


def flex_metric(m: Model, d: Data, p: FlexPlan, spring: bool, damper: bool) -> tuple[list[Places], Tensor]:
    """What `h^2 K + h D` of flexes is the sum of, and how their springs change in a step, `-h K v` (nv,).

    spring, damper: whether there are any, by the flags SPRING and DAMPER.
    """
    h = m.opt.timestep
    weights = Weights(spring=h * h * spring, damper=h * damper)
    pos = points(m, d, p)
    motion = pair_motion(d, p, pos)
    velocity = point_velocity(d, p, motion)
    reach = torch.cat([motion, torch.zeros_like(motion[:1])])
    change, places = torch.zeros_like(velocity), []
    found = blocks(m, d, p, pos, weights)
    found += [
        Block(p.blocks[len(found) + i], *x)
        for arcs in p.arcs
        for i, x in enumerate(arc_stiffness(m, arcs, pos, weights))
    ]
    turned = d.qvel.new_zeros(m.nv + 1)
    for rods in p.rods:
        on_points, on_frames = rod_stiffness(m, d, rods, pos, weights)
        found.append(Block(p.blocks[-1], *on_points))
        places.append(Places(rods.turn_place, (on_frames.inertia * rods.turn_there).flatten()))
        rate = torch.cat([d.qvel, d.qvel.new_zeros(1)])[rods.turn_dof]
        change_of_turn = on_frames.stiffness @ rate[..., None]
        turned = turned.index_add(0, rods.turn_dof.flatten(), change_of_turn.flatten())
    for block in found:
        places.append(Places(block.plan.place, of_dofs(block.plan, reach, block.inertia)))
        moved = (block.stiffness @ velocity[block.plan.point].flatten(1)[..., None]).reshape(-1, 3)
        change = change.index_add(0, block.plan.point.flatten(), moved)
    turned = turned[: m.nv].index_add(0, p.pair_dof, (change[p.pair_point] * motion).sum(-1))
    return places, -h * spring * turned


def of_dofs(p: BlockPlan, reach: Tensor, stiffness: Tensor) -> Tensor:
    """What blocks (n, 3 k, 3 k) are between the dofs that move their points: for each of `place`.

    reach: (npair + 1, 3) velocity of the point of a pair per velocity of its dof, and zeros.
    """
    n, k, w = p.pair.shape
    along = reach[p.pair]
    half = (along @ stiffness.reshape(n, k, 3, 3 * k)).reshape(n, k, w, k, 3).transpose(2, 3)
    return (half @ along[:, None].mT).flatten()


def blocks(m: Model, d: Data, p: FlexPlan, pos: Tensor, weights: Weights) -> list[Block]:
    """Of elements, hinges, cells and solids, by kind."""
    rest = of_edges(p, m.flexedge_length0)
    found = [element_stiffness(m, d, x, pos[plan.point], rest) for x, plan in zip(p.elements, p.blocks, strict=False)]
    found += [in_space(m.flex_bending[x.stiffness]) for x in p.hinges]
    found += [cell_stiffness(m, x, pos) for x in p.cells]
    found += [solid_stiffness(m, d, x, pos) for x in p.solids]
    flex = [x.flex for some in (p.elements, p.hinges, p.cells, p.solids) for x in some]
    weight = [(weights.spring + weights.damper * m.flex_damping[of])[..., None] for of in flex]
    return [Block(plan, x, w * x) for plan, x, w in zip(p.blocks, found, weight, strict=False)]


def element_stiffness(m: Model, d: Data, p: ElementPlan, x: Tensor, rest: Tensor) -> Tensor:
    """Of elements (n, 3 k, 3 k) at `x` (n, k, 3) [m], the second derivative of the energy of `element_tension`.

    rest: (nedge,) [m] lengths of edges
    """
    metric, arrow = m.flex_stiffness[p.stiffness], p.ends @ x
    growth = arrow.square().sum(-1) - rest[p.edge].square()
    for grown in offsets(d, p):
        growth = growth - grown
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
