"""Index plan of elements of flexes that may touch each other or themselves, if there are too many pairs to list.

Elements that are near each other at rest make a *patch*. Pairs of patches are listed, and those of elements are found
in three steps: patches near each other, elements of the first that are near the second, elements of that near these.
"""

import itertools
from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.option import EnableBit
from mjtorch.model.plan import contact_source
from mjtorch.model.plan.colliders import (
    active,
    corners,
    element_flex,
    met_flexes,
    pairs_of_elements,
    patched,
    vertex_flex,
)
from mjtorch.model.plan.geom_pairs import COLLIDED, collider_type, contacts, flex_pairs, places_of_elements, within
from mjtorch.model.plan.near import Boxes, overlaps
from mjtorch.model.plan.tensors import Tensors

# Elements of a patch, or twice as many and so on, until there are no more pairs of patches than these.
ELEMENTS, MOST_PAIRS = 8, 2**18


@tree.dataclass(kw_only=True)
class PatchPairs(tree.Tree):
    """The k pairs of patches whose elements one function collides.

    patch: (2, k) their patches, flex: (2, k) the flexes of these, in the order of their numbers
    table: (k,) which of `apart` says it; apart: (n, w, w) bool, elements that have no body in common, each pair once
    patches, halves: static, how many pairs of patches, and of an element and a patch, have places
    """

    patch: Tensor
    flex: Tensor
    table: Tensor
    apart: Tensor
    patches: int = tree.field(static=True)
    halves: int = tree.field(static=True)


@tree.dataclass(kw_only=True)
class PatchesPlan(tree.Tree):
    """The patches, n of w elements at most, and what contacts of their elements are, by flexes.

    element: (n, w) their colliders; there: (n, w) bool, false where a patch has fewer, whose first one is repeated
    families: the pairs of each family
    source, margin_source: (nflex, nflex, 2) as in `CollisionPlan`
    place: (nflex, nflex) where C lists the first pair of elements of two flexes, as `places_of_elements`
    stride: (nflex, nflex) and how many places further the next element of the first has its pairs
    number: (nflex, nflex) what is added to places to number candidates, group by group
    listed: (ncandidate,) the numbers of those that are listed
    """

    element: Tensor
    there: Tensor
    families: tuple[PatchPairs, ...]
    source: Tensor
    margin_source: Tensor
    place: Tensor
    stride: Tensor
    number: Tensor
    listed: Tensor


class Family(NamedTuple):
    """The pairs of patches that one family of elements has.

    name, contacts: the family, and the most contacts of a pair; types: those of the first elements, and of the second
    patch, flex: (2, k), table: (k,), apart: (n, w, w) as in `PatchPairs`; within: (k,) [m] how near they matter
    """

    name: str
    contacts: int
    types: tuple[tuple[int, ...], tuple[int, ...]]
    patch: np.ndarray
    flex: np.ndarray
    table: np.ndarray
    apart: np.ndarray
    within: np.ndarray

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        """What has places: pairs of patches, of elements and patches, and of elements."""
        return (self.name, -2), (self.name, -1), (self.name, self.contacts)


class Patches(NamedTuple):
    """The patches of a model: element, there: (n, w) as in `PatchesPlan`."""

    element: np.ndarray
    there: np.ndarray
    families: tuple[Family, ...]

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        """What has places."""
        return tuple(key for family in self.families for key in family.keys)

    @property
    def arrays(self) -> list[np.ndarray]:
        """All that says what is near."""
        return [self.element, self.there, *(x for f in self.families for x in (f.patch, f.table, f.apart, f.within))]

    def near(self, boxes: Boxes) -> list[int]:
        """How many pairs of each of `keys` are near each other."""
        box = np.stack([boxes.pos - boxes.world, -boxes.pos - boxes.world], axis=-2)[self.element]
        all_of, found = box.min(1), []
        for family in self.families:
            one, two = family.patch
            close = overlaps(all_of[one], all_of[two], family.within)
            one, two, table, within = (x[close] for x in (one, two, family.table, family.within))
            pair, first = (self.there[one] & overlaps(box[one], all_of[two][:, None], within[:, None])).nonzero()
            meets = overlaps(box[one[pair], first][:, None], box[two[pair]], within[pair][:, None])
            meets = meets & self.there[two[pair]] & family.apart[table[pair], first]
            found += [len(one), len(pair), int(meets.sum())]
        return found


def patches_of(m: mujoco.MjModel) -> tuple[Patches, ...]:
    """The patches of the flexes that may touch each other or themselves, if not all pairs of elements are listed."""
    if not patched(m):
        return ()
    met, flex, there = met_flexes(m), element_flex(m), active(m)
    data = mujoco.MjData(m)
    mujoco.mj_kinematics(m, data)
    mujoco.mj_comPos(m, data)
    mujoco.mj_flex(m, data)
    centre = data.flexvert_xpos[corners(m)].mean(1)
    mine = {f: np.flatnonzero(there & (flex == f)) for f in np.unique(met).tolist()}
    width = ELEMENTS
    while len(met) * (max(map(len, mine.values())) / width) ** 2 > MOST_PAIRS:
        width *= 2
    parts: list[np.ndarray] = []
    members: dict[int, np.ndarray] = {}
    for f, elements in mine.items():
        own = divided(elements, centre, width)
        members[f] = np.arange(len(own)) + len(parts)
        parts += own
    element = np.array([np.pad(x, (0, width - len(x)), constant_values=x[0]) for x in parts])
    filled = np.arange(width) < np.array([len(x) for x in parts])[:, None]
    kinds = [(one, two) for one, two in collider_type(m)[flex_pairs(m).geom].tolist()]
    names = np.array([COLLIDED[kind].family if kind in COLLIDED else "" for kind in kinds])
    families = []
    for name in sorted({*names.tolist()} - {""}):
        those = {kinds[k] for k in np.flatnonzero(names == name)}
        types = (tuple(sorted({one for one, _ in those})), tuple(sorted({two for _, two in those})))
        patch, flex, within = paired(met[names == name], reach(m)[names == name], members)
        table, apart = tables(m, patch, element, filled)
        contacts = COLLIDED[min(those)].contacts
        families.append(Family(name, contacts, types, patch, flex, table, apart, within))
    return (Patches(m.ngeom + len(vertex_flex(m)) + element, filled, tuple(families)),)


