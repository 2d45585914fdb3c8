"""Steps of environments per second: mjtorch, EnvPool and Gymnasium, side by side in one run.

All sides step the same task under random actions, with resets, arrays of numpy in and out. Each is a process of its
own, made once; then they take turns, and a ratio is the median of the ratios of one turn each, so that what else the
machine does hurts all alike. Steps per CPU second count the time of all threads and child processes of a side (Linux).

EnvPool may have another interpreter: python -m venv ../envpool && ../envpool/bin/pip install envpool
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TASKS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
# What EnvPool has that is most like tasks of ours: the same robot, contacts of its feet only, 50 actions a second.
LIKE = {"go1-flat": "Go1JoystickFlatTerrain-v1", "g1-flat": "G1JoystickFlatTerrain-v1"}
SIDES = ("mjtorch", "envpool", "gymnasium")
MEANING = {
    "mjtorch": 'gymnasium.make_vec("mjtorch/..."), float32',
    "envpool": "envpool.make_gymnasium, C MuJoCo, float64",
    "gymnasium": "AsyncVectorEnv, a process for each world, twice as many as threads, float64",
}


# --- in the process of a side -----------------------------------------------------------------------------------------


def make(side: str, task: str, worlds: int, threads: int) -> Any:
    """The worlds of a side, as a vector environment of Gymnasium's kind."""
    if side == "mjtorch":
        import gymnasium

        import mjtorch.envs.adapters.gymnasium  # noqa: F401 - it registers

        return gymnasium.make_vec(f"mjtorch/{task}", num_envs=worlds, threads=threads)
    if side == "envpool":
        import envpool

        return envpool.make_gymnasium(LIKE.get(task, task), num_envs=worlds, num_threads=threads)
    import gymnasium

    return gymnasium.make_vec(task, num_envs=2 * threads, vectorization_mode="async")


def cpu_seconds() -> float:
    """Of this process and all that it has started and that still run."""
    ticks, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
        for thread in Path(f"/proc/{pid}/task").iterdir():
            todo += map(int, (thread / "children").read_text().split())
    return ticks / os.sysconf("SC_CLK_TCK")


def serve(side: str, task: str, worlds: int, threads: int) -> None:
    """Make the worlds, say how long that took, then step for as many seconds as each line of the input says."""
    import numpy as np

    start = time.perf_counter()
    env = make(side, task, worlds, threads)
    space = env.single_action_space if side != "envpool" else env.action_space
    count = 2 * threads if side == "gymnasium" else worlds
    env.reset() if side == "envpool" else env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = [rng.uniform(space.low, space.high, (count, *space.shape)).astype(space.dtype) for _ in range(8)]
    env.step(actions[0])
    print(json.dumps({"first": time.perf_counter() - start}), flush=True)
    for line in sys.stdin:
        begun, used, steps = time.perf_counter(), cpu_seconds(), 0
        while time.perf_counter() - begun < float(line):
            env.step(actions[steps % len(actions)])
            steps += 1
        result = {"steps": steps * count, "wall": time.perf_counter() - begun, "cpu": cpu_seconds() - used}
        print(json.dumps(result), flush=True)
    env.close()


# --- in the process that compares -------------------------------------------------------------------------------------


class Side:
    """One of those that take turns.

    Raises:
        RuntimeError: it cannot run here.
    """

    def __init__(self, name: str, python: str, task: str, worlds: int, threads: int) -> None:
        command = [python, __file__, "--serve", name, "--worlds", str(worlds), "--threads", str(threads), task]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, **pipes)
        self.turns: list[dict[str, float]] = []
        self.first = self._answer()["first"]

    def turn(self, seconds: float) -> None:
        """Step for so long."""
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        self.turns.append(self._answer())

    def rates(self, of: str) -> list[float]:
        """Steps per second of each turn."""
        return [turn["steps"] / turn[of] for turn in self.turns]

    def close(self) -> None:
        """No more turns."""
        self.process.communicate()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None and self.process.stderr is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        said, code = self.process.stderr.read().strip().splitlines(), self.process.wait()
        killed = f"{signal.Signals(-code).name} ended it" if code < 0 else "it ended"
        if code == -signal.SIGKILL:
            killed += ", for want of memory, if nobody else did: try fewer --envpool-worlds or --worlds"
        raise RuntimeError(said[-1] if said and code >= 0 else killed)


def compare(task: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All sides on a task: a row for each that runs here."""
    sides: dict[str, Side] = {}
    for name in args.sides:
        of_envpool = name == "envpool"
        python = args.envpool_python if of_envpool else sys.executable
        worlds = (of_envpool and args.envpool_worlds) or args.worlds
        try:
            sides[name] = Side(name, python, task, worlds, args.threads)
        except RuntimeError as e:
            print(f"{task}: {name} cannot run: {e}")
    for _ in range(args.repeats):
        for side in sides.values():
            side.turn(args.seconds)
    rows = []
    base = next(iter(sides.values()), None)
    for name, side in sides.items():
        row: dict[str, Any] = {"task": task, "side": name, "first": side.first}
        for of in ("cpu", "wall"):
            row[of] = statistics.median(side.rates(of))
            pairs = zip(base.rates(of), side.rates(of), strict=True)
            row[f"{of}_ratio"] = statistics.median(ours / theirs for ours, theirs in pairs)
        rows.append(row)
        side.close()
    return rows


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "task": lambda row: row["task"],
    "side": lambda row: row["side"],
    "a CPU second": lambda row: f"{row['cpu']:,.0f}",
    "times fewer": lambda row: f"{row['cpu_ratio']:.2f}",
    "a second": lambda row: f"{row['wall']:,.0f}",
    "times fewer ": lambda row: f"{row['wall_ratio']:.2f}",
    "first step": lambda row: f"{row['first']:.1f} s",
}


def main() -> None:
    """Compare."""
    about = "\n".join(f"  {name}: {meaning}" for name, meaning in MEANING.items())
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=f"{__doc__}\nsides:\n{about}", formatter_class=kind)
    parser.add_argument(
        "tasks", nargs="*", default=TASKS, help=f"Gymnasium's names, or go1-flat, g1-flat (default: {' '.join(TASKS)})"
    )
    parser.add_argument("--worlds", type=int, default=1024, help="of mjtorch and EnvPool (default: %(default)s)")
    parser.add_argument("--envpool-worlds", type=int, help="its own number: each has a model, meshes and all")
    parser.add_argument("--threads", type=int, default=1, help="of each side (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each side (default: %(default)s)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="the first against the others")
    parser.add_argument("--envpool-python", default=sys.executable, help="an interpreter that has envpool")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.tasks[0], args.worlds, args.threads)
        return
    rows = [row for task in args.tasks for row in compare(task, args)]
    cells = [list(COLUMNS), *([show(row) for show in COLUMNS.values()] for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(COLUMNS))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


if __name__ == "__main__":
    main()
