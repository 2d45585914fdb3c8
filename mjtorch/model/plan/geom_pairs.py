"""Which pairs of geoms are tested for contact, and in which order their contacts are listed (mj_collision)."""

from typing import NamedTuple

import mujoco
import numpy as np

from mjtorch.model.option import DisableBit

PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH, SDF = range(9)
# The family of planes, spheres and capsules among themselves.
ROUND = "round"
# The families of convex shapes that have no formula of their own.
CONVEX = {
    "sphere-ellipsoid": (SPHERE, ELLIPSOID),
    "sphere-mesh": (SPHERE, MESH),
    "capsule-ellipsoid": (CAPSULE, ELLIPSOID),
    "capsule-cylinder": (CAPSULE, CYLINDER),
    "capsule-mesh": (CAPSULE, MESH),
    "ellipsoid-ellipsoid": (ELLIPSOID, ELLIPSOID),
    "ellipsoid-cylinder": (ELLIPSOID, CYLINDER),
    "ellipsoid-box": (ELLIPSOID, BOX),
    "ellipsoid-mesh": (ELLIPSOID, MESH),
    "cylinder-cylinder": (CYLINDER, CYLINDER),
    "cylinder-box": (CYLINDER, BOX),
    "cylinder-mesh": (CYLINDER, MESH),
    "box-mesh": (BOX, MESH),
    "mesh-mesh": (MESH, MESH),
}
# The families of height fields and convex shapes.
FIELDS = {
    "hfield-sphere": (HFIELD, SPHERE),
    "hfield-capsule": (HFIELD, CAPSULE),
    "hfield-ellipsoid": (HFIELD, ELLIPSOID),
    "hfield-cylinder": (HFIELD, CYLINDER),
    "hfield-box": (HFIELD, BOX),
    "hfield-mesh": (HFIELD, MESH),
}
# The families of signed distance fields and what has a distance at every point.
DISTANCES = {
    "sphere-sdf": (SPHERE, SDF),
    "capsule-sdf": (CAPSULE, SDF),
    "ellipsoid-sdf": (ELLIPSOID, SDF),
    "cylinder-sdf": (CYLINDER, SDF),
    "box-sdf": (BOX, SDF),
    "mesh-sdf": (MESH, SDF),
    "sdf-sdf": (SDF, SDF),
}


class Collided(NamedTuple):
    """How two types of geoms are collided: by which family, and the most contacts that a pair of them makes.

    Of height fields this is left open: it depends on how fine these are. Of distance fields the options say it.
    """

    family: str
    contacts: int


def _contacts(type1: int, type2: int) -> int:
    """The most contacts of convex shapes: one where these are round, two along a capsule."""
    return 1 if {SPHERE, ELLIPSOID} & {type1, type2} else 2 if CAPSULE in (type1, type2) else 4


# Types that are collided, the lower one first.
SUPPORTED = {
    (PLANE, SPHERE): Collided(ROUND, 1),
    (PLANE, CAPSULE): Collided(ROUND, 2),
    (PLANE, ELLIPSOID): Collided("plane-ellipsoid", 1),
    (PLANE, CYLINDER): Collided("plane-cylinder", 4),
    (PLANE, BOX): Collided("plane-box", 4),
    (PLANE, MESH): Collided("plane-mesh", 4),
    (PLANE, SDF): Collided("plane-mesh", 4),
    (SPHERE, SPHERE): Collided(ROUND, 1),
    (SPHERE, CAPSULE): Collided(ROUND, 1),
    (SPHERE, CYLINDER): Collided("sphere-cylinder", 1),
    (SPHERE, BOX): Collided("sphere-box", 1),
    (CAPSULE, CAPSULE): Collided(ROUND, 2),
    (CAPSULE, BOX): Collided("capsule-box", 2),
    (BOX, BOX): Collided("box-box", 8),
    **{pair: Collided(name, 0) for name, pair in FIELDS.items()},
    **{pair: Collided(name, _contacts(*pair)) for name, pair in CONVEX.items()},
    **{pair: Collided(name, 0) for name, pair in DISTANCES.items()},
}


def together(family: str) -> str:
    """What the pairs of a family are collided as: all convex shapes in one go; of fields, meshes apart."""
    if family in FIELDS:
        return "hfield-mesh" if MESH in FIELDS[family] else "hfield"
    if family in DISTANCES:
        return "mesh-sdf" if MESH in DISTANCES[family] else "sdf"
    return "convex" if family in CONVEX else family


class GeomPair(NamedTuple):
    """Two geoms that are tested: `type(geom1) <= type(geom2)`; `pair` is their `<contact><pair>`, or -1."""

    geom1: int
    geom2: int
    pair: int


