"""`mjtorch compile`: the step of a model as a C++ file or a shared library."""

import argparse
from pathlib import Path

import torch

import mjtorch
from mjtorch.cli.errors import UsageError, usage_errors
from mjtorch.cli.load import load
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.export import LANES, SUFFIXES, export_step


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", model_help: str) -> None:
    """Say what `mjtorch compile` takes."""
    parser = commands.add_parser(
        "compile",
        help="write a model's step as one C++ file that needs no library",
        description="Write the step of a model as one self-contained C++ file with a C interface, or compile it to a "
        "shared library for this machine. The declarations go into a header beside it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help=model_help)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("step.cpp"), metavar="FILE", help="FILE.cpp or FILE.so"
    )
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="precision")
    parser.add_argument(
        "--lanes",
        choices=tuple(map(str, LANES)),
        default="auto",
        help="worlds per vector; auto: as many as fit a register of the CPU that it is compiled for",
    )
    parser.add_argument(
        "--outputs",
        default="",
        metavar="NAME,...",
        help="fields of Data to return besides the state, such as sensordata,xpos,contact.dist",
    )
    parser.add_argument("--name", default="mjtorch", metavar="PREFIX", help="what all names in the file begin with")

    parser.add_argument("--force", action="store_true", help="replace files that were not exported, and follow links")


def run(args: argparse.Namespace) -> int:
    """Export, write, and say what was written."""
    if args.output.suffix not in SUFFIXES:
        raise UsageError(f"--output must end in {', '.join(SUFFIXES)}, got {str(args.output)!r}")
    mj_model = load(args.model)
    with usage_errors(NotImplementedError, ValueError):
        m = mjtorch.put_model(mj_model, dtype=getattr(torch, args.dtype))
        exported = export_step(
            mjtorch.step,
            m,
            mjtorch.make_data(m),
            name=args.name,
            outputs=[name for name in args.outputs.split(",") if name],
            lanes=args.lanes if args.lanes == "auto" else int(args.lanes),
            title=f"{Path(args.model).stem}, by mjtorch {mjtorch.__version__}",
        )
    with usage_errors(OSError, BuildError):
        written = exported.write(args.output, overwrite=args.force)
    print(*written, sep="\n")
    return 0
