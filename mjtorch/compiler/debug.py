"""`jit(f).debug(...)`: where a compiled function first goes wrong, and at which line of the physics.

A function goes through a trace, the lowering, the passes of a target, and its compiler. After each, what there is then
is run on the same arguments (programs in the interpreter) and compared with what was there before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from mjtorch import tree
from mjtorch.compiler.ir.interpret import Run
from mjtorch.compiler.ir.nodes import FLOAT32, FLOAT64, INPUT, Program, Scatter, Store
from mjtorch.compiler.ir.source import Source
from mjtorch.compiler.ir.text import statement_text
from mjtorch.compiler.ir.verify import VerifyError, verify
from mjtorch.compiler.lower.values import View
from mjtorch.compiler.lowered import Lowered, lower_graph
from mjtorch.compiler.mapped import Mapped
from mjtorch.compiler.signature import Call
from mjtorch.compiler.targets.target import Target

# So many worlds are looked at.
WORLDS = 4
# Relative to the largest number of an array, differences up to this are those of another order of summation.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-8}


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first place where two ways to compute the same differ.

    step: "trace", "lower", the name of a pass, or that of the target
    node: of the graph, or the number of a result; world, element: where in it; found, wanted: the two values
    source: the line that asked for it
    """

    step: str
    node: str
    world: int
    element: int
    found: float
    wanted: float
    source: Source | None = None

    def __str__(self) -> str:
        where = "" if self.source is None else f"\n  at {self.source}"
        place = f"element {self.element} of {self.node} in world {self.world}"
        return f"{self.step}: {place} is {self.found:.9g}, before it was {self.wanted:.9g}{where}"


