"""NVIDIA's driver: load machine code, launch it on PyTorch's streams."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch

from mjtorch.compiler.passes.warp_memory import WARP_SIZE
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.compiler.targets.cuda.build import ADVICE

OLD = "the driver is older than NVRTC: update it, or install an NVRTC that is no newer than what nvidia-smi shows"
# What to do about errors of the driver, by their names.
REMEDIES = {
    "CUDA_ERROR_OUT_OF_MEMORY": "take fewer worlds, or a smaller contact_capacity",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": OLD,
    "CUDA_ERROR_INVALID_IMAGE": OLD,
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": OLD,
    "CUDA_ERROR_NO_DEVICE": "no GPU is visible to this process (CUDA_VISIBLE_DEVICES)",
    "CUDA_ERROR_INVALID_DEVICE": "there are fewer GPUs than that",
}


@functools.cache
def driver() -> Any:
    """The binding of the driver.

    Raises:
        BuildError: it is not installed.
    """
    try:
        from cuda.bindings import driver as found
    except ImportError as e:
        raise BuildError(f"the binding of NVIDIA's driver is not installed ({e}); {ADVICE}") from e
    return found


def check(result: tuple) -> Any:
    """What a call of the driver returns beside its status.

    Raises:
        RuntimeError: the call failed; with the driver's own words, and what to do about it.
    """
    status, *values = result
    if int(status):
        text = driver().cuGetErrorString(status)[1]
        name = getattr(status, "name", str(status))
        remedy = f"; {REMEDIES[name]}" if name in REMEDIES else ""
        raise RuntimeError(f"CUDA: {text.decode() if isinstance(text, bytes) else status} ({name}){remedy}")
    return values[0] if len(values) == 1 else tuple(values)


@dataclasses.dataclass(frozen=True)
class Kernels:
    """A loaded program: its two entries, in the context of one device."""

    run: Any
    uniform: Any
    context: Any


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block may have on a device."""
    cu = driver()
    attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    return int(check(cu.cuDeviceGetAttribute(attribute, check(cu.cuDeviceGet(device.index)))))


def load(code: bytes, device: torch.device, shared: int) -> Kernels:
    """Load machine code on a device, for blocks with up to `shared` bytes of shared memory."""
    cu = driver()
    torch.cuda.init()
    context = check(cu.cuDevicePrimaryCtxRetain(check(cu.cuDeviceGet(device.index))))
    check(cu.cuCtxSetCurrent(context))
    module = check(cu.cuModuleLoadData(code))
    run, uniform = (check(cu.cuModuleGetFunction(module, name)) for name in (b"run", b"uniform"))
    attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    for kernel in (run, uniform):
        check(cu.cuFuncSetAttribute(kernel, attribute, shared))
    return Kernels(run, uniform, context)


def resident(kernels: Kernels, warps: int, shared: int) -> int:
    """How many blocks of so many warps, with so many bytes of shared memory, run at a time on a multiprocessor."""
    return int(check(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(kernels.run, warps * WARP_SIZE, shared)))


def launch(
    kernels: Kernels, kernel: Any, blocks: int, threads: int, shared: int, arguments: Sequence[Any], stream: int
) -> None:
    """Launch one of the entries; returns before it has run.

    arguments: ctypes objects, which are copied before this returns
    """
    cu = driver()
    if int(check(cu.cuCtxGetCurrent())) != int(kernels.context):
        check(cu.cuCtxSetCurrent(kernels.context))  # on a thread on which PyTorch has done nothing yet
    addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    check(cu.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, shared, stream, ctypes.addressof(addresses), 0))
