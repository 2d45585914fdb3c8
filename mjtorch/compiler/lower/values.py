"""What a graph's value is while it is lowered: elements of a buffer, or an expression not stored yet."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mjtorch.compiler.ir.nodes import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT,
    Buffer,
    Expr,
    Gather,
    Index,
    Load,
    Number,
    Scatter,
    Store,
    picked,
    step_of,
)


class NoRule(NotImplementedError):  # noqa: N818 - it says what is missing, and reads as that
    """What no rule lowers: an op, or a kind of tensor."""

    def __init__(self, op: str) -> None:
        super().__init__(op)
        self.op = op


class _Dtypes(dict[torch.dtype, str]):
    def __missing__(self, dtype: torch.dtype) -> str:
        raise NoRule(f"tensors of {dtype}")


DTYPES = _Dtypes(
    {
        torch.float32: FLOAT32,
        torch.float64: FLOAT64,
        torch.int64: INT,
        torch.int32: INT,
        torch.bool: BOOL,
    }
)


# Offsets along an axis: those of a large table are many.
Axis = tuple[int, ...] | range


@dataclasses.dataclass
class View:
    """Elements of a buffer: the address is `base` plus one offset per axis."""

    buffer: Buffer
    base: Index
    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return tuple(len(a) for a in self.axes)

    @property
    def dtype(self) -> str:
        """That of the buffer."""
        return self.buffer.dtype

    def at(self, index: Sequence[Index]) -> Expr:
        """The element at `index`."""
        return Load(self.buffer, self.address(index))

    @functools.cached_property
    def steps(self) -> tuple[int | None, ...]:
        """From one element of each axis to the next, where that is the same for all."""
        return tuple(map(step_of, self.axes))

    def address(self, index: Sequence[Index]) -> Index:
        """Where the element at `index` lies in the buffer."""
        address = self.base
        for axis, step, i in zip(self.axes, self.steps, index, strict=True):
            address = address + picked(axis, step, i)
        return address

    def offsets(self) -> np.ndarray:
        """All addresses relative to `base`, in the shape of the view."""
        total = np.zeros((), dtype=np.int64)
        for axis in self.axes:
            total = np.add.outer(total, np.array(axis, dtype=np.int64))
        return total


def mapped(x: Any, f: Callable[[Any], Any]) -> Any:
    """What an operation takes or returns, with `f` of all that is in its lists, tuples and dicts."""
    if isinstance(x, (list, tuple)):
        parts = [mapped(y, f) for y in x]
        return parts if isinstance(x, list) else tuple(parts)
    return {k: mapped(y, f) for k, y in x.items()} if isinstance(x, dict) else f(x)


def leaves(x: Any) -> list[Any]:
    """All that is in the lists, tuples and dicts of what an operation takes or returns."""
    found: list[Any] = []
    mapped(x, found.append)
    return found


# The operation of an array that is another in another type.
CAST = "cast"
# Elements that are whatever was there.
EMPTY = "empty"


@dataclasses.dataclass
class Lazy:
    """An element's expression as a function of its index; `cost` counts the operations in it.

    `op` and `args`, where known, say that it is that function of those arrays; `offsets`, of the shape, where each
    element lies in the buffer of the one array in `args`, counted from its base, if that is all there is to it.
    """

    shape: tuple[int, ...]
    dtype: str
    at: Callable[[Sequence[Index]], Expr]
    cost: int
    op: str = ""
    args: tuple[Array, ...] = ()
    offsets: np.ndarray | None = None


Array = View | Lazy
Value = Array | torch.Tensor | int | float | bool


def is_widened(x: Lazy) -> bool:
    """Whether an array is one of single precision in memory, in double precision."""
    if x.op != CAST or x.dtype != FLOAT64:
        return False
    return isinstance(x.args[0], View) and x.args[0].dtype == FLOAT32


def to_write(x: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The part of an array of `shape` to write for it to be `x`: of an empty one an element, with which it begins."""
    return tuple(min(n, 1) for n in shape) if isinstance(x, Lazy) and x.op == EMPTY else shape


def is_partial(x: Array) -> bool:
    """Whether `x` is one of two by a mask, and the other is empty: nobody reads that."""
    other = x.args[2] if isinstance(x, Lazy) and x.op == "where" else None
    return isinstance(other, Lazy) and other.op == EMPTY


def numel(shape: Sequence[int]) -> int:
    """Number of elements."""
    return int(np.prod(shape)) if len(shape) else 1


def dense_axes(shape: Sequence[int]) -> tuple[Axis, ...]:
    """Axes of a row-major array."""
    axes: list[Axis] = []
    stride = 1
    for n in reversed(shape):
        axes.insert(0, range(0, n * stride, stride) if stride else (0,) * n)
        stride *= n
    return tuple(axes)


def dense(buffer: Buffer, shape: Sequence[int]) -> View:
    """The whole of a buffer, row-major."""
    return View(buffer, Index(), dense_axes(shape))


def flat(shape: Sequence[int], index: Sequence[Index]) -> Index:
    """Row-major position of `index` in an array of `shape`."""
    total, stride = Index(), 1
    for n, i in zip(reversed(shape), reversed(index), strict=True):
        total, stride = total + i * stride, stride * n
    return total


def broadcast(x: Array, shape: Sequence[int], index: Sequence[Index]) -> Expr:
    """The element of `x` that `index` into the broadcast `shape` means."""
    own = index[len(index) - len(x.shape) :]
    return x.at([Index() if n == 1 else i for n, i in zip(x.shape, own, strict=True)])


def number(value: float | bool, dtype: str) -> Number:
    """A literal of a dtype."""
    if dtype == BOOL:
        return Number(bool(value), BOOL)
    return Number(int(value) if dtype == INT else float(value), dtype)


def load(buffer: Buffer, index: Index, offset: Expr | None = None) -> Expr:
    """`buffer[index + offset]`; no offset, or one that is a number, needs no gather."""
    if offset is None or isinstance(offset, Number):
        return Load(buffer, index if offset is None else index + offset.value)
    return Gather(buffer, index, offset)


def store(buffer: Buffer, index: Index, value: Expr, offset: Expr | None = None) -> Store | Scatter:
    """`buffer[index + offset] = value`."""
    if offset is None or isinstance(offset, Number):
        return Store(buffer, index if offset is None else index + offset.value, value)
    return Scatter(buffer, index, offset, value)
