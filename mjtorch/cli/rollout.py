"""`mjtorch rollout`: simulate a batch of worlds, write what they did."""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import mjtorch
from mjtorch.cli import picture
from mjtorch.cli.errors import UsageError, usage_errors
from mjtorch.cli.load import load
from mjtorch.cli.room import check_room
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.overflow import ContactOverflowError, on_overflow
from mjtorch.render.picture import described

CONTACT_FULL = int(mujoco.mjtWarning.mjWARN_CONTACTFULL)
CONSTRAINT_FULL = int(mujoco.mjtWarning.mjWARN_CNSTRFULL)

# spread of the starts: positions [m, rad] and velocities [m/s, rad/s] in tangent space
START_POSITION, START_VELOCITY = 0.02, 0.1

# correlation time [s] of random controls
CTRL_MEMORY = 0.1

# of the default number of steps, simulated [s]
SECONDS = 5.0

# mjMAXVAL: MuJoCo calls a state bad beyond it
MAX_VALUE = 1e10


@dataclass(frozen=True)
class Trajectory:
    """What was recorded after each step; every array is (steps, batch, ...)."""

    time: np.ndarray
    qpos: np.ndarray
    qvel: np.ndarray
    ctrl: np.ndarray
    sensordata: np.ndarray

    @property
    def diverged(self) -> np.ndarray:
        """(batch,) bool: the last state is not finite, or beyond any use."""
        last = np.concatenate([self.qpos[-1], self.qvel[-1]], axis=-1)
        return ~(np.abs(last) < MAX_VALUE).all(axis=-1)


def run(args: argparse.Namespace) -> int:
    """Simulate, report, write; returns the exit code: 1 if every world diverged."""
    mj_model = load(args.model)
    name = Path(args.model).stem
    dtype, device = getattr(torch, args.dtype), checked_device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    with usage_errors(OSError, prefix="cannot write to the folder of --output: "):
        args.output.mkdir(parents=True, exist_ok=True)
    with usage_errors(ValueError, prefix="--camera: "):
        described(mj_model, args.camera)
    args.steps = args.steps or max(1, round(SECONDS / mj_model.opt.timestep))
    controls = make_controls(mj_model, args, dtype, device)
    with usage_errors(NotImplementedError, ValueError, prefix=f"{args.model}: "):
        m = mjtorch.put_model(mj_model, device=device, dtype=dtype, contact_capacity=args.contact_capacity)
    check_room(m, args.batch, args.steps)
    d = random_starts(mj_model, mjtorch.batch(mjtorch.make_data(m), args.batch), args.seed)
    with usage_errors(ValueError):
        jitted = mjtorch.jit(mjtorch.step, in_dims=(None, 0), backend=args.backend, threads=args.threads)
    step = on_overflow(jitted, args.on_overflow, mj_model)

    print(
        f"{name}: {args.batch} worlds x {args.steps} steps of {1e3 * mj_model.opt.timestep:g} ms, {args.dtype} on "
        f"{device}"
    )
    refused = usage_errors(MemoryError, ContactOverflowError)
    with refused, usage_errors(BuildError, prefix=f"--backend {args.backend}: "):
        d, trajectory, first, seconds = simulate(step, m, d, controls, args.steps)

    archive = save(trajectory, args.output / f"{name}.npz")  # before all else that may fail
    print(f"backend: {jitted.ran}, {first:.2f} s for the first step, compiling included")
    report_speed(mj_model, args, seconds)
    report_trouble(d, trajectory)
    print(f"trajectory: {archive}")
    if not args.no_picture:
        sound_first = np.argsort(trajectory.diverged, kind="stable")
        recorded = trajectory.time, trajectory.qpos, trajectory.qvel
        shown = sound_first[: args.show].tolist()
        with usage_errors(OSError, prefix="cannot write the picture: "):
            drawn = picture.draw(mj_model, *recorded, shown, args.output / name, args.camera)
        print(f"picture: {drawn.file} ({drawn.what})")
    return int(trajectory.diverged.all())


def checked_device(text: str) -> torch.device:
    """The device, if this machine has it."""
    with usage_errors(RuntimeError, AssertionError, prefix=f"--device {text}: "):
        return torch.empty(0, device=text).device


