"""`by_size`: one of several functions, as a size says."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from mjtorch.control_flow import context
from mjtorch.control_flow.cond import cond
from mjtorch.control_flow.context import opaque

T = TypeVar("T")

# The first and the last size that a function is for; None for no last one.
Range = tuple[int, int | None]


@opaque
def by_size(n: context.Int, branches: Mapping[Range, Callable[..., T]], *operands: Any) -> T:
    """`branches[first, last](*operands)` for the range that `n` lies in, both ends included.

    >>> import torch
    >>> def total(x):
    ...     return by_size(
    ...         x.shape[0],
    ...         {(0, 8): lambda x: sum(x.unbind()), (9, None): lambda x: x.sum()},
    ...         x,
    ...     )
    >>> total(torch.ones(3)), total(torch.ones(100))
    (tensor(3.), tensor(100.))

    n: an int, such as a size. Where a graph has it for a variable the graph has all functions that it may choose, and
    the rules of `cond` apply: all return the same structure, shapes and dtypes. Else there is only the one chosen.
    branches: functions by the sizes that they are for, (first, last), or (first, None) from one size on.

    Raises:
        TypeError: `n` is no int, or a range is not made of ints.
        ValueError: ranges overlap or leave a gap, or `n` is in none.
    """
    if not context.is_int(n):
        raise TypeError(f"by_size: n must be an int, got {n!r}")
    ranges = sorted(branches, key=_first)
    _check(ranges)
    first, last = ranges[0][0], ranges[-1][1]
    if n < first or (last is not None and n > last):
        raise ValueError(f"by_size: n is {n}, and the ranges are for {first} to {'any' if last is None else last}")
    return _choose(n, [(low, branches[low, high]) for low, high in ranges], operands)


def _first(sizes: Any) -> int:
    """Where a range begins, if it is one."""
    match sizes:
        case (int(first), int() | None):
            return first
    raise TypeError(f"by_size: a range must be (first, last), ints, or (first, None), got {sizes!r}")


def _check(ranges: Sequence[Range]) -> None:
    """Raise `ValueError` unless each range ends where the next begins."""
    if not ranges:
        raise ValueError("by_size needs at least one range")
    for first, last in ranges:
        if last is not None and last < first:
            raise ValueError(f"by_size: the range {(first, last)} has no size in it")
    for (first, last), after in itertools.pairwise(ranges):
        if last is None or after[0] <= last:
            raise ValueError(f"by_size: the ranges {(first, last)} and {after} overlap")
        if after[0] > last + 1:
            raise ValueError(f"by_size: no range is for {last + 1} to {after[0] - 1}")


def _choose(n: context.Int, branches: Sequence[tuple[int, Callable[..., T]]], operands: Sequence[Any]) -> T:
    if len(branches) == 1:
        return branches[0][1](*operands)
    half = len(branches) // 2

    def smaller(*args: Any) -> T:
        return _choose(n, branches[:half], args)

    def larger(*args: Any) -> T:
        return _choose(n, branches[half:], args)

    return cond(n < branches[half][0], smaller, larger, *operands)
