"""Steps per second of many worlds: mjtorch by backend, C MuJoCo, MJX and MuJoCo Warp, side by side in one run.

All sides simulate the same worlds: the robot fallen, lying or moving on the floor, from rollouts of C MuJoCo with
random controls; then they get the same random controls. Each repeat starts from the same states, so that nothing drifts
apart. The sides take turns within each repeat, and a ratio is the median of the ratios of one repeat each, so that
what else the machine does hurts all alike. First calls, which compile, are timed for themselves (--compile).

Models are named mjx/humanoid (the one that MJX and MuJoCo Warp are timed on; comes with the mujoco-mjx wheel),
gym/humanoid, gym/ant, gym/half_cheetah, gym/hopper, gym/walker2d (Gymnasium's, at their own settings), or as in
`mjtorch models`, or by the path of a file.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco
import mujoco.rollout
import numpy as np
import torch
from robot_models import ROBOTS, find
from sides import (
    CHUNK,
    C,
    Ours,
    Side,
    Starts,
    UnavailableError,
    difference,
    first_line,
    machine,
    make_starts,
    pin,
    print_table,
    progress,
    random_controls,
    summary,
)

import mjtorch
from mjtorch import models, tree

RELATIVES = Path(__file__).with_name("throughput_relatives.py")
DEFAULT_MODELS = ("mjx/humanoid", "gym/humanoid", "gym/ant", "gym/half_cheetah", "gym/hopper", "gym/walker2d")
OURS = ("native", "state", "rollout", "eager", "inductor")
SIDES = ("c", *OURS, "mjx", "warp")
MEANING = {
    "c": "C MuJoCo, mujoco.rollout, float64",
    "native": "mjtorch.jit(step), all of Data returned",
    "state": 'mjtorch.jit(step), outputs="state"',
    "rollout": "mjtorch.jit(rollout), the loop inside",
    "eager": "torch.vmap(step)",
    "inductor": "torch.compile(torch.vmap(step))",
    "mjx": "MJX-JAX, jit of a loop of vmap(step), float32",
    "warp": "MuJoCo Warp, a CUDA graph, float32",
}


# --- models -----------------------------------------------------------------------------------------------------------


def locate(name: str, mjx_python: str | None) -> Path:
    """The file of the model of this name."""
    if name == "mjx/humanoid":
        return mjx_folder(mjx_python) / "test_data" / "humanoid" / "humanoid.xml"
    if name in ROBOTS:
        return find(ROBOTS[name])
    return models.path(name) if name in models.names() else Path(name)


def mjx_folder(mjx_python: str | None) -> Path:
    """Where mujoco.mjx is installed."""
    code = "import importlib.util; print(importlib.util.find_spec('mujoco.mjx').origin)"
    done = subprocess.run([mjx_python or sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            "mjx/humanoid comes with mujoco-mjx: install it, or give --mjx-python, or the path of the file"
        )
    return Path(done.stdout.strip()).parent


# --- sides ------------------------------------------------------------------------------------------------------------


class Relative:
    """MJX or MuJoCo Warp, in a process with an interpreter of its own."""

    def __init__(self, model_file: Path, kind: str, python: str, environment: dict[str, str]) -> None:
        command = [python, str(RELATIVES), kind, str(model_file)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment
        )
        self.info = self.answer()

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise UnavailableError("its process ended; see above")
        answer = json.loads(line)
        if "error" in answer:
            raise UnavailableError(answer["error"])
        return answer

    def ask(self, **question: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def prepare(self, starts: Starts, controls: np.ndarray) -> None:
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name, "starts.npz")
        np.savez(file, qpos=starts.qpos, qvel=starts.qvel, act=starts.act, controls=controls)
        self.ask(do="prepare", file=str(file))

    def run(self, steps: int) -> tuple[float, np.ndarray]:
        file = Path(self.folder.name, "qpos.npy")
        seconds = self.ask(do="run", steps=steps, file=str(file))["seconds"]
        return seconds, np.load(file)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)


# --- measuring --------------------------------------------------------------------------------------------------------


def open_sides(
    mj_model: mujoco.MjModel, file: Path, args: argparse.Namespace
) -> tuple[dict[str, Side], dict[str, str], dict[str, Any]]:
    """The sides that can simulate this model, why others cannot, and what they say of themselves."""
    sides: dict[str, Side] = {}
    missing: dict[str, str] = {}
    info: dict[str, Any] = {}
    for name in args.sides:
        kinds = [f"{name} {dtype}" for dtype in args.dtype] if name in OURS else [name]
        for kind in kinds:
            try:
                if name == "c":
                    sides[kind] = C(mj_model, args.threads)
                elif name in OURS:
                    sides[kind] = Ours(mj_model, name, getattr(torch, kind.split()[1]), args.device)
                else:
                    sides[kind] = open_relative(file, name, args, {})
                    info[name] = sides[kind].info
            except (UnavailableError, NotImplementedError, OSError) as e:
                missing[kind] = first_line(e)
    return sides, missing, info


def open_relative(file: Path, kind: str, args: argparse.Namespace, environment: dict[str, str]) -> Relative:
    """Start the process of MJX or MuJoCo Warp."""
    if args.device == "cpu":
        environment = environment | {"JAX_PLATFORMS": "cpu"}
    return Relative(file, kind, getattr(args, f"{kind}_python") or sys.executable, environment)


def measure(mj_model: mujoco.MjModel, starts: Starts, args: argparse.Namespace, sides: dict[str, Side]) -> list[dict]:
    """One row for each number of worlds and side: the seconds of all repeats, and what was checked."""
    rows = []
    # How many steps make a repeat of about the wanted length, by the speed of C.
    c = C(mj_model, args.threads)
    c.prepare(starts.batch(256), random_controls(mj_model, 256, CHUNK, args.ctrl, seed=3))
    rate = 256 * CHUNK / min(c.run(CHUNK)[0] for _ in range(2))
    for worlds in args.worlds:
        most = whole(args.seconds * 2 * rate / worlds, 1000)
        controls = random_controls(mj_model, worlds, most, args.ctrl, seed=3)
        batch = starts.batch(worlds)
        entered: dict[str, dict[str, Any]] = {}
        checked: dict[str, np.ndarray] = {}
        for name, side in sides.items():
            progress(f"{worlds} worlds: preparing {name}")
            try:
                side.prepare(batch, controls)
                seconds, checked[name] = side.run(CHUNK)
            except (UnavailableError, NotImplementedError, RuntimeError, MemoryError) as e:
                rows.append({"side": name, "worlds": worlds, "error": first_line(e)})
                continue
            steps = whole(args.seconds * CHUNK / seconds, most)
            if seconds > 2 * args.seconds and not name.startswith("rollout"):
                steps = max(1, int(CHUNK * args.seconds / seconds))
            entered[name] = {"side": name, "worlds": worlds, "steps": steps, "seconds": []}
        for repeat in range(args.repeats):
            for name, row in entered.items():
                progress(f"{worlds} worlds: repeat {repeat + 1} of {args.repeats}, {name}")
                seconds, qpos = sides[name].run(row["steps"])
                row["seconds"].append(seconds)
                row["diverged"] = int((~np.isfinite(qpos).all(axis=1)).sum())
                row["dropped"] = getattr(sides[name], "dropped", 0)
        for name, row in entered.items():
            rows.append(row | summary(row, entered.get("c")) | difference(checked[name], checked.get("c")))
    return rows


def whole(steps: float, most: int) -> int:
    """`steps` as a multiple of CHUNK, at least one of it and at most `most`."""
    return CHUNK * max(1, min(most, int(steps)) // CHUNK)


def anatomy(side: Ours) -> dict[str, Any]:
    """Sizes of a compiled step: nodes of the graph, bytes per world of scratch, input and output."""
    from mjtorch.compiler.targets.cpu.room import BYTES, scratch_bytes
    from mjtorch.compiler.targets.cpu.target import CpuTarget

    d = mjtorch.batch(mjtorch.make_data(side.m), 1)
    lowered = side.step.lower(side.m, d, **({"outputs": "state"} if side.how == "state" else {}))
    graphs = [g for g in lowered.graph.modules() if isinstance(g, torch.fx.GraphModule)]
    program = CpuTarget().schedule(lowered)

    def size(buffers: Sequence[Any], kind: str) -> int:
        return sum(b.size * BYTES[b.dtype] for b in buffers if b.kind == kind)

    return {
        "nodes": sum(n.op == "call_function" for g in graphs for n in g.graph.nodes),
        "scratch_bytes": scratch_bytes(program),
        "input_bytes": size(program.inputs, "input"),
        "output_bytes": size(program.outputs, "output"),
        "data_bytes": sum(x.numel() * x.element_size() for x in tree.leaves(d) if isinstance(x, torch.Tensor)),
    }


# --- compile time -----------------------------------------------------------------------------------------------------


def compile_times(name: str, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Seconds from nothing to a first step, in new processes: with an empty cache, and once more with a full one."""
    rows = []
    for side in args.sides:
        for when in ("cold", "warm"):
            cache = folder / f"{side}-cache"
            cache.mkdir(mode=0o700, exist_ok=True)
            progress(f"compile times: {side}, {when}")
            try:
                if side in ("native", "state", "rollout"):
                    found = probe_ours(name, side, args, cache)
                elif side == "mjx":
                    environment = {"JAX_COMPILATION_CACHE_DIR": str(cache), "MJTORCH_BENCHMARK_CACHE": "1"}
                    found = probe_relative(locate(name, args.mjx_python), side, args, environment)
                else:
                    continue
            except (UnavailableError, OSError) as e:
                found = {"error": first_line(e)}
            rows.append({"side": side, "when": when, **found})
    return rows


