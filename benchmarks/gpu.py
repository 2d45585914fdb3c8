"""The first hour with a GPU: is what jit makes right there, safe, and as fast as predicted?

Each step is a command of its own, with a limit of time; what one step fails at does not stop the others. Results are
written to `gpu/NAME/` of the output folder, NAME being that of the GPU: the output of each step, and `gpu.json` with
what was run, how it ended, and how long it took. `--dry-run` lists the steps and what they lack, on any machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

HERE = Path(__file__).parent
ROOT = HERE.parent
PYTHON = sys.executable
MODELS = ("cartpole", "hopper", "humanoid")
# A step of some worlds on the GPU, compared with the same on the CPU in double precision; also what compute-sanitizer
# and the counters watch.
STEP = """
import sys, torch, mjtorch
name, worlds, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
found = []
for device in ("cuda", "cpu"):
    m = mjtorch.put_model(mjtorch.models.load(name), device=device, dtype=torch.float64)
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0))
    d = mjtorch.batch(mjtorch.make_data(m), worlds)
    noise = torch.linspace(-1, 1, worlds * m.nv, dtype=torch.float64).reshape(worlds, m.nv)
    d = d.replace(qvel=noise.to(device))
    for _ in range(steps):
        d = step(m, d)
    found.append(d.qpos.cpu())
gap = float((found[0] - found[1]).abs().max())
print(f"{name}, {worlds} worlds, {steps} steps: GPU and CPU differ by {gap:.1e}")
assert gap < 1e-8, gap
"""


@dataclasses.dataclass(frozen=True)
class Step:
    """One thing to find out.

    needs: programs and Python modules without which it is left out; minutes: after which it is ended
    """

    name: str
    what: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    minutes: int = 10

    def lacks(self) -> list[str]:
        """What is not here of what it needs."""
        return [x for x in self.needs if not (shutil.which(x) or is_installed(x))]


def is_installed(module: str) -> bool:
    """Whether a Python module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor can what it is in
        return False


def steps(models: Sequence[str]) -> list[Step]:
    """All steps, the quickest that may find something wrong first."""
    one = (PYTHON, "-c", STEP, "cartpole", "64", "5")
    metrics = "sm__cycles_elapsed.max,smsp__inst_executed.sum,smsp__issue_active.avg.pct_of_peak_sustained_active"
    metrics += ",l1tex__t_sectors.sum,lts__t_sectors.sum,dram__bytes.sum,launch__registers_per_thread"
    found = [
        Step("versions", "the GPU, its driver and its memory", ("nvidia-smi",), ("nvidia-smi",), 1),
        Step("same", "steps in double precision, beside the CPU's", one),
        Step("tests", "all tests that speak of GPUs", (PYTHON, "-m", "pytest", "-q", "-n", "0", "-k", "cuda", "tests")),
    ]
    quiet = ("--report-api-errors", "no")  # PyTorch asks the driver for functions that it may not have
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        command = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "1", *quiet, *one)
        found.append(Step(tool, f"what compute-sanitizer's {tool} says of a step", command, ("compute-sanitizer",)))
    for model in models:
        command = (PYTHON, "-c", STEP, model, "256", "20")
        found.append(Step(f"same {model}", f"steps of {model} in double precision, beside the CPU's", command))
        command = (PYTHON, "-m", "mjtorch", "diagnose", model, "--cuda", architecture() or "sm_90", "--batch", "16")
        found.append(Step(f"model {model}", f"what the model predicts for {model}", command, ("cuda.bindings",)))
        counted = (
            "ncu",
            "--clock-control",
            "none",
            "--metrics",
            metrics,
            "--kernel-name",
            "run",
            "--launch-count",
            "3",
        )
        command = (*counted, PYTHON, str(HERE / "throughput.py"), model, "--device", "cuda", "--sides", "c,state",
                   "--worlds", "16384", "--repeats", "1")  # fmt: skip
        found.append(Step(f"counters {model}", f"the same, as hardware counts it for {model}", command, ("ncu",)))
    for side, module in (("ours", "mjtorch"), ("mjx", "jax"), ("warp", "mujoco_warp")):
        names = "c,native,state,rollout" if side == "ours" else side
        command = (PYTHON, str(HERE / "throughput.py"), *models, "--device", "cuda", "--sides", names,
                   "--worlds", "1,256,4096,16384,65536")  # fmt: skip
        found.append(Step(f"throughput {side}", f"steps per second, {side}", command, (module,), 20))
    return found


def architecture() -> str | None:
    """Of the GPU that is here, such as "sm_90"."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else None


def run(step: Step, folder: Path) -> dict[str, object]:
    """Run a step, keep what it says, and tell how it ended."""
    if lacks := step.lacks():
        return {"step": step.name, "ended": f"left out: {', '.join(lacks)} not found"}
    start, log = time.perf_counter(), folder / f"{step.name.replace(' ', '_')}.txt"
    with log.open("w") as out:
        try:
            limit = 60 * step.minutes
            code = subprocess.run(step.command, cwd=ROOT, stdout=out, stderr=out, timeout=limit, check=False).returncode
            ended = "done" if code == 0 else f"failed with {code}"
        except subprocess.TimeoutExpired:
            ended = f"ended after {step.minutes} minutes"
    return {"step": step.name, "ended": ended, "seconds": round(time.perf_counter() - start, 1), "log": log.name}


def main(argv: Sequence[str] | None = None) -> int:
    """Run all steps, or say what they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help="models of the collection, or paths")
    parser.add_argument("--output", type=Path, default=Path("results"), metavar="DIR")
    parser.add_argument("--only", default="", metavar="PART", help="steps whose names have this in them")
    parser.add_argument("--dry-run", action="store_true", help="list the steps, and what is missing for each")
    args = parser.parse_args(argv)
    chosen = [s for s in steps(args.models) if args.only in s.name]
    if args.dry_run:
        for s in chosen:
            lacks = f"; lacks {', '.join(s.lacks())}" if s.lacks() else ""
            print(f"{s.name:20}{s.what}; at most {s.minutes} minutes{lacks}")
        return 0
    if not torch.cuda.is_available():
        print(
            "gpu.py needs an NVIDIA GPU, its driver, and PyTorch built for CUDA; --dry-run lists the steps without one"
        )
        return 2
    name = torch.cuda.get_device_name()
    folder = args.output / "gpu" / re.sub(r"\W+", "_", name)
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    for s in chosen:
        results.append(run(s, folder))
        print(f"{s.name:20}{results[-1]['ended']}", flush=True)
        report = {"gpu": name, "architecture": architecture(), "cuda": torch.version.cuda, "steps": results}
        (folder / "gpu.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {folder}")
    return int(any(str(r["ended"]).startswith(("failed", "ended")) for r in results))


if __name__ == "__main__":
    sys.exit(main())
