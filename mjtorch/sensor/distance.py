"""Sensors from geom to geom: the distance, the direction, and the points that are nearest."""

import torch
from torch import Tensor

from mjtorch.collision.distance import hulls_of, least_contact, nearest_points, shapes
from mjtorch.model import Data, Model
from mjtorch.model.plan.distance import DistancePlan


def distance(m: Model, d: Data, plan: DistancePlan) -> Tensor:
    """Readings, one after the other: distances [m], unit normals (3), points (6) [m] (mjSENS_GEOMDIST, ...).

    Of all pairs of geoms of two bodies, the nearest. Where none is within the sensor's cutoff, the distance is that and
    the others are zero. Normals point from the first side to the second, in penetration the other way. Which pair is
    the nearest has no derivative.
    """
    columns = []
    for group in plan.groups:
        found = nearest_points(*shapes(m, d, group), m.opt.ccd_iterations, m.opt.ccd_tolerance, hulls_of(m))
        columns.append(torch.cat([found.dist[:, None], found.normal, found.point1, found.point2], dim=-1))
    for pairs in plan.colliding:
        found = least_contact(m, d, pairs.family, m.sensor_cutoff[pairs.sensor])
        columns.append(torch.cat([found.dist[:, None], found.normal, found.point1, found.point2], dim=-1))
    nothing = torch.nn.functional.pad(d.geom_xpos.new_full((1, 1), torch.inf), (0, 9))
    every = torch.cat([*columns, nothing])
    least = every[:, 0].detach()[plan.pair].argmin(-1, keepdim=True)
    flipped = plan.flipped.gather(1, least)
    dist, normal, point1, point2 = every[plan.pair.gather(1, least)[:, 0]].split([1, 3, 3, 3], dim=-1)

    cutoff = m.sensor_cutoff[plan.sensor, None]
    near = dist < cutoff
    normal = torch.where(near, torch.where(flipped, -normal, normal) * dist.detach().sign(), 0.0)
    fromto = torch.where(flipped, torch.cat([point2, point1], dim=-1), torch.cat([point1, point2], dim=-1))
    fromto = torch.where(near, fromto, 0.0)
    ndist, nnormal, _ = plan.counts
    parts = torch.where(near, dist, cutoff)[:ndist], normal[ndist : ndist + nnormal], fromto[ndist + nnormal :]
    return torch.cat([part.flatten() for part in parts])
