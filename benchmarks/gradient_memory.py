"""How much memory the gradient of a rollout takes: by its length and by how often the state is kept.

Compiled, a program needs its scratch memory once for each world that is computed at the same time, so for lanes times
threads worlds, whatever the batch. Eagerly, autograd keeps it for each world of the batch.
"""

import argparse
import time
from collections.abc import Sequence

import torch
from torch import Tensor

import mjtorch
from mjtorch import models
from mjtorch.compiler.targets.cpu.room import scratch_bytes
from mjtorch.compiler.targets.cpu.target import CpuTarget

# Eager steps are slow, and each takes the same.
EAGER_STEPS = 20


def loss(m: mjtorch.Model, d: mjtorch.Data, ctrl: Tensor, checkpoint: int | None) -> Tensor:
    """Of the state at the end of a rollout with the controls `ctrl (n, nu)`."""
    return mjtorch.rollout(m, d, len(ctrl), ctrl=ctrl, outputs=(), checkpoint=checkpoint)[0].qpos.square().sum()


def compiled(m: mjtorch.Model, steps: int, checkpoint: int | None) -> tuple[float, float]:
    """KiB of scratch memory of a world, and seconds to trace, lower and schedule."""

    def grad(m: mjtorch.Model, d: mjtorch.Data, ctrl: Tensor) -> Tensor:
        return torch.func.grad(lambda u: loss(m, d, u, checkpoint))(ctrl)

    d = mjtorch.batch(mjtorch.make_data(m), 64)
    start = time.perf_counter()
    lowered = mjtorch.jit(grad, in_dims=(None, 0, 0)).lower(m, d, torch.zeros(64, steps, m.nu))
    size = scratch_bytes(CpuTarget().schedule(lowered))
    return size / 1024, time.perf_counter() - start


def eager(m: mjtorch.Model, steps: int, checkpoint: int | None) -> float:
    """KiB that autograd keeps for one world from the forward pass to the backward pass."""
    kept: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        alive = loss(m, mjtorch.make_data(m), torch.zeros(steps, m.nu, requires_grad=True), checkpoint)
    assert alive.requires_grad
    return sum(kept.values()) / 1024


def table(name: str, lengths: Sequence[int], checkpoints: Sequence[int | None]) -> None:
    """Print the table of one model."""
    m = mjtorch.put_model(models.load(name))
    print(f"\n{name}, KiB a world")
    print(f"{'steps':>8} {'checkpoint':>12} {'compiled':>12} {'trace [s]':>12}")
    for steps in lengths:
        for checkpoint in checkpoints:
            if checkpoint is None or checkpoint < steps:
                size, seconds = compiled(m, steps, checkpoint)
                print(f"{steps:8} {checkpoint or '-':>12} {size:12,.0f} {seconds:12.0f}", flush=True)
    print(f"eager, per step: {eager(m, EAGER_STEPS, None) / EAGER_STEPS:,.0f} without checkpoint")


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["cartpole", "hopper"], help="names of `mjtorch.models`")
    parser.add_argument("--steps", default="100,1000", help="lengths of rollouts")
    parser.add_argument("--checkpoint", default="-,10,32,100", help="trips between kept states; - for every one")
    args = parser.parse_args()
    checkpoints = [None if x == "-" else int(x) for x in args.checkpoint.split(",")]
    for name in args.models:
        table(name, [int(x) for x in args.steps.split(",")], checkpoints)


if __name__ == "__main__":
    main()
