"""`mjtorch train`: learn a task, show how it goes, write what was learned."""

import argparse
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from tqdm import tqdm

from mjtorch.cli import picture
from mjtorch.cli.errors import UsageError, usage_errors
from mjtorch.compiler.targets.cpu.build import BuildError


def add_parser(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    count: Callable[[str], int],
    natural: Callable[[str], int],
) -> None:
    """Say what `mjtorch train` takes; `count` reads a positive number, `natural` one that may be zero."""
    parser = commands.add_parser(
        "train",
        help="learn a task by PPO, or by gradients through the simulator",
        description="Learn a task. Writes checkpoint.pt, events for TensorBoard, and a video of an episode, or a plot "
        "where this machine cannot render.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("task", metavar="TASK", help="such as Ant-v5 (see `mjtorch tasks`)")
    parser.add_argument("--method", default="ppo", help="ppo, or shac: gradients through the simulator")
    parser.add_argument("--steps", type=count, metavar="N", help="of all worlds together (default: the task's)")
    parser.add_argument("--worlds", type=count, metavar="N", help="how many at once (default: the method's)")
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="of worlds, networks and actions")
    parser.add_argument("--device", default="cpu", help="such as cpu or cuda")
    parser.add_argument("--threads", type=count, metavar="N", help="CPU threads (default: torch's choice)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to write to (default: runs/TASK-METHOD)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="another setting, such as discount=0.98"
    )
    parser.add_argument("--no-picture", action="store_true", help="write no video")


def run(args: argparse.Namespace) -> int:
    """Learn, evaluate, write."""
    if args.threads:
        torch.set_num_threads(args.threads)
    with usage_errors(ModuleNotFoundError):
        from mjtorch import learn
        from mjtorch.learn.run import CHECKPOINT
        from mjtorch.learn.team import joined
    folder = args.output or Path("runs") / f"{args.task}-{args.method}"
    with joined(args.device) as (team, args.device):
        run = begin(args, learn.Run, folder / CHECKPOINT)
        learn_and_tell(args, run, folder, team.leads)
    return 0


def learn_and_tell(args: argparse.Namespace, run: Any, folder: Path, leads: bool) -> None:
    """Learn; the first of the processes evaluates, and tells of it."""
    from mjtorch import envs, learn
    from mjtorch.learn.run import CHECKPOINT

    steps = args.steps or run.settings.steps
    if leads:
        where = run.experience.worlds.device
        several = f", {run.team.size} processes" if run.team.size > 1 else ""
        print(f"{run.task}: {run.method}, {run.settings.worlds} worlds, seed {run.seed}, on {where}{several}")
        if run.steps:
            print(f"resumed after {run.steps:,} steps")
    with (
        usage_errors(OSError, prefix="cannot write to the folder of --output: "),
        usage_errors(ConnectionError, FloatingPointError, BuildError, MemoryError),
        tqdm(total=steps, initial=min(run.steps, steps), unit="step", unit_scale=True, disable=not leads) as bar,
    ):
        for progress in learn.train(run, steps, folder):
            bar.update(min(progress.steps, steps) - bar.n)
            shown = {"return": progress.scalars.get("episode/return"), "length": progress.scalars.get("episode/length")}
            bar.set_postfix({name: f"{x:,.0f}" for name, x in shown.items() if x is not None})
    if not leads:
        return
    episodes = learn.evaluate(run)
    spread = episodes.returns.std(correction=0)
    print(f"return: {episodes.returns.mean():,.1f} +- {spread:,.1f}, of {len(episodes.returns)} episodes")
    off = {name: x.mean() for name, x in episodes.means.items() if name.startswith("error_")}
    if off:
        print("off on the average: " + ", ".join(f"{name.removeprefix('error_')} {x:.2f}" for name, x in off.items()))
    print(f"checkpoint: {folder / CHECKPOINT}\ncurves: tensorboard --logdir {folder}")
    if not args.no_picture:
        time, qpos, qvel = (x[:, None].numpy(force=True) for x in (episodes.time, episodes.qpos, episodes.qvel))
        with usage_errors(OSError, prefix="cannot write the picture: "):
            drawn = picture.draw(envs.mj_model(run.task), time[..., 0, None], qpos, qvel, [0], folder / "episode")
        print(f"picture: {drawn.file} ({drawn.what})")


def begin(args: argparse.Namespace, kind: Any, checkpoint: Path) -> Any:
    """The run that the arguments describe, or the one that is to go on."""
    changes = dict(map(setting, args.set)) | ({"worlds": args.worlds} if args.worlds else {})
    with usage_errors(ValueError, TypeError, ModuleNotFoundError, NotImplementedError, RuntimeError, AssertionError):
        if not args.resume:
            options = {"device": args.device, "seed": args.seed, "threads": args.threads}
            return kind(args.task, args.method, settings=changes, **options)
        if changes:
            raise UsageError("--resume goes on with the settings of the checkpoint; leave out --set and --worlds")
        if not checkpoint.is_file():
            raise UsageError(f"--resume: there is no {checkpoint}")
        with usage_errors(OSError, EOFError, UnpicklingError, KeyError, prefix=f"--resume: {checkpoint}: "):
            found = kind.load(checkpoint, device=args.device, threads=args.threads)
    if (found.task, found.method) != (args.task, args.method):
        raise UsageError(f"--resume: {checkpoint} is of {found.task} by {found.method}")
    return found


def setting(text: str) -> tuple[str, Any]:
    """A name and a number, or several with commas."""
    name, _, value = text.partition("=")
    try:
        numbers = [float(x) if set(x) & set(".e") else int(x) for x in value.split(",")]
    except ValueError as error:
        raise UsageError(f"--set takes NAME=NUMBER, or NAME=NUMBER,NUMBER, got {text!r}") from error
    return name, numbers[0] if len(numbers) == 1 else tuple(numbers)
