"""`mjtorch debug`: which step of the compilation of a model's step first goes wrong."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import mujoco
import torch
from torch import Tensor
from tqdm import tqdm

import mjtorch
from mjtorch.cli.errors import usage_errors
from mjtorch.cli.load import load
from mjtorch.cli.room import check_room
from mjtorch.compiler.debug import WORLDS, Diagnosis, debug
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.compiler.targets.cpu.native import FEW_WORLDS
from mjtorch.compiler.targets.cpu.target import CpuTarget
from mjtorch.compiler.targets.emulated.target import EmulatedWarp
from mjtorch.compiler.targets.target import Target

# Compared besides what the passes make: the trace, the lowering with and without inlining, the code.
OTHER_STEPS = 4


def add_parser(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    model_help: str,
    count: Callable[[str], int],
    seed: Callable[[str], int],
) -> None:
    """Say what `mjtorch debug` takes; `count` reads a positive number, `seed` one that may be zero."""
    parser = commands.add_parser(
        "debug",
        help="find the step of the compilation that first computes something else",
        description="Compile the step of a model step by step (trace, lowering, each pass, the code), run what there "
        "is after each on the same worlds, and compare. Says which step, and which operation, first computes something "
        "else, or which value is the first that is not finite, with the line it comes from; exits with 1 if there is "
        "such a thing. Programs run in a slow interpreter: seconds for a cartpole, minutes for a humanoid.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help=model_help)
    parser.add_argument(
        "--batch", type=count, default=WORLDS, metavar="N", help=f"number of worlds; of more than {WORLDS}, the first"
    )
    parser.add_argument(
        "--steps", type=count, default=100, metavar="N", help="steps that C MuJoCo takes before, with random controls"
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the starts and random controls")
    parser.add_argument(
        "--dtype", choices=("float32", "float64"), default="float64", help="precision; float32 may differ by rounding"
    )
    parser.add_argument(
        "--target", choices=("cpu", "warp"), default="cpu", help="what for: this CPU, or a GPU's warp, emulated here"
    )


def run(args: argparse.Namespace) -> int:
    """Print the report; returns the exit code: 1 if something was found."""
    mj_model = load(args.model)
    target = CpuTarget(few=args.batch <= FEW_WORLDS) if args.target == "cpu" else EmulatedWarp()
    with usage_errors(NotImplementedError, ValueError, prefix=f"{args.model}: "):
        m = mjtorch.put_model(mj_model, dtype=getattr(torch, args.dtype))
        check_room(m, args.batch, 0)
        mj_datas = worlds_in_contact(mj_model, m, args)
        d = mjtorch.tree.stack([mjtorch.put_data(mj_model, mj_data, model=m) for mj_data in mj_datas])
        contacts = [mj_data.ncon for mj_data in mj_datas]
        print(
            f"{Path(args.model).stem}: {args.batch} worlds after {args.steps} steps of C MuJoCo, with "
            f"{min(contacts)} to {max(contacts)} contacts, {args.dtype}"
        )
        with usage_errors(BuildError):
            found = diagnosed(m, d, target)
    print(found)
    return int(not found.is_well)


def worlds_in_contact(mj_model: mujoco.MjModel, m: mjtorch.Model, args: argparse.Namespace) -> list[mujoco.MjData]:
    """Worlds that started at random and were simulated by C."""
    # Not before: `--help` need not wait for it.
    from mjtorch.cli.rollout import random_controls, random_starts

    starts = random_starts(mj_model, mjtorch.batch(mjtorch.make_data(m), args.batch), args.seed)
    controls: Iterator[Tensor] = random_controls(mj_model, args, torch.float64, torch.device("cpu"))
    mj_datas: list[mujoco.MjData] = [mjtorch.get_data(mj_model, start) for start in mjtorch.tree.unstack(starts)]
    for ctrl in controls:
        for mj_data, row in zip(mj_datas, ctrl, strict=True):
            mj_data.ctrl = row
            mujoco.mj_step(mj_model, mj_data)
    return mj_datas


def diagnosed(m: mjtorch.Model, d: mjtorch.Data, target: Target) -> Diagnosis:
    """The diagnosis, with a bar that says which step is at work."""
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0))
    with tqdm(total=OTHER_STEPS + len(target.passes), unit="step") as bar:

        def progress(name: str) -> None:
            bar.set_description(name)
            bar.update()

        return debug(step.mapped, (m, d), {}, target, progress)
