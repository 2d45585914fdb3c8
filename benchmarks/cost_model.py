"""What the cost model's kinds of work take on this CPU, in units of one quick operation, beside the figures it uses.

For each kind a loop over elements is compiled that does it a few times, and another that does it more often; what it
takes is the slope. Passes that would change the loops are left out. Many worlds in single precision, on one thread;
the programs take turns, and of each the quickest of all repeats counts.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable

import torch
from sides import print_table
from torch.fx import Graph, GraphModule

from mjtorch.compiler.analysis.cost import CPU as COSTS
from mjtorch.compiler.ir.nodes import Program
from mjtorch.compiler.ir.parse import parse
from mjtorch.compiler.ir.verify import verify
from mjtorch.compiler.lowered import Lowered, Output
from mjtorch.compiler.passes import Pass
from mjtorch.compiler.ready import Ready
from mjtorch.compiler.targets.cpu.pipeline import CPU
from mjtorch.compiler.targets.cpu.target import CpuTarget

# Elements that a loop runs over, how often it is run, and room behind the elements for what copies access.
ELEMENTS, ROUNDS, ROOM = 64, 20, 16
# How often each kind of work is done for an element, in the two programs whose times are compared.
FEW, MANY = 4, 12
WORLDS = 4096

PROGRAM = """
input in0: f32[{size}] @0
input in1: i64[{size}] @1
output out0: f32[1] @0
scratch s0: f32[{size}]
scratch s1: f32[{size}]
body:
  for a in 0..{size}:
    s0[a] = in0[a]
    s1[a] = in0[a]
  group:
    var t = 0.0f
    for r in 0..{rounds}:
      for i in 0..{elements}:
        var o = in1[i]
        var y0 = s0[i]
{work}
        t = add(t, y{count})
    out0[0] = add(t, s1[3])
"""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of work.

    cost: what the model calls it
    work: the statement that does it the k-th time, which makes y(k+1) of yk
    quick: how many quick operations are in that besides
    """

    name: str
    cost: str
    work: Callable[[int], str]
    quick: int = 0


def function(name: str, call: str, quick: int = 0) -> Kind:
    """A function of floats, of which `call` is the expression with `y` for its argument."""
    return Kind(name, "function", lambda k: f"var y{k + 1} = {call.replace('y', f'y{k}')}", quick)


def store(target: str) -> Callable[[int], str]:
    """Statements that store."""
    return lambda k: f"{target.format(k)} = y{k}\n        var y{k + 1} = add(y{k}, 0.01f)"


KINDS = (
    # Additions only: a product and an addition would become one instruction.
    function("quick operation", "add(y, 0.01f)", quick=1),
    Kind("maximum, NaN kept", "operation", lambda k: f"var y{k + 1} = max(y{k}, 0.{k + 10}f)"),
    function("division", "div(1.5f, y)"),
    function("square root", "sqrt(y)"),
    function("sine", "sin(y)"),
    function("exponential", "exp(neg(y))", quick=1),
    function("arctangent", "atan(y)"),
    Kind("load", "load", lambda k: f"var y{k + 1} = add(y{k}, s0[i+{k}])", quick=1),
    Kind("gather", "gather", lambda k: f"var y{k + 1} = add(y{k}, s0[{k}; o])", quick=1),
    Kind("store", "store", store("s1[i+{}]"), quick=1),
    Kind("scatter", "scatter", store("s1[{}; o]"), quick=1),
)


class Bare(CpuTarget):
    """A CPU without optimisations, so that what is timed is what is written here."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Those without which nothing can be printed."""
        return tuple(p for p in CPU if p.required)


def program(work: str, count: int, elements: int = ELEMENTS) -> Program:
    """A program that does `work`, which makes `y{count}`, for each element."""
    size = ELEMENTS * 2 + ROOM
    p = parse(PROGRAM.format(size=size, rounds=ROUNDS, elements=elements, work=work, count=count))
    verify(p)
    return p


def repeated(kind: Kind, count: int) -> Program:
    """A program that does a kind of work so often for each element."""
    return program("\n".join(f"        {kind.work(k)}" for k in range(count)), count)


def runner(p: Program) -> Callable[[], object]:
    """A call of the compiled program."""
    lowered = Lowered(p, GraphModule({}, Graph()), (Output((1,), torch.float32),))
    size = p.inputs[0].size
    args = (0.5 + torch.rand(WORLDS, size), torch.randint(0, ELEMENTS, (WORLDS, size)))
    ready = Ready(Bare().compile(lowered), args, (0, 0), WORLDS, threads=1)
    return lambda: ready(args)


def seconds(programs: list[Callable[[], object]], repeats: int) -> list[float]:
    """The quickest run of each; they take turns."""
    best = [float("inf")] * len(programs)
    for _ in range(repeats):
        for k, run in enumerate(programs):
            start = time.perf_counter()
            run()
            best[k] = min(best[k], time.perf_counter() - start)
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="runs of each program (default 15)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pairs = [(repeated(kind, FEW), repeated(kind, MANY)) for kind in KINDS]
    # An iteration: over more elements, the same work.
    work = "        s1[i] = y0\n        var y1 = add(y0, 0.5f)"
    pairs.append((program(work, 1, ELEMENTS), program(work, 1, 2 * ELEMENTS)))
    times = seconds([runner(p) for pair in pairs for p in pair], args.repeats)
    *slopes, iteration = (b - a for a, b in zip(times[::2], times[1::2], strict=True))
    accesses = ROUNDS * ELEMENTS * WORLDS
    each = [slope / (MANY - FEW) / accesses for slope in slopes]
    unit = each[0] / KINDS[0].quick
    found = {kind.name: x / unit - kind.quick for kind, x in zip(KINDS, each, strict=True)}
    rows = [("quick operation", "operation", 1.0)]
    rows += [(kind.name, kind.cost, found[kind.name]) for kind in KINDS[1:]]
    # A load of y0, a store of it, and two sums; the offset is not needed, and not loaded.
    beside = 2 + found["load"] + found["store"]
    rows.append(("iteration of a loop", "iteration", iteration / accesses / unit - beside))
    print(f"one quick operation: {1e12 * unit:.2f} ps a world")
    print_table(
        ("kind", "in the model", "measured", "the model's"),
        [(name, cost, f"{x:.1f}", f"{getattr(COSTS, cost):g}") for name, cost, x in rows],
    )


if __name__ == "__main__":
    main()
