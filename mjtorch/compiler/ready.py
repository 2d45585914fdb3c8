"""A compiled program made ready for calls of one kind: what is read, allocated and passed through."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mjtorch.compiler.lower.values import DTYPES
from mjtorch.compiler.lowered import Output
from mjtorch.compiler.pool import LARGE, source
from mjtorch.tree.structure import chooser

TORCH_DTYPES = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "bool": torch.bool}


class Runnable(ABC):
    """A program built for a target: a callable from flat lists of tensors to flat lists of tensors.

    What a target need say is `run`; the rest is for those that want memory of another kind.

    outputs: where each result comes from
    reads: the arguments that the code reads
    """

    outputs: tuple[Output, ...]
    reads: tuple[int, ...]

    @abstractmethod
    def run(self, ready: Ready) -> None:
        """Compute from and to what stands in the tables `ready.inputs` and `ready.outputs`."""

    def __call__(self, args: Sequence[Tensor], dims: Sequence[int | None], worlds: int | None) -> Sequence[Tensor]:
        """Run on `args`, whose axis `dims[k]` counts worlds (None: shared). `worlds`: None for one without a batch."""
        return Ready(self, args, dims, worlds)(args)

    def empty(self, shape: Sequence[int], dtype: torch.dtype, worlds: int) -> Tensor:
        """Memory for a result, as (worlds, *shape): one world after the other."""
        return torch.empty((worlds, *shape), dtype=dtype, device="cpu")

    def strides(self, x: Tensor, dim: int | None) -> tuple[int, int] | None:
        """From element to element of an argument, and from world to world; None where it is to be copied first."""
        return readable(x, dim)

    def own(self, x: Tensor) -> Tensor:
        """A copy of a constant result, to which the caller may write."""
        return x.clone()

    def check_room(self, worlds: int, results: int, threads: int | None) -> None:  # noqa: B027
        """Raise a MemoryError where results of so many bytes, and what else is needed, do not fit into memory."""


class Ready:
    """A program made ready for tensors of certain shapes, strides and dtypes: only their addresses are missing.

    For one thread at a time, since the tables of arrays that the code reads are kept: `inputs` by position of the
    argument, and `outputs` by that of the result. Each array has three numbers there, its address and two strides, such
    that element i of world b is `data[i * element + b * world]`; strides count elements.

    Args:
        native: the program.
        args: its arguments; axis `dims[k]` of each counts worlds (None: shared).
        worlds: how many; None for one without a batch.
        seen: the positions of those arguments that will be given, among them all `sources`.
        threads: how many compute; None for as many as PyTorch uses.

    Raises:
        MemoryError: it would not fit into memory.
    """

    def __init__(
        self,
        native: Runnable,
        args: Sequence[Tensor],
        dims: Sequence[int | None],
        worlds: int | None,
        seen: Sequence[int] | None = None,
        threads: int | None = None,
    ) -> None:
        self.native, self.dims, self.worlds, self.threads = native, dims, worlds, threads
        self.count = 1 if worlds is None else worlds
        one_world = sum(math.prod(o.shape) * _dtype(o).itemsize for o in native.outputs if _is_computed(o))
        native.check_room(self.count, self.count * one_world, threads)
        seen = range(len(args)) if seen is None else seen
        self.place = {k: i for i, k in enumerate(seen)}
        self._take_inputs(args)
        self._take_outputs(args)
        self.order: Any = None  # what a target finds out in a call for the next one
        self.tables = self.inputs.buffer_info()[0], self.outputs.buffer_info()[0]
        self.columns = _first_column(self.inputs), _first_column(self.outputs)

    @staticmethod
    def sources(native: Runnable) -> set[int]:
        """The arguments that are read or passed through; what the others are does not matter."""
        return {*native.reads, *(o.source for o in native.outputs if o.source >= 0)}

    def _take_inputs(self, args: Sequence[Tensor]) -> None:
        """Fill in the strides of what the code can read where it is, and note what must be copied."""
        reads = self.native.reads
        self.inputs = _table(1 + max(reads, default=-1))
        strides = {k: self.native.strides(args[k], self.dims[k]) for k in reads}
        self.copied = [k for k in reads if strides[k] is None]
        direct = [k for k in reads if strides[k] is not None]
        for k in direct:
            self.inputs[3 * k + 1 : 3 * k + 3] = array("q", strides[k] or ())
        self.direct, self.rows = chooser([self.place[k] for k in direct]), np.array(direct, dtype=np.int64)

    def _take_outputs(self, args: Sequence[Tensor]) -> None:
        """Note what to allocate, and where each result stands in `(*args, *made(args))`."""
        native, outputs = self.native, self.native.outputs
        self.outputs = _table(len(outputs) + 1)  # one more, which a target may have for itself
        examples: list[Tensor] = []
        sizes: list[int] = []
        written: list[int] = []
        self.empty: list[Tensor] = []  # constants without elements, to which nobody can write
        self.others: list[Output] = []
        self.places: list[int] = []
        computed, empty = sum(map(_is_computed, outputs)), sum(map(_is_empty, outputs))
        for k, o in enumerate(outputs):
            if _is_computed(o):
                self.places.append(len(self.place) + len(examples))
                x = native.empty(o.shape, _dtype(o), self.count)
                self.outputs[3 * k + 1 : 3 * k + 3] = array("q", readable(x, 0) or (1, 0))
                examples.append(_without_memory(x if self.worlds is not None else x[0]))
                sizes.append(x.nbytes)
                written.append(k)
            elif o.constant is None and self._is_as_given(args[o.source], self.dims[o.source], o):
                self.places.append(self.place[o.source])
            elif _is_empty(o):
                self.places.append(len(self.place) + computed + len(self.empty))
                self.empty.append(self._other(o, args))
            else:
                self.places.append(len(self.place) + computed + empty + len(self.others))
                self.others.append(o)
        self.results, self.written = chooser(self.places), np.array(written, dtype=np.int64)
        # Where all are small, this is the fastest way to allocate them.
        self.allocate: Callable[[], list[Tensor]] = lambda: list(map(torch.empty_like, examples))
        if any(size >= LARGE for size in sizes):
            sources = [source(x, size) for x, size in zip(examples, sizes, strict=True)]
            self.allocate = lambda: [make() for make in sources]
        # The code knows integers of 64 bits only.
        self.narrow = [j for j, o in enumerate(filter(_is_computed, outputs)) if o.dtype == torch.int32]

    def _is_as_given(self, x: Tensor, dim: int | None, o: Output) -> bool:
        return x.dtype == o.dtype and (self.worlds is None or (dim is not None and dim % x.dim() == 0))

    def __call__(self, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run on the arguments that are seen."""
        return self.results((*args, *self.made(args)))

    def made(self, args: Sequence[Tensor]) -> list[Tensor]:
        """What the results have that is not just passed through."""
        inputs, outputs = self.columns
        inputs[self.rows] = _addresses(self.direct(args))
        copies = [self._copy(k, args[self.place[k]]) for k in self.copied]
        made = self.allocate()
        outputs[self.written] = _addresses(made)
        if self.count:
            self.native.run(self)
        del copies  # which had to live until here
        for j in self.narrow:
            made[j] = made[j].int()
        made.extend(self.empty)
        for o in self.others:
            made.append(self._other(o, args))
        return made

    def _copy(self, k: int, x: Tensor) -> Tensor:
        """Enter a copy of argument `k` that the code can read, worlds first, into the table."""
        x, dim = x.long() if x.dtype == torch.int32 else x, self.dims[k]
        copy = x.contiguous() if dim is None else x.movedim(dim, 0).contiguous()
        size = 0 if dim is None else math.prod(copy.shape[1:])
        self.inputs[3 * k : 3 * k + 3] = array("q", (copy.data_ptr(), 1, size))
        return copy

    def _other(self, o: Output, args: Sequence[Tensor]) -> Tensor:
        """A result that is a constant, or an argument seen in another way."""
        if o.constant is not None:
            x, dim = self.native.own(o.constant), None
        else:
            x, dim = args[self.place[o.source]].to(o.dtype), self.dims[o.source]
        if self.worlds is None:
            return x
        return x.expand(self.worlds, *x.shape) if dim is None else x.movedim(dim, 0)


