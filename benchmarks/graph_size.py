"""How many operations each stage of a step traces to: what a compiler has to read, so what compile time depends on.

A stage is traced for one world, by PyTorch's `make_fx` and by `jit`; nothing is computed. Operations inside loops and
branches count once. Seconds are the least of several runs: the first in a process also loads code.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mujoco
import torch
from sides import print_table
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import mjtorch

Stage = Callable[[mjtorch.Model, mjtorch.Data], mjtorch.Data]

STAGES: tuple[Stage, ...] = (
    mjtorch.kinematics,
    mjtorch.com_pos,
    mjtorch.camlight,
    mjtorch.tendon,
    mjtorch.crb,
    mjtorch.factor_m,
    mjtorch.collision,
    mjtorch.make_constraint,
    mjtorch.transmission,
    mjtorch.sensor_pos,
    mjtorch.com_vel,
    mjtorch.passive,
    mjtorch.reference_constraint,
    mjtorch.rne,
    mjtorch.sensor_vel,
    mjtorch.fwd_actuation,
    mjtorch.fwd_acceleration,
    mjtorch.fwd_constraint,
    mjtorch.sensor_acc,
    mjtorch.euler,
    mjtorch.implicit,
    mjtorch.forward,
    mjtorch.step,
)
# Nodes that are no operations.
PLUMBING = ("placeholder", "output", "get_attr")


def trace(stage: Stage, m: mjtorch.Model, d: mjtorch.Data) -> GraphModule:
    """The ATen graph of `stage` for one world."""
    return make_fx(lambda m, d: stage(m, d), tracing_mode="fake")(m, d)


def operations(graph: GraphModule) -> Counter[str]:
    """How often each operation occurs in `graph` and the graphs of its loops and branches."""
    counts: Counter[str] = Counter()
    for module in graph.modules():
        if isinstance(module, GraphModule):
            counts.update(str(node.target) for node in module.graph.nodes if node.op not in PLUMBING)
    return counts


def load(name: str) -> mujoco.MjModel:
    """The model in a file, or one of those that come with mjtorch."""
    path = Path(name)
    if path.suffix != ".xml":
        path = Path(mjtorch.__file__).parent / "models" / f"{name}.xml"
    return mujoco.MjModel.from_xml_path(str(path))


def jit_trace(stage: Stage, m: mjtorch.Model, d: mjtorch.Data) -> None:
    """Trace `stage` as `jit` does."""
    jitted = mjtorch.jit(stage, in_dims=None)
    jitted.mapped.trace(jitted.parameters.call((m, d), {}).signature)


def seconds(run: Callable[[], object], repeat: int) -> str:
    """The least CPU time of several runs."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return f"{min(times):.2f}"


def measure(names: list[str], stages: list[Stage], repeat: int) -> list[list[str]]:
    """Rows of the table: the stage, then for each model operations and seconds to trace, by `make_fx` and by `jit`."""
    rows = [[stage.__name__] for stage in stages]
    for name in names:
        m = mjtorch.put_model(load(name))
        d = mjtorch.make_data(m)
        for row, stage in zip(rows, stages, strict=True):
            count = operations(trace(stage, m, d)).total()
            row += [str(count), *(seconds(partial(way, stage, m, d), repeat) for way in (trace, jit_trace))]
    return rows


def main() -> None:
    names = [stage.__name__ for stage in STAGES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models",
        nargs="*",
        default=["hopper", "humanoid"],
        help="MJCF files, or names of models that come with mjtorch",
    )
    parser.add_argument(
        "--stage", action="append", choices=names, metavar="NAME", help=f"only these: {', '.join(names)}"
    )
    parser.add_argument("--ops", type=int, default=0, metavar="N", help="also list the N most frequent operations")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of which the fastest counts")
    args = parser.parse_args()
    stages = [stage for stage in STAGES if not args.stage or stage.__name__ in args.stage]
    header = ["stage", *(text for name in args.models for text in (Path(name).stem, "make_fx s", "jit s"))]
    print_table(header, measure(args.models, stages, args.repeat))
    if args.ops:
        m = mjtorch.put_model(load(args.models[0]))
        counts = operations(trace(stages[-1], m, mjtorch.make_data(m))).most_common(args.ops)
        print(f"\nin {stages[-1].__name__} of {Path(args.models[0]).stem}:")
        print_table(["operation", "times"], [[name, str(count)] for name, count in counts])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
