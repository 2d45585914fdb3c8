"""`map` and `each`: a function of every slice of its input, one after the other."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.control_flow import context
from mjtorch.control_flow.carry import check_callable
from mjtorch.control_flow.closure import explore
from mjtorch.control_flow.cond import cond
from mjtorch.control_flow.context import opaque
from mjtorch.control_flow.scan import scan


@opaque
def map(f: Callable[[Any], Any], xs: Any, *, batch_size: context.Int | None = None) -> Any:
    """Apply `f` to each slice of `xs` along the leading axis and stack the results; like `jax.lax.map`.

    >>> import torch
    >>> map(lambda row: row.sum(), torch.eye(3))
    tensor([1., 1., 1.])

    It computes what `torch.vmap(f)(xs)` does, with the memory of one slice at a time. With `batch_size`, that many
    slices at a time go through `torch.vmap`.
    """
    check_callable("map", "f", f)
    _size(xs)
    if batch_size is None:
        return scan(lambda _, x: ((), f(x)), (), xs)[1]
    if not context.is_int(batch_size) or batch_size < 1:
        raise ValueError(f"map: batch_size must be a positive int, got {batch_size!r}")
    n = _size(xs)
    if context.is_symbol(n):  # else there would be a graph for each remainder
        return tree.map(lambda y: y[:n], _batches(f, _filled_up(xs, n, batch_size), batch_size))
    whole = n // batch_size * batch_size
    parts = []
    if whole:
        parts.append(_batches(f, tree.map(lambda x: x[:whole], xs), batch_size))
    if whole < n:
        parts.append(torch.vmap(f)(tree.map(lambda x: x[whole:], xs)))
    return parts[0] if len(parts) == 1 else tree.map(lambda *ys: torch.cat(ys), *parts)


def _batches(f: Callable[[Any], Any], xs: Any, size: context.Int) -> Any:
    """`f` of whole batches."""
    batches = tree.map(lambda x: x.unflatten(0, (x.shape[0] // size, size)), xs)
    ys = scan(lambda _, x: ((), torch.vmap(f)(x)), (), batches)[1]
    return tree.map(lambda y: y.flatten(0, 1), ys)


def _filled_up(xs: Any, n: context.Int, size: context.Int) -> Any:
    """`xs`, of `n` slices, and the last one again and again until it is whole batches."""
    index = context.counted(0, -(-n // size) * size, tree.leaves(xs)[0].device)
    index = index.clamp(max=n - 1)  # type: ignore[arg-type]
    return tree.map(lambda x: x[index], xs)


def _size(xs: Any) -> context.Int:
    """The one leading size of all leaves."""
    sizes: list[Any] = [x.shape[0] if isinstance(x, Tensor) and x.dim() else None for x in tree.leaves(xs)]
    if None in sizes or not sizes or any(size != sizes[0] for size in sizes):
        raise ValueError(f"map: the leaves of xs must be tensors with one leading size, got sizes {sizes}")
    return sizes[0]


@opaque
def each(
    f: Callable[[Any], Any],
    xs: Any,
    *,
    where: Tensor | None = None,
    otherwise: Callable[[Any], Any] | None = None,
) -> Any:
    """`f(xs)` of a function that treats every slice of `xs` along the leading axis alike, and returns one for each.

    >>> import torch
    >>> each(lambda rows: rows.sum(-1), torch.eye(3))
    tensor([1., 1., 1.])

    With `where`, bool of shape (n,), it is `otherwise(xs)` for the n slices for which that is false: the same structure
    of tensors, and cheap, since it is computed for all.

    >>> each(torch.sqrt, torch.tensor([4.0, -1.0]), where=torch.tensor([True, False]), otherwise=torch.zeros_like)
    tensor([2., 0.])

    In most contexts it is just that; eagerly `f` is given the slices that are asked for, under `torch.vmap` all. What
    `mjtorch.jit` compiles goes slice by slice, as `map` does, each with its axis of size 1: so what a loop in `f` costs
    is not that of the slice which takes longest, once for every slice. With `where`, the slices that are asked for in
    many worlds are put together: they cost what they cost, however many others there are.
    """
    leaves = tree.leaves(xs)
    count, given = leaves[0].shape[0], leaves if where is None else [*leaves, where]
    sliced = count > 1 and context.wants_scans() and context.is_traced(given)
    if where is None or otherwise is None:
        return scan(lambda _, x: ((), _alone(f, x)), (), xs, unroll=False)[1] if sliced else f(xs)
    if where.shape != (count,) or where.dtype != torch.bool:
        raise TypeError(f"each: where must be bool[{count}], got {where.dtype}{list(where.shape)}")
    if sliced:
        alone, rest = (lambda x: _alone(f, x)), (lambda x: _alone(otherwise, x))
        return scan(lambda _, x: ((), cond(x[0], alone, rest, x[1])), (), (where, xs), unroll=False)[1]
    if context.is_batched(where) or context.is_traced(given):
        return _masked(f, xs, where, otherwise)
    index = context.unwrap(where).nonzero()[:, 0]
    if len(index) == count:
        explore(otherwise, xs)
        return f(xs)
    if not len(index):
        explore(f, xs)
        return otherwise(xs)
    found = f(tree.map(lambda x: x[index], xs))
    return tree.map(lambda new, old: old.index_copy(0, index, new), found, otherwise(xs))


def _alone(f: Callable[[Any], Any], x: Any) -> Any:
    """`f` of one slice."""
    return tree.map(lambda y: y[0], f(tree.map(lambda leaf: leaf[None], x)))


def _masked(f: Callable[[Any], Any], xs: Any, where: Tensor, otherwise: Callable[[Any], Any]) -> Any:
    """`each` of worlds that may ask for different slices: `f` is given all of them if any is asked for."""
    rest = otherwise(xs)
    if not context.is_traced([where]) and not bool(context.unwrap(where).any()):
        explore(f, xs)
        return rest
    found = f(xs) if context.is_batched(where) else cond(where.any(), f, otherwise, xs)
    return tree.map(lambda new, old: torch.where(where.view(-1, *(1,) * (new.dim() - 1)), new, old), found, rest)
