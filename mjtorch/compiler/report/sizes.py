"""How a compiled function and eager PyTorch do with more and with fewer worlds."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import optree
import torch
from torch import Tensor

from mjtorch.compiler.mapped import Mapped
from mjtorch.compiler.report.measure import Made, in_turns, is_few, make, peak
from mjtorch.compiler.report.text import ms, size, table


@dataclasses.dataclass(frozen=True)
class Batch:
    """So many worlds: seconds of a call, and bytes by which memory grows in one, compiled and eager."""

    worlds: int
    compiled: float
    eager: float
    peak: int | None
    eager_peak: int | None


@dataclasses.dataclass(frozen=True)
class Batches:
    """All sizes; `str()` is the table."""

    sizes: tuple[Batch, ...]

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("worlds", "compiled ms", "us a world", "peak", "eager ms", "us a world", "peak", "times as long")
        ]
        for b in self.sizes:
            columns = []
            for seconds, most in ((b.compiled, b.peak), (b.eager, b.eager_peak)):
                columns += [ms(seconds), f"{1e6 * seconds / b.worlds:.4g}", "" if most is None else size(most)]
            rows.append((str(b.worlds), *columns, f"{b.eager / b.compiled:.3g}"))
        return "\n".join(table(rows))


def batches(
    mapped: Mapped, args: tuple, kwargs: dict[str, Any], worlds: Sequence[int], threads: int | None = None
) -> Batches:
    """A function with so many worlds each: those of the arguments, from the first on, again and again.

    Raises:
        ValueError: the arguments have no worlds, or a number of them is not positive.
        NotImplementedError: an operation has no rule.
        BuildError: there is no compiler.
    """
    if any(n < 1 for n in worlds):
        raise ValueError(f"numbers of worlds must be positive, got {list(worlds)}")
    programs: dict[bool, Made] = {}  # for a few, and for many
    found = []
    for n in worlds:
        these = of_size(mapped, args, kwargs, n)
        call = mapped.parameters.call(these, kwargs)
        made = programs.get(is_few(call)) or make(mapped, these, kwargs)
        programs[is_few(call)] = made
        found.append(_measured(dataclasses.replace(made, args=these, call=call), threads))
    return Batches(tuple(found))


def of_size(mapped: Mapped, args: tuple, kwargs: dict[str, Any], worlds: int) -> tuple:
    """Arguments of so many worlds, for a function whose tensors are given by position."""
    call = mapped.parameters.call(args, kwargs)
    if call.worlds is None:
        raise ValueError("a function that is compiled for one world has no batch sizes")
    index = torch.arange(worlds) % call.worlds
    dims = call.signature.dims
    leaves = [_taken(x, d, index) for x, d in zip(call.leaves, dims, strict=True)]
    return tuple(optree.tree_unflatten(call.signature.spec, leaves))


def _taken(x: Tensor, dim: int | None, index: Tensor) -> Tensor:
    return x if dim is None else x.index_select(dim, index.to(x.device))


def _measured(made: Made, threads: int | None) -> Batch:
    device, ready = made.call.signature.device, made.ready(threads)
    most = peak(lambda: ready(made.call.leaves), device)
    with torch.no_grad():
        made.eager()  # what it loads only once is not what it takes
    eager_most = peak(made.eager, device)
    compiled, eager = map(statistics.median, in_turns((lambda: ready(made.call.leaves), made.eager)))
    return Batch(made.call.worlds or 1, compiled, eager, most, eager_most)
