"""Which pairs of geoms are tested for contact, and in which order their contacts are listed (mj_collision)."""

import math
from typing import NamedTuple

import mujoco
import numpy as np

from mjtorch.model.option import DisableBit
from mjtorch.model.plan.colliders import (
    SOLIDS,
    active,
    collider_body,
    collider_flex,
    corners,
    element_flex,
    met_flexes,
    met_planes,
    met_solids,
    of_colliders,
    patched,
    too_many,
    vertex_flex,
)
from mjtorch.model.plan.flex_rod import boxed
from mjtorch.model.plan.hierarchy import element_rank

# mjtGeom, then vertices and elements of flexes, and vertices and elements of rods with box sections.
PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH, SDF = range(9)
VERTEX, LINE, TRIANGLE, SOLID, CORNERS, RIBBON = range(SDF + 1, TYPES := 15)
# More than the number of any two bodies or flexes.
LAST = 1 << 40
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
# The families of height fields and elements of flexes, and of distance fields and triangles of these.
FIELD_ELEMENT, SDF_TRIANGLE = "hfield-element", "sdf-triangle"
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


# Types of geoms that are collided, the lower one first.
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
# The same of all colliders. Elements that have no formula of their own are convex shapes.
CONVEX_ELEMENT, CONVEX_ELEMENTS = "geom-element", "element-element"
# Boxes of rods have formulas with some geoms and with lines; to all else they are capsules.
ELEMENT_TYPES = (LINE, TRIANGLE, SOLID, RIBBON)
ELEMENTS: dict[tuple[int, int], Collided] = {
    **{(geom, element): Collided(CONVEX_ELEMENT, 1) for geom in SOLIDS for element in ELEMENT_TYPES},
    **{(one, two): Collided(CONVEX_ELEMENTS, 1) for one in ELEMENT_TYPES for two in ELEMENT_TYPES},
    (SPHERE, LINE): Collided("sphere-line", 1),
    (CAPSULE, LINE): Collided("capsule-line", 2),
    (BOX, LINE): Collided("box-line", 2),
    (SPHERE, TRIANGLE): Collided("sphere-triangle", 1),
    (CAPSULE, TRIANGLE): Collided("capsule-triangle", 5),
    (BOX, TRIANGLE): Collided("box-triangle", 11),
    (LINE, LINE): Collided("line-line", 2),
    (SDF, TRIANGLE): Collided(SDF_TRIANGLE, 1),
    (SPHERE, RIBBON): Collided("sphere-ribbon", 1),
    (CAPSULE, RIBBON): Collided("capsule-ribbon", 2),
    (BOX, RIBBON): Collided("box-ribbon", 8),
    (LINE, RIBBON): Collided("line-ribbon", 2),
    (RIBBON, LINE): Collided("ribbon-line", 2),
    (RIBBON, RIBBON): Collided("ribbon-ribbon", 8),
}
COLLIDED = {
    **SUPPORTED,
    (PLANE, VERTEX): Collided("plane-vertex", 1),
    (PLANE, CORNERS): Collided("plane-corners", 2),
    **{(HFIELD, element): Collided(FIELD_ELEMENT, 0) for element in ELEMENT_TYPES},
    **ELEMENTS,
}


def together(family: str) -> str:
    """What the pairs of a family are collided as: all convex shapes in one go; of fields, meshes apart."""
    if family in FIELDS:
        return "hfield-mesh" if MESH in FIELDS[family] else "hfield"
    if family in DISTANCES:
        return "mesh-sdf" if MESH in DISTANCES[family] else "sdf"
    return "convex" if family in CONVEX else family


class GeomPairs(NamedTuple):
    """n pairs of colliders that are tested; of two geoms the type of the first is at most that of the second.

    geom: (n, 2) geom ids, or numbers of colliders; pair: (n,) their `<contact><pair>`, or -1
    """

    geom: np.ndarray
    pair: np.ndarray


def tested_pairs(mj_model: mujoco.MjModel) -> GeomPairs:
    """All pairs that C may find in contact, whatever the state: first the explicit ones.

    There are none if contacts or constraints are disabled, and none of elements if these are found by patches.
    """
    m = mj_model
    if m.opt.disableflags & (DisableBit.CONTACT | DisableBit.CONSTRAINT) or m.nbody < 2:
        return GeomPairs(np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=np.int64))
    dynamic = _dynamic(m)
    geom = _by_type(
        m, np.concatenate([np.stack([m.pair_geom1, m.pair_geom2], axis=-1), dynamic, _vertices(m), _elements(m)])
    )
    geom = np.concatenate([geom, _pairs_of_elements(m)])
    pair = np.concatenate([np.arange(m.npair), np.full(len(geom) - m.npair, -1)])
    there = collider_type(m)[geom[:, 1]] > HFIELD
    return GeomPairs(geom[there], pair[there])


