"""A lowered function: its loop program, and where each of its results comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from mjtorch.compiler.garbage import without_collections
from mjtorch.compiler.ir.nodes import Program
from mjtorch.compiler.ir.text import as_text
from mjtorch.compiler.lower import lower


@dataclasses.dataclass(frozen=True)
class Output:
    """Where a result comes from: computed, an input that is passed through, or a constant."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    source: int = -1  # of an input
    constant: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A loop program, before any pass, and how its buffers belong to the function's inputs and outputs.

    name: of the function
    exact: whether products with zeros are computed where they may meet an infinity or NaN
    values: what each operation of the graph came to
    """

    program: Program
    graph: GraphModule
    outputs: tuple[Output, ...]
    name: str = ""
    exact: bool = False
    values: Mapping[Node, Any] = dataclasses.field(default_factory=dict)

    def as_text(self) -> str:
        """The loop program, readable: each statement below the operation and the line that it comes from."""
        return as_text(self.program, origins=True)


@without_collections()
def lower_graph(
    graph: GraphModule,
    shared: Sequence[bool],
    constants: dict[int, Tensor],
    elements: bool = False,
    exact: bool = False,
    name: str = "",
    inline: bool = True,
) -> Lowered:
    """Lower a one-world graph. `shared[k]`: all worlds have input k in common; `constants`: inputs baked in.

    elements: what is computed side by side, elements of a world or worlds; exact: whether a product with a zero is
    computed where it may meet an infinity or NaN; inline: whether operations may be computed where they are read.
    """
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    vals = [n.meta["val"] for n in placeholders]
    results = next(n for n in graph.graph.nodes if n.op == "output").args[0]
    program, sources, values = lower(graph, vals, shared, constants, elements, exact, inline)
    outputs = []
    for node, source in zip(results, sources, strict=True):
        if isinstance(source, Tensor):
            outputs.append(Output(tuple(source.shape), source.dtype, constant=source.detach()))
            continue
        meta = node.meta["val"]
        outputs.append(Output(tuple(meta.shape), meta.dtype, source=-1 if source is None else source))
    return Lowered(program, graph, tuple(outputs), name, exact, values)
