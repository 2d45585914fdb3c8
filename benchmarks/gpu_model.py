"""What steps take on a GPU, predicted without one by a simulated warp, beside what was predicted or measured before.

Worlds are taken out of motion under random controls. With `--record` the figures are added to `gpu_model.json`, the
history that changes to the printer and its passes are judged by.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

import mjtorch
from mjtorch.cli.diagnose import in_motion
from mjtorch.cli.load import load
from mjtorch.compiler.targets.cuda.report import report

HISTORY = Path(__file__).with_name("gpu_model.json")
MODELS = ("cartpole", "hopper", "humanoid")
# Cycles of a multiprocessor a world and step of the programs of version 0.2.0, in a cycle-level simulator of an H100.
CYCLE_LEVEL = {"cartpole": 2980, "hopper": 16100, "humanoid": 103000}
# Of the programs after "two blocks", measured on an H100.
MEASURED = {"cartpole": 843, "hopper": 11200, "humanoid": 70800}


def measured(model: str, architecture: str, dtype: str) -> dict[str, Any]:
    """One row of the history."""
    mj_model = load(model)
    m = mjtorch.put_model(mj_model, dtype=getattr(torch, dtype))
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0))
    start = time.process_time()
    (target,) = report(step.mapped, [architecture], m, in_motion(mj_model, m)).targets
    p = target.predicted
    return {
        "model": model,
        "architecture": architecture,
        "dtype": dtype,
        "cycles": round(p.cycles),
        "alone": round(p.alone),
        "instructions": round(sum(p.instructions.values())),
        "integer": round(p.instructions.get(0, 0)),
        "accesses": sum(a.executed for a in p.memory.values()),
        "chains": round(p.chains[1]),
        "registers": target.resources.registers,
        "spills": target.resources.spills,
        "code": target.resources.code,
        "guards": target.resources.guards,
        "warps": p.warps,
        "seconds": round(time.process_time() - start, 1),
    }


def main() -> None:
    """Predict, print beside the last figures, and keep them if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help="models of the collection, or paths")
    parser.add_argument("--architecture", default="sm_90", help="such as sm_80, sm_90, sm_120")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--record", metavar="WHAT", help="keep the figures, with a word on what has changed")
    args = parser.parse_args()
    history = json.loads(HISTORY.read_text()) if HISTORY.exists() else []
    for model in args.models:
        row = measured(model, args.architecture, args.dtype)
        same = [x for x in history if all(x[k] == row[k] for k in ("model", "architecture", "dtype"))]
        before = same[-1] if same else None
        print(f"{model}, {args.architecture}, {args.dtype}")
        for name, value in row.items():
            if isinstance(value, (int, float)):
                change = f"{before[name]:>12,}" if before is not None and name in before else ""
                print(f"  {name:14}{value:>12,}{change}")
        if model in CYCLE_LEVEL and args.architecture == "sm_90" and args.dtype == "float32":
            print(f"  {'0.2.0, cycle-level':14}{CYCLE_LEVEL[model]:>8,}")
            print(f"  {'then, on an H100':18}{MEASURED[model]:>8,}")
        if args.record:
            commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
            history.append({"what": args.record, "after": commit.stdout.strip(), **row})
    if args.record:
        HISTORY.write_text("[\n" + ",\n".join(json.dumps(x) for x in history) + "\n]\n")


if __name__ == "__main__":
    main()
