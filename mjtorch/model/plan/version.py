"""What MuJoCo does otherwise from some version on."""

import mujoco


def is_since(*version: int) -> bool:
    """Whether the installed MuJoCo is of this version, such as (4, 0), or a later one."""
    return tuple(int(x) for x in mujoco.mj_versionString().split(".")[: len(version)]) >= version
