"""What flexes of a model do, and which of it is not supported."""

from collections.abc import Callable

import mujoco
import numpy as np

from mjtorch.model.option import DisableBit, EnableBit, Integrator
from mjtorch.model.plan.colliders import meeting, met_planes, met_solids
from mjtorch.model.plan.flex_points import elastic

# By mjModel, a test of each flex.
Test = Callable[[mujoco.MjModel], np.ndarray]
# How many numbers of `flex_stiffness` an element of three dimensions has: those after the metric are of another law.
METRIC, SOLID_SIZE = 21, 24


def touching_themselves(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that may touch another flex or themselves."""
    if no_contacts(m):
        return np.zeros(m.nflex, dtype=bool)
    one = (m.flex_contype[:, None] & m.flex_conaffinity) != 0
    meets = one | one.T
    itself = one.diagonal() & ~m.flex_rigid.astype(bool) & (m.flex_selfcollide != 0)
    np.fill_diagonal(meets, False)
    return meets.any(axis=1) | itself


def touching_solids(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that may touch geoms that they cannot."""
    others = meeting(m) & (m.geom_type != mujoco.mjtGeom.mjGEOM_PLANE)[:, None]
    others[tuple(met_solids(m).T)] = False
    return others.any(axis=0)


def pushed_softly(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes whose contacts are passive forces."""
    return touching(m) & (np.asarray(getattr(m, "flex_passive", np.zeros(m.nflex))) != 0)


def sticking(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that may touch something in models in which contacts stick."""
    return touching(m) & bool(m.geom_adhesion.any() or m.pair_adhesion.any())


def touching(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that may touch geoms."""
    return on_planes(m) | on_solids(m)


def on_planes(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that may touch planes."""
    return np.isin(np.arange(m.nflex), met_planes(m)[:, 1])


def on_solids(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: lines and membranes that may touch spheres, capsules or boxes."""
    return np.isin(np.arange(m.nflex), met_solids(m)[:, 1])


def no_contacts(m: mujoco.MjModel) -> bool:
    """Whether contacts are disabled."""
    return bool(m.opt.disableflags & (DisableBit.CONTACT | DisableBit.CONSTRAINT))


def rods(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: lines that resist bending."""
    return (m.flex_dim == 1) & (m.flex_bendingadr >= 0)


def plastic(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: membranes and solids that yield."""
    return np.asarray(getattr(m, "flex_plasticmode", np.zeros(m.nflex))) != 0


def neo_hookean(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: solids of another law than Saint Venant's and Kirchhoff's."""
    found = np.zeros(m.nflex, dtype=bool)
    for f in np.flatnonzero(elastic(m) & (m.flex_dim == 3) & (m.flex_interp == 0)):
        start, count = m.flex_stiffnessadr[f], m.flex_elemnum[f]
        found[f] = m.flex_stiffness[start : start + SOLID_SIZE * count].reshape(count, -1)[:, METRIC:].any()
    return found


def implicit(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: elastic flexes with integrators that MuJoCo refuses for them, too."""
    return elastic(m) & (int(m.opt.integrator) in (Integrator.IMPLICIT, Integrator.IMPLICITFAST))


def sleeping(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes beside trees that may sleep."""
    return np.full(m.nflex, bool(m.opt.enableflags & EnableBit.SLEEP))


def early(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: all, before MuJoCo 4.0, whose elasticity was another."""
    return np.full(m.nflex, is_early(m))


def is_early(_: mujoco.MjModel) -> bool:
    """Whether this MuJoCo is older than 4.0."""
    return int(mujoco.mj_versionString().split(".")[0]) < 4


# What it is called, and which flexes make use of it.
SUPPORTED: tuple[tuple[str, Test], ...] = (
    ("elastic membranes, shells and solids", elastic),
    ("contacts of flexes with planes", on_planes),
    ("contacts of lines and membranes with spheres, capsules and boxes", on_solids),
)
# What it is called, which flexes are refused for it, and what to do.
REFUSED: tuple[tuple[str, Test, str], ...] = (
    (
        "contacts of flexes with other geoms",
        touching_solids,
        "set contype and conaffinity so that they do not meet",
    ),
    ("contacts of flexes with flexes", touching_themselves, 'set selfcollide="none" and contype="0" in its contact'),
    ("passive contacts of flexes", pushed_softly, 'set passive="false" in its contact'),
    ("contacts of flexes where geoms stick", sticking, "set adhesion to zero"),
    ("elastic rods", rods, 'remove young, or use edge equality="true"'),
    ("plastic flexes", plastic, "remove yield"),
    ("Neo-Hookean solids", neo_hookean, "set elastic3d to 0"),
    ("elastic flexes with implicit or implicitfast", implicit, 'use integrator="Euler" or "RK4"'),
    ("flexes with sleep", sleeping, "disable the flag"),
    ("flexes before MuJoCo 4.0", early, "update mujoco"),
)
