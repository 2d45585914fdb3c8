"""Index plan of spheres and capsules of several kinematic trees, of which there are too many pairs to list them."""

from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model.option import DisableBit, EnableBit
from mjtorch.model.plan.geom_pairs import CAPSULE, SPHERE, GeomPairs
from mjtorch.model.plan.near import Boxes, overlaps
from mjtorch.model.plan.tensors import Tensors

# What has places in a crowd.
KEYS = (("trees", 0), ("halves", 0), ("crowd", 0), ("crowd", 1), ("crowd", 2))
# Numbers of pairs must be exact in single precision.
EXACT = 2**24


@tree.dataclass(kw_only=True)
class CrowdPlan(tree.Tree):
    """The spheres and capsules of n kinematic trees, w of each at most, which may all meet those of the others.

    Their pairs are found in three steps, each of which looks at what the one before has left: trees near each other,
    geoms of the first that are near the second, geoms of the second that are near these. What is found of each kind has
    as many places as a family in the plan of collisions, and is no candidate there.

    geom: (n, w) their geom ids; there: (n, w) bool, false where a tree has fewer, whose first one is repeated
    capsule: (n, w) 1 for capsules, 0 for spheres
    pair: (2, k) every two trees
    trees, halves: static, how many pairs of trees, and of a geom and a tree, have places
    priority: (ngeom,) whose parameters are taken; block: (ngeom, 2) the first geom of the body of each, and how many
        geoms that has
    swapped: static, whether C lists pairs by the geom of the lower type, not by the one of the lower id
    first: static, the number before those of its candidates
    number: (ncandidate,) of the candidates that are listed, those of one condim after those of another, see `numbered`
    """

    geom: Tensor
    there: Tensor
    capsule: Tensor
    pair: Tensor
    trees: int = tree.field(static=True)
    halves: int = tree.field(static=True)
    priority: Tensor
    block: Tensor
    swapped: bool = tree.field(static=True)
    first: int = tree.field(static=True)
    number: Tensor


class Crowd(NamedTuple):
    """Which geoms make up a crowd.

    geom, there, capsule: (n, w) as in `CrowdPlan`; within: (ngeom,) [m] how near to geoms others matter
    """

    geom: np.ndarray
    there: np.ndarray
    capsule: np.ndarray
    within: np.ndarray

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        """What has places: pairs of trees, of geoms and trees, and of geoms by the number of capsules."""
        return KEYS

    @property
    def arrays(self) -> list[np.ndarray]:
        """All that says what is near."""
        return [self.geom, self.there, self.capsule, self.within]

    @property
    def pairs(self) -> np.ndarray:
        """(2, k) every two trees."""
        return np.stack(np.triu_indices(len(self.geom), 1))

    def near(self, boxes: Boxes) -> list[int]:
        """How many pairs of trees, of geoms and trees, and of geoms by the number of capsules, are near each other."""
        reach = boxes.world[: len(self.within)] + self.within[:, None]
        pos = boxes.pos[: len(reach)]
        box = np.stack([pos - reach, -pos - reach], axis=-2)[self.geom]
        all_of, (one, two) = box.min(1), self.pairs
        close = overlaps(all_of[one], all_of[two])
        one, two = one[close], two[close]
        pair, first = (self.there[one] & overlaps(box[one], all_of[two][:, None])).nonzero()
        meets = self.there[two[pair]] & overlaps(box[one[pair], first][:, None], box[two[pair]])
        kind = (self.capsule[one[pair], first][:, None] + self.capsule[two[pair]])[meets]
        return [len(one), len(pair), *np.bincount(kind, minlength=3).tolist()]


def overlap(one: Tensor, two: Tensor, within: Tensor | None = None) -> Tensor:
    """Whether (...) boxes (..., 2, 3) [m], their lower corners and minus their upper ones, overlap.

    within: (...) [m] or are no further apart than that
    """
    gap = one + two.flip(-2)
    return ((gap <= 0) if within is None else (gap <= within[..., None, None])).flatten(-2).all(-1)


