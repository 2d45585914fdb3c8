"""`mjtorch diagnose`: where the nodes, the memory and the seconds of a compiled step go."""

import argparse
import base64
import html
import io
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
import torch

import mjtorch
from mjtorch.cli.errors import UsageError, usage_errors
from mjtorch.cli.load import load
from mjtorch.cli.room import check_room
from mjtorch.compiler.report.explain import Explanation
from mjtorch.compiler.report.stock import stock
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.compiler.targets.cuda.report import report

STYLE = """
body {font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222}
pre {background: #f6f6f6; padding: 1em; overflow-x: auto; font-size: 13px}
img {max-width: 100%}
"""
# Of C, before a world is taken for what happens on a GPU.
STEPS = 200
BAR, OTHER = "#4878a8", "#c8743c"


def add_parser(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", model_help: str, count: Callable[[str], int]
) -> None:
    """Say what `mjtorch diagnose` takes; `count` reads a positive number."""
    parser = commands.add_parser(
        "diagnose",
        help="show where nodes, memory and seconds of a compiled step go",
        description="Compile the step of a model anew and measure it: seconds by phase, nodes and memory by stage, "
        "speed against eager PyTorch, and what a change of the arguments costs.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help=model_help)
    parser.add_argument("--batch", type=count, default=256, metavar="N", help="number of worlds")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="precision")
    parser.add_argument(
        "--outputs", default="", metavar="NAME,...", help="what the step updates, as for mjtorch.step; all if empty"
    )
    parser.add_argument("--threads", type=count, metavar="N", help="CPU threads (default: torch's choice)")
    parser.add_argument("--stock", action="store_true", help="report on stock torch.compile too")
    parser.add_argument(
        "--cuda",
        default="",
        metavar="ARCH,...",
        help="what it takes on GPUs such as sm_80, sm_90, sm_120: registers, memory and, of a world in motion, cycles, "
        "what they go to, and in which lines of the physics (needs no GPU, but mjtorch[cuda])",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report and plots as a page, too")


def run(args: argparse.Namespace) -> int:
    """Print the report, and write the page if asked."""
    mj_model = load(args.model)
    if args.html is not None and not args.html.parent.is_dir():
        raise UsageError(f"cannot write the page: there is no folder {args.html.parent}")
    if args.threads:
        torch.set_num_threads(args.threads)
    with usage_errors(NotImplementedError, ValueError, prefix=f"{args.model}: "):
        m = mjtorch.put_model(mj_model, dtype=getattr(torch, args.dtype))
        check_room(m, args.batch, 0)
        d = mjtorch.batch(mjtorch.make_data(m), args.batch)
        step = mjtorch.jit(mjtorch.step, in_dims=(None, 0), threads=args.threads)
        chosen = {"outputs": tuple(args.outputs.split(","))} if args.outputs else {}
        with usage_errors(BuildError, MemoryError, OSError):
            found = step.explain(m, d, **chosen)
            on_gpus = None
            if args.cuda:
                busy = mjtorch.batch(in_motion(mj_model, m), 1)
                on_gpus = report(step.mapped, args.cuda.split(","), m, busy, **chosen)
    title = f"{Path(args.model).stem}, {args.dtype}"
    text = f"{title}\n{found}"
    if args.stock:
        text += f"\n\n{stock(step.mapped, (m, d), chosen)}"
    if on_gpus is not None:
        text += f"\n\n{on_gpus}"
    print(text)
    if args.html is not None:
        try:
            args.html.write_text(page(title, text, found), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write the page: {error}") from error
        print(f"\npage: {args.html}")
    return 0


def in_motion(mj_model: mujoco.MjModel, m: mjtorch.Model) -> mjtorch.Data:
    """A world after some steps of C MuJoCo under random controls, so that what rarely happens at rest happens."""
    data = mujoco.MjData(mj_model)
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        low, high = np.where(mj_model.actuator_ctrllimited[:, None], mj_model.actuator_ctrlrange, [[-1.0, 1.0]]).T
        data.ctrl[:] = random.uniform(low, high)
        mujoco.mj_step(mj_model, data)
    return mjtorch.put_data(mj_model, data, model=m)


def page(title: str, text: str, found: Explanation) -> str:
    """The report as one HTML file that needs no other."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1>\n"
        f'<img alt="seconds by phase, and nodes, operations and stored bytes by stage" '
        f'src="data:image/png;base64,{base64.b64encode(plots(found)).decode()}">\n'
        f"<pre>{html.escape(text)}</pre></body></html>\n"
    )


def plots(found: Explanation) -> bytes:
    """PNG: compile seconds by phase, speed, and the shares of the stages."""
    from matplotlib.figure import Figure

    stages = found.stages[::-1]
    figure = Figure(figsize=(12, 3.2 + 0.22 * len(stages)), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(2.4, 0.8 + 0.22 * len(stages)))  # type: ignore[misc]
    phases, speed = top.subplots(1, 2)
    phases.barh(list(found.seconds)[::-1], list(found.seconds.values())[::-1], color=BAR)
    phases.set_title(f"compiling: {sum(found.seconds.values()):.1f} s")
    phases.set_xlabel("s")
    worlds = max(1, found.worlds)
    times = [1e6 * s / worlds for s in (found.speed.eager, found.speed.compiled)]
    speed.bar_label(speed.barh(["eager", "compiled"], times, color=(OTHER, BAR)), fmt="%.3g", padding=3)
    speed.margins(x=0.15)
    speed.set_title(f"a call, {worlds} worlds")
    speed.set_xlabel("us a world")
    columns = bottom.subplots(1, 3, sharey=True)
    names = [s.name for s in stages]
    for axes, (what, values) in zip(
        columns,
        {
            "nodes": [s.nodes for s in stages],
            "operations a world": [s.operations for s in stages],
            "bytes stored a world": [s.bytes for s in stages],
        }.items(),
        strict=True,
    ):
        axes.barh(names, values, color=BAR)
        axes.set_title(what)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return buffer.getvalue()
