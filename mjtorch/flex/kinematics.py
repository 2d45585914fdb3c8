"""Where vertices of flexes are, how long their edges are, and how both change with the dofs (mj_flex)."""

import torch
from torch import Tensor

from mjtorch.math.vector import basis, cross, normalize
from mjtorch.model import Data, Model
from mjtorch.model.plan.flex import FlexPlan


def flex(m: Model, d: Data) -> Data:
    """Vertices and edges of flexes (mj_flex; modeling.rst, "Deformable objects").

    Sets flexvert_xpos (nflexvert, 3) [m], flexedge_length (nflexedge,) [m], which is 0 for rigid and interpolated
    flexes, and its derivative flexedge_J (nJfe,), in the sparsity of `flexedge_J_rownnz` and its kin, whose rows are
    empty for flexes that have no use for it. An edge of no length counts as one along x. Needs `kinematics`, `com_pos`.
    """
    for p in m.plan.flex:
        pos = points(m, d, p)
        along, length = edges(p, pos)
        d = d.replace(flexvert_xpos=vertices(p, pos), flexedge_length=of_model(p, length.squeeze(-1)))
        d = d.replace(flexedge_J=edge_jacobian(d, p, pos, along) if p.nentry else torch.zeros_like(d.flexedge_J))
    return d


def flex_velocity(m: Model, d: Data) -> Data:
    """How fast edges grow: flexedge_velocity (nflexedge,) [m/s], 0 without `flexedge_J` (mj_fwdVelocity)."""
    for p in m.plan.flex:
        rate = d.flexedge_J[: p.nentry] * d.qvel[p.entry_dof]
        rate = torch.cat([rate, rate.new_zeros(1)])[p.row_entry].sum(-1)
        d = d.replace(flexedge_velocity=rate if p.nentry else torch.zeros_like(d.flexedge_velocity))
    return d


def points(m: Model, d: Data, p: FlexPlan) -> Tensor:
    """Where bodies carry the points (npoint, 3) [m]."""
    pos = d.xpos[p.body]
    if p.centered:
        return pos
    local = torch.cat([m.flex_vert, m.flex_node])[p.local]
    return pos + (d.xmat[p.body] @ local[..., None]).squeeze(-1)


def vertices(p: FlexPlan, pos: Tensor) -> Tensor:
    """`flexvert_xpos`, of points at `pos` (npoint, 3): some of these, and what lies between others."""
    return pos if p.direct else torch.cat([pos, (pos[p.node] * p.weight).sum(1)])[p.vertex]


def edges(p: FlexPlan, pos: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (nedge, 3), from their first to their second points, and lengths (nedge, 1) [m] of edges."""
    return normalize(pos[p.second] - pos[p.first], basis(pos, 1, 0, 0))


def of_model(p: FlexPlan, x: Tensor) -> Tensor:
    """Numbers of edges (nedge,) as those of all edges of the model (nflexedge,)."""
    return x if p.every_edge else torch.cat([x, x.new_zeros(1)])[p.edge]


def of_edges(p: FlexPlan, x: Tensor) -> Tensor:
    """Numbers of all edges of the model (nflexedge,) as those of edges (nedge,)."""
    return x if p.every_edge else x[p.edge_id]


def pair_motion(d: Data, p: FlexPlan, pos: Tensor) -> Tensor:
    """Velocity (npair, 3) of each point per velocity of a dof that moves it."""
    arm = (pos - d.subtree_com[p.root])[p.pair_point]
    angular, linear = d.cdof[p.pair_dof].split(3, dim=-1)
    return linear + cross(angular, arm)


def edge_jacobian(d: Data, p: FlexPlan, pos: Tensor, along: Tensor) -> Tensor:
    """`flexedge_J`: by the motion of the second end along the edge, less that of the first."""
    motion = pair_motion(d, p, pos)
    motion = torch.cat([motion, torch.zeros_like(motion[:1])])
    found = (along[p.entry_edge] * (motion[p.entry_second] - motion[p.entry_first])).sum(-1)
    return torch.cat([found, found.new_zeros(p.padding)]) if p.padding else found


def point_velocity(d: Data, p: FlexPlan, motion: Tensor) -> Tensor:
    """Velocity (npoint, 3) [m/s] of points, of which `motion` (npair, 3) is that per dof."""
    part = motion * d.qvel[p.pair_dof][:, None]
    return torch.cat([part, torch.zeros_like(part[:1])])[p.point_pair].sum(1)


def edge_jacobians(m: Model, d: Data, p: FlexPlan) -> Tensor:
    """`flexedge_J` with all its zeros (nflexedge, nv)."""
    flat = d.flexedge_J.new_zeros(m.nflexedge * m.nv)
    return flat.index_copy(0, p.entry_place, d.flexedge_J[: p.nentry]).reshape(m.nflexedge, m.nv)