def tried_pairs(mj_model: mujoco.MjModel) -> GeomPairs:
    """`tested_pairs` in the order in which C lists their contacts.

    Bodies are taken in order (lower id first), and then flexes; of two bodies, first their explicit pairs, then the
    geoms that contype and conaffinity let collide; of a body and a flex distance fields come first. Last come the
    elements of flexes that touch themselves: in C in an order that depends on the state unless selfcollide is "narrow",
    here as with that.
    """
    geom, pair = tested_pairs(mj_model)
    low, high = np.minimum(*geom.T), np.maximum(*geom.T)
    both = np.stack([low, high], axis=-1)
    body = np.concatenate([mj_model.geom_bodyid, mj_model.nbody + collider_flex(mj_model)]).astype(np.int64)[both]
    # C sorts what its mid-phase finds by the geoms as they are stored in the contact.
    stored = _midphase(mj_model, body)
    explicit = pair >= 0
    signature = (body[:, 0] << 16) + body[:, 1]
    signature[explicit] = mj_model.pair_signature[pair[explicit]]
    signature += np.where((body[:, 0] == body[:, 1]) & ~explicit, LAST, 0)
    first = np.where(explicit, pair - mj_model.npair, np.where(stored, geom[:, 0], low))
    second = np.where(stored, geom[:, 1], high)
    kinds = collider_type(mj_model)[geom]
    if (inside := (kinds[:, 0] == SDF) & (kinds[:, 1] == TRIANGLE)).any():
        first[inside] -= mj_model.ngeom
        second[inside] = element_rank(mj_model)[geom[inside, 1] - mj_model.ngeom - len(vertex_flex(mj_model))]
    order = lexsort(second, first, signature)
    return GeomPairs(geom[order], pair[order])


def lexsort(*keys: np.ndarray) -> np.ndarray:
    """`np.lexsort` of integers, by one number where they fit into that: what is sorted already then costs nothing."""
    least = [int(x.min(initial=0)) for x in keys]
    spans = [int(x.max(initial=0)) - low + 1 for x, low in zip(keys, least, strict=True)]
    if math.prod(spans) > np.iinfo(np.int64).max:
        return np.lexsort(keys)
    number = np.zeros(len(keys[0]), dtype=np.int64)
    for x, low, span in zip(keys[::-1], least[::-1], spans[::-1], strict=True):
        number = number * span + (x - low)
    return np.argsort(number, kind="stable")


def unsupported_pairs(mj_model: mujoco.MjModel) -> np.ndarray:
    """Geom ids (n, 2) of the pairs that C would test for contact and this engine cannot, in C's order.

    Without what flexes touch, which has names of its own.
    """
    if (contacts(mj_model, _one_of_each(mj_model)) >= 0).all():
        return np.zeros((0, 2), dtype=np.int64)
    tried = tried_pairs(mj_model)
    return tried.geom[(contacts(mj_model, tried) < 0) & (tried.geom < mj_model.ngeom).all(1)]


def _one_of_each(m: mujoco.MjModel) -> GeomPairs:
    """Pairs of any two types of colliders, with and without faces; not of planes and height fields among themselves."""
    kind = collider_type(m)
    faces = np.zeros(len(kind), dtype=kind.dtype)
    faces[: m.ngeom] = _has_faces(m)
    some = np.unique(np.stack([kind, faces]), axis=1, return_index=True)[1]
    geom = _by_type(m, np.stack(np.broadcast_arrays(some[:, None], some), axis=-1).reshape(-1, 2))
    geom = geom[kind[geom[:, 1]] > HFIELD]
    return GeomPairs(geom, np.full(len(geom), -1))


def _has_faces(m: mujoco.MjModel) -> np.ndarray:
    """(ngeom,) bool: the geoms of meshes that have some."""
    mesh = np.where((m.geom_type == MESH) | (m.geom_type == SDF), m.geom_dataid, -1)
    # The last one is that of geoms, and of fields, without a mesh.
    return np.append(m.mesh_polynum, 0)[mesh] > 0


