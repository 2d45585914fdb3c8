"""NVIDIA's driver as the compiler calls it: in which order, with what, and what is said of each call that fails.

The driver here keeps contexts, modules and what was set of kernels, refuses what the real one would refuse, and
computes nothing. Machine code is real: NVRTC needs no GPU.
"""

import ctypes
import functools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compiler.test_cuda import WORLDS, numbers

from mjtorch import jit
from mjtorch.compiler.targets.cuda import driver as cuda_driver, native as cuda_native
from mjtorch.compiler.targets.cuda.report import for_gpu
from mjtorch.compiler.targets.cuda.target import CudaTarget

STREAM, SHARED, PROCESSORS = 77, 227 * 1024, 2
# What a program asks when it is loaded, and in each call.
LOADING = (
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
)
CALLING = ("cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuCtxGetCurrent", "cuLaunchKernel")


def noted(call: Callable[..., tuple]) -> Callable[..., tuple]:
    """A call of the driver that is noted, and fails if it is told to."""

    @functools.wraps(call)
    def wrapper(self: "Driver", *args: Any) -> tuple:
        self.calls.append((call.__name__, args))
        if call.__name__ in self.fails:
            return (self.fails[call.__name__],)
        return (0, *call(self, *args))

    return wrapper


class Driver:
    """The calls that there are; of any other there is none. Contexts are numbers of devices, 100 and up."""

    def __init__(self) -> None:
        real = cuda_driver.driver()
        self.CUdevice_attribute, self.CUfunction_attribute = real.CUdevice_attribute, real.CUfunction_attribute
        self.calls: list[tuple[str, tuple]] = []
        self.fails: dict[str, Any] = {}
        self.here = threading.local()
        self.modules: list[int] = []  # the contexts that they are in
        self.room: dict[tuple[int, bytes], int] = {}  # shared memory that kernels may have

    @property
    def launched(self) -> list[tuple]:
        """The arguments of launches."""
        return [args for name, args in self.calls if name == "cuLaunchKernel"]

    def cuGetErrorString(self, status: Any) -> tuple[int, bytes]:
        return 0, b"words of the driver"

    @noted
    def cuDeviceGet(self, index: int) -> tuple:
        assert index in (0, 1)
        return (index,)

    @noted
    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> tuple:
        assert attribute == self.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        return (SHARED,)

    @noted
    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple:
        return (100 + device,)

    @noted
    def cuCtxSetCurrent(self, context: int) -> tuple:
        self.here.context = context
        return ()

    @noted
    def cuCtxGetCurrent(self) -> tuple:
        return (getattr(self.here, "context", 0),)

    @noted
    def cuModuleLoadData(self, code: bytes) -> tuple:
        assert code[1:4] == b"ELF"
        self.modules.append(self.here.context)
        return (len(self.modules) - 1,)

    @noted
    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple:
        assert self.modules[module] == self.here.context and name in (b"run", b"uniform")
        return ((module, name),)

    @noted
    def cuFuncSetAttribute(self, kernel: tuple[int, bytes], attribute: Any, value: int) -> tuple:
        assert attribute == self.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        assert 0 <= value <= SHARED
        self.room[kernel] = value
        return ()

    @noted
    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, kernel: tuple[int, bytes], threads: int, shared: int
    ) -> tuple:
        assert kernel in self.room and threads % 32 == 0
        return (1,)

    @noted
    def cuLaunchKernel(self, kernel: tuple[int, bytes], *rest: Any) -> tuple:
        *grid, shared, stream, parameters, extra = rest
        assert self.modules[kernel[0]] == self.here.context, "a kernel of another context"
        assert all(x > 0 for x in grid) and grid[3] <= 1024 and grid[1:3] == [1, 1] and grid[4:] == [1, 1]
        assert shared <= self.room[kernel] and stream == STREAM and extra == 0
        assert ctypes.c_void_p.from_address(parameters).value
        return ()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver, and PyTorch's ways to ask about devices."""
    made = Driver()
    guard = type("Guard", (), {"__init__": lambda s, d: None, "__enter__": lambda s: s, "__exit__": lambda s, *_: None})
    monkeypatch.setattr(cuda_driver, "driver", lambda: made)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", guard)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=STREAM))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    properties = SimpleNamespace(multi_processor_count=PROCESSORS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    return made


