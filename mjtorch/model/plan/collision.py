"""Index plan of the collision room."""

from collections import Counter
from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import (
    contact_capacity,
    contact_source,
    crowd,
    height_field,
    mesh,
    patches,
    sdf,
    speculative,
    terrain,
    thinning,
)
from mjtorch.model.plan.colliders import collider_body, corners, element_flex, speculates, vertex_flex
from mjtorch.model.plan.crowd import Crowd, CrowdPlan
from mjtorch.model.plan.family import SELECTED, Block, Family, unlisted
from mjtorch.model.plan.geom_pairs import (
    CAPSULE,
    COLLIDED,
    MESH,
    PLANE,
    ROUND,
    SDF,
    SDF_TRIANGLE,
    SPHERE,
    TYPES,
    VERTEX,
    GeomPairs,
    collider_type,
    contacts,
    flex_pairs,
    together,
    within,
)
from mjtorch.model.plan.height_field import Window
from mjtorch.model.plan.mesh import Hulls, hull_boxes
from mjtorch.model.plan.patches import PatchesPlan
from mjtorch.model.plan.speculative import Listed, SpeculativePlan
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.terrain import TerrainPlan
from mjtorch.model.plan.thinning import ThinningPlan

# More pairs of spheres and capsules than these are families, of which the closest pairs are chosen.
MANY = 250
# Of so many pairs of spheres and capsules of different kinematic trees, no list is made.
CROWDED = 3000
# All families; and the parts of that of planes, spheres and capsules, by the type of the first geoms.
FAMILIES = tuple(dict.fromkeys(together(how.family) for how in COLLIDED.values()))
CORES = {PLANE: "plane", SPHERE: "sphere", CAPSULE: "capsule"}


