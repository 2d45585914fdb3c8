"""Between which nodes of grids contacts lie (mj_vertBodyWeight)."""

import torch
from torch import Tensor

from mjtorch.model.plan.grid_contacts import GridContactsPlan


def nodes_between(p: GridContactsPlan, flex: Tensor, corner: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The nodes (n, w), as carriers, of the cells that points of elements lie in, and how far each moves a point.

    flex: (n,) of the elements; corner: (n, k) their vertices, share: (n, k) of these in the points. A point is carried
    by what lay, at rest, where these say.
    """
    at = (share[..., None] * p.place[corner]).sum(-2)
    cell = torch.minimum(at.detach().floor().clamp(min=0), p.last[flex])
    x = (at - cell).clamp(0, 1)
    along = torch.stack([torch.ones_like(x), x, x * x], dim=-1) @ p.shape[flex].mT
    one, two, three = along.unbind(-2)
    weight = one[:, :, None, None] * two[:, None, :, None] * three[:, None, None]
    first = p.first[flex] + (cell.long() * p.stride[flex]).sum(-1)
    return first[:, None] + p.node[flex], weight.flatten(1)
