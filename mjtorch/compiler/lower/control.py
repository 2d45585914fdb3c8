"""Rules for loops and branches of the graph."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mjtorch.compiler.ir.nodes import BOOL, SCRATCH, Call, Index, Load, Store, While, lookup
from mjtorch.compiler.lower.elementwise import as_dtype
from mjtorch.compiler.lower.lowering import Lowering, rule
from mjtorch.compiler.lower.pack import packed
from mjtorch.compiler.lower.values import DTYPES, Lazy, Value, View, broadcast, dense

# Operations that change some elements of their first operand.
SCATTERS = (
    torch.ops.aten.scatter.src,
    torch.ops.aten.scatter.value,
    torch.ops.aten.scatter_add.default,
    torch.ops.aten.index_add.default,
)


@rule("while_loop")
def _while_loop(
    low: Lowering,
    node: Node,
    cond: GraphModule,
    body: GraphModule,
    carry: Sequence[Value],
    extra: Sequence[Value] = (),
) -> list[View]:
    """Loop on state of its own. Where worlds run side by side, those that are done keep their state."""
    # What a loop around this one would only copy there and back is its state, too: for worlds that run there.
    given, (same, _) = low.in_place.get(node, {}), idle(body, len(carry))
    state = [given[k][0] if k in given else (low.stored if k in same else low.store)(x) for k, x in enumerate(carry)]
    fixed = [x if not isinstance(x, Lazy) else low.store(x) for x in extra]
    flag = low.alloc((), BOOL)
    around = next((outer for _, outer in given.values()), None)

    def head() -> None:
        go = low.array(low.graph(cond, [*state, *fixed])[0])
        low.store(go if around is None else low.elementwise("and", around, go, dtype=BOOL), flag)

    def iteration() -> None:
        for n, changed in updates(body, len(state)).items():
            low.in_place[n] = {operand: (state[k], flag) for operand, k in changed.items()}
        new = [low.stored(x) for x in low.graph(body, [*state, *fixed])]
        # A carry that is exchanged with another must be read before it is overwritten.
        new = [low.store(x) if x != s and any(x.buffer is t.buffer for t in state) else x for x, s in pairs(new, state)]
        for x, s in pairs(new, state):
            if x != s:
                masked_store(low, x, s, flag)

    head_block, _ = low.inside(head)
    body_block, _ = low.inside(iteration)
    low.emit(While(head_block, Load(flag.buffer, Index()), body_block))
    return state


def updates(body: GraphModule, count: int) -> dict[Node, dict[int, int]]:
    """Nodes that change, in place, some of the first `count` inputs, which come back with some elements written.

    For each which of its operands is which input: the first one of `SCATTERS`, or one that a loop carries.
    """
    order = {n: k for k, n in enumerate(body.graph.nodes)}
    inputs = [n for n in body.graph.nodes if n.op == "placeholder"]
    outputs = list(next(n for n in body.graph.nodes if n.op == "output").args[0])
    found: dict[Node, dict[int, int]] = {}
    for k, (x, y) in enumerate(zip(inputs[:count], outputs[:count], strict=True)):
        if not isinstance(y, Node) or outputs.count(y) > 1:
            continue
        changes = writers(y, x, order)
        if changes and all(order[u] <= order[changes[0][0]] for u in x.users):
            for writer, operand in changes:
                found.setdefault(writer, {})[operand] = k
    return found


def writers(y: Node, x: Node, order: dict[Node, int]) -> list[tuple[Node, int]]:
    """The nodes that make `y` of `x` by writing to it, in order, and which of their operands that is."""
    changes: list[tuple[Node, int]] = []
    while y is not x:
        writer, operand, before = writes(y)
        if writer is None or not isinstance(before, Node):
            return []
        # What is changed further is not to be read as it was from then on.
        if before is not x and any(order[u] > order[writer] for u in before.users):
            return []
        changes.insert(0, (writer, operand))
        y = before
    return changes


def writes(y: Any) -> tuple[Node | None, int, Any]:
    """The node that makes `y` by writing to one of its operands, if one does, which operand, and what it is."""
    if y.target in SCATTERS and "reduce" not in y.kwargs:
        return y, 0, y.args[0]
    if y.target is operator.getitem and y.args[0].target is torch.ops.higher_order.while_loop:
        loop, operand = y.args
        _, _, carry, captured = loop.args
        start = carry[operand]
        if isinstance(start, Node) and start.target is torch.ops.aten.clone.default and len(start.users) == 1:
            start = start.args[0]
        alone = [u.args[1] for u in loop.users].count(operand) == 1
        if alone and start not in captured and list(carry).count(start) < 2:
            return loop, operand, start
    return None, 0, None


def pairs(new: Sequence[View], state: Sequence[View]) -> Iterator[tuple[View, View]]:
    """New and old values of a loop state, side by side."""
    return zip(new, state, strict=True)


def masked_store(low: Lowering, x: View, into: View, flag: View) -> None:
    """`into = x` in the worlds where `flag` holds."""
    go = Load(flag.buffer, Index())
    low.nest(
        into.shape,
        lambda i: low.emit(
            Store(
                into.buffer, into.address(i), Call("where", (go, broadcast(x, into.shape, i), into.at(i)), into.dtype)
            )
        ),
    )


@rule("cond")
def _cond(
    low: Lowering,
    node: Node,
    pred: Value,
    true_graph: GraphModule,
    false_graph: GraphModule,
    operands: Sequence[Value] = (),
) -> list[View]:
    """Two loops of at most one trip each: what no world chooses is not computed."""
    fixed = [low.store(x) if isinstance(x, Lazy) else x for x in operands]
    flag = low.store(as_dtype(low, pred, BOOL))
    other = low.store(low.elementwise("not", flag, dtype=BOOL))
    out = [low.alloc(v.shape, DTYPES[v.dtype]) for v in node.meta["val"]]

    def branch(graph: GraphModule, chosen: View) -> None:
        for x, into in zip(low.graph(graph, fixed), out, strict=True):
            masked_store(low, low.stored(x), into, chosen)
        low.store(False, chosen)

    for graph, chosen in ((true_graph, flag), (false_graph, other)):
        body, _ = low.inside(lambda graph=graph, chosen=chosen: branch(graph, chosen))
        low.emit(While((), Load(chosen.buffer, Index()), body))
    return out


@rule("scan")
def _scan(
    low: Lowering,
    node: Node,
    body: GraphModule,
    init: Sequence[Value],
    xs: Sequence[Value],
    extra: Sequence[Value] = (),
) -> list[View]:
    """A loop of fixed length over the leading axis of `xs`; outputs are written in place.

    If all that is done for an item is done if one of `xs` says so, the active items of many worlds are packed.
    """
    same, unread = idle(body, len(init))
    state = [low.stored(x) if k in same | unread else low.store(x) for k, x in enumerate(init)]
    inputs = [low.stored(x) for x in xs]
    fixed = [x if not isinstance(x, Lazy) else low.store(x) for x in extra]
    active = None if state else packed(low, node, body, inputs, fixed)
    if active is not None:
        return active
    length = inputs[0].shape[0]
    values = node.meta["val"]
    low.scans[body.graph] = node
    outputs: list[View] = []
    last: dict[int, View] = {}

    def iteration(k: Index) -> None:
        here = [View(x.buffer, x.base + lookup(x.axes[0], k), x.axes[1:]) for x in inputs]
        for n, changed in updates(body, len(state)).items():
            low.in_place[n] = {operand: (state[k], None) for operand, k in changed.items()}
        results = low.graph(body, [*state, *here, *fixed])
        new = [low.stored(x) for x in results[: len(state)]]
        new = [low.store(x) if x != s and any(x.buffer is t.buffer for t in state) else x for x, s in pairs(new, state)]
        for y, v in zip(results[len(state) :], values[len(state) :], strict=True):
            out = low.alloc((length, v[0].numel()), DTYPES[v.dtype])
            axes = y.axes if is_whole(y) else dense(out.buffer, v.shape[1:]).axes
            outputs.append(View(out.buffer, out.base, (out.axes[0], *axes)))
            low.store(y, View(out.buffer, out.base + lookup(out.axes[0], k), axes))
        for place, (x, s) in enumerate(pairs(new, state)):
            if place in unread:
                last[place] = low.store(x) if x.base.terms else x
            elif x != s:
                low.store(x, s)

    low.loop(length, iteration, scope=True)
    outputs = outputs or [low.alloc(v.shape, DTYPES[v.dtype]) for v in values[len(state) :]]
    return [*(last.get(k, s) for k, s in enumerate(state)), *outputs]


def is_whole(x: Value) -> bool:
    """Whether it is a whole array in some order of its axes, which copies may have too."""
    return (
        isinstance(x, View) and x.base == Index() and x.buffer.kind == SCRATCH and x.buffer.size == math.prod(x.shape)
    )


def original(y: Any) -> Any:
    """What is copied: loops of PyTorch hand on nothing as it is."""
    while isinstance(y, Node) and y.target is torch.ops.aten.clone.default:
        y = y.args[0]
    return y


def idle(body: GraphModule, count: int) -> tuple[set[int], set[int]]:
    """Which of the first `count` inputs come back as they were, and which no iteration reads.

    Neither needs a state of its own: of the latter what the last iteration made is left.
    """
    inputs = [n for n in body.graph.nodes if n.op == "placeholder"][:count]
    outputs = next(n for n in body.graph.nodes if n.op == "output").args[0]
    same = {k for k, (x, y) in enumerate(zip(inputs, outputs, strict=False)) if x is original(y)}
    return same, {k for k, x in enumerate(inputs) if not x.users}
