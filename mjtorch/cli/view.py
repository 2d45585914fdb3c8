"""`mjtorch view`: a model, a simulation or a recording in the browser."""

import argparse
import contextlib
import webbrowser
from collections.abc import Callable

import torch

from mjtorch.cli.errors import usage_errors
from mjtorch.cli.load import load


def add_parser(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", model_help: str, count: Callable[[str], int]
) -> None:
    """Say what `mjtorch view` takes; `count` reads a positive number."""
    parser = commands.add_parser(
        "view",
        help="show a simulation, or a recorded trajectory, in the browser",
        description="Serve a page that shows worlds as they are simulated, with sliders for their controls, or as they "
        "were recorded; prints its address, and ends with Ctrl-C.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help=model_help)
    parser.add_argument("--trajectory", metavar="FILE.npz", help="play what `mjtorch rollout` has written")
    parser.add_argument(
        "--policy",
        metavar="FILE",
        help="what controls the worlds: FILE.py with a function policy(m, d), or FILE.pt2 of torch.export.save",
    )
    parser.add_argument("--worlds", type=count, metavar="N", help="how many worlds (default: 1; 16 of a trajectory)")
    parser.add_argument("--port", type=count, metavar="N", help="port (default: the first from 8080 on that is free)")
    parser.add_argument("--host", default="127.0.0.1", help="who may look; 0.0.0.0: all who can reach this machine")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="precision")
    parser.add_argument(
        "--backend", choices=("auto", "native", "inductor", "eager"), default="auto", help="as rollout's"
    )
    parser.add_argument("--paused", action="store_true", help="do not begin to play at once")
    parser.add_argument("--no-browser", action="store_true", help="print the address only")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from mjtorch.view import ViewError, view

    mj_model = load(args.model)
    simulated = {} if args.trajectory else {"backend": args.backend, "dtype": getattr(torch, args.dtype)}
    with usage_errors(ViewError, ModuleNotFoundError, NotImplementedError, ValueError, OSError):
        viewer = view(
            mj_model,
            trajectory=args.trajectory,
            policy=args.policy,
            worlds=args.worlds,
            play=not args.paused,
            port=args.port,
            host=args.host,
            **simulated,
        )
    with viewer:
        print(f"{args.model}: {viewer.url} (Ctrl-C to end)", flush=True)
        if not args.no_browser:
            with contextlib.suppress(OSError, webbrowser.Error):  # the address is printed
                webbrowser.open(viewer.url)
        viewer.wait()
    return 0
