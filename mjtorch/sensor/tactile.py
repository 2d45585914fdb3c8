"""Tactile sensors: how deep the vertices of a mesh are in what touches it, and how fast that slides."""

import torch
from torch import Tensor

from mjtorch.math.shape import depth
from mjtorch.math.vector import dot
from mjtorch.model import Data, Model
from mjtorch.model.plan.tactile import TactilePlan
from mjtorch.smooth.distance_field import sampled
from mjtorch.smooth.object import point_velocity, to_local


def tactile(m: Model, d: Data, plan: TactilePlan) -> Tensor:
    """Readings (3 n,): depth [m] of each taxel, then its sliding speeds [m/s] along both tangents (mjSENS_TACTILE).

    The depth is the largest in the geoms that are in contact with the sensor's body; the speeds add up over those that
    a taxel is inside of, and are zero if the mesh has no tangents. Which geoms are in contact has no derivative.
    """
    n = plan.vert.shape[0]
    if not plan.others.shape[0] or not d.contact.geom.shape[0]:
        return d.qpos.new_zeros(3 * n)
    mat = d.geom_xmat[plan.geom]
    taxel = d.geom_xpos[plan.geom] + (mat @ m.mesh_vert[plan.vert][..., None]).squeeze(-1)
    parts = []
    for shape, geoms in zip(plan.shapes, plan.geoms, strict=True):
        local = to_local(d.geom_xmat[geoms], taxel[:, None] - d.geom_xpos[geoms])
        parts.append(depth(shape, m.geom_size[geoms], local))
    for field in plan.fields:
        local = to_local(d.geom_xmat[plan.field_geoms, None], taxel - d.geom_xpos[plan.field_geoms, None])
        parts.append(-sampled(m.sdf_grid, field, local).distance.mT.clamp(max=0))
    deep = torch.where(in_contact(d, plan), torch.cat(parts, dim=1), 0.0)
    speeds = d.qpos.new_zeros(2 * n)
    if plan.tangent.shape[1]:
        tangent = (mat @ m.mesh_normal[plan.tangent][..., None]).squeeze(-1)[:, :, None]
        slip = dot(tangent, sliding(m, d, plan, taxel)).abs()
        speeds = torch.where(deep > 0, slip, 0.0).sum(-1).flatten()
    return torch.cat([deep.amax(1), speeds])


def in_contact(d: Data, plan: TactilePlan) -> Tensor:
    """Whether each of `plan.others` is in contact with the body of the sensor (k,)."""
    geom = d.contact.geom
    mine = plan.mine[geom.clamp(min=0)]
    mine = mine & (geom >= 0) if d.contact.flex.shape[0] else mine
    across = mine.flip(1) & d.contact.detected[:, None]
    return (across[..., None] & (geom[..., None] == plan.others)).flatten(0, 1).any(0)


def sliding(m: Model, d: Data, plan: TactilePlan, taxel: Tensor) -> Tensor:
    """Velocity (n, k, 3) [m/s] of the points `taxel` (n, 3) of the sensor's body relative to the other geoms."""
    root = m.plan.kinematics.body_root
    body = m.plan.collision.geom_body[plan.others]
    _, own = point_velocity(d, plan.body, taxel - d.subtree_com[root[plan.body]])
    _, other = point_velocity(d, body, taxel[:, None] - d.subtree_com[root[body]])
    return own[:, None] - other
