"""`mjtorch ...`: the parser, and the one place where an error becomes a line and an exit code."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import mjtorch
from mjtorch.cli import cache, compile as compile_command, debug, diagnose, train, view
from mjtorch.cli.errors import USAGE_ERROR, UsageError
from mjtorch.overflow import ACTIONS

INTERRUPTED = 130
# What fits into 64 bits, and as many threads as anybody will have.
MOST, MOST_THREADS = 2**63 - 1, 2**16

MODEL_HELP = "name of a model of the collection (see `mjtorch models`), or path to an MJCF, URDF or MJB file"


class Parser(argparse.ArgumentParser):
    """An argparse parser that says what is wrong in one line, and prints its help where nothing is given."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's; but nothing at all, where something is wanted, gets the help and exit code 2."""
        given = sys.argv[1:] if args is None else args
        if not given and any(action.required for action in self._actions):
            self.print_help()
            self.exit(USAGE_ERROR)
        return super().parse_known_args(given, namespace)

    def error(self, message: str) -> NoReturn:
        """Print `message` and leave with exit code 2."""
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def positive_int(text: str) -> int:
    """An int >= 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return _small(value, MOST)


def natural_int(text: str) -> int:
    """An int >= 0, for argparse."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {value}")
    return _small(value, MOST)


def thread_int(text: str) -> int:
    """A number of threads, for argparse."""
    return _small(positive_int(text), MOST_THREADS)


def _small(value: int, most: int) -> int:
    if value > most:
        raise argparse.ArgumentTypeError(f"must be at most {most}, got {value}")
    return value


for _type in (positive_int, natural_int, thread_int):
    _type.__name__ = "int"  # argparse names the type when the text is no number


def build_parser() -> argparse.ArgumentParser:
    """The command line: `rollout`, `train`, `view`, `info`, `compile`, `diagnose`, `debug`, `cache`, `models`,
    `tasks`.
    """
    parser: argparse.ArgumentParser = Parser(prog="mjtorch", description="MuJoCo physics in pure PyTorch.")
    parser.add_argument("--version", action="version", version=f"mjtorch {mjtorch.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    rollout = commands.add_parser(
        "rollout",
        help="simulate many worlds; write the trajectories and a picture",
        description="Simulate a batch of worlds from randomised starts. Writes NAME.npz with time, qpos, qvel, ctrl "
        "and sensordata as they are after each step, shaped (steps, batch, ...), and a video of some worlds, of at "
        "least 5 s, or a plot where this machine cannot render.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    rollout.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    rollout.add_argument("--batch", type=positive_int, default=64, metavar="N", help="number of worlds")
    rollout.add_argument("--steps", type=positive_int, metavar="N", help="steps of each world (default: 5 s)")
    rollout.add_argument("--seed", type=natural_int, default=0, metavar="N", help="of the starts and random controls")
    rollout.add_argument(
        "--ctrl",
        default="random",
        metavar="zero|random|FILE.npy",
        help="controls; an array is shaped (nu,), (steps, nu) or (steps, batch, nu)",
    )
    rollout.add_argument("--device", default="cpu", help="such as cpu or cuda")
    rollout.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="precision")
    rollout.add_argument(
        "--backend",
        choices=("auto", "native", "inductor", "eager"),
        default="auto",
        help="what runs the steps, as for mjtorch.jit: native compiles for some seconds, inductor for minutes",
    )
    rollout.add_argument("--threads", type=thread_int, metavar="N", help="CPU threads (default: torch's choice)")
    rollout.add_argument(
        "--contact-capacity", type=natural_int, metavar="N", help="most contacts of one world (default: measured)"
    )
    rollout.add_argument(
        "--on-overflow",
        choices=ACTIONS,
        default="grow",
        help="what to do if contacts find no slot: compile with more (default), leave them out, or stop",
    )
    rollout.add_argument("--output", type=Path, default=Path("rollouts"), metavar="DIR", help="folder to write to")
    rollout.add_argument("--show", type=positive_int, default=4, metavar="N", help="how many worlds the video shows")
    rollout.add_argument("--camera", metavar="NAME", help="a camera of the model (default: its first, or a free one)")
    rollout.add_argument("--no-picture", action="store_true", help="write the trajectories only")

    train.add_parser(commands, positive_int, natural_int)
    info = commands.add_parser(
        "info",
        help="show a model's sizes and whether all it uses is supported",
        description="Show the sizes of a model, the features it uses, and which of them are supported.",
    )
    info.add_argument("model", metavar="MODEL", help=MODEL_HELP)

    compile_command.add_parser(commands, MODEL_HELP)
    diagnose.add_parser(commands, MODEL_HELP, positive_int)
    debug.add_parser(commands, MODEL_HELP, positive_int, natural_int)
    view.add_parser(commands, MODEL_HELP, positive_int)
    cache.add_parser(commands)
    commands.add_parser("models", help="list the models of the collection", description="List the collection.")
    commands.add_parser("tasks", help="list the tasks that can be learned", description="List the tasks of `train`.")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the chosen command. Its module is imported here, so that `--help` need not wait for it."""
    if args.command == "rollout":
        from mjtorch.cli import rollout

        return rollout.run(args)
    if args.command == "info":
        from mjtorch.cli import info

        return info.run(args)
    if args.command == "train":
        return train.run(args)
    if args.command == "compile":
        return compile_command.run(args)
    if args.command == "diagnose":
        return diagnose.run(args)
    if args.command == "debug":
        return debug.run(args)
    if args.command == "view":
        return view.run(args)
    if args.command == "cache":
        return cache.run(args)
    from mjtorch import envs, models

    print(*(envs if args.command == "tasks" else models).names(), sep="\n")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns 0, 1 if worlds diverged or `debug` found something, 2 for what the user can mend, 130 when
    interrupted.
    """
    args = build_parser().parse_args(argv)
    try:
        return run(args)
    except UsageError as error:
        # One line, whatever the library said: it is read in a terminal and in logs.
        print(f"mjtorch {args.command}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left (`mjtorch info humanoid | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
