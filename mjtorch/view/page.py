"""`Viewer`: a page in the browser, by viser, that draws worlds and has buttons and sliders."""

import contextlib
import io
import socket
import threading
import time
from typing import Any, Self

import mujoco
import numpy as np

from mjtorch.model import Data
from mjtorch.view.motion import Live, Motion, Recording, looked
from mjtorch.view.scene import Group, Look, Placed, Scene

PORT = 8080
FRAME = 1 / 30  # [s]
# What browsers still draw, and what is still sent to them in a few seconds.
MOST_TRIANGLES, MOST_VERTICES = 20_000_000, 5_000_000
# Sliders that still can be told apart.
MOST_SLIDERS = 80
# Between worlds side by side, in sizes of the model.
SPACING = 1.2
CONTACT, FORCE = (250, 170, 30), (230, 60, 50)
ADVICE = 'the viewer needs viser: pip install "mjtorch[view]"'


class ViewError(RuntimeError):
    """A model that cannot be shown, or a page that cannot be served."""


class Viewer:
    """Worlds of a model in a page of the browser; in a notebook, as the value of a cell, in the notebook.

        viewer = mjtorch.Viewer(mj_model)
        for state in states:
            viewer.show(state)                      # a Data, of one world or many

    With a `motion` it has buttons to play it; `mjtorch.view` makes one of a simulation or a recording.

    url: of the page
    playing: whether the motion goes on
    error: what ended it, if anything did

    Args:
        mj_model: what the worlds are made of.
        motion: what is played.
        port: of the page; the first from 8080 on that is free if not given.
        host: who may look: those on this machine, or, with "0.0.0.0", all who can reach it.

    Raises:
        ViewError: the port is taken, or the model has too much to draw.
        ModuleNotFoundError: viser is not installed.
    """

    def __init__(
        self,
        mj_model: mujoco.MjModel,
        motion: Motion | None = None,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        try:
            import viser
        except ModuleNotFoundError as e:
            raise ModuleNotFoundError(ADVICE) from e
        self.scene, self.motion = Scene(mj_model), motion
        self._check(motion.worlds if motion else 1)
        if port is not None and not _is_free(host, port):
            raise ViewError(f"view: port {port} is taken; choose another, or none for the first that is free")
        with contextlib.redirect_stdout(io.StringIO()):  # it prints addresses, one of which is none of a page
            self._server = viser.ViserServer(host, PORT if port is None else port, label="mjtorch", verbose=False)
        self.url = f"http://localhost:{self._server.get_port()}"
        self.playing, self.error = False, ""
        self._shown: Look | None = None
        self._steps, self._changed = 0, True
        # A first step compiles; how fast time passes; how many worlds are drawn; where the timeline was put by us.
        self._cold, self._pace, self._worlds, self._set = isinstance(motion, Live), 0.0, 0, -1.0
        self._speed: Any = None
        self._handles: list[tuple[Group, Any]] = []
        self._lock, self._closed = threading.RLock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._build()
        self.tick(0.0)

    def show(self, d: Data) -> None:
        """Draw a state: one world, or many along the first axis."""
        look = looked(d)
        if look.qpos.shape[1] != self.scene.mj_model.nq:
            raise ValueError(f"show: d belongs to another model: it has {look.qpos.shape[1]} positions")
        with self._lock:
            self._shown = look
            self._changed = True
        self._draw(look)

    def start(self) -> Self:
        """Begin to answer to buttons and to play, in a thread of its own."""
        try:
            thread = threading.Thread(target=self._run, daemon=True, name="mjtorch viewer")
            thread.start()
        except RuntimeError as e:
            self.close()
            raise ViewError(f"view: the thread that plays cannot start: {e}") from e
        self._thread = thread
        return self

    def close(self) -> None:
        """Take the page away."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with contextlib.redirect_stdout(io.StringIO()):
            self._server.stop()

    def wait(self) -> None:
        """Return when the viewer is closed."""
        while not self._closed.wait(1.0):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return f'<iframe src="{self.url}" width="100%" height="520" frameborder="0"></iframe>'

    def play(self, on: bool = True) -> None:
        """Go on, or stop."""
        self.playing = on and self.motion is not None
        self._buttons["play"].label = "Pause" if self.playing else "Play"

    def tick(self, seconds: float) -> None:
        """What `start` does again and again: go on for `seconds`, and draw what has changed."""
        with self._lock:
            if self.motion is not None:
                self._move(self.motion, seconds)
            if self._changed:
                self._changed = False
                self._draw(self._shown if self.motion is None else self.motion.look())

    # --- inside ---

    def _run(self) -> None:
        last = time.monotonic()
        while not self._closed.wait(max(0.0, FRAME - (time.monotonic() - last))):
            now = time.monotonic()
            elapsed, last = min(now - last, 0.2), now
            try:
                self.tick(elapsed)
            except Exception as error:  # it is the last that anybody hears of this thread
                self.error = " ".join(f"{type(error).__name__}: {error}".split())
                self.play(False)
                self._say()

    def _move(self, motion: Motion, seconds: float) -> None:
        """Do what the buttons and sliders want."""
        if isinstance(motion, Live) and self._sliders:
            motion.ctrl[: len(self._sliders)] = [slider.value for slider in self._sliders]
        before = motion.look().time[0]
        if self._steps:
            self._say("compiling" if self._cold else "")
            motion.step()
            self._steps -= 1
            self._cold, self._changed = False, True
        elif self.playing:
            if self._cold:
                self._say("compiling")
                motion.step()
                self._cold = False
            else:
                motion.advance(self._speed.value * seconds, FRAME)
            self._changed = True
            if seconds:
                self._pace += 0.1 * ((motion.look().time[0] - before) / seconds - self._pace)
        if isinstance(motion, Recording) and self._timeline is not None and self._changed:
            self._set = self._timeline.value = motion.place

    def _check(self, worlds: int) -> None:
        triangles, vertices = self.scene.triangles * worlds, self.scene.vertices
        if triangles > MOST_TRIANGLES or vertices > MOST_VERTICES:
            raise ViewError(
                f"view: {worlds} worlds of {self.scene.triangles:,} triangles are more than browsers draw, "
                f"{MOST_TRIANGLES:,}; show fewer worlds, or a model with coarser meshes"
            )

    def _build(self) -> None:
        """All that is on the page but the worlds."""
        mj_model, server, motion = self.scene.mj_model, self._server, self.motion
        gui, scene = server.gui, server.scene
        scene.set_up_direction("+z")
        scene.configure_default_lights(cast_shadow=True)
        center, extent = mj_model.stat.center, float(mj_model.stat.extent)
        worlds = motion.worlds if motion else 1
        self._columns = int(np.ceil(np.sqrt(worlds)))
        self._buttons: dict[str, Any] = {}
        self._sliders: list[Any] = []
        self._timeline: Any = None
        self._status = gui.add_markdown("")
        if motion is not None:
            play, step, reset = (gui.add_button(name) for name in ("Play", "Step", "Reset"))
            self._buttons = {"play": play, "step": step, "reset": reset}
            play.on_click(lambda _: self.play(not self.playing))
            step.on_click(lambda _: self._step())
            reset.on_click(lambda _: self._reset())
            self._speed = gui.add_slider("speed", 0.05, 4.0, 0.05, 1.0, hint="times real time")
        if isinstance(motion, Recording) and motion.duration:
            self._timeline = gui.add_slider("time", 0.0, motion.duration, motion.duration / 1000, 0.0)
            self._timeline.on_update(lambda _: self._seek())
        with gui.add_folder("Show"):
            self._contacts = gui.add_checkbox("contacts", False)
            self._forces = gui.add_checkbox("contact forces", False)
            self._extra = gui.add_checkbox("collision geoms", False, hint="geoms of the groups 3 to 5")
            self._spacing = gui.add_slider("spacing", 0.0, 4.0, 0.1, SPACING, visible=worlds > 1)
        for box in (self._contacts, self._forces, self._extra, self._spacing):
            box.on_update(lambda _: self._touch())
        if isinstance(motion, Live) and motion.policy is None and mj_model.nu:
            with gui.add_folder("Controls"):
                limited = mj_model.actuator_ctrllimited.astype(bool)[:, None]
                ranges = np.where(limited, mj_model.actuator_ctrlrange, [-1.0, 1.0])
                for k, (low, high) in enumerate(ranges[:MOST_SLIDERS].tolist()):
                    name = mj_model.actuator(k).name or f"actuator {k}"
                    start = float(np.clip(motion.ctrl[k], low, high))
                    self._sliders.append(gui.add_slider(name, low, high, (high - low) / 200 or 1.0, start))
                gui.add_button("Zero").on_click(lambda _: self._zero())
        for group in self.scene.groups:
            if group.once:
                self._add_grid(group, extent)
        distance = 1.5 * extent * (1 + 0.6 * SPACING * (self._columns - 1))
        server.initial_camera.look_at = center
        server.initial_camera.position = center + distance * np.array([0.5, -0.8, 0.4])

    def _step(self) -> None:
        self._steps += 1
        self.play(False)

    def _reset(self) -> None:
        with self._lock:
            assert self.motion is not None
            self.motion.reset()
            self.error, self._changed = "", True

    def _seek(self) -> None:
        if isinstance(self.motion, Recording) and abs(self._timeline.value - self._set) > 1e-9:
            with self._lock:
                self.motion.place = self._timeline.value
                self._changed = True

    def _zero(self) -> None:
        for slider in self._sliders:
            slider.value = min(max(0.0, slider.min), slider.max)

    def _touch(self) -> None:
        with self._lock:
            self._changed = True
        if self.motion is None or self._thread is None:
            self.tick(0.0)

    def _say(self, doing: str = "") -> None:
        """The line on top."""
        if self.motion is None:
            return
        doing = doing or ("playing" if self.playing else "paused")
        text = f"t = {self.motion.look().time[0]:.2f} s, {doing}"
        text += f", {self._pace:.2f} x real time" if self.playing and self._pace else ""
        self._status.content = f"**{self.error}**" if self.error else text

    def _offsets(self, worlds: int) -> np.ndarray:
        """(worlds, 3) [m]: worlds side by side."""
        at = np.stack([np.arange(worlds) % self._columns, np.arange(worlds) // self._columns, np.zeros(worlds)], -1)
        at[:, :2] -= at[:, :2].mean(axis=0)
        return at * self._spacing.value * float(self.scene.mj_model.stat.extent)

    def _draw(self, look: Look | None) -> None:
        look = look or _at_rest(self.scene.mj_model)
        self._columns = int(np.ceil(np.sqrt(look.worlds)))
        placed = self.scene.place(look, self._contacts.value or self._forces.value)
        offsets = self._offsets(look.worlds)
        with self._server.atomic():
            self._draw_geoms(placed, offsets)
            self._draw_more(placed, offsets)
        self._say()

    def _draw_geoms(self, placed: Placed, offsets: np.ndarray) -> None:
        worlds = len(offsets)
        fresh, self._worlds = self._worlds != worlds, worlds
        if fresh:
            for _, handle in self._handles:
                handle.remove()
            self._handles = []
        for k, group in enumerate(self.scene.groups):
            count = 1 if group.once else worlds
            pos = placed.geom_pos[:count, group.geom_id] + (0 if group.once else offsets[:, None])
            quat = placed.geom_quat[:count, group.geom_id]
            pos, quat = pos.reshape(-1, 3).astype(np.float32), quat.reshape(-1, 4).astype(np.float32)
            if fresh:
                self._handles.append((group, self._add(group, count, pos, quat)))
            handle = self._handles[k][1]
            handle.batched_positions, handle.batched_wxyzs = pos, quat
            if handle.visible != (not group.extra or self._extra.value):
                handle.visible = not handle.visible

    def _add(self, group: Group, count: int, pos: np.ndarray, quat: np.ndarray) -> Any:
        """Geoms of one shape, in `count` worlds."""
        opacity = np.tile(group.opacity, count).astype(np.float32)
        return self._server.scene.add_batched_meshes_simple(
            f"/geoms/{group.name}",
            group.shape.vertices.astype(np.float32),
            group.shape.faces.astype(np.uint32),
            quat,
            pos,
            batched_scales=np.tile(group.scale, (count, 1)).astype(np.float32),
            batched_colors=np.tile(_linear(group.color), (count, 1)),
            batched_opacities=opacity if (opacity < 1).any() else None,
            lod="off",
            side="double" if group.shape.faces.shape[0] < 4 or group.name.startswith("hfield") else "front",
            cast_shadow=not group.once,
        )

    def _add_grid(self, group: Group, extent: float) -> None:
        """Lines on planes without bounds, which show how things move along them."""
        rest = self.scene.place(_at_rest(self.scene.mj_model))
        for geom_id in group.geom_id:
            pos, quat = rest.geom_pos[0, geom_id], rest.geom_quat[0, geom_id]
            up = np.zeros(3)
            mujoco.mju_rotVecQuat(up, np.array([0.0, 0.0, 1.0]), quat)
            size = 10.0 ** np.floor(np.log10(max(extent, 1e-6)))
            self._server.scene.add_grid(
                f"/grid{geom_id}",
                infinite_grid=True,
                cell_size=size / 2,
                section_size=size * 2,
                fade_distance=20 * extent,
                position=pos + 1e-3 * extent * up,
                wxyz=quat,
                shadow_opacity=0.0,
            )

    def _draw_more(self, placed: Placed, offsets: np.ndarray) -> None:
        """Contacts, forces and tendons, whose number changes."""
        scene, extent = self._server.scene, float(self.scene.mj_model.stat.extent)
        at = placed.contact + offsets[placed.contact_world]
        length = self.scene.force_scale * placed.force
        drawn = {
            "/contacts": len(at) > 0 and self._contacts.value,
            "/forces": len(at) > 0 and self._forces.value,
            "/tendons": len(placed.tendon) > 0,
        }
        for name, wanted in drawn.items():
            if not wanted:
                scene.remove_by_name(name)
        if drawn["/contacts"]:
            scene.add_point_cloud("/contacts", at, CONTACT, point_size=0.015 * extent, point_shape="circle")
        if drawn["/forces"]:
            arrows = np.stack([at, at + length], 1)
            thick = 0.004 * extent
            scene.add_arrows("/forces", arrows, FORCE, shaft_radius=thick, head_radius=2 * thick, head_length=4 * thick)
        if drawn["/tendons"]:
            pieces = placed.tendon + offsets[placed.tendon_world][:, None]
            colors = np.repeat(placed.tendon_color[:, None], 2, axis=1)
            scene.add_line_segments("/tendons", pieces, colors, thickness=0.006 * extent)


def _at_rest(mj_model: mujoco.MjModel) -> Look:
    """One world as it is before anything happens."""
    rest = mujoco.MjData(mj_model)
    names = ("qpos", "qvel", "ctrl", "act", "mocap_pos", "mocap_quat")
    return Look(np.zeros(1), *(getattr(rest, name)[None] for name in names))


def _linear(color: np.ndarray) -> np.ndarray:
    """Colours as browsers take them for many meshes at once: proportional to light."""
    return np.round(255 * (color / 255) ** 2.2).astype(np.uint8)


def _is_free(host: str, port: int) -> bool:
    """Whether a page can be served there."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
