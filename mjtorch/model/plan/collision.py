"""Index plan of the collision room."""

import itertools
from collections import Counter
from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import contact_capacity, height_field, mesh, sdf
from mjtorch.model.plan.geom_pairs import (
    CAPSULE,
    MESH,
    PLANE,
    ROUND,
    SDF,
    SPHERE,
    SUPPORTED,
    GeomPair,
    collided,
    together,
    tried_pairs,
    types,
    unsupported_pairs,
)
from mjtorch.model.plan.height_field import HeightFields, Window
from mjtorch.model.plan.mesh import Hulls, hull_reach
from mjtorch.model.plan.sdf import DistanceFields
from mjtorch.model.plan.tensors import Tensors

# Families that are collided by iteration, and those whose pairs take so much that, of many, the closest are chosen.
ITERATED = ("convex", "sdf", "mesh-sdf")
SELECTED = ("box-box", "capsule-box", *ITERATED)
# Families of which it is asked which pairs are near each other: the others are spared much.
BOUNDED = ("plane-mesh", "box-box", *ITERATED)

__all__ = ["Block", "CollisionPlan", "Family", "build", "unsupported_pairs"]


class Block(NamedTuple):
    """Pairs of a family with the same number of candidates each.

    pairs: how many there are; contacts: the candidates of each; types: those of the first geoms and of the second
    places: how many pairs, the closest ones, are looked at closely; all of them, or fewer
    """

    pairs: int
    contacts: int
    types: tuple[tuple[int, ...], tuple[int, ...]]
    places: int


