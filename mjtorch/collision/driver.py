"""`collision`: the contact list of a world (mj_collision)."""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision.broad_phase import Chosen, bounds, chosen, everything, near_terrain
from mjtorch.collision.crowd import met
from mjtorch.collision.families import family_contacts
from mjtorch.collision.frame import make_frame
from mjtorch.collision.parameters import margins, parameters
from mjtorch.collision.patches import nearby, places
from mjtorch.collision.round import round_contacts
from mjtorch.collision.speculative import foreseen
from mjtorch.collision.support import where_rows
from mjtorch.collision.thinning import thinned
from mjtorch.control_flow import if_any
from mjtorch.math.shape import Boxes
from mjtorch.model import Contact, Data, DisableBit, Model
from mjtorch.model.make_data import empty_contact
from mjtorch.model.plan.crowd import EXACT, numbered
from mjtorch.model.sleeping import awake

# mjWARN_CONTACTFULL: where `Data.warning` counts the contacts that found no slot.
CONTACTFULL = 1
# A distance [m] that no two geoms are at.
NEVER = -1e10


def collision(m: Model, d: Data) -> Data:
    """Find the contacts of geoms, and of flexes with these (mj_collision).

    Reads geom_xpos, geom_xmat, flexvert_xpos. Sets contact and ncon, the number of detected contacts that have a slot;
    adds those that have none to `warning[CONTACTFULL]`: the ones furthest apart, relative to their margin. No contact
    is detected if contacts or constraints are disabled. Two geoms are not looked at of which none is awake.
    """
    p = m.plan.collision
    if m.opt.disabled(DisableBit.CONTACT | DisableBit.CONSTRAINT) or not p.ncandidate:
        return d.replace(contact=empty_contact(m), ncon=torch.zeros_like(d.ncon))
    axis = d.geom_xmat[:, :, 2]
    bound = bounds(m, d) if any(family.bounded for family in p.families) else None
    crowds = in_crowds(m, d, bound)
    may_be = candidates(m, d, crowds)
    found = looked_at(m, d, axis, may_be, bound, crowds)
    dist, normal, pos, row = found.dist, found.normal, found.pos, found.candidate
    geom, source, aligned = may_be.listed.geom, may_be.listed.source, may_be.listed.aligned
    includemargin, threshold = may_be.listed.includemargin, may_be.listed.threshold
    number = None
    if row is not None:
        # Of what does not exist nothing need be looked up.
        includemargin, threshold = (
            torch.where(found.exists, may_be.at(row, x), 0.0) for x in ("includemargin", "threshold")
        )
        number = row if may_be.listed.number is None else may_be.at(row, "number")
    detected, coming = found.exists & (dist <= threshold), None
    if p.speculative:
        touches = found.exists & (dist < includemargin)
        ahead = foreseen(m, d, touches, includemargin, threshold, source)
        dist, detected = torch.where(ahead.taken, ahead.dist, dist), torch.where(ahead.taken, ahead.exists, detected)
        taken = ahead.taken[:, None]
        normal, pos = torch.where(taken, ahead.normal, normal), torch.where(taken, ahead.pos, pos)
        aligned = aligned & ~taken
        coming = ahead.exists
    for sleep in m.plan.sleep:
        pair = geom if row is None else may_be.at(row, "geom")
        detected = detected & awake(m, d, sleep.geom[pair]).any(-1)
    lost = found.lost
    for plan in p.thinning:
        pair = geom if row is None else may_be.at(row, "geom")
        order = torch.arange(len(dist), device=geom.device) if number is None else number
        detected = thinned(plan, pair, order, dist.detach(), pos.detach(), detected)

    if row is not None or p.ncon < p.ncandidate:
        key = (dist - includemargin).detach()
        key = (key if coming is None else key.masked_fill(coming, NEVER)).masked_fill(~detected, torch.inf)
        keep, detected, more = closest(m, key, number)
        # What is looked up for empty slots is left out.
        slot = torch.where(detected, keep if row is None else row[keep], 0)
        lost = more if lost is None else lost + more
        there = detected[:, None]
        geom = torch.where(there, may_be.at(slot, "geom"), 0)
        aligned = torch.where(there, aligned[slot] if row is None else may_be.at(slot, "aligned"), False)
        source = may_be.at(slot, "source")
        # Zero in empty slots, which lets a compiler leave them out.
        dist, includemargin = (torch.where(detected, x[keep], 0.0) for x in (dist, includemargin))
        normal, pos = (torch.where(there, x[keep], 0.0) for x in (normal, pos))
        coming = None if coming is None else coming[keep]

    if lost is not None:
        d = d.replace(warning=d.warning + torch.nn.functional.pad(lost[None], (CONTACTFULL, 6 - CONTACTFULL)))
    if p.any_aligned:
        # What is aligned is no vertex.
        second = geom[:, 1].clamp(max=m.ngeom - 1) if p.touching else geom[:, 1]
        frame = make_frame(normal, axis[second], aligned)
    else:
        frame = make_frame(normal)
    frame = torch.where(detected[:, None, None], frame, 0.0)
    friction, solref, solreffriction, solimp = parameters(m, source, detected)
    touching = touching_objects(m, geom.masked_fill(~detected[:, None], -1))
    contact = Contact(
        dist=dist,
        pos=pos,
        frame=frame,
        includemargin=includemargin,
        friction=friction,
        solref=solref,
        solreffriction=solreffriction,
        solimp=solimp,
        **touching,
        detected=detected,
        speculative=detected.new_zeros(0) if coming is None else coming & detected,
        dim=p.contact_dim,
    )
    return d.replace(contact=contact, ncon=detected.sum())


