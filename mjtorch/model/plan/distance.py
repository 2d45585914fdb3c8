"""Index plan of the sensors that measure from one geom to another: which pairs, and whose result each one reports."""

import itertools
from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import height_field, sdf
from mjtorch.model.plan.family import Block, Family
from mjtorch.model.plan.geom_pairs import DISTANCES, HFIELD, SUPPORTED, GeomPairs, contacts, together
from mjtorch.model.plan.height_field import HeightFields
from mjtorch.model.plan.measured import KINDS, Pair, by_contacts, by_field, in_order, measured, types_of
from mjtorch.model.plan.sdf import DistanceFields
from mjtorch.model.plan.tensors import Tensors


class Key(NamedTuple):
    """What is measured once: a pair of geoms, the lower type first, and the sensor whose cutoff matters; -1: none."""

    pair: Pair
    sensor: int


@tree.dataclass(kw_only=True)
class PairGroup(tree.Tree):
    """n pairs of geoms of two types, the lower type first.

    types: static, mjtGeom; geom: (2, n) ids
    """

    types: Pair = tree.field(static=True)
    geom: Tensor


@tree.dataclass(kw_only=True)
class Colliding(tree.Tree):
    """n pairs of geoms of one family, one candidate each, and the sensors (n,) whose cutoffs are their margins."""

    family: Family
    sensor: Tensor


@tree.dataclass(kw_only=True)
class DistancePlan(tree.Tree):
    """The s sensors that measure from geom to geom.

    sensors: static, their ids: those of distances, then of normals, then of points; counts: static, how many of each
    sensor: (s,) ids
    groups: all pairs whose nearest points are sought
    colliding: those whose least contact counts
    pair: (s, k) the pairs that the sensors choose from, as rows of [groups, colliding, no pair], in C's order
    flipped: (s, k) bool, whether the first geom of the pair is on the side where the sensor measures to
    """

    sensors: tuple[int, ...] = tree.field(static=True)
    counts: tuple[int, int, int] = tree.field(static=True)
    sensor: Tensor
    groups: tuple[PairGroup, ...]
    colliding: tuple[Colliding, ...]
    pair: Tensor
    flipped: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors, sensors: list[int]) -> tuple[DistancePlan, ...]:
    """The plan of `sensors`, if there are any."""
    m = mj_model
    if not sensors:
        return ()
    sensors = sorted(sensors, key=lambda i: KINDS.index(m.sensor_type[i]))
    wanted = [[pair for pair in measured(m, i) if types_of(m, pair) in SUPPORTED] for i in sensors]
    keys = [[_key(m, pair, i) for pair in pairs] for i, pairs in zip(sensors, wanted, strict=True)]
    grouped: dict[Pair, list[Key]] = {}
    colliding: dict[str, list[Key]] = {}
    for key in dict.fromkeys(itertools.chain(*keys)):
        types = types_of(m, key.pair)
        if by_contacts(m, types):
            colliding.setdefault(together(SUPPORTED[types].family), []).append(key)
        else:
            grouped.setdefault(types, []).append(key)
    row = {key: k for k, key in enumerate(itertools.chain(*grouped.values(), *colliding.values()))}
    width = max(1, *(len(pairs) for pairs in wanted))
    place, flipped = np.full((len(sensors), width), len(row)), np.zeros((len(sensors), width), dtype=bool)
    for k, pairs in enumerate(wanted):
        place[k, : len(pairs)] = [row[key] for key in keys[k]]
        flipped[k, : len(pairs)] = [in_order(m, pair) != pair for pair in pairs]

    def group(types: Pair, keys: list[Key]) -> PairGroup:
        return PairGroup(types=types, geom=make.ints(np.array([key.pair for key in keys]).T))

    number = [int((m.sensor_type[sensors] == kind).sum()) for kind in KINDS]
    return (
        DistancePlan(
            sensors=tuple(sensors),
            counts=(number[0], number[1], number[2]),
            sensor=make.ints(sensors),
            groups=tuple(group(types, keys) for types, keys in grouped.items()),
            colliding=tuple(_colliding(m, make, name, keys) for name, keys in colliding.items()),
            pair=make.ints(place),
            flipped=make.bools(flipped),
        ),
    )


def _key(m: mujoco.MjModel, pair: Pair, sensor: int) -> Key:
    """What `sensor` reads of a pair."""
    types = types_of(m, pair)
    return Key(in_order(m, pair), sensor if by_contacts(m, types) and not by_field(types) else -1)


def _colliding(m: mujoco.MjModel, make: Tensors, name: str, keys: list[Key]) -> Colliding:
    """The pairs of the family `name`. Contacts of convex shapes are all as deep as the first one."""
    geom, sensor = np.array([key.pair for key in keys]), np.array([key.sensor for key in keys])
    types = (tuple(np.unique(m.geom_type[side]).tolist()) for side in geom.T)
    fields: tuple[HeightFields, ...] = ()
    distances: tuple[DistanceFields, ...] = ()
    most = 1
    if m.geom_type[geom[0, 0]] == HFIELD:
        window = height_field.covered(m, geom, m.sensor_cutoff[sensor])
        fields, most = (height_field.build(m, geom, window, 0, make),), window.contacts
    elif name != "convex":
        most = int(contacts(m, GeomPairs(geom[:1], np.full(1, -1)))[0])
        distances = (sdf.build(m, geom, make),) if name in map(together, DISTANCES) else ()
    family = Family(
        name=name,
        blocks=(Block(len(keys), most, (next(types), next(types)), len(keys)),),
        of_crowd=False,
        geom=make.ints(geom.T),
        candidate=make.ints(np.arange(len(keys))),
        terrain=(),
        fields=fields,
        distances=distances,
        triangles=(),
    )
    return Colliding(family=family, sensor=make.ints(sensor))