def _without_memory(x: Tensor) -> Tensor:
    """A tensor like `x` that holds nothing."""
    x = torch.empty_like(x)
    x.untyped_storage().resize_(0)
    return x


def _is_computed(o: Output) -> bool:
    return o.source < 0 and o.constant is None


def _is_empty(o: Output) -> bool:
    return o.constant is not None and not o.constant.numel()


def _dtype(o: Output) -> torch.dtype:
    """Of a result as the code writes it."""
    return TORCH_DTYPES[DTYPES[o.dtype]]


def _table(rows: int) -> array[int]:
    """A table of so many arrays. Since the code takes its address, it has at least one."""
    return array("q", [0]) * (3 * max(1, rows))


def _first_column(table: array[int]) -> np.ndarray:
    """The addresses in a table, to write to: all at once, which takes two thirds of the time."""
    return np.frombuffer(table, dtype=np.int64)[::3]


def _addresses(xs: Sequence[Tensor]) -> np.ndarray:
    return np.fromiter(map(Tensor.data_ptr, xs), np.int64, len(xs))


def readable(x: Tensor, dim: int | None) -> tuple[int, int] | None:
    """The stride from element to element and that from world to world, if the code can read `x` where it is."""
    if x.dtype == torch.int32:
        return None
    if dim is None:
        return (1, 0) if x.is_contiguous() else None
    count = x.shape[dim]
    if (x.stride(dim) == 1 or count == 1) and x.movedim(dim, -1).is_contiguous():
        return count, 1
    if not count:
        return None
    first = x.movedim(dim, 0)[0]
    size = first.numel()
    if first.is_contiguous() and (size <= 1 or x.stride(dim) in (0, size)):
        return 1, x.stride(dim)
    return None


def readable_world_by_world(x: Tensor, dim: int | None) -> tuple[int, int] | None:
    """As `readable`, by code that can read nothing but elements of a world beside each other."""
    found = readable(x, dim)
    if found is None or found[0] == 1:
        return found
    return (1, found[1]) if x.numel() == found[0] else None