def touching_objects(m: Model, collider: Tensor) -> dict[str, Tensor]:
    """The fields of `Contact` that say what touches, of colliders (ncon, 2), -1 in empty slots."""
    p = m.plan.collision
    if not p.touching:
        return {"geom": collider, **{name: collider.new_zeros(0, 2) for name in ("flex", "elem", "vert")}}
    of_flex, number = collider >= m.ngeom, collider.clamp(min=0)
    flex, vert = (torch.where(of_flex, x[number], -1) for x in (p.collider_flex, p.collider_vert))
    return {
        "geom": torch.where(of_flex, -1, collider),
        "flex": flex,
        "elem": torch.where(of_flex, p.collider_elem[number], -1),
        "vert": vert,
    }


class Listing(NamedTuple):
    """Contacts that may arise, n of them.

    geom: (n, 2) numbers of colliders; source: (n, 2) and aligned: (n, 1) as in `CollisionPlan`
    number: (n,) in the order in which C lists them; None: as they come
    includemargin, threshold: (n,) [m] the distances within which they exert forces, and are detected
    """

    geom: Tensor
    source: Tensor
    aligned: Tensor
    number: Tensor | None
    includemargin: Tensor
    threshold: Tensor


class Candidates(NamedTuple):
    """What may be contacts: `listed` ones, the same at any time, then `added` ones, of other pairs that have places.

    They are not put together: what is listed is the same in all worlds, and looked up where it is.
    """

    listed: Listing
    added: Listing | None

    def at(self, row: Tensor, name: str) -> Tensor:
        """A field of those with the numbers `row (k,)`."""
        listed = getattr(self.listed, name)
        if self.added is None:
            return listed[row]
        added, n = getattr(self.added, name), len(listed)
        if not n:
            return added[row]
        return where_rows(row < n, listed[row.clamp(max=n - 1)], added[(row - n).clamp(min=0)])


def candidates(m: Model, d: Data, crowds: list[Chosen]) -> Candidates:
    """All that may be contacts; crowds: the pairs of each family that is not listed."""
    p = m.plan.collision
    number = [x.number for x in p.crowd] + [x.listed for x in p.patches]
    listed = listing(m, d, p.geom, p.source, p.margin_source, p.aligned, number[0] if number else None)
    if not crowds:
        return Candidates(listed, None)
    blocks = [family.blocks[0] for family in p.families[-len(crowds) :]]
    pairs = torch.cat(
        [x.geom.mT[:, None].expand(-1, b.contacts, 2).flatten(0, 1) for x, b in zip(crowds, blocks, strict=True)]
    )
    for crowd in p.crowd:
        first, second = crowd.priority[pairs].split(1, dim=-1)
        winner = torch.where(first > second, pairs[:, :1], torch.where(second > first, pairs[:, 1:], pairs))
        margin_source, place = pairs, crowd.first + numbered(pairs, crowd.block, crowd.swapped)
    for patches in p.patches:
        one, two = p.collider_flex[pairs].unbind(-1)
        winner, margin_source = patches.source[one, two], patches.margin_source[one, two]
        place = patches.number[one, two] + places(m, pairs)
    aligned = torch.zeros_like(pairs[:, :1], dtype=torch.bool)
    return Candidates(listed, listing(m, d, pairs, winner, margin_source, aligned, place))


def listing(
    m: Model, d: Data, geom: Tensor, source: Tensor, margin_source: Tensor, aligned: Tensor, number: Tensor | None
) -> Listing:
    """Candidates with these fields; margin_source: as in `CollisionPlan`."""
    includemargin, threshold = margins(m, margin_source)
    if m.callbacks.has("contact_filter"):
        threshold = torch.where(discarded(m, d, geom, source), NEVER, threshold)
    return Listing(geom, source, aligned, number, includemargin, threshold)


def discarded(m: Model, d: Data, geom: Tensor, source: Tensor) -> Tensor:
    """(n,) bool: the candidates that the callback `contact_filter` refuses; it is not asked about pairs."""
    geom = geom.sort(dim=-1).values
    refused = m.callbacks.tensor(
        "contact_filter", geom.shape[:1], torch.zeros_like(geom[:, 0], dtype=torch.bool), m, d, geom
    )
    return refused & (source[:, 0] < m.ngeom) if m.plan.collision.explicit else refused


