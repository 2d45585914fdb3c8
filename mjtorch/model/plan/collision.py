"""Index plan of the collision room."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import contact_capacity, height_field
from mjtorch.model.plan.geom_pairs import (
    CAPSULE,
    HFIELD,
    MESH,
    PLANE,
    ROUND,
    SPHERE,
    SUPPORTED,
    GeomPair,
    collided,
    tried_pairs,
    types,
    unsupported_pairs,
)
from mjtorch.model.plan.height_field import HeightFields, Window
from mjtorch.model.plan.mesh import hulls

__all__ = ["CollisionPlan", "Family", "Meshes", "build", "unsupported_pairs"]


@tree.dataclass(kw_only=True)
class Meshes(tree.Tree):
    """The hulls of geoms that are meshes: `mesh` (n,) is the row of each, the other fields are those of `Hulls`."""

    vert: Tensor
    face: Tensor
    normal: Tensor
    mesh: Tensor
    degree: int = tree.field(static=True)


@tree.dataclass(kw_only=True)
class Family(tree.Tree):
    """Pairs of geoms that one function collides, n of them, with the same number of candidates each.

    name: static, its key in the table of colliders
    contacts: static, the candidates of each pair
    geom: (2, n) geom ids
    candidate: (n,) the first candidate of each pair
    meshes: of the first geoms and of the second, None where these are no meshes
    fields: of the first geoms, None where these are no height fields
    """

    name: str = tree.field(static=True)
    contacts: int = tree.field(static=True)
    geom: Tensor
    candidate: Tensor
    meshes: tuple[Meshes | None, Meshes | None]
    fields: HeightFields | None


@tree.dataclass(kw_only=True)
class CollisionPlan(tree.Tree):
    """Which contacts can arise, and the slots that hold them.

    A *candidate* is a contact that may arise: one, or two, for each pair of geoms that is tested. Candidates are
    grouped by condim, each group in C's order. A group has as many slots as candidates, or fewer: then the closest are
    kept.
    Geometry is done family by family, in rows. Planes, spheres and capsules come first, all together: the rows [plane,
    sphere, first of capsule, second of capsule]. Then come the other families, pair by pair.

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
    order: (ncandidate,) the row of each candidate
    geom: (ncandidate, 2) geom ids, as in the contact
    source: (ncandidate, 2) whose parameters are mixed: rows of [geoms, pairs]; twice the same where nothing is mixed
    margin_source: (ncandidate, 2) the same for margin and gap, which know no priority
    aligned: (ncandidate, 1) bool, the contact frame follows the axis of the second geom
    extent: (ngeom, 2) 1 where a geom's radius and half-length are in the first two sizes, else 0
    geom_body: (ngeom,) body ids
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
    order: Tensor
    geom: Tensor
    source: Tensor
    margin_source: Tensor
    aligned: Tensor
    extent: Tensor
    geom_body: Tensor

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


