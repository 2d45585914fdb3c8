"""The cost model: what statements take, estimated from what they are made of.

One model for all passes and targets; a target's `Costs` are its figures. `benchmarks/cost_model.py` measures them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mjtorch.compiler.analysis.dependence import Bounds, span, within
from mjtorch.compiler.ir.nodes import (
    Assign,
    Call,
    Compact,
    Declare,
    Expr,
    For,
    Gather,
    Group,
    If,
    Index,
    Load,
    Pack,
    Scatter,
    Statement,
    Store,
    While,
)
from mjtorch.compiler.ir.ops import OPS
from mjtorch.compiler.ir.walk import bodies, walk_expr


@dataclasses.dataclass(frozen=True)
class Costs:
    """What things cost on a target, in units of one quick operation.

    operation, function: an operation that is one instruction, and one that is not; leaf: a literal or a variable
    load, gather, store, scatter: accesses to memory, at one offset or at each world's own
    iteration: what a loop adds to its body each time
    barrier, reduction: of the lanes of a warp
    trips, while_trips: how many iterations a loop is taken to have whose number is not known
    """

    operation: float = 1
    function: float = 1
    leaf: float = 1
    load: float = 1
    gather: float = 8
    store: float = 0
    scatter: float = 0
    iteration: float = 0
    barrier: float = 0
    reduction: float = 0
    trips: float = 8
    while_trips: float = 3


# A vector of worlds on a CPU: a gather takes as many instructions as there are worlds.
CPU = Costs()
# A warp: each lane waits for its loads; functions are sequences of instructions.
WARP = Costs(
    function=8,
    leaf=0,
    load=2,
    gather=2,
    store=1,
    scatter=1,
    iteration=1,
    barrier=10,
    reduction=10,
    trips=8,
    while_trips=3,
)


def price(e: Expr, costs: Costs) -> float:
    """What an expression costs."""
    total = 0.0
    for x in walk_expr(e):
        if isinstance(x, Call):
            total += costs.operation if OPS[x.op].quick else costs.function
        elif isinstance(x, (Load, Gather)):
            total += costs.load if isinstance(x, Load) else costs.gather
        else:
            total += costs.leaf
    return total


def trips(start: Index, stop: Index, bounds: Bounds, costs: Costs) -> float:
    """How many iterations a loop has, on average over the loops around it."""
    low, high = span(start, bounds), span(stop, bounds)
    return costs.trips if low is None or high is None else max(0.0, (sum(high) - sum(low)) / 2)


def work(statements: Sequence[Statement], bounds: Bounds, costs: Costs) -> float:
    """What the statements cost one lane that executes all of them."""
    total = 0.0
    for s in statements:
        if isinstance(s, For):
            inner = work(s.body, within(s, bounds), costs)
            total += trips(s.start, s.stop, bounds, costs) * (costs.iteration + inner)
        elif isinstance(s, While):
            total += costs.while_trips * (work(s.head, bounds, costs) + work(s.body, bounds, costs))
        elif isinstance(s, Pack):
            each = sum(work(body, bounds, costs) for body in bodies(s))
            total += s.size * costs.iteration + costs.while_trips * each
        elif isinstance(s, Compact):
            total += s.size * (2 * costs.iteration + work(s.body, bounds, costs))
        elif isinstance(s, If):
            total += costs.iteration + (work(s.body, bounds, costs) + work(s.otherwise, bounds, costs)) / 2
        elif isinstance(s, Group):
            total += work(s.body, bounds, costs)
        elif isinstance(s, (Store, Scatter, Declare, Assign)):
            to = costs.scatter if isinstance(s, Scatter) else costs.store
            total += to + price(s.value, costs)
        else:
            total += sum(work(body, bounds, costs) for body in bodies(s))
    return total
