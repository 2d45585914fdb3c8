"""Gradients of one step: what they cost, whether they are there, and whether they are right; ours and MJX's.

The gradient is that of a weighted sum of qpos and qvel after a step, with respect to qpos, qvel and ctrl before it.
Times are seconds of the processor, so that they hold on a busy machine. The error is relative to central differences of
steps by C MuJoCo in float64 whose Newton solver runs until nothing improves, in states of a robot that has fallen, in
contact; the part of qpos is left out where there are quaternions, of which each program makes unit ones in its own way.

With --linearize also `mjtorch.linearize`: all derivatives of the next state and the sensors, of each world.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from robot_models import MADE, ROBOTS, load
from sides import make_starts, random_controls
from throughput import locate
from torch import Tensor

import mjtorch
from mjtorch import tree
from mjtorch.compiler.targets.cpu.room import scratch_bytes
from mjtorch.compiler.targets.cpu.target import CpuTarget

CHECKED = 16  # states in which errors are measured
NUDGE = 1e-6
REPEATS = 15
HEADER = (
    "side solver-iterations step-compile[s] step[us] gradient-compile[s] gradient[us] ratio finite error(median) "
    "error(worst)"
).split()


def weights(mj_model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """Of qpos (nq,) and of qvel (nv,)."""
    return tuple(np.split(np.random.default_rng(3).standard_normal(mj_model.nq + mj_model.nv), [mj_model.nq]))


def given(mj_model: mujoco.MjModel, worlds: int) -> dict[str, np.ndarray]:
    """States in contact, and controls, in float64."""
    starts = make_starts(mj_model, 1, 0.3).batch(worlds)
    ctrl = random_controls(mj_model, worlds, 1, 0.3, seed=4)[:, 0].astype(np.float64)
    return {"qpos": starts.qpos, "qvel": starts.qvel, "act": starts.act, "ctrl": ctrl}


def differences(exact: mujoco.MjModel, states: dict[str, np.ndarray]) -> np.ndarray:
    """The gradients (CHECKED, nq + nv + nu) by C."""
    exact.opt.solver, exact.opt.iterations, exact.opt.tolerance = mujoco.mjtSolver.mjSOL_NEWTON, 100, 1e-14
    exact.opt.ls_iterations, exact.opt.ls_tolerance = 50, 1e-6
    exact.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
    data, (wq, wv) = mujoco.MjData(exact), weights(exact)

    def response(state: dict[str, np.ndarray]) -> float:
        mujoco.mj_resetData(exact, data)
        for name, x in state.items():
            getattr(data, name)[:] = x
        mujoco.mj_step(exact, data)
        return float(wq @ data.qpos + wv @ data.qvel)

    result = np.zeros((CHECKED, exact.nq + exact.nv + exact.nu))
    for world in range(CHECKED):
        state = {name: x[world] for name, x in states.items()}
        places = [(name, k) for name in ("qpos", "qvel", "ctrl") for k in range(len(state[name]))]
        for at, (name, k) in enumerate(places):
            nudge = NUDGE * np.eye(len(state[name]))[k]
            up, down = (response(state | {name: state[name] + sign * nudge}) for sign in (1, -1))
            result[world, at] = (up - down) / (2 * NUDGE)
    return result


def errors(found: np.ndarray, wanted: np.ndarray, first: int) -> np.ndarray:
    """For each state the largest difference, relative to the largest magnitude; infinite where it is not a number.

    Numbers before the `first` are left out.
    """
    found, wanted = found[:, first:], wanted[:, first:]
    worst = np.abs(found - wanted).max(1) / np.abs(wanted).max(1)
    return np.where(np.isfinite(worst), worst, np.inf)


def timed(f: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the processor of the first call, and of the fastest of the next ones."""
    seconds = []
    for _ in range(1 + REPEATS):
        start = time.process_time()
        f()
        seconds.append(time.process_time() - start)
    return seconds[0], min(seconds[1:])


def ours(
    mj_model: mujoco.MjModel, states: dict[str, np.ndarray], iterations: int | None, linearize: bool
) -> dict[str, Any]:
    """Times in float32 and gradients in float64; with as many slots for contacts whatever the iterations."""
    slots = mjtorch.put_model(mj_model).plan.collision.ncon
    if iterations is not None:
        mj_model.opt.iterations = iterations
    wq, wv = map(torch.tensor, weights(mj_model))

    def step(m: mjtorch.Model, d: mjtorch.Data, qpos: Tensor, qvel: Tensor, ctrl: Tensor) -> tuple[Tensor, Tensor]:
        d = mjtorch.step(m, d.replace(qpos=qpos, qvel=qvel, ctrl=ctrl), outputs=())
        return d.qpos, d.qvel

    def gradient(m: mjtorch.Model, d: mjtorch.Data, *inputs: Tensor) -> Any:
        def loss(*inputs: Tensor) -> Tensor:
            qpos, qvel = step(m, d, *inputs)
            return (wq.to(qpos) * qpos).sum() + (wv.to(qpos) * qvel).sum()

        return torch.func.grad(loss, argnums=(0, 1, 2))(*inputs)

    dims = (None, 0, 0, 0, 0)
    result: dict[str, Any] = {"iterations": mj_model.opt.iterations}
    arguments = prepared(mj_model, states, torch.float32, slots)
    for name, f in (("step", step), ("gradient", gradient)):
        jitted = mjtorch.jit(f, in_dims=dims, strict=True)
        result[f"{name}_compile"], result[name] = timed(lambda jitted=jitted: jitted(*arguments))
    result["scratch"] = scratch_bytes(CpuTarget().schedule(jitted.lower(*arguments)))
    if linearize:
        jitted = mjtorch.jit(mjtorch.linearize, in_dims=(None, 0), strict=True)
        m, d, *_ = arguments
        result["linearize_compile"], result["linearize"] = timed(lambda: jitted(m, d))
    checked = {name: x[:CHECKED] for name, x in states.items()}
    found = torch.vmap(gradient, in_dims=dims)(*prepared(mj_model, checked, torch.float64, slots))
    return result | {"found": torch.cat(found, 1).tolist()}


