"""Frames that MuJoCo takes for equal (mjtSameFrame, mj_local2Global)."""

import mujoco
import numpy as np

SAME = mujoco.mjtSameFrame
NONE, BODY, INERTIA = int(SAME.mjSAMEFRAME_NONE), int(SAME.mjSAMEFRAME_BODY), int(SAME.mjSAMEFRAME_INERTIA)
INERTIAROT = int(SAME.mjSAMEFRAME_INERTIAROT)


def local_frames(mj_model: mujoco.MjModel) -> dict[str, np.ndarray]:
    """The places and orientations of inertias, geoms and sites in their bodies, as C's kinematics has them.

    What nearly coincides with the frame of the body, or with its inertia, C puts exactly there and leaves the model's
    numbers unread. Here the numbers become what they are taken for, so that they can still be changed and
    differentiated. A quaternion keeps its sign.
    """
    m = mj_model
    origin, upright = np.zeros((m.nbody, 3)), np.tile([1.0, 0.0, 0.0, 0.0], (m.nbody, 1))
    found: dict[str, np.ndarray] = {}
    for kind, body, pos, quat in (
        ("body", np.arange(m.nbody), "body_ipos", "body_iquat"),
        ("geom", m.geom_bodyid, "geom_pos", "geom_quat"),
        ("site", m.site_bodyid, "site_pos", "site_quat"),
    ):
        same = getattr(m, f"{kind}_sameframe")[:, None]
        inertia_pos, inertia_quat = found.get("body_ipos", origin), found.get("body_iquat", upright)
        place, turn = getattr(m, pos), getattr(m, quat)
        place = np.where(same == BODY, 0.0, np.where(same == INERTIA, inertia_pos[body], place))
        exact = np.where(np.isin(same, (INERTIA, INERTIAROT)), inertia_quat[body], upright[body])
        exact = np.where((exact * turn).sum(axis=1, keepdims=True) < 0, -exact, exact)
        found[pos], found[quat] = place, np.where(same == NONE, turn, exact)
    return found
