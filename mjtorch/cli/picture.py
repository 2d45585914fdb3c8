"""A picture of a rollout: a video where OpenGL is to be had, else a plot."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import mujoco
import numpy as np

RENDER_SCRIPT = Path(__file__).with_name("render.py")
RENDER_TIMEOUT = 90.0  # [s]
MAX_JOINTS = 8  # curves that still can be told apart


def draw(
    mj_model: mujoco.MjModel, time: np.ndarray, qpos: np.ndarray, qvel: np.ndarray, world: int, stem: Path
) -> Path:
    """Draw one world of a rollout to `stem`.mp4, or to `stem`.png if this machine cannot render.

    time: (steps, batch) [s]; qpos: (steps, batch, nq); qvel: (steps, batch, nv). Never fails for want of a display.
    """
    video = stem.with_name(f"{stem.name}.mp4")
    if render(mj_model, time[:, world], qpos[:, world], video):
        return video
    chart = stem.with_name(f"{stem.name}.png")
    plot(mj_model, time[:, world], qpos, qvel, world, chart)
    return chart


def render(mj_model: mujoco.MjModel, time: np.ndarray, qpos: np.ndarray, video: Path) -> bool:
    """Try to render `qpos (steps, nq)` at `time (steps,)` to `video`; returns whether it worked.

    Runs in a process of its own: where OpenGL is broken, creating a context may abort, which no `except` can catch.
    """
    with tempfile.TemporaryDirectory() as folder:
        model_file, states_file, made = (Path(folder) / name for name in ("model.mjb", "states.npz", "video.mp4"))
        mujoco.mj_saveModel(mj_model, str(model_file), None)
        np.savez(states_file, time=time, qpos=qpos)
        # -P: the script's folder must not shadow other modules.
        command = [sys.executable, "-P", str(RENDER_SCRIPT), str(model_file), str(states_file), str(made)]
        for environment in gl_environments():
            try:
                done = subprocess.run(
                    command, env=environment, cwd=folder, timeout=RENDER_TIMEOUT, capture_output=True, check=False
                )
            except (OSError, subprocess.TimeoutExpired):
                continue
            if done.returncode == 0 and made.is_file():
                video.write_bytes(made.read_bytes())
                return True
    return False


def gl_environments() -> list[dict[str, str]]:
    """The environments to try: the user's choice of MUJOCO_GL, else all that may work without a screen."""
    here = dict(os.environ)
    if "MUJOCO_GL" in here or sys.platform != "linux":
        return [here]
    here.pop("PYOPENGL_PLATFORM", None)
    backends = ["egl", "osmesa", *(["glfw"] if "DISPLAY" in here else [])]
    return [here | {"MUJOCO_GL": backend} for backend in backends]


def plot(
    mj_model: mujoco.MjModel, time: np.ndarray, qpos: np.ndarray, qvel: np.ndarray, world: int, chart: Path
) -> None:
    """Plot positions and the joints of one world, and the speed of all, to a PNG. Needs no display.

    time: (steps,) [s]; qpos: (steps, batch, nq); qvel: (steps, batch, nv)
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    joints, speeds = figure.subplots(2, 1, sharex=True)
    for joint_id in range(min(mj_model.njnt, MAX_JOINTS)):
        joint = mj_model.joint(joint_id)
        address = int(joint.qposadr[0])
        label = joint.name or f"joint {joint_id}"
        if joint.type[0] == mujoco.mjtJoint.mjJNT_FREE:
            address, label = address + 2, f"{label} (height)"
        joints.plot(time, qpos[:, world, address], label=label)
    joints.set_ylabel("position [m or rad]")
    joints.set_title(f"world {world}")
    if mj_model.njnt:
        joints.legend(fontsize="small", ncols=2)
    with np.errstate(all="ignore"):
        speeds.plot(time, np.sqrt((qvel**2).mean(axis=-1)), color="tab:blue", alpha=0.25, linewidth=0.8)
    speeds.set_title(f"all {qvel.shape[1]} worlds")
    speeds.set_ylabel("rms of qvel [m/s, rad/s]")
    speeds.set_xlabel("time [s]")
    figure.savefig(chart, dpi=120)
