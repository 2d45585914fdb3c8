"""Whether the emulated warp finds barriers that are missing from steps of robots, in states of contact.

A step is printed for a GPU and run by a warp on the host that watches each access. Its barriers are taken away one at a
time: each must be told by name (a race, or lanes that wait for different barriers), or be idle, which is to say that
without it results are the same to the last bit. A missed one is an error of the warp; races with all barriers are
errors of the compiler.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from robot_models import load, select
from robots import settle
from sides import make_starts, random_controls

import mjtorch
from mjtorch.compiler.targets.cuda.report import for_gpu
from mjtorch.compiler.targets.emulated.barriers import without_each
from mjtorch.compiler.targets.emulated.target import EmulatedWarp, Watched

WORLDS = 2


def checked(name: str, assets: Path | None, tried: int | None) -> dict[str, object]:
    """A row of what is printed."""
    mj_model = load(name, assets)
    starts = make_starts(mj_model, 1, 0.3, rollouts=2, settle=settle(mj_model))
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    state = {x: torch.tensor(getattr(starts.batch(WORLDS), x)) for x in ("qpos", "qvel", "act")}
    ctrl = torch.tensor(random_controls(mj_model, WORLDS, 1, 0.3, seed=0)[:, 0]).double()
    arguments = m, mjtorch.batch(mjtorch.make_data(m), WORLDS).replace(**state, ctrl=ctrl)
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)
    call = step.parameters.call(arguments, {})
    warp = EmulatedWarp(races=True).compile(for_gpu(step.mapped, *arguments))
    assert isinstance(warp, Watched)
    found = without_each(warp, call.leaves, call.signature.dims, WORLDS, tried)
    counts = {"barriers": warp.barriers, "told": len(found.told), "idle": len(found.idle), "missed": found.missed}
    return {"model": name, **counts}


def main() -> int:
    """Print a line for each model; 1 if any barrier is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="as of robots.py; default: all")
    parser.add_argument("--assets", type=Path, metavar="DIR", help="a folder of unpacked wheels")
    parser.add_argument("--tried", type=int, default=100, metavar="N", help="so many barriers of each, at random")
    args = parser.parse_args()
    missed = 0
    for name in select(args.models):
        row = checked(name, args.assets, args.tried)
        print(json.dumps(row), flush=True)
        missed += bool(row["missed"])
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
