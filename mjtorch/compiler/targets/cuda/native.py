"""A lowered function as machine code for a GPU: build it, and call it on tensors."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mjtorch.compiler.lowered import Lowered, Output
from mjtorch.compiler.passes.warp_memory import WARP_SIZE
from mjtorch.compiler.ready import Ready, readable_world_by_world
from mjtorch.compiler.targets.cpu.native import Build, Native
from mjtorch.compiler.targets.cuda.build import cubin, cubin_name
from mjtorch.compiler.targets.cuda.driver import launch, load, resident, shared_memory
from mjtorch.compiler.targets.cuda.shape import shape_of
from mjtorch.compiler.targets.cuda.source import Source


def architecture(device: torch.device) -> str:
    """Of a GPU, such as "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def on_device(o: Output, device: torch.device) -> Output:
    """A result whose constant is on a device already: a copy from the host would wait for all kernels before it."""
    return o if o.constant is None else dataclasses.replace(o, constant=o.constant.to(device))


class CudaNative(Native):
    """One compiled program, for tensors on a GPU."""

    def __init__(self, device: torch.device, lowered: Lowered, source: Source) -> None:
        self.device, self.source = device, source
        self.shape = shape_of(source, shared_memory(device))
        program, options = lowered.program, self.shape.options
        code = cubin(source.text, architecture(device), *options)
        self.kernels = load(code, device, self.shape.memory(self.shape.warps))
        self.processors = processors(device)
        self.outputs = tuple(on_device(o, device) for o in lowered.outputs)
        self.lanes = source.lanes
        self.reads = tuple(b.position for b in program.inputs)
        self.rows = [np.array(x, dtype=np.int64) for x in (self.reads, [b.position for b in program.outputs])]
        name = cubin_name(source.text, architecture(device), *options)
        self.build = Build(self.outputs, self.reads, self.lanes, name)
        self.scratch = source.shared + source.far

    def empty(self, shape: Sequence[int], dtype: torch.dtype, worlds: int) -> Tensor:
        """Memory for a result, as (worlds, *shape): a warp reads and writes one world's elements."""
        return torch.empty((worlds, *shape), dtype=dtype, device=self.device)

    def strides(self, x: Tensor, dim: int | None) -> tuple[int, int] | None:
        """Those of an argument whose elements lie beside each other in each world; others are copied."""
        return readable_world_by_world(x, dim)

    def check_room(self, worlds: int, results: int, threads: int | None) -> None:
        """Nothing: PyTorch's allocator says what does not fit."""

    def run(self, ready: Ready) -> None:
        """Compute from and to what stands in the tables, on the current stream of the device."""
        if not ready.count:
            return
        source, shape = self.source, self.shape
        warps = self.warps(ready.count)
        places, shared = warps * shape.worlds, shape.memory(warps)
        blocks = -(-ready.count // places)
        with torch.cuda.device(self.device):
            if source.far:
                blocks = min(blocks, resident(self.kernels, warps, shared) * self.processors)
            stream = torch.cuda.current_stream(self.device).cuda_stream
            far = self._memory(source.far * places * blocks)
            uniform = self._memory(source.uniform)
            tables = self._tables(ready)
            common = ctypes.c_void_p(uniform.data_ptr())
            if source.uniform:
                launch(self.kernels, self.kernels.uniform, 1, source.lanes, shape.memory(1), (tables, common), stream)
            arguments = (tables, ctypes.c_int64(ready.count), ctypes.c_void_p(far.data_ptr()), common)
            launch(self.kernels, self.kernels.run, blocks, warps * WARP_SIZE, shared, arguments, stream)

    def warps(self, count: int) -> int:
        """Of a block, for so many worlds: fewer where not all multiprocessors would have one."""
        return max(1, min(self.shape.warps, -(-count // (self.shape.worlds * self.processors))))

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
