"""What elements, hinges and cells of flexes do against deformation (engine_passive.c; XMLreference, "elasticity").

A force and the damper that belongs to it come together: the first axis of what is returned is [spring, damper].
"""

import torch
from torch import Tensor

from mjtorch.math.polar import nearest_rotation
from mjtorch.math.vector import MIN_VALUE, basis, cofactors, cross, dot, normalize
from mjtorch.model import Data, Model
from mjtorch.model.plan.flex import ElementPlan, HingePlan
from mjtorch.model.plan.flex_grid import CellPlan, CreasePlan, ElasticCellPlan
from mjtorch.model.plan.flex_solid import SolidPlan
from mjtorch.model.plan.flex_yield import WHOLE, CellYieldPlan


def element_tension(m: Model, d: Data, p: ElementPlan, length: Tensor, rest: Tensor, velocity: Tensor) -> Tensor:
    """What elements pull their edges together with, per length of these (2, nelement, k) [N/m].

    Saint Venant and Kirchhoff's energy is `e' K e / 4`, e the growth `l^2 - l0^2` of the squared lengths. Its damper
    follows what they grew by in the last time step, `l^2 - (l - h v)^2` (Kharevych et al., "Geometric, variational
    integrators for computer animation", 2006).

    length, rest, velocity: (nedge,) [m, m/s] of edges
    """
    now, rest = length[p.edge], rest[p.edge]
    growth = (now * now - rest * rest)[None]
    for grown in offsets(d, p):
        growth = growth - grown
    if p.damped:
        v = velocity[p.edge]
        growth = torch.cat([growth, (m.flex_damping[p.flex] * v * (2 * now - m.opt.timestep * v))[None]])
    tension = (m.flex_stiffness[p.stiffness] @ growth[..., None]).squeeze(-1)
    return tension if p.damped else torch.cat([tension, torch.zeros_like(tension)])


def offsets(d: Data, p: ElementPlan | HingePlan | ElasticCellPlan | SolidPlan) -> list[Tensor]:
    """What is there for good, if anything: growth of elements (nelement, k) [m^2], bends of hinges (nhinge, 1) [N/m^2],
    strains of cells (ncell, k)."""
    return [torch.cat([d.plastic, d.plastic.new_zeros(1)])[y.offset] for y in p.yielding]


def hinge_force(m: Model, d: Data, p: HingePlan, pos: Tensor, velocity: Tensor | None) -> Tensor:
    """What hinges do to their points (2, nhinge, 4, 3) [N]: `-K x`, and what bends a curved sheet back.

    pos: (npoint, 3) [m]; velocity: (npoint, 3) [m/s], if any of them has damping
    """
    stiffness, x = m.flex_bending[p.stiffness], pos[p.point]
    spring = -stiffness @ x
    if p.curved or p.yielding:
        turned = cofactors(x[:, 1:] - x[:, :1])
        turned = torch.cat([-turned.sum(1, keepdim=True), turned], dim=1)
        curvature = m.flex_bending[p.curvature]
        for bent in offsets(d, p):
            curvature = curvature + bent
        spring = spring - curvature[..., None] * turned
    if velocity is None or not p.damped:
        return torch.stack([spring, torch.zeros_like(spring)])
    return torch.stack([spring, -m.flex_damping[p.flex][..., None] * (stiffness @ velocity[p.point])])


def cell_force(m: Model, d: Data, p: ElasticCellPlan, pos: Tensor, velocity: Tensor | None) -> Tensor:
    """What cells do to their nodes (2, ncell, n, 3) [N]: linear elasticity in a frame that turns with the cell.

    Of cells that have yielded the nodes rest where the strain takes them.

    pos: (npoint, 3) [m]; velocity: (npoint, 3) [m/s], if any of them has damping
    """
    frame, displacement = corotated(m, p.cells, pos)
    for y, strain in zip(p.yielding, offsets(d, p), strict=True):
        displacement = displacement - m.flex_node0[p.cells.node] @ y.axes @ of_axes(y, strain) @ y.axes.mT
    displaced = displacement[None]
    if velocity is not None and p.damped:
        moved = m.flex_damping[p.flex][..., None] * (velocity[p.cells.point] @ frame)
        displaced = torch.cat([displaced, moved[None]])
    force = cell_matrices(m, p) @ displaced.flatten(2)[..., None]
    force = force.reshape(displaced.shape) @ frame.mT
    return force if force.shape[0] == 2 else torch.cat([force, torch.zeros_like(force)])


