"""`mjtorch diagnose`: where the nodes, the memory and the seconds of a compiled step go."""

import argparse
import base64
import dataclasses
import html
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch

import mjtorch
from mjtorch.cli.errors import UsageError, usage_errors
from mjtorch.cli.load import load
from mjtorch.cli.room import check_room
from mjtorch.compiler.report.ablation import Ablation
from mjtorch.compiler.report.apart import Apart
from mjtorch.compiler.report.explain import Explanation
from mjtorch.compiler.report.sizes import Batches
from mjtorch.compiler.report.stock import stock
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.compiler.targets.cuda.report import report
from mjtorch.forward import (
    controlled,
    fwd_acceleration,
    fwd_constraint,
    fwd_position,
    fwd_velocity,
    integrated,
)
from mjtorch.model import EnableBit
from mjtorch.sensor import sensor_acc, sensor_pos, sensor_vel
from mjtorch.smooth.actuation import fwd_actuation
from mjtorch.smooth.energy import energy_pos, energy_vel

STYLE = """
body {font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222}
pre {background: #f6f6f6; padding: 1em; overflow-x: auto; font-size: 13px}
img {max-width: 100%}
"""
# Of C, before a world is taken for what happens on a GPU.
STEPS, WORLDS = 200, 4
BAR, OTHER = "#4878a8", "#c8743c"
LENGTH = 10  # steps of a rollout


def rollout(m: mjtorch.Model, d: mjtorch.Data) -> Any:
    """`LENGTH` steps under the controls that `d` has."""
    return mjtorch.rollout(m, d, LENGTH)


def gradient(m: mjtorch.Model, d: mjtorch.Data) -> tuple[torch.Tensor, ...]:
    """That of half the squares of the speeds after a step, by qpos, qvel and ctrl."""

    def loss(state: tuple[torch.Tensor, ...]) -> torch.Tensor:
        qpos, qvel, ctrl = state
        return 0.5 * mjtorch.step(m, d.replace(qpos=qpos, qvel=qvel, ctrl=ctrl)).qvel.square().sum()

    return torch.func.grad(loss)((d.qpos, d.qvel, d.ctrl))


