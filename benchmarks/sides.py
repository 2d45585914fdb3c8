"""What the benchmarks against C MuJoCo share: states and controls, the sides that simulate them, and ratios."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import mujoco
import mujoco.rollout
import numpy as np
import torch

import mjtorch

# Steps in one call of `rollout`, and after which sides are compared.
CHUNK = 10
# Starts: this many C rollouts of SETTLE seconds, and this many moments out of the second half of each.
ROLLOUTS, MOMENTS, SETTLE = 32, 8, 4.0
CTRL_MEMORY = 0.1  # [s]
MAX_SPEED = 1e3
CONTACT_FULL = int(mujoco.mjtWarning.mjWARN_CONTACTFULL)


class UnavailableError(Exception):
    """A side that cannot run here, or not this model."""


# --- states and controls ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Starts:
    """States and controls that all sides simulate: `qpos (n, nq)`, `qvel (n, nv)`, `act (n, na)`."""

    qpos: np.ndarray
    qvel: np.ndarray
    act: np.ndarray
    contacts: float
    rows: float

    def batch(self, worlds: int) -> Starts:
        """As many of them as there are worlds, repeated where need be."""
        pick = np.arange(worlds) % len(self.qpos)
        return dataclasses.replace(self, qpos=self.qpos[pick], qvel=self.qvel[pick], act=self.act[pick])


def random_controls(mj_model: mujoco.MjModel, worlds: int, steps: int, part: float, seed: int) -> np.ndarray:
    """(worlds, steps, nu): smooth noise in the inner `part` of the control ranges, or of [-1, 1]."""
    rng = np.random.default_rng(seed)
    limited = mj_model.actuator_ctrllimited.astype(bool)[:, None]
    low, high = np.where(limited, mj_model.actuator_ctrlrange, [-1.0, 1.0]).T
    keep = np.exp(-mj_model.opt.timestep / CTRL_MEMORY)
    noise = np.empty((worlds, steps, mj_model.nu), dtype=np.float32)
    now = rng.standard_normal((worlds, mj_model.nu))
    for k in range(steps):
        now = keep * now + np.sqrt(1 - keep**2) * rng.standard_normal(now.shape)
        noise[:, k] = now
    return ((low + high) / 2 + part * (high - low) / 2 * noise.clip(-1, 1)).astype(np.float32)


def make_starts(
    mj_model: mujoco.MjModel, threads: int, part: float, rollouts: int = ROLLOUTS, settle: float = SETTLE
) -> Starts:
    """Roll out from near the reference pose until the robot has fallen, so many times and for so many seconds.

    Raises:
        UnavailableError: all of them diverge.
    """
    steps = max(2 * MOMENTS, round(settle / mj_model.opt.timestep))
    data = mujoco.MjData(mj_model)
    rng = np.random.default_rng(0)
    initial = []
    for _ in range(rollouts):
        mujoco.mj_resetData(mj_model, data)
        mujoco.mj_integratePos(mj_model, data.qpos, 0.02 * rng.standard_normal(mj_model.nv), 1.0)
        data.qvel[:] = 0.1 * rng.standard_normal(mj_model.nv)
        initial.append(c_state(mj_model, data))
    with mujoco.rollout.Rollout(nthread=threads) as roll:
        trajectory, _ = roll.rollout(
            mj_model, [mujoco.MjData(mj_model) for _ in range(threads)], np.array(initial),
            random_controls(mj_model, rollouts, steps, part, seed=1),
        )  # fmt: skip
    moments = np.linspace(steps // 2, steps - 1, MOMENTS).astype(int)
    states = trajectory[:, moments].reshape(-1, trajectory.shape[-1])
    qpos, qvel, act = np.split(states[:, 1:], [mj_model.nq, mj_model.nq + mj_model.nv], axis=1)
    good = np.isfinite(states).all(axis=1) & (np.abs(qvel) < MAX_SPEED).all(axis=1)
    # Where C diverges, it starts again.
    good &= np.isclose(states[:, 0], np.tile((moments + 1) * mj_model.opt.timestep, rollouts))
    if not good.any():
        raise UnavailableError("all of C's rollouts diverge")
    qpos, qvel, act = qpos[good], qvel[good], act[good]
    counts = []
    for k in range(len(qpos)):
        data.qpos[:], data.qvel[:] = qpos[k], qvel[k]
        mujoco.mj_forward(mj_model, data)
        counts.append((data.ncon, data.nefc))
    contacts, rows = np.mean(counts, axis=0)
    shuffled = np.random.default_rng(2).permutation(len(qpos))
    return Starts(qpos[shuffled], qvel[shuffled], act[shuffled], float(contacts), float(rows))


def c_state(mj_model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """mjSTATE_FULLPHYSICS of `data`."""
    state = np.empty(mujoco.mj_stateSize(mj_model, mujoco.mjtState.mjSTATE_FULLPHYSICS))
    mujoco.mj_getState(mj_model, data, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    return state


# --- sides ------------------------------------------------------------------------------------------------------------


class Side(Protocol):
    """One way to simulate."""

    def prepare(self, starts: Starts, controls: np.ndarray) -> None:
        """Take these worlds, with controls (worlds, steps, nu), and compile what is to be compiled."""

    def run(self, steps: int) -> tuple[float, np.ndarray]:
        """Simulate the first `steps` steps from the starts; seconds, and qpos at the end."""


class C:
    """C MuJoCo's own rollout."""

    def __init__(self, mj_model: mujoco.MjModel, threads: int) -> None:
        self.mj_model = mj_model
        self.roll = mujoco.rollout.Rollout(nthread=threads)
        self.datas = [mujoco.MjData(mj_model) for _ in range(threads)]

    def prepare(self, starts: Starts, controls: np.ndarray) -> None:
        time = np.zeros((len(starts.qpos), 1))
        self.initial = np.concatenate([time, starts.qpos, starts.qvel, starts.act], axis=1)
        self.controls = controls.astype(np.float64)
        self.room: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.run(1)

    def run(self, steps: int) -> tuple[float, np.ndarray]:
        worlds = len(self.initial)
        # Memory for what comes back, and the controls in one piece, are made only once.
        if steps not in self.room:
            self.room[steps] = (
                np.ascontiguousarray(self.controls[:, :steps]),
                np.empty((worlds, steps, self.initial.shape[1])),
                np.empty((worlds, steps, self.mj_model.nsensordata)),
            )
        control, state, sensordata = self.room[steps]
        start = time.perf_counter()
        self.roll.rollout(self.mj_model, self.datas, self.initial, control, state=state, sensordata=sensordata)
        return time.perf_counter() - start, state[:, -1, 1 : 1 + self.mj_model.nq].copy()


