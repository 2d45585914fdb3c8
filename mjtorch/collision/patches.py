"""Which elements of flexes are near each other, or near others of their own flex, where not all pairs are listed."""

import torch
from torch import Tensor

from mjtorch.collision.broad_phase import Chosen
from mjtorch.collision.crowd import narrowed
from mjtorch.collision.parameters import margins
from mjtorch.math.compact import compacted
from mjtorch.math.shape import Boxes
from mjtorch.model import Model
from mjtorch.model.plan.crowd import overlap
from mjtorch.model.plan.family import Family
from mjtorch.model.plan.patches import PatchesPlan


def nearby(m: Model, p: PatchesPlan, families: list[Family], bound: Boxes, stirs: Tensor | None) -> list[Chosen]:
    """The pairs of elements whose boxes overlap, or are as near as matters.

    families: those of the patches; their candidates come after all that are listed. What finds no place is lost, and
    counted.
    stirs: (ncollider,) bool, which colliders are awake, one of two at least; None: it does not matter
    """
    _, threshold = margins(m, p.margin_source.flatten(0, 1))
    threshold = threshold.detach().unflatten(0, p.margin_source.shape[:2])
    box = torch.stack([bound.pos - bound.world, -bound.pos - bound.world], dim=-2)[p.element]
    around = box.amin(1)
    found, candidate = [], len(m.plan.collision.geom)
    for pairs, family in zip(p.families, families, strict=True):
        (block,) = family.blocks
        within = threshold[pairs.flex[0], pairs.flex[1]]
        near = overlap(around[pairs.patch[0]], around[pairs.patch[1]], within)
        if stirs is not None:
            near = near & stirs[p.element[:, 0]][pairs.patch].any(0)
        few = narrowed(box, around, p.there, pairs.patch, near, (pairs.patches, pairs.halves), within)
        meets = few.meets & pairs.apart[pairs.table[few.pair][few.row], few.first]
        place, there, past = compacted(meets.flatten(), block.places)
        row = torch.div(place, meets.shape[1], rounding_mode="floor")
        one, two = p.element[few.one, few.first][row], p.element[few.two].flatten()[place]
        number = candidate + block.contacts * torch.arange(block.places, device=place.device)
        geom = torch.stack([torch.minimum(one, two), torch.maximum(one, two)])
        found.append(Chosen(None, torch.where(there, geom, geom[:, :1]), number, there, past.sum() + few.lost))
        candidate += block.contacts * block.places
    return found


def places(m: Model, geom: Tensor) -> Tensor:
    """Where C lists pairs of elements (n,), of colliders `geom` (n, 2)."""
    (p,), plan = m.plan.collision.patches, m.plan.collision
    one, two = plan.collider_flex[geom].unbind(-1)
    nth = plan.collider_elem[geom]
    return p.place[one, two] + p.stride[one, two] * nth[:, 0] + nth[:, 1]