def make_controls(
    mj_model: mujoco.MjModel, args: argparse.Namespace, dtype: torch.dtype, device: torch.device
) -> Iterator[Tensor]:
    """The controls (batch, nu) of one step after another, as `--ctrl` says."""
    shape = (args.batch, mj_model.nu)
    if args.ctrl == "zero":
        return iter(torch.zeros(shape, dtype=dtype, device=device).expand(args.steps, *shape))
    if args.ctrl == "random":
        return random_controls(mj_model, args, dtype, device)
    try:
        ctrl = np.load(args.ctrl, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise UsageError(f"--ctrl must be zero, random or a .npy file; {args.ctrl!r}: {error}") from error
    fits = {(mj_model.nu,), (args.steps, mj_model.nu), (args.steps, *shape)}
    if not isinstance(ctrl, np.ndarray) or ctrl.dtype.kind not in "fiu" or ctrl.shape not in fits:
        got = f"{ctrl.dtype} of shape {ctrl.shape}" if isinstance(ctrl, np.ndarray) else "an archive of arrays"
        raise UsageError(
            f"--ctrl {args.ctrl}: numbers of shape {(mj_model.nu,)}, {(args.steps, mj_model.nu)} or "
            f"{(args.steps, *shape)} are wanted, got {got}"
        )
    if not np.isfinite(ctrl).all():
        raise UsageError(f"--ctrl {args.ctrl}: has values that are not finite")
    if ctrl.ndim == 2:
        ctrl = ctrl[:, None]
    return iter(torch.tensor(np.broadcast_to(ctrl, (args.steps, *shape)), dtype=dtype, device=device))


def random_controls(
    mj_model: mujoco.MjModel, args: argparse.Namespace, dtype: torch.dtype, device: torch.device
) -> Iterator[Tensor]:
    """Smooth noise, cut to the control ranges; where there is no range, to [-1, 1]."""
    limited = mj_model.actuator_ctrllimited.astype(bool)[:, None]
    low, high = torch.tensor(np.where(limited, mj_model.actuator_ctrlrange, [-1.0, 1.0]), dtype=dtype).unbind(-1)
    generator = torch.Generator().manual_seed(args.seed)
    keep = float(np.exp(-mj_model.opt.timestep / CTRL_MEMORY))
    noise = torch.zeros(args.batch, mj_model.nu, dtype=dtype)
    for _ in range(args.steps):
        fresh = torch.randn(noise.shape, generator=generator, dtype=dtype)
        noise = keep * noise + (1 - keep**2) ** 0.5 * fresh
        yield ((low + high) / 2 + (high - low) / 2 * noise.clamp(-1, 1)).to(device)


def random_starts(mj_model: mujoco.MjModel, d: mjtorch.Data, seed: int) -> mjtorch.Data:
    """Worlds near the first keyframe, or near `qpos0` if there is none: moved a little in tangent space."""
    rng = np.random.default_rng(seed)
    batch = d.time.shape[0]
    rest = np.array(mj_model.key_qpos[0] if mj_model.nkey else mj_model.qpos0)
    qpos = np.tile(rest, (batch, 1))
    for row in qpos:
        mujoco.mj_integratePos(mj_model, row, START_POSITION * rng.standard_normal(mj_model.nv), 1.0)
    qvel = START_VELOCITY * rng.standard_normal((batch, mj_model.nv))
    return mjtorch.tree.replace(d, qpos=torch.tensor(qpos).to(d.qpos), qvel=torch.tensor(qvel).to(d.qvel))


@torch.no_grad()
def simulate(
    step: Callable[..., mjtorch.Data], m: mjtorch.Model, d: mjtorch.Data, controls: Iterator[Tensor], steps: int
) -> tuple[mjtorch.Data, Trajectory, float, float]:
    """Run all steps; returns the last `Data`, the trajectory, and the seconds of the first step and of the others."""
    fields = ("time", "qpos", "qvel", "ctrl", "sensordata")
    record: dict[str, list[Tensor]] = {field: [] for field in fields}
    start, first = time.perf_counter(), 0.0
    bar = tqdm(controls, total=steps, unit="step", desc="compiling")
    for i, ctrl in enumerate(bar):
        d = step(m, mjtorch.tree.replace(d, ctrl=ctrl), outputs="sensordata")
        for field in fields:
            record[field].append(getattr(d, field))
        if i == 0:
            d.qpos.cpu()
            bar.set_description("simulating")
            first = time.perf_counter() - start
            start += first if steps > 1 else 0.0  # what is done once, such as compiling, is not speed
    stacked = {field: torch.stack(values).cpu().numpy() for field, values in record.items()}
    return d, Trajectory(**stacked), first, time.perf_counter() - start


def report_speed(mj_model: mujoco.MjModel, args: argparse.Namespace, seconds: float) -> None:
    """Say how fast it went, without the first step."""
    rate = args.batch * max(args.steps - 1, 1) / seconds
    print(f"speed: {rate:,.0f} steps/s over all worlds, {rate * mj_model.opt.timestep:,.1f} x real time")


def report_trouble(d: mjtorch.Data, trajectory: Trajectory) -> None:
    """Say how many worlds diverged, how many contacts found no slot, and how many steps of ipc ended early."""
    print(f"diverged: {trajectory.diverged.sum()} of {len(trajectory.diverged)} worlds")
    dropped = d.warning[:, CONTACT_FULL]
    slots = d.contact.geom.shape[-2]
    if dropped.any():
        print(
            f"overflow: {int(dropped.sum())} contacts of {int((dropped > 0).sum())} worlds found none of the {slots} "
            "slots free; give --on-overflow grow or a larger --contact-capacity"
        )
    elif slots:
        print(f"overflow: none, all contacts found one of the {slots} slots of a world")
    else:
        print("overflow: none, nothing touched")
    stuck = d.warning[:, CONSTRAINT_FULL]
    if stuck.any():
        print(
            f"ipc: {int(stuck.sum())} steps of {int((stuck > 0).sum())} worlds ended before their motion was done; "
            "a smaller time step may help"
        )


def save(trajectory: Trajectory, archive: Path) -> Path:
    """Write the arrays of a trajectory, and which worlds diverged, to an .npz file."""
    with usage_errors(OSError, prefix="cannot write the trajectory: "):
        np.savez(archive, **vars(trajectory), diverged=trajectory.diverged)
    return archive
