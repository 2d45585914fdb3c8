"""Passive forces of flexes: springs and dampers of edges, elasticity (mj_springdamper)."""

import torch
from torch import Tensor

from mjtorch.flex.arc import arc_force
from mjtorch.flex.elasticity import cell_force, crease_force, element_tension, hinge_force
from mjtorch.flex.kinematics import edges, of_edges, pair_motion, point_velocity, points
from mjtorch.flex.neo_hookean import solid_force
from mjtorch.flex.rod import rod_force
from mjtorch.model import Data, Model
from mjtorch.model.plan.flex import FlexPlan


def flex_force(m: Model, d: Data, p: FlexPlan) -> Tensor:
    """Generalised forces (2, nv) of flexes: of springs and of dampers. Needs `flex`, `flex_velocity`, `com_pos`."""
    if not p.passive:
        return d.qvel.new_zeros(2, m.nv)
    pos = points(m, d, p)
    motion = pair_motion(d, p, pos)
    velocity = point_velocity(d, p, motion) if p.moving else None
    rods = [rod_force(m, d, x, pos, velocity) for x in p.rods]
    force = point_force(m, d, p, pos, velocity, [on_edge for on_edge, _ in rods])
    found = d.qvel.new_zeros(2, m.nv).index_add(1, p.pair_dof, (force[:, p.pair_point] * motion).sum(-1))
    for plan, (_, on_dof) in zip(p.rods, rods, strict=True):
        found = found.index_add(1, plan.entry_dof, on_dof)
    return found


def point_force(m: Model, d: Data, p: FlexPlan, pos: Tensor, velocity: Tensor | None, on_edges: list[Tensor]) -> Tensor:
    """Forces (2, npoint, 3) [N] on points at `pos` (npoint, 3) [m]: of springs and of dampers.

    on_edges: those on edges of rods (2, n, 3)
    """
    at: list[Tensor] = []
    force: list[Tensor] = []

    def add(point: Tensor, on_each: Tensor) -> None:
        at.append(point.flatten())
        force.append(on_each.reshape(2, -1, 3))

    if p.springs or p.dampers or p.elements:
        along, length = edges(p, pos)
        pull = (edge_tension(m, d, p, length.squeeze(-1)))[..., None] * along
        add(p.first, pull)
        add(p.second, -pull)
    for hinges in p.hinges:
        add(hinges.point, hinge_force(m, d, hinges, pos, velocity))
    for cells in p.cells:
        add(cells.cells.point, cell_force(m, d, cells, pos, velocity))
    for solids in p.solids:
        add(solids.point, solid_force(m, d, solids, pos, velocity, of_edges(p, m.flexedge_length0)))
    for arcs in p.arcs:
        add(arcs.point, arc_force(m, arcs, pos, velocity))
    for creases in p.creases:
        add(creases.cells.point[creases.face], crease_force(m, creases, pos))
    for rods, on_edge in zip(p.rods, on_edges, strict=True):
        add(rods.first, -on_edge)
        add(rods.second, on_edge)
    return pos.new_zeros(2, *pos.shape).index_add(1, torch.cat(at), torch.cat(force, dim=1))


def edge_tension(m: Model, d: Data, p: FlexPlan, length: Tensor) -> Tensor:
    """What edges pull their ends together with (2, nedge) [N]: springs and dampers, and those of elements."""
    rest, velocity = (of_edges(p, x) for x in (m.flexedge_length0, d.flexedge_velocity))
    tension = length.new_zeros(2, length.shape[0])
    if p.springs or p.dampers:
        stiffness, damping = (x[p.edge_flex] * p.yielding for x in (m.flex_edgestiffness, m.flex_edgedamping))
        tension = torch.stack([stiffness * (length - rest), damping * velocity])
    for some in p.elements:
        per_length = element_tension(m, d, some, length, rest, velocity).flatten(1)
        tension = tension + torch.zeros_like(tension).index_add(1, some.edge.flatten(), per_length) * length
    return tension


def edge_energy(m: Model, d: Data, p: FlexPlan) -> Tensor:
    """Energy () [J] in the springs of edges (mj_energyPos)."""
    length, rest = (of_edges(p, x) for x in (d.flexedge_length, m.flexedge_length0))
    stretch = (length - rest) * p.yielding
    return 0.5 * (m.flex_edgestiffness[p.edge_flex] * stretch * stretch).sum()
