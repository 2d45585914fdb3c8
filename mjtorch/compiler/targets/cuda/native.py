"""A lowered function as machine code for a GPU: build it, and call it on tensors."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.ready import Ready, readable_world_by_world
from mjtorch.compiler.targets.cpu.native import Build, Native
from mjtorch.compiler.targets.cuda.build import cubin, cubin_name
from mjtorch.compiler.targets.cuda.driver import launch, load, resident
from mjtorch.compiler.targets.cuda.printer import Source

# Lanes of a block: one warp, so that no world waits for another; two where there would be more blocks than may run.
BLOCK, SMALL, MANY = 32, 3072, 64


@dataclasses.dataclass(frozen=True)
class Shape:
    """How a program is launched.

    side_by_side: worlds of a block
    threads, shared: lanes and bytes of shared memory of a block
    """

    side_by_side: int
    threads: int
    shared: int


def shape_of(source: Source) -> Shape:
    """Blocks of one warp, or two of worlds with little memory."""
    threads = MANY if source.shared * BLOCK // source.lanes <= SMALL else BLOCK
    side_by_side = threads // source.lanes
    return Shape(side_by_side, threads, side_by_side * source.shared)


def architecture(device: torch.device) -> str:
    """Of a GPU, such as "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


class CudaNative(Native):
    """One compiled program, for tensors on a GPU."""

    def __init__(self, device: torch.device, lowered: Lowered, source: Source) -> None:
        self.device, self.source, self.shape = device, source, shape_of(source)
        program = lowered.program
        self.kernels = load(cubin(source.text, architecture(device)), device, self.shape.shared)
        self.resident = resident(self.kernels, self.shape.threads, self.shape.shared, device)
        self.outputs, self.lanes = lowered.outputs, source.lanes
        self.reads = tuple(b.position for b in program.inputs)
        self.rows = [np.array(x, dtype=np.int64) for x in (self.reads, [b.position for b in program.outputs])]
        self.build = Build(self.outputs, self.reads, self.lanes, cubin_name(source.text, architecture(device)))
        self.scratch = source.shared + source.far

    def empty(self, shape: Sequence[int], dtype: torch.dtype, worlds: int) -> Tensor:
        """Memory for a result, as (worlds, *shape): a warp reads and writes one world's elements."""
        return torch.empty((worlds, *shape), dtype=dtype, device=self.device)

    def strides(self, x: Tensor, dim: int | None) -> tuple[int, int] | None:
        """Those of an argument whose elements lie beside each other in each world; others are copied."""
        return readable_world_by_world(x, dim)

    def own(self, x: Tensor) -> Tensor:
        """A copy of a constant result on the device."""
        return x.to(self.device, copy=True)

    def check_room(self, worlds: int, results: int, threads: int | None) -> None:
        """Nothing: PyTorch's allocator says what does not fit."""

    def run(self, ready: Ready) -> None:
        """Compute from and to what stands in the tables, on the current stream of the device."""
        source, shape = self.source, self.shape
        blocks = -(-ready.count // shape.side_by_side)
        if source.far:
            blocks = min(blocks, self.resident)
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream(self.device).cuda_stream
            far = self._memory(source.far * shape.side_by_side * blocks)
            uniform = self._memory(source.uniform)
            tables = self._tables(ready)
            common = ctypes.c_void_p(uniform.data_ptr())
            if source.uniform:
                launch(self.kernels, self.kernels.uniform, 1, source.lanes, source.shared, (tables, common), stream)
            arguments = (tables, ctypes.c_int64(ready.count), ctypes.c_void_p(far.data_ptr()), common)
            launch(self.kernels, self.kernels.run, blocks, shape.threads, shape.shared, arguments, stream)

    def _memory(self, size: int) -> Tensor:
        """Memory that the caching allocator of PyTorch gives to others on this stream only after the kernels."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def _tables(self, ready: Ready) -> ctypes.Array:
        """The arrays that the kernels read and write, in the order of the program."""
        parts = []
        for rows, table in zip(self.rows, (ready.inputs, ready.outputs), strict=True):
            all_rows = np.frombuffer(table, dtype=np.int64).reshape(-1, 3)
            parts.append(all_rows[rows] if len(rows) else np.zeros((1, 3), dtype=np.int64))
        packed = np.concatenate(parts)
        return np.ctypeslib.as_ctypes(packed.reshape(-1))
