"""What flexes of a model do, and which of it is not supported."""

from collections.abc import Callable

import mujoco
import numpy as np

from mjtorch.model.option import DisableBit, Integrator, Solver
from mjtorch.model.plan.colliders import (
    MOST_PAIRS,
    SOLIDS,
    collider_flex,
    meeting,
    membranes,
    met_flexes,
    met_planes,
    patched,
    pushes_membranes,
    too_many,
)
from mjtorch.model.plan.flex_points import asking, elastic, is_neo_hookean
from mjtorch.model.plan.flex_rod import twisting
from mjtorch.model.plan.geom_pairs import (
    COLLIDED,
    CONVEX_ELEMENT,
    CONVEX_ELEMENTS,
    FIELD_ELEMENT,
    collider_type,
    flex_pairs,
    pairs_of,
)
from mjtorch.model.plan.ipc import MOST_LISTED, many, turned
from mjtorch.model.plan.passive_contact import fixed_geoms
from mjtorch.model.plan.version import is_since

# By mjModel, a test of each flex.
Test = Callable[[mujoco.MjModel], np.ndarray]
FRICTION_DIM = 3  # contacts of larger `condim` have torques


def on_flexes(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that may touch another flex or themselves."""
    return np.isin(np.arange(m.nflex), met_flexes(m))


def on_fields(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that may touch height fields."""
    fields: np.ndarray = m.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD
    return (meeting(m) & fields[:, None]).any(axis=0)


def on_distances(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: membranes that may touch signed distance fields."""
    fields: np.ndarray = m.geom_type == mujoco.mjtGeom.mjGEOM_SDF
    return (meeting(m) & fields[:, None]).any(axis=0) & (m.flex_dim == 2)


def by_other_means(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes of which C finds contacts without formula by libccd."""
    found = np.zeros(m.nflex, dtype=bool)
    if m.opt.disableflags & DisableBit.NATIVECCD:
        families = (CONVEX_ELEMENT, CONVEX_ELEMENTS, FIELD_ELEMENT)
        kinds = {str(kinds): kinds for kinds, how in COLLIDED.items() if how.family in families}
        found[collider_flex(m)[pairs_of(m, kinds)[:, 1] - m.ngeom]] = True
        if patched(m):
            types = map(tuple, collider_type(m)[flex_pairs(m).geom].tolist())
            found[met_flexes(m)[[pair in kinds.values() for pair in types], 1]] = True
    return found


def crowded(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes of too many elements to list all pairs that may touch, where they have to be."""
    return np.isin(np.arange(m.nflex), met_flexes(m)[too_many(m)])


def pushed(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes of which contacts are passive forces."""
    return touching(m) & asking(m)


def pushed_about(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: grids that passive contacts with torques may push, at which MuJoCo 4.0 ends with an error."""
    of_geoms = ((m.geom_condim * fixed_geoms(m))[:, None] * meeting(m)).max(axis=0, initial=0)
    condim, asks = np.maximum(of_geoms, m.flex_condim), asking(m)
    for one, two in met_flexes(m):
        condim[[one, two]], asks[[one, two]] = condim[[one, two]].max(), asks[[one, two]].any()
    return touching(m) & asks & (condim > FRICTION_DIM) & (m.flex_interp != 0)


def pushed_explicitly(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that ask for passive contacts, with integrators that MuJoCo refuses for them, too."""
    return asking(m) & (int(m.opt.integrator) != Integrator.DISCRETE)


def pushed_otherwise(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that ask for passive contacts, with what MuJoCo does not allow them, either."""
    by_force = int(m.opt.solver) == Solver.PGS or m.opt.noslip_iterations > 0
    return asking(m) & by_force


def touching(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that may touch something."""
    return on_planes(m) | on_solids(m) | on_fields(m) | on_distances(m) | on_flexes(m)


def filtered(m: mujoco.MjModel) -> bool:
    """Whether there are contacts of flexes that a contact filter would have to be asked about."""
    return bool(touching(m).any()) or pushes_membranes(m)


def on_planes(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that may touch planes."""
    return np.isin(np.arange(m.nflex), met_planes(m)[:, 1])


def on_solids(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that may touch convex geoms."""
    solids: np.ndarray = np.isin(m.geom_type, SOLIDS)
    return (meeting(m) & solids[:, None]).any(axis=0)


def touched_rods(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: rods that may touch something."""
    return twisting(m) & touching(m)


def grids(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: grids that may touch more than planes."""
    return (on_solids(m) | on_fields(m) | on_distances(m) | on_flexes(m)) & (m.flex_interp != 0)


def plastic(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: membranes, solids and grids that yield."""
    return np.asarray(getattr(m, "flex_plasticmode", np.zeros(m.nflex))) != 0


def neo_hookean(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: solids of another law than Saint Venant's and Kirchhoff's."""
    return elastic(m) & np.array([is_neo_hookean(m, f) for f in range(m.nflex)], dtype=bool)


def rods(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: lines that resist bending."""
    return (m.flex_dim == 1) & (m.flex_bendingadr >= 0)


def resisting(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: elastic flexes, and rods."""
    return elastic(m) | rods(m)


def implicit(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: elastic flexes with integrators that MuJoCo refuses for them, too."""
    return resisting(m) & (int(m.opt.integrator) in (Integrator.IMPLICIT, Integrator.IMPLICITFAST))


def sprung(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes whose edges are springs or dampers, with an integrator that takes no such edges."""
    yields = ((m.flex_edgestiffness != 0) | (m.flex_edgedamping != 0)) & ~m.flex_rigid.astype(bool)
    return yields & (int(m.opt.integrator) == Integrator.DISCRETE)


def dual(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: elastic flexes under `discrete` with solvers that MuJoCo refuses for them, too."""
    by_force = int(m.opt.solver) == Solver.PGS or m.opt.noslip_iterations > 0
    return resisting(m) & (by_force and int(m.opt.integrator) == Integrator.DISCRETE)


def early(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: all, before MuJoCo 4.0, whose elasticity was another."""
    return np.full(m.nflex, is_early(m))


def is_early(_: mujoco.MjModel) -> bool:
    """Whether this MuJoCo is older than 4.0."""
    return not is_since(4)


def unlike_cloth(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: membranes on grids, or rigid ones, with the flag ipc."""
    return membranes(m) & ((m.flex_interp != 0) | m.flex_rigid.astype(bool))


def pushed_back(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: membranes with the flag ipc, and noslip iterations."""
    return membranes(m) & (m.opt.noslip_iterations > 0)


def pushed_by_many(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: membranes with the flag ipc that may touch in too many places to list them all."""
    return membranes(m) & many(m)


# What it is called, and which flexes make use of it.
SUPPORTED: tuple[tuple[str, Test], ...] = (
    ("elastic membranes, shells and solids", elastic),
    ("elastic rods", rods),
    ("plastic flexes", plastic),
    ("Neo-Hookean solids", neo_hookean),
    ("contacts of flexes with planes", on_planes),
    ("contacts of flexes with convex geoms", on_solids),
    ("contacts of flexes with height fields", on_fields),
    ("contacts of membranes with signed distance fields", on_distances),
    ("contacts of flexes with flexes and themselves", on_flexes),
    ("contacts of grids with more than planes", grids),
    ("contacts of elastic rods", touched_rods),
    ("passive contacts of flexes", pushed),
)
HARD = 'set passive="false" in its contact'
MEET = "set contype and conaffinity so that they do not meet"
# What it is called, which flexes are refused for it, and what to do.
REFUSED: tuple[tuple[str, Test, str], ...] = (
    ("contacts of flexes as libccd finds them (nativeccd disabled)", by_other_means, "enable the flag nativeccd"),
    (
        f"more than {MOST_PAIRS // 10**6} million pairs of elements with speculative",
        crowded,
        f'{MEET}, or selfcollide="none"',
    ),
    ("ipc of rigid membranes, or on grids", unlike_cloth, "use a flexcomp with a body for each vertex"),
    ("ipc of membranes with noslip iterations", pushed_back, "set noslip_iterations to 0"),
    (f"ipc of membranes with more than {MOST_LISTED} pairs of vertices, edges and triangles", pushed_by_many, MEET),
    ("flexes before MuJoCo 4.0", early, "update mujoco"),
)
# The same of what MuJoCo refuses, too, or ends at.
ABSENT: tuple[tuple[str, Test, str], ...] = (
    ("passive contacts of grids with condim 4 or 6", pushed_about, "set condim to 3"),
    ("passive contacts with other integrators than discrete", pushed_explicitly, 'use integrator="discrete"'),
    ("passive contacts with PGS or noslip iterations", pushed_otherwise, HARD),
    ("elastic flexes with implicit or implicitfast", implicit, 'use integrator="Euler" or "RK4"'),
    ("springs and dampers of edges with discrete", sprung, "use elasticity, or edge equality"),
    (
        "elastic flexes with discrete, and PGS or noslip iterations",
        dual,
        "use solver Newton or CG, no noslip_iterations",
    ),
    ("ipc of membranes on bodies that do more than slide", turned, "pin them to bodies that slide or do not move"),
)
