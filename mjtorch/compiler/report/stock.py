"""What stock `torch.compile` makes of a function: graph breaks and recompiles by cause, from its own counters."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import optree
import torch
from torch import Tensor

from mjtorch.compiler.mapped import Mapped
from mjtorch.compiler.signature import Call


@dataclasses.dataclass
class StockCall:
    """One call: its seconds, how many frames were compiled in it, and why those were that had been before."""

    what: str
    seconds: float
    compiled: int
    recompiles: list[str]


@dataclasses.dataclass
class Stock:
    """What `stock` found; `str()` of it is the report.

    nodes: of all graphs compiled; breaks: how often the function was cut in two, by cause
    """

    name: str
    calls: list[StockCall]
    graphs: int
    nodes: int
    breaks: dict[str, int]

    def __str__(self) -> str:
        return "\n".join(self._report())

    def _report(self) -> Iterator[str]:
        breaks = sum(self.breaks.values())
        yield f"torch.compile({self.name}): {self.graphs} graphs with {self.nodes} nodes, {breaks} breaks"
        for cause, count in self.breaks.items():
            yield f"  break, {count} times: {cause}"
        for call in self.calls:
            yield f"  {call.what}: {call.seconds:.2f} s, {call.compiled} frames compiled"
            for cause in call.recompiles:
                yield f"    again because {cause}"


@torch.no_grad()
def stock(mapped: Mapped, args: tuple, kwargs: dict[str, Any], backend: str = "eager") -> Stock:
    """Run `torch.compile(torch.vmap(f))` with such arguments, other values, and other batch sizes.

    What Dynamo counts does not depend on the backend; "eager" does nothing with the graphs and so takes the least time.
    """
    from torch._dynamo.utils import counters, get_compilation_metrics  # slow to import

    call = mapped.parameters.call(args, kwargs)
    compiled = torch.compile(mapped.vmapped(call.signature.static), backend=backend)
    before = {kind: Counter(counters[kind]) for kind in ("graph_break", "unimplemented", "stats")}
    calls = []
    for what, these in _variants(call):
        old = get_compilation_metrics()  # held, as Dynamo keeps only the newest and a freed one's id may come again
        start = time.perf_counter()
        compiled(*these)
        seconds = time.perf_counter() - start
        new = [m for m in get_compilation_metrics() if not any(m is o for o in old)]
        again = [_first_line(m.recompile_reason) for m in new if m.recompile_reason]
        calls.append(StockCall(what, seconds, len(new), again))
    after = {kind: Counter(counters[kind]) - count for kind, count in before.items()}
    breaks: Counter[str] = Counter()
    for cause, count in (after["graph_break"] + after["unimplemented"]).items():
        breaks[_first_line(cause)] += count
    return Stock(mapped.name, calls, after["stats"]["unique_graphs"], after["stats"]["calls_captured"], dict(breaks))


def _variants(call: Call) -> Iterator[tuple[str, Any]]:
    yield "first call", call.args
    yield "the same again", call.args
    spec, dims = call.signature.spec, call.signature.dims
    yield "other tensors", optree.tree_unflatten(spec, [x.clone() for x in call.leaves])
    if call.worlds is not None:
        for more in (1, 2):
            grown = [x if d is None else _grown(x, d, more) for x, d in zip(call.leaves, dims, strict=True)]
            yield f"a batch with {more} more", optree.tree_unflatten(spec, grown)


def _grown(x: Tensor, dim: int, more: int) -> Tensor:
    return torch.cat([x, *[x.narrow(dim, 0, 1)] * more], dim)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0]
