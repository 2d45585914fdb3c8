"""Pairs of colliders that one function collides."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.geom_pairs import ELEMENTS, PLANE
from mjtorch.model.plan.height_field import HeightFields
from mjtorch.model.plan.sdf import DistanceFields, TriangleFields
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.terrain import TerrainPairs

# Families that are collided by iteration, and those whose pairs take so much that, of many, the closest are chosen.
ITERATED = ("convex", "sdf", "mesh-sdf")
OF_ELEMENTS = tuple(dict.fromkeys(how.family for how in ELEMENTS.values()))
SELECTED = ("box-box", "capsule-box", *ITERATED, *OF_ELEMENTS)
# Families of which it is asked which pairs are near each other: the others are spared much.
BOUNDED = ("plane-mesh", "box-box", "capsule-box", *ITERATED, *OF_ELEMENTS)
WITHOUT_FIELDS: dict[str, tuple[()]] = dict.fromkeys(("terrain", "fields", "distances", "triangles"), ())


class Block(NamedTuple):
    """Pairs of a family with the same number of candidates each.

    pairs: how many there are; contacts: the candidates of each; types: those of the first geoms and of the second
    places: how many pairs, the closest ones, are looked at closely; all of them, or fewer
    """

    pairs: int
    contacts: int
    types: tuple[tuple[int, ...], tuple[int, ...]]
    places: int

    @property
    def selects(self) -> bool:
        """Whether there are more pairs than places."""
        return self.places < self.pairs


@tree.dataclass(kw_only=True)
class Family(tree.Tree):
    """Pairs of geoms, or colliders, that one function collides, n of them.

    name: static, its key in the table of colliders, or that of the general one
    blocks: static, its parts, in order
    of_crowd: static, whether they belong to a crowd, or are found by patches; then they are not listed
    geom: (2, n) geom ids
    candidate: (n,) the first candidate of each pair
    terrain: of each block which pairs have a geom of the terrain, if these are many; none if all are looked at
    fields: of the first geoms, none where these are no height fields
    distances: none where the second geoms are no signed distance fields, or meet planes
    triangles: none where the second ones are no triangles of flexes, or the first no signed distance fields
    """

    name: str = tree.field(static=True)
    blocks: tuple[Block, ...] = tree.field(static=True)
    of_crowd: bool = tree.field(static=True)
    geom: Tensor
    candidate: Tensor
    terrain: tuple[tuple[TerrainPairs, ...], ...]
    fields: tuple[HeightFields, ...]
    distances: tuple[DistanceFields, ...]
    triangles: tuple[TriangleFields, ...]

    @property
    def selects(self) -> bool:
        """Whether there are more pairs than places."""
        return any(block.selects for block in self.blocks)

    @property
    def bounded(self) -> bool:
        """Whether it is asked which pairs are near each other: to select them, or to spare the others much."""
        return self.of_crowd or self.selects or self.name in BOUNDED

    @property
    def firsts(self) -> list[int]:
        """The first pair of each block."""
        return [sum(block.pairs for block in self.blocks[:k]) for k in range(len(self.blocks))]

    @property
    def parts(self) -> list["Family"]:
        """Families of one block each."""
        found = zip(self.blocks, self.terrain, self.firsts, strict=True)
        return [
            self.replace(
                blocks=(block,),
                terrain=(terrain,),
                geom=self.geom[:, first : first + block.pairs],
                candidate=self.candidate[first : first + block.pairs],
            )
            for block, terrain, first in found
        ]

    @property
    def planes(self) -> bool:
        """Whether the first geoms are planes."""
        return self.types[0] == (PLANE,)

    @property
    def types(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The types of the first geoms and of the second."""
        one, two = ({t for block in self.blocks for t in block.types[k]} for k in (0, 1))
        return tuple(sorted(one)), tuple(sorted(two))


def unlisted(name: str, block: Block, make: Tensors) -> Family:
    """The family of pairs of a crowd, or found by patches: which pairs it has depends on the state."""
    none = make.ints(np.zeros((2, 0)))
    return Family(name=name, blocks=(block,), of_crowd=True, geom=none, candidate=none[0], **WITHOUT_FIELDS)