def add_parser(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", model_help: str, count: Callable[[str], int]
) -> None:
    """Say what `mjtorch diagnose` takes; `count` reads a positive number."""
    parser = commands.add_parser(
        "diagnose",
        help="show where nodes, memory and seconds of a compiled step go",
        description="Compile the step of a model anew and measure it: seconds by phase, nodes and memory by stage, "
        "speed, memory and numbers against eager PyTorch, and what a change of the arguments costs.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help=model_help)
    parser.add_argument(
        "--batch",
        type=lambda text: tuple(map(count, text.split(","))),
        default=(256,),
        metavar="N,...",
        help="number of worlds; with several, the report is of the first, and a table compares all",
    )
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="precision")
    parser.add_argument(
        "--of",
        choices=("step", "rollout", "gradient"),
        default="step",
        help=f"a step, a rollout of {LENGTH} steps, or the gradient of half the squared speeds after a step, by qpos, "
        "qvel and ctrl",
    )
    parser.add_argument(
        "--batched",
        default="",
        metavar="FIELD,...",
        help="fields of the model that worlds do not share, as opt.gravity",
    )
    parser.add_argument(
        "--outputs", default="", metavar="NAME,...", help="what the step updates, as for mjtorch.step; all if empty"
    )
    parser.add_argument("--threads", type=count, metavar="N", help="CPU threads (default: torch's choice)")
    parser.add_argument(
        "--ablate", action="store_true", help="compile it again without each pass, with other lanes, threads, outputs"
    )
    parser.add_argument("--apart", action="store_true", help="compare the step with its stages compiled one by one")
    parser.add_argument("--stock", action="store_true", help="report on stock torch.compile too")
    parser.add_argument(
        "--cuda",
        default="",
        metavar="ARCH,...",
        help="what it takes on GPUs such as sm_80, sm_90, sm_120: registers, memory and, of a world in motion, cycles, "
        "what they go to, and in which lines of the physics (needs no GPU, but mjtorch[cuda])",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report and plots as a page, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers, too")


def run(args: argparse.Namespace) -> int:
    """Print the report, and write the page and the numbers if asked."""
    mj_model = load(args.model)
    for what, path in (("page", args.html), ("numbers", args.json)):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"cannot write the {what}: there is no folder {path.parent}")
    if args.of != "step" and (args.outputs or args.ablate or args.apart):
        raise UsageError(f"--outputs, --ablate and --apart are of a step; leave them out, or --of {args.of}")
    if args.batched and (len(args.batch) > 1 or args.ablate or args.apart):
        raise UsageError("--batched is for one --batch, without --ablate and --apart")
    if args.threads:
        torch.set_num_threads(args.threads)
    with usage_errors(NotImplementedError, ValueError, prefix=f"{args.model}: "):
        m = mjtorch.put_model(mj_model, dtype=getattr(torch, args.dtype))
        check_room(m, max(args.batch), 0)
        d = mjtorch.batch(mjtorch.make_data(m), args.batch[0])
        names = args.batched.split(",") if args.batched else []
        axes = mjtorch.model_axes(m, *names) if names else None
        subject = {"step": mjtorch.step, "rollout": rollout, "gradient": gradient}[args.of]
        step = mjtorch.jit(subject, in_dims=(axes, 0), threads=args.threads)
        chosen = {"outputs": tuple(args.outputs.split(","))} if args.outputs else {}
        with usage_errors(BuildError, MemoryError, OSError):
            found: dict[str, Any] = {"step": step.explain(varied(m, names, args.batch[0]), d, **chosen)}
            if len(args.batch) > 1:
                found["batches"] = step.batches(args.batch, (m, d), chosen)
            if args.apart:
                found["apart"] = step.apart(stages(m), (m, d))
            if args.ablate:
                other = "outputs=state" if args.outputs != "state" else "all outputs"
                changes = {"outputs": "state" if args.outputs != "state" else None}
                found["ablation"] = step.ablate((m, d), chosen, {other: changes})
            if args.stock:
                found["stock"] = stock(step.mapped, (varied(m, names, args.batch[0]), d), chosen)
            if args.cuda:
                busy = in_motion(mj_model, m)
                found["cuda"] = report(step.mapped, args.cuda.split(","), varied(m, names, len(busy)), busy, **chosen)
    title = f"{Path(args.model).stem}, {args.dtype}"
    text = "\n\n".join([f"{title}\n{found['step']}", *(str(x) for k, x in found.items() if k != "step")])
    print(text)
    if args.html is not None:
        _written(args.html, lambda: page(title, text, found), "page")
    if args.json is not None:
        _written(args.json, lambda: json.dumps({"title": title, **numbers(found)}, indent=1), "numbers")
    return 0