def prepared(
    mj_model: mujoco.MjModel, states: dict[str, np.ndarray], dtype: torch.dtype, slots: int
) -> tuple[Any, ...]:
    m = mjtorch.put_model(mj_model, dtype=dtype, contact_capacity=slots)
    d = mjtorch.batch(mjtorch.make_data(m), len(states["qpos"]))
    d = tree.map(torch.Tensor.contiguous, d.replace(**{k: torch.tensor(x, dtype=dtype) for k, x in states.items()}))
    return m, d, d.qpos, d.qvel, d.ctrl


def mjx(
    file: Path, states: dict[str, np.ndarray], iterations: int | None, python: str, patience: float
) -> dict[str, Any]:
    """The same by MJX, in a process of its own; what it has found after `patience` seconds, if it has not ended."""
    mj_model = mujoco.MjModel.from_xml_path(str(file))
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder, "states.npz")
        wq, wv = weights(mj_model)
        np.savez(where, wq=wq, wv=wv, **states)
        command = [python, str(Path(__file__).with_name("gradient_relative.py")), str(file), str(where)]
        command += [str(iterations or ""), str(CHECKED), str(REPEATS)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=patience, check=False)
        except subprocess.TimeoutExpired as e:
            lines = (e.stdout or b"").splitlines()
            return (json.loads(lines[-1]) if lines else {}) | {"error": f"more than {patience:.0f} s"}
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines else {"error": done.stderr.decode().strip().splitlines()[-1]}


def row(side: str, result: dict[str, Any], wanted: np.ndarray, first: int, worlds: int) -> list[str]:
    """A line of the table; ends with what went wrong, after what was found before."""
    cells = [side, str(result.get("iterations", ""))]
    for name in ("step", "gradient"):
        if name in result:
            cells += [f"{result[f'{name}_compile']:.1f}", f"{1e6 * result[name] / worlds:.1f}"]
    if "error" in result:
        return [*cells, result["error"]]
    found = np.array(result["found"])
    off = errors(found, wanted, first)
    finite = np.isfinite(found).all(1).sum()
    ratio = result["gradient"] / result["step"]
    return [*cells, f"{ratio:.1f}", f"{finite} of {len(found)}", f"{np.median(off):.1e}", f"{off.max():.1e}"]


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["cartpole", "hopper", "humanoid"], help="names or files")
    parser.add_argument("--worlds", type=int, default=1024)
    parser.add_argument("--assets", type=Path, metavar="FOLDER", help="unpacked wheels of robots, as of robots.py")
    parser.add_argument("--linearize", action="store_true", help="measure `mjtorch.linearize` as well")
    parser.add_argument("--iterations", default="-,1", help="of the solver; - for those of the model")
    parser.add_argument("--mjx-python", help="an interpreter that has mujoco-mjx")
    parser.add_argument("--patience", type=float, default=1800, metavar="S", help="seconds that MJX gets for a line")
    args = parser.parse_args()
    if args.mjx_python and (made := MADE.keys() & set(args.models)):
        parser.error(f"{', '.join(made)} has no file for MJX: leave out --mjx-python")
    torch.set_num_threads(1)
    for name in args.models:
        source = name if name in ROBOTS or name in MADE else str(locate(name, args.mjx_python))
        mj_model = load(source, args.assets)
        first = 0 if mj_model.nq == mj_model.nv else mj_model.nq
        states = given(mj_model, args.worlds)
        wanted = differences(mj_model, states)
        print(f"\n{name}, {args.worlds} worlds\n| {' | '.join(HEADER)} |", flush=True)
        for iterations in (None if x == "-" else int(x) for x in args.iterations.split(",")):
            result = ours(load(source, args.assets), states, iterations, args.linearize)
            remarks = [f"{result['scratch'] / 1024:.0f} KiB of scratch a world"]
            if args.linearize:
                seconds, each = result["linearize_compile"], 1e6 * result["linearize"] / args.worlds
                remarks.append(f"linearize: {seconds:.1f} s, then {each:.1f} us a world")
            show(row("mjtorch", result, wanted, first, args.worlds), "; ".join(remarks))
            if args.mjx_python:
                found = mjx(locate(name, args.mjx_python), states, iterations, args.mjx_python, args.patience)
                show(row("MJX", found, wanted, first, args.worlds))


def show(cells: Sequence[str], remark: str = "") -> None:
    print(f"| {' | '.join(cells)} | {remark}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
