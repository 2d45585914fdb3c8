"""Index plan of the sensors that measure from one geom to another: which pairs, and whose result each one reports."""

import itertools

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.option import DisableBit
from mjtorch.model.plan.geom_pairs import BOX, CONVEX, HFIELD, MESH, SDF, SUPPORTED
from mjtorch.model.plan.tensors import Tensors

BOX_BOX = SUPPORTED[BOX, BOX].family
BODY = int(mujoco.mjtObj.mjOBJ_BODY)
# Distance, normal, and the points on both.
KINDS = tuple(int(getattr(mujoco.mjtSensor, f"mjSENS_GEOM{name}")) for name in ("DIST", "NORMAL", "FROMTO"))
Pair = tuple[int, int]


@tree.dataclass(kw_only=True)
class PairGroup(tree.Tree):
    """n pairs of geoms of two types, the lower type first.

    types: static, mjtGeom; geom: (2, n) ids
    """

    types: Pair = tree.field(static=True)
    geom: Tensor


@tree.dataclass(kw_only=True)
class DistancePlan(tree.Tree):
    """The s sensors that measure from geom to geom.

    sensors: static, their ids: those of distances, then of normals, then of points; counts: static, how many of each
    sensor: (s,) ids
    groups: all pairs that are measured
    pair: (s, k) the pairs that the sensors choose from, as rows of [groups, no pair], in C's order
    flipped: (s, k) bool, whether the first geom of the pair is on the side where the sensor measures to
    """

    sensors: tuple[int, ...] = tree.field(static=True)
    counts: tuple[int, int, int] = tree.field(static=True)
    sensor: Tensor
    groups: tuple[PairGroup, ...]
    pair: Tensor
    flipped: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors, sensors: list[int]) -> tuple[DistancePlan, ...]:
    """The plan of `sensors`, if there are any."""
    m = mj_model
    if not sensors:
        return ()
    sensors = sorted(sensors, key=lambda i: KINDS.index(m.sensor_type[i]))
    wanted = [[pair for pair in measured(m, i) if _is_known(_types(m, pair))] for i in sensors]
    every = dict.fromkeys(_in_order(m, pair) for pairs in wanted for pair in pairs)
    grouped: dict[Pair, list[Pair]] = {}
    for pair in every:
        grouped.setdefault(_types(m, pair), []).append(pair)
    row = {pair: k for k, pair in enumerate(itertools.chain(*grouped.values()))}
    width = max(1, *(len(pairs) for pairs in wanted))
    place, flipped = np.full((len(sensors), width), len(row)), np.zeros((len(sensors), width), dtype=bool)
    for k, pairs in enumerate(wanted):
        place[k, : len(pairs)] = [row[_in_order(m, pair)] for pair in pairs]
        flipped[k, : len(pairs)] = [_in_order(m, pair) != pair for pair in pairs]

    def group(types: Pair, pairs: list[Pair]) -> PairGroup:
        return PairGroup(types=types, geom=make.ints(np.array(pairs).T))

    number = [int((m.sensor_type[sensors] == kind).sum()) for kind in KINDS]
    return (
        DistancePlan(
            sensors=tuple(sensors),
            counts=(number[0], number[1], number[2]),
            sensor=make.ints(sensors),
            groups=tuple(group(types, pairs) for types, pairs in grouped.items()),
            pair=make.ints(place),
            flipped=make.bools(flipped),
        ),
    )


def measured(m: mujoco.MjModel, sensor: int) -> list[Pair]:
    """The pairs that a sensor measures, in C's order: each geom of one side with each of the other."""

    def side(kind: int, obj: int) -> range:
        first = int(m.body_geomadr[obj]) if kind == BODY else obj
        return range(first, first + (int(m.body_geomnum[obj]) if kind == BODY else 1))

    one = side(m.sensor_objtype[sensor], int(m.sensor_objid[sensor]))
    other = side(m.sensor_reftype[sensor], int(m.sensor_refid[sensor]))
    return list(itertools.product(one, other))


def measured_meshes(m: mujoco.MjModel) -> set[int]:
    """The meshes that sensors measure from or to."""
    sensors = np.flatnonzero(np.isin(m.sensor_type, KINDS))
    geoms = {geom for i in sensors for pair in measured(m, int(i)) if _is_known(_types(m, pair)) for geom in pair}
    return {int(m.geom_dataid[geom]) for geom in geoms if m.geom_type[geom] == MESH}


def unmeasured_geoms(m: mujoco.MjModel) -> list[int]:
    """The geoms of pairs that sensors measure in C, but not here."""
    sensors = np.flatnonzero(np.isin(m.sensor_type, KINDS))
    pairs = {pair for i in sensors for pair in measured(m, int(i)) if not _is_void(_types(m, pair))}
    native = not m.opt.disableflags & DisableBit.NATIVECCD
    return sorted({geom for pair in pairs if not _is_known(_types(m, pair), native) for geom in pair})


def _is_void(types: Pair) -> bool:
    """Whether C has no distance of such geoms: it is as if they were not there."""
    return types[1] <= HFIELD


def _is_known(types: Pair, native: bool = True) -> bool:
    """Whether there is a distance of such geoms; native: with what `nativeccd` switches."""
    is_shape = types in SUPPORTED and not {HFIELD, SDF} & {*types}
    family = SUPPORTED[types].family if is_shape else None
    return family is not None and (native or family not in (*CONVEX, BOX_BOX))


def _in_order(m: mujoco.MjModel, pair: Pair) -> Pair:
    """With the lower type first."""
    return pair if m.geom_type[pair[0]] <= m.geom_type[pair[1]] else pair[::-1]


def _types(m: mujoco.MjModel, pair: Pair) -> Pair:
    """The mjtGeom of both, the lower one first."""
    one, two = sorted(int(m.geom_type[geom]) for geom in pair)
    return one, two