class Ours:
    """mjtorch, one way or another."""

    def __init__(self, mj_model: mujoco.MjModel, how: str, dtype: torch.dtype, device: str) -> None:
        self.how, self.device = how, device
        self.m = mjtorch.put_model(mj_model, dtype=dtype, device=device)
        self.step = jitted(how)

    def prepare(self, starts: Starts, controls: np.ndarray) -> None:
        d = mjtorch.batch(mjtorch.make_data(self.m), len(starts.qpos))
        self.d = d.replace(**{x: torch.tensor(getattr(starts, x)).to(d.qpos) for x in ("qpos", "qvel", "act")})
        self.controls = torch.tensor(controls).to(d.qpos).transpose(0, 1).contiguous()
        self.run(CHUNK if self.how == "rollout" else 1)

    @torch.no_grad()
    def run(self, steps: int) -> tuple[float, np.ndarray]:
        m, d, controls = self.m, self.d, self.controls
        start = time.perf_counter()
        if self.how == "rollout":
            for k in range(0, steps, CHUNK):
                d, _ = self.step(m, d, CHUNK, ctrl=controls[k : k + CHUNK].transpose(0, 1), outputs=())
        elif self.how == "state":
            for k in range(steps):
                d = self.step(m, d.replace(ctrl=controls[k]), outputs="state")
        else:
            for k in range(steps):
                d = self.step(m, d.replace(ctrl=controls[k]))
        if self.device != "cpu":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        self.dropped = int(d.warning[:, CONTACT_FULL].sum())
        return seconds, d.qpos.double().cpu().numpy()


def jitted(how: str) -> Callable[..., Any]:
    """The function that a side of ours calls."""
    match how:
        case "rollout":
            return mjtorch.jit(mjtorch.rollout, in_dims=(None, 0, 0), backend="native", strict=True)
        case "state" | "native":
            return mjtorch.jit(mjtorch.step, in_dims=(None, 0), backend="native", strict=True)
        case _:
            return mjtorch.jit(mjtorch.step, in_dims=(None, 0), backend=how)


# --- ratios -----------------------------------------------------------------------------------------------------------


def summary(row: dict[str, Any], c: dict[str, Any] | None) -> dict[str, Any]:
    """Steps per second of all worlds together, and how many times that of C, repeat by repeat."""
    work = row["worlds"] * row["steps"]
    rates = work / np.array(row["seconds"])
    found = {"steps_per_second": float(np.median(rates)), "best_steps_per_second": float(rates.max())}
    if c is not None:
        c_rates = c["worlds"] * c["steps"] / np.array(c["seconds"])
        found["times_c"] = float(np.median(rates / c_rates))
    return found


def difference(qpos: np.ndarray, c: np.ndarray | None) -> dict[str, float]:
    """How far from C's the positions are after CHUNK steps: the median over worlds of the largest difference."""
    return {} if c is None else {"differs_from_c": float(np.nanmedian(np.abs(qpos - c).max(axis=1)))}


def first_line(e: BaseException) -> str:
    return f"{type(e).__name__}: {e}".splitlines()[0][:200]


# --- the machine and the terminal -------------------------------------------------------------------------------------


def pin(threads: int) -> None:
    """Run on this many cores, and so all that is started from here."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    torch.set_num_threads(threads)


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def machine(threads: int | Sequence[int], device: str) -> dict[str, Any]:
    """What was measured on what."""
    from mjtorch.compiler.targets.cpu.build import BuildError, compiler

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((x.partition(":")[2].strip() for x in info.read_text().splitlines() if "model name" in x), cpu)
    try:
        version = compiler().identity.replace("\0", "\n").splitlines()
        cxx = next((line for line in version if any(c.isdigit() for c in line) and " " in line), version[0])
    except BuildError:
        cxx = "none"
    return {
        "cpu": cpu,
        "simd": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "device": torch.cuda.get_device_name(device) if device != "cpu" else "cpu",
        "compiler": cxx,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mujoco": mujoco.__version__,
        "mjtorch": mjtorch.__version__,
    }


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns aligned, the first to the left and the others to the right."""
    widths = [max(len(row[k]) for row in [header, *rows]) for k in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells))
    print()
