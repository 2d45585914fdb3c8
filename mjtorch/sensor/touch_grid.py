"""Touch grids: contact forces, sorted by the direction in which a site sees the contacts."""

import torch
from torch import Tensor

from mjtorch.constraint import contact_force
from mjtorch.math.vector import norm
from mjtorch.model import Data, Model
from mjtorch.model.plan.touch_grid import TouchGrid
from mjtorch.smooth.object import to_local


def touch_grid(m: Model, d: Data, plan: TouchGrid) -> Tensor:
    """Readings (channels, height, width) of the plugin mujoco.sensor.touch_grid.

    Each bin is the sum, over the contacts in it, of what acts on the body of the site: forces [N] along z, x and y of
    the site, then torques [N m]. The site looks along -z; a contact is in the bin of its azimuth, towards x, and
    elevation, towards y. Only forces have derivatives, not where they are sorted into.
    """
    c = d.contact
    if not m.plan.constraint.nc:
        shape = (plan.channels, len(plan.vertical) - 1, len(plan.horizontal) - 1)
        return d.sensordata.new_zeros(shape)
    geom, mat = c.geom.clamp(min=0), d.site_xmat[plan.site]
    mine = plan.geom_weld[geom] == plan.body
    mine = mine & (c.geom >= 0) if m.plan.collision.touching else mine
    touches = c.detected & mine.any(-1)
    wrench = contact_force(m, d, to_world_frame=True).unflatten(1, (2, 3))
    local = to_local(mat[:, None], wrench)
    # Forces act on the second geom.
    first = plan.body < m.plan.collision.geom_body[geom].amax(-1) if plan.by_id else mine[:, 0]
    local = torch.where(first[:, None, None], -local, local)
    normal_first = torch.cat([local[..., 2:], local[..., :2]], dim=-1).flatten(1)[:, : plan.channels]

    x, y, z = to_local(mat, c.pos - d.site_xpos[plan.site]).detach().unbind(-1)
    column = bins(torch.atan2(x, -z), plan.horizontal)
    row = bins(torch.atan2(y, norm(torch.stack([x, z], dim=-1))), plan.vertical)
    inside = (row[:, :, None] & column[:, None, :] & touches[:, None, None]).flatten(1)
    return normal_first.mT @ inside.to(normal_first.dtype)


def bins(x: Tensor, edges: Tensor) -> Tensor:
    """Which (n, k) of the bins between `edges (k + 1,)` hold each `x (n,)`; of an edge it is the lower one."""
    return (edges[:-1] < x[:, None]) & (x[:, None] <= edges[1:])
