"""Graphs that are being recorded: that of a function, and those of the bodies of its loops and branches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node


class Recorded(GraphModule):
    """A graph that is interpreted when it is called: PyTorch's own would print and compile Python code at once."""

    def recompile(self) -> Any:
        """Nothing to do when the graph has changed."""

    def forward(self, *args: Any) -> Any:
        """What the graph computes."""
        return Interpreter(self).run(*args)

    def __str__(self) -> str:
        return self.print_readable(print_output=False)


class Frame:
    """A graph that is being recorded: that of the function, or of a body.

    captured: what a body uses from around it, by `id`; the bodies of one loop or branch have it in common.
    """

    def __init__(self, captured: dict[int, Tensor] | None = None) -> None:
        self.graph, self.root = Graph(), torch.nn.Module()
        self.captured = captured
        self.constants: dict[int, Node] = {}
        self.lifted: dict[int, Node] = {}
        self.inputs, self.newest = 0, self.graph._root  # how many, and the last

    def input(self, value: Tensor) -> Node:
        """One more input, after those that there are."""
        with self.graph.inserting_after(self.newest):
            self.newest = self.graph.placeholder(f"arg{self.inputs}")
        self.newest.meta["val"], self.inputs = value, self.inputs + 1
        return self.newest

    def lift(self, x: Tensor) -> Node:
        """The input of a body for a tensor that it captures."""
        assert self.captured is not None
        node = self.lifted.get(id(x))
        if node is None:
            self.captured[id(x)] = x
            node = self.lifted[id(x)] = self.input(getattr(x, "memory", x))
        return node

    def closed(self) -> Recorded:
        """The graph, when all bodies are recorded: with inputs for all that is captured, in the same order."""
        nodes = [self.lift(x) for x in list((self.captured or {}).values())]
        for before, after in itertools.pairwise(nodes):
            if before.next is not after:
                before.append(after)
        return Recorded(self.root, self.graph)

    def attribute(self, name: str, x: Tensor | GraphModule) -> Node:
        """A node for something that the graph holds."""
        setattr(self.root, name, x)
        return self.graph.create_node("get_attr", name, (), {})

    def constant(self, x: Tensor) -> Node:
        """The node of a tensor that has a value."""
        node = self.constants.get(id(x))
        if node is None:
            node = self.constants[id(x)] = self.attribute(f"_tensor_constant{len(self.constants)}", x)
            node.meta["val"] = x
        return node

    def bodies(self, prefixes: Sequence[str], graphs: Sequence[GraphModule]) -> list[Node]:
        """Nodes for the graphs of one loop or branch."""
        number = next(n for n in range(len(self.graph.nodes) + 1) if not hasattr(self.root, f"{prefixes[0]}_{n}"))
        return [self.attribute(f"{p}_{number}", graph) for p, graph in zip(prefixes, graphs, strict=True)]
