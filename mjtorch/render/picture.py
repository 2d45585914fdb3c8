"""`render`: frames of worlds, drawn by MuJoCo in a process of its own."""

import contextlib
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

import mujoco
import numpy as np

from mjtorch.model import Data, Model

WORKER = Path(__file__).with_name("worker.py")
READY = b"ready\n"
PATIENCE = 90.0  # [s] until a process has drawn for the first time
CAMERA = ("type", "fixedcamid", "trackbodyid", "lookat", "distance", "azimuth", "elevation", "orthographic")
Camera: TypeAlias = str | int | mujoco.MjvCamera | None
Size: TypeAlias = tuple[int, int]


class RenderError(RuntimeError):
    """This machine cannot draw."""


class Renderer:
    """Draws worlds of one model, again and again; see `render`, which is for once.

        with mjtorch.Renderer(mj_model, size=(240, 320)) as renderer:
            frames = [renderer(state, worlds=range(4)) for state in states]     # (4, 240, 320, 3) each

    MuJoCo draws in a process of its own: where OpenGL is broken, creating a context may abort, which no `except` can
    catch. Of the ways to draw without a screen, EGL and OSMesa, the first that works is taken; MUJOCO_GL chooses one.

    Args:
        mj_model: what the worlds were made of; a `Model` knows no colours, textures or meshes that only are looked at.
        size: height and width of a frame.
        quick: without shadows, reflections and smooth edges where there is no GPU, which takes a sixth of the time.

    Raises:
        RenderError: this machine cannot draw.
        TypeError, ValueError: an argument is not what it should be.
    """

    def __init__(self, mj_model: mujoco.MjModel, size: Size = (480, 640), *, quick: bool = False) -> None:
        if not isinstance(mj_model, mujoco.MjModel):
            hint = "; give the one that it was made of: a Model has no colours" if isinstance(mj_model, Model) else ""
            raise TypeError(f"render: mj_model must be a mujoco.MjModel, got a {type(mj_model).__name__}{hint}")
        if len(size) != 2 or not all(isinstance(n, int) and n > 0 for n in size):
            raise ValueError(f"render: size must be (height, width), two positive ints, got {size!r}")
        self.mj_model, self.size = mj_model, (size[0], size[1])
        folder = None
        try:
            folder = tempfile.mkdtemp()
            self._process = _start(mj_model, self.size, quick, folder)
        except OSError as e:
            raise RenderError(f"render: temporary files cannot be written: {e}") from e
        finally:
            if folder is not None and not hasattr(self, "_process"):
                shutil.rmtree(folder, ignore_errors=True)
        self.close = weakref.finalize(self, _end, self._process, folder)

    def __call__(self, d: Data, worlds: int | Sequence[int] | None = None, camera: Camera = None) -> np.ndarray:
        """Frames (n, height, width, 3) of `worlds`, or one (height, width, 3) where there is one; see `render`."""
        return self.poses(*_poses(self.mj_model, d, worlds), camera)

    def poses(
        self, qpos: np.ndarray, mocap_pos: np.ndarray, mocap_quat: np.ndarray, camera: Camera = None
    ) -> np.ndarray:
        """Frames (..., height, width, 3) of positions.

        qpos: (..., nq); mocap_pos: (..., nmocap, 3) [m]; mocap_quat: (..., nmocap, 4)
        """
        order = f"{json.dumps(described(self.mj_model, camera))}\n".encode()
        batch = qpos.shape[:-1]
        flat = [x.reshape(*batch, -1) for x in (qpos, mocap_pos, mocap_quat)]
        numbers = np.concatenate([np.asarray(x, dtype=np.float64) for x in flat], axis=-1)
        frames = [self._frame(order + row.tobytes()) for row in numbers.reshape(-1, numbers.shape[-1])]
        return np.stack(frames).reshape(*batch, *self.size, 3)

    def _frame(self, order: bytes) -> np.ndarray:
        streams = self._process.stdin, self._process.stdout
        assert streams[0] is not None and streams[1] is not None
        wanted = 3 * self.size[0] * self.size[1]
        try:
            streams[0].write(order)
            streams[0].flush()
            frame = streams[1].read(wanted)
        except (BrokenPipeError, ValueError):
            frame = b""
        if len(frame) < wanted:
            raise RenderError("render: the process that draws has ended; make another Renderer")
        return np.frombuffer(frame, np.uint8).reshape(*self.size, 3)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def render(
    mj_model: mujoco.MjModel,
    d: Data,
    *,
    worlds: int | Sequence[int] | None = None,
    camera: Camera = None,
    size: Size = (480, 640),
    grid: bool = False,
) -> np.ndarray:
    """Frames of worlds, as MuJoCo draws them: uint8 (n, height, width, 3), or (height, width, 3) of a single world.

        frames = mjtorch.render(mj_model, d, worlds=range(9), camera="side", grid=True)

    They show where `d.qpos`, `d.mocap_pos` and `d.mocap_quat` put everything; where a model has no lights, the camera
    has one. Each call starts a process, which takes a second; `Renderer` keeps it.

    Args:
        mj_model: what the worlds were made of.
        d: one world, or many along the first axis.
        worlds: which of many, one number or several; all if not given.
        camera: name or number of a camera of the model, -1 for the free one, or a `mujoco.MjvCamera`. Not given: the
            first of the model, or, where it has none, one that looks at the first body that moves.
        size: height and width of a frame.
        grid: one picture of all frames, side by side and below each other.

    Raises:
        RenderError: this machine cannot draw.
        TypeError, ValueError, IndexError: an argument is not what it should be.
    """
    with Renderer(mj_model, size) as renderer:
        frames = renderer(d, worlds, camera)
    return tile(frames) if grid else frames


