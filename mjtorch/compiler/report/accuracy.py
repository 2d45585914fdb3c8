"""How far a compiled function is from eager PyTorch, output by output."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.compiler.report.text import table

# Relative to the largest number of an output. What is no float is to be equal.
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 1e-1, torch.float32: 1e-3, torch.float64: 1e-8}


@dataclasses.dataclass(frozen=True)
class Deviation:
    """An output: how far one way to compute it is from another, relative to its largest number.

    largest, mean: of all elements; infinite where one way has a NaN or an infinity that the other has not
    tolerance: what it may be for this dtype
    """

    name: str
    dtype: str
    largest: float
    mean: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """The verdict."""
        return self.largest <= self.tolerance


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """All outputs of a function; `str()` is the report.

    Outputs that a solver iterated for, or that the last bit decides, may differ in a few worlds: a verdict is a hint
    where to look, with `jit(f).debug(...)`.
    """

    outputs: tuple[Deviation, ...]

    @property
    def agrees(self) -> bool:
        """Whether all do."""
        return all(x.agrees for x in self.outputs)

    def __str__(self) -> str:
        return "\n".join(self._report())

    def _report(self) -> Iterator[str]:
        off = [x for x in self.outputs if not x.agrees]
        yield f"compiled against eager: {len(self.outputs) - len(off)} of {len(self.outputs)} outputs agree"
        inexact = [x for x in self.outputs if x.largest and x.agrees]
        shown = [*sorted(off, key=lambda x: -x.largest), *sorted(inexact, key=lambda x: -x.largest)[:8]]
        if shown:
            head = ("output", "dtype", "largest difference", "mean", "tolerance", "verdict")
            yield from table([head, *map(_row, shown)])
        if exact := len(self.outputs) - len(off) - len(inexact):
            yield f"{exact} are equal to the last bit"


def _row(x: Deviation) -> tuple[str, ...]:
    verdict = "agrees" if x.agrees else "DIFFERS"
    return x.name, x.dtype, f"{x.largest:.2g}", f"{x.mean:.2g}", f"{x.tolerance:.0e}", verdict


def compare(found: Any, wanted: Any) -> Accuracy:
    """Two trees of tensors of one structure, leaf by leaf."""
    pairs = zip(tree.leaves(found), tree.leaves_with_path(wanted), strict=True)
    return Accuracy(tuple(deviation(path or "result", x, y) for x, (path, y) in pairs))


def deviation(name: str, found: Tensor, wanted: Tensor) -> Deviation:
    """Two tensors of one shape."""
    dtype = str(wanted.dtype).removeprefix("torch.")
    tolerance = TOLERANCE.get(wanted.dtype, 0.0)
    x, y = found.detach().double(), wanted.detach().double()
    gap = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, (x - y).abs())
    if not gap.numel():
        return Deviation(name, dtype, 0.0, 0.0, tolerance)
    finite = y[y.isfinite()].abs()
    scale = finite.max().clamp(min=torch.finfo(torch.float32).tiny) if finite.numel() else torch.ones(())
    if not wanted.dtype.is_floating_point:
        scale = torch.ones(())
    gap = (gap / scale).nan_to_num(nan=torch.inf)
    return Deviation(name, dtype, float(gap.max()), float(gap.mean()), tolerance)


def worst(outputs: Sequence[Deviation]) -> float:
    """The largest difference of all."""
    return max((x.largest for x in outputs), default=0.0)