def divided(elements: np.ndarray, centre: np.ndarray, width: int) -> list[np.ndarray]:
    """Parts of `elements` (n,) of `width` but for the last, in order: cut across where their centres reach most."""
    if len(elements) <= width:
        return [elements]
    at = centre[elements]
    order = np.argsort(at[:, np.ptp(at, axis=0).argmax()], kind="stable")
    half = -(-len(elements) // (2 * width)) * width
    return [x for part in (order[:half], order[half:]) for x in divided(elements[np.sort(part)], centre, width)]


def reach(m: mujoco.MjModel) -> np.ndarray:
    """(n,) [m] how near to each other the elements of `met_flexes` matter; of a flex and itself 0."""
    pairs = flex_pairs(m)
    margin = within(m, pairs)
    if m.opt.enableflags & EnableBit.OVERRIDE:
        margin = np.maximum(margin, m.opt.o_margin)
    return np.where(contact_source.within_itself(m, pairs), 0.0, margin)


def paired(
    met: np.ndarray, margin: np.ndarray, members: dict[int, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patches (2, k) of flexes `met` (n, 2), whose patches are `members`, the flexes (2, k), and margins (k,) [m]."""
    patch = []
    for f, g in met.tolist():
        one, two = members[f], members[g]
        first, second = np.triu_indices(len(one)) if f == g else np.indices((len(one), len(two))).reshape(2, -1)
        patch.append(np.stack([one[first], two[second]]))
    size = [x.shape[1] for x in patch]
    return np.concatenate(patch, axis=1), np.repeat(met, size, axis=0).T, np.repeat(margin, size)


def tables(
    m: mujoco.MjModel, patch: np.ndarray, element: np.ndarray, there: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`PatchPairs.table` and `apart`: the first one is of patches without a body in common, and is all true."""
    body = np.where(there[..., None], m.flex_vertbodyid[corners(m)[element]], -1).reshape(len(element), -1)
    holds = np.zeros((len(element), m.nbody + 1), dtype=np.float32)
    holds[np.arange(len(element))[:, None], body] = 1
    one, two = patch
    share = (holds[:, :-1] @ holds[:, :-1].T)[one, two] > 0
    special = np.flatnonzero(share | (one == two))
    table = np.zeros(len(one), dtype=np.int64)
    table[special] = np.arange(1, len(special) + 1)
    body = body.reshape(*element.shape, -1)
    first, second = body[one[special]][:, :, None, :, None], body[two[special]][:, None, :, None]
    apart = ((first != second) | (first < 0)).all((-2, -1))
    itself = (one == two)[special, None, None]
    apart &= ~itself | np.triu(np.ones(apart.shape[1:], dtype=bool), 1)
    return table, np.concatenate([np.ones_like(apart[:1], shape=(1, *there.shape[1:] * 2)), apart])


def possible(m: mujoco.MjModel) -> dict[int, int]:
    """How many contacts of each condim pairs of elements may make, if these are found by patches."""
    if not patched(m):
        return {}
    pairs = flex_pairs(m)
    most = pairs_of_elements(m) * contacts(m, pairs).clip(min=0)
    found = np.bincount(contact_source.condim(m, pairs), most).astype(int).tolist()
    return {dim: n for dim, n in enumerate(found) if n}


def build(
    m: mujoco.MjModel, make: Tensors, patches: Patches, places: dict[tuple[str, int], int], dim: np.ndarray
) -> tuple[PatchesPlan, dict[int, int]]:
    """The plan, and how many numbers the candidates of each condim have, those of lower ones first.

    places: of what has some; dim: (ncandidate,) the condim of the candidates that are listed, in rising order
    """
    pairs, of = flex_pairs(m), places_of_elements(m)
    dims = contact_source.condim(m, pairs)
    listed = np.bincount(dim, minlength=7)
    room = {d: int(listed[d]) + of.total for d in sorted({*dim.tolist(), *dims.tolist()})}
    first = dict(zip(room, itertools.accumulate(room.values(), initial=0), strict=False))
    shift = np.array([first.get(d, 0) for d in range(7)]) - (np.cumsum(listed) - listed)

    def table(x: np.ndarray | list[int]) -> Tensor:
        x = np.array(x)
        found = np.zeros((m.nflex, m.nflex, *x.shape[1:]), dtype=np.int64)
        found[tuple(met_flexes(m).T)] = x
        return make.ints(found)

    plan = PatchesPlan(
        element=make.ints(patches.element),
        there=make.bools(patches.there),
        families=tuple(
            PatchPairs(
                patch=make.ints(f.patch),
                flex=make.ints(f.flex),
                table=make.ints(f.table),
                apart=make.bools(f.apart),
                patches=min(places[f.keys[0]], f.patch.shape[1]),
                halves=places[f.keys[1]],
            )
            for f in patches.families
        ),
        source=table(contact_source.source(m, pairs)),
        margin_source=table(contact_source.margin_source(m, pairs)),
        place=make.ints(of.place),
        stride=make.ints(of.stride),
        number=table([first[d] + int(listed[d]) for d in dims.tolist()]),
        listed=make.ints(np.arange(len(dim)) + shift[dim]),
    )
    return plan, room
