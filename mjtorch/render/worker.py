"""Draws poses that come in, until no more do: `python -P worker.py MODEL.mjb HEIGHT WIDTH [quick]`.

A script and not a part of the package: it is run in a process of its own and imports no torch. What comes in is a line
of JSON, the camera, and the numbers of a pose; what goes out is a line when it can draw, then a frame for each pose.
"""

import json
import os
import sys
from typing import Any, BinaryIO

import mujoco
import numpy as np
from mujoco import mjtRndFlag

READY = b"ready\n"
# Finer shadows take four times as long without a GPU and look the same at these sizes.
SHADOW_SIZE = 1024
# The light at the camera of a model that has no lights.
AMBIENT, DIFFUSE = 0.4, 0.6
# What draws without a GPU, as OpenGL names it; and what takes most of the time there, beside smooth edges.
SOFTWARE = ("llvmpipe", "softpipe", "SwiftShader")
COSTLY = (mjtRndFlag.mjRND_SHADOW, mjtRndFlag.mjRND_REFLECTION)


def main(model_file: str, height: str, width: str, *quick: str) -> None:
    """Say that it works once something was drawn, then draw until there is no more input.

    quick: if anything, shadows, reflections and smooth edges are left out where there is no GPU.
    """
    frames: BinaryIO = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not get among the frames
    mj_model = mujoco.MjModel.from_binary_path(model_file)
    mj_data = mujoco.MjData(mj_model)
    prepare(mj_model, int(height), int(width))
    plain = False
    if quick:
        with mujoco.Renderer(mj_model, height=1, width=1):
            plain = has_no_gpu()
    if plain:
        mj_model.vis.quality.offsamples = 0
    with mujoco.Renderer(mj_model, height=int(height), width=int(width)) as renderer:
        renderer.update_scene(mj_data)
        renderer.render()
        frames.write(READY)
        frames.flush()
        while line := sys.stdin.buffer.readline():
            place(mj_model, mj_data, sys.stdin.buffer)
            renderer.update_scene(mj_data, camera=camera(mj_model, mj_data, json.loads(line)))
            for flag in COSTLY if plain else ():
                renderer.scene.flags[flag] = 0
            frames.write(renderer.render().tobytes())
            frames.flush()


def has_no_gpu() -> bool:
    """Whether the context at hand draws without one."""
    from OpenGL.GL import GL_RENDERER, glGetString  # MuJoCo brings it, and has chosen by now what it stands on

    return glGetString(GL_RENDERER).decode().startswith(SOFTWARE)


def prepare(mj_model: mujoco.MjModel, height: int, width: int) -> None:
    """Make room for the frames, and light where there is none."""
    visual = mj_model.vis
    visual.global_.offheight = max(visual.global_.offheight, height)
    visual.global_.offwidth = max(visual.global_.offwidth, width)
    visual.quality.shadowsize = min(visual.quality.shadowsize, SHADOW_SIZE)
    if not mj_model.light_active.any():
        visual.headlight.active = 1
        visual.headlight.ambient[:] = np.maximum(visual.headlight.ambient, AMBIENT)
        visual.headlight.diffuse[:] = np.maximum(visual.headlight.diffuse, DIFFUSE)


def place(mj_model: mujoco.MjModel, mj_data: mujoco.MjData, numbers: BinaryIO) -> None:
    """Read a pose, and put all that is drawn where it belongs."""
    for field in (mj_data.qpos, mj_data.mocap_pos, mj_data.mocap_quat):
        field[:] = np.frombuffer(numbers.read(8 * field.size)).reshape(field.shape)
    for stage in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_camlight, mujoco.mj_tendon):
        stage(mj_model, mj_data)


def camera(mj_model: mujoco.MjModel, mj_data: mujoco.MjData, wanted: Any) -> mujoco.MjvCamera | int:
    """The camera as it is asked for: its number, the fields of a free one, or None for the model's first.

    Where it has none, one that looks at the first body that moves.
    """
    if isinstance(wanted, int):
        return wanted
    if wanted is None and mj_model.ncam:
        return 0
    view = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(mj_model, view)
    if wanted is None and mj_model.njnt:
        view.lookat[:] = mj_data.subtree_com[mj_model.jnt_bodyid[0]]
    for name, value in (wanted or {}).items():
        setattr(view, name, value)
    return view


if __name__ == "__main__":
    main(*sys.argv[1:])