@dataclasses.dataclass(frozen=True)
class NotFinite:
    """The first value that is not finite, of a program whose results are not.

    statement: that computed it
    """

    value: float
    world: int
    element: int
    node: str
    statement: str
    source: Source | None = None

    def __str__(self) -> str:
        where = "" if self.source is None else f"\n  at {self.source}"
        place = f"element {self.element} of {self.node} in world {self.world}"
        return f"the first {self.value} is {place}{where}\n  {self.statement}"


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `debug` found; `str()` of it is the report.

    steps: all that was compared, in order
    malformed: what the verifier says of the first program that it refuses
    """

    name: str
    steps: tuple[str, ...]
    difference: Difference | None = None
    not_finite: NotFinite | None = None
    malformed: str = ""

    @property
    def is_well(self) -> bool:
        """Whether nothing was found."""
        return self.difference is None and self.not_finite is None and not self.malformed

    def __str__(self) -> str:
        found = [str(x) for x in (self.difference, self.not_finite) if x is not None]
        found += [f"not well formed, {self.malformed}"] if self.malformed else []
        head = f"jit({self.name}): {', '.join(self.steps)}"
        return "\n".join([head, *(found or ["all steps agree, and all results are finite"])])


Progress = Callable[[str], object]


def debug(
    mapped: Mapped, args: tuple, kwargs: Mapping[str, Any], target: Target, progress: Progress | None = None
) -> Diagnosis:
    """Compile `mapped` for `target`, step by step, and compare each with the one before.

    progress: is told the name of each step, before it is compared

    Raises:
        TraceError: it cannot be traced.
        NotImplementedError: an operation has no rule.
        BuildError: there is no compiler.
    """
    return _Debugger(mapped, mapped.parameters.call(args, dict(kwargs)), target, progress).run()


class _Debugger:
    """worlds: how many are looked at; leaves: the arguments of these"""

    def __init__(self, mapped: Mapped, call: Call, target: Target, progress: Progress | None) -> None:
        self.mapped, self.call, self.target, self.progress = mapped, call, target, progress
        self.steps: list[str] = []
        dims = call.signature.dims
        self.batched = call.worlds is not None
        self.worlds = min(WORLDS, call.worlds) if call.worlds is not None else 1
        self.leaves = [
            x if d is None else x.movedim(d, 0)[: self.worlds].movedim(0, d)
            for x, d in zip(call.leaves, dims, strict=True)
        ]
        single = any(x.dtype == torch.float32 for x in self.leaves)
        self.tolerance = TOLERANCE[torch.float32 if single else torch.float64]

    def run(self) -> Diagnosis:
        signature = self.call.signature
        self._begin("trace")
        graph, _ = self.mapped.trace(signature)
        constants = signature.constants(self.leaves)
        known = _values(graph, [self._world(w) for w in range(self.worlds)])
        eager = self._eager()
        output = next(n for n in graph.graph.nodes if n.op == "output")
        traced = [self._stacked(known, x) for x in output.args[0]]
        difference = self._first("trace", traced, eager, [_source(x) for x in output.args[0]])
        self._begin("lower")
        # Each operation is stored, so that it can be looked at.
        plain = lower_graph(graph, signature.shared, constants, self.target.elements, True, self.mapped.name, False)
        difference = difference or self._lowering(plain, known)
        lowered = lower_graph(graph, signature.shared, constants, self.target.elements, name=self.mapped.name)
        try:
            difference = difference or self._passes(lowered, traced)
        except VerifyError as e:
            return Diagnosis(self.mapped.name, tuple(self.steps), difference, malformed=f"after {self.steps[-1]}: {e}")
        difference = difference or self._built(lowered, traced)
        return Diagnosis(self.mapped.name, tuple(self.steps), difference, self._not_finite(plain, traced))

    # --- arguments and results ---

    def _world(self, w: int) -> list[Tensor]:
        """The arguments of one world."""
        dims = self.call.signature.dims
        return [x if d is None else x.select(d, w) for x, d in zip(self.leaves, dims, strict=True)]

    def _eager(self) -> list[Tensor]:
        """What PyTorch computes, worlds first."""
        f = self.call.signature.static.one_world(self.mapped.f)
        spec = self.call.signature.spec
        with torch.no_grad():
            worlds = [tree.leaves(f(*spec.unflatten(self._world(w)))) for w in range(self.worlds)]
        return [torch.stack([torch.as_tensor(x) for x in leaf]) for leaf in zip(*worlds, strict=True)]

    def _stacked(self, known: Sequence[Mapping[Node, Any]], x: Any) -> Tensor:
        """A value of the graph in all worlds."""
        return torch.stack([torch.as_tensor(world[x] if isinstance(x, Node) else x) for world in known])

    def _given(self, p: Program) -> dict[int, np.ndarray]:
        """The arguments as the interpreter takes them."""
        found = {}
        for b in p.inputs:
            x, d = self.leaves[b.position].detach(), self.call.signature.dims[b.position]
            x = x.unsqueeze(-1) if d is None else x.movedim(d, -1)
            if b.kind == INPUT:
                x = x.expand(*x.shape[:-1], self.worlds)
            found[b.position] = x.reshape(-1, x.shape[-1]).numpy()
        return found

    # --- steps ---

    def _begin(self, step: str) -> None:
        """Note that a step is at work."""
        self.steps.append(step)
        if self.progress is not None:
            self.progress(step)

    def _first(
        self, step: str, found: Sequence[Any], wanted: Sequence[Tensor], sources: Sequence[Source | None]
    ) -> Difference | None:
        """The first of some results, each with its worlds first, that differs."""
        for k, (x, y) in enumerate(zip(found, wanted, strict=True)):
            different = self._different(torch.as_tensor(x), y)
            if different is not None:
                return Difference(step, f"result {k}", *different, source=sources[k])
        return None

    def _different(self, x: Tensor, y: Tensor) -> tuple[int, int, float, float] | None:
        """World and element of the largest difference, and both values there; None if it is small."""
        a, b = x.reshape(self.worlds, -1).double(), y.reshape(self.worlds, -1).double()
        if not a.numel():
            return None
        same = (a == b) | (a.isnan() & b.isnan())
        finite = b[b.isfinite()].abs()
        scale = 1 + (float(finite.max()) if finite.numel() else 0.0)
        away = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)
        if float(away.max()) <= self.tolerance * scale:
            return None
        world, element = divmod(int(away.argmax()), a.shape[1])
        return world, element, float(a[world, element]), float(b[world, element])

    def _lowering(self, lowered: Lowered, known: Sequence[Mapping[Node, Any]]) -> Difference | None:
        """The first operation whose rule computes something else."""
        verify(lowered.program)
        run = Run(lowered.program, self._given(lowered.program), self.worlds)
        run.all()
        for node in lowered.graph.graph.nodes:
            value = lowered.values.get(node)
            for k, x in enumerate(value if isinstance(value, (list, tuple)) else [value]):
                if not isinstance(x, View) or x.base.terms:
                    continue
                several = isinstance(value, (list, tuple))
                wanted = torch.stack([torch.as_tensor(w[node][k] if several else w[node]) for w in known])
                rows = run.memory(x.buffer)[(x.base.base + x.offsets()).reshape(-1)]
                found = torch.from_numpy(np.broadcast_to(rows, (len(rows), self.worlds)).T.copy())
                different = self._different(found, wanted)
                if different is not None:
                    return Difference("lower", f"{node.name} = {node.target}", *different, source=_source(node))
        return None

    def _passes(self, lowered: Lowered, wanted: Sequence[Tensor]) -> Difference | None:
        """The first pass whose program computes something else.

        Raises:
            VerifyError: it is not well formed.
        """
        found: list[Difference] = []
        stores: dict[str, dict[str, float]] = {"": {}}

        def look(name: str, p: Program) -> None:
            if found:
                return
            name = "inline" if name == "lower" else name  # as opposed to each operation by itself
            self._begin(name)
            verify(p)
            sums: dict[str, float] = {}

            def note(s: Store | Scatter, rows: np.ndarray, worlds: np.ndarray, value: np.ndarray) -> None:
                if s.origin is not None:
                    sums[s.origin.node] = sums.get(s.origin.node, 0.0) + float(np.nansum(value, dtype=np.float64))

            run = Run(p, self._given(p), self.worlds, note)
            run.all()
            outputs = {b.position: torch.from_numpy(run.memory(b).T.copy()) for b in p.outputs}
            for k, o in enumerate(lowered.outputs):
                different = None if k not in outputs else self._different(outputs[k].to(o.dtype), wanted[k])
                if different is not None:
                    node = self._suspect(lowered.graph, stores[""], sums)
                    name_of = f"result {k}" if node is None else f"result {k}, by {node.name}"
                    found.append(Difference(name, name_of, *different, source=_source(node)))
                    return
            stores[""] = sums

        self.target.schedule(lowered, look)
        return found[0] if found else None

    def _suspect(self, graph: GraphModule, before: Mapping[str, float], after: Mapping[str, float]) -> Node | None:
        """The first operation of which something else is stored than before a pass."""
        for node in graph.graph.nodes:
            a, b = before.get(node.name), after.get(node.name)
            if a is not None and b is not None and abs(a - b) > self.tolerance * (1 + abs(a)):
                return node
        return None

    def _built(self, lowered: Lowered, wanted: Sequence[Tensor]) -> Difference | None:
        """Whether the target's code computes something else."""
        self._begin(self.target.name)
        native = self.target.compile(lowered)
        made = native(self.leaves, self.call.signature.dims, self.worlds if self.batched else None)
        found = [x if self.batched else x[None] for x in made]
        output = next(n for n in lowered.graph.graph.nodes if n.op == "output")
        return self._first(self.target.name, found, wanted, [_source(x) for x in output.args[0]])

    def _not_finite(self, lowered: Lowered, results: Sequence[Tensor]) -> NotFinite | None:
        """The first value that is not finite, if a result is not: a NaN, or else an infinity."""
        if all(bool(x.isfinite().all()) for x in results if x.is_floating_point()):
            return None
        nan = any(bool(x.isnan().any()) for x in results if x.is_floating_point())
        found: list[NotFinite] = []

        def note(s: Store | Scatter, rows: np.ndarray, worlds: np.ndarray, value: np.ndarray) -> None:
            if found or s.buffer.dtype not in (FLOAT32, FLOAT64):
                return
            bad = np.isnan(value) if nan else ~np.isfinite(value)
            if bad.any():
                k = int(bad.argmax())
                node = "a result" if s.origin is None else f"{s.origin.node} = {s.origin.op}"
                text = statement_text(lowered.program, s)
                source = None if s.origin is None else s.origin.source
                found.append(NotFinite(float(value[k]), int(worlds[k]), int(rows[k]), node, text, source))

        Run(lowered.program, self._given(lowered.program), self.worlds, note).all()
        return found[0] if found else None


def _source(x: Any) -> Source | None:
    return x.meta.get("source") if isinstance(x, Node) else None


def _values(graph: GraphModule, worlds: Sequence[Sequence[Tensor]]) -> list[dict[Node, Any]]:
    """What each node of the graph is in each world."""
    found = []
    for leaves in worlds:
        interpreter = _Keeping(graph)
        with torch.no_grad():
            interpreter.run(*leaves)
        found.append(interpreter.values)
    return found


class _Keeping(Interpreter):
    """Keeps what each node comes to."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.values: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        """A node."""
        self.values[n] = super().run_node(n)
        return self.values[n]