def tried_pairs(mj_model: mujoco.MjModel) -> list[GeomPair]:
    """All pairs that C may find in contact, whatever the state, in the order in which C lists their contacts.

    Bodies are taken in order (lower id first); of two bodies, first their explicit pairs, then the geoms that contype
    and conaffinity let collide. There are none if contacts or constraints are disabled.
    """
    if mj_model.opt.disableflags & (DisableBit.CONTACT | DisableBit.CONSTRAINT) or mj_model.nbody < 2:
        return []
    explicit = zip(mj_model.pair_geom1.tolist(), mj_model.pair_geom2.tolist(), strict=True)
    listed = [
        ((int(mj_model.pair_signature[k]), 0, k, 0), _by_type(mj_model, first, second, k))
        for k, (first, second) in enumerate(explicit)
    ]
    for first, second in _dynamic(mj_model).tolist():
        pair = _by_type(mj_model, first, second, -1)
        body1, body2 = (int(mj_model.geom_bodyid[g]) for g in (first, second))
        # C sorts what its mid-phase finds by the geoms as they are stored in the contact.
        order = (pair.geom1, pair.geom2) if _midphase(mj_model, body1, body2) else (first, second)
        listed.append((((body1 << 16) + body2, 1, *order), pair))
    return [pair for _, pair in sorted(listed) if mj_model.geom_type[pair.geom2] > HFIELD]


def unsupported_pairs(mj_model: mujoco.MjModel) -> list[tuple[int, int]]:
    """Geom ids of the pairs that C would test for contact and this engine cannot, in C's order."""
    return [(p.geom1, p.geom2) for p in tried_pairs(mj_model) if collided(mj_model, p) is None]


def collided(mj_model: mujoco.MjModel, pair: GeomPair) -> Collided | None:
    """How a pair is collided; None if it is not supported. A mesh needs the faces of its hull."""
    how = SUPPORTED.get(types(mj_model, pair))
    if how is None:
        return None
    if how.family == "mesh-sdf":
        return how._replace(contacts=int(mujoco.mjMAXCONPAIR)) if mj_model.opt.sdf_iterations > 0 else None
    if how.family in DISTANCES:
        return how._replace(contacts=int(mj_model.opt.sdf_initpoints))
    geoms = [g for g in (pair.geom1, pair.geom2) if mj_model.geom_type[g] in (MESH, SDF)]
    if not all(mj_model.mesh_polynum[mj_model.geom_dataid[g]] for g in geoms):
        return None
    single = bool(mj_model.opt.disableflags & DisableBit.MULTICCD)
    return how._replace(contacts=1) if how.family in CONVEX and single else how


def convex_pairs(mj_model: mujoco.MjModel) -> list[tuple[int, int]]:
    """Geom ids of the pairs of convex shapes that have no formula of their own, in C's order."""
    return _pairs_of(mj_model, CONVEX)


def field_pairs(mj_model: mujoco.MjModel) -> list[tuple[int, int]]:
    """Geom ids of the pairs of height fields and convex shapes, in C's order."""
    return _pairs_of(mj_model, FIELDS)


def _pairs_of(mj_model: mujoco.MjModel, families: dict[str, tuple[int, int]]) -> list[tuple[int, int]]:
    return [(p.geom1, p.geom2) for p in tried_pairs(mj_model) if types(mj_model, p) in families.values()]


def types(mj_model: mujoco.MjModel, pair: GeomPair) -> tuple[int, int]:
    """The mjtGeom of both."""
    return int(mj_model.geom_type[pair.geom1]), int(mj_model.geom_type[pair.geom2])


def _by_type(mj_model: mujoco.MjModel, first: int, second: int, pair: int) -> GeomPair:
    if mj_model.geom_type[first] > mj_model.geom_type[second]:
        first, second = second, first
    return GeomPair(first, second, pair)


def _dynamic(mj_model: mujoco.MjModel) -> np.ndarray:
    """(n, 2) geoms of different bodies that may collide without being an explicit pair, lower id first."""
    ngeom = mj_model.ngeom
    body = mj_model.geom_bodyid
    weld = mj_model.body_weldid[body]
    weld_parent = mj_model.body_weldid[mj_model.body_parentid[weld]]
    moves = mj_model.body_dofnum[weld] > 0
    contype, conaffinity = mj_model.geom_contype, mj_model.geom_conaffinity

    affine = (contype[:, None] & conaffinity[None, :]) != 0
    allowed = (affine | affine.T) & np.triu(np.ones((ngeom, ngeom), dtype=bool), 1)
    allowed &= weld[:, None] != weld[None, :]
    allowed &= moves[:, None] | moves[None, :]
    if not mj_model.opt.disableflags & DisableBit.FILTERPARENT:
        child = (weld[:, None] == weld_parent[None, :]) & (weld[:, None] != 0) & (weld[None, :] != 0)
        allowed &= ~(child | child.T)
    signature = (np.minimum(body[:, None], body[None, :]) << 16) + np.maximum(body[:, None], body[None, :])
    allowed &= ~np.isin(signature, mj_model.exclude_signature)
    one, other = mj_model.pair_geom1, mj_model.pair_geom2
    allowed[np.minimum(one, other), np.maximum(one, other)] = False
    return np.argwhere(allowed)


def _midphase(mj_model: mujoco.MjModel, body1: int, body2: int) -> bool:
    """Whether C tests the geoms of two bodies by their bounding volume hierarchies."""
    if mj_model.opt.disableflags & DisableBit.MIDPHASE:
        return False
    several = mj_model.body_geomnum[body1] > 1 or mj_model.body_geomnum[body2] > 1
    return bool(several and mj_model.body_bvhadr[body1] >= 0 and mj_model.body_bvhadr[body2] >= 0)