def program(device: str = "cpu:0") -> tuple[cuda_native.CudaNative, list[torch.Tensor]]:
    """One that has something to share, and does not fit into shared memory."""
    a, b = numbers(90, 90), numbers(40)[0]
    f = jit(lambda x, y: (x @ x.T).cumsum(0) @ x + (y.exp() + y).cumsum(0).sum(), in_dims=(0, None), strict=True)
    return CudaTarget(torch.device(device)).compile(for_gpu(f.mapped, a, b)), [a, b]


def test_in_which_order_the_driver_is_called(fake: Driver) -> None:
    native, args = program()
    names = [name for name, _ in fake.calls]
    assert [n for k, n in enumerate(names) if n not in names[:k]] == ["cuDeviceGet", *LOADING[1:]]
    assert names.index("cuModuleLoadData") > names.index("cuCtxSetCurrent")
    assert {k for _, k in fake.room} == {b"run", b"uniform"}
    for _ in range(2):
        fake.calls.clear()
        native(args, [0, None], WORLDS)
        # A call launches, and nothing else that a CUDA graph could not capture: it loads, sets and copies nothing.
        assert {name for name, _ in fake.calls} == set(CALLING)
        assert [kernel[1] for kernel, *_ in fake.launched] == [b"uniform", b"run"]
    native([args[0][:0], args[1]], [0, None], 0)
    assert len(fake.launched) == 2, "nothing is launched for no worlds"


@pytest.mark.parametrize("name", LOADING)
def test_each_call_that_fails_while_a_program_is_loaded(fake: Driver, name: str) -> None:
    fake.fails[name] = real_status("CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(
        RuntimeError, match=r"^CUDA: words of the driver \(CUDA_ERROR_OUT_OF_MEMORY\); take fewer worlds.*$"
    ):
        program()
    assert fake.calls[-1][0] == name and not fake.launched


@pytest.mark.parametrize("name", CALLING)
def test_each_call_that_fails_while_a_program_runs(fake: Driver, name: str) -> None:
    native, args = program()
    fake.fails[name] = real_status("CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(RuntimeError, match=r"^CUDA: words of the driver \(CUDA_ERROR_ILLEGAL_ADDRESS\)$"):
        native(args, [0, None], WORLDS)
    assert fake.calls[-1][0] == name
    fake.fails.clear()
    native(args, [0, None], WORLDS)
    assert [kernel[1] for kernel, *_ in fake.launched][-2:] == [b"uniform", b"run"]


def real_status(name: str) -> Any:
    """A status of the real driver's binding."""
    from cuda.bindings import driver

    return getattr(driver.CUresult, name)


def test_each_device_and_thread_has_its_context(fake: Driver) -> None:
    """Kernels of two devices are launched in turns; and by a thread on which nothing was done yet."""
    first, args = program()
    second = cuda_driver.load(
        next(a[0] for n, a in fake.calls if n == "cuModuleLoadData"), torch.device("cuda", 1), 4096
    )
    assert (first.kernels.context, second.context) == (100, 101)
    first(args, [0, None], WORLDS)  # the context is that of the second now
    numbers_of_it = (ctypes.c_int64(0),)
    cuda_driver.launch(second, second.run, 1, 32, 4096, numbers_of_it, STREAM)
    first(args, [0, None], WORLDS)
    assert [kernel[0] for kernel, *_ in fake.launched] == [0, 0, 1, 0, 0]
    problems: list[BaseException] = []

    def work() -> None:
        try:
            first(args, [0, None], WORLDS)
        except BaseException as e:
            problems.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not problems and len(fake.launched) == 7