def contacts(mj_model: mujoco.MjModel, pairs: GeomPairs) -> np.ndarray:
    """The most contacts (n,) that pairs make, 0 where that is left open; -1: not supported. Meshes need faces."""
    most = np.full((TYPES, TYPES), -1)
    needs_faces = np.zeros((TYPES, TYPES), dtype=bool)
    for kinds, how in COLLIDED.items():
        most[kinds] = _most(mj_model, how)
        needs_faces[kinds] = how.family not in (*DISTANCES, CONVEX_ELEMENT, SDF_TRIANGLE)
    one, two = collider_type(mj_model)[pairs.geom].T
    found = most[one, two]
    for kind, geom in zip((one, two), pairs.geom.T, strict=True):
        mine = np.flatnonzero(((kind == MESH) | (kind == SDF)) & needs_faces[one, two])
        found[mine[~_has_faces(mj_model)[geom[mine]]]] = -1
    return found


def _most(mj_model: mujoco.MjModel, how: Collided) -> int:
    """The most contacts that the options let two geoms make; -1: none, these are not supported."""
    if how.family in ("mesh-sdf", SDF_TRIANGLE):
        most = how.contacts or int(mujoco.mjMAXCONPAIR)
        return most if mj_model.opt.sdf_iterations > 0 else -1
    if how.family in DISTANCES:
        return int(mj_model.opt.sdf_initpoints)
    if how.family not in CONVEX:
        return how.contacts
    several, native = (not mj_model.opt.disableflags & flag for flag in (DisableBit.MULTICCD, DisableBit.NATIVECCD))
    return 1 if not several or how.contacts == 1 else how.contacts if native else 5


def within(mj_model: mujoco.MjModel, pairs: GeomPairs) -> np.ndarray:
    """How near to each other (n,) [m] pairs matter: at most margin and gap, of both geoms or of the explicit pair."""
    found = (of_colliders(mj_model, "margin") + of_colliders(mj_model, "gap"))[pairs.geom].sum(1)
    explicit = pairs.pair >= 0
    found[explicit] = (mj_model.pair_margin + mj_model.pair_gap)[pairs.pair[explicit]]
    return found


def pairs_of(mj_model: mujoco.MjModel, *families: dict[str, tuple[int, int]]) -> np.ndarray:
    """Geom ids (n, 2) of the pairs that are tested and belong to `families`, in C's order."""
    geom = tried_pairs(mj_model).geom
    member = np.zeros((TYPES, TYPES), dtype=bool)
    for kinds in families:
        member[tuple(zip(*kinds.values(), strict=True))] = True
    return geom[member[tuple(collider_type(mj_model)[geom].T)]]


def _by_type(mj_model: mujoco.MjModel, geom: np.ndarray) -> np.ndarray:
    """Pairs (n, 2) with the geom of the lower type first."""
    kind = collider_type(mj_model)
    geom = geom.astype(np.int64)
    swapped = np.flatnonzero(kind[geom[:, 0]] > kind[geom[:, 1]])
    geom[swapped] = geom[swapped, ::-1]
    return geom


def collider_type(mj_model: mujoco.MjModel) -> np.ndarray:
    """(n,) the types of colliders."""
    vertices = np.where(boxed(mj_model), CORNERS, VERTEX)[vertex_flex(mj_model)]
    return np.concatenate([mj_model.geom_type, vertices, element_type(mj_model)[element_flex(mj_model)]])


def element_type(mj_model: mujoco.MjModel) -> np.ndarray:
    """(nflex,) the type of the elements of each flex."""
    return np.where(boxed(mj_model), RIBBON, LINE - 1 + mj_model.flex_dim)


def _vertices(m: mujoco.MjModel) -> np.ndarray:
    """(n, 2) planes and the vertices of the flexes that may touch them."""
    met = met_planes(m)
    count = m.flex_vertnum[met[:, 1]]
    vertex = np.arange(count.sum()) + np.repeat(m.flex_vertadr[met[:, 1]] - (np.cumsum(count) - count), count)
    return np.stack([np.repeat(met[:, 0], count), m.ngeom + vertex], axis=-1)


def _elements(m: mujoco.MjModel) -> np.ndarray:
    """(n, 2) geoms and the elements of the flexes that may touch them, but for those with a vertex on the same body."""
    met = met_solids(m)
    count = m.flex_elemnum[met[:, 1]]
    element = np.arange(count.sum()) + np.repeat(m.flex_elemadr[met[:, 1]] - (np.cumsum(count) - count), count)
    geom, body = np.repeat(met[:, 0], count), m.flex_vertbodyid[corners(m)[element]]
    apart = (body != m.geom_bodyid[geom][:, None]).all(1) & active(m)[element]
    return np.stack([geom, m.ngeom + len(vertex_flex(m)) + element], axis=-1)[apart]