@tree.dataclass(kw_only=True)
class Family(tree.Tree):
    """Pairs of geoms that one function collides, n of them.

    name: static, its key in the table of colliders, or that of the general one
    blocks: static, its parts, in order
    geom: (2, n) geom ids
    candidate: (n,) the first candidate of each pair
    fields: of the first geoms, none where these are no height fields
    distances: none where the second geoms are no signed distance fields, or meet planes
    """

    name: str = tree.field(static=True)
    blocks: tuple[Block, ...] = tree.field(static=True)
    geom: Tensor
    candidate: Tensor
    fields: tuple[HeightFields, ...]
    distances: tuple[DistanceFields, ...]

    @property
    def selects(self) -> bool:
        """Whether there are more pairs than places."""
        return any(block.places < block.pairs for block in self.blocks)

    @property
    def bounded(self) -> bool:
        """Whether it is asked which pairs are near each other: to select them, or to spare the others much."""
        return self.selects or self.name in BOUNDED

    @property
    def planes(self) -> bool:
        """Whether the first geoms are planes."""
        return self.types[0] == (PLANE,)

    @property
    def types(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The types of the first geoms and of the second."""
        one, two = ({t for block in self.blocks for t in block.types[k]} for k in (0, 1))
        return tuple(sorted(one)), tuple(sorted(two))


@tree.dataclass(kw_only=True)
class CollisionPlan(tree.Tree):
    """Which contacts can arise, and the slots that hold them.

    A *candidate* is a contact that may arise: one, or two, for each pair of geoms that is tested. Candidates are
    grouped by condim, each group in C's order. A group has as many slots as candidates, or fewer: then the closest are
    kept.
    Geometry is done family by family, in rows. Planes, spheres and capsules come first, all together: the rows [plane,
    sphere, first of capsule, second of capsule]. Then come the other families, pair by pair. A family of many pairs has
    fewer *places*: the pairs whose boxes along the axes of the world overlap get them, those that overlap most first;
    others are known not to touch, or are counted as lost.

    contact_dim: static, `dim` of each contact slot
    groups: static, one (first candidate, candidates, slots) per condim
    explicit: static, whether any candidate belongs to a `<contact><pair>`
    any_aligned: static, whether any candidate is aligned
    in_order: static, whether the rows lie in the order of the candidates
    families: what are not pairs of planes, spheres and capsules
    plane: (2, n) a plane and the sphere or capsule that it meets, once for each candidate
    plane_end: (n, 1) which end of a capsule touches the plane: 1, -1; 0 for a sphere
    sphere: (2, n) a sphere and the sphere or capsule that it meets
    capsule: (2, n) two capsules, which make two candidates
    round: (2, n) the geoms of the sphere rows and the capsule rows
    core_geom: (n, 2) the geoms of the plane, sphere and capsule rows
    certain: (n,) bool, True: these rows but the second ones of capsules, which exist for parallel axes only
    round_candidate: (n,) the candidates of the plane, sphere and capsule rows
    order: (ncandidate,) the row of each candidate
    geom: (ncandidate, 2) geom ids, as in the contact
    source: (ncandidate, 2) whose parameters are mixed: rows of [geoms, pairs]; twice the same where nothing is mixed
    margin_source: (ncandidate, 2) the same for margin and gap, which know no priority
    aligned: (ncandidate, 1) bool, the contact frame follows the axis of the second geom
    moving: static, whether the surface of a geom moves
    adhesion_source: if contacts stick, (ngeom, ngeom, 2) where the adhesion of two geoms lies in [geoms, pairs], twice
        the same where nothing is added
    extent: (ngeom, 2) 1 where a geom's radius and half-length are in the first two sizes, else 0
    geom_body: (ngeom,) body ids
    geom_type: (ngeom,) mjtGeom
    hull_reach: (ngeom, 3) [m] how far the hulls of meshes reach along their axes
    hulls: those of all meshes, none if there are none; geom_hull: (ngeom,) which of them each geom is, -1: none
    """

    contact_dim: tuple[int, ...] = tree.field(static=True)
    groups: tuple[tuple[int, int, int], ...] = tree.field(static=True)
    explicit: bool = tree.field(static=True)
    any_aligned: bool = tree.field(static=True)
    in_order: bool = tree.field(static=True)
    families: tuple[Family, ...]
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
    geom_type: Tensor
    hull_reach: Tensor
    hulls: tuple[Hulls, ...]
    geom_hull: Tensor

    @property
    def selects(self) -> bool:
        """Whether there are pairs that are looked at closely only if they are among the closest."""
        return any(family.selects for family in self.families)

    @property
    def ncon(self) -> int:
        """Number of contact slots."""
        return len(self.contact_dim)

    @property
    def ncandidate(self) -> int:
        """Number of contacts that may arise."""
        return sum(count for _, count, _ in self.groups)


class Candidate(NamedTuple):
    """The contact number `nth` of the geom pair number `tried`."""

    dim: int
    geom: tuple[int, int]
    types: tuple[int, int]
    pair: int
    tried: int
    nth: int


def build(mj_model: mujoco.MjModel, make: Tensors, capacity: int | None) -> CollisionPlan:
    """The plan for `mj_model`; pairs that are not supported are left out (`put_model` refuses them).

    capacity: the most contacts kept at a time; None: chosen from short rollouts.
    """
    tried = tried_pairs(mj_model)
    windows = height_field.windows(mj_model, tried)
    candidates = _candidates(mj_model, tried, windows)
    counts = {dim: sum(c.dim == dim for c in candidates) for dim in sorted({c.dim for c in candidates})}
    rows = _rows(candidates)
    blocks = {name: _blocks(members) for name, members in rows.items() if name not in ("plane", "sphere", "capsule")}
    many = {(name, k): _pairs(mj_model, block) for name, part in blocks.items() for k, block in part.items()}
    room = contact_capacity.choose(mj_model, counts, {key: many[key] for key in many if key[0] in SELECTED}, capacity)
    slots = _at_most(room.slots, rows, blocks, room.places)
    firsts = np.cumsum([0, *counts.values()]).tolist()
    aligned = [c.types == (PLANE, CAPSULE) for c in candidates]
    geom_type = mj_model.geom_type
    hulls = mesh.build(mj_model, make)

    row = {(c.tried, c.nth): k for k, c in enumerate(itertools.chain(*rows.values()))}
    order = [row[c.tried, c.nth] for c in candidates]
    plane, sphere, capsule = (rows.pop(part) for part in ("plane", "sphere", "capsule"))
    ends = [(1, -1)[c.nth] if c.types[1] == CAPSULE else 0 for c in plane]

    def geoms(those: list[Candidate]) -> Tensor:
        return make.ints([c.geom for c in those], -1, 2).T.contiguous()

    families = [_family(mj_model, name, part, room.places, candidates, windows, make) for name, part in blocks.items()]
    return CollisionPlan(
        contact_dim=tuple(dim for dim, n in slots.items() for _ in range(n)),
        groups=tuple((first, counts[dim], slots[dim]) for first, dim in zip(firsts, counts, strict=False)),
        explicit=any(c.pair >= 0 for c in candidates),
        any_aligned=any(aligned),
        in_order=order == sorted(order),
        families=tuple(families),
        plane=geoms(plane),
        plane_end=make.floats(ends, -1, 1),
        sphere=geoms(sphere),
        capsule=geoms([c for c in capsule if c.nth == 0]),
        round=geoms(sphere + capsule),
        core_geom=make.ints([c.geom for c in plane + sphere + capsule], -1, 2),
        certain=make.bools([True] * (len(plane) + len(sphere) + len(capsule) // 2)),
        round_candidate=make.ints(np.argsort(order)[: len(plane) + len(sphere) + len(capsule)], -1),
        order=make.ints(order),
        geom=make.ints([c.geom for c in candidates], -1, 2),
        source=make.ints([_source(mj_model, c) for c in candidates], -1, 2),
        margin_source=make.ints([_pair_row(mj_model, c) or c.geom for c in candidates], -1, 2),
        aligned=make.bools(aligned, -1, 1),
        moving=bool(mj_model.geom_surfacevel.any()),
        adhesion_source=_adhesion_source(mj_model, candidates, make),
        extent=make.floats(np.stack([(geom_type == SPHERE) | (geom_type == CAPSULE), geom_type == CAPSULE], axis=-1)),
        geom_body=make.ints(mj_model.geom_bodyid),
        geom_type=make.ints(geom_type),
        hull_reach=make.floats(hull_reach(mj_model)),
        hulls=hulls,
        geom_hull=make.ints(_geom_hull(mj_model, hulls)),
    )


def _adhesion_source(mj_model: mujoco.MjModel, candidates: list[Candidate], make: Tensors) -> tuple[Tensor, ...]:
    """`CollisionPlan.adhesion_source`."""
    if not (mj_model.geom_adhesion.any() or mj_model.pair_adhesion.any()):
        return ()
    table = np.zeros((mj_model.ngeom, mj_model.ngeom, 2))
    for c in candidates:
        table[c.geom] = _source(mj_model, c)
    return (make.ints(table),)


def _blocks(members: list[Candidate]) -> dict[int, list[Candidate]]:
    """The candidates of a family by how many their pairs have."""
    most: dict[int, int] = {}
    for c in members:
        most[c.tried] = max(most.get(c.tried, 0), c.nth + 1)
    return {n: [c for c in members if most[c.tried] == n] for n in sorted(set(most.values()))}


def _pairs(mj_model: mujoco.MjModel, block: list[Candidate]) -> contact_capacity.Pairs:
    """The pairs of a block, and how near to each other these matter."""
    first = [c for c in block if c.nth == 0]
    geom = np.array([c.geom for c in first])
    explicit = np.array([c.pair for c in first])
    within = (mj_model.geom_margin + mj_model.geom_gap)[geom].sum(1)
    if (explicit >= 0).any():
        within = np.where(explicit >= 0, (mj_model.pair_margin + mj_model.pair_gap)[explicit], within)
    return contact_capacity.Pairs(geom, within)


def _at_most(
    slots: dict[int, int],
    rows: dict[str, list[Candidate]],
    blocks: dict[str, dict[int, list[Candidate]]],
    places: dict[tuple[str, int], int],
) -> dict[int, int]:
    """The same slots, but no more than can be filled."""
    filled = Counter(c.dim for part in ("plane", "sphere", "capsule") for c in rows[part])
    for name, part in blocks.items():
        for contacts, block in part.items():
            count = Counter(c.dim for c in block)
            most = contacts * places.get((name, contacts), len(block))
            filled.update({dim: min(n, most) for dim, n in count.items()})
    return {dim: min(n, filled[dim]) for dim, n in slots.items()}


def _family(
    mj_model: mujoco.MjModel,
    name: str,
    part: dict[int, list[Candidate]],
    places: dict[tuple[str, int], int],
    candidates: list[Candidate],
    windows: dict[str, Window],
    make: Tensors,
) -> Family:
    """The family of these blocks."""
    pairs = {contacts: [c for c in block if c.nth == 0] for contacts, block in part.items()}
    geoms = [c.geom for block in pairs.values() for c in block]
    first = {(c.tried, c.nth): k for k, c in enumerate(candidates)}
    is_sdf = name in ("sdf", "mesh-sdf")

    def types(block: list[Candidate], k: int) -> tuple[int, ...]:
        return tuple(sorted({c.types[k] for c in block}))

    return Family(
        name=name,
        blocks=tuple(
            Block(len(block), contacts, (types(block, 0), types(block, 1)), places.get((name, contacts), len(block)))
            for contacts, block in pairs.items()
        ),
        geom=make.ints(geoms, -1, 2).T.contiguous(),
        candidate=make.ints([first[c.tried, 0] for block in pairs.values() for c in block], -1),
        fields=(height_field.build(mj_model, geoms, windows[name], make),) if name in windows else (),
        distances=(sdf.build(mj_model, geoms, make),) if is_sdf else (),
    )


def _geom_hull(mj_model: mujoco.MjModel, hulls: tuple[Hulls, ...]) -> list[int]:
    """`CollisionPlan.geom_hull`."""
    row = {number: k for found in hulls for k, number in enumerate(found.mesh)}
    is_mesh = np.isin(mj_model.geom_type, (MESH, SDF))
    used = np.where(is_mesh, mj_model.geom_dataid, -1).tolist()
    return [row.get(number, -1) for number in used]


def _candidates(mj_model: mujoco.MjModel, pairs: list[GeomPair], windows: dict[str, Window]) -> list[Candidate]:
    """The contacts that may arise, by condim, in C's order within each."""
    candidates = []
    for tried, pair in enumerate(pairs):
        kinds, how = types(mj_model, pair), collided(mj_model, pair)
        window = windows.get(together(how.family)) if how else None
        count = window.contacts if window else how.contacts if how else 0
        dim = _condim(mj_model, pair.geom1, pair.geom2, pair.pair)
        for nth in range(count):
            candidates.append(Candidate(dim, (pair.geom1, pair.geom2), kinds, pair.pair, tried, nth))
    return sorted(candidates, key=lambda c: c.dim)


def _condim(mj_model: mujoco.MjModel, geom1: int, geom2: int, pair: int) -> int:
    """Of an explicit pair its own, else that of the geom of higher priority, else the larger (mj_contactParam)."""
    if pair >= 0:
        return int(mj_model.pair_dim[pair])
    priority1, priority2 = mj_model.geom_priority[[geom1, geom2]]
    condim1, condim2 = mj_model.geom_condim[[geom1, geom2]]
    if priority1 != priority2:
        return int(condim1 if priority1 > priority2 else condim2)
    return int(max(condim1, condim2))


def _pair_row(mj_model: mujoco.MjModel, c: Candidate) -> tuple[int, int] | None:
    """The row of an explicit pair in [geoms, pairs], twice."""
    return (mj_model.ngeom + c.pair,) * 2 if c.pair >= 0 else None


def _source(mj_model: mujoco.MjModel, c: Candidate) -> tuple[int, int]:
    """The rows of [geoms, pairs] whose parameters are mixed; mixing something with itself leaves it as it is."""
    priority1, priority2 = mj_model.geom_priority[list(c.geom)]
    winner = c.geom if priority1 == priority2 else (c.geom[int(priority1 < priority2)],) * 2
    return _pair_row(mj_model, c) or winner


def _rows(candidates: list[Candidate]) -> dict[str, list[Candidate]]:
    """The candidates in the order of the rows, by family; "plane", "sphere" and "capsule" are parts of `ROUND`."""
    rows: dict[str, list[Candidate]] = {"plane": [], "sphere": [], "capsule": []}
    parts = {PLANE: "plane", SPHERE: "sphere", CAPSULE: "capsule"}
    for c in candidates:
        family = together(SUPPORTED[c.types].family)
        rows.setdefault(parts[c.types[0]] if family == ROUND else family, []).append(c)
    rows["capsule"].sort(key=lambda c: c.nth)
    for name in rows:
        if name not in parts.values():
            rows[name] = [c for block in _blocks(rows[name]).values() for c in block]
    return rows
