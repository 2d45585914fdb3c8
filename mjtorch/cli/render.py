"""Render states to a video: `python -P render.py MODEL.mjb STATES.npz VIDEO.mp4`.

A script and not a part of the package: it is run in a process of its own and imports no torch.
"""

import sys

import imageio.v2 as imageio
import mujoco
import numpy as np

WIDTH, HEIGHT, FPS = 640, 480, 30
MAX_SECONDS = 20.0


def main(model_file: str, states_file: str, video_file: str) -> None:
    """Play the states in real time, `FPS` frames a second, the first `MAX_SECONDS` of them."""
    mj_model = mujoco.MjModel.from_binary_path(model_file)
    mj_data = mujoco.MjData(mj_model)
    with np.load(states_file) as states:
        time, qpos = states["time"], states["qpos"]
    wanted = np.arange(time[0], min(time[-1], time[0] + MAX_SECONDS), 1 / FPS)
    shown = np.minimum(np.searchsorted(time, wanted), len(time) - 1)
    mj_model.vis.global_.offwidth, mj_model.vis.global_.offheight = WIDTH, HEIGHT
    frames = []
    with mujoco.Renderer(mj_model, height=HEIGHT, width=WIDTH) as renderer:
        view = camera(mj_model)
        for i in shown if len(shown) else [0]:
            mj_data.qpos[:] = qpos[i]
            mujoco.mj_fwdPosition(mj_model, mj_data)
            renderer.update_scene(mj_data, camera=view)
            frames.append(renderer.render())
    imageio.mimwrite(video_file, frames, fps=FPS)


def camera(mj_model: mujoco.MjModel) -> mujoco.MjvCamera | int:
    """The model's first camera, else one that follows the first body that moves."""
    if mj_model.ncam:
        return 0
    view = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(mj_model, view)
    if mj_model.njnt:
        view.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        view.trackbodyid = int(mj_model.jnt_bodyid[0])
    return view


if __name__ == "__main__":
    main(*sys.argv[1:])
