"""What worlds in a viewer do: what was recorded, or what is simulated as one looks on."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.compiler import jit
from mjtorch.forward import step
from mjtorch.model import Data, Model
from mjtorch.view.scene import Look

FIELDS = ("time", "qpos", "qvel", "ctrl", "act", "mocap_pos", "mocap_quat")
Policy = Callable[[Model, Data], Tensor]


class Motion:
    """What a viewer plays.

    worlds: how many are shown
    duration: [s], or None if there is no end
    """

    worlds: int
    duration: float | None = None

    def look(self) -> Look:
        """Where things are now."""
        raise NotImplementedError

    def step(self) -> None:
        """One time step further."""
        raise NotImplementedError

    def advance(self, seconds: float, patience: float) -> None:
        """Go on by `seconds` of the simulation, or for as long as `patience` [s] lasts."""
        raise NotImplementedError

    def reset(self) -> None:
        """Back to the beginning."""
        raise NotImplementedError


class Recording(Motion):
    """Worlds as they were recorded, at the time of the first of them.

    Args:
        mj_model: what they are worlds of.
        time: (steps, batch) [s]
        qpos: (steps, batch, nq)
        qvel: (steps, batch, nv), zeros if not given
        ctrl: (steps, batch, nu), zeros if not given
        worlds: how many are shown, the first ones.

    Raises:
        ValueError: shapes that do not fit.
    """

    def __init__(
        self,
        mj_model: mujoco.MjModel,
        time: np.ndarray,
        qpos: np.ndarray,
        qvel: np.ndarray | None = None,
        ctrl: np.ndarray | None = None,
        worlds: int | None = None,
    ) -> None:
        steps, batch = qpos.shape[:2] if qpos.ndim == 3 else (0, 0)
        given = {"time": (time, ()), "qpos": (qpos, (mj_model.nq,))}
        given |= {"qvel": (qvel, (mj_model.nv,))} if qvel is not None else {}
        given |= {"ctrl": (ctrl, (mj_model.nu,))} if ctrl is not None else {}
        for name, (array, rest) in given.items():
            if array.shape != (steps, batch, *rest) or (not array.size and name in ("time", "qpos")):
                raise ValueError(
                    f"a trajectory of this model has {name} of shape {('steps', 'batch', *rest)}, got {array.shape}"
                ) from None
        self.worlds = min(worlds or batch, batch)
        at = slice(0, self.worlds)
        self._time, self._qpos = time[:, 0].astype(float), qpos[:, at]
        self._qvel = qvel[:, at] if qvel is not None else np.zeros((steps, self.worlds, mj_model.nv))
        self._ctrl = ctrl[:, at] if ctrl is not None else np.zeros((steps, self.worlds, mj_model.nu))
        self._rest = mujoco.MjData(mj_model)
        self.duration = float(self._time[-1] - self._time[0])
        self._at = 0.0

    @classmethod
    def load(cls, mj_model: mujoco.MjModel, file: str | Path, worlds: int | None = None) -> "Recording":
        """What `mjtorch rollout` has written.

        Raises:
            OSError, ValueError: no such file, or another kind of one.
        """
        with np.load(file, allow_pickle=False) as archive:
            missing = {"time", "qpos"} - set(getattr(archive, "files", ()))
            if missing:
                raise ValueError(f"{file} is not a trajectory: it lacks {', '.join(sorted(missing))}")
            return cls(mj_model, **{name: archive[name] for name in FIELDS[:4] if name in archive.files}, worlds=worlds)

    @property
    def place(self) -> float:
        """Seconds since the beginning; may be set."""
        return self._at

    @place.setter
    def place(self, seconds: float) -> None:
        """Go there."""
        self._at = min(max(seconds, 0.0), self.duration or 0.0)

    def look(self) -> Look:
        """The last state that was recorded by then."""
        k = max(0, int(np.searchsorted(self._time - self._time[0], self._at + 1e-9, side="right")) - 1)
        rest = [
            np.repeat(x[None], self.worlds, 0) for x in (self._rest.act, self._rest.mocap_pos, self._rest.mocap_quat)
        ]
        now = np.full(self.worlds, self._time[k])
        return Look(now, self._qpos[k], self._qvel[k], self._ctrl[k], *rest)

    def step(self) -> None:
        """To the next state."""
        later = self._time - self._time[0] > self._at + 1e-9
        self.place = float((self._time - self._time[0])[later.argmax()]) if later.any() else self._at

    def advance(self, seconds: float, patience: float) -> None:
        """Further, and from the end to the beginning."""
        self.place = 0.0 if self._at >= (self.duration or 0.0) else self._at + seconds

    def reset(self) -> None:
        """Back to the beginning."""
        self.place = 0.0


class Live(Motion):
    """Worlds that are simulated, under the controls `ctrl`, or those of a policy.

    ctrl: (nu,) of all worlds; may be set

    Args:
        m: the model.
        d: the worlds at the beginning, with a leading axis.
        policy: controls (worlds, nu) of `m` and `d`.
        **options: for `jit`, such as `backend` or `threads`.
    """

    def __init__(self, m: Model, d: Data, policy: Policy | None = None, **options: Any) -> None:
        self.m, self.d, self.policy, self.worlds = m, d, policy, len(d)
        self.ctrl = np.zeros(m.nu)
        self._begin, self._dt, self._owed = d, float(m.opt.timestep), 0.0
        self._step = jit(step, in_dims=(None, 0), **options)

    def look(self) -> Look:
        """Where the worlds are."""
        return looked(self.d)

    @torch.no_grad()
    def step(self) -> None:
        """One time step."""
        if self.policy is None:
            ctrl = torch.as_tensor(self.ctrl).to(self.d.ctrl).expand_as(self.d.ctrl)
        else:
            ctrl = self.policy(self.m, self.d)
            if not isinstance(ctrl, Tensor) or ctrl.shape != self.d.ctrl.shape:
                got = tuple(ctrl.shape) if isinstance(ctrl, Tensor) else type(ctrl).__name__
                raise ValueError(f"a policy returns controls of shape {tuple(self.d.ctrl.shape)}, got {got}")
        self.d = self._step(self.m, tree.replace(self.d, ctrl=ctrl.to(self.d.ctrl)), outputs="state")

    def advance(self, seconds: float, patience: float) -> None:
        """As many steps as these seconds take; where that takes too long, time passes more slowly."""
        self._owed += seconds
        end = time.monotonic() + patience
        while self._owed >= self._dt:
            self.step()
            self._owed -= self._dt
            if time.monotonic() > end:
                self._owed = 0.0

    def reset(self) -> None:
        """Back to the beginning."""
        self.d, self._owed = self._begin, 0.0


def looked(d: Data) -> Look:
    """What is drawn of a `Data`, of one world or many."""
    d = d if d.qpos.dim() == 2 else tree.map(lambda x: x[None], d)
    return Look(**{name: getattr(d, name).numpy(force=True).astype(np.float64) for name in FIELDS})
