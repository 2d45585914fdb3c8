"""Rough ground: a height field of square plots, harder from row to row, of five kinds side by side."""

from collections.abc import Callable

import numpy as np
from mujoco import MjSpec, mjtGeom

# Plots in a row, and rows; the side of a plot and of a cell, and the flat middle of a plot [m].
PLOTS, PLOT, CELL, MIDDLE = 5, 8.0, 0.1, 1.0
# The widest flat edge of a plot, steps of stairs [m], and what the random heights are drawn with.
EDGE, STEP, SEED = 0.4, 0.4, 0
# The height field is that much deeper than its lowest place [m].
BASE = 0.5

Heights = np.ndarray


def uneven(x: Heights, y: Heights, hard: float, rng: np.random.Generator) -> Heights:
    """Each cell somewhere, up to 8 cm high."""
    return 0.08 * hard * rng.uniform(size=x.shape)


def waves(x: Heights, y: Heights, hard: float, rng: np.random.Generator) -> Heights:
    """Hills and dales, up to 20 cm high, 2 m apart."""
    return 0.1 * hard * (2 + np.cos(np.pi * x) + np.cos(np.pi * y)) / 2


def slope(x: Heights, y: Heights, hard: float, rng: np.random.Generator) -> Heights:
    """A pyramid, up to 0.4 m a metre."""
    return 0.4 * hard * (PLOT / 2 - np.maximum(np.maximum(abs(x), abs(y)), MIDDLE))


def stairs(x: Heights, y: Heights, hard: float, rng: np.random.Generator) -> Heights:
    """A pyramid of steps, up to 15 cm high."""
    return 0.15 * hard * np.floor((PLOT / 2 - np.maximum(np.maximum(abs(x), abs(y)), MIDDLE)) / STEP)


def pit(x: Heights, y: Heights, hard: float, rng: np.random.Generator) -> Heights:
    """A hole with stairs."""
    return -stairs(x, y, hard, rng)


KINDS: tuple[Callable[..., Heights], ...] = (uneven, waves, slope, stairs, pit)


def heights() -> Heights:
    """Of all places (n, n) [m], rows along y; plots meet at height 0."""
    rng, count = np.random.default_rng(SEED), round(PLOT / CELL)
    centres = (np.arange(count) + 0.5) * CELL - PLOT / 2
    x, y = np.meshgrid(centres, centres)
    edge = np.clip((PLOT / 2 - np.maximum(abs(x), abs(y))) / EDGE, 0, 1)
    rows = []
    for hard in np.linspace(0.2, 1.0, PLOTS):
        rows.append(np.hstack([edge * kind(x, y, hard, rng) for kind in KINDS]))
    return np.vstack(rows)


def add_rough(spec: MjSpec, name: str) -> None:
    """A height field as the ground; at height 0 where plots meet."""
    z = heights()
    low, high = float(z.min()), float(z.max())
    side = PLOTS * PLOT / 2
    field = spec.add_hfield(name=name, nrow=len(z), ncol=len(z), size=[side, side, high - low, BASE])
    field.userdata = ((z - low) / (high - low)).ravel().tolist()
    spec.worldbody.add_geom(name=name, type=mjtGeom.mjGEOM_HFIELD, hfieldname=name, pos=[0, 0, low])


def add_flat(spec: MjSpec, name: str) -> None:
    """A plane as the ground."""
    spec.worldbody.add_geom(name=name, type=mjtGeom.mjGEOM_PLANE, size=[0, 0, 1])
