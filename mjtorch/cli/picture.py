"""A picture of a rollout: a video where OpenGL is to be had, else a plot."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from tqdm import tqdm

from mjtorch.render import Renderer, RenderError, tile

MAX_JOINTS = 8  # curves that still can be told apart
SIZE = (480, 640)  # height and width of a video
FPS = 25
LEAST_SECONDS, MOST_SECONDS = 5.0, 20.0


@dataclass(frozen=True)
class Drawn:
    """What was drawn, and what there is to say about it."""

    file: Path
    what: str


def draw(
    mj_model: mujoco.MjModel,
    time: np.ndarray,
    qpos: np.ndarray,
    qvel: np.ndarray,
    worlds: list[int],
    stem: Path,
    camera: str | None = None,
) -> Drawn:
    """Draw some worlds of a rollout to `stem`.mp4, or to `stem`.png if this machine cannot render.

    time: (steps, batch) [s]; qpos: (steps, batch, nq); qvel: (steps, batch, nv). Never fails for want of a display.

    Raises:
        ValueError: the model has no such camera.
    """
    try:
        return video(mj_model, time[:, worlds[0]], qpos[:, worlds], stem.with_name(f"{stem.name}.mp4"), camera)
    except RenderError as error:
        chart = stem.with_name(f"{stem.name}.png")
        plot(mj_model, time[:, worlds[0]], qpos, qvel, worlds[0], chart)
        return Drawn(chart, f"a plot of world {worlds[0]}; {error}")


def video(mj_model: mujoco.MjModel, time: np.ndarray, qpos: np.ndarray, file: Path, camera: str | None = None) -> Drawn:
    """Write worlds (steps, worlds, nq), side by side, as they are at `time` (steps,) to a video.

    It is in real time if that takes from 5 s to 20 s; shorter rollouts are slowed down, of longer ones the beginning is
    shown.

    Raises:
        RenderError: this machine cannot render; nothing is written.
        ValueError: the model has no such camera.
    """
    import imageio.v2 as imageio

    worlds = qpos.shape[1]
    duration = float(time[-1] - time[0])
    seconds = min(max(duration, LEAST_SECONDS), MOST_SECONDS)
    speed = min(1.0, duration / LEAST_SECONDS)
    wanted = time[0] + speed * np.arange(0, seconds, 1 / FPS)
    shown = np.minimum(np.searchsorted(time, wanted), len(time) - 1)
    split = int(np.ceil(np.sqrt(worlds)))
    rest = mujoco.MjData(mj_model)  # bodies that only a user moves stay where they are
    mocap_pos, mocap_quat = (np.broadcast_to(x, (worlds, *x.shape)) for x in (rest.mocap_pos, rest.mocap_quat))
    with Renderer(mj_model, (SIZE[0] // split // 2 * 2, SIZE[1] // split // 2 * 2), quick=True) as renderer:
        first = renderer.poses(qpos[0], mocap_pos, mocap_quat, camera)  # where this fails no file is left behind
        frame, at = tile(first), 0
        out: Any
        with imageio.get_writer(file, fps=FPS, macro_block_size=2) as out:
            for k in tqdm(shown, desc="rendering", unit="frame"):
                if k != at:
                    frame, at = tile(renderer.poses(qpos[k], mocap_pos, mocap_quat, camera)), k
                out.append_data(frame)
    several = f"{worlds} worlds" if worlds > 1 else "1 world"
    return Drawn(file, f"{several}, {len(shown) / FPS:.1f} s, {speed:.2g} x real time")


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