def tile(frames: np.ndarray) -> np.ndarray:
    """One picture (rows * height, columns * width, 3) of frames (n, height, width, 3), as square as may be."""
    if frames.ndim == 3:
        return frames
    count, height, width, channels = frames.shape
    columns = int(np.ceil(np.sqrt(count)))
    rows = -(-count // columns)
    padded = np.zeros((rows * columns, height, width, channels), frames.dtype)
    padded[:count] = frames
    lines = padded.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return lines.reshape(rows * height, columns * width, channels)


def _poses(
    mj_model: mujoco.MjModel, d: Data, worlds: int | Sequence[int] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What places everything, of the worlds that are wanted."""
    qpos, *mocap = (x.numpy(force=True) for x in (d.qpos, d.mocap_pos, d.mocap_quat))
    if qpos.shape[-1] != mj_model.nq or mocap[0].shape[-2] != mj_model.nmocap:
        raise ValueError(
            f"render: d belongs to another model: it has {qpos.shape[-1]} positions and {mocap[0].shape[-2]} mocap "
            f"bodies, mj_model {mj_model.nq} and {mj_model.nmocap}"
        )
    if worlds is None:
        return qpos, mocap[0], mocap[1]
    if qpos.ndim == 1:
        raise ValueError("render: d is one world; leave out worlds")
    which = np.asarray(worlds if isinstance(worlds, int) else list(worlds))
    if which.dtype.kind not in "iu" or not which.size:
        raise TypeError(f"render: worlds must be an int or some, got {worlds!r}")
    if (which >= len(qpos)).any() or (which < -len(qpos)).any():
        raise IndexError(f"render: worlds must be within the {len(qpos)} of d, got {worlds!r}")
    return qpos[which], mocap[0][which], mocap[1][which]


def described(mj_model: mujoco.MjModel, camera: Camera) -> Any:
    """A camera as JSON has it: a number, the fields of a free one, or None.

    Raises:
        ValueError: the model has no such camera.
    """
    if isinstance(camera, mujoco.MjvCamera):
        fields = {name: getattr(camera, name) for name in CAMERA if hasattr(camera, name)}
        return {name: x.tolist() if isinstance(x, np.ndarray) else x for name, x in fields.items()}
    if isinstance(camera, str):
        names = [mj_model.camera(k).name for k in range(mj_model.ncam)]
        if camera not in names:
            close = difflib.get_close_matches(camera, names, cutoff=0.4) or names
            hint = f"did you mean {' or '.join(map(repr, close))}?" if any(close) else "it has none with a name"
            raise ValueError(f"render: the model has no camera {camera!r}; {hint}")
        return names.index(camera)
    if isinstance(camera, int) and not -1 <= camera < mj_model.ncam:
        raise ValueError(f"render: the model has {mj_model.ncam} cameras, and no number {camera}")
    return camera


def _start(mj_model: mujoco.MjModel, size: Size, quick: bool, folder: str) -> subprocess.Popen[bytes]:
    """A process that draws, by the first backend that works."""
    model_file, said = Path(folder, "model.mjb"), []
    mujoco.mj_saveModel(mj_model, str(model_file), None)
    # -P: the script's folder must not shadow other modules.
    command = [sys.executable, "-P", str(WORKER), str(model_file), *map(str, size), *(["quick"] if quick else [])]
    pipe = subprocess.PIPE
    for environment in _gl_environments():
        backend = environment.get("MUJOCO_GL", "OpenGL")
        with open(Path(folder, f"{backend}.log"), "w+", errors="replace") as log:
            try:
                process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=environment, cwd=folder)
            except OSError as error:
                said.append(f"{backend}: {error}")
                continue
            try:
                impatience = threading.Timer(PATIENCE, process.kill)
                impatience.start()
            except RuntimeError as error:  # there is no thread to be had
                _end(process)
                said.append(f"{backend}: {error}")
                continue
            assert process.stdout is not None
            ready = process.stdout.readline() == READY
            impatience.cancel()
            if ready:
                return process
            _end(process)
            log.seek(0)
            lines = [line.strip() for line in log if "rror" in line and not line.startswith(" ")]
            said.append(f"{backend}: {lines[0] if lines else f'ended with {process.returncode}'}")
    raise RenderError(f"render: this machine cannot draw; {'; '.join(said)}; install libegl1 or libosmesa6")


def _gl_environments() -> list[dict[str, str]]:
    """The environments to try: the user's choice of MUJOCO_GL, else all that may work without a screen."""
    here = dict(os.environ)
    if "MUJOCO_GL" in here or sys.platform != "linux":
        return [here]
    here.pop("PYOPENGL_PLATFORM", None)
    backends = ["egl", "osmesa", *(["glfw"] if "DISPLAY" in here else [])]
    return [here | {"MUJOCO_GL": backend} for backend in backends]


def _end(process: subprocess.Popen[bytes], folder: str | None = None) -> None:
    """End a process that draws, and clear up behind it."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # what was not sent yet is of no use any more
                stream.close()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
