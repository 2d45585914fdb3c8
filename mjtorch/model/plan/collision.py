"""Index plan of the collision room."""

from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import contact_capacity
from mjtorch.model.plan.geom_pairs import CAPSULE, PLANE, SPHERE, SUPPORTED, tried_pairs, types, unsupported_pairs

__all__ = ["CollisionPlan", "build", "unsupported_pairs"]


@tree.dataclass(kw_only=True)
class CollisionPlan(tree.Tree):
    """Which contacts can arise, and the slots that hold them.

    A *candidate* is a contact that may arise: one, or two, for each pair of geoms that is tested. Candidates are
    grouped by condim, each group in C's order. A group has as many slots as candidates, or fewer: then the closest are
    kept.
    Geometry is done family by family, in the rows [plane, sphere, first of capsule, second of capsule].

    contact_dim: static, `dim` of each contact slot
    groups: static, one (first candidate, candidates, slots) per condim
    explicit: static, whether any candidate belongs to a `<contact><pair>`
    any_aligned: static, whether any candidate is aligned
    in_order: static, whether the rows lie in the order of the candidates
    plane: (2, n) the plane and the other geom of each candidate of that family
    plane_end: (n, 1) which end of a capsule touches the plane: 1, -1; 0 for a sphere
    sphere: (2, n) a sphere and the sphere or capsule that it meets
    capsule: (2, n) two capsules, which make two candidates
    round: (2, n) the geoms of all rows that are not of the plane family
    certain: (n,) bool, True: all rows but the second ones of the capsule family, which exist for parallel axes only
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
    plane: Tensor
    plane_end: Tensor
    sphere: Tensor
    capsule: Tensor
    round: Tensor
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
    candidates = _candidates(mj_model)
    counts = {dim: sum(c.dim == dim for c in candidates) for dim in sorted({c.dim for c in candidates})}
    slots = contact_capacity.slots(mj_model, counts, capacity)
    firsts = np.cumsum([0, *counts.values()]).tolist()
    aligned = [c.types == (PLANE, CAPSULE) for c in candidates]
    geom_type = mj_model.geom_type

    def ints(rows: object, *shape: int) -> Tensor:
        return torch.tensor(np.array(rows, dtype=np.int64).reshape(shape), device=device)

    def floats(x: np.ndarray) -> Tensor:
        return torch.tensor(x, dtype=dtype, device=device)

    plane, sphere, capsule, order = _families(candidates)
    ends = [(1, -1)[c.nth] if c.types[1] == CAPSULE else 0 for c in plane]
    rounds = sphere + capsule + capsule
    return CollisionPlan(
        contact_dim=tuple(dim for dim, n in slots.items() for _ in range(n)),
        groups=tuple((first, counts[dim], slots[dim]) for first, dim in zip(firsts, counts, strict=False)),
        explicit=any(c.pair >= 0 for c in candidates),
        any_aligned=any(aligned),
        in_order=order == sorted(order),
        plane=ints([c.geom for c in plane], -1, 2).T.contiguous(),
        plane_end=floats(np.array(ends)[:, None]),
        sphere=ints([c.geom for c in sphere], -1, 2).T.contiguous(),
        capsule=ints([c.geom for c in capsule], -1, 2).T.contiguous(),
        round=ints([c.geom for c in rounds], -1, 2).T.contiguous(),
        certain=torch.ones(len(order) - len(capsule), dtype=torch.bool, device=device),
        order=ints(order, -1),
        geom=ints([c.geom for c in candidates], -1, 2),
        source=ints([_source(mj_model, c) for c in candidates], -1, 2),
        margin_source=ints([_pair_row(mj_model, c) or c.geom for c in candidates], -1, 2),
        aligned=torch.tensor(aligned, dtype=torch.bool, device=device)[:, None],
        extent=floats(np.stack([(geom_type == SPHERE) | (geom_type == CAPSULE), geom_type == CAPSULE], axis=-1)),
        geom_body=ints(mj_model.geom_bodyid, -1),
    )


def _candidates(mj_model: mujoco.MjModel) -> list[Candidate]:
    """The contacts that may arise, by condim, in C's order within each."""
    candidates = []
    for tried, pair in enumerate(tried_pairs(mj_model)):
        kinds = types(mj_model, pair)
        for index in range(SUPPORTED.get(kinds, 0)):
            dim = _condim(mj_model, pair.geom1, pair.geom2, pair.pair)
            candidates.append(Candidate(dim, (pair.geom1, pair.geom2), kinds, pair.pair, tried, index))
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


def _families(
    candidates: list[Candidate],
) -> tuple[list[Candidate], list[Candidate], list[Candidate], list[int]]:
    """Candidates of the plane and the sphere family, first candidates of the capsule family, and the row of each."""
    plane = [c for c in candidates if c.types[0] == PLANE]
    sphere = [c for c in candidates if c.types[0] == SPHERE]
    capsule = [c for c in candidates if c.types[0] == CAPSULE and c.nth == 0]
    second = [c._replace(nth=1) for c in capsule]
    row = {(c.tried, c.nth): k for k, c in enumerate([*plane, *sphere, *capsule, *second])}
    return plane, sphere, capsule, [row[c.tried, c.nth] for c in candidates]
