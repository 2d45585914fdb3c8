"""`collision`: the contact list of a world (mj_collision)."""

import torch
from torch import Tensor

from mjtorch.collision.families import family_contacts
from mjtorch.collision.frame import make_frame
from mjtorch.collision.parameters import margins, parameters
from mjtorch.collision.round import round_contacts
from mjtorch.model import Contact, Data, DisableBit, Model
from mjtorch.model.make_data import empty_contact

# mjWARN_CONTACTFULL: where `Data.warning` counts the contacts that found no slot.
CONTACTFULL = 1


def collision(m: Model, d: Data) -> Data:
    """Find the contacts between geoms (mj_collision).

    Reads geom_xpos, geom_xmat. Sets contact and ncon, the number of detected contacts that have a slot; adds those that
    have none to `warning[CONTACTFULL]`: the ones furthest apart, relative to their margin. No contact is detected if
    contacts or constraints are disabled.
    """
    p = m.plan.collision
    if m.opt.disabled(DisableBit.CONTACT | DisableBit.CONSTRAINT) or not p.ncandidate:
        return d.replace(contact=empty_contact(m), ncon=torch.zeros_like(d.ncon))
    axis = d.geom_xmat[:, :, 2]
    includemargin, threshold = margins(m)
    dist, normal, pos, exists, lost = candidates(m, d, axis, threshold)
    detected = exists & (dist <= threshold)
    geom, source, aligned = p.geom, p.source, p.aligned

    if lost:
        d = d.replace(warning=d.warning + full(torch.stack(lost).sum()))
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


def candidates(
    m: Model, d: Data, axis: Tensor, threshold: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """dist (n,) [m], normal (n, 3), pos (n, 3) [m] and exists (n,) bool of all candidates, in their order.

    axis: (ngeom, 3) the z axes of the geoms; threshold: (n,) [m] the distances at which contacts are detected.
    Last, what families had no room for: each a number ().
    """
    p = m.plan.collision
    rows = [round_contacts(m, d, axis)] if p.core_geom.shape[0] else []
    lost = []
    for family in p.families:
        points = family_contacts(m, d, family, threshold)
        normal, pos = points.normal.flatten(0, 1), points.pos.flatten(0, 1)
        rows.append((points.dist.flatten(), normal, pos, points.exists.flatten()))
        lost += [] if points.lost is None else [points.lost]
    dist, normal, pos, exists = (torch.cat(part) for part in zip(*rows, strict=True)) if len(rows) > 1 else rows[0]
    if p.in_order:
        return dist, normal, pos, exists, lost
    return dist[p.order], normal[p.order], pos[p.order], exists[p.order], lost


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
    return full(torch.stack(lost).sum())


def full(lost: Tensor) -> Tensor:
    """What to add to `Data.warning`, (7,) integers, for `lost ()` contacts."""
    return torch.nn.functional.pad(lost[None], (CONTACTFULL, 6 - CONTACTFULL))