def in_crowds(m: Model, d: Data, bound: Boxes | None) -> list[Chosen]:
    """The pairs of each family of a crowd, or of elements that are found by patches, if there are some."""
    p, families = m.plan.collision, [family for family in m.plan.collision.families if family.of_crowd]
    if bound is None or not families:
        return []
    if p.patches:
        return nearby(m, p.patches[0], families, bound, stirring(m, d))
    return met(m, p.crowd[0], families, bound, stirring(m, d))


def stirring(m: Model, d: Data) -> Tensor | None:
    """(ngeom,) bool, which geoms are awake; None: all."""
    return awake(m, d, m.plan.sleep[0].geom) if m.plan.sleep else None


class Found(NamedTuple):
    """What may be a contact, n of them.

    dist: (n,) [m], normal: (n, 3), pos: (n, 3) [m], exists: (n,) bool
    candidate: (n,) which candidate each is; None: all are there, in their order
    lost: () what may touch and was not looked at closely; None: nothing
    """

    dist: Tensor
    normal: Tensor
    pos: Tensor
    exists: Tensor
    candidate: Tensor | None
    lost: Tensor | None


def looked_at(m: Model, d: Data, axis: Tensor, may_be: Candidates, bound: Boxes | None, crowds: list[Chosen]) -> Found:
    """The candidates of all pairs, or those of the closest pairs of families that have many.

    axis: (ngeom, 3) the z axes of the geoms; crowds: the pairs of each family of a crowd
    """
    p, threshold = m.plan.collision, may_be.listed.threshold
    rows = [round_contacts(m, d, axis)] if p.core_geom.shape[0] else []
    which, lost = [p.round_candidate] if rows else [], []
    stirs, waiting, ground = stirring(m, d), iter(crowds), None
    for terrain in p.terrain:
        if bound is not None:
            ground = terrain, near_terrain(m, terrain, bound, threshold)
    for family in p.families:
        if family.of_crowd:
            pairs = next(waiting)
            reach = may_be.at(pairs.candidate, "threshold")
        else:
            pairs = everything(family) if bound is None else chosen(family, bound, threshold, stirs, ground)
            reach = threshold[pairs.candidate]
        start = 0
        for block, points in zip(family.blocks, family_contacts(m, d, family, pairs, reach), strict=True):
            normal, pos = points.normal.flatten(0, 1), points.pos.flatten(0, 1)
            rows.append((points.dist.flatten(), normal, pos, points.exists.flatten()))
            if points.candidate is not None:
                which.append(points.candidate.flatten())
            elif p.selects:
                first = pairs.candidate[start : start + block.places, None]
                which.append((first + torch.arange(block.contacts, device=first.device)).flatten())
            start += block.places
            lost += [] if points.lost is None else [points.lost]
        lost += [] if pairs.lost is None else [pairs.lost]
    dist, normal, pos, exists = (torch.cat(part) for part in zip(*rows, strict=True)) if len(rows) > 1 else rows[0]
    total = torch.stack(lost).sum() if lost else None
    if p.selects:
        return Found(dist, normal, pos, exists, torch.cat(which), total)
    if p.in_order:
        return Found(dist, normal, pos, exists, None, total)
    return Found(dist[p.order], normal[p.order], pos[p.order], exists[p.order], None, total)


def closest(m: Model, key: Tensor, candidate: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The rows that get the slots: of each group those with the smallest `key (n,)`, in the order of the candidates.

    candidate: (n,) of each row, if the rows are only some of the candidates. Returns the rows (ncon,), whether there is
    one (ncon,) bool, and how many rows () whose key is not infinite got no slot.
    """
    keep, taken, lost = [], [], []
    groups = m.plan.collision.groups
    for first, count, slots in groups:
        if candidate is not None and len(groups) == 1:
            start, mine, number = 0, key, candidate
        elif candidate is None:
            start, mine, number = first, key[first : first + count], torch.arange(count, device=key.device)
        else:
            belongs = (candidate >= first) & (candidate < first + count)
            start, mine, number = 0, key.masked_fill(~belongs, torch.inf), candidate
        there = ~torch.isinf(mine)
        if candidate is None and slots == count:
            rows, filled = torch.arange(slots, device=key.device), there
        else:
            more = (there.sum() - slots).clamp(min=0)
            chosen = if_any(more > 0, functools.partial(smallest, mine, slots), there)
            # Among many numbers, infinities take no time to sort.
            exact = key.dtype if m.plan.collision.ncandidate < EXACT else torch.float64
            rows = number.to(exact).masked_fill(~chosen, torch.inf).sort(stable=True).indices[:slots]
            filled = torch.arange(len(rows), device=key.device) < chosen.sum()
            lost.append(more)
        keep.append(start + rows)
        taken.append(filled)
    return torch.cat(keep), torch.cat(taken), torch.stack(lost).sum()


def smallest(key: Tensor, count: int) -> Tensor:
    """Which (n,) of the keys (n,) are the `count` smallest; the first ones, of those that are equal."""
    index = key.sort(stable=True).indices[:count]
    return torch.zeros_like(key, dtype=torch.bool).scatter(0, index, torch.ones_like(index, dtype=torch.bool))
