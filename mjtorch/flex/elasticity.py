"""What elements, hinges and cells of flexes do against deformation (engine_passive.c; XMLreference, "elasticity").

A force and the damper that belongs to it come together: the first axis of what is returned is [spring, damper].
"""

import torch
from torch import Tensor

from mjtorch.math.polar import nearest_rotation
from mjtorch.math.vector import cross
from mjtorch.model import Model
from mjtorch.model.plan.flex import CellPlan, ElementPlan, HingePlan


def element_tension(m: Model, p: ElementPlan, length: Tensor, rest: Tensor, velocity: Tensor) -> Tensor:
    """What elements pull their edges together with, per length of these (2, nelement, k) [N/m].

    Saint Venant and Kirchhoff's energy is `e' K e / 4`, e the growth `l^2 - l0^2` of the squared lengths. Its damper
    follows what they grew by in the last time step, `l^2 - (l - h v)^2` (Kharevych et al., "Geometric, variational
    integrators for computer animation", 2006).

    length, rest, velocity: (nedge,) [m, m/s] of edges
    """
    now, rest = length[p.edge], rest[p.edge]
    growth = (now * now - rest * rest)[None]
    if p.damped:
        v = velocity[p.edge]
        growth = torch.cat([growth, (m.flex_damping[p.flex] * v * (2 * now - m.opt.timestep * v))[None]])
    tension = (m.flex_stiffness[p.stiffness] @ growth[..., None]).squeeze(-1)
    return tension if p.damped else torch.cat([tension, torch.zeros_like(tension)])


def hinge_force(m: Model, p: HingePlan, pos: Tensor, velocity: Tensor | None) -> Tensor:
    """What hinges do to their points (2, nhinge, 4, 3) [N]: `-K x`, and what bends a curved sheet back.

    pos: (npoint, 3) [m]; velocity: (npoint, 3) [m/s], if any of them has damping
    """
    stiffness, x = m.flex_bending[p.stiffness], pos[p.point]
    spring = -stiffness @ x
    if p.curved:
        one, two, three = (x[:, 1:] - x[:, :1]).unbind(1)
        turned = torch.stack([cross(two, three), cross(three, one), cross(one, two)], dim=1)
        turned = torch.cat([-turned.sum(1, keepdim=True), turned], dim=1)
        spring = spring - m.flex_bending[p.curvature][..., None] * turned
    if velocity is None or not p.damped:
        return torch.stack([spring, torch.zeros_like(spring)])
    return torch.stack([spring, -m.flex_damping[p.flex][..., None] * (stiffness @ velocity[p.point])])


def cell_force(m: Model, p: CellPlan, pos: Tensor, velocity: Tensor | None) -> Tensor:
    """What cells do to their nodes (2, ncell, n, 3) [N]: linear elasticity in a frame that turns with the cell.

    The frame is the rotation in the deformation at the centre of the cell (computation of corotated elements).
    pos: (npoint, 3) [m]; velocity: (npoint, 3) [m/s], if any of them has damping
    """
    x, rest = pos[p.point], m.flex_node0[p.node]
    n = x.shape[1]
    size = 9 * n * n
    stiffness = torch.cat([m.flex_stiffness[start : start + count * size] for start, count in p.start])
    deformed, straight = x.mT @ p.gradient, rest.mT @ p.gradient
    frame = nearest_rotation(deformed @ inverse(straight))
    displaced = (x @ frame - rest)[None]
    if velocity is not None and p.damped:
        displaced = torch.cat([displaced, m.flex_damping[p.flex][None, ..., None] * (velocity[p.point] @ frame)[None]])
    force = stiffness.reshape(-1, 3 * n, 3 * n) @ displaced.flatten(2)[..., None]
    force = force.reshape(displaced.shape) @ frame.mT
    return force if force.shape[0] == 2 else torch.cat([force, torch.zeros_like(force)])


def inverse(a: Tensor) -> Tensor:
    """Of matrices (..., 3, 3) that are far from singular."""
    one, two, three = a.unbind(-2)
    cofactor = torch.stack([cross(two, three), cross(three, one), cross(one, two)], dim=-1)
    return cofactor / (one * cofactor[..., 0]).sum(-1)[..., None, None]
