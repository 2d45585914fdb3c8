"""Steps as several builds of them run on a GPU: prepared on any machine, checked and timed on one that has a GPU.

    python benchmarks/gpu_sweep.py prepare humanoid gym/hopper --builds default warps=16,budget=10240 --output sweep
    python benchmarks/gpu_sweep.py run sweep

`prepare` compiles for an architecture, and keeps worlds in contact and what the CPU makes of them, in float32. `run`
needs PyTorch and cuda-bindings, but neither mjtorch nor MuJoCo: it starts in seconds where each minute of a GPU counts.
A build is `default`, what `jit` makes, or what is other in it: lanes of a world, budget of bytes of shared memory a
world, warps of a block, blocks of a multiprocessor, line=1 for line numbers, which profilers show.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

WORLDS = 64
# Of a result's scale, or of 1 where that is less: more is another result, but where the last bit decides.
SAME = 1e-3
REPEATS = 12


def prepare(args: argparse.Namespace) -> int:
    """Compile builds of steps, and keep what they are to be given and to make of it."""
    import mujoco
    from robot_models import ROBOTS, load
    from sides import make_starts, random_controls

    import mjtorch
    from mjtorch import models, tree
    from mjtorch.compiler.targets.cuda.report import for_gpu

    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.models:
        mj_model: mujoco.MjModel = load(name) if name in ROBOTS else models.load(name)
        m = mjtorch.put_model(mj_model)
        starts = make_starts(mj_model, 1, 1.0)
        chosen = np.arange(WORLDS) % len(starts.qpos)
        given = {k: torch.from_numpy(getattr(starts, k)[chosen]).float() for k in ("qpos", "qvel", "act")}
        ctrl = torch.from_numpy(random_controls(mj_model, WORLDS, 1, 1.0, seed=3)[:, 0])
        d = mjtorch.batch(mjtorch.make_data(m), WORLDS).replace(**given, ctrl=ctrl)
        step = mjtorch.jit(mjtorch.step, in_dims=(None, 0))
        wanted = list(tree.leaves_with_path(step(m, d)))
        lowered, call = for_gpu(step.mapped, m, d), step.parameters.call((m, d), {})
        arrays: dict[str, np.ndarray] = {}
        for k, b in enumerate(lowered.program.inputs):
            x, dim = call.leaves[b.position].detach(), call.signature.dims[b.position]
            x = x if dim is None else x.movedim(dim, 0)
            arrays[f"{'in' if dim is None else 'own'}{k}"] = x.contiguous().numpy()
        for k, b in enumerate(lowered.program.outputs):
            path, x = wanted[b.position]
            arrays[f"out{k} {path}"] = x.reshape(WORLDS, -1).numpy()
        file = name.replace("/", "_")
        np.savez_compressed(args.output / f"{file}.npz", **arrays)
        for build in args.builds:
            print(f"{name:20}{build:30}{compiled(lowered.program, build, args.architecture, args.output / file)}")
    return 0


def compiled(program: Any, build: str, architecture: str, file: Path) -> str:
    """Keep the machine code of a build and how it is launched; a line about it."""
    from mjtorch.compiler.passes.warp_memory import RESERVED
    from mjtorch.compiler.targets.cuda.build import VERBOSE, compile_text, taken
    from mjtorch.compiler.targets.cuda.pipeline import scheduled
    from mjtorch.compiler.targets.cuda.printer import print_program
    from mjtorch.compiler.targets.cuda.report import SHARED
    from mjtorch.compiler.targets.cuda.shape import shape_of

    changes = dict(x.split("=") for x in build.split(",")) if build != "default" else {}
    numbers = {k: int(v) for k, v in changes.items()}
    source = print_program(scheduled(program, numbers.get("lanes"), numbers.get("budget")))
    shape = shape_of(source, SHARED[architecture] - RESERVED)
    shape = dataclasses.replace(shape, **{x: numbers.get(x, getattr(shape, x)) for x in ("warps", "blocks")})
    lines = ("--generate-line-info",) if "line" in numbers else ()
    code, log = compile_text(source.text, architecture, VERBOSE, *shape.options, *lines)
    found = taken(architecture, code, log)
    path = file.with_name(f"{file.name}@{build}")
    path.with_name(path.name + ".cubin").write_bytes(code)
    path.with_name(path.name + ".cu").write_text(source.text)
    launch = {
        "lanes": source.lanes,
        "near": source.shared,
        "rows": source.rows,
        "far": source.far,
        "uniform": source.uniform,
    }
    launch |= {"warps": shape.warps, "registers": found.registers, "spills": found.spills}
    path.with_name(path.name + ".json").write_text(json.dumps(launch))
    return ", ".join(f"{k} {v:,}" for k, v in launch.items())


def driver() -> Any:
    """NVIDIA's."""
    from cuda.bindings import driver as found

    return found


def check(result: tuple) -> Any:
    """What a call of the driver returns beside its status."""
    status, *values = result
    if int(status):
        raise RuntimeError(f"CUDA: {status}")
    return values[0] if len(values) == 1 else tuple(values)