def build(mj_model: mujoco.MjModel, device: torch.device, dtype: torch.dtype, capacity: int | None) -> CollisionPlan:
    """The plan for `mj_model`; pairs that are not supported are left out (`put_model` refuses them).

    capacity: the most contacts kept at a time; None: chosen from short rollouts.
    """
    pairs = tried_pairs(mj_model)
    windows = height_field.windows(mj_model, pairs)
    candidates = _candidates(mj_model, pairs, windows)
    counts = {dim: sum(c.dim == dim for c in candidates) for dim in sorted({c.dim for c in candidates})}
    slots = contact_capacity.slots(mj_model, counts, capacity)
    firsts = np.cumsum([0, *counts.values()]).tolist()
    aligned = [c.types == (PLANE, CAPSULE) for c in candidates]
    geom_type = mj_model.geom_type

    def ints(rows: object, *shape: int) -> Tensor:
        return torch.tensor(np.array(rows, dtype=np.int64).reshape(shape), device=device)

    def floats(x: np.ndarray) -> Tensor:
        return torch.tensor(x, dtype=dtype, device=device)

    rows = _rows(candidates)
    row = {(c.tried, c.nth): k for k, c in enumerate(itertools.chain(*rows.values()))}
    order = [row[c.tried, c.nth] for c in candidates]
    plane, sphere, capsule = (rows.pop(part) for part in ("plane", "sphere", "capsule"))
    ends = [(1, -1)[c.nth] if c.types[1] == CAPSULE else 0 for c in plane]

    def geoms(those: list[Candidate]) -> Tensor:
        return ints([c.geom for c in those], -1, 2).T.contiguous()

    families = [_family(mj_model, name, members, candidates, windows, ints, floats) for name, members in rows.items()]
    return CollisionPlan(
        contact_dim=tuple(dim for dim, n in slots.items() for _ in range(n)),
        groups=tuple((first, counts[dim], slots[dim]) for first, dim in zip(firsts, counts, strict=False)),
        explicit=any(c.pair >= 0 for c in candidates),
        any_aligned=any(aligned),
        in_order=order == sorted(order),
        families=tuple(families),
        plane=geoms(plane),
        plane_end=floats(np.array(ends)[:, None]),
        sphere=geoms(sphere),
        capsule=geoms([c for c in capsule if c.nth == 0]),
        round=geoms(sphere + capsule),
        core_geom=ints([c.geom for c in plane + sphere + capsule], -1, 2),
        certain=torch.ones(len(plane) + len(sphere) + len(capsule) // 2, dtype=torch.bool, device=device),
        order=ints(order, -1),
        geom=ints([c.geom for c in candidates], -1, 2),
        source=ints([_source(mj_model, c) for c in candidates], -1, 2),
        margin_source=ints([_pair_row(mj_model, c) or c.geom for c in candidates], -1, 2),
        aligned=torch.tensor(aligned, dtype=torch.bool, device=device)[:, None],
        extent=floats(np.stack([(geom_type == SPHERE) | (geom_type == CAPSULE), geom_type == CAPSULE], axis=-1)),
        geom_body=ints(mj_model.geom_bodyid, -1),
    )


def _family(
    mj_model: mujoco.MjModel,
    name: str,
    members: list[Candidate],
    candidates: list[Candidate],
    windows: dict[int, Window],
    ints: Callable[..., Tensor],
    floats: Callable[..., Tensor],
) -> Family:
    """A family with the candidates `members`."""
    pairs = [c for c in members if c.nth == 0]
    first = {(c.tried, c.nth): k for k, c in enumerate(candidates)}
    one, two = (_meshes(mj_model, [c.geom[k] for c in pairs], ints, floats) for k in (0, 1))
    type1, type2 = pairs[0].types
    is_field = type1 == HFIELD
    return Family(
        name=name,
        contacts=len(members) // len(pairs),
        geom=ints([c.geom for c in pairs], -1, 2).T.contiguous(),
        candidate=ints([first[c.tried, 0] for c in pairs], -1),
        meshes=(one, two),
        fields=height_field.build(mj_model, [c.geom for c in pairs], windows[type2], ints) if is_field else None,
    )


def _meshes(
    mj_model: mujoco.MjModel, geoms: list[int], ints: Callable[..., Tensor], floats: Callable[..., Tensor]
) -> Meshes | None:
    """The hulls of geoms, None unless they are meshes."""
    if mj_model.geom_type[geoms[0]] != MESH:
        return None
    used, row = np.unique(mj_model.geom_dataid[geoms], return_inverse=True)
    found = hulls(mj_model, used.tolist())
    face = ints(found.face, *found.face.shape)
    vert, normal = floats(found.vert), floats(found.normal)
    return Meshes(vert=vert, face=face, normal=normal, mesh=ints(row, -1), degree=found.degree)


def _candidates(mj_model: mujoco.MjModel, pairs: list[GeomPair], windows: dict[int, Window]) -> list[Candidate]:
    """The contacts that may arise, by condim, in C's order within each."""
    candidates = []
    for tried, pair in enumerate(pairs):
        kinds, how = types(mj_model, pair), collided(mj_model, pair)
        count = how.contacts if how else 0
        if how and kinds[0] == HFIELD:
            count = windows[kinds[1]].contacts
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
        family = SUPPORTED[c.types].family
        rows.setdefault(parts[c.types[0]] if family == ROUND else family, []).append(c)
    rows["capsule"].sort(key=lambda c: c.nth)
    return rows