def crowd_of(m: mujoco.MjModel, tried: GeomPairs, dim: np.ndarray, few: int) -> tuple[Crowd, ...]:
    """The crowd whose pairs are among those `tried`, if they are more than `few` and all that there can be.

    dim: (n,) condim of the pairs. Where contacts stick, pairs are explicit, or those of the crowd differ in condim,
        there is none.
    """
    owner = m.body_treeid[m.geom_bodyid]
    mine = between(m, tried)
    geoms = np.unique(tried.geom[mine])
    of_trees = [geoms[owner[geoms] == k] for k in np.unique(owner[geoms])]
    sizes = np.array([len(x) for x in of_trees])
    dims = np.unique(dim[mine])
    plain = not ((tried.pair >= 0).any() or len(dims) > 1 or m.geom_adhesion.any() or m.pair_adhesion.any())
    if mine.sum() <= few or not plain or len(np.unique(dim)) * numbers(m) >= EXACT:
        return ()
    if 2 * mine.sum() != sizes.sum() ** 2 - (sizes**2).sum():
        return ()
    there = np.arange(sizes.max()) < sizes[:, None]
    geom = np.array([np.pad(x, (0, sizes.max() - len(x)), constant_values=x[0]) for x in of_trees])
    margin = 0.5 * m.opt.o_margin if m.opt.enableflags & EnableBit.OVERRIDE else m.geom_margin
    return (Crowd(geom, there, (m.geom_type[geom] == CAPSULE).astype(np.int64), margin + m.geom_gap),)


def between(m: mujoco.MjModel, tried: GeomPairs) -> np.ndarray:
    """(n,) bool: which pairs are of spheres and capsules of different kinematic trees."""
    owner = m.body_treeid[m.geom_bodyid]
    moves = np.isin(m.geom_type, (SPHERE, CAPSULE)) & (owner >= 0)
    one, two = tried.geom.T
    return moves[one] & moves[two] & (owner[one] != owner[two])


def numbers(m: mujoco.MjModel) -> int:
    """How many numbers the candidates of each condim have."""
    return 2 * m.ngeom**2


def build(
    m: mujoco.MjModel,
    make: Tensors,
    crowd: Crowd,
    places: tuple[int, int],
    geom: np.ndarray,
    of_listed: np.ndarray,
    first: int,
) -> CrowdPlan:
    """The plan; places: of pairs of trees, and of a geom and a tree; geom: (ncandidate, 2) of what is listed.

    of_listed, first: the numbers before those of each candidate that is listed (ncandidate,), and before its own
    """
    body = m.geom_bodyid
    block = np.stack([m.body_geomadr[body], m.body_geomnum[body]], axis=-1)
    swapped = not m.opt.disableflags & DisableBit.MIDPHASE
    number = numbered(torch.tensor(geom), torch.tensor(block, dtype=torch.int64), swapped)
    return CrowdPlan(
        geom=make.ints(crowd.geom),
        there=make.bools(crowd.there),
        capsule=make.ints(crowd.capsule),
        pair=make.ints(crowd.pairs),
        trees=places[0],
        halves=places[1],
        priority=make.ints(m.geom_priority),
        block=make.ints(block),
        swapped=swapped,
        first=first,
        number=make.ints(number.numpy() + of_listed),
    )


def numbered(geom: Tensor, block: Tensor, swapped: bool) -> Tensor:
    """Numbers (n,) below `2 ngeom^2` in whose order C lists the pairs `geom` (n, 2): by bodies, then by geoms.

    block: (ngeom, 2) the first geom of the body of each, and how many geoms that has; swapped: whether of two bodies
    the pairs whose first geom belongs to the second body come after the others
    """
    low, high = geom.amin(1), geom.amax(1)
    (start1, count1), (start2, count2) = block[low].unbind(-1), block[high].unbind(-1)
    i, j = low - start1, high - start2
    place = i * count2 + j
    if swapped:
        place = torch.where(geom[:, 0] > geom[:, 1], count1 * count2 + j * count1 + i, place)
    return 2 * (start1 * len(block) + count1 * start2) + place