def _written(path: Path, make: Callable[[], str], what: str) -> None:
    """Make a text and write it, and say so."""
    try:
        path.write_text(make(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the {what}: {error}") from error
    print(f"\n{what}: {path}")


def stages(m: mjtorch.Model) -> tuple[Callable[..., mjtorch.Data], ...]:
    """What a step does one after the other, as functions `(m, d) -> d`."""
    energy = m.opt.enabled(EnableBit.ENERGY)
    return (
        fwd_position,
        sensor_pos,
        *((energy_pos,) if energy else ()),
        fwd_velocity,
        sensor_vel,
        *((energy_vel,) if energy else ()),
        controlled,
        fwd_actuation,
        fwd_acceleration,
        fwd_constraint,
        sensor_acc,
        integrated,
    )


def numbers(found: Mapping[str, Any]) -> dict[str, Any]:
    """What was found, for programs; what is only text, as text."""
    return {k: dataclasses.asdict(x) if dataclasses.is_dataclass(x) else str(x) for k, x in found.items()}  # type: ignore[arg-type]


def varied(m: mjtorch.Model, names: Sequence[str], worlds: int) -> mjtorch.Model:
    """`m`, of which each world has these fields for itself."""
    state = mjtorch.tree.state_dict(m)
    mine = [k for k in state if any(k == name or k.startswith(f"{name}.") for name in names)]
    return mjtorch.tree.load_state_dict(m, state | {k: mjtorch.batch(state[k], worlds) for k in mine})


def in_motion(mj_model: mujoco.MjModel, m: mjtorch.Model) -> mjtorch.Data:
    """Worlds after some steps of C MuJoCo under random controls, so that what rarely happens at rest happens.

    They differ: where worlds share a warp of a GPU, one waits for the other's solver.
    """
    low, high = np.where(mj_model.actuator_ctrllimited[:, None], mj_model.actuator_ctrlrange, [[-1.0, 1.0]]).T
    worlds = []
    for seed in range(WORLDS):
        data, random = mujoco.MjData(mj_model), np.random.default_rng(seed)
        for _ in range(STEPS):
            data.ctrl[:] = random.uniform(low, high)
            mujoco.mj_step(mj_model, data)
        worlds.append(mjtorch.put_data(mj_model, data, model=m))
    return mjtorch.tree.stack(worlds)


def page(title: str, text: str, found: Mapping[str, Any]) -> str:
    """The report as one HTML file that needs no other."""
    figures = {"seconds by phase, and nodes, operations and stored bytes by stage": plots(found["step"])}
    if "batches" in found:
        figures["microseconds and memory by number of worlds"] = plot_batches(found["batches"])
    for name, what, bars in (
        ("ablation", "times the usual, one change at a time", ablation_bars),
        ("apart", "ms a call, stages compiled one by one and as a whole", part_bars),
    ):
        if name in found:
            figures[what] = plot_bars(what, *bars(found[name]))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1>\n"
        + "".join(
            f'<img alt="{what}" src="data:image/png;base64,{base64.b64encode(png).decode()}">\n'
            for what, png in figures.items()
        )
        + f"<pre>{html.escape(text)}</pre></body></html>\n"
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
    return _png(figure)


def plot_batches(found: Batches) -> bytes:
    """PNG: microseconds a world, and peaks of memory, by number of worlds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.2), layout="constrained")
    times, memory = figure.subplots(1, 2)
    worlds = [b.worlds for b in found.sizes]
    for name, color in (("compiled", BAR), ("eager", OTHER)):
        seconds = [getattr(b, name) for b in found.sizes]
        times.loglog(worlds, [1e6 * s / n for s, n in zip(seconds, worlds, strict=True)], "o-", color=color, label=name)
        peaks = [(b.peak if name == "compiled" else b.eager_peak) or 0 for b in found.sizes]
        memory.plot(worlds, [p / 2**20 for p in peaks], "o-", color=color, label=name)
    times.set_ylabel("us a world")
    memory.set_ylabel("peak, MiB")
    for axes in (times, memory):
        axes.set_xlabel("worlds")
        axes.legend()
    return _png(figure)


def ablation_bars(found: Ablation) -> tuple[list[str], list[float]]:
    """Names and lengths."""
    return [v.what for v in found.variants], [v.times for v in found.variants]


def part_bars(found: Apart) -> tuple[list[str], list[float]]:
    """Names and lengths."""
    parts = (*found.parts, found.whole)
    return [p.name for p in parts], [1e3 * p.seconds for p in parts]


def plot_bars(title: str, names: Sequence[str], values: Sequence[float]) -> bytes:
    """PNG: a bar for each name, the first on top."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 0.8 + 0.22 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.bar_label(axes.barh(list(names)[::-1], list(values)[::-1], color=BAR), fmt="%.3g", padding=3)
    axes.margins(x=0.1)
    axes.set_title(title)
    return _png(figure)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return buffer.getvalue()
