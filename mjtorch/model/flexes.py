"""What flexes of a model do, and which of it is not supported."""

from collections.abc import Callable

import mujoco
import numpy as np

from mjtorch.model.option import DisableBit, EnableBit, Integrator
from mjtorch.model.plan.flex_points import elastic

# By mjModel, a test of each flex.
Test = Callable[[mujoco.MjModel], np.ndarray]
# How many numbers of `flex_stiffness` an element of three dimensions has: those after the metric are of another law.
METRIC, SOLID_SIZE = 21, 24


def touching(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: flexes that may touch a geom, another flex or themselves."""
    if m.opt.disableflags & (DisableBit.CONTACT | DisableBit.CONSTRAINT):
        return np.zeros(m.nflex, dtype=bool)
    contype = np.concatenate([m.flex_contype, m.geom_contype])
    conaffinity = np.concatenate([m.flex_conaffinity, m.geom_conaffinity])
    meets = (contype[:, None] & conaffinity) | (conaffinity[:, None] & contype) != 0
    itself = meets.diagonal()[: m.nflex] & ~m.flex_rigid.astype(bool) & (m.flex_selfcollide != 0)
    np.fill_diagonal(meets, False)
    return meets[: m.nflex].any(axis=1) | itself


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
    return np.full(m.nflex, int(mujoco.mj_versionString().split(".")[0]) < 4)


# What it is called, which flexes are refused for it, and what to do.
REFUSED: tuple[tuple[str, Test, str], ...] = (
    ("contacts of flexes", touching, 'set contype="0" conaffinity="0" selfcollide="none" in its contact'),
    ("elastic rods", rods, 'remove young, or use edge equality="true"'),
    ("plastic flexes", plastic, "remove yield"),
    ("Neo-Hookean solids", neo_hookean, "set elastic3d to 0"),
    ("elastic flexes with implicit or implicitfast", implicit, 'use integrator="Euler" or "RK4"'),
    ("flexes with sleep", sleeping, "disable the flag"),
    ("flexes before MuJoCo 4.0", early, "update mujoco"),
)
