"""`switch`: one of several functions, as an index says."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from mjtorch.control_flow import context
from mjtorch.control_flow.carry import Structure
from mjtorch.control_flow.closure import explore
from mjtorch.control_flow.cond import cond
from mjtorch.control_flow.context import opaque

T = TypeVar("T")


@opaque
def switch(index: context.Int | Tensor, branches: Sequence[Callable[..., T]], *operands: Any) -> T:
    """`branches[index](*operands)`, an index out of range meaning the nearest branch; like `jax.lax.switch`.

    >>> import torch
    >>> branches = [torch.sin, torch.cos, torch.exp]
    >>> switch(torch.tensor(2), branches, torch.tensor(0.0))
    tensor(1.)
    >>> torch.vmap(lambda i, x: switch(i, branches, x))(torch.tensor([0, 1, 9]), torch.zeros(3))
    tensor([0., 1., 1.])

    index: an int, which may depend on sizes, or an integer tensor of shape (). The rules of `cond` apply: where worlds
    of a `torch.vmap` may choose differently all functions run. All return the same structure, shapes and dtypes.
    """
    branches = list(branches)
    if not branches:
        raise ValueError("switch needs at least one branch")
    last = len(branches) - 1
    if context.is_int(index) and not context.is_symbol(index):
        return branches[min(max(int(index), 0), last)](*operands)
    if isinstance(index, torch.SymInt):
        return _bisect(index, branches, 0, operands)
    if not isinstance(index, Tensor) or index.shape != () or index.dtype.is_floating_point or index.dtype == torch.bool:
        kind = f"{index.dtype}{list(index.shape)}" if isinstance(index, Tensor) else repr(index)
        raise TypeError(f"switch: index must be an int or an integer tensor of shape (), got {kind}")
    if last == 0:
        return branches[0](*operands)
    if context.is_batched(index):
        return _all(index, [fn(*operands) for fn in branches])
    if not context.is_traced((index,)):
        chosen = min(max(int(context.unwrap(index)), 0), last)
        for fn in (*branches[:chosen], *branches[chosen + 1 :]):
            explore(fn, *operands)
        return branches[chosen](*operands)
    return _bisect(index, branches, 0, operands)


def _all(index: Tensor, results: Sequence[T]) -> T:
    result = Structure(results[0], "switch: the result", "that of branch 0", root="result")
    chosen = result.leaves
    for i, other in enumerate(results[1:], start=1):
        pairs = zip(result.flatten(other, f"that of branch {i}"), chosen, strict=True)
        chosen = [torch.where(index >= i, x, y) for x, y in pairs]
    return result.unflatten(chosen)


def _bisect(index: Any, branches: Sequence[Callable[..., T]], first: int, operands: Sequence[Any]) -> T:
    if len(branches) == 1:
        return branches[0](*operands)
    half = len(branches) // 2

    def lower(*args: Any) -> T:
        return _bisect(index, branches[:half], first, args)

    def upper(*args: Any) -> T:
        return _bisect(index, branches[half:], first + half, args)

    return cond(index < first + half, lower, upper, *operands)