def of_axes(p: CellYieldPlan, strain: Tensor) -> Tensor:
    """Strains (n, k) as matrices between the axes of cells (n, dim, dim)."""
    return (p.weight * strain)[:, WHOLE[p.axes.shape[-1]]]


def cell_matrices(m: Model, p: ElasticCellPlan) -> Tensor:
    """Forces of cells (ncell, 3 n, 3 n) [N/m] on their n nodes, per displacement in a frame that turns with them."""
    size = 3 * p.cells.point.shape[1]
    found = [m.flex_stiffness[start : start + count * size * size] for start, count in p.start]
    return torch.cat(found).reshape(-1, size, size)


def crease_force(m: Model, p: CreasePlan, pos: Tensor) -> Tensor:
    """What edges between faces of shells do to the nodes of both (2, 2, ncrease, n, 3) [N]; nothing damps them.

    The energy is half the stiffness times the square of what the normals of the faces differ by where they meet, less
    what they differ by at rest, turned with both faces: halfway between their frames.
    """
    frame = corotated(m, p.cells, pos)[0][p.face]
    along = pos[p.cells.point[p.face]].mT @ p.slope
    one, two = along.unbind(-1)
    normal, area = normalize(cross(one, two), basis(along, 0, 0, 1))
    rest = (nearest_rotation(frame[0] + frame[1]) @ m.flex_bending[p.turn][..., None]).squeeze(-1)
    bent = m.flex_bending[p.stiffness] * (normal[0] - normal[1] - rest)
    bent = torch.stack([bent, -bent])
    turned = (bent - normal * dot(normal, bent, keepdim=True)) / area.clamp(min=MIN_VALUE)
    pull = p.slope @ torch.stack([cross(turned, two), -cross(turned, one)], dim=-2)
    return torch.stack([pull, torch.zeros_like(pull)])


def corotated(m: Model, p: CellPlan, pos: Tensor) -> tuple[Tensor, Tensor]:
    """Frames (ncell, 3, 3) that turn with cells, and how far in these the nodes are from where they rest (ncell, n, 3).

    The frame is the rotation in the deformation at the centre of the cell. pos: (npoint, 3) [m]
    """
    x, rest = pos[p.point], m.flex_node0[p.node]
    frame = nearest_rotation(deformation(p, x, rest))
    return frame, x @ frame - rest


def deformation(p: CellPlan, x: Tensor, rest: Tensor) -> Tensor:
    """How positions at centres of cells change by those at rest (ncell, 3, 3); along the normals of faces nothing.

    x, rest: (ncell, n, 3) [m] of nodes
    """
    return directions(p, x) @ inverse(directions(p, rest))


def directions(p: CellPlan, x: Tensor) -> Tensor:
    """How centres of cells with nodes at `x` (ncell, n, 3) move along their axes (ncell, 3, 3); of faces the normal."""
    found = x.mT @ p.gradient
    if p.gradient.shape[1] == 3:
        return found
    normal = normalize(cross(*found.unbind(-1)), basis(found, 0, 0, 1))[0]
    return torch.cat([found, normal[..., None]], dim=-1)


def inverse(a: Tensor) -> Tensor:
    """Of matrices (..., 3, 3) that are far from singular."""
    cofactor = cofactors(a)
    return cofactor.mT / dot(a[..., 0, :], cofactor[..., 0, :])[..., None, None]