@tree.dataclass(kw_only=True)
class CollisionPlan(tree.Tree):
    """Which contacts can arise, and the slots that hold them.

    A *candidate* is a contact that may arise: one, or two, for each pair of geoms that is tested. Candidates are
    grouped by condim, each group in C's order. A group has as many slots as candidates, or fewer: then the closest are
    kept. Of a crowd of kinematic trees, and of elements found by patches, the candidates are those of the pairs that
    have places, other ones at any time; they come after those that are listed here, and are numbered in C's order.
    Geometry is done family by family, in rows. Planes, spheres and capsules come first, all together: the rows [plane,
    sphere, first of capsule, second of capsule]; but more than `MANY` pairs of spheres and capsules are families like
    others. These come then, pair by pair. A family of many pairs has fewer *places*: the pairs whose boxes overlap get
    them, those that overlap most first; others are known not to touch, or are counted as lost.

    contact_dim: static, `dim` of each contact slot
    groups: static, one (first candidate, candidates, slots) per condim; with a crowd, or patches, by the numbers of
        candidates
    explicit: static, whether any candidate belongs to a `<contact><pair>`
    any_aligned: static, whether any candidate is aligned
    itself, pairs_elements: static, whether a flex may touch itself, and whether elements may touch each other
    in_order: static, whether the rows lie in the order of the candidates
    families: what are not pairs of planes, spheres and capsules; those of a crowd are the last
    terrain: what does not move, if there are many pairs with it, else none
    crowd: one, if there are very many pairs of spheres and capsules of different trees, else none
    patches: one, if there are very many pairs of elements of flexes, else none
    thinning: if of some pairs not all contacts are kept, of which
    speculative: if contacts are foreseen, which; then all pairs have places, and there is no crowd
    plane: (2, n) a plane and the sphere or capsule that it meets, once for each candidate
    plane_end: (n, 1) which end of a capsule touches the plane: 1, -1; 0 for a sphere
    sphere: (2, n) a sphere and the sphere or capsule that it meets
    capsule: (2, n) two capsules, which make two candidates
    round: (2, n) the geoms of the sphere rows and the capsule rows
    core_geom: (n, 2) the geoms of the plane, sphere and capsule rows
    certain: (n,) bool, True: these rows but the second ones of capsules, which exist for parallel axes only
    round_candidate: (n,) the candidates of the plane, sphere and capsule rows
    order: (ncandidate,) the row of each candidate
    geom: (ncandidate, 2) numbers of colliders, the first of which are the geoms
    source: (ncandidate, 2) whose parameters are mixed: rows of [geoms, flexes, pairs]; twice the same where nothing is
        mixed; without the flexes if these touch nothing
    margin_source: (ncandidate, 2) the same for margin and gap, which know no priority; a row more, twice, for flexes
        that touch themselves: they have neither
    aligned: (ncandidate, 1) bool, the contact frame follows the axis of the second geom
    moving: static, whether the surface of a geom moves
    adhesion_source: if contacts stick, (n, n, 2) where the adhesion of two geoms, or flexes if these touch something,
        lies in [geoms, flexes, pairs], twice the same where nothing is added
    extent: (ngeom, 2) 1 where a geom's radius and half-length are in the first two sizes, else 0
    geom_body: (ncollider,) body ids; of vertices on nodes of grids the first node's
    collider_flex, collider_elem, collider_vert: (ncollider,) the flex of each, and its number there as an element or as
        a vertex, -1 of others; (0,) if flexes touch nothing
    collider_dim: (ncollider,) of how many dimensions each is as an element, 0 of others; (0,) as well
    first_vertex, first_element: (nflex,) the first colliders of each flex; (0,) if they touch nothing
    corner: (nelement, k) the vertices of the elements that are colliders, k being 3, or 4 if there are solids; of
        others the last one repeated
    geom_type: (ngeom,) mjtGeom
    hull_middle, hull_reach: (ngeom, 3) [m] boxes around meshes, as of `hull_boxes`; hulled: (k,) which have one
    hulls: those of all meshes, none if there are none; geom_hull: (ngeom,) which of them each geom is, -1: none
    """

    contact_dim: tuple[int, ...] = tree.field(static=True)
    groups: tuple[tuple[int, int, int], ...] = tree.field(static=True)
    explicit: bool = tree.field(static=True)
    any_aligned: bool = tree.field(static=True)
    itself: bool = tree.field(static=True)
    pairs_elements: bool = tree.field(static=True)
    in_order: bool = tree.field(static=True)
    families: tuple[Family, ...]
    terrain: tuple[TerrainPlan, ...]
    crowd: tuple[CrowdPlan, ...]
    patches: tuple[PatchesPlan, ...]
    thinning: tuple[ThinningPlan, ...]
    speculative: tuple[SpeculativePlan, ...]
    plane: Tensor
    plane_end: Tensor
    sphere: Tensor
    capsule: Tensor
    round: Tensor
    core_geom: Tensor
    certain: Tensor
    round_candidate: Tensor
    order: Tensor
    geom: Tensor
    source: Tensor
    margin_source: Tensor
    aligned: Tensor
    moving: bool = tree.field(static=True)
    adhesion_source: tuple[Tensor, ...]
    extent: Tensor
    geom_body: Tensor
    collider_flex: Tensor
    collider_elem: Tensor
    collider_vert: Tensor
    collider_dim: Tensor
    first_vertex: Tensor
    first_element: Tensor
    corner: Tensor
    geom_type: Tensor
    hull_middle: Tensor
    hull_reach: Tensor
    hulled: Tensor
    hulls: tuple[Hulls, ...]
    geom_hull: Tensor

    @property
    def touching(self) -> bool:
        """Whether flexes may touch something."""
        return bool(self.collider_flex.shape[0])

    @property
    def selects(self) -> bool:
        """Whether not all candidates are looked at closely: not those of pairs that are further apart than others.

        Nor all prisms of height fields, unless it must be known of each candidate whether it touches.
        """
        fields = not self.speculative and any(family.fields for family in self.families)
        return bool(self.crowd or self.patches or fields) or any(family.selects for family in self.families)

    @property
    def fixed(self) -> bool:
        """Whether each slot is that of one candidate, so that it is known what may touch there; asked of flexes alone.

        Not of those that touch each other or themselves: in which order pairs of elements come is up to the state.
        """
        apart = self.touching and not (self.pairs_elements or self.selects or self.speculative)
        return apart and self.ncon == self.ncandidate

    @property
    def ncon(self) -> int:
        """Number of contact slots."""
        return len(self.contact_dim)

    @property
    def ncandidate(self) -> int:
        """Number of contacts that may arise."""
        return sum(count for _, count, _ in self.groups)