def _pairs_of_elements(m: mujoco.MjModel) -> np.ndarray:
    """(n, 2) elements of flexes that may touch each other or themselves, but for those with vertices on one body.

    None if these are found by patches, or of flexes with `too_many`, which are refused.
    """
    first = m.ngeom + len(vertex_flex(m))
    corner, there, found = corners(m), active(m), [np.zeros((0, 2), dtype=np.int64)]
    for flexes in met_flexes(m)[~too_many(m)] if not patched(m) else []:
        one, two = (
            np.flatnonzero(there[start : start + count]) + start
            for start, count in zip(m.flex_elemadr[flexes], m.flex_elemnum[flexes], strict=True)
        )
        pair = np.stack(np.meshgrid(one, two, indexing="ij"), axis=-1).reshape(-1, 2)
        pair = pair[pair[:, 0] < pair[:, 1]]
        body = m.flex_vertbodyid[corner[pair]]
        one, two = body[:, 0, :, None], body[:, 1, None]
        # Vertices that lie between nodes are on no body.
        found.append(first + pair[((one != two) | (one < 0)).all((1, 2))])
    return np.concatenate(found)


def flex_pairs(m: mujoco.MjModel) -> GeomPairs:
    """The first elements of each of `met_flexes`."""
    elements = m.ngeom + len(vertex_flex(m)) + m.flex_elemadr[met_flexes(m)].astype(np.int64)
    return GeomPairs(elements, np.full(len(elements), -1))


class ElementPlaces(NamedTuple):
    """Where C lists pairs of elements that are found by patches: `place + stride * i + j`, these being their numbers.

    place, stride: (nflex, nflex) by the flexes of the first and of the second; total: of all places
    """

    place: np.ndarray
    stride: np.ndarray
    total: int


def places_of_elements(m: mujoco.MjModel) -> ElementPlaces:
    """After all pairs that are listed: pairs of two flexes, then of each with itself, as `tried_pairs` has them."""
    met, total = met_flexes(m), len(tested_pairs(m).pair)
    place = np.zeros((m.nflex, m.nflex), dtype=np.int64)
    for f, g in met[np.lexsort((met[:, 1], met[:, 0], met[:, 0] == met[:, 1]))]:
        place[f, g] = total
        total += int(m.flex_elemnum[f]) * int(m.flex_elemnum[g])
    return ElementPlaces(place, np.tile(m.flex_elemnum.astype(np.int64), (m.nflex, 1)), total)


def rank(m: mujoco.MjModel, tried: GeomPairs) -> np.ndarray:
    """(k, n) the place of each pair of colliders in C's list of contacts, the first of its places.

    By condim (k, n, 7) where two geoms are several explicit pairs of different ones. k: as many as may come first: the
    geoms if pairs of elements are found by patches, else all n

    tried: its `tried_pairs`
    """
    count = len(collider_body(m))
    one, two = tried.geom[::-1].T
    place, pair = np.arange(len(one))[::-1], tried.pair[::-1]
    found = np.zeros((max(m.ngeom, 1) if patched(m) else count, count), dtype=np.int64)
    found[one, two] = place
    if not is_given_twice(m):
        return found
    given, by_dim = pair >= 0, np.repeat(found[..., None], 7, axis=-1)
    by_dim[one[given], two[given], m.pair_dim[pair[given]]] = place[given]
    return by_dim


def is_given_twice(m: mujoco.MjModel) -> bool:
    """Whether two geoms are several explicit pairs, of different condim."""
    geoms = np.sort(np.stack([m.pair_geom1, m.pair_geom2], axis=1), axis=1)
    with_dim = np.concatenate([geoms, m.pair_dim[:, None]], axis=1)
    return len(np.unique(with_dim, axis=0)) > len(np.unique(geoms, axis=0))


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
    if mj_model.nexclude:
        signature = (np.minimum(body[:, None], body[None, :]) << 16) + np.maximum(body[:, None], body[None, :])
        allowed &= ~np.isin(signature, mj_model.exclude_signature)
    one, other = mj_model.pair_geom1, mj_model.pair_geom2
    allowed[np.minimum(one, other), np.maximum(one, other)] = False
    return np.argwhere(allowed)


def _midphase(mj_model: mujoco.MjModel, body: np.ndarray) -> np.ndarray:
    """(n,) bool: whether C tests the geoms of two bodies (n, 2) by their bounding volume hierarchies."""
    if mj_model.opt.disableflags & DisableBit.MIDPHASE:
        return np.zeros(len(body), dtype=bool)
    several = np.append(mj_model.body_geomnum > 1, np.ones(mj_model.nflex, dtype=bool))
    boxes = np.append(mj_model.body_bvhadr, mj_model.flex_bvhadr)
    one, two = body.T
    return (several[one] | several[two]) & (boxes[one] >= 0) & (boxes[two] >= 0)
