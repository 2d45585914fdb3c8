"""Of contacts that differ, an independent oracle says who is right."""

import copy
from typing import Any

import mujoco
import numpy as np

from .asked import NEAR, PARTS, SAME, TOLERANCE, Asked, Verdict, fields, named_type
from .oracle import CONVEX, least_overlap, overlap

CURVED = 1e-3  # [m or 1] of contacts whose search ends at a tolerance: about the root of that
SHALLOW = 1e-4  # [m] off the oracle
SURELY = 1e-5  # [m] off the oracle, where another is nearer to it by far
LEVEL = 0.1  # of what is nearly level, the sine of how much it rises
ON_END = 1e-5  # of a cylinder that is touched on its end, what the cosine between axis and normal lacks of 1
AT_MARGIN = 1e-12  # [m] from the margin of a contact, within which C may list and exclude it


def by_pair(d: mujoco.MjData, *, at_margin: bool = True) -> dict[tuple[int, int], np.ndarray]:
    """Sorted distances of the contacts of each pair of geoms: of all, or of those that act, but where these begin."""
    found: dict[tuple[int, int], list[float]] = {}
    past = np.abs(d.contact.dist - d.contact.includemargin) > AT_MARGIN
    chosen = at_margin | ((d.contact.exclude == 0) & past)
    for geom, dist in zip(d.contact.geom[chosen].tolist(), d.contact.dist[chosen].tolist(), strict=True):
        found.setdefault((min(geom), max(geom)), []).append(dist)
    return {pair: np.sort(dists) for pair, dists in found.items()}


def who_is_right(asked: Asked, ours: mujoco.MjData) -> Verdict:
    """The verdict on contacts that differ, from the first pair that has others."""
    mj_model, mine, theirs = asked.mj_model, by_pair(ours), by_pair(asked.before)
    acting = [by_pair(d, at_margin=False) for d in (ours, asked.before)]
    listed = True

    def alike(a: np.ndarray, b: np.ndarray) -> bool:
        return len(a) == len(b) and np.allclose(a, b, atol=1e-5)

    for pair in sorted({*mine, *theirs}):
        a, b = mine.get(pair, np.zeros(0)), theirs.get(pair, np.zeros(0))
        if alike(a, b):
            continue
        if alike(*(x.get(pair, np.zeros(0)) for x in acting)):
            listed = False
            continue
        types = "-".join(sorted(named_type(mj_model, geom) for geom in pair))
        detail = f"geoms {pair}: {np.round(a, 7)} instead of {np.round(b, 7)}"
        if len(a) == len(b) and types in ("box-hfield", "hfield-mesh") and (a <= b + 1e-5).all():
            return Verdict(f"(C ends its search early: {types})", detail)  # as tests of height fields explain
        if len(a) == len(b) and np.abs(a - b).max() < CURVED and is_curved_pair(mj_model, pair):
            return Verdict("(curved, and as near as the search)", detail)
        if not all(mj_model.geom_type[geom] in CONVEX for geom in pair):
            return Verdict(f"contacts:{types}", detail)
        normals = [x.contact.frame[(np.sort(x.contact.geom) == pair).all(-1), :3] for x in (ours, asked.before)]
        depth = least_overlap(mj_model, asked.before, *pair, np.concatenate(normals))
        detail += f", {-depth:.7f} by the oracle"
        errors = [abs(x[0] + depth) if len(x) else np.inf for x in (a, b)]
        off = [error > SHALLOW for error in errors]
        if (off[1] and not off[0]) or (errors[1] > SURELY and errors[0] < 1e-2 * errors[1]):
            return Verdict(f"(C off the oracle: {types})", detail)
        if not any(off):
            if "cylinder" in types and len(a) == len(b):
                return Verdict("(other corners of a round end)", detail)
            # Above a round end C cuts out the edge of a vertex of most meshes, but of no brick; ours of none. Of a
            # cylinder's line C's face has one end or both, where it is deep: by how its polytope has grown.
            if {len(a), len(b)} == {1, 2} and (
                types == "cylinder-mesh" or (types == "cylinder-cylinder" and is_side_on_end(asked.before, pair))
            ):
                return Verdict("(an edge that is nearly level, in a round end)", detail)
            return Verdict(f"contacts:{types}, as deep", detail)
        return Verdict(f"contacts:{types}" + (", both off" if all(off) else ""), detail)
    if not listed:
        return Verdict("(contacts in gaps or at margins, which do not act)")
    in_order = np.array_equal(order_of(ours), order_of(asked.before))
    asked, ours = copy.copy(asked), arranged(mj_model, ours)
    asked.before, *asked.near = (arranged(mj_model, d) for d in (asked.before, *asked.near))
    for name in PARTS["contacts"].split():
        found, wanted = fields("contacts", ours)[name], fields("contacts", asked.before)[name]
        allowed = asked.allowed("contacts", name)
        if found.shape != wanted.shape or allowed is None or not (np.abs(found - wanted) <= allowed).all():
            rows = np.abs(found - wanted).reshape(len(wanted), -1).max(-1) if found.shape == wanted.shape else None
            at = 0 if rows is None else int(rows.argmax())
            if (
                rows is not None
                and rows[at] < CURVED
                and name in NEAR
                and is_curved(mj_model, asked.before, rows > allowed)
            ):
                return Verdict("(curved, and as near as the search)", f"{name} {rows[at]:.1e}")
            if rows is not None and name in NEAR and is_elsewhere_in_place(asked, ours, rows > allowed):
                return Verdict("(as deep, and in place as near as the search)", f"{name} {rows[at]:.1e}")
            types = "-".join(sorted(named_type(mj_model, g) for g in asked.before.contact.geom[at]))
            if "cylinder" in types and name in NEAR:  # as deep, as has been seen: rounding chooses among its corners
                return Verdict("(other corners of a round end)", f"contact {at}")
            if rows is not None and name in NEAR and is_another_way_out(asked, ours, at):
                return Verdict("(as deep in another direction)", f"contact {at}")
            return Verdict(f"{name}:{types}", f"contact {at}: {found[at : at + 1]} instead of {wanted[at : at + 1]}")
    return SAME if in_order else Verdict("(the same contacts of a pair, in another order)")