class Candidates(NamedTuple):
    """Contacts that may arise, n of them: each is the `nth (n,)` of the geom pair number `tried (n,)`.

    dim: (n,) condim, geom: (n, 2) geom ids, types: (n, 2) mjtGeom, pair: (n,) `<contact><pair>` or -1
    most: (n,) how many the pair can make
    """

    dim: np.ndarray
    geom: np.ndarray
    types: np.ndarray
    pair: np.ndarray
    tried: np.ndarray
    nth: np.ndarray
    most: np.ndarray

    def take(self, which: np.ndarray) -> "Candidates":
        """Some of them."""
        return Candidates(*(x[which] for x in self))


# The numbers of some candidates, by how many their pairs have.
Blocks = dict[int, np.ndarray]


def build(mj_model: mujoco.MjModel, make: Tensors, tried: GeomPairs, capacity: int | None) -> CollisionPlan:
    """The plan for `mj_model`; pairs that are not supported are left out (`put_model` refuses them).

    tried: its `tried_pairs`
    capacity: the most contacts kept at a time; None: chosen from short rollouts.
    """
    crowds = _crowds(mj_model, tried, capacity)
    listed = ~crowd.between(mj_model, tried) if crowds else np.ones(len(tried.pair), dtype=bool)
    met = GeomPairs(tried.geom[~listed], tried.pair[~listed])
    tried = GeomPairs(tried.geom[listed], tried.pair[listed])
    fields = height_field.kinds(mj_model, tried)
    windows = height_field.windows(mj_model, tried, fields)
    candidates = _candidates(mj_model, tried, windows)
    counts = _counted(
        np.concatenate([candidates.dim, np.repeat(contact_source.condim(mj_model, met), contacts(mj_model, met))])
    )
    swarms, more = patches.patches_of(mj_model), patches.possible(mj_model)
    counts = {dim: counts.get(dim, 0) + more.get(dim, 0) for dim in sorted({*counts, *more})}
    rows = _rows(candidates)
    number = np.concatenate(list(rows.values()))
    order = np.empty_like(number)
    order[number] = np.arange(len(number))
    plane, sphere, capsule = (rows.pop(part) for part in CORES.values())
    blocks = {name: _blocks(candidates, members) for name, members in rows.items()}
    many = {
        (name, k): contact_capacity.Pairs(tried.geom[pairs], within(mj_model, tried)[pairs])
        for name, part in blocks.items()
        for k, pairs in ((k, candidates.tried[_firsts(candidates, block)]) for k, block in part.items())
        if not speculates(mj_model) and name in (*SELECTED, *contact_capacity.LIGHT)
    }
    room = contact_capacity.choose(mj_model, counts, many, (*crowds, *swarms), fields, capacity)
    windows = {name: window._replace(seen=room.fields[name]) for name, window in windows.items()}
    together = np.concatenate([plane, sphere, capsule])
    listed_only = not (crowds or swarms)
    prisms = {
        name: height_field.tested(
            windows[name], sum(len(_firsts(candidates, block)) for block in part.values()), capacity or 0
        )
        for name, part in blocks.items()
        if name in windows and not speculates(mj_model)
    }
    slots = _at_most(room.slots, candidates, together, blocks, room.places, prisms) if listed_only else room.slots
    aligned = (candidates.types == (PLANE, CAPSULE)).all(1)
    listed_pairs = GeomPairs(candidates.geom, candidates.pair)
    source = contact_source.source(mj_model, listed_pairs)
    geom_type = mj_model.geom_type
    hulls, (middle, reach) = mesh.build(mj_model, make), hull_boxes(mj_model)
    flex, elements = vertex_flex(mj_model), element_flex(mj_model)
    vert = np.arange(len(flex)) - mj_model.flex_vertadr[flex]
    elem = np.arange(len(elements)) - mj_model.flex_elemadr[elements]
    none = np.full(mj_model.ngeom if len(flex) else 0, -1)

    def geoms(those: np.ndarray) -> Tensor:
        return make.ints(candidates.geom[those].T)

    ground = terrain.build(mj_model, make, tried)
    families = [
        _family(mj_model, name, part, room.places, candidates, windows, capacity or 0, ground, make)
        for name, part in blocks.items()
    ]
    plans, numbers = [], counts
    for members in crowds:
        families += _crowd_families(mj_model, met, room.places, make)
        trees, halves = (room.places[key] for key in members.keys[:2])
        numbers = dict.fromkeys(counts, crowd.numbers(mj_model))
        before = np.searchsorted(list(counts), candidates.dim) * crowd.numbers(mj_model)
        first = list(counts).index(int(contact_source.condim(mj_model, met)[0])) * crowd.numbers(mj_model)
        plans.append(crowd.build(mj_model, make, members, (trees, halves), candidates.geom, before, first))
    found_by = []
    for swarm in swarms:
        # No family has more pairs than there may be contacts.
        most = sum(counts.values())
        families += [
            unlisted(f.name, Block(most, f.contacts, f.types, room.places[f.keys[2]]), make) for f in swarm.families
        ]
        plan, numbers = patches.build(mj_model, make, swarm, room.places, candidates.dim)
        found_by.append(plan)
    firsts = np.cumsum([0, *numbers.values()]).tolist()
    of_patches = flex_pairs(mj_model) if swarms else GeomPairs(met.geom[:0], met.pair[:0])
    all_pairs = GeomPairs(*(np.concatenate(x) for x in zip(listed_pairs, of_patches, strict=True)))
    return CollisionPlan(
        contact_dim=tuple(dim for dim, n in slots.items() for _ in range(n)),
        groups=tuple((first, numbers[dim], slots[dim]) for first, dim in zip(firsts, counts, strict=False)),
        explicit=bool((candidates.pair >= 0).any()),
        any_aligned=bool(aligned.any()),
        itself=bool(contact_source.within_itself(mj_model, all_pairs).any()),
        pairs_elements=bool(swarms) or bool((candidates.types[:, 0] > VERTEX).any()),
        in_order=bool((np.diff(order) > 0).all()),
        families=tuple(families),
        terrain=ground,
        crowd=tuple(plans),
        patches=tuple(found_by),
        thinning=thinning.build(mj_model, make, candidates.geom, of_patches.geom),
        speculative=speculative.build(
            mj_model, make, Listed(candidates.geom, candidates.types, candidates.nth, candidates.most)
        ),
        plane=geoms(plane),
        plane_end=make.floats(np.where(candidates.types[plane, 1] == CAPSULE, 1 - 2 * candidates.nth[plane], 0), -1, 1),
        sphere=geoms(sphere),
        capsule=geoms(capsule[candidates.nth[capsule] == 0]),
        round=geoms(np.concatenate([sphere, capsule])),
        core_geom=make.ints(candidates.geom[together]),
        certain=make.bools(np.ones(len(together) - len(capsule) // 2)),
        round_candidate=make.ints(together),
        order=make.ints(order),
        geom=make.ints(candidates.geom),
        source=make.ints(source),
        margin_source=make.ints(contact_source.margin_source(mj_model, listed_pairs)),
        aligned=make.bools(aligned, -1, 1),
        moving=bool(mj_model.geom_surfacevel.any()),
        adhesion_source=contact_source.adhesion_source(mj_model, all_pairs, make),
        extent=make.floats(np.stack([(geom_type == SPHERE) | (geom_type == CAPSULE), geom_type == CAPSULE], axis=-1)),
        geom_body=make.ints(collider_body(mj_model)),
        collider_flex=make.ints(np.concatenate([none, flex, elements])),
        collider_elem=make.ints(np.concatenate([none, np.full(len(flex), -1), elem])),
        collider_vert=make.ints(np.concatenate([none, vert, np.full(len(elem), -1)])),
        collider_dim=make.ints(np.concatenate([0 * none, 0 * flex, mj_model.flex_dim[elements]])),
        first_vertex=make.ints(mj_model.ngeom + mj_model.flex_vertadr if len(flex) else []),
        first_element=make.ints(mj_model.ngeom + len(flex) + mj_model.flex_elemadr if len(flex) else []),
        corner=make.ints(corners(mj_model)),
        geom_type=make.ints(geom_type),
        hull_middle=make.floats(middle),
        hull_reach=make.floats(reach),
        hulled=make.ints(np.flatnonzero(reach.any(1))),
        hulls=hulls,
        geom_hull=make.ints(_geom_hull(mj_model, hulls)),
    )


def _crowds(mj_model: mujoco.MjModel, tried: GeomPairs, capacity: int | None) -> tuple[Crowd, ...]:
    """The crowd that there is, if there is one; none if flexes touch something, or contacts are foreseen."""
    tried = (
        tried if not (len(vertex_flex(mj_model)) or speculates(mj_model)) else GeomPairs(tried.geom[:0], tried.pair[:0])
    )
    return crowd.crowd_of(mj_model, tried, contact_source.condim(mj_model, tried), max(CROWDED, capacity or 0))


def _crowd_families(
    mj_model: mujoco.MjModel, met: GeomPairs, places: dict[tuple[str, int], int], make: Tensors
) -> list[Family]:
    """Of the pairs `met` in a crowd, a family for each number of capsules; which pairs it has depends on the state."""
    types, most = mj_model.geom_type[met.geom], contacts(mj_model, met)
    families = []
    for k, name in enumerate(contact_capacity.CORES):
        mine = (types == CAPSULE).sum(1) == k
        if mine.any():
            kinds = ((SPHERE, SPHERE), (SPHERE, CAPSULE), (CAPSULE, CAPSULE))[k]
            room = min(places["crowd", k], int(mine.sum()))
            block = Block(int(mine.sum()), int(most[mine][0]), ((kinds[0],), (kinds[1],)), room)
            families.append(unlisted(name, block, make))
    return families


def _counted(dim: np.ndarray) -> dict[int, int]:
    """How many of each there are, by condim."""
    return {k: n for k, n in enumerate(np.bincount(dim).tolist()) if n}


def _blocks(candidates: Candidates, members: np.ndarray) -> Blocks:
    """The members of a family, in order, by how many candidates their pairs have."""
    count = candidates.most[members]
    return {n: members[count == n] for n in np.flatnonzero(np.bincount(count)).tolist()}


def _firsts(candidates: Candidates, block: np.ndarray) -> np.ndarray:
    """The first candidates of the pairs of a block."""
    return block[candidates.nth[block] == 0]


def _at_most(
    slots: dict[int, int],
    candidates: Candidates,
    together: np.ndarray,
    blocks: dict[str, Blocks],
    places: dict[tuple[str, int], int],
    prisms: dict[str, int],
) -> dict[int, int]:
    """The same slots, but no more than can be filled.

    together: the candidates of planes, spheres and capsules; prisms: how many families of height fields test
    """
    filled = Counter(_counted(candidates.dim[together]))
    for name, part in blocks.items():
        for each, block in part.items():
            most = min(each * places.get((name, each), len(block)), prisms.get(name, len(block)))
            filled.update({dim: min(n, most) for dim, n in _counted(candidates.dim[block]).items()})
    return {dim: min(n, filled[dim]) for dim, n in slots.items()}


def _family(
    mj_model: mujoco.MjModel,
    name: str,
    part: Blocks,
    places: dict[tuple[str, int], int],
    candidates: Candidates,
    windows: dict[str, Window],
    least: int,
    ground: tuple[TerrainPlan, ...],
    make: Tensors,
) -> Family:
    """The family of these blocks; least: places of the prisms of height fields; ground: the terrain."""
    firsts = {each: _firsts(candidates, block) for each, block in part.items()}
    first = np.concatenate(list(firsts.values()))
    geoms = candidates.geom[first]
    is_sdf = name in ("sdf", "mesh-sdf")

    def types(block: np.ndarray, k: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(np.bincount(candidates.types[block, k])).tolist())

    found = tuple(
        Block(len(block), each, (types(block, 0), types(block, 1)), places.get((name, each), len(block)))
        for each, block in firsts.items()
    )
    return Family(
        name=name,
        blocks=found,
        of_crowd=False,
        geom=make.ints(geoms.T),
        candidate=make.ints(first),
        terrain=tuple(
            terrain.pairs(mj_model, make, ground, candidates.geom[block]) if part.selects else ()
            for part, block in zip(found, firsts.values(), strict=True)
        ),
        fields=(height_field.build(mj_model, geoms, windows[name], least, make),) if name in windows else (),
        distances=(sdf.build(mj_model, geoms, make),) if is_sdf else (),
        triangles=(sdf.triangles(mj_model, geoms, make),) if name == SDF_TRIANGLE else (),
    )


def _geom_hull(mj_model: mujoco.MjModel, hulls: tuple[Hulls, ...]) -> list[int]:
    """`CollisionPlan.geom_hull`."""
    row = {number: k for found in hulls for k, number in enumerate(found.mesh)}
    is_mesh = np.isin(mj_model.geom_type, (MESH, SDF))
    used = np.where(is_mesh, mj_model.geom_dataid, -1).tolist()
    return [row.get(number, -1) for number in used]


def _candidates(mj_model: mujoco.MjModel, pairs: GeomPairs, windows: dict[str, Window]) -> Candidates:
    """The contacts that may arise, by condim, in C's order within each."""
    count = contacts(mj_model, pairs).clip(min=0)
    types = collider_type(mj_model)[pairs.geom]
    for name, window in windows.items():
        count[_family_of(types) == FAMILIES.index(name)] = window.contacts
    tried = np.repeat(np.arange(len(count)), count)
    nth = np.arange(len(tried)) - np.repeat(np.cumsum(count) - count, count)
    dim = contact_source.condim(mj_model, pairs)
    if (dim != dim[:1]).any():
        order = np.argsort(dim[tried], kind="stable")
        tried, nth = tried[order], nth[order]
    return Candidates(dim[tried], pairs.geom[tried], types[tried], pairs.pair[tried], tried, nth, count[tried])


def _family_of(types: np.ndarray) -> np.ndarray:
    """(n,) the place among `FAMILIES` of what collides geoms of these `types (n, 2)`; -1: nothing."""
    place = np.full((TYPES, TYPES), -1)
    for kinds, how in COLLIDED.items():
        place[kinds] = FAMILIES.index(together(how.family))
    one, two = types.T
    return place[one, two]


def _rows(candidates: Candidates) -> dict[str, np.ndarray]:
    """The numbers of the candidates in the order of the rows, by family; those of `CORES` are parts of `ROUND`."""
    family = _family_of(candidates.types)
    round = np.flatnonzero(family == FAMILIES.index(ROUND))
    rows = {part: round[candidates.types[round, 0] == kind] for kind, part in CORES.items()}
    sphere, capsule = rows[CORES[SPHERE]], rows[CORES[CAPSULE]]
    rows[CORES[CAPSULE]] = capsule[np.argsort(candidates.nth[capsule], kind="stable")]
    if len(sphere) + len(capsule) // 2 > MANY:
        second = candidates.types[sphere, 1]
        rows |= dict.fromkeys((CORES[SPHERE], CORES[CAPSULE]), np.zeros(0, dtype=np.int64))
        parts = (sphere[second == SPHERE], sphere[second == CAPSULE], capsule)
        rows |= {name: part for name, part in zip(contact_capacity.CORES, parts, strict=True) if len(part)}
    others = {name: np.flatnonzero(family == k) for k, name in enumerate(FAMILIES) if name != ROUND}
    # In the order in which they are met first.
    for name in sorted((name for name in others if len(others[name])), key=lambda name: int(others[name][0])):
        rows[name] = np.concatenate(list(_blocks(candidates, others[name]).values()))
    return rows
