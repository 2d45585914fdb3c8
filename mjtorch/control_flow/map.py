"""`map` and `each`: a function of every slice of its input, one after the other."""

from collections.abc import Callable
from typing import Any

import torch

from mjtorch import tree
from mjtorch.control_flow import context
from mjtorch.control_flow.context import opaque
from mjtorch.control_flow.scan import scan


@opaque
def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """Apply `f` to each slice of `xs` along the leading axis and stack the results; like `jax.lax.map`.

    >>> import torch
    >>> map(lambda row: row.sum(), torch.eye(3))
    tensor([1., 1., 1.])

    It computes what `torch.vmap(f)(xs)` does, with the memory of one slice at a time. With `batch_size`, that many
    slices at a time go through `torch.vmap`.
    """
    if batch_size is None:
        return scan(lambda _, x: ((), f(x)), (), xs)[1]
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"map: batch_size must be a positive int, got {batch_size!r}")
    n = tree.leaves(xs)[0].shape[0]
    whole = n // batch_size * batch_size
    parts = []
    if whole:
        chunks = tree.map(lambda x: x[:whole].unflatten(0, (-1, batch_size)), xs)
        ys = scan(lambda _, x: ((), torch.vmap(f)(x)), (), chunks)[1]
        parts.append(tree.map(lambda y: y.flatten(0, 1), ys))
    if whole < n:
        parts.append(torch.vmap(f)(tree.map(lambda x: x[whole:], xs)))
    return parts[0] if len(parts) == 1 else tree.map(lambda *ys: torch.cat(ys), *parts)


@opaque
def each(f: Callable[[Any], Any], xs: Any) -> Any:
    """`f(xs)` of a function that treats every slice of `xs` along the leading axis alike, and returns one for each.

    >>> import torch
    >>> each(lambda rows: rows.sum(-1), torch.eye(3))
    tensor([1., 1., 1.])

    Called eagerly it is just that. A traced function goes slice by slice, as `map` does, each with its axis of size 1:
    so what a loop in `f` costs is not that of the slice which takes longest, once for every slice.
    """
    leaves = tree.leaves(xs)
    if leaves[0].shape[0] < 2 or not context.is_traced(leaves):
        return f(xs)

    def one(_: Any, x: Any) -> tuple[tuple[()], Any]:
        return (), tree.map(lambda y: y[0], f(tree.map(lambda leaf: leaf[None], x)))

    return scan(one, (), xs, unroll=False)[1]