def is_side_on_end(d: mujoco.MjData, pair: tuple[int, int]) -> bool:
    """Whether one of two cylinders touches the end of the other with its side."""
    normal = d.contact.frame[(np.sort(d.contact.geom) == pair).all(-1), :3][0]
    rise = np.sort(np.abs(d.geom_xmat[list(pair)].reshape(2, 3, 3)[:, :, 2] @ normal))
    return bool(rise[0] < LEVEL and rise[1] > 1 - ON_END)


def order_of(d: mujoco.MjData) -> np.ndarray:
    """The contacts' numbers, those of each pair, which follow each other, sorted by their places."""
    place, first = np.round(d.contact.pos, 5), np.sort(d.contact.geom, axis=1)
    return np.lexsort((*place.T, first[:, 1], first[:, 0]))


def arranged(mj_model: mujoco.MjModel, d: mujoco.MjData) -> mujoco.MjData:
    """The same with the contacts in `order_of`."""
    found, order = mujoco.MjData(mj_model), order_of(d)
    mujoco.mj_copyData(found, mj_model, d)
    for name in PARTS["contacts"].split()[1:]:
        field = name.removeprefix("contact.")
        getattr(found.contact, field)[:] = getattr(d.contact, field)[order]
    return found


def is_elsewhere_in_place(asked: Asked, ours: mujoco.MjData, where: np.ndarray) -> bool:
    """Whether these contacts are as deep as C's up to the tolerance, but elsewhere across it by up to its root."""
    wanted, tolerance = asked.before.contact, asked.mj_model.opt.ccd_tolerance
    dist, frame = (np.abs(getattr(ours.contact, x) - getattr(wanted, x))[where] for x in ("dist", "frame"))
    moved = (ours.contact.pos - wanted.pos)[where]
    along = np.abs((moved * wanted.frame[where, :3]).sum(-1))
    is_near = np.abs(moved).max(initial=0) < tolerance**0.5
    return is_near and all(
        x.max(initial=0) < limit for x, limit in ((dist, tolerance), (along, tolerance), (frame, TOLERANCE))
    )


def is_another_way_out(asked: Asked, ours: mujoco.MjData, contact: int) -> bool:
    """Whether a contact points elsewhere than C's, and the oracle finds the geoms as deep in each other that way."""
    d, mine = asked.before.contact, ours.contact
    pair = d.geom[contact]
    if (mine.geom[contact] != pair).any() or not all(asked.mj_model.geom_type[geom] in CONVEX for geom in pair):
        return False
    normal = mine.frame[contact][None, :3]
    depth = least_overlap(asked.mj_model, asked.before, *pair)
    elsewhere = np.abs(normal - d.frame[contact][:3]).max() > CURVED
    return elsewhere and abs(overlap(asked.mj_model, asked.before, *pair, normal)[0] - depth) < SHALLOW


def is_curved(mj_model: mujoco.MjModel, d: mujoco.MjData, where: np.ndarray) -> bool:
    """Whether all these contacts are of curved shapes for which there is no formula."""
    return all(is_curved_pair(mj_model, pair) for pair in d.contact.geom[where])


def is_curved_pair(mj_model: mujoco.MjModel, pair: Any) -> bool:
    """Whether contacts of these geoms are searched for, and one of them is curved."""
    types = {named_type(mj_model, geom) for geom in pair}
    return bool(types & {"ellipsoid", "cylinder"}) or types == {"capsule", "mesh"}
