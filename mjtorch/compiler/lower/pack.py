"""Loops over items of which only some are active: those of all worlds are packed together."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from mjtorch.compiler.ir.nodes import COMMON, SCRATCH, Index, Pack, Variable, lookup
from mjtorch.compiler.lower.lowering import Lowering
from mjtorch.compiler.lower.values import DTYPES, Value, View, dense, numel

# Elements that each item may have to be given of what is the same for all items of a world.
MOST_CAPTURED = 64


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is done for each item, if that is one of two functions.

    flag: the input that says which; active, otherwise: the functions; operands: the inputs that both take
    results: which results of the functions those of the body are
    """

    flag: int
    active: GraphModule
    otherwise: GraphModule
    operands: tuple[int, ...]
    results: tuple[int, ...]

    def chosen(self, values: Sequence[Value]) -> list[Value]:
        """The results of the body, of all that one of the functions returns."""
        return [values[k] for k in self.results]


def choice(body: GraphModule) -> Choice | None:
    """The body of a loop as a choice by one of its inputs, if it is that and nothing else."""
    inputs = {n: k for k, n in enumerate(n for n in body.graph.nodes if n.op == "placeholder")}
    calls = [n for n in body.graph.nodes if n.op == "call_function"]
    conds = [n for n in calls if getattr(n.target, "__name__", "") == "cond"]
    results = next(n for n in body.graph.nodes if n.op == "output").args[0]
    if len(conds) != 1 or any(n.target is not operator.getitem for n in calls if n is not conds[0]):
        return None
    flag, active, otherwise, operands = conds[0].args
    if not all(isinstance(x, Node) and x in inputs for x in (flag, *operands)):
        return None
    if any(n.op != "call_function" for n in results) or len({n.args[1] for n in results}) < len(results):
        return None
    return Choice(
        inputs[flag],
        getattr(body, active.target),
        getattr(body, otherwise.target),
        tuple(inputs[x] for x in operands),
        tuple(n.args[1] for n in results),
    )


def packed(
    low: Lowering, node: Node, body: GraphModule, rows: Sequence[View], fixed: Sequence[Value]
) -> list[View] | None:
    """A loop over `rows` whose body is a choice by one of them: the items that are active are packed.

    fixed: what is the same for all items. None where they cannot be packed: too much of that is a world's own.
    """
    found = None if low.elements or low.is_packed else choice(body)
    if found is None or found.flag >= len(rows) or numel(rows[0].shape[:1]) < 2:
        return None
    own = [x for k in found.operands if k >= len(rows) and not _is_common(x := fixed[k - len(rows)])]
    if sum(numel(x.shape) for x in own) > MOST_CAPTURED:
        return None
    length = rows[0].shape[0]
    unchanged = {} if low.is_uniform else left_alone(node, found, rows)
    outputs = [
        rows[unchanged[k]] if k in unchanged else low.alloc(v.shape, DTYPES[v.dtype])
        for k, v in enumerate(node.meta["val"])
    ]

    def of(k: int, item: Index) -> Value:
        return row(rows[k], item) if k < len(rows) else fixed[k - len(rows)]

    def otherwise(item: Index) -> None:
        results = found.chosen(low.graph(found.otherwise, [of(k, item) for k in found.operands]))
        for k, (y, out) in enumerate(zip(results, outputs, strict=True)):
            if k not in unchanged:
                low.store(y, row(out, item))

    if len(unchanged) < len(outputs):
        low.loop(length, otherwise, scope=True)
    name = low.variable()
    item = Index(0, ((Variable(name), 1),))
    mine = [k for k in found.operands if k < len(rows) or not _is_common(of(k, item))]
    load, copies = low.inside(lambda: {k: low.store(of(k, item)) for k in mine})
    low.is_packed = True
    do, results = low.inside(
        lambda: [
            low.stored(y)
            for y in found.chosen(low.graph(found.active, [copies.get(k, of(k, item)) for k in found.operands]))
        ]
    )
    low.is_packed = False
    store, _ = low.inside(lambda: [low.store(y, row(out, item)) for y, out in zip(results, outputs, strict=True)])
    low.emit(Pack(name, length, row(rows[found.flag], item).at([]), load, do, store))
    return outputs


def left_alone(node: Node, found: Choice, rows: Sequence[View]) -> dict[int, int]:
    """Outputs that are an input as it was where an item is not active, and which of `rows`, if nothing else reads it.

    These may be changed in place: what another such loop has made, in memory of its own.
    """
    xs = node.args[2]
    assert isinstance(xs, Sequence)
    inputs = [n for n in found.otherwise.graph.nodes if n.op == "placeholder"]
    results = found.chosen(next(n for n in found.otherwise.graph.nodes if n.op == "output").args[0])
    alone: dict[int, int] = {}
    for k, (y, value) in enumerate(zip(results, node.meta["val"], strict=True)):
        given = passed_through(y)
        place = found.operands[inputs.index(given)] if given in inputs else len(rows)
        if place >= len(rows) or place in alone.values():
            continue
        x = xs[place]
        assert isinstance(x, Node)
        is_last = set(x.users) == {node} and xs.count(x) == 1
        if is_last and is_made_alone(x) and is_whole(rows[place], value.shape, DTYPES[value.dtype]):
            alone[k] = place
    return alone


def passed_through(y: Node) -> Node:
    """What `y` is a copy of, but for an axis of one element in front that comes and goes."""
    x, shape = y, y.meta["val"].shape
    while x.target in (torch.ops.aten.clone.default, torch.ops.aten.unsqueeze.default, torch.ops.aten.select.int):
        before, *where = x.args
        if not isinstance(before, Node) or any(where) or (where[1:] and before.meta["val"].shape[0] != 1):
            break
        x = before
    return x if x.meta["val"].shape == shape else y


def is_made_alone(x: Node) -> bool:
    """Whether `x` is the only name of a result of a loop without a state: results of these are arrays of their own."""
    if x.target is not operator.getitem:
        return False
    loop, place = x.args
    assert isinstance(loop, Node)
    is_loop = getattr(loop.target, "__name__", "") == "scan" and not loop.args[1]
    return is_loop and [u.args[1] for u in loop.users].count(place) == 1


def is_whole(x: View, shape: Sequence[int], dtype: str) -> bool:
    """Whether `x` is all of an array of each world, of this shape and type."""
    return x.buffer.kind == SCRATCH and x.dtype == dtype and x == dense(x.buffer, shape)


def row(x: View, item: Index) -> View:
    """A slice along the leading axis."""
    return View(x.buffer, x.base + lookup(x.axes[0], item), x.axes[1:])


def _is_common(x: Value) -> bool:
    """Whether all worlds have a value in common."""
    return not isinstance(x, View) or (x.buffer.kind in COMMON and not x.base.terms)
