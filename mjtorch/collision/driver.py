"""`collision`: the contact list of a world (mj_collision)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.capsule import nearest_of_segments
from mjtorch.collision.frame import make_frame
from mjtorch.collision.parameters import margins, parameters
from mjtorch.collision.plane import plane_point
from mjtorch.collision.sphere import core_to_core, nearest_on_segment, surface
from mjtorch.model import Contact, Data, DisableBit, Model
from mjtorch.model.make_data import empty_contact

# mjWARN_CONTACTFULL: where `Data.warning` counts the contacts that found no slot.
CONTACTFULL = 1


class Cores(NamedTuple):
    """How the cores of two geoms lie: a plane, the centre of a sphere, the axis of a capsule.

    distance: (n,) [m], normal: (n, 3) from 1 to 2, point: (n, 3) [m] on core 2,
    exists: (n,) bool, False for the second contact of capsules at an angle
    """

    distance: Tensor
    normal: Tensor
    point: Tensor
    exists: Tensor


def collision(m: Model, d: Data) -> Data:
    """Find the contacts between planes, spheres and capsules (mj_collision).

    Reads geom_xpos, geom_xmat. Sets contact and ncon, the number of detected contacts that have a slot; adds those that
    have none to `warning[CONTACTFULL]`: the ones furthest apart, relative to their margin. No contact is detected if
    contacts or constraints are disabled.
    """
    p = m.plan.collision
    if m.opt.disabled(DisableBit.CONTACT | DisableBit.CONSTRAINT) or not p.ncandidate:
        return d.replace(contact=empty_contact(m), ncon=torch.zeros_like(d.ncon))
    axis = d.geom_xmat[:, :, 2]
    distance, normal, point, exists = cores(m, d, axis)
    radius1, radius2 = (m.geom_size[:, 0] * p.extent[:, 0])[p.geom].unbind(-1)
    dist, pos = surface(distance, normal, point, radius1, radius2)
    includemargin, threshold = margins(m)
    detected = exists & (dist <= threshold)
    geom, source, aligned = p.geom, p.source, p.aligned

    if p.ncon < p.ncandidate:
        keep = closest(m, (dist - includemargin).detach().masked_fill(~detected, torch.inf))
        d = d.replace(warning=d.warning + overflow(m, detected))
        detected, geom, source, aligned = detected[keep], geom[keep], source[keep], aligned[keep]
        columns = torch.cat([dist[:, None], includemargin[:, None], normal, pos], dim=-1)[keep]
        # Zero in empty slots, which lets a compiler leave them out.
        columns = torch.where(detected[:, None], columns, 0.0)
        dist, includemargin = columns[:, 0], columns[:, 1]
        normal, pos = columns[:, 2:5], columns[:, 5:]

    frame = make_frame(normal, axis[geom[:, 1]], aligned) if p.any_aligned else make_frame(normal)
    friction, solref, solreffriction, solimp = parameters(m, source, detected)
    contact = Contact(
        dist=dist,
        pos=pos,
        frame=torch.where(detected[:, None, None], frame, 0.0),
        includemargin=includemargin,
        friction=friction,
        solref=solref,
        solreffriction=solreffriction,
        solimp=solimp,
        geom=geom.masked_fill(~detected[:, None], -1),
        detected=detected,
        dim=p.contact_dim,
    )
    return d.replace(contact=contact, ncon=detected.sum())


def cores(m: Model, d: Data, axis: Tensor) -> Cores:
    """The geometry of all candidates, in their order; axis: (ngeom, 3) the z axes of the geoms."""
    p = m.plan.collision
    half_axis = axis * (m.geom_size[:, 1:2] * p.extent[:, 1:])
    parts, exists = [], p.certain
    if p.plane.shape[1]:
        origin, center = d.geom_xpos[p.plane].unbind(0)
        normal, point = axis[p.plane[0]], center + p.plane_end * half_axis[p.plane[1]]
        parts.append(torch.cat([plane_point(origin, normal, point), normal, point], dim=-1))
    if p.round.shape[1]:
        point1, point2, parallel = round_points(m, d, axis, half_axis)
        axis1, axis2 = axis[p.round].unbind(0)
        normal, distance = core_to_core(point1, point2, axis1, axis2)
        parts.append(torch.cat([distance, normal, point2], dim=-1))
        exists = exists if parallel is None else torch.cat([exists, parallel])
    rows = torch.cat(parts)
    if not p.in_order:
        rows, exists = rows[p.order], exists[p.order]
    distance, normal, point = rows.split([1, 3, 3], dim=-1)
    return Cores(distance[:, 0], normal, point, exists)


def round_points(m: Model, d: Data, axis: Tensor, half_axis: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Nearest points (n, 3) of the cores of spheres and capsules, and which pairs of capsules are parallel (ncapsule,).

    The second half of the capsule rows exists only for parallel ones.
    """
    p = m.plan.collision
    points1, points2, parallel = [], [], None
    if p.sphere.shape[1]:
        center1, center2 = d.geom_xpos[p.sphere].unbind(0)
        half_length = (m.geom_size[:, 1:2] * p.extent[:, 1:])[p.sphere[1]]
        points1.append(center1)
        points2.append(nearest_on_segment(center1, center2, axis[p.sphere[1]], half_length))
    if p.capsule.shape[1]:
        center1, center2 = d.geom_xpos[p.capsule].unbind(0)
        half1, half2 = half_axis[p.capsule].unbind(0)
        point1, point2, parallel = nearest_of_segments(center1, half1, center2, half2)
        points1.append(point1.flatten(0, 1))
        points2.append(point2.flatten(0, 1))
    return torch.cat(points1), torch.cat(points2), parallel


def closest(m: Model, key: Tensor) -> Tensor:
    """The candidates (ncon,) that get the slots: those with the smallest `key (ncandidate,)`, in their own order.

    Candidates whose key is infinite fill the slots that are left, after all others of their group.
    """
    keep = []
    for first, count, slots in m.plan.collision.groups:
        if slots == count:
            keep.append(torch.arange(first, first + count, device=key.device))
        else:
            nearest = key[first : first + count].sort(stable=True)
            behind = nearest.indices + count * torch.isinf(nearest.values)
            order = behind[:slots].sort().values
            keep.append(first + torch.where(order < count, order, order - count))
    return torch.cat(keep)


def overflow(m: Model, detected: Tensor) -> Tensor:
    """What to add to `Data.warning`, (7,) integers, for contacts that find no slot; detected: (ncandidate,) bool."""
    lost = [
        (detected[first : first + count].sum() - slots).clamp(min=0)
        for first, count, slots in m.plan.collision.groups
        if slots < count
    ]
    return torch.nn.functional.pad(torch.stack(lost).sum()[None], (CONTACTFULL, 6 - CONTACTFULL))
