"""`cond`: one of two functions, as a predicate says."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import optree
import torch
from torch import Tensor

from mjtorch.control_flow import context, lowering
from mjtorch.control_flow.carry import Structure, check_callable
from mjtorch.control_flow.closure import Conversion, explore, intercepted, is_lifted
from mjtorch.control_flow.context import opaque
from mjtorch.control_flow.derivative import Likeness, cotangents, jvp, needed, primals, spread, vjp
from mjtorch.control_flow.snapshot import snapshot
from mjtorch.control_flow.while_loop import check_predicate
from mjtorch.tree.dataclass import NAMESPACE

T = TypeVar("T")


@opaque
def cond(pred: context.Bool | Tensor, true_fun: Callable[..., T], false_fun: Callable[..., T], *operands: Any) -> T:
    """`true_fun(*operands)` if `pred` else `false_fun(*operands)`; like `jax.lax.cond`.

    >>> import torch
    >>> def safe_log(x):
    ...     return cond(x > 0, torch.log, torch.zeros_like, x)
    >>> safe_log(torch.tensor(1.0))
    tensor(0.)
    >>> torch.vmap(safe_log)(torch.tensor([-1.0, 1.0]))
    tensor([0., 0.])

    A Python bool chooses at once, also while tracing, and so does a comparison of sizes, unless the graph is for sizes
    on both sides of it: then that has both branches. A bool tensor of shape `()` chooses when its value is known: a
    Python branch when called eagerly, `torch.cond` in a traced function. Where the worlds of a `torch.vmap` may choose
    differently both functions run, and `torch.where` picks: neither may then fail, and a NaN in the derivative of the
    one not chosen is a NaN in the result's derivative.

    Both functions return the same structure of tensors with the same shapes and dtypes, may use tensors from around
    them, and are differentiated in every mode. Where both return the same tensor from around them there is no choice.
    """
    check_callable("cond", "true_fun", true_fun)
    check_callable("cond", "false_fun", false_fun)
    if isinstance(pred, context.Bool):
        pred = context.decided(pred)
    if isinstance(pred, bool):
        return true_fun(*operands) if pred else false_fun(*operands)
    check_predicate(pred, "cond: pred", verb="be")
    leaves: list[Any]
    leaves, spec = optree.tree_flatten(operands, namespace=NAMESPACE)  # type: ignore[arg-type]
    where = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
    tensors = [leaves[i] for i in where]
    traced, batched = context.is_traced((pred, *tensors)), context.is_batched(pred)
    if not traced and not batched:
        chosen, other = (true_fun, false_fun) if bool(context.unwrap(pred)) else (false_fun, true_fun)
        explore(other, *operands)
        return chosen(*operands)
    if batched or not context.is_recording():
        return _both(pred, true_fun(*operands), false_fun(*operands))

    def flat(fn: Callable[..., T]) -> Callable[..., T]:
        def flat_fn(*values: Tensor) -> T:
            args = list(leaves)
            for i, x in zip(where, values, strict=True):
                args[i] = x
            return fn(*spec.unflatten(args))

        return flat_fn

    branches = flat(snapshot(true_fun)), flat(snapshot(false_fun))
    if is_lifted():
        return _lifted(pred, branches, tensors)
    converted = Conversion(branches, tensors)
    result = _result(converted.results[0])
    pairs = zip(result.leaves, result.flatten(converted.results[1], "that of false_fun"), strict=True)
    found: list[Tensor | None] = [x if x is y and converted.is_captured(x) else None for x, y in pairs]
    choices = [k for k, x in enumerate(found) if x is None]
    if choices:
        flat_branches = [_leaves(converted.close(fn), choices) for fn in branches]
        values = intercepted(_branch, pred, *flat_branches, (*tensors, *converted.captured))
        for k, x in zip(choices, values, strict=True):
            found[k] = x
    return result.unflatten(found)  # type: ignore[arg-type]


def _lifted(pred: Tensor, branches: Sequence[Callable[..., T]], operands: Sequence[Tensor]) -> T:
    """`cond` where branches may capture what they like. The first says what the structure of the result is."""
    structures: list[Structure] = []

    def chosen(*values: Tensor) -> list[Tensor]:
        structures.append(_result(branches[0](*values)))
        return structures[0].leaves

    def other(*values: Tensor) -> list[Tensor]:
        return structures[0].flatten(branches[1](*values), "that of false_fun")

    values = lowering.cond(pred, chosen, other, operands)
    result: T = structures[0].unflatten(values)
    return result


def _result(tree: Any) -> Structure:
    return Structure(tree, "cond: the result", "that of true_fun", root="result")


def _leaves(fn: Callable[..., Any], choices: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    def flat_fn(*args: Tensor) -> tuple[Tensor, ...]:
        leaves = optree.tree_leaves(fn(*args), namespace=NAMESPACE)
        return tuple(leaves[k] for k in choices)

    return flat_fn


def _both(pred: Tensor, if_true: T, if_false: T) -> T:
    result = _result(if_true)
    pairs = zip(result.leaves, result.flatten(if_false, "that of false_fun"), strict=True)
    return result.unflatten([x if x is y else torch.where(pred, x, y) for x, y in pairs])


def _branch(pred: Tensor, true_fn: Any, false_fn: Any, operands: Sequence[Tensor]) -> Sequence[Tensor]:
    """The branch for flat functions of `operands` that capture nothing."""
    pred, operands = context.alive(pred), [context.alive(x) for x in operands]
    if context.tracks_gradient(operands):
        return _Cond.apply(pred, true_fn, false_fn, *operands)
    return lowering.cond(pred, true_fn, false_fn, operands)


class _Cond(torch.autograd.Function):
    """A branch whose derivative is the branch between the derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(pred: Tensor, true_fn: Any, false_fn: Any, *operands: Tensor) -> tuple[Tensor, ...]:
        return tuple(lowering.cond(pred, true_fn, false_fn, operands))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pred, ctx.true_fn, ctx.false_fn, *operands = inputs
        ctx.save_for_backward(pred, *operands)
        ctx.save_for_forward(pred, *operands)
        ctx.results = [Likeness.of(x) for x in output]
        ctx.set_materialize_grads(False)  # else what does not change changes by zeros

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        pred, *operands = ctx.saved_tensors
        n, wanted = len(operands), needed(operands, ctx.needs_input_grad[3:])

        def pull(fn: Any) -> Callable[..., list[Tensor]]:
            return lambda *args: vjp(fn, args[:n], args[n:], wanted)

        if not any(wanted):
            return (None,) * (3 + n)
        found = _branch(pred, pull(ctx.true_fn), pull(ctx.false_fn), (*operands, *cotangents(grads, ctx.results)))
        return (None, None, None, *spread(found, wanted))

    @staticmethod
    def jvp(ctx: Any, _pred: None, _true: None, _false: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        pred, *operands = primals(ctx.saved_tensors)
        n, wanted = len(operands), [t is not None for t in tangents]

        def push(fn: Any) -> Callable[..., list[Tensor]]:
            return lambda *args: jvp(fn, args[:n], args[n:], wanted)[1]

        changes = [t for t in tangents if t is not None]
        found = _branch(pred, push(ctx.true_fn), push(ctx.false_fn), (*operands, *changes))
        return tuple(spread(found, [x.dtype.is_floating_point for x in ctx.results]))