def probe_ours(name: str, how: str, args: argparse.Namespace, cache: Path) -> dict[str, float]:
    options = [f"--threads={args.threads}", f"--device={args.device}", f"--dtype={args.dtype[0]}"]
    if args.mjx_python:
        options.append(f"--mjx-python={args.mjx_python}")
    environment = os.environ | {"MJTORCH_CACHE_DIR": str(cache)}
    command = [sys.executable, __file__, name, f"--probe={how}", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise UnavailableError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def probe(name: str, args: argparse.Namespace) -> None:
    """In a process of its own: print the seconds of `put_model` and of the first and second call."""
    file = locate(name, args.mjx_python)
    mj_model = models.load(file)
    start = time.perf_counter()
    side = Ours(mj_model, args.probe, getattr(torch, args.dtype[0]), args.device)
    put = time.perf_counter()
    qpos = np.tile(mj_model.qpos0, (64, 1))
    starts = Starts(qpos, np.zeros((64, mj_model.nv)), np.zeros((64, mj_model.na)), 0, 0)
    side.prepare(starts, random_controls(mj_model, 64, CHUNK, args.ctrl, seed=0))
    first = time.perf_counter()
    print(json.dumps({"put_model": put - start, "first_call": first - put, "total": first - start}))


def probe_relative(file: Path, kind: str, args: argparse.Namespace, environment: dict[str, str]) -> dict[str, float]:
    mj_model = models.load(file)
    side = open_relative(file, kind, args, environment)
    start = time.perf_counter()
    qpos = np.tile(mj_model.qpos0, (64, 1))
    starts = Starts(qpos, np.zeros((64, mj_model.nv)), np.zeros((64, mj_model.na)), 0, 0)
    side.prepare(starts, random_controls(mj_model, 64, CHUNK, args.ctrl, seed=0))
    first = time.perf_counter() - start
    side.close()
    return {"put_model": side.info["put_model"], "first_call": first, "total": side.info["put_model"] + first}


def stage_times(mj_model: mujoco.MjModel, starts: Starts, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Microseconds per world of each stage, compiled alone: reading its inputs and writing its outputs included."""
    from graph_size import STAGES

    m = mjtorch.put_model(mj_model, dtype=getattr(torch, args.dtype[0]))
    worlds = min(1024, max(args.worlds))
    batch = starts.batch(worlds)
    d = mjtorch.batch(mjtorch.make_data(m), worlds)
    d = d.replace(**{x: torch.tensor(getattr(batch, x)).to(d.qpos) for x in ("qpos", "qvel", "act")})
    d = mjtorch.jit(mjtorch.forward, in_dims=(None, 0))(m, d)
    rows = []
    for stage in STAGES:
        progress(f"stages: {stage.__name__}")
        compiled = mjtorch.jit(stage, in_dims=(None, 0), backend="native", strict=True)
        try:
            compiled(m, d)
        except (NotImplementedError, ValueError) as e:
            rows.append({"stage": stage.__name__, "error": first_line(e)})
            continue
        seconds = []
        for _ in range(args.repeats):
            start = time.perf_counter()
            compiled(m, d)
            seconds.append(time.perf_counter() - start)
        rows.append({"stage": stage.__name__, "us_per_world": 1e6 * float(np.median(seconds)) / worlds})
    return rows


# --- reporting --------------------------------------------------------------------------------------------------------


def report(result: dict[str, Any]) -> None:
    """The tables of one model."""
    progress("")
    opt = result["settings"]
    print(
        f"{result['model']}: nv {result['nv']}, {result['contacts']:.1f} contacts and {result['rows']:.0f} rows on "
        f"average, {opt['solver']}, {opt['iterations']} iterations, {opt['integrator']}, {opt['timestep']:g} s"
    )
    counts = sorted({row["worlds"] for row in result["throughput"]})
    sides = list(dict.fromkeys(row["side"] for row in result["throughput"]))
    table = []
    for side in sides:
        mine = {row["worlds"]: row for row in result["throughput"] if row["side"] == side}
        cells = [side]
        for n in counts:
            row = mine.get(n, {})
            if "steps_per_second" not in row:
                cells.append("-")
                continue
            times = f" ({row['times_c']:.2f}x)" if "times_c" in row else ""
            cells.append(f"{row['steps_per_second']:,.0f}{times}")
        differences = [row["differs_from_c"] for row in mine.values() if "differs_from_c" in row]
        cells.append(f"{max(differences):.0e}" if differences else "-")
        cells += [str(sum(row.get(k, 0) for row in mine.values())) for k in ("diverged", "dropped")]
        table.append(cells)
    print_table(["steps/s (times C)", *(f"{n:,} worlds" for n in counts), "differs", "diverged", "dropped"], table)
    for side, why in result["missing"].items():
        print(f"not measured: {side}: {why}")
    for row in result["throughput"]:
        if "error" in row:
            print(f"not measured: {row['side']}, {row['worlds']} worlds: {row['error']}")
    report_details(result)


def report_details(result: dict[str, Any]) -> None:
    """Compile times, sizes and stages, as far as they were asked for."""
    if result["compile"]:
        keys = ("put_model", "first_call", "total")
        rows = [
            [row["side"], row["when"], *(f"{row[k]:.2f}" if k in row else "-" for k in keys)]
            for row in result["compile"]
        ]
        print_table(["seconds to a first step", "cache", "put_model", "first call", "total"], rows)
    if result["anatomy"]:
        keys = list(next(iter(result["anatomy"].values())))
        rows = [[side, *(f"{sizes[k]:,}" for k in keys)] for side, sizes in result["anatomy"].items()]
        print_table(["one world", *(k.replace("_", " ") for k in keys)], rows)
    if result["stages"]:
        rows = [
            [row["stage"], f"{row['us_per_world']:.2f}" if "us_per_world" in row else "-"] for row in result["stages"]
        ]
        print_table(["stage, compiled alone", "us per world"], rows)


def plot(results: Sequence[dict[str, Any]], about: dict[str, Any], file: Path) -> None:
    """Throughput over worlds, a panel for each model."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, len(results))
    rows = -(-len(results) // columns)
    figure = Figure(figsize=(4.5 * columns, 3.5 * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).reshape(-1)
    names = list(dict.fromkeys(row["side"] for result in results for row in result["throughput"]))
    for panel, result in zip(panels, results, strict=False):
        for k, side in enumerate(names):
            mine = [row for row in result["throughput"] if row["side"] == side and "steps_per_second" in row]
            if mine:
                x, y = [row["worlds"] for row in mine], [row["steps_per_second"] for row in mine]
                panel.loglog(x, y, "o-", color=f"C{k}", label=side, markersize=3)
        panel.set_title(result["model"])
        panel.set_ylabel("steps/s")
        panel.grid(alpha=0.3)
        panel.set_xlabel("worlds")
    for panel in panels[len(results) :]:
        panel.set_visible(False)
    panels[0].legend(fontsize="small")
    figure.suptitle(f"{about['device'] if about['device'] != 'cpu' else about['cpu']}, {about['threads']} threads")
    figure.savefig(file, dpi=120)


# --- command line -----------------------------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = functools.partial(str.split, sep=",")
    parser.add_argument("models", nargs="*", default=list(DEFAULT_MODELS), metavar="MODEL")
    sides = "; ".join(f"{name}: {what}" for name, what in MEANING.items())
    parser.add_argument("--sides", type=listed, metavar="NAME,...", help=f"default: those that can run; {sides}")
    parser.add_argument("--worlds", type=lambda text: [int(n) for n in text.split(",")], metavar="N,...")
    parser.add_argument("--dtype", type=listed, default=["float32"], metavar="NAME,...", help="of ours")
    parser.add_argument("--device", default="cpu", help="of ours, MJX and Warp")
    parser.add_argument(
        "--ctrl", type=float, default=0.3, metavar="PART", help="part of the control ranges that is used"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads of each side")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="about how long one repeat of one side should take")
    parser.add_argument("--compile", action="store_true", help="also measure cold and warm compile times")
    parser.add_argument("--stages", action="store_true", help="also measure each stage, compiled alone")
    parser.add_argument("--mjx-python", metavar="PATH", help="interpreter that has mujoco-mjx and jax")
    parser.add_argument("--warp-python", metavar="PATH", help="interpreter that has mujoco-warp")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write throughput.json and throughput.png there")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.sides is None:
        on_gpu = args.device != "cpu"
        args.sides = ["c", "native", "state", "rollout", "eager"]
        args.sides += ["mjx"] if args.mjx_python or importlib.util.find_spec("jax") else []
        args.sides += ["warp"] if on_gpu and (args.warp_python or importlib.util.find_spec("mujoco_warp")) else []
    if unknown := set(args.sides) - set(SIDES):
        parser.error(f"unknown sides {', '.join(sorted(unknown))}; there are {', '.join(SIDES)}")
    if args.worlds is None:
        args.worlds = [1, 16, 256, 4096, 16384] + ([131072] if args.device != "cpu" else [])
    return args


def one_model(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """All measurements of one model."""
    file = locate(name, args.mjx_python)
    mj_model = models.load(file)
    starts = make_starts(mj_model, args.threads, args.ctrl)
    opt = mj_model.opt
    result: dict[str, Any] = {
        "model": name,
        "nv": mj_model.nv,
        "contacts": starts.contacts,
        "rows": starts.rows,
        "settings": {
            "solver": mujoco.mjtSolver(opt.solver).name[6:],
            "integrator": mujoco.mjtIntegrator(opt.integrator).name[6:],
            "iterations": int(opt.iterations),
            "ls_iterations": int(opt.ls_iterations),
            "timestep": float(opt.timestep),
        },
    }
    sides, missing, info = open_sides(mj_model, file, args)
    result |= {"missing": missing, "versions": info, "throughput": measure(mj_model, starts, args, sides)}
    compiled = [s for s in sides if s.split()[0] in ("native", "state")] if args.device == "cpu" else []
    result["anatomy"] = {s: anatomy(sides[s]) for s in compiled}
    for side in sides.values():
        if isinstance(side, Relative):
            side.close()
    with tempfile.TemporaryDirectory() as folder:
        result["compile"] = compile_times(name, args, Path(folder)) if args.compile else []
    result["stages"] = stage_times(mj_model, starts, args) if args.stages else []
    return result


def main() -> None:
    args = parse()
    pin(args.threads)
    if args.probe:
        probe(args.models[0], args)
        return
    about = machine(args.threads, args.device)
    print(", ".join(f"{k} {v}" for k, v in about.items()), end="\n\n")
    results = []
    for name in args.models:
        results.append(one_model(name, args))
        report(results[-1])
        if args.output:
            args.output.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"machine": about, "sides": MEANING, "results": results}, indent=1)
            (args.output / "throughput.json").write_text(text)
            plot(results, about, args.output / "throughput.png")


if __name__ == "__main__":
    main()