class Loaded:
    """A build on the GPU, with the arrays that it reads and writes for so many worlds."""

    def __init__(self, file: Path, arrays: dict[str, np.ndarray], worlds: int, device: str) -> None:
        self.launched, self.worlds, self.device = json.loads(file.with_suffix(".json").read_text()), worlds, device
        cu = driver()
        module = check(cu.cuModuleLoadData(file.read_bytes()))
        self.kernels = [check(cu.cuModuleGetFunction(module, name)) for name in (b"uniform", b"run")]
        self.near = 32 // self.launched["lanes"] * self.launched["near"]
        attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        for kernel in self.kernels:
            check(cu.cuFuncSetAttribute(kernel, attribute, self.memory(self.launched["warps"])))
        rows, self.kept = [], []
        self.results: dict[str, tuple[torch.Tensor, np.ndarray]] = {}
        for name, x in arrays.items():
            kind = name.partition(" ")[0].rstrip("0123456789")
            size = 0 if kind == "in" else x[0].size
            x = x.astype(np.int64) if x.dtype == np.int32 else x
            if kind == "out":
                made = torch.empty((worlds, size), dtype=torch.from_numpy(x).dtype, device=device)
                self.results[name.partition(" ")[2]] = made, x
            else:
                made = torch.from_numpy(x).to(device)
                if kind == "own":
                    made = made.reshape(len(x), -1).repeat(-(-worlds // len(x)), 1)[:worlds].contiguous()
            self.kept.append(made)
            rows.append((made.data_ptr(), 1, size))
        self.table = np.ctypeslib.as_ctypes(np.array(rows, dtype=np.int64).reshape(-1))

    def memory(self, warps: int) -> int:
        """Bytes of shared memory of a block."""
        return warps * self.near + self.launched["rows"]

    def step(self, processors: int) -> None:
        """Launch it, as `jit` does."""
        cu, s = driver(), self.launched
        each = 32 // s["lanes"]
        warps = max(1, min(s["warps"], -(-self.worlds // (each * processors))))
        shared = self.memory(warps)
        resident = check(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.kernels[1], 32 * warps, shared))
        blocks = -(-self.worlds // (each * warps))
        blocks = min(blocks, resident * processors) if s["far"] else blocks
        memory = [torch.empty(n + 16, dtype=torch.uint8, device=self.device)
                  for n in (s["far"] * each * warps * blocks, s["uniform"])]  # fmt: skip
        far, common = (ctypes.c_void_p(x.data_ptr()) for x in memory)
        if s["uniform"]:
            launch(self.kernels[0], 1, s["lanes"], self.memory(1), (self.table, common))
        launch(self.kernels[1], blocks, 32 * warps, shared,
               (self.table, ctypes.c_int64(self.worlds), far, common))  # fmt: skip

    def differs(self) -> list[str]:
        """Fields that are not the CPU's, with the worlds of which they are not."""
        found = []
        for name, (made, wanted) in self.results.items():
            own = made[: len(wanted)].double().cpu().numpy()
            far = ~np.isclose(own, wanted, rtol=0, atol=SAME * max(1.0, np.abs(wanted).max(initial=0)), equal_nan=True)
            found += [f"{name} ({far.any(1).sum()})"] if far.any() else []
        return found


def launch(kernel: Any, blocks: int, threads: int, shared: int, arguments: Sequence[Any]) -> None:
    """Launch a kernel on PyTorch's stream."""
    addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    stream = torch.cuda.current_stream().cuda_stream
    call = (kernel, blocks, 1, 1, threads, 1, 1, shared, stream, ctypes.addressof(addresses), 0)
    check(driver().cuLaunchKernel(*call))


def run(args: argparse.Namespace) -> int:
    """Check and time what was prepared."""
    if not torch.cuda.is_available():
        print("gpu_sweep.py run needs an NVIDIA GPU, its driver, and PyTorch built for CUDA")
        return 2
    torch.cuda.init()
    gpu = torch.cuda.get_device_properties(0)
    print(f"{gpu.name}, {gpu.multi_processor_count} multiprocessors")
    rows = []
    for file in sorted(args.folder.glob("*.cubin")):
        model, _, build = file.stem.partition("@")
        if args.only not in file.stem:
            continue
        with np.load(args.folder / f"{model}.npz") as given:
            loaded = Loaded(file, dict(given), args.worlds, "cuda")
        for x, _ in loaded.results.values():
            x.view(torch.uint8).fill_(255)  # what was never written shows
        seconds = []
        for _ in range(3 + REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            loaded.step(gpu.multi_processor_count)
            end.record()
            torch.cuda.synchronize()
            seconds.append(begin.elapsed_time(end) / 1e3)
        took = statistics.median(seconds[3:])
        rows.append({"model": model, "build": build, "seconds": took, "differs": loaded.differs(), **loaded.launched})
        differs = f"  differs: {', '.join(rows[-1]['differs'])}" if rows[-1]["differs"] else ""
        print(f"{model:20}{build:30}{args.worlds / took:16,.0f} steps/s{differs}", flush=True)
    report = {"gpu": gpu.name, "worlds": args.worlds, "rows": rows}
    (args.folder / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare, or run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    made = commands.add_parser("prepare", help="compile, without a GPU")
    made.add_argument("models", nargs="+", metavar="MODEL", help="of the collection, of robots.py, or a path")
    made.add_argument("--builds", nargs="+", default=["default"], metavar="BUILD")
    made.add_argument("--architecture", default="sm_90", help="such as sm_80, sm_90, sm_120")
    made.add_argument("--output", type=Path, default=Path("sweep"), metavar="DIR")
    made.set_defaults(act=prepare)
    timed = commands.add_parser("run", help="check and time what was prepared, on a GPU")
    timed.add_argument("folder", type=Path)
    timed.add_argument("--only", default="", metavar="PART", help="of MODEL@BUILD")
    timed.add_argument("--worlds", type=int, default=16384)
    timed.set_defaults(act=run)
    args = parser.parse_args(argv)
    return args.act(args)


if __name__ == "__main__":
    sys.exit(main())
