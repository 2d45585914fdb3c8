"""What may be rigid to C: rows whose inverse weights, which R is made of, are far too small where they are needed."""

import mujoco
import numpy as np
from mujoco import mjtEq

# A body whose inverse weight is less than this part of what turning it adds at its geoms may make rigid rows: the
# softest that C allows are 1e-4 of the weight, and the hardest that single precision resolves 1e-6 of the truth.
RIGID = 0.01
# mjMINVAL: C's least inverse weight.
MIN_WEIGHT = 1e-15


def geoms(m: mujoco.MjModel) -> np.ndarray:
    """(ngeom,) bool: those so far from the axis that their body turns about, through its centre of mass, as that."""
    body = m.geom_bodyid
    arm = np.linalg.norm(m.geom_pos - m.body_ipos[body], axis=1) + m.geom_rbound
    weight, turning = m.body_invweight0[body].T
    collides = (m.geom_contype | m.geom_conaffinity) != 0
    return collides & (weight < RIGID * turning * arm * arm)


def has_equality(m: mujoco.MjModel) -> bool:
    """Whether a connect or weld is of bodies whose inverse weights are much less than at their anchors, or do not turn.

    Such as the weld of a body on a slide: nothing answers to its rows of rotation, which C regularizes by 1e-15.
    """
    for k in np.flatnonzero(np.isin(m.eq_type, [int(mjtEq.mjEQ_CONNECT), int(mjtEq.mjEQ_WELD)])):
        is_weld, data = m.eq_type[k] == mjtEq.mjEQ_WELD, m.eq_data[k]
        objects = np.array([m.eq_obj1id[k], m.eq_obj2id[k]])
        if m.eq_objtype[k] == mujoco.mjtObj.mjOBJ_SITE:
            body, anchor = m.site_bodyid[objects], m.site_pos[objects]
        else:
            body, anchor = objects, np.stack([data[3:6], data[:3]] if is_weld else [data[:3], data[3:6]])
        weight, turning = m.body_invweight0[body].T
        arm = np.linalg.norm(anchor - m.body_ipos[body], axis=1)
        if weight.sum() < RIGID * (turning * arm * arm).sum() or (is_weld and turning.sum() < MIN_WEIGHT):
            return True
    return False
