"""Which pairs of geoms are measured by sensors, and how: as nearest points, or by the contacts that they have."""

import itertools

import mujoco
import numpy as np

from mjtorch.model.option import DisableBit
from mjtorch.model.plan.geom_pairs import BOX, CONVEX, DISTANCES, FIELDS, HFIELD, MESH, SDF, SUPPORTED

BOX_BOX = SUPPORTED[BOX, BOX].family
BODY = int(mujoco.mjtObj.mjOBJ_BODY)
# Distance, normal, and the points on both.
KINDS = tuple(int(getattr(mujoco.mjtSensor, f"mjSENS_GEOM{name}")) for name in ("DIST", "NORMAL", "FROMTO"))
Pair = tuple[int, int]


def measured(m: mujoco.MjModel, sensor: int) -> list[Pair]:
    """The pairs that a sensor measures, in C's order: each geom of one side with each of the other."""

    def side(kind: int, obj: int) -> range:
        first = int(m.body_geomadr[obj]) if kind == BODY else obj
        return range(first, first + (int(m.body_geomnum[obj]) if kind == BODY else 1))

    one = side(m.sensor_objtype[sensor], int(m.sensor_objid[sensor]))
    other = side(m.sensor_reftype[sensor], int(m.sensor_refid[sensor]))
    return [pair for pair in itertools.product(one, other) if not _is_void(types_of(m, pair))]


def measured_meshes(m: mujoco.MjModel) -> set[int]:
    """The meshes that sensors measure from or to by their hulls."""
    pairs = [pair for pair in _all(m) if types_of(m, pair) in SUPPORTED and not by_field(types_of(m, pair))]
    return {int(m.geom_dataid[geom]) for pair in pairs for geom in pair if m.geom_type[geom] in (MESH, SDF)} - {-1}


def unmeasured_geoms(m: mujoco.MjModel) -> list[int]:
    """The geoms of pairs that sensors measure in C, but not here: C warns of them."""
    return sorted({geom for pair in _all(m) if types_of(m, pair) not in SUPPORTED for geom in pair})


def by_contacts(m: mujoco.MjModel, types: Pair) -> bool:
    """Whether the distance of such geoms is the least of their contacts, with a margin as large as the cutoff."""
    family = SUPPORTED[types].family
    native = not m.opt.disableflags & DisableBit.NATIVECCD
    return family in FIELDS or by_field(types) or (not native and family in (*CONVEX, BOX_BOX))


def by_field(types: Pair) -> bool:
    """Whether a signed distance field collides, and not its hull."""
    return SUPPORTED[types].family in DISTANCES


def in_order(m: mujoco.MjModel, pair: Pair) -> Pair:
    """With the lower type first."""
    return pair if m.geom_type[pair[0]] <= m.geom_type[pair[1]] else pair[::-1]


def types_of(m: mujoco.MjModel, pair: Pair) -> Pair:
    """The mjtGeom of both, the lower one first."""
    one, two = sorted(int(m.geom_type[geom]) for geom in pair)
    return one, two


def _all(m: mujoco.MjModel) -> set[Pair]:
    """The pairs that any sensor measures."""
    return {pair for i in np.flatnonzero(np.isin(m.sensor_type, KINDS)) for pair in measured(m, int(i))}


def _is_void(types: Pair) -> bool:
    """Whether C has no distance of such geoms: it is as if they were not there."""
    return types[1] <= HFIELD
