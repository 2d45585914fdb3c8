"""How fast tasks are learned: returns over steps, CPU seconds and seconds, by both methods.

A run trains for so many CPU seconds on one thread, writes a line of JSON every few of them to
benchmarks/learning/TASK-METHOD-SEED.jsonl, and last what whole episodes of the most likely actions bring. It goes on
where it was interrupted (`--resume`). Processes of `torchrun` share the worlds, and their CPU seconds add up. `--plot`
draws all curves that lie there.

    python benchmarks/learning.py Ant-v5 --method ppo --cpu-seconds 340
    torchrun --nproc-per-node 2 benchmarks/learning.py Humanoid-v5 --cpu-seconds 3700
    python benchmarks/learning.py --plot curves.png
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from mjtorch import learn
from mjtorch.learn.team import joined

FOLDER = Path(__file__).parent / "learning"
# CPU seconds between two lines.
EVERY = 5.0


def measure(args: argparse.Namespace) -> None:
    """Train, and write what is known of it."""
    torch.set_num_threads(1)
    stem = FOLDER / f"{args.task}-{args.method}-{args.seed}"
    curve, checkpoint = stem.with_name(f"{stem.name}.jsonl"), stem.with_name(f"{stem.name}.pt")
    before: dict[str, Any] = {"cpu": 0.0, "wall": 0.0}
    if args.resume:
        run = learn.Run.load(checkpoint, threads=1)
        before = json.loads(curve.read_text().splitlines()[-1])
    else:
        run = learn.Run(args.task, args.method, seed=args.seed, threads=1)
        curve.unlink(missing_ok=True)
    begun, last, used = time.process_time(), 0.0, 0.0

    def note(**values: float) -> None:
        line = {"cpu": round(before["cpu"] + used, 1), "wall": round(before["wall"] + progress.seconds, 1)}
        if run.team.leads:
            with curve.open("a") as file:
                print(json.dumps({**line, "steps": run.steps, **values}), file=file)

    for progress in learn.train(run, steps=args.steps or 10**12):
        (used,) = run.team.total(time.process_time() - begun)
        if used > last + EVERY and "episode/return" in progress.scalars:
            last = used
            note(**{"return": round(progress.scalars["episode/return"], 1)})
        if used > args.cpu_seconds:
            break
    run.save(checkpoint)
    if not run.team.leads:
        return
    found = learn.evaluate(run)
    mean, spread = float(found.returns.mean()), float(found.returns.std(correction=0))
    off = {name: round(float(x.mean()), 3) for name, x in found.means.items() if name.startswith("error_")}
    note(evaluation=round(mean, 1), deviation=round(spread, 1), **off)
    print(f"{run.task}, {run.method}: {mean:,.0f} +- {spread:,.0f} after {run.steps:,} steps {off or ''}")


def plot(picture: Path) -> None:
    """Draw all curves that were measured, and crosses for evaluations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for path in sorted(FOLDER.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for axis, key, scale in zip(axes, ("steps", "cpu"), (1e-6, 1.0), strict=True):
            points = [(scale * x[key], x["return"]) for x in lines if "return" in x]
            (drawn,) = axis.plot(*zip(*points, strict=True), label=path.stem)
            crosses = [(scale * x[key], x["evaluation"]) for x in lines if "evaluation" in x]
            if crosses:
                axis.plot(*zip(*crosses, strict=True), "x", color=drawn.get_color())
    axes[0].set_xlabel("million steps of all worlds")
    axes[1].set_xlabel("CPU seconds")
    axes[0].set_ylabel("return: training; x: most likely actions")
    axes[0].legend(fontsize="small")
    figure.savefig(picture, dpi=120)


def main() -> None:
    """Measure, or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="HalfCheetah-v5")
    parser.add_argument("--method", default="ppo", choices=tuple(learn.METHODS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu-seconds", type=float, default=300.0, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, help="end after so many, if sooner")
    parser.add_argument("--resume", action="store_true", help="go on from the last one")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw what was measured, measure nothing")
    args = parser.parse_args()
    if args.plot:
        plot(args.plot)
    else:
        FOLDER.mkdir(exist_ok=True)
        with joined("cpu"):
            measure(args)


if __name__ == "__main__":
    main()
